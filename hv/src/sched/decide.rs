//! Decisions: what a PCPU runs next, what it steals, when it halts.
//!
//! A decision looks at its own queue and at what a few other queues publish, and locks a second queue only to steal
//! from it.
//!
//! The rule between LLCs: a PCPU steals a VCPU from another LLC only if it would otherwise halt or run one that is
//! ahead by more than half a slice, and if its own LLC offers nothing, or only VCPUs that lag less; and never one that
//! has crossed LLCs less than 10 ms ago ([`Vcpu::allowed`](super::vcpu::Vcpu::allowed)). One that has followed its memory to an LLC
//! (`Why::MoveTo`) is bound to it until it has run there for 10 ms or more; only a PCPU that idles for long may take it (`binding`).

use super::policy::{Arrival, Forced, Policy, PublishedLoad};
use super::queue::Queue;
use super::sync::Ordering;
use super::topology::{PcpuId, PcpuSet};
use super::types::{Decision, Kick, VcpuId, Why};
use super::vcpu::{Place, Stays};
use super::{NOWHERE, Scheduler};

/// How many queues a decision looks at inside the LLC, and outside. It starts after its own number, so that each queue
/// is looked at by some PCPU.
const PEEKS: usize = 4;

/// How often a PCPU looks for work before it halts for a short time.
const SEARCHES: usize = 8;

/// A decision on its way.
#[derive(Clone, Copy)]
struct Turn {
    pcpu: PcpuId,
    yields: bool,
    now: u64,
}

impl<P: Policy> Scheduler<P> {
    /// What this PCPU runs now, and until when. `why` says what becomes of what it ran. To be followed by
    /// [`Scheduler::context_saved`] unless the decision is settled.
    ///
    /// # Panics
    /// If there is no such PCPU.
    #[inline]
    pub fn schedule(&self, pcpu: PcpuId, why: Why, now: u64) -> Decision {
        let common = &self.common;
        let shared = &self.pcpus[pcpu.index()];
        shared.wanted.store(false, Ordering::Release);
        let mut queue = shared.queue.lock();
        debug_assert!(queue.leaving.is_none(), "context_saved follows each decision");
        queue.stats.decisions += 1;
        if queue.idle {
            self.leave_idle(&mut queue, now);
            if queue.current.is_some()
                && let Some(decision) = queue.started(common, now)
            {
                return decision;
            }
        }
        let can_stay = queue.settle(common, why, now);
        if queue.throttled.next() <= now {
            queue.release(common, now);
        }
        let mut stays = queue.unless_throttled(can_stay);
        if let Some(forced) = common.policy.forced(pcpu) {
            drop(queue);
            return self.replay(pcpu, forced, now);
        }
        if let Some(stays) = stays
            && now < stays.since.saturating_add(common.min_run)
            && why == Why::Preempt
        {
            return self.go_on(&mut queue, stays, now);
        }
        let turn = Turn { pcpu, yields: why == Why::Yield, now };
        loop {
            let Some(best) = queue.next(stays, turn.yields) else {
                queue.put_prev(now);
                drop(queue);
                return self.find_work(turn);
            };
            let others = self.loaded.load(Ordering::Relaxed) & !shared.bit;
            if others != 0
                && let Some(victim) = self.peek(&mut queue, best, PcpuSet::from_bits(others))
            {
                queue.put_prev(now);
                drop(queue);
                return self.take_from(turn, victim).unwrap_or_else(|| self.find_work(turn));
            }
            if queue.throttled_until(common, best, now).is_none() {
                // What waits here now is published by `context_saved`, which follows.
                return queue.run_one(common, best, now);
            }
            stays = queue.throttle_front(common, now);
        }
    }

    /// Goes on with a VCPU that has not run for `min_run` yet.
    #[cold]
    fn go_on(&self, queue: &mut Queue<P>, stays: Stays, now: u64) -> Decision {
        let decision = queue.run(&self.common, Some(stays.id), now);
        let until = match queue.waiting.first() {
            Some(_) => stays.since.saturating_add(self.common.min_run),
            None => u64::MAX,
        };
        Decision { until: decision.until.min(until), ..decision }
    }

    /// The state of the VCPU that this PCPU ran before its last [`Scheduler::schedule`] is in memory (or that VCPU goes
    /// on): any PCPU may run it now.
    ///
    /// # Panics
    /// If there is no such PCPU.
    pub fn context_saved(&self, pcpu: PcpuId, now: u64) -> Kick {
        let mut queue = self.pcpus[pcpu.index()].queue.lock();
        let halts_until = queue.throttled.next();
        let elsewhere = queue.put_away(&self.common, now);
        if now >= queue.settled_at {
            queue.reconsider(now);
        }
        self.publish(&mut queue);
        if let Some((id, target)) = elsewhere {
            drop(queue);
            // The PCPU that is kicked looks for further waiting VCPUs itself.
            let kick = self.transfer(id, target, now).unwrap_or(Kick::NONE);
            return if kick == Kick::NONE { self.offer_any(pcpu) } else { kick };
        }
        let (allowed, looks_round) = (queue.waiting.allowed(), core::mem::take(&mut queue.looks_round));
        if queue.idle && (!allowed.is_empty() || queue.throttled.next() < halts_until) {
            // What was left has something to do again, now or when its VM's cap allows it.
            return self.claim(pcpu).unwrap_or(Kick::NONE);
        }
        drop(queue);
        let kick = if allowed.is_empty() { Kick::NONE } else { self.offer(pcpu, allowed) };
        if looks_round && kick == Kick::NONE { self.offer_any(pcpu) } else { kick }
    }

    /// Wakes a PCPU for any waiting VCPU of any queue. A PCPU that was woken for one VCPU may find another first; it
    /// then wakes the next.
    fn offer_any(&self, from: PcpuId) -> Kick {
        let loaded = PcpuSet::from_bits(self.loaded.load(Ordering::Acquire));
        let allowed = |queue: PcpuId| self.pcpus[queue.index()].allowed.load(Ordering::Acquire);
        let offers = loaded.after(from).map(|queue| self.offer(queue, PcpuSet::from_bits(allowed(queue))));
        offers.into_iter().find(|kick| *kick != Kick::NONE).unwrap_or(Kick::NONE)
    }

    /// Wakes a PCPU for a VCPU that waits in this queue, one of the same LLC if possible.
    pub(super) fn offer(&self, from: PcpuId, allowed: PcpuSet) -> Kick {
        let near = self.near(from);
        let kick = self.claim_one(allowed.and(near).without(PcpuSet::only(from)), from);
        kick.or_else(|| self.claim_one(allowed.without(near), from)).unwrap_or(Kick::NONE)
    }

    /// The PCPUs of the same LLC.
    #[inline]
    pub(super) fn near(&self, pcpu: PcpuId) -> PcpuSet {
        self.topology.llc_of(pcpu).map_or(PcpuSet::EMPTY, |llc| self.topology.llc(llc))
    }

    /// The PCPU no longer halts.
    #[cold]
    fn leave_idle(&self, queue: &mut Queue<P>, now: u64) {
        queue.idle = false;
        self.idle.fetch_and(!PcpuSet::only(queue.pcpu).bits(), Ordering::AcqRel);
        queue.stats.idle += now.saturating_sub(queue.idle_since);
        // One that another PCPU has started here has taken the place of nothing that this one was woken for.
        queue.looks_round |= queue.current.is_none();
    }

    /// The queue, of these loaded ones, from which this PCPU should steal rather than run `best`, as far as their
    /// published loads tell.
    fn peek(&self, queue: &mut Queue<P>, best: VcpuId, loaded: PcpuSet) -> Option<PcpuId> {
        let me = queue.pcpu;
        let queue_llc = queue.llc;
        let mut lagging = |of: PcpuSet, far: bool| {
            let offers = of.after(me).take(PEEKS).filter(|other| self.offers(*other, me));
            let key = |other: PcpuId| self.pcpus[other.index()].first.load(Ordering::Relaxed);
            let (victim, first) = offers
                .map(|other| (other, key(other)))
                .reduce(|a, b| if super::heap::before(b.1, a.1) { b } else { a })?;
            let shown = &self.pcpus[victim.index()];
            let (clock, share) = (shown.clock.load(Ordering::Relaxed), shown.share.load(Ordering::Relaxed));
            let theirs = PublishedLoad { first, clock, share };
            self.prefers(queue, best, victim, theirs, far).then_some((victim, first))
        };
        let near = lagging(loaded.and(queue_llc), false);
        let far = lagging(loaded.without(queue_llc), true);
        match (near, far) {
            // PCPUs of one LLC that steal from each other all the time must still see that all of them are ahead of
            // another LLC.
            (Some(near), Some(far)) if self.lags_more(queue, best, near.1, far.1) => Some(far.0),
            (near, far) => near.or(far).map(|(victim, _)| victim),
        }
    }

    /// Whether the VCPU outside the LLC lags behind the one inside by more than that lags behind `own`.
    #[inline]
    fn lags_more(&self, queue: &Queue<P>, own: VcpuId, near: u64, far: u64) -> bool {
        let own = queue.key(&self.common, own).wrapping_add(self.common.policy.offset(&queue.sum));
        super::heap::before(own.wrapping_sub(near), near.wrapping_sub(far))
    }

    /// Whether the policy would rather steal from the victim's queue, which published `theirs`, than run `own`.
    #[inline]
    fn prefers(
        &self,
        queue: &mut Queue<P>,
        own: VcpuId,
        victim: PcpuId,
        theirs: PublishedLoad,
        far: bool,
    ) -> bool {
        let others_may_go = queue.waiting.allowed().contains(victim);
        let Some(vcpu) = queue.vcpus[usize::from(own.0)].as_mut() else { return false };
        let alone = others_may_go && vcpu.place != Place::Waiting;
        self.common.policy.should_steal(&mut queue.sum, &mut vcpu.account, theirs, far, alone)
    }

    /// Steals a VCPU, unless the own queue has a better one by now. `None` if there is nothing in either.
    fn take_from(&self, turn: Turn, victim: PcpuId) -> Option<Decision> {
        let common = &self.common;
        let (mut mine, mut theirs) = self.lock_both(turn.pcpu, victim);
        let best = mine.best(common, turn.yields, turn.now);
        let offered = theirs.offered_to(common, turn.pcpu, turn.now);
        let far = !mine.llc.contains(victim);
        let taken = offered.filter(|(key, _)| {
            let shown = common.policy.published_load(&mut theirs.sum, *key);
            best.is_none_or(|best| self.prefers(&mut mine, best, victim, shown, far))
        });
        let chosen = match taken {
            Some((_, id)) => {
                self.relocate(&mut theirs, &mut mine, id, Arrival::Stolen, turn.now);
                mine.get_mut(id).stats.steals += 1;
                mine.stats.steals += 1;
                mine.looks_round = true;
                Some(id)
            }
            None => best,
        };
        self.publish(&mut theirs);
        drop(theirs);
        let decision = chosen.map(|id| mine.run(common, Some(id), turn.now));
        self.publish(&mut mine);
        decision
    }

    /// Looks for a VCPU to run in all queues, and halts if there is none.
    #[cold]
    fn find_work(&self, turn: Turn) -> Decision {
        let me = PcpuSet::only(turn.pcpu);
        let near = self.near(turn.pcpu);
        self.free_bound(turn.pcpu, turn.now);
        for _ in 0..SEARCHES {
            let loaded = PcpuSet::from_bits(self.loaded.load(Ordering::Acquire)).without(me);
            for of in [loaded.and(near), loaded.without(near)] {
                for victim in of.after(turn.pcpu) {
                    if self.offers(victim, turn.pcpu)
                        && let Some(decision) = self.take_from(turn, victim)
                    {
                        return decision;
                    }
                }
            }
            if let Some(decision) = self.halt(turn) {
                return decision;
            }
        }
        // Other PCPUs were faster every time.
        Decision { run: None, until: turn.now.saturating_add(self.common.min_run), is_settled: false }
    }

    /// Makes the PCPU idle; `None` if there is something to run elsewhere after all.
    fn halt(&self, turn: Turn) -> Option<Decision> {
        let common = &self.common;
        let mut queue = self.pcpus[turn.pcpu.index()].queue.lock();
        let best = queue.best(common, turn.yields, turn.now);
        let mut decision = queue.run(common, best, turn.now);
        self.publish(&mut queue);
        if best.is_some() {
            return Some(decision);
        }
        if self.bound.load(Ordering::Relaxed) != 0 {
            // To look whether they still wait.
            decision.until = decision.until.min(turn.now.saturating_add(common.settle));
        }
        let bit = PcpuSet::only(turn.pcpu).bits();
        (queue.idle, queue.idle_since) = (true, turn.now);
        self.idle.fetch_or(bit, Ordering::AcqRel);
        let loaded = PcpuSet::from_bits(self.loaded.load(Ordering::Acquire));
        if loaded.into_iter().any(|other| self.offers(other, turn.pcpu)) {
            // A VCPU has begun to wait meanwhile, perhaps before its PCPU could see that this one halts.
            self.leave_idle(&mut queue, turn.now);
            return None;
        }
        Some(decision)
    }

    /// Performs the decision of a trace, if that is possible.
    #[cold]
    fn replay(&self, pcpu: PcpuId, forced: Forced, now: u64) -> Decision {
        let common = &self.common;
        let home = forced.run.and_then(|id| self.homes.get(usize::from(id.0)));
        let home = home.map_or(NOWHERE, |home| home.load(Ordering::Acquire));
        if let Some(id) = forced.run
            && home != pcpu.0
            && usize::from(home) < self.pcpus.len()
        {
            let (mut mine, mut theirs) = self.lock_both(pcpu, PcpuId(home));
            mine.put_prev(now);
            if theirs.vcpus[usize::from(id.0)].as_ref().is_some_and(|vcpu| vcpu.place == Place::Waiting) {
                self.relocate(&mut theirs, &mut mine, id, Arrival::Stolen, now);
                mine.get_mut(id).stats.steals += 1;
                mine.stats.steals += 1;
                self.publish(&mut theirs);
            }
        }
        let mut queue = self.pcpus[pcpu.index()].queue.lock();
        let stays = queue.may_go_on(common, now);
        let can = |id: &VcpuId| {
            let vcpu = queue.vcpus.get(usize::from(id.0)).and_then(|vcpu| vcpu.as_ref());
            stays.is_some_and(|stays| stays.id == *id)
                || vcpu.is_some_and(|vcpu| vcpu.place == Place::Waiting)
        };
        let chosen = forced.run.filter(can);
        common.policy.repeated(chosen == forced.run);
        let decision = queue.run(common, chosen, now);
        self.publish(&mut queue);
        if chosen.is_none() {
            (queue.idle, queue.idle_since) = (true, now);
            self.idle.fetch_or(PcpuSet::only(pcpu).bits(), Ordering::AcqRel);
        }
        Decision { until: now.saturating_add(forced.slice), ..decision }
    }
}
