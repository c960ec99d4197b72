//! The test device: how small test kernels end a run, and probe the bus and the interrupt lines.
//!
//! Owned by [`super::chipset::Chipset`], which offers it only if the configuration asks for it: a guest must not have
//! it by accident. Ports in [`super::layout`]: one ends the run with a value, four bytes are a latch that reads back
//! in any width, one unmaps a page of guest memory, and 24 drive the interrupt lines.

use super::effect::Effect;
use super::lanes;
use super::layout::{GSI_COUNT, TEST_EXIT, TEST_IRQ, TEST_LATCH, TEST_UNMAP};
use crate::arch::addr::{Gpa, PAGE_SIZE};

/// The device.
#[derive(Clone, Debug, Default)]
pub struct TestDevice {
    latch: u32,
    lines: u32,
}

impl TestDevice {
    /// The device at power-on.
    pub const fn new() -> TestDevice {
        TestDevice { latch: 0, lines: 0 }
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        *self = TestDevice::new();
    }

    /// Whether `port` is one of the device's.
    pub const fn owns(port: u16) -> bool {
        port == TEST_EXIT
            || port == TEST_UNMAP
            || port.wrapping_sub(TEST_LATCH) < 4
            || port.wrapping_sub(TEST_IRQ) < GSI_COUNT as u16
    }

    /// Reads `size` bytes (1, 2 or 4) of the latch; the other ports read as ones.
    pub fn read(&self, port: u16, size: u8) -> u32 {
        match port.wrapping_sub(TEST_LATCH) {
            offset @ 0..4 => lanes::read(self.latch, offset.into(), size),
            _ => lanes::size_mask(size),
        }
    }

    /// Writes `size` bytes.
    pub fn write(&mut self, port: u16, size: u8, value: u32) -> Effect {
        let value = value & lanes::size_mask(size);
        match port {
            TEST_EXIT => return Effect::TestExit(value),
            TEST_UNMAP => return Effect::UnmapPage(Gpa(value.into()).align_down(PAGE_SIZE)),
            _ => {}
        }
        if let offset @ 0..4 = port.wrapping_sub(TEST_LATCH) {
            self.latch = lanes::merge(self.latch, value, offset.into(), size);
        } else if let Some(bit) = 1_u32.checked_shl(port.wrapping_sub(TEST_IRQ).into()) {
            self.lines = if value != 0 { self.lines | bit } else { self.lines & !bit };
        }
        Effect::None
    }

    /// The interrupt lines that are raised, a bit each.
    pub fn lines(&self) -> u32 {
        self.lines & ((1 << GSI_COUNT) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_the_run_with_the_value_written() {
        let mut device = TestDevice::new();
        assert_eq!(device.write(TEST_EXIT, 1, 0x1_0203), Effect::TestExit(3));
        assert_eq!(device.write(TEST_EXIT, 2, 0x1_0203), Effect::TestExit(0x203));
        assert_eq!(device.write(TEST_EXIT, 4, 0x1_0203), Effect::TestExit(0x1_0203));
    }

    #[test]
    fn latch_reads_back_in_any_width() {
        let mut device = TestDevice::new();
        assert_eq!(device.write(TEST_LATCH, 4, 0x4433_2211), Effect::None);
        assert_eq!(device.read(TEST_LATCH, 1), 0x11);
        assert_eq!(device.read(TEST_LATCH + 2, 2), 0x4433);
        assert_eq!(device.write(TEST_LATCH + 1, 1, 0xaa), Effect::None);
        assert_eq!(device.read(TEST_LATCH, 4), 0x4433_aa11);
    }

    #[test]
    fn unmaps_pages_and_drives_lines() {
        let mut device = TestDevice::new();
        assert_eq!(device.write(TEST_UNMAP, 4, 0xfee0_1234), Effect::UnmapPage(Gpa(0xfee0_1000)));
        assert_eq!(device.write(TEST_IRQ + 14, 1, 1), Effect::None);
        assert_eq!(device.write(TEST_IRQ + 23, 4, 0x100), Effect::None);
        assert_eq!(device.lines(), 1 << 14 | 1 << 23);
        assert_eq!(device.write(TEST_IRQ + 14, 1, 0), Effect::None);
        assert_eq!(device.lines(), 1 << 23);
        assert_eq!(device.read(TEST_IRQ + 23, 2), 0xffff);
        assert_eq!((0..=u16::MAX).filter(|&port| TestDevice::owns(port)).count(), 1 + 4 + 1 + 24);
    }
}
