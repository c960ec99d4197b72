//! What a policy compares: sums over some periods of samples, and cycles per instruction.

use abi::policy::MILLI;

use super::Period;
use crate::arch::counters::CounterEvent;

/// What has been counted since a window began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Nanoseconds of the VM's time.
    pub nanos: u64,
    /// Instructions of the guest.
    pub instructions: u64,
    /// Cycles, of the guest and of the hypervisor on its behalf.
    pub cycles: u64,
    /// Misses of the data TLB.
    pub misses: u64,
    /// Exits for shadow paging, or faults of nested tables.
    pub paging_exits: u64,
    /// Page faults of the guest, as far as they are known: what its kernel has counted, or else what shadow paging has seen.
    pub faults: u64,
    /// In part of the window the guest's kernel did not count them.
    pub not_counted: bool,
}

impl Window {
    /// A period alone; `None` if the machine does not count what policies compare. Page walks stand in for misses of the data
    /// TLB where only they are counted.
    ///
    /// Counters that run backwards come as huge differences: a period in which something was counted more often than
    /// [`MOST`](Window::MOST) counts as one in which the machine counted nothing.
    pub(super) fn of(period: &Period) -> Option<Window> {
        let instructions = period.guest.get(CounterEvent::Instructions)?;
        let cycles = period.guest.get(CounterEvent::Cycles)?;
        let own = period.host.get(CounterEvent::Cycles).unwrap_or(0);
        let misses = [CounterEvent::DtlbMisses, CounterEvent::Walks]
            .into_iter()
            .find_map(|event| period.guest.get(event))?;
        // Preferred with shadow paging, too: on VT-x most page faults never reach it.
        let counted = period.guest.get(CounterEvent::PageFaults);
        let window = Window {
            nanos: period.nanos,
            instructions,
            cycles: cycles.checked_add(own)?,
            misses,
            paging_exits: period.paging_exits,
            faults: counted.unwrap_or(period.guest_faults),
            not_counted: counted.is_none(),
        };
        let all =
            [window.nanos, window.instructions, window.cycles, misses, window.paging_exits, window.faults];
        (all.into_iter().max()? <= Window::MOST).then_some(window)
    }

    /// More of anything than a machine does between two samples.
    pub(super) const MOST: u64 = 1 << 48;

    /// Adds a later window.
    pub(super) fn add(&mut self, later: &Window) {
        self.nanos = self.nanos.saturating_add(later.nanos);
        self.instructions = self.instructions.saturating_add(later.instructions);
        self.cycles = self.cycles.saturating_add(later.cycles);
        self.misses = self.misses.saturating_add(later.misses);
        self.paging_exits = self.paging_exits.saturating_add(later.paging_exits);
        self.faults = self.faults.saturating_add(later.faults);
        self.not_counted |= later.not_counted;
    }

    /// How often something happened in a million instructions; nothing if the guest executed none.
    pub(super) fn per_million(&self, count: u64) -> u64 {
        let million = u128::from(count) * 1_000_000;
        million
            .checked_div(self.instructions.into())
            .map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// How fast the guest was.
    pub(super) const fn speed(&self) -> Speed {
        Speed { instructions: self.instructions, cycles: self.cycles }
    }
}

/// Cycles per instruction, as the two counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Speed {
    /// Instructions of the guest.
    pub instructions: u64,
    /// Cycles that they took, the hypervisor's included.
    pub cycles: u64,
}

impl Speed {
    /// Both parts together.
    pub(super) const fn plus(self, later: Speed) -> Speed {
        Speed {
            instructions: self.instructions.saturating_add(later.instructions),
            cycles: self.cycles.saturating_add(later.cycles),
        }
    }

    /// Whether an instruction took more than `factor_milli` thousandths of the cycles that one took in `other`. Without
    /// instructions it is not slower than any: nothing is known of it.
    pub(super) fn is_slower(self, other: Speed, factor_milli: u32) -> bool {
        if self.instructions == 0 || other.instructions == 0 {
            return false;
        }
        let product = |cycles: u64, instructions: u64| u128::from(cycles) * u128::from(instructions);
        let mine = product(self.cycles, other.instructions).saturating_mul(MILLI.into());
        mine > product(other.cycles, self.instructions).saturating_mul(factor_milli.into())
    }
}

/// log2(1 + `count`) with 16 bits behind the point, rounded down: 0 to 64 · 65536.
pub(super) fn log2(count: u64) -> i64 {
    let x = u128::from(count) + 1;
    let whole = x.ilog2();
    // The mantissa, 1 to 2, with 63 bits behind the point. Squaring it doubles its logarithm, so that each square gives a bit.
    let mut mantissa = if whole <= 63 { (x << (63 - whole)) as u64 } else { (x >> (whole - 63)) as u64 };
    let mut log = i64::from(whole);
    for _ in 0..16 {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let carries = square >> 127 != 0;
        mantissa = if carries { (square >> 64) as u64 } else { (square >> 63) as u64 };
        log = log << 1 | i64::from(carries);
    }
    log
}

#[cfg(test)]
#[expect(clippy::float_arithmetic, reason = "the oracle of the logarithm")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arch::counters::Counts;

    fn period(instructions: u64, cycles: u64) -> Period {
        let mut guest = Counts::ABSENT;
        guest.set(CounterEvent::Instructions, instructions);
        guest.set(CounterEvent::Cycles, cycles);
        guest.set(CounterEvent::Walks, 7);
        Period { nanos: 1, exits: 0, paging_exits: 0, guest_faults: 0, guest, host: Counts::ABSENT }
    }

    #[test]
    fn a_machine_that_counts_too_little_gives_nothing() {
        let mut all = period(1000, 2000);
        assert_eq!(Window::of(&all).unwrap().misses, 7, "walks stand in");
        all.guest.set(CounterEvent::DtlbMisses, 9);
        assert_eq!(Window::of(&all).unwrap().misses, 9);
        let none = Period { guest: Counts::ABSENT, ..all };
        assert_eq!(Window::of(&none), None);
        assert_eq!(Window::of(&period(5, u64::MAX - 3)), None, "it ran backwards");
    }

    #[test]
    fn the_hypervisors_cycles_count_for_the_guest() {
        let mut both = period(1000, 2000);
        both.host.set(CounterEvent::Cycles, 500);
        assert_eq!(Window::of(&both).unwrap().cycles, 2500);
    }

    #[test]
    fn nothing_is_slower_than_what_is_not_known() {
        let speed = |instructions, cycles| Speed { instructions, cycles };
        assert!(speed(10, 12).is_slower(speed(10, 10), 1100));
        assert!(!speed(10, 11).is_slower(speed(10, 10), 1100));
        assert!(!speed(0, 99).is_slower(speed(10, 10), 1100));
        assert!(!speed(10, 99).is_slower(speed(0, 0), 1100));
        assert!(speed(1, u64::MAX).is_slower(speed(u64::MAX, 1), u32::MAX));
        let window = |instructions, cycles| Window { instructions, cycles, ..Window::default() };
        assert_eq!((window(0, 0).per_million(5), window(1, 0).per_million(u64::MAX)), (0, u64::MAX));
    }

    proptest! {
        #[test]
        fn the_logarithm_is_right_to_its_last_bit(bits in 0..64u32, random: u64) {
            let count = random >> bits;
            let exact = (count as f64 + 1.0).log2() * 65536.0;
            let got = log2(count) as f64;
            prop_assert!(got <= exact + 0.01 && got > exact - 1.01, "{count}: {got} for {exact}");
        }
    }

    #[test]
    fn the_logarithm_of_powers_is_exact() {
        assert_eq!((log2(0), log2(1), log2(1023)), (0, 65536, 655_360));
        assert_eq!(log2(u64::MAX), 64 << 16);
    }
}
