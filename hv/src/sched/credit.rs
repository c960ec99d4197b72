//! The credit policy: time by weight.
//!
//! What a VCPU has *spent* is the time that it ran divided by its part of its VM's weight; the part is the weight divided by the
//! number of the VM's VCPUs that wanted to run meanwhile. Who has spent least runs next. So those who always want
//! to run get time by weight, and who wants less leaves the rest to the others.
//!
//! A queue knows the *mean* of what those present have spent, by weight. Who wakes is put there: sleeping neither earns nor costs
//! anything. If it is not ahead of the mean by much, it is *boosted*: it goes in front by as much as one slice counts here, for its
//! first run. What it uses is charged all the same. What a VCPU had beyond its part of its
//! queue when it blocks, or less, the next of the VM's VCPUs that wakes there takes over; what is too much is paid back as time goes
//! on. So neither sleeping nor taking turns makes a VM's share any greater.
//!
//! Spent times of two queues are comparable because PCPUs take from each other's queues whenever they differ by much. Where
//! they cannot (affinity; one VCPU that is entitled to more than a PCPU), they drift apart. Then the one that is entitled to more is
//! brought along, or the queue is shifted as a whole, which leaves its order as it is: [`Credit::catch_up`].

pub use super::account::{Account, Sum};
use super::account::{SHARE_UNITS, ahead_by};
use super::policy::{Arrival, Policy, PublishedLoad};
use super::vm::{DEFAULT_WEIGHT, Vm, mul_shift};

/// Spent times may differ by so many slices between queues before they mean nothing.
const DRIFT_SLICES: i64 = 2;

/// Who wakes is boosted if it is ahead of the mean by no more than this part of a slice.
const BOOST_DEBT: i64 = 4;

/// A single charge counts no more than so many slices: who comes to that has been stopped, with the machine or in a debugger.
const MOST_SLICES: u64 = 1024;

/// The credit policy; times in cycles.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    /// How long a VCPU runs when others wait.
    pub slice: u64,
    /// How long it runs at least.
    pub min_run: u64,
}

impl Credit {
    /// Puts right what depends on the weight and on the number of the VM's VCPUs that want to run.
    fn refresh(&self, account: &mut Account, basis: u64) {
        if account.basis != basis {
            let (weight, runnable) = ((basis >> 32).max(1), (basis & 0xffff_ffff).max(1));
            account.basis = basis;
            account.price = (u64::from(DEFAULT_WEIGHT) << 32) / weight;
            account.weighted_slice = mul_shift(self.slice * runnable, account.price).max(1) as i64;
            account.share = (weight * SHARE_UNITS / runnable).max(1) as i64;
        }
    }

    /// Puts the part of one that is present right after the VM's weight or the number of its VCPUs that want to run has changed.
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
        // The weight has changed: what it is ahead of the others is as if it had always been so.
        let ahead = ahead_by(account.vruntime, sum.mean());
        let change = ahead.saturating_mul(old as i64) / (basis >> 32).max(1) as i64 - ahead;
        sum.put_ahead(share, account, change);
    }

    /// `own`, the best of this queue, is so far behind what another queue shows that this queue would not take its share of what waits
    /// there for a long time. It is entitled to more than a PCPU, or those here cannot leave.
    #[cold]
    fn catch_up(&self, sum: &mut Sum, own: &mut Account, behind: i64, alone: bool) {
        if alone {
            // The others would never be found to lag if they came along.
            sum.put_ahead(own.share, own, behind);
        } else {
            sum.offset = sum.offset.wrapping_add_signed(behind);
        }
    }

    /// What a slice counts for those present.
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
            // Nobody to be ahead of. The queue's own clock goes on; who comes from elsewhere brings the time of there along.
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
                // Ahead of the others, that is; with itself among them the middle is nearer. But who takes over from one that
                // still runs takes its place.
                let beyond = match sum.runs == vm.index() && ahead > 0 {
                    true => ahead,
                    false => ahead.saturating_mul(sum.shares) / (sum.shares + account.share),
                };
                account.arrived = (sum.time, account.vruntime.wrapping_add_signed(-beyond));
                sum.add(account, self.slice);
                return;
            }
            Arrival::Stolen => {
                // The thief's queue may be too far ahead of what it takes.
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
            // So far ahead of the others: they are behind by as much as it is ahead of the middle.
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
        let spent = mul_shift(wanted, account.price);
        let step = mul_shift(ran.min(most), sum.rate);
        account.mark = demand;
        sum.seen_share = 0;
        account.vruntime = account.vruntime.wrapping_add(spent);
        sum.time = sum.time.wrapping_add(step);
        sum.base = sum.base.wrapping_add(step);
        let ahead =
            account.share.wrapping_mul(spent as i64).wrapping_sub(sum.shares.wrapping_mul(step as i64));
        sum.weighted_lead = sum.weighted_lead.wrapping_add(ahead);
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

    /// The clock is the mean, less what those who are here may be ahead without having drifted.
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

    /// Less beside others with greater parts, also in other queues: then it counts as much as one of theirs.
    #[inline(always)]
    fn slice(&self, sum: &Sum, account: &Account) -> u64 {
        let usual = sum.usual_share.max(sum.seen_share);
        if account.share >= usual {
            return sum.slice;
        }
        (sum.slice.saturating_mul(account.share as u64) / usual as u64).max(self.min_run)
    }

    /// A quarter of a slice's lead is enough within an LLC, half a one's beyond it.
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
