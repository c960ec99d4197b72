//! MSI-X: which message each interrupt sends, and what waits behind a mask.
//!
//! The table and the pending bits lie in the function's BAR; the capability's enable and mask bits in its configuration
//! space, from where [`super::Virtio::configure`] brings them. PCI 3.0, 6.8.2.

use arrayvec::ArrayVec;

use crate::device::lanes;
use crate::device::message::{InterruptMessage, Messages};

/// Vectors of each function: enough for the configuration and each queue.
pub const VECTORS: usize = 4;
/// Bytes of the table.
pub const TABLE_BYTES: u64 = 16 * VECTORS as u64;
/// "No vector" in registers of the device.
pub const NO_VECTOR: u16 = 0xffff;

/// Vector control: masked.
const MASKED: u32 = 1;

/// A table with its pending bits.
#[derive(Clone, Debug)]
pub(super) struct Msix {
    /// Address, upper address, data and vector control of each vector.
    table: ArrayVec<[u32; 4], VECTORS>,
    pending: u32,
    enabled: bool,
    all_masked: bool,
}

impl Msix {
    /// After reset: disabled, everything masked.
    pub(super) fn new() -> Msix {
        let table = [[0, 0, 0, MASKED]; VECTORS];
        Msix { table: table.into(), pending: 0, enabled: false, all_masked: false }
    }

    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The capability's bits have been written.
    pub(super) fn configure(&mut self, enabled: bool, all_masked: bool, messages: &mut Messages) {
        (self.enabled, self.all_masked) = (enabled, all_masked);
        self.send_pending(messages);
    }

    /// The vector that a driver's choice stands for: [`NO_VECTOR`] if there is none of that number.
    pub(super) fn vector(choice: u16) -> u16 {
        if usize::from(choice) < VECTORS { choice } else { NO_VECTOR }
    }

    /// Sends the message of `vector`, or keeps it until it is unmasked.
    pub(super) fn send(&mut self, vector: u16, messages: &mut Messages) {
        if usize::from(vector) < VECTORS {
            // By way of the pending bits in any case: a masked vector waits there, and several that wait are one.
            self.pending |= 1 << vector;
            self.send_pending(messages);
        }
    }

    /// Whether messages wait that nothing masks: there was no room for them.
    pub(super) fn is_late(&self) -> bool {
        (0..VECTORS).any(|vector| self.is_due(vector))
    }

    fn is_due(&self, vector: usize) -> bool {
        let masked = self.all_masked || self.table[vector][3] & MASKED != 0;
        self.pending >> vector & 1 != 0 && self.enabled && !masked
    }

    pub(super) fn send_pending(&mut self, messages: &mut Messages) {
        if self.pending == 0 {
            return;
        }
        for vector in 0..VECTORS {
            if self.is_due(vector) {
                let [low, high, data, _] = self.table[vector];
                let message = InterruptMessage::from_msi(u64::from(high) << 32 | u64::from(low), data);
                // An address outside of the interrupt range would be a write to memory; the message is dropped, as there
                // is no interrupt in it.
                if message.is_none_or(|message| messages.push(message)) {
                    self.pending &= !(1 << vector);
                }
            }
        }
    }

    /// Reads a dword of the table.
    pub(super) fn read(&self, offset: u64) -> u32 {
        let entry = self.table.get((offset / 16) as usize);
        entry.map_or(0, |entry| entry[(offset / 4 % 4) as usize])
    }

    /// Writes part of a dword of the table.
    pub(super) fn write(&mut self, offset: u64, size: u8, value: u32, messages: &mut Messages) {
        if let Some(entry) = self.table.get_mut((offset / 16) as usize) {
            let dword = &mut entry[(offset / 4 % 4) as usize];
            *dword = lanes::merge(*dword, value, offset as u32, size);
            self.send_pending(messages);
        }
    }

    /// Reads the pending bits.
    pub(super) fn pending(&self) -> u32 {
        self.pending
    }
}
