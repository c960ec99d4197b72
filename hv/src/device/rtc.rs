//! The MC146818 real-time clock with its battery-backed memory.
//!
//! Owned by [`super::chipset::Chipset`]. The time is a number of seconds plus the updates that the divider chain has
//! made since; the time registers exist as bytes only while a guest has stopped the clock to set it. Interrupts (IRQ
//! 8): periodic, alarm, update ended. Reference: Motorola MC146818A data sheet; the century byte and the memory sizes
//! are where PC firmware keeps them. The daylight-saving switch, the square wave and other crystals than
//! 32.768 kHz are not there.

mod alarm;
mod calendar;
#[cfg(test)]
mod tests;

use super::Nanos;
use super::clock::Clock;
use super::effect::Line;
use alarm::Alarm;
use calendar::DateTime;

const CRYSTAL: Clock = Clock::new(32_768);
const SECOND_NS: u64 = 1_000_000_000;
/// UIP is set from 244 µs before an update cycle, which takes 1984 µs, to its end (data sheet, "Update cycle").
const UPDATE_NS: u64 = 244_000 + 1_984_000;

/// Registers.
const SECOND: u8 = 0x00;
const SECOND_ALARM: u8 = 0x01;
const MINUTE: u8 = 0x02;
const MINUTE_ALARM: u8 = 0x03;
const HOUR: u8 = 0x04;
const HOUR_ALARM: u8 = 0x05;
const WEEKDAY: u8 = 0x06;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const REG_A: u8 = 0x0a;
const REG_B: u8 = 0x0b;
const REG_C: u8 = 0x0c;
const REG_D: u8 = 0x0d;
/// The byte that holds the century; the ACPI FADT names it.
pub const CENTURY: u8 = 0x32;

/// Register A.
const UPDATE_IN_PROGRESS: u8 = 1 << 7;
const DIVIDER_RESET: u8 = 0x60;
const RATE: u8 = 0x0f;
/// Register B.
const SET: u8 = 1 << 7;
const SQUARE_WAVE: u8 = 1 << 3;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;
/// Registers B (enables) and C (flags).
const PERIODIC: u8 = 1 << 6;
const ALARM: u8 = 1 << 5;
const UPDATE: u8 = 1 << 4;
const INTERRUPTS: u8 = PERIODIC | ALARM | UPDATE;
const IRQ: u8 = 1 << 7;

/// The clock.
#[derive(Clone, Debug)]
pub struct Rtc {
    index: u8,
    /// Time registers while the clock is stopped, alarm registers, and memory from 0x0e on.
    bytes: [u8; 128],
    a: u8,
    b: u8,
    flags: u8,
    /// Seconds since 1970 when the divider chain read zero, while the clock runs.
    base: i64,
    /// What the divider chain is ahead of the VM's time: it makes a second full when `now + phase` does.
    phase: u64,
    /// The latest time looked at.
    seen: Nanos,
}

impl Rtc {
    /// A clock that reads `epoch_s` seconds since 1970 (UTC) at time 0 and whose memory tells of `low_bytes` of RAM
    /// below 4 GiB and `high_bytes` above.
    pub fn new(epoch_s: i64, low_bytes: u64, high_bytes: u64) -> Rtc {
        let mut rtc = Rtc {
            index: 0,
            bytes: [0; 128],
            a: 0x26,
            b: HOURS_24,
            flags: 0,
            base: epoch_s.clamp(0, MAX_EPOCH_S),
            phase: 0,
            seen: Nanos(0),
        };
        rtc.describe_memory(low_bytes, high_bytes);
        rtc
    }

    /// The machine's reset line: interrupts off. Time and memory live on their battery.
    pub fn reset(&mut self) {
        self.index = 0;
        // RESET clears the enables and nothing of time and memory (data sheet, "Reset").
        self.b &= !(INTERRUPTS | SQUARE_WAVE);
        self.flags = 0;
    }

    /// Reads port 0x70 (`offset` 0), which is write-only, or 0x71.
    pub fn read(&mut self, offset: u16, now: Nanos) -> u8 {
        if offset == 0 {
            return 0xff;
        }
        self.advance(now);
        match self.index {
            REG_A => self.a | if self.is_updating() { UPDATE_IN_PROGRESS } else { 0 },
            REG_B => self.b,
            REG_C => self.irq_flag() | core::mem::take(&mut self.flags),
            REG_D => 0x80, // the battery is good
            register if is_time(register) && !self.is_stopped() => self.time_byte(register),
            register => self.bytes[usize::from(register)],
        }
    }

    /// Writes port 0x70 or 0x71. Bit 7 of the index, which masks NMIs on a PC, is ignored.
    pub fn write(&mut self, offset: u16, value: u8, now: Nanos) {
        if offset == 0 {
            self.index = value & 0x7f;
            return;
        }
        self.advance(now);
        match self.index {
            REG_A => self.change(value & !UPDATE_IN_PROGRESS, self.b),
            // SET clears the update-ended enable (data sheet, "Register B").
            REG_B if value & SET != 0 => self.change(self.a, value & !UPDATE),
            REG_B => self.change(self.a, value),
            REG_C | REG_D => {}
            // Written without SET: the one field changes, and the time goes on from there.
            register if is_time(register) && !self.is_stopped() => {
                self.stop();
                self.bytes[usize::from(register)] = value;
                self.start();
            }
            register => self.bytes[usize::from(register)] = value,
        }
    }

    /// The interrupt output, IRQ 8.
    pub fn line(&mut self, now: Nanos) -> Line {
        self.advance(now);
        Line { level: self.irq_flag() != 0, pulsed: false }
    }

    /// When [`Rtc::line`] next rises.
    pub fn deadline(&self) -> Option<Nanos> {
        // The line is high until register C is read.
        if self.irq_flag() != 0 {
            return None;
        }
        let chain = self.chain();
        let periodic = self
            .period_ticks()
            .filter(|_| self.b & PERIODIC != 0)
            .and_then(|period| CRYSTAL.when((CRYSTAL.ticks(Nanos(chain)) / period + 1).checked_mul(period)?));
        let wanted = |interrupt: u8| !self.is_stopped() && self.b & interrupt != 0;
        let updates =
            |count: u64| Some(Nanos((chain / SECOND_NS).checked_add(count)?.checked_mul(SECOND_NS)?));
        let update = if wanted(UPDATE) { updates(1) } else { None };
        let alarm = if wanted(ALARM) { self.updates_to_alarm().and_then(updates) } else { None };
        let next = [periodic, update, alarm].into_iter().flatten().min()?;
        Some(Nanos(next.0 - self.phase))
    }

    /// Sets the flags of everything that happened until `now`.
    fn advance(&mut self, now: Nanos) {
        let before = self.chain();
        let after = now.max(self.seen).0.saturating_add(self.phase);
        if let Some(period) = self.period_ticks() {
            let cycles = |chain| CRYSTAL.ticks(Nanos(chain)) / period;
            self.flags |= if cycles(after) != cycles(before) { PERIODIC } else { 0 };
        }
        let updates = after / SECOND_NS - before / SECOND_NS;
        if updates != 0 && !self.is_stopped() {
            self.flags |= UPDATE;
            self.flags |= if self.updates_to_alarm().is_some_and(|wait| wait <= updates) { ALARM } else { 0 };
        }
        self.seen = self.seen.max(now);
    }

    /// Changes registers A and B, which may stop or start the clock.
    fn change(&mut self, a: u8, b: u8) {
        let was_stopped = self.is_stopped();
        let restarts = self.a & DIVIDER_RESET == DIVIDER_RESET && a & DIVIDER_RESET != DIVIDER_RESET;
        if !was_stopped && stops(a, b) {
            self.stop();
        }
        self.a = a;
        self.b = b;
        if restarts {
            // The first update comes half a second after the divider's reset ends (data sheet, "Divider control").
            self.phase = (SECOND_NS + SECOND_NS / 2 - self.seen.0 % SECOND_NS) % SECOND_NS;
        }
        if was_stopped && !self.is_stopped() {
            self.start();
        }
    }

    /// Puts the time into the registers.
    fn stop(&mut self) {
        for register in TIME {
            self.bytes[usize::from(register)] = self.time_byte(register);
        }
    }

    /// Goes on from the time in the registers.
    fn start(&mut self) {
        let byte = |register: u8| self.decode(self.bytes[usize::from(register)]);
        let date = DateTime {
            year: byte(CENTURY) * 100 + byte(YEAR),
            month: byte(MONTH),
            day: byte(DAY),
            hour: self.decode_hour(self.bytes[usize::from(HOUR)]),
            minute: byte(MINUTE),
            second: byte(SECOND),
            weekday: 0,
        };
        self.base = date.seconds() - self.updates();
    }

    /// The clock is stopped: it is being set, or its divider is held in reset.
    fn is_stopped(&self) -> bool {
        stops(self.a, self.b)
    }

    fn is_updating(&self) -> bool {
        !self.is_stopped() && SECOND_NS - self.chain() % SECOND_NS <= UPDATE_NS
    }

    fn irq_flag(&self) -> u8 {
        if self.flags & self.b & INTERRUPTS != 0 { IRQ } else { 0 }
    }

    /// The divider chain in nanoseconds.
    fn chain(&self) -> u64 {
        self.seen.0.saturating_add(self.phase)
    }

    /// Updates that the chain has made.
    fn updates(&self) -> i64 {
        (self.chain() / SECOND_NS) as i64
    }

    fn seconds(&self) -> i64 {
        self.base + self.updates()
    }

    /// Crystal ticks between periodic interrupts, if there are any (data sheet, table 5).
    fn period_ticks(&self) -> Option<u64> {
        match self.a & RATE {
            _ if self.a & DIVIDER_RESET == DIVIDER_RESET => None,
            0 => None,
            rate @ 1..3 => Some(128 << (rate - 1)),
            rate => Some(1 << (rate - 1)),
        }
    }

    /// Updates until the alarm goes off.
    fn updates_to_alarm(&self) -> Option<u64> {
        // The two top bits of an alarm byte make it match anything.
        let byte = |register: u8| Some(self.bytes[usize::from(register)]).filter(|byte| byte & 0xc0 != 0xc0);
        let alarm = Alarm {
            hour: byte(HOUR_ALARM).map(|hour| self.decode_hour(hour)),
            minute: byte(MINUTE_ALARM).map(|minute| self.decode(minute)),
            second: byte(SECOND_ALARM).map(|second| self.decode(second)),
        };
        let next_update = (self.seconds() + 1).rem_euclid(86_400);
        alarm.wait(next_update).map(|wait| wait as u64 + 1)
    }

    fn time_byte(&self, register: u8) -> u8 {
        let date = DateTime::from_seconds(self.seconds());
        let value = match register {
            SECOND => date.second,
            MINUTE => date.minute,
            HOUR if self.b & HOURS_24 != 0 => date.hour,
            HOUR => {
                let afternoon = if date.hour >= 12 { 0x80 } else { 0 };
                return afternoon | self.encode((date.hour + 11) % 12 + 1);
            }
            WEEKDAY => date.weekday,
            DAY => date.day,
            MONTH => date.month,
            YEAR => date.year.rem_euclid(100),
            _ => date.year.div_euclid(100).rem_euclid(100),
        };
        self.encode(value)
    }

    /// A number below 100 in the data mode of register B.
    fn encode(&self, value: i64) -> u8 {
        let value = value as u8;
        if self.b & BINARY != 0 { value } else { (value / 10) << 4 | (value % 10) }
    }

    fn decode(&self, byte: u8) -> i64 {
        if self.b & BINARY != 0 { byte.into() } else { i64::from(byte >> 4) * 10 + i64::from(byte & 15) }
    }

    fn decode_hour(&self, byte: u8) -> i64 {
        if self.b & HOURS_24 != 0 {
            return self.decode(byte);
        }
        let afternoon = if byte & 0x80 != 0 { 12 } else { 0 };
        self.decode(byte & 0x7f) % 12 + afternoon
    }

    /// Memory sizes as PC firmware leaves them.
    fn describe_memory(&mut self, low_bytes: u64, high_bytes: u64) {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        let mut put = |register: usize, bytes: &[u8]| {
            self.bytes[register..register + bytes.len()].copy_from_slice(bytes);
        };
        let kib = |from: u64| (low_bytes.saturating_sub(from) / KIB).min(0xffff) as u16;
        let chunks = (low_bytes.saturating_sub(16 * MIB) / (64 * KIB)).min(0xffff) as u16;
        let high_chunks = (high_bytes / (64 * KIB)).min(0xff_ffff) as u32;
        put(0x14, &[0x02]); // equipment: coprocessor, no floppy, no keyboard
        put(0x15, &640_u16.to_le_bytes());
        put(0x17, &kib(MIB).to_le_bytes());
        put(0x30, &kib(MIB).to_le_bytes());
        put(0x34, &chunks.to_le_bytes());
        put(0x5b, &high_chunks.to_le_bytes()[..3]);
        let sum: u16 = self.bytes[0x10..0x2e].iter().map(|&byte| u16::from(byte)).sum();
        self.bytes[0x2e..0x30].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The last second of the year 9999.
const MAX_EPOCH_S: i64 = 253_402_300_799;
const TIME: [u8; 8] = [SECOND, MINUTE, HOUR, WEEKDAY, DAY, MONTH, YEAR, CENTURY];

/// Whether these values of registers A and B stop the clock.
fn stops(a: u8, b: u8) -> bool {
    b & SET != 0 || a & DIVIDER_RESET == DIVIDER_RESET
}

fn is_time(register: u8) -> bool {
    TIME.contains(&register)
}

/// Drives a clock with arbitrary bytes: it must not panic, and no deadline may lie in the past.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut rtc = Rtc::new(input.u64() as i64, input.u64(), input.u64());
    let mut now = Nanos(0);
    while let Some(op) = input.byte() {
        now = input.later(now);
        match op & 3 {
            0 => drop(rtc.read(1, now)),
            1 => rtc.write(1, input.byte().unwrap_or(0), now),
            2 => rtc.write(0, op >> 2, now),
            _ if op == 0xff => now = rtc.deadline().unwrap_or(now),
            _ => rtc.write(0, op >> 4, now),
        }
        rtc.line(now);
        assert!(rtc.deadline().is_none_or(|deadline| deadline > now));
    }
}
