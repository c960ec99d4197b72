//! The I/O APIC (82093AA data sheet).

use super::insn::{peek, poke};

/// Its registers.
pub const PAGE: u64 = 0xfec0_0000;
/// Low half of an entry: masked.
pub const MASKED: u32 = 1 << 16;
/// Low half of an entry: level-triggered.
pub const LEVEL: u32 = 1 << 15;
/// Low half of an entry: the local APIC has accepted a level interrupt and not yet ended it.
pub const REMOTE_IRR: u32 = 1 << 14;

/// Reads a register by its index.
pub fn read(index: u32) -> u32 {
    poke(PAGE, index);
    peek(PAGE + 0x10)
}

/// Writes a register by its index.
pub fn write(index: u32, value: u32) {
    poke(PAGE, index);
    poke(PAGE + 0x10, value);
}

/// The low half of a pin's entry.
pub fn entry(pin: u32) -> u32 {
    read(0x10 + pin * 2)
}

/// Routes a pin to this processor: `low` is vector, delivery mode, polarity, trigger mode and mask.
pub fn route(pin: u32, low: u32) {
    write(0x10 + pin * 2, MASKED);
    write(0x11 + pin * 2, super::lapic::id() << 24);
    write(0x10 + pin * 2, low);
}

/// The number of pins.
pub fn pins() -> u32 {
    (read(1) >> 16 & 0xff) + 1
}

/// Masks all pins.
pub fn reset() {
    for pin in 0..pins() {
        write(0x10 + pin * 2, MASKED);
    }
}
