//! The clock of a lab machine: one time for all PCPUs, made of the cycles that each of them has been charged by the model.
//!
//! A PCPU's own time is its cycle counter plus a base. The machine's time is the latest that any PCPU has read, and that is what all of them
//! read. So no reading is before an earlier one, on whichever PCPU, and a VCPU that migrates needs nothing. A PCPU that is behind
//! reads the same time again and again until it has caught up: PCPUs of a lab machine execute by turns, as the host lets their threads
//! run, and if each turn counted, time would pass as often as there are PCPUs. Only one that is farther behind than the lab machine
//! lets processors be moves its base up, as if it had waited. On one PCPU the clock is the counter. A halted PCPU is charged nothing
//! and adds nothing; while all of them are halted, time passes as on the host's clock. One that another PCPU wakes is not halted any
//! more. If the counter of a PCPU stops, the whole machine goes on by the host's clock, from the time reached, for good.
//!
//! Hardware-free: counters and the host's TSC are arguments. `vmm::lab_time` reads them; docs/design/0020-modelled-time.md.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use spin::Mutex;

/// This many readings in a row at which a PCPU's counter has not moved mean that it has stopped. Between two readings the PCPU
/// executes instructions, each of which is a cycle.
const STOPPED_AFTER: u32 = 256;

/// A PCPU may be behind by this many cycles: by as much as the lab machine lets it, and again as much, because that looks at times only,
/// and has little patience.
const LAG: u64 = 2 * abi::lab::PACE_WINDOW;

/// Timers that are farther away than this are armed for 7/8 of what is left, because the rate of the model is a guess: in µs.
const NEAR_US: u64 = 10;

/// By how much a timer may be late if the model turns as fast as it ever was, in µs. A timer that is armed for less than is left
/// costs interrupts: these are the two sides.
const LATE_US: u64 = 1000;

/// Rates are measured over this much modelled time at least, in µs.
const MEASURE_US: u64 = 50;

/// What a PCPU reads at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Its modelled cycles, of guests and of the host.
    pub cycles: u64,
    /// The host's TSC.
    pub tsc: u64,
}

/// A ratio with 32 fractional bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ratio(u64);

impl Ratio {
    const fn new(numerator: u64, denominator: u64) -> Ratio {
        let ratio = ((numerator as u128) << 32) / if denominator == 0 { 1 } else { denominator as u128 };
        Ratio(if ratio > u64::MAX as u128 { u64::MAX } else { ratio as u64 })
    }

    const fn of(self, value: u64) -> u64 {
        let product = (value as u128 * self.0 as u128) >> 32;
        if product > u64::MAX as u128 { u64::MAX } else { product as u64 }
    }
}

/// The part that only one PCPU writes. A line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part {
    /// Its time minus its cycles, modulo 2^64.
    base: AtomicU64,
    /// The cycles at the last reading, and how many readings in a row had the same.
    last: AtomicU64,
    silent: AtomicU32,
    /// Where the rate is measured from: the machine's time, and the host's TSC. 0: from nowhere since it was halted.
    rate_from: AtomicU64,
    rate_from_tsc: AtomicU64,
    /// Host ticks for a modelled cycle while it executes, as [`Ratio`]s: of late, and the least, which rises slowly.
    rate: AtomicU64,
    least: AtomicU64,
}

/// Which PCPUs execute.
#[derive(Debug)]
struct Activity {
    busy: u32,
    /// The host's TSC when the last one was halted.
    since: u64,
    states: Box<[State]>,
}

/// What a PCPU does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Busy,
    /// An interrupt is on its way to it, since it has last looked whether there is something to do.
    Kicked,
    Halted,
    /// It is halted, and an interrupt is on its way to it. It counts as busy.
    Woken,
}

/// The clock. Its frequency is the modelled processor's.
#[derive(Debug)]
pub struct ModelledClock {
    khz: u64,
    /// [`NEAR_US`], [`LATE_US`] and [`MEASURE_US`] in cycles.
    near: u64,
    late: u64,
    measured: u64,
    /// Modelled ticks for a host tick, and the reverse, while nothing executes.
    from_host: Ratio,
    to_host: Ratio,
    /// The latest time that was read.
    latest: AtomicU64,
    /// The host's clock is used, from this time at TSC 0 on (modulo 2^64).
    is_plain: AtomicBool,
    plain_base: AtomicU64,
    /// It has been reported.
    is_reported: AtomicBool,
    activity: Mutex<Activity>,
    parts: Box<[Part]>,
}

/// The clock as one PCPU reads it.
#[derive(Clone, Copy, Debug)]
pub struct PcpuClock<'a> {
    clock: &'a ModelledClock,
    part: &'a Part,
}

impl PcpuClock<'_> {
    /// As [`ModelledClock::now`], by the PCPU itself. The host's TSC is mostly not asked for.
    #[inline]
    pub fn now(&self, cycles: u64, tsc: impl FnOnce() -> u64) -> u64 {
        self.clock.now_by(self.part, cycles, tsc)
    }

    /// As [`ModelledClock::resume`], by the PCPU itself, which is `pcpu`.
    #[inline]
    pub fn resume(&self, pcpu: usize, cycles: u64, tsc: impl FnOnce() -> u64) {
        self.clock.set_busy(pcpu, tsc);
        self.clock.begin_at(self.part, cycles);
    }

    /// For when to arm the host's timer, in its TSC, so that it interrupts about when the time is `deadline`; rather early than
    /// late, and then it is to be armed again. `tsc`: the host's now; the PCPU has just read the time. `is_halted`: it will be halted
    /// meanwhile.
    #[inline]
    pub fn host_deadline(&self, tsc: u64, deadline: u64, is_halted: bool) -> u64 {
        self.clock.host_deadline(self.part, tsc, deadline, is_halted)
    }
}

impl ModelledClock {
    /// A clock for `pcpus` processors of `khz` by the model, on a host whose TSC has `host_khz`. Its time begins at the host's
    /// TSC, `now`. No PCPU is busy; each calls [`ModelledClock::resume`] when it begins.
    pub fn new(pcpus: usize, khz: u64, host_khz: u64, now: u64) -> ModelledClock {
        let to_host = Ratio::new(host_khz, khz);
        let part =
            |_| Part { rate: AtomicU64::new(to_host.0), least: AtomicU64::new(u64::MAX), ..Part::default() };
        ModelledClock {
            khz,
            near: khz * NEAR_US / 1000,
            late: khz * LATE_US / 1000,
            measured: khz * MEASURE_US / 1000,
            from_host: Ratio::new(khz, host_khz),
            to_host,
            latest: AtomicU64::new(now),
            is_plain: AtomicBool::new(false),
            plain_base: AtomicU64::new(0),
            is_reported: AtomicBool::new(false),
            activity: Mutex::new(Activity {
                busy: 0,
                since: now,
                states: core::iter::repeat_n(State::Halted, pcpus).collect(),
            }),
            parts: (0..pcpus).map(part).collect(),
        }
    }

    /// Its frequency.
    pub fn khz(&self) -> u64 {
        self.khz
    }

    /// The time, read on PCPU `pcpu`, which executes this. Never before what any PCPU has read.
    #[inline]
    pub fn now(&self, pcpu: usize, at: Reading) -> u64 {
        match self.parts.get(pcpu) {
            Some(part) => self.now_by(part, at.cycles, || at.tsc),
            None => self.plain(at.tsc),
        }
    }

    /// The clock as PCPU `pcpu` reads it, if it has that many.
    pub fn of(&self, pcpu: usize) -> Option<PcpuClock<'_>> {
        Some(PcpuClock { clock: self, part: self.parts.get(pcpu)? })
    }

    #[inline]
    fn now_by(&self, part: &Part, cycles: u64, tsc: impl FnOnce() -> u64) -> u64 {
        if self.is_plain.load(Ordering::Acquire) {
            return self.plain(tsc());
        }
        // The PCPU has executed instructions since, each of which takes a cycle: a counter that works has moved.
        if part.last.load(Ordering::Relaxed) == cycles {
            return self.silent(part, Reading { cycles, tsc: tsc() });
        }
        part.last.store(cycles, Ordering::Relaxed);
        part.silent.store(0, Ordering::Relaxed);
        self.publish(part, cycles)
    }

    /// The time by this PCPU's counter, or a later one that another has read.
    #[inline]
    fn publish(&self, part: &Part, cycles: u64) -> u64 {
        let own = part.base.load(Ordering::Relaxed).wrapping_add(cycles);
        // Acquire and release: a PCPU that has seen a time in memory and reads the clock then reads no earlier one.
        let latest = self.latest.fetch_max(own, Ordering::AcqRel);
        if latest <= own {
            return own;
        }
        if latest - own > LAG {
            // It was halted or kept from running. It does not have to make up for all of that.
            part.base.store((latest - LAG).wrapping_sub(cycles), Ordering::Relaxed);
        }
        latest
    }

    /// The counter did not move since the last reading.
    #[cold]
    fn silent(&self, part: &Part, at: Reading) -> u64 {
        let silent = part.silent.load(Ordering::Relaxed).saturating_add(1);
        part.silent.store(silent, Ordering::Relaxed);
        if silent < STOPPED_AFTER {
            return self.publish(part, at.cycles);
        }
        self.go_plain(at.tsc);
        self.plain(at.tsc)
    }

    /// From now on the host's clock.
    #[cold]
    pub fn go_plain(&self, tsc: u64) {
        let _one_at_a_time = self.activity.lock();
        if !self.is_plain.load(Ordering::Relaxed) {
            let latest = self.latest.load(Ordering::Relaxed);
            self.plain_base.store(latest.wrapping_sub(self.from_host.of(tsc)), Ordering::Relaxed);
            self.is_plain.store(true, Ordering::Release);
        }
    }

    /// The time by the host's clock. The maximum is kept: others may still read by their counters, and TSCs of PCPUs may differ.
    #[cold]
    fn plain(&self, tsc: u64) -> u64 {
        let own = self.plain_base.load(Ordering::Relaxed).wrapping_add(self.from_host.of(tsc));
        self.latest.fetch_max(own, Ordering::AcqRel).max(own)
    }

    /// Whether a counter has stopped and that was not reported yet: true once.
    pub fn take_failure(&self) -> bool {
        self.is_plain.load(Ordering::Relaxed) && !self.is_reported.swap(true, Ordering::Relaxed)
    }

    /// PCPU `pcpu`, which executes this, is about to look a last time whether there is something to do before it is halted.
    pub fn look(&self, pcpu: usize) {
        let mut activity = self.activity.lock();
        if let Some(state @ State::Kicked) = activity.states.get_mut(pcpu) {
            *state = State::Busy;
        }
    }

    /// PCPU `pcpu`, which executes this, is about to be halted. One that was kicked since its last look will be interrupted at once.
    pub fn halt(&self, pcpu: usize, at: Reading) {
        self.now(pcpu, at);
        let mut activity = self.activity.lock();
        if let Some(state) = activity.states.get_mut(pcpu) {
            if *state == State::Kicked {
                *state = State::Woken;
                return;
            }
            *state = State::Halted;
        }
        activity.busy = activity.busy.saturating_sub(1);
        if activity.busy == 0 {
            activity.since = at.tsc;
        }
    }

    /// Another PCPU is about to send PCPU `pcpu` an interrupt. If that one is halted, it counts as busy from now on: how long the
    /// host takes to wake the thread behind it is no time of the machine's.
    pub fn wake(&self, pcpu: usize) {
        let mut activity = self.activity.lock();
        let Some(state) = activity.states.get_mut(pcpu) else { return };
        match state {
            State::Busy => *state = State::Kicked,
            State::Halted => {
                *state = State::Woken;
                activity.busy += 1;
            }
            State::Kicked | State::Woken => {}
        }
    }

    /// PCPU `pcpu`, which executes this, was halted, or begins.
    pub fn resume(&self, pcpu: usize, at: Reading) {
        self.set_busy(pcpu, || at.tsc);
        if let Some(part) = self.parts.get(pcpu) {
            self.begin_at(part, at.cycles);
        }
    }

    #[inline]
    fn set_busy(&self, pcpu: usize, tsc: impl FnOnce() -> u64) {
        let mut activity = self.activity.lock();
        if activity.busy == 0 && !self.is_plain.load(Ordering::Relaxed) {
            // TSCs of PCPUs may differ by a little.
            let passed = self.from_host.of(tsc().saturating_sub(activity.since));
            self.latest.fetch_add(passed, Ordering::AcqRel);
        }
        let was = activity.states.get_mut(pcpu).map(|state| core::mem::replace(state, State::Busy));
        if was != Some(State::Woken) {
            activity.busy += 1;
        }
    }

    /// What a PCPU was charged before is no time of this clock.
    #[inline]
    fn begin_at(&self, part: &Part, cycles: u64) {
        let latest = self.latest.load(Ordering::Acquire);
        part.base.store(latest.wrapping_sub(cycles), Ordering::Relaxed);
        part.rate_from_tsc.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn host_deadline(&self, part: &Part, tsc: u64, deadline: u64, is_halted: bool) -> u64 {
        let is_plain = self.is_plain.load(Ordering::Relaxed);
        let now = if is_plain { self.plain(tsc) } else { self.latest.load(Ordering::Relaxed) };
        let left = deadline.saturating_sub(now);
        if is_halted || is_plain {
            return tsc.saturating_add(self.to_host.of(left));
        }
        let (rate, least) = self.measure(part, now, tsc);
        let most = least.of(left.saturating_add(self.late));
        let left = if left > self.near { left - left / 8 } else { left };
        tsc.saturating_add(rate.of(left).min(most).max(1))
    }

    /// Host ticks for a modelled cycle: half of what was known, and half of what has been since they were measured last; and the
    /// least that they were.
    fn measure(&self, part: &Part, now: u64, tsc: u64) -> (Ratio, Ratio) {
        let (mut rate, mut least) = (part.rate.load(Ordering::Relaxed), part.least.load(Ordering::Relaxed));
        let last_tsc = part.rate_from_tsc.load(Ordering::Relaxed);
        if last_tsc != 0 {
            let cycles = now.saturating_sub(part.rate_from.load(Ordering::Relaxed));
            if cycles < self.measured {
                return (Ratio(rate), Ratio(least));
            }
            let ticks = tsc.saturating_sub(last_tsc);
            if ticks > 0 {
                // The bounds keep a timer alive whatever happened meanwhile.
                let (slowest, fastest) =
                    (self.to_host.0.saturating_mul(256).max(1), (self.to_host.0 >> 8).max(1));
                let measured = Ratio::new(ticks, cycles).0.clamp(fastest, slowest);
                rate = rate / 2 + measured / 2;
                // So slowly that the last tenths of a second count.
                least = least.saturating_add(least >> 12).min(measured);
                part.rate.store(rate, Ordering::Relaxed);
                part.least.store(least, Ordering::Relaxed);
            }
        }
        part.rate_from.store(now, Ordering::Relaxed);
        part.rate_from_tsc.store(tsc, Ordering::Relaxed);
        (Ratio(rate), Ratio(least))
    }
}

#[cfg(test)]
#[path = "modelled_tests.rs"]
mod tests;
