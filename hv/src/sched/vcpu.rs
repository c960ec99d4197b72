//! A VCPU as the scheduler sees it. It belongs to one queue at any time, in whatever state it is, and moves as a whole.

use super::topology::PcpuId;
use super::topology::PcpuSet;
use super::types::{VcpuStats, VmId};

/// Where a VCPU is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is what the PCPU runs.
    Running,
    /// The PCPU has left it, and its state is not in memory yet.
    Leaving,
    /// In the heap of those who wait.
    Waiting,
    /// It waits until its VM's cap lets it.
    Capped,
    /// It does not want to run, or must not.
    Resting,
}

/// One VCPU.
#[derive(Debug)]
pub(super) struct Vcpu<A> {
    pub vm: VmId,
    pub affinity: PcpuSet,
    pub place: Place,
    /// Somebody has paused it.
    pub paused: bool,
    /// It has nothing to do before it is woken.
    pub blocked: bool,
    /// It was woken while it ran: its next block comes to nothing.
    pub woken: bool,
    /// Where it goes once its state is in memory.
    pub target: Option<PcpuId>,
    /// Since when it is in its place.
    pub since: u64,
    /// Up to when its running is in the accounts.
    pub charged: u64,
    /// The mark of one that has crossed LLCs: for so many cycles it has to run before that may happen again unasked.
    pub unsettled: u64,
    pub account: A,
    pub stats: VcpuStats,
}

impl<A: Default> Vcpu<A> {
    /// One that is blocked.
    pub(super) fn new(vm: VmId, affinity: PcpuSet, now: u64) -> Vcpu<A> {
        Vcpu {
            vm,
            affinity,
            place: Place::Resting,
            paused: false,
            blocked: true,
            woken: false,
            target: None,
            since: now,
            charged: now,
            unsettled: 0,
            account: A::default(),
            stats: VcpuStats::default(),
        }
    }

    /// Whether it may run as far as it is concerned itself.
    pub(super) fn is_ready(&self) -> bool {
        !self.paused && !self.blocked
    }

    /// The PCPUs that may take it from a queue of this LLC unasked.
    pub(super) fn reach(&self, llc: PcpuSet) -> PcpuSet {
        if self.unsettled > 0 { self.affinity.and(llc) } else { self.affinity }
    }

    /// Changes its place and returns how long it was in the last one.
    pub(super) fn put(&mut self, place: Place, now: u64) -> u64 {
        let stayed = now.saturating_sub(self.since);
        match self.place {
            Place::Waiting => self.stats.waited += stayed,
            Place::Capped => self.stats.capped += stayed,
            Place::Running | Place::Leaving | Place::Resting => {}
        }
        self.place = place;
        self.since = now;
        stayed
    }
}
