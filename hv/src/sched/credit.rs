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
use super::account::{PARTS, lead};
use super::policy::{Arrival, Policy, Sight};
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
            account.stride = mul_shift(self.slice * runnable, account.price).max(1) as i64;
            account.part = (weight * PARTS / runnable).max(1) as i64;
        }
    }

    /// Puts the part of one that is present right after the VM's weight or the number of its VCPUs that want to run has changed.
    #[inline(always)]
    fn reweigh(&self, sum: &mut Sum, account: &mut Account, basis: u64) {
        if account.basis != basis {
            self.change_part(sum, account, basis);
        }
    }

    #[inline(never)]
    fn change_part(&self, sum: &mut Sum, account: &mut Account, basis: u64) {
        let (old, part) = (account.basis >> 32, account.part);
        self.refresh(account, basis);
        if old == basis >> 32 {
            return sum.change(part, account.part, account.spent);
        }
        // The weight has changed: what it is ahead of the others is as if it had always been so.
        let ahead = lead(account.spent, sum.mean());
        let change = ahead.saturating_mul(old as i64) / (basis >> 32).max(1) as i64 - ahead;
        sum.put_ahead(part, account, change);
    }

    /// `own`, the best of this queue, is so far behind what another queue shows that this queue would not take its share of what waits
    /// there for a long time. It is entitled to more than a PCPU, or those here cannot leave.
    #[cold]
    fn catch_up(&self, sum: &mut Sum, own: &mut Account, behind: i64, alone: bool) {
        if alone {
            // The others would never be found to lag if they came along.
            sum.put_ahead(own.part, own, behind);
        } else {
            sum.offset = sum.offset.wrapping_add_signed(behind);
        }
    }

    /// What a slice counts for those present.
    #[inline]
    fn mean_stride(&self, sum: &Sum) -> i64 {
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
        let ahead = lead(account.spent, mean);
        if sum.count == 0 {
            // Nobody to be ahead of. The queue's own clock goes on; who comes from elsewhere brings the time of there along.
            if matches!(how, Arrival::Moved | Arrival::Stolen) {
                sum.offset = sum.offset.wrapping_add_signed(ahead);
            }
            account.spent = mean;
            account.arrived = (sum.time, mean);
            sum.add(account, self.slice);
            return;
        }
        let drift = DRIFT_SLICES * account.stride;
        let ahead = match how {
            Arrival::Woken => {
                let ahead = sum.take_over(vm.index()).clamp(-account.stride, account.stride);
                if ahead <= account.stride / BOOST_DEBT {
                    account.boost = (self.mean_stride(sum) + ahead.max(0)) as u64;
                }
                account.spent = mean.wrapping_add_signed(ahead);
                // Ahead of the others, that is; with itself among them the middle is nearer. But who takes over from one that
                // still runs takes its place.
                let beyond = match sum.runs == vm.index() && ahead > 0 {
                    true => ahead,
                    false => ahead.saturating_mul(sum.parts) / (sum.parts + account.part),
                };
                account.arrived = (sum.time, account.spent.wrapping_add_signed(-beyond));
                sum.add(account, self.slice);
                return;
            }
            Arrival::Stolen => {
                // The thief's queue may be too far ahead of what it takes.
                let shift = (-ahead - drift.max(DRIFT_SLICES * self.mean_stride(sum))).max(0);
                sum.offset = sum.offset.wrapping_sub(shift as u64);
                ahead + shift
            }
            Arrival::Resumed | Arrival::Moved | Arrival::Preempted => ahead.clamp(-drift, drift),
        };
        account.spent = mean.wrapping_add_signed(ahead);
        account.arrived = (sum.time, account.spent);
        sum.add(account, self.slice);
    }

    fn leave(&self, sum: &mut Sum, account: &mut Account, vm: &Vm, blocks: bool, _now: u64) {
        account.boost = 0;
        sum.settle(account, vm.index());
        let drift = DRIFT_SLICES * account.stride;
        account.beyond = sum.beyond(account).clamp(-drift, drift);
        let others = sum.parts - account.part;
        if blocks {
            // So far ahead of the others: they are behind by as much as it is ahead of the middle.
            let ahead = core::mem::take(&mut account.beyond)
                .saturating_mul(sum.parts)
                .checked_div(others)
                .unwrap_or(0);
            sum.hand_over(vm.index(), ahead.clamp(-account.stride, drift));
        }
        sum.remove(account, self.slice);
    }

    fn carry(&self, from: &Sum, to: &Sum, account: &mut Account) {
        account.spent = account.spent.wrapping_add(from.offset).wrapping_sub(to.offset);
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
        // At the price that held: what changes it rescales what was spent.
        let wanted = Vm::demand_between(account.mark, demand).max(ran).min(most);
        let spent = mul_shift(wanted, account.price);
        let step = mul_shift(ran.min(most), sum.rate);
        account.mark = demand;
        sum.seen_part = 0;
        account.spent = account.spent.wrapping_add(spent);
        sum.time = sum.time.wrapping_add(step);
        sum.base = sum.base.wrapping_add(step);
        let ahead = account.part.wrapping_mul(spent as i64).wrapping_sub(sum.parts.wrapping_mul(step as i64));
        sum.lead = sum.lead.wrapping_add(ahead);
        self.reweigh(sum, account, basis);
    }

    fn show(&self, sum: &mut Sum, account: &Account, vm: &Vm) {
        (sum.runs, sum.runs_beyond) = (vm.index(), sum.beyond(account) - sum.runs_given);
    }

    #[inline]
    fn key(&self, account: &Account) -> u64 {
        account.spent.wrapping_sub(account.boost)
    }

    fn is_boosted(&self, account: &Account) -> bool {
        account.boost != 0
    }

    /// The clock is the mean, less what those who are here may be ahead without having drifted.
    #[inline]
    fn shows(&self, sum: &mut Sum, first: u64) -> Sight {
        let drift = DRIFT_SLICES * self.mean_stride(sum);
        let clock = sum.mean().wrapping_add(sum.offset).wrapping_add_signed(-drift);
        Sight { first: first.wrapping_add(sum.offset), clock, part: sum.usual_part as u64 }
    }

    #[inline]
    fn offset(&self, sum: &Sum) -> u64 {
        sum.offset
    }

    /// Less beside others with greater parts, also in other queues: then it counts as much as one of theirs.
    #[inline(always)]
    fn slice(&self, sum: &Sum, account: &Account) -> u64 {
        let usual = sum.usual_part.max(sum.seen_part);
        if account.part >= usual {
            return sum.slice;
        }
        (sum.slice.saturating_mul(account.part as u64) / usual as u64).max(self.min_run)
    }

    /// A quarter of a slice's lead is enough within an LLC, half a one's beyond it.
    #[inline]
    fn pulls(&self, sum: &mut Sum, own: &mut Account, theirs: Sight, far: bool, alone: bool) -> bool {
        let key = self.key(own).wrapping_add(sum.offset);
        let behind = lead(theirs.clock, key) - DRIFT_SLICES * own.stride;
        if behind > 0 {
            self.catch_up(sum, own, behind, alone);
        }
        sum.seen_part = sum.seen_part.max(theirs.part as i64);
        lead(key, theirs.first) > if far { own.stride / 2 } else { own.stride / 4 }
    }
}
