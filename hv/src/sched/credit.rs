//! The credit policy: time by weight.
//!
//! Weighted fair queueing, a relative of Linux's EEVDF; it keeps no credits, but behaves as users of Xen's credit
//! scheduler expect of weights and caps, hence the name. The *vruntime* of a VCPU is the time that it ran divided by
//! its share: the weight of its VM divided by the number of the VM's VCPUs that were runnable meanwhile. The VCPU with
//! the smallest vruntime runs next. So VCPUs that are always runnable get time by weight, and what others do not use is
//! divided among them.
//!
//! A queue knows the *mean* vruntime of its VCPUs, weighted by share. A VCPU that wakes is placed at the mean: sleep
//! neither earns nor costs time. If it is not far ahead of the mean it is *boosted*: for its first run it is placed one
//! weighted slice earlier. What it uses is charged all the same. When a VCPU blocks, its lag (what it had too little or
//! too much of the queue's time) passes to the next VCPU of its VM that wakes there; what was too much expires as the
//! queue's time goes on. So neither sleeping nor taking turns enlarges a VM's share.
//!
//! The vruntimes of two queues are comparable because PCPUs steal from each other whenever they differ by much. Where
//! they cannot (affinity; one VCPU that is entitled to more than a PCPU) they drift apart. Then the VCPU that is
//! entitled to more is moved forward, or the queue is shifted as a whole, which keeps its order: [`Credit::catch_up`].

pub use super::account::{Account, Sum};
use super::account::{SHARE_UNITS, ahead_by};
use super::policy::{Arrival, Policy, PublishedLoad};
use super::vm::{DEFAULT_WEIGHT, Vm, mul_shift};

/// Slices by which the vruntimes of two queues may differ and still be comparable.
const DRIFT_SLICES: i64 = 2;

/// A waking VCPU is boosted if it is ahead of the mean by no more than a slice divided by this.
const BOOST_DEBT: i64 = 4;

/// Slices that a single charge counts at most: a longer run means that the machine was stopped, by a debugger for
/// instance.
const MOST_SLICES: u64 = 1024;

/// The credit policy; times in cycles.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    /// How long a VCPU runs when other VCPUs wait, in cycles.
    pub slice: u64,
    /// How long it runs at least, in cycles.
    pub min_run: u64,
}

impl Credit {
    /// Recomputes what depends on the VM's weight and on its number of runnable VCPUs.
    fn refresh(&self, account: &mut Account, basis: u64) {
        if account.basis != basis {
            let (weight, runnable) = ((basis >> 32).max(1), (basis & 0xffff_ffff).max(1));
            account.basis = basis;
            account.price = (u64::from(DEFAULT_WEIGHT) << 32) / weight;
            account.weighted_slice = mul_shift(self.slice * runnable, account.price).max(1) as i64;
            account.share = (weight * SHARE_UNITS / runnable).max(1) as i64;
        }
    }

    /// Updates the share of a VCPU of this queue after its VM's weight or number of runnable VCPUs has changed.
    #[inline(always)]
    fn reweigh(&self, sum: &mut Sum, account: &mut Account, basis: u64) {
        if account.basis != basis {
            self.change_share(sum, account, basis);
        }
    }

    #[inline(never)]
    fn change_share(&self, sum: &mut Sum, account: &mut Account, basis: u64) {
        let (old, share) = (account.basis >> 32, account.share);
        self.refresh(account, basis);
        if old == basis >> 32 {
            return sum.change(share, account.share, account.vruntime);
        }
        // The weight has changed: its lead is rescaled as if it had always had the new weight.
        let ahead = ahead_by(account.vruntime, sum.mean());
        let change = ahead.saturating_mul(old as i64) / (basis >> 32).max(1) as i64 - ahead;
        sum.put_ahead(share, account, change);
    }

    /// `own`, the best VCPU of this queue, is so far behind what another queue has published that this queue would
    /// steal nothing from there for a long time. It is entitled to more than one PCPU, or the VCPUs here may run
    /// nowhere else.
    #[cold]
    fn catch_up(&self, sum: &mut Sum, own: &mut Account, behind: i64, alone: bool) {
        if alone {
            // The whole queue must not move: its other VCPUs would never be seen to lag.
            sum.put_ahead(own.share, own, behind);
        } else {
            sum.offset = sum.offset.wrapping_add_signed(behind);
        }
    }

    /// The mean weighted slice of the VCPUs in this queue.
    #[inline]
    fn mean_weighted_slice(&self, sum: &Sum) -> i64 {
        (mul_shift(self.slice, sum.rate) as i64).saturating_mul(sum.count)
    }
}

impl Policy for Credit {
    type Account = Account;
    type Sum = Sum;

    fn enter(&self, sum: &mut Sum, account: &mut Account, vm: &Vm, how: Arrival, now: u64) {
        let (basis, _) = vm.basis_and_demand(now);
        if how == Arrival::Preempted {
            // It never left.
            sum.settle(account, vm.index());
            self.reweigh(sum, account, basis);
            return;
        }
        self.refresh(account, basis);
        account.boost = 0;
        let mean = sum.mean();
        let ahead = ahead_by(account.vruntime, mean);
        if sum.count == 0 {
            // The queue is empty. Its clock goes on; a VCPU from another queue brings that queue's time along.
            if matches!(how, Arrival::Moved | Arrival::Stolen) {
                sum.offset = sum.offset.wrapping_add_signed(ahead);
            }
            account.vruntime = mean;
            account.arrived = (sum.time, mean);
            sum.add(account, self.slice);
            return;
        }
        let drift = DRIFT_SLICES * account.weighted_slice;
        let ahead = match how {
            Arrival::Woken => {
                let ahead = sum.take_over(vm.index()).clamp(-account.weighted_slice, account.weighted_slice);
                if ahead <= account.weighted_slice / BOOST_DEBT {
                    account.boost = (self.mean_weighted_slice(sum) + ahead.max(0)) as u64;
                }
                account.vruntime = mean.wrapping_add_signed(ahead);
                // `ahead` is the distance from the others; the mean that includes the VCPU itself is nearer. But a VCPU
                // that takes over from a running one takes its exact place.
                let beyond = match sum.runs == vm.index() && ahead > 0 {
                    true => ahead,
                    false => ahead.saturating_mul(sum.shares) / (sum.shares + account.share),
                };
                account.arrived = (sum.time, account.vruntime.wrapping_add_signed(-beyond));
                sum.add(account, self.slice);
                return;
            }
            Arrival::Stolen => {
                // The thief's queue may be too far ahead of the VCPU that it steals.
                let shift = (-ahead - drift.max(DRIFT_SLICES * self.mean_weighted_slice(sum))).max(0);
                sum.offset = sum.offset.wrapping_sub(shift as u64);
                ahead + shift
            }
            Arrival::Resumed | Arrival::Moved | Arrival::Preempted => ahead.clamp(-drift, drift),
        };
        account.vruntime = mean.wrapping_add_signed(ahead);
        account.arrived = (sum.time, account.vruntime);
        sum.add(account, self.slice);
    }

    fn leave(&self, sum: &mut Sum, account: &mut Account, vm: &Vm, blocks: bool, _now: u64) {
        account.boost = 0;
        sum.settle(account, vm.index());
        let drift = DRIFT_SLICES * account.weighted_slice;
        account.beyond = sum.beyond(account).clamp(-drift, drift);
        let others = sum.shares - account.share;
        if blocks {
            // Measured from the others, not from the mean that includes this VCPU.
            let ahead = core::mem::take(&mut account.beyond)
                .saturating_mul(sum.shares)
                .checked_div(others)
                .unwrap_or(0);
            sum.hand_over(vm.index(), ahead.clamp(-account.weighted_slice, drift));
        }
        sum.remove(account, self.slice);
    }

    fn carry(&self, from: &Sum, to: &Sum, account: &mut Account) {
        account.vruntime = account.vruntime.wrapping_add(from.offset).wrapping_sub(to.offset);
    }

    #[inline]
    fn dispatch(&self, sum: &mut Sum, account: &mut Account, vm: &Vm, now: u64) {
        let (basis, demand) = vm.basis_and_demand(now);
        account.boost = 0;
        account.mark = demand;
        self.reweigh(sum, account, basis);
    }

    #[inline]
    fn charge(&self, sum: &mut Sum, account: &mut Account, vm: &Vm, ran: u64, now: u64) {
        let most = self.slice * MOST_SLICES;
        let (basis, demand) = vm.basis_and_demand(now);
        // At the price in force during the run: a change of the price rescales vruntime.
        let wanted = Vm::demand_between(account.mark, demand).max(ran).min(most);
        let charged = mul_shift(wanted, account.price);
        let step = mul_shift(ran.min(most), sum.rate);
        account.mark = demand;
        sum.seen_share = 0;
        account.vruntime = account.vruntime.wrapping_add(charged);
        sum.time = sum.time.wrapping_add(step);
        sum.base = sum.base.wrapping_add(step);
        let ahead =
            account.share.wrapping_mul(charged as i64).wrapping_sub(sum.shares.wrapping_mul(step as i64));
        sum.weighted_vruntime = sum.weighted_vruntime.wrapping_add(ahead);
        self.reweigh(sum, account, basis);
    }

    fn show(&self, sum: &mut Sum, account: &Account, vm: &Vm) {
        (sum.runs, sum.runs_beyond) = (vm.index(), sum.beyond(account) - sum.runs_given);
    }

    #[inline]
    fn key(&self, account: &Account) -> u64 {
        account.vruntime.wrapping_sub(account.boost)
    }

    fn is_boosted(&self, account: &Account) -> bool {
        account.boost != 0
    }

    /// The clock is the mean less the drift that is allowed between comparable queues.
    #[inline]
    fn published_load(&self, sum: &mut Sum, first: u64) -> PublishedLoad {
        let drift = DRIFT_SLICES * self.mean_weighted_slice(sum);
        let clock = sum.mean().wrapping_add(sum.offset).wrapping_add_signed(-drift);
        PublishedLoad { first: first.wrapping_add(sum.offset), clock, share: sum.usual_share as u64 }
    }

    #[inline]
    fn offset(&self, sum: &Sum) -> u64 {
        sum.offset
    }

    /// Shorter beside VCPUs with larger shares, also in other queues, so that it weighs as much as one of their slices.
    #[inline(always)]
    fn slice(&self, sum: &Sum, account: &Account) -> u64 {
        let usual = sum.usual_share.max(sum.seen_share);
        if account.share >= usual {
            return sum.slice;
        }
        (sum.slice.saturating_mul(account.share as u64) / usual as u64).max(self.min_run)
    }

    /// Within an LLC a lead of a quarter of a slice is enough to steal, across LLCs half a slice.
    #[inline]
    fn should_steal(
        &self,
        sum: &mut Sum,
        own: &mut Account,
        theirs: PublishedLoad,
        far: bool,
        alone: bool,
    ) -> bool {
        let key = self.key(own).wrapping_add(sum.offset);
        let behind = ahead_by(theirs.clock, key) - DRIFT_SLICES * own.weighted_slice;
        if behind > 0 {
            self.catch_up(sum, own, behind, alone);
        }
        sum.seen_share = sum.seen_share.max(theirs.share as i64);
        ahead_by(key, theirs.first) > if far { own.weighted_slice / 2 } else { own.weighted_slice / 4 }
    }
}
