//! VCPUs that have crossed LLCs, and stay there for a while.
//!
//! One that was stolen or moved by hand is left there for 10 ms by the clock: its cache contents where it was are gone by then. One
//! that has followed its memory (`Why::MoveTo`) is *bound*: it is not stolen across LLCs until it has run there for 10 ms. Inside
//! the LLC it is stolen like any other. If it is stolen after that, and its memory *draws it back* before it has run for 10 ms, the
//! theft was in vain: it is bound for twice as long then, up to 160 ms.
//!
//! A PCPU of another LLC that has had nothing to run for 10 ms takes a bound VCPU that has waited for 10 ms in all of the last 30 to 40;
//! the VCPU's VM learns of that by [`Scheduler::was_taken`], because the memory would draw the VCPU back at once. One wait of 10 ms would
//! be too much to ask: PCPUs that take VCPUs which are drawn back keep waits short, and so do servers, which compute for short times.

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

/// How often the time for which a VCPU is bound is doubled, at most.
const DOUBLED: u32 = 4;

/// In how many times the usual time of staying a VCPU has to have waited for that time to be taken.
const WINDOW: usize = 4;

/// How long a VCPU had waited at the last moments that are the usual time of staying apart, the oldest first: with it the window begins.
/// Where no PCPU looked for a while, a mark is what it had waited when one did.
#[derive(Debug, Default)]
pub(super) struct Window {
    marks: [u64; WINDOW],
    /// When the newest was due.
    at: u64,
}

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

    /// It crosses from an LLC to another one, `settle` is how long it stays: by the clock, or, if its memory is there, by what it runs.
    pub(super) fn cross(&mut self, [from, to]: [PcpuSet; 2], settle: u64, is_stolen: bool, now: u64) {
        let (is_taken, ran) = (is_stolen && self.is_bound(), self.stats.ran);
        self.was_taken |= is_taken;
        self.stats.unbound += u64::from(is_taken);
        let is_theft = is_stolen && !is_taken && self.bound_until.is_some();
        let stolen_from = core::mem::replace(&mut self.stolen_from, is_theft.then_some((from, ran)));
        if !self.binds {
            self.bound_until = None;
            self.settled_at = now.saturating_add(settle);
            return;
        }
        let is_drawn_back = stolen_from.is_some_and(|(llc, since)| llc == to && ran - since < settle);
        self.thefts_in_vain = if is_drawn_back { (self.thefts_in_vain + 1).min(DOUBLED) } else { 0 };
        self.stats.drawn_back += u64::from(is_drawn_back);
        self.bound_until = Some(ran.wrapping_add(settle << self.thefts_in_vain));
        self.settled_at = now.saturating_add(BOUND);
        self.binds = false;
        self.slide_window(settle, now);
    }

    /// How long it has waited, up to now.
    fn has_waited(&self, now: u64) -> u64 {
        let waits = if self.place == Place::Waiting { now.saturating_sub(self.since) } else { 0 };
        self.stats.waited + waits
    }

    /// Lets what it has waited long ago count no more.
    #[inline(always)]
    fn slide_window(&mut self, settle: u64, now: u64) {
        let passed = now.saturating_sub(self.window.at).checked_div(settle).unwrap_or(0);
        if passed > 0 {
            self.slide_window_by(passed, settle, now);
        }
    }

    /// The same once `settle` has passed `passed` times, which is not at each move.
    #[cold]
    #[inline(never)]
    fn slide_window_by(&mut self, passed: u64, settle: u64, now: u64) {
        let waited = self.has_waited(now);
        let new = WINDOW.min(passed as usize);
        self.window.marks.rotate_left(new);
        self.window.marks[WINDOW - new..].fill(waited);
        self.window.at += passed * settle;
    }

    /// How long it has waited in its window.
    fn waited_in_window(&self, now: u64) -> u64 {
        self.has_waited(now).saturating_sub(self.window.marks[0])
    }
}

impl<P: Policy> Queue<P> {
    /// Lets an idle PCPU take the VCPUs that are bound here and have waited for `settle` in their windows. When the next one may have;
    /// `None` if no VCPU is bound here.
    #[cold]
    pub(super) fn offer_bound(&mut self, to: PcpuSet, settle: u64, now: u64) -> Option<u64> {
        let bound = self.vcpus.iter_mut().flatten().filter(|vcpu| vcpu.is_bound());
        bound.for_each(|vcpu| vcpu.slide_window(settle, now));
        let (vcpus, llc) = (&self.vcpus, self.llc);
        let allowed = |vcpu: &Vcpu<P::Account>| {
            let waits_much = vcpu.is_bound() && vcpu.waited_in_window(now) >= settle;
            let more = if waits_much { vcpu.affinity.and(to) } else { PcpuSet::EMPTY };
            vcpu.allowed(llc, now).or(more)
        };
        self.waiting.reconsider(|id| vcpus[usize::from(id.0)].as_deref().map_or(PcpuSet::EMPTY, allowed));
        // One that has waited enough is offered at each look.
        let due =
            |vcpu: &Vcpu<P::Account>| now.saturating_add(settle.saturating_sub(vcpu.waited_in_window(now)));
        vcpus.iter().flatten().filter(|vcpu| vcpu.is_bound()).map(|vcpu| due(vcpu)).min()
    }

    /// Whether it has begun to run nothing for `time`, as far as it was seen with nothing to run.
    #[cold]
    fn has_idled(&mut self, time: u64, now: u64) -> bool {
        if self.idles.0 != self.stats.switches {
            self.idles = (self.stats.switches, now);
        }
        now.saturating_sub(self.idles.1) >= time
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
    /// A VCPU that is bound to this PCPU's LLC belongs to its queue from now on, which is locked: it has followed its memory, or was stolen
    /// within the LLC. It does not wait for long before those that were bound there before.
    pub(super) fn binds(&self, pcpu: PcpuId, now: u64) {
        let bit = PcpuSet::only(pcpu).bits();
        if self.bound.load(Ordering::Relaxed) & bit == 0 {
            let due = now.saturating_add(self.common.settle);
            self.pcpus[pcpu.index()].bound_due.store(due, Ordering::Relaxed);
            self.bound.fetch_or(bit, Ordering::Release);
        }
    }

    /// The PCPU has nothing to run: if that is so for long, VCPUs that are bound elsewhere, and have waited much there, are offered to
    /// it. Locks no other queue where none can have: a PCPU that has just sent a VCPU there comes here next, when the other one takes it.
    pub(super) fn free_bound(&self, pcpu: PcpuId, now: u64) {
        let bound = PcpuSet::from_bits(self.bound.load(Ordering::Acquire));
        if bound.is_empty() || !self.pcpus[pcpu.index()].queue.lock().has_idled(self.common.settle, now) {
            return;
        }
        for other in bound {
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
