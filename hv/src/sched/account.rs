//! The accounts of the [credit](super::credit) policy: the vruntime of each VCPU, and the weighted mean of each queue.

use super::vm::{DEFAULT_WEIGHT, MAX_VMS};

/// Units of share per unit of weight.
pub(super) const SHARE_UNITS: u64 = 16;
/// One cycle of a PCPU adds this, divided by the sum of shares in its queue, to the mean vruntime.
pub(super) const PER_CYCLE: u64 = DEFAULT_WEIGHT as u64 * SHARE_UNITS;

/// Slices are whole while a queue has at most this many VCPUs.
const CROWD: i64 = 6;

/// The account of a VCPU.
#[derive(Debug)]
pub struct Account {
    /// Time run divided by share: cycles of a VM of the default weight with one VCPU. Relative to its queue's `offset`.
    pub(super) vruntime: u64,
    /// How much earlier it is placed.
    pub(super) boost: u64,
    /// The queue's time and its own vruntime when it entered the queue.
    pub(super) arrived: (u64, u64),
    /// Vruntime beyond its share that it used in queues that it has left since it woke.
    pub(super) beyond: i64,
    /// The VM's demand at the last charge.
    pub(super) mark: u64,
    /// A slice in units of vruntime.
    pub(super) weighted_slice: i64,
    /// Vruntime per cycle, in units of 2^-32.
    pub(super) price: u64,
    /// Its share of the weight, in 1/16.
    pub(super) share: i64,
    /// Weight and number of runnable VCPUs that the three fields above were computed from, in one word.
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
    /// Sums over the queue's VCPUs: the shares, and each share times the vruntime beyond `base`.
    pub(super) shares: i64,
    pub(super) weighted_vruntime: i64,
    /// Virtual time of an always-runnable VCPU with its fair share.
    pub(super) time: u64,
    /// A value close to the mean, advanced with time; relative to `offset`, as are all vruntimes of this queue.
    pub(super) base: u64,
    /// Number of VCPUs.
    pub(super) count: i64,
    /// Sum of the squares of the shares.
    pub(super) squares: i64,
    /// Mean of the shares weighted by themselves, so that a heavy VCPU is not lost among many light ones.
    pub(super) usual_share: i64,
    /// The largest `usual_share` that other queues have published to this decision.
    pub(super) seen_share: i64,
    /// How long a VCPU of this queue runs: a whole slice, or less if there are many.
    pub(super) slice: u64,
    /// Vruntime that one cycle of the PCPU adds to the mean, in units of 2^-32.
    pub(super) rate: u64,
    /// Added to vruntimes of this queue to compare them with those of other queues.
    pub(super) offset: u64,
    /// The VM of the running VCPU, and the vruntime that this has used beyond its share.
    pub(super) runs: usize,
    pub(super) runs_beyond: i64,
    /// Lag of the running VCPU that it has given to other VCPUs of its VM.
    pub(super) runs_given: i64,
    /// Lag that VCPUs left to their VMs when they blocked, by VM.
    pub(super) left: [Left; MAX_VMS],
}

/// The lag, positive or negative, with which VCPUs of a VM blocked in a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Left {
    /// When what they had too much has expired, in the queue's time.
    pub(super) paid_back_at: u64,
    /// What they had too little.
    pub(super) lag: i64,
}

/// No VM.
pub(super) const NONE: usize = usize::MAX;

impl Default for Sum {
    fn default() -> Sum {
        let left = [Left::default(); MAX_VMS];
        Sum {
            shares: 0,
            weighted_vruntime: 0,
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
    /// The weighted mean vruntime; of an empty queue, the last one.
    pub(super) fn mean(&mut self) -> u64 {
        if self.shares != 0 {
            let ahead = self.weighted_vruntime.div_euclid(self.shares);
            self.base = self.base.wrapping_add_signed(ahead);
            self.weighted_vruntime -= ahead * self.shares;
        }
        self.base
    }

    /// Vruntime that a VCPU of this queue has used beyond its share since it woke.
    #[inline]
    pub(super) fn beyond(&self, account: &Account) -> i64 {
        let (time, vruntime) = account.arrived;
        account.beyond.saturating_add(ahead_by(account.vruntime, vruntime) - ahead_by(self.time, time))
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

    /// The lead, or minus the lag, that a waking VCPU takes over from its VM.
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

    /// The running VCPU stops running: settles the lag that it gave away.
    pub(super) fn settle(&mut self, account: &mut Account, vm: usize) {
        if self.runs == vm {
            account.arrived.1 = account.arrived.1.wrapping_add_signed(core::mem::take(&mut self.runs_given));
        }
        (self.runs, self.runs_given) = (NONE, 0);
    }

    /// Adds a VCPU; `slice` is the whole slice.
    pub(super) fn add(&mut self, account: &Account, slice: u64) {
        self.count += 1;
        if self.count > 1 {
            self.share_out(slice);
            return self.change(0, account.share, account.vruntime);
        }
        // What these would come to: it is its own mean.
        (self.base, self.weighted_vruntime, self.slice) = (account.vruntime, 0, slice);
        (self.shares, self.squares) = (account.share, account.share * account.share);
        (self.usual_share, self.rate) = (account.share, (PER_CYCLE << 32) / account.share.max(1) as u64);
    }

    /// Removes a VCPU.
    pub(super) fn remove(&mut self, account: &Account, slice: u64) {
        self.count -= 1;
        if self.count > 0 {
            self.mean();
            self.share_out(slice);
            return self.change(account.share, 0, account.vruntime);
        }
        // The mean of a queue that becomes empty stays where it was.
        (self.base, self.weighted_vruntime, self.slice) = (account.vruntime, 0, slice);
        (self.shares, self.squares, self.usual_share, self.rate) = (0, 0, 0, PER_CYCLE << 32);
    }

    fn share_out(&mut self, slice: u64) {
        self.slice = slice * CROWD as u64 / self.count.max(CROWD) as u64;
    }

    /// Moves a VCPU of this queue, which had `share` until now, ahead of the others by this much vruntime, or back.
    pub(super) fn put_ahead(&mut self, share: i64, account: &mut Account, by: i64) {
        self.change(share, 0, account.vruntime);
        account.vruntime = account.vruntime.wrapping_add_signed(by);
        account.arrived.1 = account.arrived.1.wrapping_add_signed(by);
        self.change(0, account.share, account.vruntime);
    }

    /// A VCPU with this vruntime changes its share; a share of 0 means that it is not in the queue.
    #[inline]
    pub(super) fn change(&mut self, before: i64, now: i64, vruntime: u64) {
        let shares = now - before;
        self.shares += shares;
        self.squares += now * now - before * before;
        self.usual_share = self.squares / self.shares.max(1);
        self.weighted_vruntime =
            self.weighted_vruntime.wrapping_add(shares.wrapping_mul(ahead_by(vruntime, self.base)));
        self.rate = (PER_CYCLE << 32) / self.shares.max(1) as u64;
    }
}
