//! What the VCPUs of one VM share: weight, [cap](super::cap), and how many of them want to run.
//!
//! All of it is atomic, because VCPUs of a VM run on many PCPUs at once; no lock is needed and none is taken.

use super::cap::Cap;
use super::sync::{AtomicU32, AtomicU64, Ordering::Relaxed};

pub use abi::config::{DEFAULT_WEIGHT, MAX_VMS, MAX_WEIGHT, MIN_WEIGHT};

/// `value` times `factor`, which is in units of 2^-32.
#[inline]
pub(super) fn mul_shift(value: u64, factor: u64) -> u64 {
    ((u128::from(value) * u128::from(factor)) >> 32) as u64
}

/// Bits of [`Demand`] that hold a time.
const TIME: u32 = 54;
const TIME_MASK: u64 = (1 << TIME) - 1;

/// How many VCPUs of a VM are runnable (run, wait, or are throttled), and the integral of that number over time.
///
/// One word: the number n in the upper bits; below, the sum S of the times at which VCPUs began to want, less those at
/// which they ceased. The integral of n over time up to `now` is then n·now − S, exact at any moment, modulo 2^54.
struct Demand(AtomicU64);

impl Demand {
    fn change(&self, apply: impl Fn(u64, u64) -> (u64, u64)) {
        let step = |word: u64| {
            let (n, sum) = apply(word >> TIME, word & TIME_MASK);
            Some(n << TIME | sum & TIME_MASK)
        };
        let _always_some = self.0.fetch_update(Relaxed, Relaxed, step);
    }

    fn integral(&self, now: u64) -> u64 {
        Demand::up_to(self.0.load(Relaxed), now)
    }

    #[inline(always)]
    fn up_to(word: u64, now: u64) -> u64 {
        (word >> TIME).wrapping_mul(now).wrapping_sub(word) & TIME_MASK
    }
}

/// One VM.
pub struct Vm {
    /// Its number.
    index: usize,
    weight: AtomicU32,
    demand: Demand,
    pub(super) cap: Cap,
}

impl Vm {
    /// A VM whose VCPUs run for a slice, and for at least `min_run`, both in cycles.
    pub(super) fn new(index: usize, slice: u64, min_run: u64) -> Vm {
        Vm {
            index,
            weight: AtomicU32::new(DEFAULT_WEIGHT),
            demand: Demand(AtomicU64::new(0)),
            cap: Cap::new(slice, min_run),
        }
    }

    /// Resets it, for a new VM of the same number.
    pub(super) fn reset(&self, weight: u32, cap: u32) {
        self.set_weight(weight);
        self.demand.0.store(0, Relaxed);
        self.cap.set(cap);
        self.share_cap();
    }

    /// Its number, below [`MAX_VMS`].
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its weight, at least 1.
    #[inline]
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed).max(MIN_WEIGHT)
    }

    pub(super) fn set_weight(&self, weight: u32) {
        self.weight.store(weight, Relaxed);
    }

    /// Recomputes what the cap allows each of its VCPUs.
    pub(super) fn share_cap(&self) {
        self.cap.share(|| self.runnable());
    }

    /// Its weight and how many of its VCPUs want to run in one word, and [`Vm::demand`].
    #[inline(always)]
    pub(super) fn basis_and_demand(&self, now: u64) -> (u64, u64) {
        let word = self.demand.0.load(Relaxed);
        let basis = u64::from(self.weight.load(Relaxed)) << 32 | word >> TIME;
        (basis, Demand::up_to(word, now))
    }

    /// How many of its VCPUs are runnable; at least 1, because the caller is one.
    #[inline]
    pub fn runnable(&self) -> u64 {
        (self.demand.0.load(Relaxed) >> TIME).max(1)
    }

    /// One more VCPU is runnable. Called under the lock of its queue, as is [`Vm::end_demand`].
    pub(super) fn begin_demand(&self, now: u64) {
        self.change_demand(|n, sum| (n + 1, sum.wrapping_add(now)));
    }

    /// One VCPU is no longer runnable.
    pub(super) fn end_demand(&self, now: u64) {
        self.change_demand(|n, sum| (n.saturating_sub(1), sum.wrapping_sub(now)));
    }

    #[inline]
    fn change_demand(&self, apply: impl Fn(u64, u64) -> (u64, u64)) {
        self.demand.change(apply);
        if self.cap.is_set() {
            self.share_cap();
        }
    }

    /// The time that VCPUs of this VM have wanted to run, added up. Differences count, see [`Vm::demand_between`].
    #[inline]
    pub fn demand(&self, now: u64) -> u64 {
        self.demand.integral(now)
    }

    /// Demand between two such sums: the time between them times the mean number of VCPUs that wanted to run.
    #[inline]
    pub fn demand_between(mark: u64, end: u64) -> u64 {
        let difference = end.wrapping_sub(mark) & TIME_MASK;
        // Clocks of two PCPUs may differ a little: less than nothing is nothing.
        if difference >> (TIME - 1) != 0 { 0 } else { difference }
    }
}

#[cfg(all(test, not(loom_model)))]
mod tests {
    use super::*;

    #[test]
    fn demand_is_exact_over_changes_and_wrapping() {
        for start in [0u64, 12345, TIME_MASK - 50, u64::MAX - 100_000] {
            let vm = Vm::new(0, 10_000, 1);
            vm.begin_demand(start);
            let mark = vm.demand(start);
            vm.begin_demand(start + 100);
            vm.begin_demand(start + 200);
            vm.end_demand(start + 250);
            assert_eq!(vm.runnable(), 2);
            assert_eq!(Vm::demand_between(mark, vm.demand(start + 300)), 100 + 200 + 150 + 100);
        }
    }

    #[test]
    fn clocks_that_differ_do_not_make_demand_negative() {
        let vm = Vm::new(0, 10_000, 1);
        vm.begin_demand(1000);
        let mark = vm.demand(1000);
        assert_eq!(Vm::demand_between(mark, vm.demand(990)), 0);
    }
}
