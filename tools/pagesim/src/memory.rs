//! A memory under a policy: what a trace does to it.

use crate::{
    replace::{AccessBits, NONE, Object, Page, Placement, Policy, Slot},
    trace::{Batch, Run, Universe},
};

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// References.
    pub references: u64,
    /// Faults, the first ones of each page included.
    pub faults: u64,
    /// Faults that evicted a page: the others came while frames were free.
    pub evictions: u64,
    /// Evicted pages that were accessed again.
    pub refaults: u64,
    /// References from their eviction to that access, of all together.
    pub refault_distance: u64,
    /// The most ghosts that the policy had.
    pub ghosts: usize,
}

/// Something that a trace drives.
pub trait Memory {
    /// A piece of the trace.
    fn pass(&mut self, batch: &Batch, universe: &Universe);
    /// What was counted so far.
    fn counts(&self) -> Counts;
    /// Bytes of the policy's tables.
    fn policy_bytes(&self) -> usize;
}

/// Access bits by slot; one byte each, so that setting one is one store.
#[derive(Clone, Debug)]
struct Bits(Vec<bool>);

impl AccessBits for Bits {
    fn take(&mut self, slot: Slot) -> bool {
        std::mem::take(&mut self.0[slot as usize])
    }
}

/// A memory under a policy of the hypervisor's.
pub struct Frames<P> {
    policy: P,
    bits: Bits,
    /// The slot of each row of the universe, or [`NONE`].
    slots: Vec<Slot>,
    /// The row in each slot.
    rows: Vec<u32>,
    /// The reference at which each row was evicted last; 0: never.
    evicted: Vec<u64>,
    counts: Counts,
}

impl<P: Policy> Frames<P> {
    /// Empty, of this many frames.
    pub fn new(policy: P, frames: u32) -> Self {
        let frames = frames as usize;
        let bits = Bits(vec![false; frames]);
        Self {
            policy,
            bits,
            slots: vec![],
            rows: vec![NONE; frames],
            evicted: vec![],
            counts: Counts::default(),
        }
    }

    /// The policy.
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Runs, once; true if there was no fault.
    fn runs(&mut self, runs: &[Run<u32>], universe: &Universe) -> bool {
        let before = self.counts.faults;
        for run in runs {
            let slot = self.slots[run.page as usize];
            if slot == NONE {
                self.fault(run, universe);
            } else {
                self.bits.0[slot as usize] = true;
                if P::TOUCHES {
                    self.policy.touch(slot, run.count);
                }
            }
            self.counts.references += u64::from(run.count);
        }
        self.counts.faults == before
    }

    #[inline(never)]
    fn fault(&mut self, run: &Run<u32>, universe: &Universe) {
        let row = run.page as usize;
        let (page, object) = (Page(universe.pages[row]), Object(universe.objects[row]));
        let Placement { slot, evicts } = self.policy.fault(page, object, &mut self.bits);
        let now = self.counts.references + 1;
        self.counts.faults += 1;
        if evicts {
            let victim = self.rows[slot as usize] as usize;
            self.slots[victim] = NONE;
            self.evicted[victim] = now;
            self.counts.evictions += 1;
        }
        if self.evicted[row] > 0 {
            self.counts.refaults += 1;
            self.counts.refault_distance += now - self.evicted[row];
        }
        self.counts.ghosts = self.counts.ghosts.max(self.policy.ghosts());
        self.slots[row] = slot;
        self.rows[slot as usize] = run.page;
        self.bits.0[slot as usize] = run.count > 1;
        if P::TOUCHES && run.count > 1 {
            self.policy.touch(slot, run.count - 1);
        }
    }
}

impl<P: Policy> Memory for Frames<P> {
    fn pass(&mut self, batch: &Batch, universe: &Universe) {
        self.slots.resize(universe.pages.len(), NONE);
        self.evicted.resize(universe.pages.len(), 0);
        for step in &batch.steps {
            let runs = batch.of(step);
            let mut left = step.times;
            while left > 0 {
                left -= 1;
                if self.runs(runs, universe) && left > 0 {
                    // All are resident, and only a fault evicts: what is left are hits, in the same order.
                    for run in runs {
                        let count = u64::from(run.count) * u64::from(left);
                        self.counts.references += count;
                        if P::TOUCHES {
                            self.policy
                                .touch(self.slots[run.page as usize], count.min(u64::from(u32::MAX)) as u32);
                        }
                    }
                    left = 0;
                }
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn policy_bytes(&self) -> usize {
        self.policy.bytes()
    }
}
