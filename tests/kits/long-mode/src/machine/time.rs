//! Time: the TSC, whose rate is measured against the ACPI PM timer.

use super::Cell;
use super::insn::{inl, rdtsc};

/// The ACPI PM timer, where both machines have it.
pub const PM_TIMER: u16 = 0x608;
/// Its rate.
pub const PM_HZ: u64 = 3_579_545;

static TSC_HZ: Cell<u64> = Cell::new(0);

/// TSC ticks per second.
pub fn tsc_hz() -> u64 {
    if TSC_HZ.get() == 0 {
        TSC_HZ.set(measure(50, PM_HZ, 0xff_ffff, || u64::from(inl(PM_TIMER))));
    }
    TSC_HZ.get()
}

/// TSC ticks in `n` microseconds.
pub fn micros(n: u64) -> u64 {
    tsc_hz() * n / 1_000_000
}

/// The TSC's rate by a counter of rate `hz` that counts up modulo `mask + 1`, over about `millis`.
pub fn measure(millis: u64, hz: u64, mask: u64, counter: impl Fn() -> u64) -> u64 {
    let (tsc0, value0) = sample(&counter);
    let need = hz * millis / 1000;
    loop {
        let (tsc, value) = sample(&counter);
        let ticks = value.wrapping_sub(value0) & mask;
        if ticks >= need {
            return ((u128::from(tsc - tsc0) * u128::from(hz)) / u128::from(ticks)) as u64;
        }
    }
}

/// A reading of a counter and the TSC at that moment: the tightest of some.
pub fn sample(counter: &impl Fn() -> u64) -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..8 {
        let before = rdtsc();
        let value = counter();
        let after = rdtsc();
        if after - before < best.0 {
            best = (after - before, before + (after - before) / 2, value);
        }
    }
    (best.1, best.2)
}

/// Waits until `done`, at most `millis`; whether it came.
pub fn wait(millis: u64, done: impl Fn() -> bool) -> bool {
    let end = rdtsc() + micros(millis * 1000);
    while !done() {
        if rdtsc() > end {
            return done();
        }
        core::hint::spin_loop();
    }
    true
}
