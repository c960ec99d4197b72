//! Sending inter-processor interrupts: the interrupt command register.
//!
//! Intel SDM 3, 11.6.1 and 11.12.9–10.

use super::{Lapic, LapicEffect, esr};
use crate::device::message::{DeliveryMode, InterruptMessage, Shorthand};

/// Bits of the lower half that can be written: vector, delivery and destination mode, level, trigger mode,
/// shorthand.
pub(super) const WRITABLE: u32 = 0x000c_cfff;
/// Delivery status: always idle.
pub(super) const BUSY: u32 = 1 << 12;

const LOGICAL: u32 = 1 << 11;
const ASSERT: u32 = 1 << 14;
const LEVEL: u32 = 1 << 15;

impl Lapic {
    /// Sends what the lower half of the ICR says to a widened destination.
    ///
    /// Combinations that the manual calls invalid send nothing. The trigger mode matters for INIT only: the
    /// INIT level de-assert of old processors is accepted and does nothing.
    pub(super) fn send_ipi(&mut self, command: u32, dest: u32) -> LapicEffect {
        let Some(mode) = DeliveryMode::from_bits(command >> 8) else { return LapicEffect::None };
        let shorthand = match command >> 18 & 3 {
            0 => Shorthand::None,
            1 => Shorthand::Myself,
            2 => Shorthand::All,
            _ => Shorthand::Others,
        };
        let vector = command as u8;
        match (mode, shorthand) {
            // Reserved in the ICR (SDM 3, 11.6.1): the 8259A alone has a vector for it.
            (DeliveryMode::ExtInt, _) => return LapicEffect::None,
            // The most frequent one: no routing is needed for the own APIC.
            (DeliveryMode::Fixed, Shorthand::Myself) => return self.send_to_self(vector),
            (DeliveryMode::Fixed, _) | (_, Shorthand::None | Shorthand::Others) => {}
            // SDM 3, table 11-3: with a shorthand that includes the sender only fixed is valid.
            (_, Shorthand::Myself | Shorthand::All) => return LapicEffect::None,
        }
        if mode.has_vector() && vector < 16 {
            self.error(esr::SEND_ILLEGAL_VECTOR);
            return LapicEffect::None;
        }
        if mode == DeliveryMode::Init && command & (LEVEL | ASSERT) == LEVEL {
            return LapicEffect::None;
        }
        let logical = command & LOGICAL != 0;
        LapicEffect::Ipi(InterruptMessage { vector, mode, dest, logical, level: false, shorthand })
    }

    /// A fixed IPI to this APIC.
    pub(super) fn send_to_self(&mut self, vector: u8) -> LapicEffect {
        if vector < 16 {
            self.error(esr::SEND_ILLEGAL_VECTOR);
        } else {
            self.accept(vector, false);
        }
        LapicEffect::None
    }
}
