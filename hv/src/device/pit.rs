//! The 8254 programmable interval timer and system control port B, which drives its channel 2.
//!
//! Owned by [`super::chipset::Chipset`]. Channel 0 is the interrupt source of IRQ 0, channel 1 once timed DRAM
//! refresh, channel 2 is the speaker's, with its gate at port 0x61 bit 0 and its output at bit 5. Counting is in
//! [`counter`]; this file is the programmer's view: control words, byte order, latches and read-back (Intel 8254 data
//! sheet, "Programming the 8254").

mod counter;
#[cfg(test)]
mod tests;

use super::clock::Clock;
use super::effect::Line;
use super::{Nanos, lanes};
use counter::Counter;

/// The input clock.
pub const PIT_CLOCK: Clock = Clock::new(1_193_182);
/// The shortest time between two looks at a periodic output, in ticks (10 µs): a guest may program edges faster than it can
/// take interrupts, and the edges in between coalesce anyway.
const MIN_WAKE_TICKS: i64 = 12;

/// How a channel's 16-bit count passes the 8-bit port (the RW field of a control word).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteAccess {
    Low = 1,
    High = 2,
    LowThenHigh = 3,
}

#[derive(Clone, Copy, Debug)]
struct Channel {
    counter: Counter,
    access: ByteAccess,
    /// The low byte of a count whose high byte is still to be written.
    low_written: Option<u8>,
    /// The next read gives the high byte.
    read_high: bool,
    latched_count: Option<u16>,
    latched_status: Option<u8>,
}

/// The timer.
#[derive(Clone, Debug)]
pub struct Pit {
    channels: [Channel; 3],
    /// Port 0x61 bits 3:1: speaker data, parity check and channel check enables, which do nothing here.
    control_b: u8,
}

impl Default for Pit {
    fn default() -> Self {
        Pit::new()
    }
}

impl Pit {
    /// The timer at power-on: no channel counts until it is programmed.
    pub const fn new() -> Pit {
        const fn channel(gate: bool) -> Channel {
            Channel {
                counter: Counter::new(gate),
                access: ByteAccess::LowThenHigh,
                low_written: None,
                read_high: false,
                latched_count: None,
                latched_status: None,
            }
        }
        Pit { channels: [channel(true), channel(true), channel(false)], control_b: 0 }
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        *self = Pit::new();
    }

    /// Reads port 0x40 + `index`; the control word (3) cannot be read.
    pub fn read(&mut self, index: u16, now: Nanos) -> u8 {
        match self.channels.get_mut(usize::from(index)) {
            Some(channel) => channel.read(tick(now)),
            None => 0xff,
        }
    }

    /// Writes port 0x40 + `index`.
    pub fn write(&mut self, index: u16, value: u8, now: Nanos) {
        match self.channels.get_mut(usize::from(index)) {
            Some(channel) => channel.write(value, tick(now)),
            None => self.control(value, tick(now)),
        }
    }

    /// Reads port 0x61.
    pub fn read_control_b(&mut self, now: Nanos) -> u8 {
        let tick = tick(now);
        let speaker = &mut self.channels[2].counter;
        // A refresh request every 18 ticks (15 µs) toggles bit 4: delay loops watch it.
        u8::from(speaker.gate())
            | self.control_b
            | u8::from(tick / 18 % 2 != 0) << 4
            | u8::from(speaker.output(tick)) << 5
    }

    /// Writes port 0x61.
    pub fn write_control_b(&mut self, value: u8, now: Nanos) {
        self.control_b = value & 0x0e;
        self.channels[2].counter.set_gate(value & 1 != 0, tick(now));
    }

    /// The output of channel 0, which is IRQ 0.
    pub fn line(&mut self, now: Nanos) -> Line {
        let (counter, tick) = (&mut self.channels[0].counter, tick(now));
        Line { pulsed: counter.take_rise(tick), level: counter.output(tick) }
    }

    /// When [`Pit::line`] next rises.
    pub fn deadline(&self) -> Option<Nanos> {
        let counter = &self.channels[0].counter;
        // Channel 0 alone drives an interrupt: the others are computed when they are read.
        let mut tick = counter.next_rise()?;
        if counter.period().is_some_and(|period| period < MIN_WAKE_TICKS) {
            tick = tick.max(counter.seen() + MIN_WAKE_TICKS);
        }
        PIT_CLOCK.when(tick as u64)
    }

    /// A control word (port 0x43).
    fn control(&mut self, word: u8, tick: i64) {
        match self.channels.get_mut(usize::from(word >> 6)) {
            Some(channel) => channel.control(word, tick),
            None => {
                for (i, channel) in self.channels.iter_mut().enumerate() {
                    // The read-back command (data sheet, "Read-back command") names channels by bits 3:1.
                    if word & 2 << i != 0 {
                        channel.read_back(word & 0x20 == 0, word & 0x10 == 0, tick);
                    }
                }
            }
        }
    }
}

impl Channel {
    fn control(&mut self, word: u8, tick: i64) {
        self.access = match word >> 4 & 3 {
            0 => return self.read_back(true, false, tick),
            1 => ByteAccess::Low,
            2 => ByteAccess::High,
            _ => ByteAccess::LowThenHigh,
        };
        // A control word starts the byte sequence over; what is latched belongs to the old count.
        self.low_written = None;
        self.read_high = false;
        self.latched_count = None;
        self.latched_status = None;
        self.counter.set_mode(word >> 1 & 7, word & 1 != 0, tick);
    }

    /// Latches count and status; what is latched already stays until it is read.
    fn read_back(&mut self, count: bool, status: bool, tick: i64) {
        if count && self.latched_count.is_none() {
            self.latched_count = Some(self.counter.value(tick));
        }
        if status && self.latched_status.is_none() {
            let counter = &mut self.counter;
            self.latched_status = Some(
                u8::from(counter.output(tick)) << 7
                    | u8::from(counter.is_null(tick)) << 6
                    | (self.access as u8) << 4
                    | counter.mode() << 1
                    | u8::from(counter.bcd()),
            );
        }
    }

    fn read(&mut self, tick: i64) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        let count = match self.latched_count {
            Some(count) => count,
            None => self.counter.value(tick),
        };
        let high = match self.access {
            ByteAccess::Low => false,
            ByteAccess::High => true,
            ByteAccess::LowThenHigh => {
                self.read_high = !self.read_high;
                !self.read_high
            }
        };
        // A latched count holds until all of it is read, so that the two bytes belong together.
        if high || self.access == ByteAccess::Low {
            self.latched_count = None;
        }
        lanes::read(count.into(), high.into(), 1) as u8
    }

    fn write(&mut self, value: u8, tick: i64) {
        let count = match (self.access, self.low_written.take()) {
            (ByteAccess::Low, _) => u16::from(value),
            (ByteAccess::High, _) => u16::from(value) << 8,
            (ByteAccess::LowThenHigh, Some(low)) => u16::from_le_bytes([low, value]),
            (ByteAccess::LowThenHigh, None) => {
                self.low_written = Some(value);
                // Half a count starts nothing; in mode 0 it stops the counting.
                return self.counter.begin_write(tick);
            }
        };
        self.counter.write(count, tick);
    }
}

/// The tick of the input clock, which stays far below 2^63.
fn tick(now: Nanos) -> i64 {
    PIT_CLOCK.ticks(now) as i64
}

/// Drives a timer with arbitrary bytes: it must not panic, and no deadline may lie in the past.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut pit = Pit::new();
    let mut now = Nanos(0);
    while let Some(op) = input.byte() {
        now = input.later(now);
        match op % 8 {
            0 => drop(pit.read_control_b(now)),
            1 => pit.write_control_b(input.byte().unwrap_or(0), now),
            2..=4 => pit.write(u16::from(op >> 6), input.byte().unwrap_or(0), now),
            5 => drop(pit.read(u16::from(op >> 6), now)),
            6 => now = pit.deadline().unwrap_or(now),
            _ => pit.write(3, input.byte().unwrap_or(0), now),
        }
        pit.line(now);
        assert!(pit.deadline().is_none_or(|deadline| deadline > now));
    }
}
