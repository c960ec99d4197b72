//! The timer of a PCPU: one interrupt at a value of the time-stamp counter.
//!
//! By the local APIC's TSC-deadline mode where the processor has it, else by its one-shot mode, whose clock is measured
//! against the TSC once. Called by the run loop before it enters a guest.

use super::cpu;
use super::lapic::{self, LocalApic};

/// How long the clock of the one-shot mode is measured, in milliseconds.
const MEASURE_MS: u64 = 2;
/// Fractional bits of [`Timer::ratio`].
const FRACTION: u32 = 32;

/// How to arm the timer of a PCPU; the same on every PCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    tsc_deadline: bool,
    /// Counts of the one-shot mode per tick of the TSC, with [`FRACTION`] fractional bits.
    ratio: u64,
}

impl Timer {
    /// Finds out how to use the timer of the PCPU that executes this.
    pub fn new(lapic: LocalApic, tsc_khz: u64) -> Timer {
        let mut timer = Timer { tsc_deadline: lapic.tsc_deadline, ratio: 0 };
        if !lapic.tsc_deadline {
            lapic::arm_one_shot(u32::MAX);
            let start = cpu::rdtsc();
            let first = lapic::remaining();
            while cpu::rdtsc().wrapping_sub(start) < tsc_khz * MEASURE_MS {
                core::hint::spin_loop();
            }
            // Counts and ticks are read again together: the loop may have been interrupted by an emulator's host.
            let counts = first.wrapping_sub(lapic::remaining());
            let ticks = cpu::rdtsc().wrapping_sub(start);
            lapic::arm_one_shot(0);
            timer.ratio = ratio(counts, ticks);
        }
        timer
    }

    /// Makes the timer of the PCPU that executes this interrupt with `vector`.
    pub fn install(&self, vector: u8) {
        lapic::select_timer(vector, self.tsc_deadline);
    }

    /// Interrupts when the TSC reaches `deadline`, or at once if it has. In one-shot mode the interrupt may come early,
    /// because the counter has 32 bits only: the caller compares the time and arms again.
    pub fn arm(&self, deadline: u64, now: u64) {
        if self.tsc_deadline {
            // SAFETY: the mode was selected by `install`. A deadline in the past fires at once; 0 would disarm.
            unsafe { lapic::arm_deadline(deadline.max(1)) };
        } else {
            lapic::arm_one_shot(self.counts(deadline.saturating_sub(now)));
        }
    }

    /// No interrupt until it is armed again.
    pub fn stop(&self) {
        if self.tsc_deadline {
            // SAFETY: the mode was selected by `install`.
            unsafe { lapic::arm_deadline(0) };
        } else {
            lapic::arm_one_shot(0);
        }
    }

    /// Counts of the one-shot mode that last at least `ticks`, as far as the counter reaches; never 0.
    fn counts(&self, ticks: u64) -> u32 {
        let whole = (u128::from(ticks) * u128::from(self.ratio)) >> FRACTION;
        u32::try_from(whole).unwrap_or(u32::MAX).saturating_add(1)
    }
}

/// Counts per tick as a fixed-point number.
fn ratio(counts: u32, ticks: u64) -> u64 {
    (u64::from(counts) << FRACTION) / ticks.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_counts() {
        // 1 GHz counter, 2.5 GHz TSC.
        let timer = Timer { tsc_deadline: false, ratio: ratio(10_000_000, 25_000_000) };
        assert_eq!(timer.counts(0), 1);
        assert_eq!(timer.counts(1), 1);
        assert_eq!(timer.counts(2_500_000), 1_000_000);
        assert_eq!(timer.counts(u64::MAX), u32::MAX);
        // A 100 MHz counter does not fire before its time.
        let slow = Timer { tsc_deadline: false, ratio: ratio(1_000_000, 25_000_000) };
        assert_eq!(slow.counts(26), 2);
        assert_eq!(ratio(u32::MAX, 0) >> FRACTION, u64::from(u32::MAX));
    }
}
