//! The address spaces of a VM's programs: which root of page tables is which, how long each has run, and when one is gone.
//!
//! ```text
//!            a program's touch in a phase                  not seen for long           a pass over all frames
//!   no root ──────────────────────────────► Used (number) ────────────────► Ending ──────► Going ──────► no root
//!                                             ▲                                  its frames are unmapped
//!                        timers: virtual time ┘
//! ```
//!
//! Owned by [`rounds`](super::rounds). A root is the physical address of the tables that CR3 names, without what else stands there; `vcpu::regions` reads
//! it at faults in a phase and at timers. A switch from one program to another between two such moments is not seen.
//!
//! Nothing tells that an address space has ended. So one counts as gone that has not run for [`UNSEEN_NS`] of the VM's virtual time, or whose
//! tables lead to no program's memory any more when that is looked at: the guest's kernel has emptied them. Its frames are unmapped, a bounded number of them at a time, and then its number is free. What comes back before that
//! is another address space, which takes the frames that it touches ([`Spaces::is_gone`]).
//!
//! What must hold: a guest that makes address spaces without end costs no more than the touches by which it shows them. At most
//! [`SPACES`] - 1 have numbers, and fewer in small VMs; the others count as [`Space::VM`].

use alloc::vec::Vec;

use super::history::{SAMPLE_NS, Scan};
use super::partition::Partition;
use super::regioning::Moves;
use super::{Effects, SPACES, Space};
use crate::mem::pieces::OutOfMemory;

/// Virtual time of the VM in nanoseconds after which it is looked whether an address space that did not run has any memory.
const DOUBTFUL_NS: u64 = 2 * SAMPLE_NS;
/// That after which it is gone in any case.
pub const UNSEEN_NS: u64 = 32 * SAMPLE_NS;
/// The same of one that is not known to map anything.
const UNUSED_NS: u64 = 8 * SAMPLE_NS;
/// Virtual time of the VM between two parts of a pass.
const PASS_NS: u64 = SAMPLE_NS;
/// Frames that a part of a pass looks at at most.
const MOST_LOOKED_AT: usize = 16_384;
/// Changes of regions that a part of a pass leads to at most.
pub const MOST_CHANGES: usize = 1024;

/// Samples of an address space after a round of its that tell of single pages: what the first one finds may be older than the leaves.
const SMALL_SAMPLES: u8 = 2;

/// No root: they are multiples of 32.
const NO_ROOT: u64 = u64::MAX;

/// What has become of address spaces so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that have a number now, without the VM itself.
    pub used: u64,
    /// Those that were given a number.
    pub made: u64,
    /// Those of which nothing is left.
    pub ended: u64,
    /// Touches of programs for whose address spaces there was no number.
    pub refused: u64,
}

/// A set of address spaces.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpaceSet([u64; SPACES as usize / 64]);

impl SpaceSet {
    /// Puts one in; whether it was not there.
    pub fn insert(&mut self, space: Space) -> bool {
        let is_new = !self.contains(space);
        self.0[usize::from(space.0) / 64] |= 1 << (space.0 % 64);
        is_new
    }

    /// Takes one out; whether it was there.
    pub fn remove(&mut self, space: Space) -> bool {
        let was_there = self.contains(space);
        self.0[usize::from(space.0) / 64] &= !(1 << (space.0 % 64));
        was_there
    }

    /// Those that are in, by their numbers.
    pub fn iter(self) -> impl Iterator<Item = Space> {
        (0..SPACES).map(Space).filter(move |space| self.contains(*space))
    }

    /// Whether it is in.
    pub fn contains(&self, space: Space) -> bool {
        self.0[usize::from(space.0) / 64] >> (space.0 % 64) & 1 != 0
    }
}

/// What a number stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Used,
    /// It is gone, and waits for a pass.
    Ending,
    /// The pass that runs meets all its frames.
    Going,
}

/// What is known of a number.
#[derive(Clone, Debug, Default)]
struct Slot {
    state: State,
    /// The root that it has or had.
    root: u64,
    /// Virtual time so far, in nanoseconds.
    ran_ns: u64,
    /// The VM's virtual time when it ran last, in nanoseconds, and the VCPU on which a timer has met it last.
    seen_ns: u64,
    vcpu: Option<u32>,
    /// Its own samples, and how many there were when idle frames were looked for last.
    samples: u64,
    samples_at_ageing: u64,
    /// Frames that the latest one has found accessed, and those that are known of the one being taken.
    accessed: [u32; 2],
    /// Complete samples until which leaves of single pages are needed.
    small_samples: u8,
    /// Virtual time at its last round, in nanoseconds.
    round_ns: u64,
    moves: Moves,
}

/// See the module.
#[derive(Debug)]
pub struct Spaces {
    /// By number. The first is the VM's, which has neither root nor end.
    slots: Vec<Slot>,
    /// The roots of those in use, by number; the others have [`NO_ROOT`].
    roots: Vec<u64>,
    /// The VM's virtual time when that was looked at last, and when gone ones are to be looked for again, in nanoseconds.
    vm_ns: u64,
    due_ns: u64,
    /// The frame where a pass goes on, by its number among all; `None`: there is no pass.
    pass: Option<usize>,
    counts: Counts,
}

impl Spaces {
    /// Bytes of host memory that this many take.
    pub const fn bytes_for(spaces: usize) -> usize {
        spaces * (size_of::<Slot>() + size_of::<u64>())
    }

    /// Room for this many, [`SPACES`] at most; none but the VM.
    ///
    /// # Errors
    /// No memory.
    pub fn new(spaces: usize) -> Result<Spaces, OutOfMemory> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(spaces).map_err(|_| OutOfMemory)?;
        slots.resize(spaces, Slot::default());
        slots[0].state = State::Used;
        let mut roots = Vec::new();
        roots.try_reserve_exact(spaces).map_err(|_| OutOfMemory)?;
        roots.resize(spaces, NO_ROOT);
        Ok(Spaces { slots, roots, vm_ns: 0, due_ns: 0, pass: None, counts: Counts::default() })
    }

    /// What has become of them.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// All numbers.
    pub fn numbers(&self) -> impl Iterator<Item = Space> + use<> {
        (0..self.slots.len() as u16).map(Space)
    }

    fn slot(&self, space: Space) -> &Slot {
        &self.slots[usize::from(space.0)]
    }

    /// The address space with this root, if it has a number.
    pub fn find(&self, root: u64) -> Option<Space> {
        let number = self.roots.iter().position(|own| *own == root && root != NO_ROOT)?;
        Some(Space(number as u16))
    }

    /// The root of an address space that has a number, also of one that is gone and has frames still.
    pub fn root(&self, space: Space) -> Option<u64> {
        let slot = self.slot(space);
        (space != Space::VM && slot.state != State::Free).then_some(slot.root)
    }

    /// A program runs with this root: its address space, which gets a number if it has none, and whether it is new.
    /// [`Space::VM`] if there is none left.
    pub fn enter(&mut self, partition: &mut Partition, root: u64) -> (Space, bool) {
        let known = self.find(root);
        let Some(space) = known.or_else(|| partition.add_space().ok()) else {
            self.counts.refused += 1;
            return (Space::VM, false);
        };
        let slot = &mut self.slots[usize::from(space.0)];
        if known.is_none() {
            *slot = Slot { state: State::Used, root, ..Slot::default() };
            self.roots[usize::from(space.0)] = root;
            self.counts.made += 1;
            self.counts.used += 1;
        }
        slot.seen_ns = self.vm_ns;
        (space, known.is_none())
    }

    /// The VM has run until this virtual time of its.
    pub fn vm_ran(&mut self, vm_ns: u64) {
        self.vm_ns = vm_ns;
    }

    /// Those that a timer of this VCPU has met last, within so much virtual time of the VM's.
    pub fn recent(&self, vcpu: u32, ns: u64) -> SpaceSet {
        let is_recent = |slot: &Slot| {
            slot.state == State::Used
                && slot.vcpu == Some(vcpu)
                && self.vm_ns.saturating_sub(slot.seen_ns) <= ns
        };
        let mut all = SpaceSet::default();
        for space in self.numbers().skip(1).filter(|space| is_recent(self.slot(*space))) {
            all.insert(space);
        }
        all
    }

    /// Whether another one gets a number now. Those that are gone have theirs until a pass has met all their frames.
    pub fn has_room(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == State::Free)
    }

    /// An address space has run for so long on this VCPU, until now.
    pub fn ran(&mut self, space: Space, vcpu: u32, ns: u64) {
        let slot = &mut self.slots[usize::from(space.0)];
        slot.vcpu = Some(vcpu);
        slot.ran_ns = slot.ran_ns.saturating_add(ns);
        slot.seen_ns = self.vm_ns;
    }

    /// The virtual time of an address space that has a number, in nanoseconds. The VM's is not kept here.
    pub fn ran_ns(&self, space: Space) -> u64 {
        self.slot(space).ran_ns
    }

    /// Complete samples of an address space.
    pub fn samples(&self, space: Space) -> u64 {
        self.slot(space).samples
    }

    /// Whether this many samples of an address space have been taken since idle frames were looked for.
    pub fn ages(&self, space: Space, least: u64) -> bool {
        let slot = self.slot(space);
        slot.samples.saturating_sub(slot.samples_at_ageing) >= least
    }

    /// Idle frames of all that have this many samples were looked for.
    pub fn aged(&mut self, least: u64) {
        for space in self.numbers() {
            if self.ages(space, least) {
                let slot = &mut self.slots[usize::from(space.0)];
                slot.samples_at_ageing = slot.samples;
            }
        }
    }

    /// A part of a sample of an address space has been taken.
    pub fn sampled(&mut self, space: Space, part: Scan) {
        let slot = &mut self.slots[usize::from(space.0)];
        let [latest, so_far] = &mut slot.accessed;
        *so_far = so_far.saturating_add(u32::try_from(part.accessed).unwrap_or(u32::MAX));
        if part.is_complete {
            *latest = core::mem::take(so_far);
            slot.samples += 1;
            slot.small_samples = slot.small_samples.saturating_sub(1);
        }
    }

    /// Whether the next sample of an address space is to tell of single pages: one of the first after a round of its.
    pub fn need_small(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == State::Used && slot.small_samples > 0)
    }

    /// Frames of an address space that its latest sample has found accessed. What belongs to none is left out: large leaves tell of 512
    /// frames there at once. Of the VM as a whole all frames are its own.
    pub fn accessed(&self, space: Space) -> u32 {
        self.slot(space).accessed[0]
    }

    /// The moves of VCPUs that an address space's memory has caused.
    pub fn moves(&mut self, space: Space) -> &mut Moves {
        &mut self.slots[usize::from(space.0)].moves
    }

    /// A round of an address space is over, at this virtual time of its. How long ago the last one was, in nanoseconds.
    pub fn round_ended(&mut self, space: Space, now_ns: u64) -> u64 {
        let slot = &mut self.slots[usize::from(space.0)];
        slot.small_samples = SMALL_SAMPLES;
        now_ns.saturating_sub(core::mem::replace(&mut slot.round_ns, now_ns))
    }

    /// Address spaces that have not run for long are gone, and those whose tables are empty. `has_programs`: whether the tables with a
    /// root lead to any program's memory.
    pub fn end_unseen(&mut self, partition: &Partition, mut has_programs: impl FnMut(u64) -> bool) {
        for space in self.numbers().skip(1) {
            let slot = self.slot(space);
            if slot.state != State::Used {
                continue;
            }
            let unseen = self.vm_ns.saturating_sub(slot.seen_ns);
            let root = slot.root;
            let is_unused = unseen >= UNUSED_NS && partition.entries_in(space) == Ok(0);
            let mut is_empty = || unseen >= DOUBTFUL_NS && !has_programs(root);
            if unseen >= UNSEEN_NS || is_unused || is_empty() {
                self.end(space);
            }
        }
    }

    /// An address space is gone. [`Space::VM`] is not, but its frames are unmapped all the same.
    pub fn end(&mut self, space: Space) {
        let slot = &mut self.slots[usize::from(space.0)];
        if slot.state == State::Used {
            slot.state = State::Ending;
            self.roots[usize::from(space.0)] = NO_ROOT;
            self.counts.used -= u64::from(space != Space::VM);
        }
    }

    /// Whether what an address space still maps are leftovers.
    pub fn is_gone(&self, space: Space) -> bool {
        matches!(self.slot(space).state, State::Ending | State::Going)
    }

    /// Whether it is time to look for those that are gone, and to go on with a pass: once in [`PASS_NS`].
    pub fn is_due(&mut self) -> bool {
        let is_due = self.vm_ns >= self.due_ns;
        if is_due {
            self.due_ns = self.vm_ns.saturating_add(PASS_NS);
        }
        is_due
    }

    /// Unmaps some frames of address spaces that are gone, and returns what that has done to regions. `None`: nothing is left to do.
    pub fn sweep(&mut self, partition: &mut Partition) -> Option<Vec<Effects>> {
        let mut effects = Vec::new();
        let from = match self.pass {
            Some(from) => from,
            None => {
                let ending = self.slots.iter_mut().filter(|slot| slot.state == State::Ending);
                if ending.map(|slot| slot.state = State::Going).count() == 0 {
                    return None;
                }
                0
            }
        };
        self.pass = Some(from);
        if effects.try_reserve_exact(MOST_CHANGES).is_err() {
            return Some(effects);
        }
        let is_gone = |space| self.is_gone(space);
        self.pass = partition.unmap_gone(from, MOST_LOOKED_AT, is_gone, &mut effects);
        if self.pass.is_none() {
            self.end_pass(partition);
        }
        Some(effects)
    }

    /// All frames were looked at.
    fn end_pass(&mut self, partition: &mut Partition) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if slot.state != State::Going {
                continue;
            }
            if number == 0 {
                slot.state = State::Used;
            } else if partition.remove_space(Space(number as u16)).is_ok() {
                *slot = Slot::default();
                self.counts.ended += 1;
            } else {
                slot.state = State::Ending;
            }
        }
    }
}
