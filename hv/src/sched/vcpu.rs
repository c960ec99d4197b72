//! A VCPU as the scheduler sees it. It belongs to one queue at any time, in whatever state it is, and moves as a whole.

use super::binding::Window;
use super::heap::before;
use super::policy::Policy;
use super::topology::{PcpuId, PcpuSet};
use super::types::{VcpuId, VcpuStats, VmId};
use super::vm::Vm;

/// Where a VCPU is in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is what the PCPU runs.
    Running,
    /// The PCPU has left it, and its state is not in memory yet.
    Leaving,
    /// In the heap of waiting VCPUs.
    Waiting,
    /// Throttled by its VM's cap.
    Capped,
    /// Blocked or paused.
    Resting,
}

/// One VCPU.
#[derive(Debug)]
pub(super) struct Vcpu<A> {
    pub vm: VmId,
    pub affinity: PcpuSet,
    pub place: Place,
    /// It is paused.
    pub paused: bool,
    /// It has nothing to do before it is woken.
    pub blocked: bool,
    /// Wake-up pending: the next block returns at once.
    pub woken: bool,
    /// Where it goes once its state is in memory.
    pub target: Option<PcpuId>,
    /// Since when it is in its place.
    pub since: u64,
    /// Up to when its running is in the accounts.
    pub charged: u64,
    /// It has crossed LLCs: it is not stolen across LLCs again before this time.
    pub settled_at: u64,
    /// Its next move across LLCs is to where its memory is: it is bound then.
    pub binds: bool,
    /// While it is bound, the time in [`VcpuStats::ran`] at which it no longer is; `settled_at` is [`BOUND`] away.
    pub bound_until: Option<u64>,
    /// It was stolen after it was bound: the LLC that it was bound to, and the time in [`VcpuStats::ran`].
    pub stolen_from: Option<(PcpuSet, u64)>,
    /// How many thefts in a row its memory has undone.
    pub thefts_in_vain: u32,
    /// While it is bound: what it had waited of late.
    pub window: Window,
    /// It was stolen although it was bound, and its VM has not heard of it.
    pub was_taken: bool,
    pub account: A,
    pub stats: VcpuStats,
}

/// The VCPU that can go on.
#[derive(Clone, Copy)]
pub(super) struct Stays {
    pub id: VcpuId,
    pub key: u64,
    pub since: u64,
    /// Throttled by its VM's cap until then.
    pub throttled_until: Option<u64>,
}

impl<A: Default> Vcpu<A> {
    /// One that is paused, and blocked.
    pub(super) fn new(vm: VmId, affinity: PcpuSet, now: u64) -> Vcpu<A> {
        Vcpu {
            vm,
            affinity,
            place: Place::Resting,
            paused: true,
            blocked: true,
            woken: false,
            target: None,
            since: now,
            charged: now,
            settled_at: now,
            binds: false,
            bound_until: None,
            stolen_from: None,
            thefts_in_vain: 0,
            window: Window::default(),
            was_taken: false,
            account: A::default(),
            stats: VcpuStats::default(),
        }
    }

    /// Whether it may run as far as it is concerned itself.
    pub(super) fn is_ready(&self) -> bool {
        !self.paused && !self.blocked
    }

    /// Itself, if it can go on at the PCPU that runs it or has just left it.
    #[inline(always)]
    pub(super) fn stays<P: Policy<Account = A>>(
        &self,
        policy: &P,
        vm: &Vm,
        id: VcpuId,
        pcpu: PcpuId,
        now: u64,
    ) -> Option<Stays> {
        let here = self.target.is_none_or(|target| target == pcpu);
        let key = policy.key(&self.account);
        let throttled_until = || vm.cap.throttled_until(now);
        (self.is_ready() && here).then(|| Stays {
            id,
            key,
            since: self.since,
            throttled_until: throttled_until(),
        })
    }

    /// The PCPUs that may steal it from a queue of this LLC.
    pub(super) fn allowed(&self, llc: PcpuSet, now: u64) -> PcpuSet {
        if before(now, self.settled_at) && !self.has_run_enough() {
            self.affinity.and(llc)
        } else {
            self.affinity
        }
    }

    /// Changes its place.
    pub(super) fn put(&mut self, place: Place, now: u64) {
        if self.place == Place::Capped {
            self.stats.capped += now.saturating_sub(self.since);
        }
        self.put_from(Place::Waiting, place, now);
    }

    /// Changes its place. It was `from`, or a place in which it neither waited nor was throttled.
    #[inline(always)]
    pub(super) fn put_from(&mut self, from: Place, place: Place, now: u64) {
        if from == Place::Waiting && self.place == Place::Waiting {
            self.stats.waited += now.saturating_sub(self.since);
        }
        self.place = place;
        self.since = now;
    }
}
