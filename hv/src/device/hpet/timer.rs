//! One comparator of the HPET.

use super::super::layout::HPET_GSIS;

/// Timer configuration register bits.
const LEVEL: u64 = 1 << 1;
const INTERRUPT_ENABLE: u64 = 1 << 2;
const PERIODIC: u64 = 1 << 3;
const PERIODIC_CAPABLE: u64 = 1 << 4;
const SIZE_64: u64 = 1 << 5;
const SET_ACCUMULATOR: u64 = 1 << 6;
const MODE_32: u64 = 1 << 8;
const ROUTE_SHIFT: u32 = 9;
const ROUTE: u64 = 0x1f << ROUTE_SHIFT;
const WRITABLE: u64 = LEVEL | INTERRUPT_ENABLE | PERIODIC | SET_ACCUMULATOR | MODE_32 | ROUTE;

/// A comparator with its configuration.
#[derive(Clone, Debug)]
pub(super) struct Timer {
    config: u64,
    /// The counter value that matches next (the accumulator, in periodic mode).
    comparator: u64,
    /// Periodic mode: what is added to the comparator at each match.
    period: u64,
    /// The first counter value that the comparator has not been compared with.
    unseen: u64,
}

impl Default for Timer {
    fn default() -> Self {
        Timer { config: 0, comparator: u64::MAX, period: 0, unseen: 0 }
    }
}

impl Timer {
    /// The configuration and capabilities register.
    pub(super) fn config(&self) -> u64 {
        self.config | PERIODIC_CAPABLE | SIZE_64 | u64::from(HPET_GSIS) << 32
    }

    /// Writes the bits of `mask` in the configuration register.
    pub(super) fn configure(&mut self, value: u64, mask: u64) {
        let mask = mask & WRITABLE;
        self.config = self.config & !mask | value & mask;
        if self.config & MODE_32 != 0 {
            // In 32-bit mode the upper halves do not exist; the comparison is with the counter's lower half
            // (specification, 2.3.8).
            self.comparator &= self.limit();
            self.period &= self.limit();
        }
    }

    pub(super) fn is_level(&self) -> bool {
        self.config & LEVEL != 0
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.config & INTERRUPT_ENABLE != 0
    }

    pub(super) fn is_periodic(&self) -> bool {
        self.config & PERIODIC != 0
    }

    /// Ticks between matches in periodic mode.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// The IOAPIC input that it is routed to, 0 to 31.
    pub(super) fn route(&self) -> u32 {
        ((self.config & ROUTE) >> ROUTE_SHIFT) as u32
    }

    pub(super) fn comparator(&self) -> u64 {
        self.comparator
    }

    /// Writes the bits of `mask` in the comparator. In periodic mode every write sets the period, and the accumulator
    /// only if VAL_SET asks for it (specification 2.3.9.2.2): software either writes once with VAL_SET, or first the
    /// time of the first match with it and then the period without.
    pub(super) fn set_comparator(&mut self, value: u64, mask: u64, counter: u64) {
        let mask = mask & self.limit();
        if self.is_periodic() {
            self.period = self.period & !mask | value & mask;
        }
        if !self.is_periodic() || self.config & SET_ACCUMULATOR != 0 {
            self.comparator = self.comparator & !mask & self.limit() | value & mask;
            self.unseen = counter;
        }
        // The bit clears itself with the write that it was for.
        self.config &= !SET_ACCUMULATOR;
    }

    /// The main counter was set: compare from `counter` on.
    pub(super) fn compare_from(&mut self, counter: u64) {
        self.unseen = counter;
    }

    /// Compares all counter values up to `counter`; whether one matched.
    pub(super) fn advance(&mut self, counter: u64) -> bool {
        let passed = counter.wrapping_sub(self.unseen).wrapping_add(1);
        let to_match = self.distance(self.unseen);
        self.unseen = counter.wrapping_add(1);
        if to_match >= passed {
            return false;
        }
        if self.is_periodic() && self.period != 0 {
            // All periods at once: a guest that was descheduled for long gets one interrupt, and the phase stays.
            let matches = (passed - 1 - to_match) / self.period + 1;
            let sum = self.comparator.wrapping_add(self.period.wrapping_mul(matches));
            self.comparator = sum & self.limit();
        }
        true
    }

    /// Ticks from `counter`, the present value, to the next match; `None` if the distance has no number.
    pub(super) fn ticks_to_match(&self, counter: u64) -> Option<u64> {
        let behind = self.unseen.wrapping_sub(counter);
        self.distance(self.unseen).checked_add(behind)
    }

    /// Ticks from a counter value to the match.
    fn distance(&self, from: u64) -> u64 {
        self.comparator.wrapping_sub(from) & self.limit()
    }

    /// The largest value of the comparator.
    fn limit(&self) -> u64 {
        if self.config & MODE_32 != 0 { 0xffff_ffff } else { u64::MAX }
    }
}
