//! Guest time: the guest's TSC is the host's plus an offset; nanoseconds follow from it.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Nanos, Tsc};

/// Host TSC at a VM's machine time 0, which a reset of the guest does not change. It moves on by the time for which the VM's clock is stopped.
#[derive(Debug)]
pub struct Start(AtomicU64);

impl Start {
    /// Time begins at host TSC `tsc`.
    pub const fn new(tsc: u64) -> Start {
        Start(AtomicU64::new(tsc))
    }

    /// The host's TSC then.
    #[inline(always)]
    pub fn tsc(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The last `ticks` of the host's TSC were none of the VM's time.
    pub fn delay(&self, ticks: u64) {
        self.0.fetch_add(ticks, Ordering::Relaxed);
    }
}

/// Converts between TSC ticks and nanoseconds by multiplication: `ns = ticks * mult >> 32`, good to 1 part in 2^30 or
/// better for TSCs of 4 MHz and more, over 2^64 ns.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    tsc_khz: u64,
    mult: u64,
}

impl Clock {
    /// A clock for a TSC of `tsc_khz` (at least 1).
    pub const fn new(tsc_khz: u64) -> Clock {
        let tsc_khz = if tsc_khz == 0 { 1 } else { tsc_khz };
        Clock { tsc_khz, mult: ((1_000_000u128 << 32) / tsc_khz as u128) as u64 }
    }

    /// TSC frequency in kHz.
    pub const fn tsc_khz(&self) -> u64 {
        self.tsc_khz
    }

    /// Time since TSC 0.
    #[inline(always)]
    pub const fn nanos(&self, tsc: Tsc) -> Nanos {
        Nanos(((tsc.0 as u128 * self.mult as u128) >> 32) as u64)
    }

    /// The first TSC value at which [`Clock::nanos`] is `at` or later; saturates.
    pub const fn tsc_at(&self, at: Nanos) -> Tsc {
        let ticks = ((at.0 as u128) << 32).div_ceil(self.mult as u128);
        Tsc(if ticks > u64::MAX as u128 { u64::MAX } else { ticks as u64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_deadline_is_never_met_early_nor_late(khz in 10_000u64..6_000_000, ns in 0u64..1 << 60) {
            let clock = Clock::new(khz);
            let tsc = clock.tsc_at(Nanos(ns));
            proptest::prop_assert!(clock.nanos(tsc).0 >= ns);
            proptest::prop_assert!(tsc.0 == 0 || clock.nanos(Tsc(tsc.0 - 1)).0 < ns);
        }

        #[test]
        fn an_hour_is_an_hour(khz in 10_000u64..6_000_000) {
            let clock = Clock::new(khz);
            let hour = clock.nanos(Tsc(khz * 3_600_000)).0;
            let exact = 3_600_000_000_000u64;
            proptest::prop_assert!(hour <= exact && exact - hour < exact >> 22, "{hour}");
        }
    }
}
