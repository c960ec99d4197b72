//! The I/O APIC: 24 pins that turn lines into interrupt messages.
//!
//! The bus calls it for accesses to its page, when a device's line changes, and when a local APIC ends
//! a level-triggered interrupt. Version 0x20: the 82093AA's registers plus an EOI register.
//!
//! What must hold: a level-triggered pin has at most one message under way (remote IRR), and sends another one
//! after its EOI if the line is still asserted; edges on a masked pin are lost. Lines are logical levels
//! ("asserted"), so the polarity bit is only stored.
//!
//! 82093AA data sheet, 3.0–3.2; version 0x20: Intel ICH data sheets, "APIC EOI register".

#[cfg(any(test, feature = "testing"))]
mod fuzz;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;

use super::message::{DeliveryMode, InterruptMessage, Messages, Shorthand, widen_dest};

/// Number of pins.
pub const PINS: usize = 24;

const IOREGSEL: u64 = 0x00;
const IOWIN: u64 = 0x10;
const EOIR: u64 = 0x40;

const REG_ID: u8 = 0;
const REG_VERSION: u8 = 1;
const REG_ARBITRATION: u8 = 2;
const REG_TABLE: u8 = 0x10;

const VERSION: u32 = (PINS as u32 - 1) << 16 | 0x20;

/// A redirection table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Redirection(u64);

impl Redirection {
    const REMOTE_IRR: u64 = 1 << 14;
    const LEVEL: u64 = 1 << 15;
    const MASKED: u64 = 1 << 16;
    /// Vector, delivery mode, destination mode, polarity, trigger mode, mask; destination.
    const WRITABLE: u64 = 0xff00_0000_0001_afff;
    const RESET: Redirection = Redirection(Self::MASKED);

    const fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    const fn vector(self) -> u8 {
        self.0 as u8
    }

    const fn mode(self) -> Option<DeliveryMode> {
        match DeliveryMode::from_bits((self.0 >> 8) as u32) {
            // Reserved in a redirection entry (82093AA data sheet, 3.2.4).
            Some(DeliveryMode::Startup) => None,
            mode => mode,
        }
    }

    /// Only messages that carry a vector can be level-triggered: the others get no EOI.
    fn is_level(self) -> bool {
        self.has(Self::LEVEL) && self.mode().is_some_and(DeliveryMode::has_vector)
    }

    fn message(self) -> Option<InterruptMessage> {
        Some(InterruptMessage {
            vector: self.vector(),
            mode: self.mode()?,
            dest: widen_dest((self.0 >> 56) as u8),
            logical: self.has(1 << 11),
            level: self.is_level(),
            shorthand: Shorthand::None,
        })
    }
}

/// The I/O APIC.
#[derive(Clone, Debug)]
pub struct IoApic {
    select: u8,
    id: u32,
    /// One bit per pin: the line is asserted.
    lines: u32,
    table: [Redirection; PINS],
}

impl IoApic {
    /// After reset: all pins masked. `id` is the initial value of the ID register, 0 to 15.
    pub const fn new(id: u8) -> IoApic {
        IoApic { select: 0, id: (id as u32 & 15) << 24, lines: 0, table: [Redirection::RESET; PINS] }
    }

    /// A read of 32 bits at this offset in the I/O APIC's page; 0 where there is no register.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            IOREGSEL => self.select.into(),
            IOWIN => match self.select {
                REG_ID | REG_ARBITRATION => self.id,
                REG_VERSION => VERSION,
                select => match self.pin_of(select) {
                    Some((pin, high)) => (self.table[pin].0 >> if high { 32 } else { 0 }) as u32,
                    None => 0,
                },
            },
            _ => 0,
        }
    }

    /// A write of 32 bits at this offset; ignored where there is no register.
    pub fn write(&mut self, offset: u64, value: u32, messages: &mut Messages) {
        match offset {
            IOREGSEL => self.select = value as u8,
            IOWIN if self.select == REG_ID => self.id = value & 0x0f00_0000,
            IOWIN => {
                if let Some((pin, high)) = self.pin_of(self.select) {
                    self.write_entry(pin, high, value, messages);
                }
            }
            // For guests that suppress the local APIC's EOI broadcast (SVR bit 12) and end a pin's interrupt by
            // themselves.
            EOIR => self.eoi(value as u8, messages),
            _ => {}
        }
    }

    /// The line of this pin is (de)asserted; pins from 24 up do not exist and are ignored.
    pub fn set_line(&mut self, pin: u8, asserted: bool, messages: &mut Messages) {
        if usize::from(pin) >= PINS {
            return;
        }
        let bit = 1 << pin;
        let rising = asserted && self.lines & bit == 0;
        self.lines = if asserted { self.lines | bit } else { self.lines & !bit };
        // While a level stays high, its EOI sends it again; and a falling edge sends nothing.
        if rising {
            self.send(pin.into(), messages);
        }
    }

    /// A local APIC ended the level-triggered interrupt with this vector.
    pub fn eoi(&mut self, vector: u8, messages: &mut Messages) {
        for pin in 0..PINS {
            let entry = &mut self.table[pin];
            // By vector, as the broadcast carries nothing else: several pins may share one.
            if entry.vector() == vector && entry.has(Redirection::REMOTE_IRR) {
                entry.0 &= !Redirection::REMOTE_IRR;
                self.send_level(pin, messages);
            }
        }
    }

    /// The pin, and whether its upper half, that register `select` shows.
    fn pin_of(&self, select: u8) -> Option<(usize, bool)> {
        let index = usize::from(select.checked_sub(REG_TABLE)?);
        (index / 2 < PINS).then_some((index / 2, index % 2 == 1))
    }

    fn write_entry(&mut self, pin: usize, high: bool, value: u32, messages: &mut Messages) {
        let half = if high { 0xffff_ffff_0000_0000 } else { 0xffff_ffff };
        let written = if high { (value as u64) << 32 } else { value as u64 };
        let mask = half & Redirection::WRITABLE;
        let entry = &mut self.table[pin];
        entry.0 = entry.0 & !mask | written & mask;
        if !entry.is_level() {
            // The usual way to get rid of a stuck remote IRR is to switch the pin to edge and back.
            entry.0 &= !Redirection::REMOTE_IRR;
        }
        self.send_level(pin, messages);
    }

    /// Sends again for a level-triggered pin whose line is still asserted.
    fn send_level(&mut self, pin: usize, messages: &mut Messages) {
        if self.table[pin].is_level() && self.lines & 1 << pin != 0 {
            self.send(pin, messages);
        }
    }

    fn send(&mut self, pin: usize, messages: &mut Messages) {
        let entry = &mut self.table[pin];
        // An edge is lost on a masked pin; a level is still there when the pin is unmasked (`write_entry`).
        if entry.has(Redirection::MASKED | Redirection::REMOTE_IRR) {
            return;
        }
        let Some(message) = entry.message() else { return };
        // Without room no remote IRR is set: it would wait for an EOI that never comes.
        if messages.push(message) && message.level {
            entry.0 |= Redirection::REMOTE_IRR;
        }
    }
}
