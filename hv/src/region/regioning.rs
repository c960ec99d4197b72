//! Regioning: finding out which frames of an address space are used together (thesis 2.3.2, 2.3.3).
//!
//! For 1 % of its virtual time a VCPU runs in a *phase*, on tables of their own in which everything is closed but the current region
//! and what is global. So each change of the region is a fault ([`Event::Touch`]). A frame of a seed region becomes a region of its
//! own when it is touched, and two regions merge where the second had been idle for less than `q`: the phase builds regions bottom
//! up. The largest local region of a phase is torn down when the next one begins, so that wrong merges do not stay for ever.
//!
//! | module | has |
//! |---|---|
//! | `phase` | the answer to each touch |
//! | `evidence` | whether two regions are used together, or single pages of one beside the other |
//! | `hubs` | those pages, which are made global for a time |
//! | `classify` | frames that are made global: code, stacks, the kernel's |
//! | `seen` | access and idle times of regions |
//! | [`Turn`] | when a VCPU's phase is due |
//! | [`Moves`] | pages that move VCPUs too often, which are excluded |
//! | [`Steady`] | how many turns are left out while rounds lead to nothing new |
//! | `worth` | what is torn down, and whether all of it brings anything |
//!
//! Pure: time (virtual, of the VCPU in this address space; without the hypervisor's own) and events are arguments, and what must
//! happen is returned. The partition's transitions are checked by the partition; one that it refuses leaves a frame open.
//! docs/design/0026-regioning.md has what the thesis leaves open, docs/design/0035-hub-pages.md when large regions merge.
//!
//! What must hold: one VCPU of an address space at a time is in a phase; regions that have died are forgotten
//! ([`Regioning::forget`], for each [`Effect::Died`](super::Effect::Died)).

mod classify;
mod evidence;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod hubs;
mod moves;
mod phase;
mod seen;
mod steady;
#[cfg(test)]
mod tests;
mod turn;
mod worth;

use alloc::vec::Vec;

use arrayvec::ArrayVec;

#[cfg(any(test, feature = "testing"))]
pub use self::fuzz::fuzz_one;
pub use self::moves::Moves;
use self::phase::{Known, Phase};
use self::seen::Seen;
pub use self::steady::{Outcome, Steady};
pub use self::turn::Turn;
pub use self::worth::{Verdict, Worth};
use super::partition::Partition;
use super::{Effects, Rid, Space};
use crate::arch::addr::{Gfn, Gva};
use crate::mem::pieces::{OutOfMemory, Pieces};

/// What is measured for a machine, or chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// `q`: two regions merge where one was idle for less, in nanoseconds. The thesis has 100 µs for Clovertown.
    pub merge_ns: u32,
    /// Virtual time from one phase of a VCPU to the next, in nanoseconds.
    pub period_ns: u64,
    /// Virtual time of a phase, in nanoseconds; at most one second.
    pub phase_ns: u32,
    /// Touches that end a phase before its time: each costs an exit, which virtual time does not show.
    pub most_touches: u16,
    /// What moving a VCPU to another cache costs, in nanoseconds.
    pub move_ns: u32,
    /// Moves because of one page in 100 ms from which on it is excluded.
    pub most_moves: u32,
    /// Frames from which on a region merges with another one only if several of its pages are used with that.
    pub large: u32,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            merge_ns: 100_000,
            period_ns: 1_000_000_000,
            phase_ns: 10_000_000,
            most_touches: 8192,
            move_ns: 15_860,
            most_moves: 100,
            large: 16,
        }
    }
}

impl Params {
    /// Touches of a phase of this length, at most: as many for its time as one of the usual length has, and never fewer than that.
    /// Where pages are used at random a region takes several touches for each of its pages to be found.
    pub fn most_touches(phase_ms: u32) -> u16 {
        let usual = Params::default();
        let touches =
            u64::from(usual.most_touches) * u64::from(phase_ms) * 1_000_000 / u64::from(usual.phase_ns);
        u16::try_from(touches).unwrap_or(u16::MAX).max(usual.most_touches)
    }
}

/// A fault of a VCPU in a phase, on a frame of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The frame.
    pub gfn: Gfn,
    /// The address that was accessed, where the hypervisor knows it.
    pub address: Option<Gva>,
    /// It is one of the half that programs have; not known where the address is not.
    pub is_user_address: bool,
    /// The instruction pointer.
    pub rip: Gva,
    /// The stack pointer.
    pub rsp: Gva,
    /// It was the fetch of an instruction.
    pub is_fetch: bool,
    /// It was made by the guest's kernel.
    pub by_kernel: bool,
}

/// What has happened to a VCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its [`Turn`] has come.
    Due,
    /// It has touched a frame that is not open in the phase's tables.
    Touch(Touch),
    /// An interrupt was injected: what the guest's kernel does now is not the program's work.
    Interrupt,
    /// The phase's time is over, or the address space goes.
    End,
}

/// What must happen to the tables of the phase, and to the VCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: a phase may not begin now, or none is running.
    None,
    /// The VCPU runs on the phase's tables, in which nothing is open but what is global and shared. In a running phase the same after
    /// an interrupt, so that the return to the program is seen.
    CloseAll,
    /// The frame is open, too, until everything is closed.
    Open(Gfn),
    /// The region is the current one and is open; the other one is closed.
    Switch {
        /// What was current before, if it still exists and is not part of the new one.
        close: Option<Rid>,
        /// What is current now.
        open: Rid,
    },
    /// The VCPU is back on its ordinary tables, and repeats what it did.
    Finish(Round),
}

/// The answer to an event.
#[must_use = "tables differ from what they should be until this is done"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// For the phase's tables.
    pub change: Change,
    /// For all tables: at most a split and a merge, or a region that is torn down and a page that is judged again.
    pub effects: ArrayVec<Effects, 2>,
}

impl Answer {
    pub(super) fn new(change: Change) -> Answer {
        Answer { change, effects: ArrayVec::new() }
    }
}

/// What a phase has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Faults.
    pub touches: u32,
    /// Changes of the current region.
    pub switches: u32,
    /// Regions that began with a single frame.
    pub born: u32,
    /// Merges.
    pub merges: u32,
    /// Frames that were made global.
    pub excluded: u32,
    /// Transitions that the partition has refused.
    pub refused: u32,
    /// Virtual time that was the program's own, in nanoseconds.
    pub program_ns: u64,
    /// Virtual time that was the guest's kernel's because of interrupts, in nanoseconds.
    pub system_ns: u64,
    /// It ended before its time, because of too many touches.
    pub is_cut: bool,
}

impl Round {
    /// Another address space's in the same phase of a VCPU.
    pub(super) fn add(&mut self, other: &Round) {
        self.touches += other.touches;
        self.switches += other.switches;
        self.born += other.born;
        self.merges += other.merges;
        self.excluded += other.excluded;
        self.refused += other.refused;
        // A phase that is abandoned has no end: what was interrupted until then counts as interrupted for ever.
        self.program_ns = self.program_ns.saturating_add(other.program_ns);
        self.system_ns = self.system_ns.saturating_add(other.system_ns);
        self.is_cut |= other.is_cut;
    }
}

/// The regioning of a VM.
#[derive(Debug)]
pub struct Regioning {
    params: Params,
    seen: Pieces<Seen>,
    evidence: evidence::Records,
    spaces: Vec<OfSpace>,
    /// Those from here on have had no phase yet: a merge is to cost no look at each of them.
    used: usize,
}

/// The state of an address space.
#[derive(Clone, Debug, Default)]
struct OfSpace {
    /// Number of its latest phase, modulo 2^16.
    number: u16,
    phase: Option<Phase>,
    worth: Worth,
    steady: Steady,
}

impl Regioning {
    /// For a VM with this partition.
    ///
    /// # Errors
    /// No memory.
    pub fn new(params: Params, partition: &Partition) -> Result<Regioning, OutOfMemory> {
        let mut spaces = Vec::new();
        spaces.try_reserve_exact(partition.space_records()).map_err(|_| OutOfMemory)?;
        spaces.resize(partition.space_records(), OfSpace::default());
        let params = Params { phase_ns: params.phase_ns.min(1_000_000_000), ..params };
        Ok(Regioning {
            params,
            seen: Pieces::new(partition.region_records(), Seen::default)?,
            evidence: evidence::Records::default(),
            spaces,
            used: 0,
        })
    }

    /// Bytes of host memory for records of this many regions and address spaces, without the tables of pieces.
    pub const fn bytes_for(regions: usize, spaces: usize) -> usize {
        Pieces::<Seen>::frames(regions) * crate::arch::addr::PAGE_SIZE as usize
            + spaces * size_of::<OfSpace>()
            + size_of::<evidence::Records>()
    }

    /// The answer to what a VCPU did in an address space, at this virtual time of its own there.
    pub fn on(&mut self, partition: &mut Partition, space: Space, now_ns: u64, event: Event) -> Answer {
        let Some(of) = self.spaces.get_mut(usize::from(space.0)) else { return Answer::new(Change::None) };
        let Some(phase) = &mut of.phase else {
            if event != Event::Due || !of.worth.is_tried() {
                return Answer::new(Change::None);
            }
            self.used = self.used.max(usize::from(space.0) + 1);
            of.number = of.number.wrapping_add(1).max(1);
            of.phase = Some(Phase::new(space, of.number, now_ns));
            let mut answer = Answer::new(Change::CloseAll);
            answer.effects.extend(of.worth.tear_down(partition));
            self.evidence.restart(space);
            answer.effects.extend(self.evidence.hubs.begin_phase(space, partition));
            return answer;
        };
        let is_over = phase.is_over(&self.params, now_ns);
        match event {
            // Another VCPU of this address space.
            Event::Due => Answer::new(Change::None),
            Event::Interrupt if !is_over => {
                phase.interrupt(&mut self.evidence, now_ns);
                Answer::new(Change::CloseAll)
            }
            Event::Touch(touch) if !is_over => {
                let known = Known { seen: &mut self.seen, evidence: &mut self.evidence };
                phase.touch(&self.params, partition, known, now_ns, &touch)
            }
            _ => {
                let round = phase.finish(&self.params, now_ns);
                of.worth.candidates(phase.largest());
                of.worth.judge(&self.params, &round);
                of.phase = None;
                Answer::new(Change::Finish(round))
            }
        }
    }

    /// Whether a phase of an address space may begin at this turn of its: none is left out because regions have brought nothing.
    pub fn is_tried(&mut self, space: Space) -> bool {
        self.spaces.get_mut(usize::from(space.0)).is_some_and(|of| of.worth.is_tried())
    }

    /// A number stands for another address space from now on, of which nothing is known.
    pub fn begin_space(&mut self, space: Space) {
        if let Some(of) = self.spaces.get_mut(usize::from(space.0)) {
            (of.phase, of.worth, of.steady) = (None, Worth::default(), Steady::default());
            self.evidence.restart(space);
            self.evidence.hubs.forget(space);
        }
    }

    /// Whether a phase of an address space is running.
    pub fn is_on(&self, space: Space) -> bool {
        self.spaces.get(usize::from(space.0)).is_some_and(|of| of.phase.is_some())
    }

    /// The VCPU that is in a phase of this address space runs in another one. Until its next touch in this one time is not its own.
    pub fn pause(&mut self, space: Space, now_ns: u64) {
        if let Some(phase) = self.spaces.get_mut(usize::from(space.0)).and_then(|of| of.phase.as_mut()) {
            phase.interrupt(&mut self.evidence, now_ns);
        }
    }

    /// A region has died: its number may come again for another one.
    pub fn forget(&mut self, rid: Rid) {
        if rid.index() < self.seen.len() {
            self.seen[rid.index()] = Seen::default();
        }
        self.evidence.forget(rid);
        for of in self.spaces.iter_mut().take(self.used) {
            of.worth.forget(rid);
            if let Some(phase) = &mut of.phase {
                phase.forget(rid);
            }
        }
    }

    /// How long a region is used at a time and stays idle, on average and in nanoseconds, as the latest phase found that saw it.
    /// `None`: it saw no whole visit, as where visits are longer than phases.
    pub fn times(&self, rid: Rid) -> Option<(u32, Option<u32>)> {
        (rid.index() < self.seen.len()).then(|| self.seen[rid.index()].means()).flatten()
    }

    /// Judges an address space after a phase ([`Change::Finish`]) and the balancing that follows it.
    pub fn worth(&mut self, space: Space) -> Option<&mut Worth> {
        self.spaces.get_mut(usize::from(space.0)).map(|of| &mut of.worth)
    }

    /// Which turns of an address space are left out because rounds lead to nothing new.
    pub fn steady(&mut self, space: Space) -> Option<&mut Steady> {
        self.spaces.get_mut(usize::from(space.0)).map(|of| &mut of.steady)
    }

    /// The current region of a phase, if one is running and has touched any.
    pub fn current(&self, space: Space) -> Option<Rid> {
        self.spaces.get(usize::from(space.0))?.phase.as_ref()?.current()
    }

    /// What it was made with.
    pub fn params(&self) -> &Params {
        &self.params
    }
}
