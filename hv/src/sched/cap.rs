//! Caps: what a VM pays for running, and the VCPUs of a queue that are throttled until that is paid.
//!
//! A cap is a price: running for d advances a word of the VM by d · 100 / cap, and while that is ahead of the clock the
//! VM's VCPUs are throttled. Divisions are done when the cap or the number of runnable VCPUs changes, so that a
//! decision needs none; a VM without a cap looks like one that has paid.

use super::heap::{Heap, Item};
use super::sync::{AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use super::topology::PcpuSet;
use super::types::VcpuId;
use super::vm::mul_shift;

/// A VM's cap. Times in cycles.
pub(super) struct Cap {
    /// Price of a cycle, in units of 2^-32; 0: there is no cap.
    price: AtomicU64,
    /// As much of a slice as all its VCPUs may run together.
    allowance: AtomicU64,
    /// Up to when the VM has paid.
    paid_until: AtomicU64,
    /// How long one of its VCPUs may run at a stretch.
    turn: AtomicU64,
    /// In this time all that want to run can, and what was not used of it is kept.
    slice: u64,
    /// The least turn.
    min_run: u64,
}

impl Cap {
    /// No cap.
    pub(super) fn new(slice: u64, min_run: u64) -> Cap {
        Cap {
            price: AtomicU64::new(0),
            allowance: AtomicU64::new(u64::MAX),
            paid_until: AtomicU64::new(0),
            turn: AtomicU64::new(u64::MAX),
            slice,
            min_run,
        }
    }

    /// Changes it, to percent of one PCPU; 0: there is none any more. What was used so far is forgotten. To be followed
    /// by [`Cap::share`].
    pub(super) fn set(&self, percent: u32) {
        let (price, allowance) = match u64::from(percent) {
            0 => (0, u64::MAX),
            // Rounded up, so that no VM gets more than its cap.
            percent => ((100u64 << 32).div_ceil(percent), self.slice.saturating_mul(percent) / 100),
        };
        self.price.store(price, Relaxed);
        self.allowance.store(allowance, Relaxed);
        self.paid_until.store(0, Relaxed);
    }

    /// Recomputes how long one VCPU may run, after the cap or the number of runnable VCPUs has changed.
    ///
    /// Of two concurrent callers the one that writes last sees both changes and recomputes.
    pub(super) fn share(&self, runnable: impl Fn() -> u64) {
        let look = || (self.allowance.load(Relaxed), runnable().max(1));
        let mut seen = look();
        loop {
            let (allowance, runnable) = seen;
            let _before = self.turn.swap((allowance / runnable).max(self.min_run), AcqRel);
            if look() == seen {
                return;
            }
            seen = look();
        }
    }

    /// Whether there is one.
    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.price.load(Relaxed) != 0
    }

    /// How long one of the VM's VCPUs may run at a stretch, so that all that want to run can within a slice's time.
    #[inline(always)]
    pub(super) fn turn(&self) -> u64 {
        self.turn.load(Relaxed)
    }

    /// Counts `ran` cycles, at most as many as there are, that ended now. Of what was not used, a slice's worth is
    /// kept.
    #[inline(always)]
    pub(super) fn pay(&self, ran: u64, now: u64) {
        let price = self.price.load(Relaxed);
        if price != 0 {
            let cost = mul_shift(ran, price);
            let floor = (now - ran).saturating_sub(self.slice);
            let step = |paid: u64| Some(paid.max(floor).wrapping_add(cost));
            let _always_some = self.paid_until.fetch_update(Relaxed, Relaxed, step);
        }
    }

    /// When the VM may run again, if it must not now.
    #[inline(always)]
    pub(super) fn throttled_until(&self, now: u64) -> Option<u64> {
        let paid = self.paid_until.load(Relaxed);
        (paid > now && self.is_set()).then_some(paid)
    }
}

/// The throttled VCPUs of a queue, by the time at which they may wait again.
pub(super) struct Throttled {
    heap: Heap,
    /// No VCPU that is throttled, or is about to be, may wait again before.
    next: u64,
}

impl Throttled {
    /// Empty, with room for `capacity`.
    pub(super) fn with_capacity(capacity: usize) -> Throttled {
        Throttled { heap: Heap::with_capacity(capacity), next: u64::MAX }
    }

    /// When to look for VCPUs that may wait again.
    #[inline(always)]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// A VCPU that is about to be throttled may wait again at `until`.
    pub(super) fn expect(&mut self, until: u64) {
        self.next = self.next.min(until);
    }

    pub(super) fn push(&mut self, id: VcpuId, until: u64) {
        self.expect(until);
        self.heap.push(Item::new(until, id, PcpuSet::EMPTY));
    }

    /// Takes out one that may wait again.
    pub(super) fn pop_due(&mut self, now: u64) -> Option<VcpuId> {
        self.next = self.heap.first().map_or(u64::MAX, |first| first.key);
        if self.next > now {
            return None;
        }
        self.heap.pop().map(|item| item.id)
    }

    pub(super) fn remove(&mut self, id: VcpuId) {
        self.heap.remove_one(id);
    }
}

#[cfg(all(test, not(loom_model)))]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_a_price() {
        let cap = Cap::new(10_000, 1_000);
        cap.set(25);
        cap.pay(1_000, 100_000);
        assert_eq!(cap.throttled_until(100_000), None, "what was not used covers it");
        cap.pay(4_000, 104_000);
        assert_eq!(cap.throttled_until(104_000), Some(89_000 + 4_000 + 16_000));
        cap.set(0);
        assert_eq!(cap.throttled_until(104_000), None);
    }

    #[test]
    fn no_price_is_too_low() {
        for percent in [1, 3, 7, 99, 101, 333, 6_400, u32::MAX] {
            let cap = Cap::new(10_000, 1_000);
            cap.set(percent);
            let now = 1 << 50;
            cap.pay(1 << 40, now);
            let paid = cap.paid_until.load(Relaxed) - (now - (1 << 40) - 10_000);
            let exact = (100u128 << 40).div_ceil(percent.into()) as u64;
            assert!((exact..=exact + (1 << 8)).contains(&paid), "{paid} of {exact} for {percent} %");
        }
    }

    #[test]
    fn all_that_want_to_run_can_within_a_slice() {
        let cap = Cap::new(10_000, 1_000);
        assert_eq!(cap.turn(), u64::MAX);
        let turn = |percent, runnable| {
            cap.set(percent);
            cap.share(|| runnable);
            cap.turn()
        };
        assert_eq!([turn(50, 0), turn(50, 1), turn(50, 2), turn(400, 3)], [5_000, 5_000, 2_500, 13_333]);
        assert_eq!(turn(50, 64), 1_000, "the least turn");
        assert!(turn(0, 64) > 1 << 56, "no cap");
    }
}
