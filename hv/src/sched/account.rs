//! The accounts of the [credit](super::credit) policy: what a VCPU has spent, and the mean of those present in a queue.

use super::vm::{DEFAULT_WEIGHT, MAX_VMS};

/// Parts of one weight that a VM's VCPUs can have.
pub(super) const PARTS: u64 = 16;
/// What one cycle of a queue's PCPU adds to the mean is this, divided by the parts present.
pub(super) const PER_CYCLE: u64 = DEFAULT_WEIGHT as u64 * PARTS;

/// Slices are whole while no more than so many are present in a queue.
const CROWD: i64 = 6;

/// The account of a VCPU.
#[derive(Debug)]
pub struct Account {
    /// Time run by weight: cycles of a VM of the default weight with one VCPU. As of its queue.
    pub(super) spent: u64,
    /// By how much it goes in front.
    pub(super) boost: u64,
    /// The queue's time and what it had spent when it came.
    pub(super) arrived: (u64, u64),
    /// What it spent beyond its part in queues that it has left since it woke.
    pub(super) beyond: i64,
    /// The VM's demand when it was charged last.
    pub(super) mark: u64,
    /// What a slice counts.
    pub(super) stride: i64,
    /// What a cycle counts, in parts of 2^32.
    pub(super) price: u64,
    /// Its part of the weight, in 1/16.
    pub(super) part: i64,
    /// Weight and number of VCPUs to which the three belong, in one word.
    pub(super) basis: u64,
}

impl Default for Account {
    fn default() -> Account {
        Account {
            spent: 0,
            boost: 0,
            arrived: (0, 0),
            beyond: 0,
            mark: 0,
            stride: 1,
            price: 0,
            part: 1,
            basis: 0,
        }
    }
}

/// The account of a queue.
#[derive(Debug)]
pub struct Sum {
    /// Of those present: the parts, and each part times what was spent beyond `base`.
    pub(super) parts: i64,
    pub(super) lead: i64,
    /// What somebody would have spent who had his part of the PCPU all the time.
    pub(super) time: u64,
    /// Close to the mean, and moved along with time. As of this queue, like all that has been spent by those who are here.
    pub(super) base: u64,
    /// How many are present.
    pub(super) count: i64,
    /// The squares of the parts, added up.
    pub(super) squares: i64,
    /// The mean of the parts, each counted as often as it is great: a heavy one is not lost among many light ones.
    pub(super) usual_part: i64,
    /// The greatest of the usual parts that other queues have shown in this decision.
    pub(super) seen_part: i64,
    /// For how long one of those present runs: a whole slice, or less if many are.
    pub(super) slice: u64,
    /// What a cycle of the PCPU counts for each of those present, in parts of 2^32.
    pub(super) rate: u64,
    /// Added to spent times of this queue to compare them with others'.
    pub(super) offset: u64,
    /// The VM of the VCPU that runs, and what that has spent beyond its part.
    pub(super) runs: usize,
    pub(super) runs_beyond: i64,
    /// What it was owed and has given to others of its VM.
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
    pub(super) owed: i64,
}

/// No VM.
pub(super) const NONE: usize = usize::MAX;

impl Default for Sum {
    fn default() -> Sum {
        let left = [Left::default(); MAX_VMS];
        Sum {
            parts: 0,
            lead: 0,
            time: 0,
            base: 0,
            count: 0,
            squares: 0,
            usual_part: 0,
            seen_part: 0,
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
pub(super) fn lead(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

impl Sum {
    /// The mean of what those present have spent; of the last ones if nobody is.
    pub(super) fn mean(&mut self) -> u64 {
        if self.parts != 0 {
            let ahead = self.lead.div_euclid(self.parts);
            self.base = self.base.wrapping_add_signed(ahead);
            self.lead -= ahead * self.parts;
        }
        self.base
    }

    /// What one of those present has spent beyond its part since it woke.
    #[inline]
    pub(super) fn beyond(&self, account: &Account) -> i64 {
        let (time, spent) = account.arrived;
        account.beyond.saturating_add(lead(account.spent, spent) - lead(self.time, time))
    }

    pub(super) fn hand_over(&mut self, vm: usize, beyond: i64) {
        let Some(left) = self.left.get_mut(vm) else { return };
        if beyond > 0 {
            let at = self.time.wrapping_add_signed(beyond);
            left.paid_back_at = if lead(at, left.paid_back_at) > 0 { at } else { left.paid_back_at };
            left.owed = 0;
        } else {
            left.owed = left.owed.max(-beyond);
        }
    }

    /// With what one that wakes begins.
    pub(super) fn take_over(&mut self, vm: usize) -> i64 {
        let sibling = if self.runs == vm { self.runs_beyond } else { 0 };
        let Some(left) = self.left.get_mut(vm) else { return 0 };
        let debt = lead(left.paid_back_at, self.time).max(sibling);
        if debt > 0 {
            return debt;
        }
        let owed = core::mem::take(&mut left.owed);
        if sibling < 0 && -sibling > owed {
            // The one that runs gives away what it is owed.
            self.runs_given += sibling;
            self.runs_beyond = 0;
            return sibling;
        }
        -owed
    }

    /// The VCPU that runs is no longer the one that does: what it has given away is not owed to it any more.
    pub(super) fn settle(&mut self, account: &mut Account, vm: usize) {
        if self.runs == vm {
            account.arrived.1 = account.arrived.1.wrapping_add_signed(core::mem::take(&mut self.runs_given));
        }
        (self.runs, self.runs_given) = (NONE, 0);
    }

    /// One more is present; `slice` is for few.
    pub(super) fn add(&mut self, account: &Account, slice: u64) {
        if self.count == 0 {
            self.base = account.spent;
        }
        self.count += 1;
        self.share_out(slice);
        self.change(0, account.part, account.spent);
    }

    /// One is no longer present.
    pub(super) fn remove(&mut self, account: &Account, slice: u64) {
        // The last one leaves the mean where it was.
        self.mean();
        self.count -= 1;
        self.share_out(slice);
        self.change(account.part, 0, account.spent);
        if self.count == 0 {
            (self.parts, self.lead, self.base) = (0, 0, account.spent);
        }
    }

    fn share_out(&mut self, slice: u64) {
        self.slice = slice * CROWD as u64 / self.count.max(CROWD) as u64;
    }

    /// One that is present, with these parts until now, goes ahead of the others by so much, or back.
    pub(super) fn put_ahead(&mut self, parts: i64, account: &mut Account, by: i64) {
        self.change(parts, 0, account.spent);
        account.spent = account.spent.wrapping_add_signed(by);
        account.arrived.1 = account.arrived.1.wrapping_add_signed(by);
        self.change(0, account.part, account.spent);
    }

    /// One that has spent this holds other parts than before; 0: it is not present.
    #[inline]
    pub(super) fn change(&mut self, before: i64, now: i64, spent: u64) {
        let parts = now - before;
        self.parts += parts;
        self.squares += now * now - before * before;
        self.usual_part = self.squares / self.parts.max(1);
        self.lead = self.lead.wrapping_add(parts.wrapping_mul(lead(spent, self.base)));
        self.rate = (PER_CYCLE << 32) / self.parts.max(1) as u64;
    }
}
