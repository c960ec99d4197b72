//! The accounts of the [credit](super::credit) policy: what a VCPU has spent, and the mean of those present in a queue.

use super::vm::{DEFAULT_WEIGHT, MAX_VMS};

/// Parts of one weight that a VM's VCPUs can have.
pub(super) const SHARE_UNITS: u64 = 16;
/// What one cycle of a queue's PCPU adds to the mean is this, divided by the parts present.
pub(super) const PER_CYCLE: u64 = DEFAULT_WEIGHT as u64 * SHARE_UNITS;

/// Slices are whole while no more than so many are present in a queue.
const CROWD: i64 = 6;

/// The account of a VCPU.
#[derive(Debug)]
pub struct Account {
    /// Time run by weight: cycles of a VM of the default weight with one VCPU. As of its queue.
    pub(super) vruntime: u64,
    /// By how much it goes in front.
    pub(super) boost: u64,
    /// The queue's time and what it had spent when it came.
    pub(super) arrived: (u64, u64),
    /// What it spent beyond its part in queues that it has left since it woke.
    pub(super) beyond: i64,
    /// The VM's demand when it was charged last.
    pub(super) mark: u64,
    /// What a slice counts.
    pub(super) weighted_slice: i64,
    /// What a cycle counts, in parts of 2^32.
    pub(super) price: u64,
    /// Its part of the weight, in 1/16.
    pub(super) share: i64,
    /// Weight and number of VCPUs to which the three belong, in one word.
    pub(super) basis: u64,
}

impl Default for Account {
    fn default() -> Account {
        Account {
            vruntime: 0,
            boost: 0,
            arrived: (0, 0),
            beyond: 0,
            mark: 0,
            weighted_slice: 1,
            price: 0,
            share: 1,
            basis: 0,
        }
    }
}

/// The account of a queue.
#[derive(Debug)]
pub struct Sum {
    /// Of those present: the parts, and each part times what was spent beyond `base`.
    pub(super) shares: i64,
    pub(super) weighted_lead: i64,
    /// What somebody would have spent who had his part of the PCPU all the time.
    pub(super) time: u64,
    /// Close to the mean, and moved along with time. As of this queue, like all that has been spent by those who are here.
    pub(super) base: u64,
    /// How many are present.
    pub(super) count: i64,
    /// The squares of the parts, added up.
    pub(super) squares: i64,
    /// The mean of the parts, each counted as often as it is great: a heavy one is not lost among many light ones.
    pub(super) usual_share: i64,
    /// The greatest of the usual parts that other queues have shown in this decision.
    pub(super) seen_share: i64,
    /// For how long one of those present runs: a whole slice, or less if many are.
    pub(super) slice: u64,
    /// What a cycle of the PCPU counts for each of those present, in parts of 2^32.
    pub(super) rate: u64,
    /// Added to spent times of this queue to compare them with others'.
    pub(super) offset: u64,
    /// The VM of the VCPU that runs, and what that has spent beyond its part.
    pub(super) runs: usize,
    pub(super) runs_beyond: i64,
    /// Lag of its own that it has given to other VCPUs of its VM.
    pub(super) runs_given: i64,
    /// What VCPUs left to their VMs when they blocked, by VM.
    pub(super) left: [Left; MAX_VMS],
}

/// What VCPUs of a VM had more or less than their part in a queue when they blocked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Left {
    /// When it is paid back, in the queue's time.
    pub(super) paid_back_at: u64,
    /// What they had less.
    pub(super) lag: i64,
}

/// No VM.
pub(super) const NONE: usize = usize::MAX;

impl Default for Sum {
    fn default() -> Sum {
        let left = [Left::default(); MAX_VMS];
        Sum {
            shares: 0,
            weighted_lead: 0,
            time: 0,
            base: 0,
            count: 0,
            squares: 0,
            usual_share: 0,
            seen_share: 0,
            slice: 0,
            rate: 0,
            offset: 0,
            runs: NONE,
            runs_beyond: 0,
            runs_given: 0,
            left,
        }
    }
}

/// How far `a` is ahead of `b`.
#[inline]
pub(super) fn ahead_by(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

impl Sum {
    /// The mean of what those present have spent; of the last ones if nobody is.
    pub(super) fn mean(&mut self) -> u64 {
        if self.shares != 0 {
            let ahead = self.weighted_lead.div_euclid(self.shares);
            self.base = self.base.wrapping_add_signed(ahead);
            self.weighted_lead -= ahead * self.shares;
        }
        self.base
    }

    /// What one of those present has spent beyond its part since it woke.
    #[inline]
    pub(super) fn beyond(&self, account: &Account) -> i64 {
        let (time, spent) = account.arrived;
        account.beyond.saturating_add(ahead_by(account.vruntime, spent) - ahead_by(self.time, time))
    }

    pub(super) fn hand_over(&mut self, vm: usize, beyond: i64) {
        let Some(left) = self.left.get_mut(vm) else { return };
        if beyond > 0 {
            let at = self.time.wrapping_add_signed(beyond);
            left.paid_back_at = if ahead_by(at, left.paid_back_at) > 0 { at } else { left.paid_back_at };
            left.lag = 0;
        } else {
            left.lag = left.lag.max(-beyond);
        }
    }

    /// With what one that wakes begins.
    pub(super) fn take_over(&mut self, vm: usize) -> i64 {
        let sibling = if self.runs == vm { self.runs_beyond } else { 0 };
        let Some(left) = self.left.get_mut(vm) else { return 0 };
        let debt = ahead_by(left.paid_back_at, self.time).max(sibling);
        if debt > 0 {
            return debt;
        }
        let lag = core::mem::take(&mut left.lag);
        if sibling < 0 && -sibling > lag {
            // The running VCPU gives its lag away.
            self.runs_given += sibling;
            self.runs_beyond = 0;
            return sibling;
        }
        -lag
    }

    /// The VCPU that runs is no longer the one that does: the lag that it gave away is settled.
    pub(super) fn settle(&mut self, account: &mut Account, vm: usize) {
        if self.runs == vm {
            account.arrived.1 = account.arrived.1.wrapping_add_signed(core::mem::take(&mut self.runs_given));
        }
        (self.runs, self.runs_given) = (NONE, 0);
    }

    /// One more is present; `slice` is for few.
    pub(super) fn add(&mut self, account: &Account, slice: u64) {
        if self.count == 0 {
            self.base = account.vruntime;
        }
        self.count += 1;
        self.share_out(slice);
        self.change(0, account.share, account.vruntime);
    }

    /// One is no longer present.
    pub(super) fn remove(&mut self, account: &Account, slice: u64) {
        // The last one leaves the mean where it was.
        self.mean();
        self.count -= 1;
        self.share_out(slice);
        self.change(account.share, 0, account.vruntime);
        if self.count == 0 {
            (self.shares, self.weighted_lead, self.base) = (0, 0, account.vruntime);
        }
    }

    fn share_out(&mut self, slice: u64) {
        self.slice = slice * CROWD as u64 / self.count.max(CROWD) as u64;
    }

    /// One that is present, with these parts until now, goes ahead of the others by so much, or back.
    pub(super) fn put_ahead(&mut self, share: i64, account: &mut Account, by: i64) {
        self.change(share, 0, account.vruntime);
        account.vruntime = account.vruntime.wrapping_add_signed(by);
        account.arrived.1 = account.arrived.1.wrapping_add_signed(by);
        self.change(0, account.share, account.vruntime);
    }

    /// One that has spent this holds other parts than before; 0: it is not present.
    #[inline]
    pub(super) fn change(&mut self, before: i64, now: i64, spent: u64) {
        let shares = now - before;
        self.shares += shares;
        self.squares += now * now - before * before;
        self.usual_share = self.squares / self.shares.max(1);
        self.weighted_lead = self.weighted_lead.wrapping_add(shares.wrapping_mul(ahead_by(spent, self.base)));
        self.rate = (PER_CYCLE << 32) / self.shares.max(1) as u64;
    }
}
