//! The local vector table: what the local interrupt sources raise. The timer's entry is in [`super::timer`].
//!
//! Intel SDM 3, 11.5.1.

use super::{Lapic, Signal, esr};
use crate::device::message::DeliveryMode;

/// Delivery mode field.
pub(super) const MODE: u32 = 7 << 8;
/// Delivery mode: the 8259A supplies the vector.
pub(super) const EXT_INT: u32 = 7 << 8;
/// Delivery mode: NMI.
pub(super) const NMI: u32 = 4 << 8;
/// Delivery status: always idle.
pub(super) const BUSY: u32 = 1 << 12;
pub(super) const REMOTE_IRR: u32 = 1 << 14;
pub(super) const LEVEL: u32 = 1 << 15;
pub(super) const MASKED: u32 = 1 << 16;
pub(super) const TIMER_MODE: u32 = 3 << 17;
pub(super) const ONE_SHOT: u32 = 0;
pub(super) const PERIODIC: u32 = 1 << 17;
pub(super) const TSC_DEADLINE: u32 = 2 << 17;

/// The LVT entries other than the timer's. No thermal or performance events are raised: their entries are only
/// stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Thermal,
    Performance,
    Lint0,
    Lint1,
    Error,
}

/// Number of entries other than the timer's.
pub(super) const ENTRIES: usize = 5;

/// The two local interrupt pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lint {
    /// LINT0: the 8259A's output, on the boot processor.
    Lint0,
    /// LINT1: NMI.
    Lint1,
}

impl Lapic {
    pub(super) fn lvt(&self, entry: Entry) -> u32 {
        self.lvt[entry as usize]
    }

    /// A write of an entry, already stripped of the bits that do not exist or cannot be written.
    pub(super) fn set_lvt(&mut self, entry: Entry, value: u32) {
        // While software has disabled the APIC, mask bits cannot be cleared (SDM 3, 11.4.7.2).
        let forced = if self.software_enabled() { 0 } else { MASKED };
        // Remote IRR has no meaning for an edge, and an EOI would never clear it.
        let kept = if value & LEVEL != 0 { self.lvt(entry) & REMOTE_IRR } else { 0 };
        self.lvt[entry as usize] = value | forced | kept;
        // It may have been unmasked while its line is high: a level is not lost by having been masked.
        if entry == Entry::Lint0 {
            self.resend_lint0();
        }
    }

    /// The level at a local interrupt pin. Without a hardware-enabled APIC the pins are the processor's INTR
    /// and NMI.
    pub fn set_lint(&mut self, pin: Lint, asserted: bool) -> Signal {
        let line = &mut self.lint_lines[pin as usize];
        let rising = asserted && !*line;
        *line = asserted;
        // A level that stays is sent again by its EOI (`lint0_eoi`), an edge not at all.
        if !rising {
            return Signal::None;
        }
        match (pin, self.hardware_enabled()) {
            (Lint::Lint0, true) => self.raise(Entry::Lint0),
            (Lint::Lint1, true) => self.raise(Entry::Lint1),
            (Lint::Lint0, false) => Signal::ExtInt,
            (Lint::Lint1, false) => Signal::Nmi,
        }
    }

    /// The APIC lets the 8259A's interrupts through to the processor: LINT0 is an unmasked ExtINT, or the APIC
    /// is disabled by APIC_BASE. The run loop asks this when the 8259A's output is high.
    pub fn accepts_extint(&self) -> bool {
        !self.hardware_enabled() || self.lvt(Entry::Lint0) & (MASKED | MODE) == EXT_INT
    }

    /// The interrupt with this vector ended.
    pub(super) fn lint0_eoi(&mut self, vector: u8) {
        let entry = &mut self.lvt[Entry::Lint0 as usize];
        if *entry as u8 == vector && *entry & REMOTE_IRR != 0 {
            *entry &= !REMOTE_IRR;
            self.resend_lint0();
        }
    }

    fn resend_lint0(&mut self) {
        let level = self.lvt(Entry::Lint0) & (LEVEL | MODE) == LEVEL;
        if level && self.lint_lines[Lint::Lint0 as usize] {
            // A fixed interrupt: there is no signal besides the request bit.
            let _ = self.raise(Entry::Lint0);
        }
    }

    fn raise(&mut self, entry: Entry) -> Signal {
        let value = self.lvt(entry);
        if value & MASKED != 0 {
            return Signal::None;
        }
        match DeliveryMode::from_bits(value >> 8) {
            Some(DeliveryMode::Fixed) => {
                // Only LINT0 can be level-triggered.
                let level = entry == Entry::Lint0 && value & LEVEL != 0;
                if level && value & REMOTE_IRR != 0 {
                    return Signal::None;
                }
                if level {
                    self.lvt[entry as usize] |= REMOTE_IRR;
                }
                self.accept(value as u8, level);
                Signal::Interrupt
            }
            Some(DeliveryMode::Smi) => Signal::Smi,
            Some(DeliveryMode::Nmi) => Signal::Nmi,
            Some(DeliveryMode::Init) => Signal::Init,
            Some(DeliveryMode::ExtInt) => Signal::ExtInt,
            Some(DeliveryMode::LowestPriority | DeliveryMode::Startup) | None => Signal::None,
        }
    }

    /// Records an error. The first one since the ESR was written raises the error interrupt.
    pub(super) fn error(&mut self, bit: u32) {
        let armed = self.errors == 0;
        self.errors |= bit;
        let entry = self.lvt(Entry::Error);
        if armed && entry & MASKED == 0 {
            // An illegal vector here is an error as well; it is only recorded, or it would raise itself without end.
            if entry as u8 >= 16 {
                self.accept(entry as u8, false);
            } else {
                self.errors |= esr::RECEIVE_ILLEGAL_VECTOR;
            }
        }
    }
}
