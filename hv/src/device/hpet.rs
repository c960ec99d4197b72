//! The high precision event timer: a 64-bit counter of 10 ns ticks and three timers.
//!
//! Owned by [`super::chipset::Chipset`], which maps the registers and carries [`Hpet::outputs`] to the interrupt
//! controllers. All three timers are 64 bits wide and periodic-capable; there are no FSB (message) interrupts. Matches
//! are not simulated: each timer remembers up to which counter value it has been compared, and an access or a
//! tick compares the range that has passed since. Reference: IA-PC HPET specification 1.0a, chapter 2.3.

#[cfg(test)]
mod tests;
mod timer;

use super::clock::Clock;
use super::layout::{HPET_GSIS, PIT_IRQ, RTC_IRQ};
use super::{Nanos, lanes};
use timer::Timer;

/// The main counter's clock: 100 MHz.
pub const HPET_CLOCK: Clock = Clock::new(100_000_000);
/// The counter's period in femtoseconds, as the capabilities register gives it.
pub const HPET_PERIOD_FS: u32 = 10_000_000;
/// Low dword of the capabilities register, which is also the ACPI table's event timer block ID: revision 1,
/// three timers, 64-bit counter, legacy replacement routing.
pub const HPET_BLOCK_ID: u32 = 0x8086_a201;
/// The smallest period that software should program, in ticks (ACPI table): 10 µs.
pub const HPET_MIN_TICKS: u16 = 1000;
const TIMERS: usize = 3;

/// General configuration register.
const ENABLE: u64 = 1 << 0;
const LEGACY: u64 = 1 << 1;

/// What the timers drive: a bit per interrupt line. In legacy replacement mode lines 0 and 8 are the ISA IRQs that
/// the PIT and the RTC lose; the others are GSIs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Lines that are high.
    pub levels: u32,
    /// Lines that have pulsed since the last look.
    pub pulses: u32,
}

/// The timer block.
#[derive(Clone, Debug, Default)]
pub struct Hpet {
    config: u64,
    /// Main counter minus clock while enabled; the counter itself while halted.
    counter: u64,
    status: u64,
    timers: [Timer; TIMERS],
    /// The latest time looked at.
    seen: Nanos,
    pulses: u32,
}

impl Hpet {
    /// The block at power-on: halted, interrupts off.
    pub fn new() -> Hpet {
        Hpet::default()
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        *self = Hpet { seen: self.seen, ..Hpet::new() };
    }

    /// Whether timers 0 and 1 replace the PIT and the RTC at IRQ 0 and 8.
    pub fn is_legacy(&self) -> bool {
        self.config & LEGACY != 0
    }

    /// Reads `size` bytes (1, 2, 4 or 8) at `offset` in the register block.
    pub fn read(&mut self, offset: u64, size: u8, now: Nanos) -> u64 {
        let register = match offset & !7 {
            // The hot one: a clock source reads nothing else.
            0x0f0 => self.counter_at(self.seen.max(now)),
            other => {
                self.advance(now);
                self.register(other)
            }
        };
        match (size, offset & 7) {
            (8, 0) => register,
            (_, byte @ 0..4) => lanes::read(register as u32, byte as u32, size).into(),
            (_, byte) => lanes::read((register >> 32) as u32, byte as u32, size).into(),
        }
    }

    /// Writes `size` bytes at `offset`. As the specification demands accesses of 4 or 8 aligned bytes, others are
    /// ignored.
    pub fn write(&mut self, offset: u64, size: u8, value: u64, now: Nanos) {
        self.advance(now);
        let (value, mask) = match (size, offset & 7) {
            (8, 0) => (value, u64::MAX),
            (4, 0) => (value & 0xffff_ffff, 0xffff_ffff),
            (4, 4) => (value << 32, 0xffff_ffff << 32),
            _ => return,
        };
        match offset & !7 {
            0x010 => self.configure(self.config & !mask | value & mask),
            // Write 1 to clear (specification, 2.3.6). Edge-triggered timers leave their bits 0.
            0x020 => self.status &= !value,
            0x0f0 => {
                let counter = self.counter() & !mask | value;
                self.set_counter(counter);
            }
            timer => {
                let counter = self.counter();
                let Some((timer, index, register)) = self.timer(timer) else {
                    return;
                };
                match register {
                    0x00 => timer.configure(value, mask),
                    0x08 => timer.set_comparator(value, mask, counter),
                    _ => {}
                }
                // Its status bit would hold the line up for ever: with edges nothing clears it.
                if !timer.is_level() {
                    self.status &= !(1 << index);
                }
            }
        }
    }

    /// Brings the timers to `now` and says what they drive.
    pub fn outputs(&mut self, now: Nanos) -> Outputs {
        self.advance(now);
        let mut outputs = Outputs { levels: 0, pulses: core::mem::take(&mut self.pulses) };
        for (index, timer) in self.timers.iter().enumerate() {
            if self.status >> index & 1 != 0 && timer.is_enabled() {
                outputs.levels |= self.line(index);
            }
        }
        outputs
    }

    /// When a timer next drives its line.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.config & ENABLE == 0 {
            return None;
        }
        let tick = HPET_CLOCK.ticks(self.seen);
        let wait = (0..TIMERS).filter_map(|index| {
            let timer = &self.timers[index];
            let asserted = timer.is_level() && self.status >> index & 1 != 0;
            let silent = !timer.is_enabled() || asserted || self.line(index) == 0;
            let wait = timer.ticks_to_match(self.counter())?;
            // Matches that follow each other too fast coalesce: no guest could take that many interrupts, and each costs the host.
            let floods = timer.is_periodic() && timer.period() < HPET_MIN_TICKS.into();
            let wait = if floods { wait.max(HPET_MIN_TICKS.into()) } else { wait };
            (!silent).then_some(wait)
        });
        HPET_CLOCK.when(tick.checked_add(wait.min()?)?)
    }

    fn register(&mut self, offset: u64) -> u64 {
        match offset {
            0x000 => u64::from(HPET_PERIOD_FS) << 32 | u64::from(HPET_BLOCK_ID),
            0x010 => self.config,
            0x020 => self.status,
            timer => match self.timer(timer) {
                Some((timer, _, 0x00)) => timer.config(),
                Some((timer, _, 0x08)) => timer.comparator(),
                _ => 0,
            },
        }
    }

    /// The timer that holds a register, its number, and the register's offset in it.
    fn timer(&mut self, offset: u64) -> Option<(&mut Timer, usize, u64)> {
        let index = usize::try_from(offset.checked_sub(0x100)? / 0x20).ok()?;
        Some((self.timers.get_mut(index)?, index, offset % 0x20))
    }

    /// The main counter at the latest time looked at.
    fn counter(&self) -> u64 {
        self.counter_at(self.seen)
    }

    fn counter_at(&self, now: Nanos) -> u64 {
        match self.config & ENABLE {
            0 => self.counter,
            _ => self.counter.wrapping_add(HPET_CLOCK.ticks(now)),
        }
    }

    fn set_counter(&mut self, counter: u64) {
        let enabled = self.config & ENABLE != 0;
        let origin = if enabled { HPET_CLOCK.ticks(self.seen) } else { 0 };
        self.counter = counter.wrapping_sub(origin);
        // What lies between the old and the new value has not been passed, and must match nothing.
        for timer in &mut self.timers {
            timer.compare_from(counter);
        }
    }

    fn configure(&mut self, config: u64) {
        let counter = self.counter();
        // A halted counter keeps its value: its origin is computed again.
        self.config = config & (ENABLE | LEGACY);
        self.set_counter(counter);
    }

    /// Compares everything that the counter has passed since the last time.
    fn advance(&mut self, now: Nanos) {
        self.seen = self.seen.max(now);
        if self.config & ENABLE == 0 {
            return;
        }
        let counter = self.counter();
        for index in 0..TIMERS {
            let timer = &mut self.timers[index];
            if !timer.advance(counter) {
                continue;
            }
            if timer.is_level() {
                self.status |= 1 << index;
            } else if timer.is_enabled() {
                self.pulses |= self.line(index);
            }
        }
    }

    /// The line that a timer drives, as a mask.
    fn line(&self, index: usize) -> u32 {
        match index {
            // Legacy replacement overrides the timer's own route (specification, 2.3.8).
            0 if self.is_legacy() => 1 << PIT_IRQ,
            1 if self.is_legacy() => 1 << RTC_IRQ,
            // A route that the capabilities do not offer drives nothing.
            _ => 1 << self.timers[index].route() & HPET_GSIS,
        }
    }
}

/// Drives a block with arbitrary bytes: it must not panic, and no deadline may lie in the past.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut hpet = Hpet::new();
    let mut now = Nanos(0);
    while let Some(op) = input.byte() {
        now = input.later(now);
        let offset = u64::from(op & 0x3f) * 4 + if op & 0x40 != 0 { 0x100 } else { 0 };
        let size = 1 << (input.byte().unwrap_or(0) & 3);
        if op & 0x80 != 0 {
            hpet.write(offset, size, input.u64(), now);
        } else {
            let value = hpet.read(offset, size, now);
            assert!(size == 8 || value >> (8 * size) == 0);
        }
        if op == 0 {
            now = hpet.deadline().unwrap_or(now);
        }
        let outputs = hpet.outputs(now);
        assert_eq!((outputs.levels | outputs.pulses) & !(HPET_GSIS | 1 << PIT_IRQ | 1 << RTC_IRQ), 0);
        assert!(hpet.deadline().is_none_or(|deadline| deadline > now));
    }
}
