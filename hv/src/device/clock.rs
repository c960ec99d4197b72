//! Exact conversion between nanoseconds and the ticks of a clock of a fixed frequency.
//!
//! Tick `n` begins at the first nanosecond `t` with `t * hz >= n * 10^9`. Both directions are computed from the
//! absolute time with integer arithmetic, so that nothing drifts.

use super::Nanos;

const NS_PER_S: u64 = 1_000_000_000;

/// A clock that started with the VM.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    hz: u64,
}

impl Clock {
    /// A clock of `hz` ticks per second, 1 to 1 GHz.
    pub const fn new(hz: u64) -> Clock {
        assert!(0 < hz && hz <= NS_PER_S);
        Clock { hz }
    }

    /// The number of whole ticks until `now`.
    pub const fn ticks(self, now: Nanos) -> u64 {
        // Neither product overflows: both factors of each are below 2^35 and 2^30.
        now.0 / NS_PER_S * self.hz + now.0 % NS_PER_S * self.hz / NS_PER_S
    }

    /// The first moment at which [`Clock::ticks`] is at least `ticks`; `None` if that is beyond the end of time.
    pub const fn when(self, ticks: u64) -> Option<Nanos> {
        let rest = (ticks % self.hz * NS_PER_S).div_ceil(self.hz);
        match (ticks / self.hz).checked_mul(NS_PER_S) {
            Some(whole) => match whole.checked_add(rest) {
                Some(ns) => Some(Nanos(ns)),
                None => None,
            },
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        let pit = Clock::new(1_193_182);
        assert_eq!(pit.ticks(Nanos(NS_PER_S)), 1_193_182);
        assert_eq!(pit.ticks(Nanos(NS_PER_S - 1)), 1_193_181);
        assert_eq!(pit.when(1), Some(Nanos(839)));
        assert_eq!(pit.when(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn agrees_with_wide_arithmetic(hz in 1..=NS_PER_S, ns: u64, ticks: u64) {
            let clock = Clock::new(hz);
            prop_assert_eq!(clock.ticks(Nanos(ns)) as u128, ns as u128 * hz as u128 / NS_PER_S as u128);
            let exact = (ticks as u128 * NS_PER_S as u128).div_ceil(hz as u128);
            prop_assert_eq!(clock.when(ticks).map(|t| t.0), u64::try_from(exact).ok());
        }
    }
}
