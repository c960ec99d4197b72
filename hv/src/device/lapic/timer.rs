//! The local APIC's timer. Its input clock is the guest's TSC.
//!
//! Nothing counts: an armed timer is the TSC value at which it expires, from which a read computes the current
//! count. [`super::Lapic`] calls [`Timer::expire`] before anything else that depends on the time, so that what
//! expired a moment ago is raised, or is lost if it was masked, under the old settings.
//!
//! Intel SDM 3, 11.5.4.

use core::num::NonZeroU64;

use super::lvt;
use crate::device::Tsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    OneShot,
    Periodic,
    TscDeadline,
    /// Encoding 3: the timer does not run.
    Reserved,
}

#[derive(Clone, Debug)]
pub(super) struct Timer {
    /// LVT entry
    lvt: u32,
    initial_count: u32,
    /// Divide configuration register
    divide: u32,
    /// When the timer expires, if it runs.
    expires: Option<NonZeroU64>,
}

impl Timer {
    pub(super) const RESET: Timer = Timer { lvt: lvt::MASKED, initial_count: 0, divide: 0, expires: None };

    pub(super) fn lvt(&self) -> u32 {
        self.lvt
    }

    pub(super) fn initial_count(&self) -> u32 {
        self.initial_count
    }

    pub(super) fn divide(&self) -> u32 {
        self.divide
    }

    /// When to call [`Timer::expire`]: a masked timer need not be called.
    pub(super) fn deadline(&self) -> Option<Tsc> {
        match self.expires {
            // A masked timer goes on counting, but nothing is to be done when it expires.
            Some(tsc) if self.lvt & lvt::MASKED == 0 => Some(Tsc(tsc.get())),
            _ => None,
        }
    }

    /// Whether to call [`Timer::expire`].
    #[inline]
    pub(super) fn is_due(&self, now: Tsc) -> bool {
        self.expires.is_some_and(|expires| expires.get() <= now.0)
    }

    /// The timer is due: the vector to raise, unless masked. A periodic timer expires once for all the periods
    /// that passed.
    pub(super) fn expire(&mut self, now: Tsc) -> Option<u8> {
        let expires = self.expires?.get();
        self.expires = match self.mode() {
            Mode::Periodic => {
                // The count is not 0, or the timer would not run.
                let period = self.ticks(self.initial_count.max(1));
                // From the time that was due and not from now, so that a late call shifts no later period.
                let periods = now.0.saturating_sub(expires) / period + 1;
                at(expires.saturating_add(periods.saturating_mul(period)))
            }
            _ => None,
        };
        (self.lvt & lvt::MASKED == 0).then_some(self.lvt as u8)
    }

    /// A write of the LVT entry, already stripped of bits that do not exist.
    pub(super) fn set_lvt(&mut self, value: u32) {
        let before = self.mode();
        self.lvt = value;
        let after = self.mode();
        let counts = |mode| matches!(mode, Mode::OneShot | Mode::Periodic);
        // A change to or from TSC-deadline mode disarms the timer; between one-shot and periodic the count goes on (SDM
        // 3, 11.5.4.1).
        if before != after && !(counts(before) && counts(after)) {
            self.expires = None;
            self.initial_count = 0;
        }
    }

    pub(super) fn mask(&mut self) {
        self.lvt |= lvt::MASKED;
    }

    /// A write of the initial count starts the timer, or stops it if it is 0.
    pub(super) fn set_initial_count(&mut self, count: u32, now: Tsc) {
        if matches!(self.mode(), Mode::OneShot | Mode::Periodic) {
            self.initial_count = count;
            self.start(count, now);
        }
    }

    /// What is left of the count; 0 in the other modes.
    pub(super) fn current_count(&self, now: Tsc) -> u32 {
        let Some(expires) = self.expires else { return 0 };
        let left = match self.mode() {
            Mode::OneShot | Mode::Periodic => expires.get().saturating_sub(now.0),
            _ => 0,
        };
        u32::try_from(left.div_ceil(self.ticks(1))).unwrap_or(u32::MAX)
    }

    /// A new divisor applies to what is left of the count.
    pub(super) fn set_divide(&mut self, value: u32, now: Tsc) {
        let left = self.current_count(now);
        self.divide = value;
        if left != 0 {
            self.start(left, now);
        }
    }

    /// The TSC-deadline MSR: 0 unless armed.
    pub(super) fn tsc_deadline(&self) -> u64 {
        match self.expires {
            Some(tsc) if self.mode() == Mode::TscDeadline => tsc.get(),
            _ => 0,
        }
    }

    /// Arms the timer at this TSC value, disarms it with 0; ignored in the other modes.
    pub(super) fn set_tsc_deadline(&mut self, value: u64) {
        if self.mode() == Mode::TscDeadline {
            self.expires = NonZeroU64::new(value);
        }
    }

    /// The guest's TSC jumped from `old` to `new`: a count goes on, a deadline stays where it is.
    pub(super) fn tsc_jumped(&mut self, old: Tsc, new: Tsc) {
        if let Some(expires) = self.expires
            && self.mode() != Mode::TscDeadline
        {
            let left = expires.get().saturating_sub(old.0);
            self.expires = at(new.0.saturating_add(left));
        }
    }

    fn start(&mut self, count: u32, now: Tsc) {
        self.expires = match count {
            0 => None,
            _ => at(now.0.saturating_add(self.ticks(count))),
        };
    }

    /// TSC ticks in this count.
    fn ticks(&self, count: u32) -> u64 {
        // Bits 3, 1, 0 are log2 of the divisor, less 1, modulo 8.
        let code = self.divide & 3 | self.divide >> 1 & 4;
        u64::from(count) << ((code + 1) & 7)
    }

    fn mode(&self) -> Mode {
        match self.lvt & lvt::TIMER_MODE {
            lvt::ONE_SHOT => Mode::OneShot,
            lvt::PERIODIC => Mode::Periodic,
            lvt::TSC_DEADLINE => Mode::TscDeadline,
            _ => Mode::Reserved,
        }
    }
}

/// An expiry time; time 0 cannot be told from "never", so it becomes 1.
fn at(tsc: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(tsc.max(1))
}
