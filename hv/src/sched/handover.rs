//! A VCPU that goes from the PCPU that runs it to where its memory is, without a decision and a queue in between.
//!
//! [`Why::MoveTo`](super::Why::MoveTo) leads to the same end: the PCPU decides what it runs instead, and hands the VCPU on behind that. Here
//! it is the other way round, and the VCPU waits for what it needs alone. A target that halts is left with its decision made
//! ([`Queue::start`]): no heap is touched on either side.

use alloc::boxed::Box;

use super::Scheduler;
use super::policy::{Arrival, Policy};
use super::queue::{Common, Queue, bill};
use super::sync::Ordering;
use super::topology::PcpuId;
use super::types::{Decision, Kick, VcpuId};
use super::vcpu::{Place, Vcpu};

impl<P: Policy> Scheduler<P> {
    /// The VCPU that this PCPU runs, whose state is in memory, goes on at `to`, where its memory is (as by
    /// [`Why::MoveTo`](super::Why::MoveTo)). The PCPU runs nothing then, and asks what to run when it has sent the kick. So the
    /// VCPU waits neither for that decision nor in a queue on its way.
    ///
    /// `None`: it cannot, because it is paused or throttled, must not run there, or is sent elsewhere; or a trace is replayed.
    /// Nothing has changed but accounts, and [`Scheduler::schedule`] decides as ever.
    #[cold]
    #[inline(never)]
    pub fn hand_over(&self, pcpu: PcpuId, to: PcpuId, now: u64) -> Option<Kick> {
        if P::FORCES || pcpu == to || to.index() >= self.pcpus.len() {
            return None;
        }
        let common = &self.common;
        let (mut mine, mut theirs) = self.lock_both(pcpu, to);
        let id = mine.current?;
        if !mine.lets_go(common, id, to, now) {
            return None;
        }
        mine.current = None;
        if theirs.idle && theirs.waiting.first().is_none() && self.take_idle(to) {
            // No other VCPU can be what it runs next.
            let index = usize::from(id.0);
            let mut vcpu = mine.vcpus[index].take().expect("a queue has the VCPU that it runs");
            let vm = &common.vms[usize::from(vcpu.vm.0)];
            common.policy.leave(&mut mine.sum, &mut vcpu.account, vm, false, now);
            self.cross_over(&mine, &theirs, &mut vcpu, Arrival::Moved, now);
            // Who reads this waits for the lock of its queue.
            self.homes[index].store(to.0, Ordering::Release);
            drop(mine);
            theirs.start(common, id, vcpu, now);
            // Last: one that is awake and sees it waits for this lock.
            return Some(self.want(to));
        }
        theirs.account(common, now);
        self.carry_over(&mut mine, &mut theirs, id, Place::Waiting, Arrival::Moved, now);
        drop(mine);
        self.publish(&mut theirs);
        Some(self.find_pcpu(&theirs, id, now))
    }
}

impl<P: Policy> Queue<P> {
    /// Whether the VCPU that runs may go on at `to`, where its memory is. Then it is about to leave, with its accounts up to date.
    #[inline(always)]
    pub(super) fn lets_go(&mut self, common: &Common<P>, id: VcpuId, to: PcpuId, now: u64) -> bool {
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        let is_sent_elsewhere = vcpu.target.is_some_and(|target| target != to);
        if !vcpu.is_ready() || !vcpu.affinity.contains(to) || is_sent_elsewhere {
            return false;
        }
        let ran = bill(policy, sum, vcpu, vm, now);
        let goes = vm.cap.throttled_until(now).is_none();
        if goes {
            // Whatever it was woken for, it looks at when it is entered.
            (vcpu.target, vcpu.binds, vcpu.woken) = (None, true, false);
        }
        self.stats.busy += ran;
        goes
    }

    /// A VCPU that has come from another queue is what the PCPU runs when it has been woken: this makes the decision that it will find.
    #[inline(always)]
    fn start(&mut self, common: &Common<P>, id: VcpuId, mut vcpu: Box<Vcpu<P::Account>>, now: u64) {
        let (policy, vm) = (&common.policy, &common.vms[usize::from(vcpu.vm.0)]);
        policy.enter(&mut self.sum, &mut vcpu.account, vm, Arrival::Moved, now);
        policy.dispatch(&mut self.sum, &mut vcpu.account, vm, now);
        (vcpu.place, vcpu.since, vcpu.charged) = (Place::Running, now, now);
        vcpu.stats.dispatched += 1;
        self.stats.switches += 1;
        self.current = Some(id);
        self.vcpus[usize::from(id.0)] = Some(vcpu);
    }

    /// What [`Queue::start`] has made the PCPU run, if it still may and nothing else is to be thought of. Waking up was not its time.
    #[cold]
    #[inline(never)]
    pub(super) fn started(&mut self, common: &Common<P>, now: u64) -> Option<Decision> {
        let id = self.current?;
        let is_alone = self.waiting.first().is_none() && self.throttled.next() > now;
        let (_, _, vcpu, vm) = self.parts(common, id);
        if !is_alone || !vcpu.is_ready() || vcpu.target.is_some() || vm.cap.throttled_until(now).is_some() {
            return None;
        }
        (vcpu.charged, vcpu.since) = (now, now);
        // Nothing has left, and what waits is as published.
        let is_settled = !self.looks_round;
        Some(Decision { is_settled, ..self.run_one(common, id, now) })
    }
}
