//! The run queue of one PCPU: its running, waiting and resting VCPUs. No locks, no other queues.
//!
//! [`super::Scheduler`] holds each behind a lock and moves VCPUs between them. A VCPU is a box in `vcpus` of exactly
//! one queue; the heaps and `current` name it. What a VCPU's [`Place`] says and where it is named always agree.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::cap::Throttled;
use super::heap::{Heap, Item, before};
use super::policy::{Arrival, Policy};
use super::topology::{PcpuId, PcpuSet};
use super::types::{Decision, PcpuStats, VcpuId, Why};
use super::vcpu::{Place, Stays, Vcpu};
use super::vm::Vm;

/// What all queues have in common.
pub(super) struct Common<P> {
    pub policy: P,
    pub vms: Vec<Vm>,
    /// A VCPU that has run for less is not preempted by a better one. In cycles, as are all times.
    pub min_run: u64,
    /// How long a VCPU that has crossed LLCs is left there.
    pub settle: u64,
}

/// The queue of one PCPU.
pub(super) struct Queue<P: Policy> {
    pub pcpu: PcpuId,
    pub llc: PcpuSet,
    /// By number.
    pub vcpus: Vec<Option<Box<Vcpu<P::Account>>>>,
    pub waiting: Heap,
    pub throttled: Throttled,
    pub current: Option<VcpuId>,
    pub leaving: Option<VcpuId>,
    /// The PCPU halts.
    pub idle: bool,
    pub idle_since: u64,
    /// [`PcpuStats::switches`], and when it was first seen with nothing to run since that switch.
    pub idles: (u64, u64),
    /// It has stolen a VCPU or has left idle, and has not yet looked whether more waits for other PCPUs.
    pub looks_round: bool,
    /// When the first waiting VCPU that has just crossed LLCs may be stolen across LLCs again; never if `u64::MAX`.
    pub settled_at: u64,
    pub sum: P::Sum,
    pub stats: PcpuStats,
}

impl<P: Policy> Queue<P> {
    pub(super) fn new(pcpu: PcpuId, llc: PcpuSet, vcpus: usize) -> Queue<P> {
        Queue {
            pcpu,
            llc,
            vcpus: core::iter::repeat_with(|| None).take(vcpus).collect(),
            waiting: Heap::with_capacity(vcpus),
            throttled: Throttled::with_capacity(vcpus),
            current: None,
            leaving: None,
            idle: false,
            idle_since: 0,
            idles: (u64::MAX, 0),
            looks_round: false,
            settled_at: u64::MAX,
            sum: P::Sum::default(),
            stats: PcpuStats::default(),
        }
    }

    /// A VCPU of this queue.
    #[inline]
    pub(super) fn get(&self, id: VcpuId) -> &Vcpu<P::Account> {
        self.vcpus[usize::from(id.0)].as_ref().expect("a queue names only VCPUs that it has")
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: VcpuId) -> &mut Vcpu<P::Account> {
        self.vcpus[usize::from(id.0)].as_mut().expect("a queue names only VCPUs that it has")
    }

    /// A VCPU of this queue together with the queue's sum, its VM and the policy.
    #[inline(always)]
    pub(super) fn parts<'q, 'c>(
        &'q mut self,
        common: &'c Common<P>,
        id: VcpuId,
    ) -> (&'c P, &'q mut P::Sum, &'q mut Vcpu<P::Account>, &'c Vm) {
        let vcpu = self.vcpus[usize::from(id.0)].as_mut().expect("a queue names only VCPUs that it has");
        let vm = &common.vms[usize::from(vcpu.vm.0)];
        (&common.policy, &mut self.sum, vcpu, vm)
    }

    /// Brings the accounts of the VCPU that runs up to date.
    pub(super) fn account(&mut self, common: &Common<P>, now: u64) {
        if let Some(id) = self.current {
            let (policy, sum, vcpu, vm) = self.parts(common, id);
            let ran = bill(policy, sum, vcpu, vm, now);
            policy.show(sum, &vcpu.account, vm);
            self.stats.busy += ran;
        }
    }

    /// Another VCPU has blocked: if the one that runs is of the same VM, its share has grown.
    #[inline(always)]
    fn reweigh(&mut self, common: &Common<P>, now: u64) {
        let Some(id) = self.current else { return };
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        if vcpu.charged != now {
            return self.account(common, now);
        }
        // It has just begun, and there is nothing to bill: part of each switch from one that waits for an event.
        policy.dispatch(sum, &mut vcpu.account, vm, now);
        policy.show(sum, &vcpu.account, vm);
    }

    /// A decision begins: brings the accounts of the VCPU that runs up to date and notes what it wants. That VCPU, if
    /// it can go on here, to be given to [`Queue::unless_throttled`].
    #[inline(always)]
    pub(super) fn settle(&mut self, common: &Common<P>, why: Why, now: u64) -> Option<Stays> {
        let id = self.current?;
        let pcpu = self.pcpu;
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        let ran = bill(policy, sum, vcpu, vm, now);
        match why {
            Why::Preempt | Why::Yield => {}
            Why::Block => vcpu.blocked = !core::mem::take(&mut vcpu.woken),
            Why::MoveTo(target) if vcpu.affinity.contains(target) => {
                (vcpu.target, vcpu.binds) = (Some(target), true);
            }
            Why::MoveTo(_) => {}
        }
        let stays = vcpu.stays(policy, vm, id, pcpu, now);
        self.stats.busy += ran;
        stays
    }

    /// The VCPU that runs or was left just now, if it may go on here.
    pub(super) fn may_go_on(&mut self, common: &Common<P>, now: u64) -> Option<Stays> {
        let id = self.current.or(self.leaving)?;
        let pcpu = self.pcpu;
        let (policy, _, vcpu, vm) = self.parts(common, id);
        let stays = vcpu.stays(policy, vm, id, pcpu, now);
        self.unless_throttled(stays)
    }

    /// The VCPU that can go on, unless a cap holds it back: then what comes next must not take longer. After
    /// [`Queue::release`].
    #[inline(always)]
    pub(super) fn unless_throttled(&mut self, stays: Option<Stays>) -> Option<Stays> {
        let Some(until) = stays?.throttled_until else { return stays };
        self.throttled.expect(until);
        None
    }

    /// The VCPU of this queue that should run and is not throttled. One that yields comes after all others.
    pub(super) fn best(&mut self, common: &Common<P>, yields: bool, now: u64) -> Option<VcpuId> {
        let stays = self.throttle_front(common, now);
        self.next(stays, yields)
    }

    /// The VCPU of this queue that should run unless it is [throttled](Queue::throttled_until); `stays` may go on.
    #[inline(always)]
    pub(super) fn next(&self, stays: Option<Stays>, yields: bool) -> Option<VcpuId> {
        match (stays, self.waiting.first()) {
            (Some(stays), Some(first)) if !yields && before(stays.key, first.key) => Some(stays.id),
            (_, Some(first)) => Some(first.id),
            (stays, None) => stays.map(|stays| stays.id),
        }
    }

    #[inline]
    pub(super) fn key(&self, common: &Common<P>, id: VcpuId) -> u64 {
        common.policy.key(&self.get(id).account)
    }

    /// When a VCPU may run again that must not now, because its VM has used up its cap.
    #[inline(always)]
    pub(super) fn throttled_until(&self, common: &Common<P>, id: VcpuId, now: u64) -> Option<u64> {
        common.vms[usize::from(self.get(id).vm.0)].cap.throttled_until(now)
    }

    /// Throttles the VCPUs at the front whose VM has used up its cap. Returns the current VCPU if it may go on.
    #[cold]
    pub(super) fn throttle_front(&mut self, common: &Common<P>, now: u64) -> Option<Stays> {
        while let Some(id) = self.waiting.first().map(|item| item.id) {
            let Some(until) = self.throttled_until(common, id, now) else { break };
            self.waiting.pop();
            self.throttle(common, id, until, now);
        }
        self.may_go_on(common, now)
    }

    /// One that another PCPU may take, with its key.
    pub(super) fn offered_to(
        &mut self,
        common: &Common<P>,
        thief: PcpuId,
        now: u64,
    ) -> Option<(u64, VcpuId)> {
        loop {
            let (key, id) = self.waiting.first_for(thief).map(|item| (item.key, item.id))?;
            let Some(until) = self.throttled_until(common, id, now) else { return Some((key, id)) };
            self.unlink(id);
            self.throttle(common, id, until, now);
        }
    }

    fn throttle(&mut self, common: &Common<P>, id: VcpuId, until: u64, now: u64) {
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        policy.leave(sum, &mut vcpu.account, vm, false, now);
        vcpu.put(Place::Capped, now);
        self.throttled.push(id, until);
    }

    /// Unthrottles the VCPUs whose VM's cap allows it.
    #[cold]
    pub(super) fn release(&mut self, common: &Common<P>, now: u64) {
        while let Some(id) = self.throttled.pop_due(now) {
            self.enqueue(common, id, Arrival::Resumed, now);
        }
    }

    /// A VCPU that is in no heap begins to wait.
    pub(super) fn enqueue(&mut self, common: &Common<P>, id: VcpuId, how: Arrival, now: u64) {
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        policy.enter(sum, &mut vcpu.account, vm, how, now);
        vcpu.put(Place::Waiting, now);
        let key = policy.key(&vcpu.account);
        self.push(id, key, now);
    }

    /// Puts a VCPU that waits into the heap.
    #[inline(always)]
    pub(super) fn push(&mut self, id: VcpuId, key: u64, now: u64) {
        let vcpu = self.get(id);
        let (allowed, settled_at) = (vcpu.allowed(self.llc, now), vcpu.settled_at);
        if before(now, settled_at) {
            self.settled_at = self.settled_at.min(settled_at);
        }
        self.waiting.push(Item::new(key, id, allowed));
    }

    /// A resting VCPU wants to run, and may.
    pub(super) fn admit(&mut self, common: &Common<P>, id: VcpuId, how: Arrival, now: u64) {
        let vm = self.get(id).vm;
        common.vms[usize::from(vm.0)].begin_demand(now);
        self.account(common, now);
        self.enqueue(common, id, how, now);
    }

    /// A VCPU that waits or is throttled becomes resting.
    pub(super) fn withdraw(&mut self, common: &Common<P>, id: VcpuId, now: u64) {
        if self.unlink(id) == Place::Waiting {
            let (policy, sum, vcpu, vm) = self.parts(common, id);
            policy.leave(sum, &mut vcpu.account, vm, false, now);
        }
        let (_, _, vcpu, vm) = self.parts(common, id);
        vm.end_demand(now);
        vcpu.put(Place::Resting, now);
    }

    /// Takes a VCPU out of the heap that it is in, if it is in one.
    pub(super) fn unlink(&mut self, id: VcpuId) -> Place {
        let place = self.get(id).place;
        match place {
            Place::Waiting => _ = self.waiting.remove_one(id),
            Place::Capped => self.throttled.remove(id),
            Place::Running | Place::Leaving | Place::Resting => {}
        }
        place
    }

    /// Stops running the current VCPU. Its state is still in the PCPU.
    pub(super) fn put_prev(&mut self, now: u64) {
        if let Some(id) = self.current.take() {
            self.get_mut(id).put_from(Place::Running, Place::Leaving, now);
            self.leaving = Some(id);
        }
    }

    /// The state of the VCPU that was left is in memory: puts it where it belongs. Returns it if that is another queue.
    pub(super) fn put_away(&mut self, common: &Common<P>, now: u64) -> Option<(VcpuId, PcpuId)> {
        let id = self.leaving.take()?;
        let pcpu = self.pcpu;
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        if core::mem::take(&mut vcpu.woken) {
            vcpu.blocked = false;
        }
        let elsewhere = vcpu.target.take().filter(|target| *target != pcpu).map(|target| (id, target));
        if !vcpu.is_ready() {
            let blocks = vcpu.blocked;
            policy.leave(sum, &mut vcpu.account, vm, blocks, now);
            vm.end_demand(now);
            vcpu.put(Place::Resting, now);
            self.reweigh(common, now);
        } else if let Some(until) = vm.cap.throttled_until(now) {
            self.throttle(common, id, until, now);
        } else {
            self.enqueue(common, id, Arrival::Preempted, now);
        }
        elsewhere
    }

    /// Runs a VCPU that waits or may go on, or nothing.
    pub(super) fn run(&mut self, common: &Common<P>, chosen: Option<VcpuId>, now: u64) -> Decision {
        match chosen {
            Some(id) => self.run_one(common, id, now),
            None => {
                self.put_prev(now);
                Decision { run: None, until: self.throttled.next(), is_settled: false }
            }
        }
    }

    /// Runs a VCPU that waits or may go on.
    #[inline(always)]
    pub(super) fn run_one(&mut self, common: &Common<P>, id: VcpuId, now: u64) -> Decision {
        let starts = self.current != Some(id);
        let (policy, sum, vcpu, vm) = self.parts(common, id);
        if starts {
            policy.dispatch(sum, &mut vcpu.account, vm, now);
            vcpu.put_from(Place::Waiting, Place::Running, now);
            vcpu.charged = now;
            vcpu.stats.dispatched += 1;
            vcpu.target = None;
        }
        let mut until = now.saturating_add(policy.slice(sum, &vcpu.account).min(vm.cap.turn()));
        if starts {
            if self.leaving == Some(id) {
                self.leaving = None;
            } else {
                self.put_prev(now);
                self.take_first(id);
                self.stats.switches += 1;
            }
            self.current = Some(id);
        }
        // Until the first throttled VCPU may wait again.
        if self.throttled.next() < until {
            until = until.min(self.throttled.next().max(now.saturating_add(common.min_run)));
        }
        Decision { run: Some(id), until, is_settled: false }
    }

    /// Takes a waiting VCPU out of the heap, as a rule the first.
    #[inline(always)]
    fn take_first(&mut self, id: VcpuId) {
        if self.waiting.first().is_some_and(|item| item.id == id) {
            self.waiting.pop();
        } else {
            self.waiting.remove_one(id);
        }
    }
}

/// Brings the accounts of a running VCPU up to date and returns the time that it ran.
#[inline(always)]
pub(super) fn bill<P: Policy>(
    policy: &P,
    sum: &mut P::Sum,
    vcpu: &mut Vcpu<P::Account>,
    vm: &Vm,
    now: u64,
) -> u64 {
    let ran = now.saturating_sub(vcpu.charged);
    vcpu.charged += ran;
    vcpu.stats.ran += ran;
    policy.charge(sum, &mut vcpu.account, vm, ran, now);
    vm.cap.pay(ran, now);
    ran
}
