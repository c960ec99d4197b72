//! The test device: how small test kernels end a run, and probe the bus, the interrupt lines and the hypervisor's tables.
//!
//! Owned by [`super::chipset::Chipset`], which offers it only if the configuration asks for it: a guest must not have
//! it by accident. Addresses are in [`super::layout`]. It answers as QEMU's `pc-testdev` (hw/misc/pc-testdev.c) and
//! `isa-debug-exit` do, so that kernels made for those run unchanged:
//!
//! | where | what |
//! |---|---|
//! | 0xe0, 0xe8 | one latch of four bytes, at two places |
//! | 0xe4 | a dword written drops the hypervisor's translations of the page at that address; its contents stay |
//! | 0xf4 to 0xf7 | a write ends the run |
//! | 0x2000 + n | a byte drives interrupt line n |
//! | 0xff000000 | 64 KiB of device memory: each access exits, and reads return what was written |
//!
//! Of its own it has port 0x2018 (a dword takes the page at that address away for good) and the lines 16 to 23.
//!
//! On QEMU an access of more than a byte to a line, or one that is not aligned, does something on KVM and nothing on
//! TCG; here it does what it does on KVM. Registers that can only be written read as zero, as there.

use alloc::boxed::Box;
use alloc::vec;

use super::effect::Effect;
use super::lanes;
use super::layout::{
    GSI_COUNT, TEST_EXIT, TEST_FLUSH, TEST_IRQ, TEST_LATCH, TEST_LATCH_BYTES, TEST_MEMORY, TEST_UNMAP,
};
use crate::arch::addr::{Gpa, PAGE_SIZE};

/// Bytes of device memory.
const MEMORY_BYTES: usize = (TEST_MEMORY.end - TEST_MEMORY.start) as usize;

/// What is at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Register {
    Exit,
    /// The latch, from this byte on.
    Latch(u32),
    Flush,
    Unmap,
    /// The interrupt lines, from this one on.
    Line(u8),
}

impl Register {
    const fn at(port: u16) -> Option<Register> {
        // Not a match: ranges whose bounds are sums are no patterns.
        if port.wrapping_sub(TEST_LATCH) < 4 {
            Some(Register::Latch((port - TEST_LATCH) as u32))
        } else if port.wrapping_sub(TEST_LATCH_BYTES) < 4 {
            Some(Register::Latch((port - TEST_LATCH_BYTES) as u32))
        } else if port.wrapping_sub(TEST_FLUSH) < 4 {
            Some(Register::Flush)
        } else if port.wrapping_sub(TEST_EXIT) < 4 {
            Some(Register::Exit)
        } else if port.wrapping_sub(TEST_IRQ) < GSI_COUNT as u16 {
            Some(Register::Line((port - TEST_IRQ) as u8))
        } else if port.wrapping_sub(TEST_UNMAP) < 4 {
            Some(Register::Unmap)
        } else {
            None
        }
    }
}

/// The device.
#[derive(Clone, Debug)]
pub struct TestDevice {
    latch: u32,
    lines: u32,
    memory: Box<[u8]>,
}

impl TestDevice {
    /// The device at power-on; takes 64 KiB of the heap.
    pub fn new() -> TestDevice {
        TestDevice { latch: 0, lines: 0, memory: vec![0; MEMORY_BYTES].into_boxed_slice() }
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        self.latch = 0;
        self.lines = 0;
        self.memory.fill(0);
    }

    /// Whether `port` is one of the device's.
    pub const fn owns(port: u16) -> bool {
        Register::at(port).is_some()
    }

    /// Reads `size` bytes (1, 2 or 4).
    pub fn read(&self, port: u16, size: u8) -> u32 {
        match Register::at(port) {
            Some(Register::Latch(byte)) => lanes::read(self.latch, byte, size),
            _ => 0,
        }
    }

    /// Writes `size` bytes (1, 2 or 4).
    pub fn write(&mut self, port: u16, size: u8, value: u32) -> Effect {
        let value = value & lanes::size_mask(size);
        let page = Gpa(value.into()).align_down(PAGE_SIZE);
        match Register::at(port) {
            Some(Register::Exit) => return Effect::TestExit(value),
            Some(Register::Flush) if port == TEST_FLUSH && size == 4 => return Effect::FlushPage(page),
            Some(Register::Unmap) if port == TEST_UNMAP && size == 4 => return Effect::UnmapPage(page),
            Some(Register::Latch(byte)) => self.latch = lanes::merge(self.latch, value, byte, size),
            Some(Register::Line(first)) => {
                for (line, byte) in (first..GSI_COUNT).zip(value.to_le_bytes().iter().take(size.into())) {
                    let bit = 1 << line;
                    self.lines = if *byte != 0 { self.lines | bit } else { self.lines & !bit };
                }
            }
            Some(Register::Flush | Register::Unmap) | None => {}
        }
        Effect::None
    }

    /// Reads `size` bytes (1 to 8) of the device memory from `offset` on; ones beyond its end.
    pub fn read_memory(&self, offset: u64, size: u8) -> u64 {
        let byte = |i: u8| {
            let at = usize::try_from(offset.checked_add(i.into())?).ok()?;
            self.memory.get(at).copied()
        };
        (0..size.min(8)).fold(0, |value, i| value | u64::from(byte(i).unwrap_or(0xff)) << (8 * i))
    }

    /// Writes the low `size` bytes (1 to 8) of `value` to the device memory; what lies beyond its end is dropped.
    pub fn write_memory(&mut self, offset: u64, size: u8, value: u64) {
        let Some(to) = usize::try_from(offset).ok().and_then(|offset| self.memory.get_mut(offset..)) else {
            return;
        };
        for (to, byte) in to.iter_mut().zip(value.to_le_bytes()).take(size.into()) {
            *to = byte;
        }
    }

    /// The interrupt lines that are raised, a bit each.
    pub fn lines(&self) -> u32 {
        self.lines
    }
}

impl Default for TestDevice {
    fn default() -> Self {
        TestDevice::new()
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
        assert_eq!(device.write(TEST_EXIT + 3, 1, 9), Effect::TestExit(9), "isa-debug-exit has four ports");
        assert_eq!(device.read(TEST_EXIT, 1), 0);
    }

    #[test]
    fn latch_reads_back_in_any_width_at_both_places() {
        let mut device = TestDevice::new();
        assert_eq!(device.write(TEST_LATCH, 4, 0x4433_2211), Effect::None);
        assert_eq!(device.read(TEST_LATCH, 1), 0x11);
        assert_eq!(device.read(TEST_LATCH + 2, 2), 0x4433);
        assert_eq!(device.write(TEST_LATCH + 1, 1, 0xaa), Effect::None);
        assert_eq!(device.read(TEST_LATCH, 4), 0x4433_aa11);
        assert_eq!(device.read(TEST_LATCH_BYTES, 4), 0x4433_aa11);
        assert_eq!(device.write(TEST_LATCH_BYTES + 2, 2, 0x8877), Effect::None);
        assert_eq!(device.read(TEST_LATCH, 4), 0x8877_aa11);
    }

    #[test]
    fn pages_are_flushed_or_taken_away_by_dwords_alone() {
        let mut device = TestDevice::new();
        assert_eq!(device.write(TEST_FLUSH, 4, 0x1234_5678), Effect::FlushPage(Gpa(0x1234_5000)));
        assert_eq!(device.write(TEST_UNMAP, 4, 0xfee0_1234), Effect::UnmapPage(Gpa(0xfee0_1000)));
        for port in [TEST_FLUSH, TEST_UNMAP] {
            assert_eq!(device.write(port, 2, 0x5678), Effect::None);
            assert_eq!(device.write(port + 1, 4, 0x5678), Effect::None);
            assert_eq!(device.read(port, 4), 0);
        }
    }

    #[test]
    fn bytes_drive_lines() {
        let mut device = TestDevice::new();
        assert_eq!(device.write(TEST_IRQ + 14, 1, 1), Effect::None);
        assert_eq!(device.write(TEST_IRQ + 23, 1, 0x80), Effect::None);
        assert_eq!(device.lines(), 1 << 14 | 1 << 23);
        assert_eq!(device.write(TEST_IRQ + 14, 1, 0), Effect::None);
        assert_eq!(device.lines(), 1 << 23);
        assert_eq!(device.write(TEST_IRQ + 4, 4, 0x0100_0001), Effect::None);
        assert_eq!(device.lines(), 1 << 4 | 1 << 7 | 1 << 23);
        assert_eq!(device.write(TEST_IRQ + 22, 4, 0x0101_0001), Effect::None, "there are no lines beyond 23");
        assert_eq!(device.lines(), 1 << 4 | 1 << 7 | 1 << 22);
        assert_eq!(device.read(TEST_IRQ + 4, 1), 0);
        assert_eq!((0..=u16::MAX).filter(|&port| TestDevice::owns(port)).count(), 2 * 4 + 4 + 4 + 24 + 4);
    }

    #[test]
    fn memory_keeps_what_was_written() {
        let mut device = TestDevice::new();
        let end = MEMORY_BYTES as u64;
        device.write_memory(0x123, 8, 0x8877_6655_4433_2211);
        assert_eq!(device.read_memory(0x123, 8), 0x8877_6655_4433_2211);
        assert_eq!(device.read_memory(0x126, 2), 0x5544);
        device.write_memory(0x124, 1, 0xffff_ffaa);
        assert_eq!(device.read_memory(0x122, 4), 0x33aa_1100);
        device.write_memory(end - 2, 4, 0x4433_2211);
        assert_eq!(device.read_memory(end - 2, 4), 0xffff_2211);
        device.write_memory(u64::MAX, 8, 0);
        assert_eq!(device.read_memory(u64::MAX, 2), 0xffff);
        device.reset();
        assert_eq!(device.read_memory(end - 2, 2), 0);
    }
}
