//! VCPUs that have crossed LLCs, and stay there for a while.
//!
//! One that was stolen or moved by hand is left there for 10 ms by the clock: its cache contents where it was are gone by then. One
//! that has followed its memory (`Why::MoveTo`) is *bound*: it is not stolen across LLCs until it has run there for 10 ms. Inside
//! the LLC it is stolen like any other. Where a PCPU of another LLC has nothing to run, it may take a bound VCPU that has waited
//! for 10 ms; the VCPU's VM learns of that by [`Scheduler::was_taken`], because the memory would draw the VCPU back at once.

use super::Scheduler;
use super::heap::before;
use super::policy::Policy;
use super::queue::Queue;
use super::sync::Ordering;
use super::topology::{PcpuId, PcpuSet};
use super::types::VcpuId;
use super::vcpu::{Place, Vcpu};

/// Longer than any VCPU waits, in cycles.
const BOUND: u64 = 1 << 60;

impl<A> Vcpu<A> {
    /// Whether it was bound to an LLC, and has run there for long enough.
    #[cold]
    pub(super) fn has_run_enough(&self) -> bool {
        self.bound_until.is_some_and(|until| !before(self.stats.ran, until))
    }

    /// Whether it is bound to an LLC.
    pub(super) fn is_bound(&self) -> bool {
        self.bound_until.is_some_and(|until| before(self.stats.ran, until))
    }

    /// It has crossed LLCs, `settle` is how long it stays: by the clock, or, if its memory is there, by what it runs.
    pub(super) fn cross(&mut self, settle: u64, is_stolen: bool, now: u64) {
        let is_taken = is_stolen && self.is_bound();
        self.was_taken |= is_taken;
        self.stats.unbound += u64::from(is_taken);
        self.bound_until = self.binds.then(|| self.stats.ran.wrapping_add(settle));
        self.settled_at = now.saturating_add(if self.binds { BOUND } else { settle });
        self.binds = false;
    }
}

impl<P: Policy> Queue<P> {
    /// Lets an idle PCPU take the VCPUs that are bound here and have waited for `settle`. When the next one may have; `None` if no VCPU
    /// is bound here.
    #[cold]
    pub(super) fn offer_bound(&mut self, to: PcpuSet, settle: u64, now: u64) -> Option<u64> {
        let (vcpus, llc) = (&self.vcpus, self.llc);
        let allowed = |vcpu: &Vcpu<P::Account>| {
            let waits_long = vcpu.is_bound() && now.saturating_sub(vcpu.since) >= settle;
            let more = if waits_long { vcpu.affinity.and(to) } else { PcpuSet::EMPTY };
            vcpu.allowed(llc, now).or(more)
        };
        self.waiting.reconsider(|id| vcpus[usize::from(id.0)].as_deref().map_or(PcpuSet::EMPTY, allowed));
        let due = |vcpu: &Vcpu<P::Account>| match vcpu.place {
            // One that has is offered at each look.
            Place::Waiting => vcpu.since.saturating_add(settle),
            _ => now.saturating_add(settle),
        };
        vcpus.iter().flatten().filter(|vcpu| vcpu.is_bound()).map(|vcpu| due(vcpu)).min()
    }

    /// Lets other LLCs steal the VCPUs that have stayed here long enough.
    #[cold]
    pub(super) fn reconsider(&mut self, now: u64) {
        let (vcpus, llc) = (&self.vcpus, self.llc);
        let vcpu = |id: VcpuId| vcpus[usize::from(id.0)].as_deref();
        self.waiting.reconsider(|id| vcpu(id).map_or(PcpuSet::EMPTY, |vcpu| vcpu.allowed(llc, now)));
        let waiting = vcpus.iter().flatten().filter(|vcpu| vcpu.place == Place::Waiting);
        let unsettled = waiting.map(|vcpu| vcpu.settled_at).filter(|at| before(now, *at));
        self.settled_at = unsettled.min().unwrap_or(u64::MAX);
    }
}

impl<P: Policy> Scheduler<P> {
    /// A VCPU is bound to this PCPU's LLC from now on, and belongs to its queue, which is locked. It does not wait for long before those
    /// that were bound to it before.
    pub(super) fn binds(&self, pcpu: PcpuId, now: u64) {
        let bit = PcpuSet::only(pcpu).bits();
        if self.bound.load(Ordering::Relaxed) & bit == 0 {
            let due = now.saturating_add(self.common.settle);
            self.pcpus[pcpu.index()].bound_due.store(due, Ordering::Relaxed);
            self.bound.fetch_or(bit, Ordering::Release);
        }
    }

    /// The PCPU has nothing to run: VCPUs that are bound elsewhere, and have waited for long there, are offered to it. Locks no queue
    /// where none can have: a PCPU that has just sent a VCPU there comes here next, when the other one takes it.
    pub(super) fn free_bound(&self, pcpu: PcpuId, now: u64) {
        for other in PcpuSet::from_bits(self.bound.load(Ordering::Acquire)) {
            let shared = &self.pcpus[other.index()];
            if before(now, shared.bound_due.load(Ordering::Relaxed)) {
                continue;
            }
            let mut queue = shared.queue.lock();
            match queue.offer_bound(PcpuSet::only(pcpu), self.common.settle, now) {
                Some(due) => shared.bound_due.store(due, Ordering::Relaxed),
                None => _ = self.bound.fetch_and(!PcpuSet::only(other).bits(), Ordering::Relaxed),
            }
            self.publish(&mut queue);
        }
    }
}
