//! The bus for memory-mapped devices: IOAPIC, HPET, PCI configuration space, the BARs of virtio devices, and the test
//! device's memory.

use super::super::effect::Effect;
use super::super::layout::{ECAM, HPET, IOAPIC, TEST_MEMORY};
use super::super::message::Messages;
use super::super::pci::Pci;
use super::super::{Nanos, lanes};
use super::Chipset;
use crate::arch::addr::Gpa;

/// The device at a guest-physical address that is not RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmioDevice {
    /// The I/O APIC
    IoApic,
    /// The high precision event timer
    Hpet,
    /// PCI configuration space
    Ecam,
    /// The BAR of this virtio device
    Virtio(u8),
    /// The test device's memory
    Test,
}

impl Chipset {
    /// The device at this address and the offset in its window.
    #[inline]
    pub fn mmio_lookup(&self, gpa: Gpa) -> Option<(MmioDevice, u64)> {
        let windows = [(IOAPIC, MmioDevice::IoApic), (HPET, MmioDevice::Hpet), (ECAM, MmioDevice::Ecam)];
        windows
            .into_iter()
            .find(|(window, _)| window.contains(&gpa.0))
            .map(|(window, device)| (device, gpa.0 - window.start))
            .or_else(|| self.virtio.lookup(gpa).map(|(slot, offset)| (MmioDevice::Virtio(slot), offset)))
            .or_else(|| {
                let is_there = self.test.is_some() && TEST_MEMORY.contains(&gpa.0);
                is_there.then(|| (MmioDevice::Test, gpa.0 - TEST_MEMORY.start))
            })
    }

    /// Reads `size` bytes (1, 2, 4 or 8). Where no device answers, all bits are ones.
    pub fn mmio_read(&mut self, gpa: Gpa, size: u8, now: Nanos, messages: &mut Messages) -> u64 {
        match self.mmio_lookup(gpa) {
            Some((MmioDevice::IoApic, offset)) => {
                // Registers of 32 bits, 16 bytes apart: what lies between reads as zeros.
                let register = self.ioapic.read(offset & !3);
                if size == 8 { register.into() } else { lanes::read(register, offset as u32, size).into() }
            }
            Some((MmioDevice::Hpet, offset)) => self.hpet.read(offset, size, now),
            Some((MmioDevice::Ecam, offset)) => {
                self.before_config_read(Pci::ecam_place(offset), messages);
                self.pci.read_ecam(offset, size)
            }
            Some((MmioDevice::Virtio(slot), offset)) => self.virtio_read(slot, offset, size, messages),
            Some((MmioDevice::Test, offset)) => {
                self.test.as_ref().map_or(u64::MAX, |test| test.read_memory(offset, size))
            }
            None => {
                self.unclaimed.mmio = self.unclaimed.mmio.saturating_add(1);
                u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8)))
            }
        }
    }

    /// Writes `size` bytes (1, 2, 4 or 8).
    pub fn mmio_write(
        &mut self,
        gpa: Gpa,
        size: u8,
        value: u64,
        now: Nanos,
        messages: &mut Messages,
    ) -> Effect {
        match self.mmio_lookup(gpa) {
            // Narrow writes set the register too: the rest of it reads as zeros.
            Some((MmioDevice::IoApic, offset)) => {
                self.ioapic.write(offset, value as u32 & lanes::size_mask(size), messages);
            }
            Some((MmioDevice::Hpet, offset)) => {
                self.hpet.write(offset, size, value, now);
                self.hpet_changed(now, messages);
            }
            Some((MmioDevice::Ecam, offset)) => {
                self.pci.write_ecam(offset, size, value);
                return self.after_config_write(Pci::ecam_place(offset), messages);
            }
            Some((MmioDevice::Virtio(slot), offset)) => {
                return self.virtio_write(slot, offset, size, value, messages);
            }
            Some((MmioDevice::Test, offset)) => {
                if let Some(test) = &mut self.test {
                    test.write_memory(offset, size, value);
                }
            }
            None => self.unclaimed.mmio = self.unclaimed.mmio.saturating_add(1),
        }
        Effect::None
    }
}
