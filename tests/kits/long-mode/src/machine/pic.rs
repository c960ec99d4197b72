//! The pair of 8259A interrupt controllers.

use super::insn::{inb, outb};

/// The first vector after [`set_up`].
pub const BASE: u8 = 0x30;

/// Initializes both: vectors from [`BASE`], every line masked, normal EOI.
pub fn set_up() {
    for (port, value) in [
        (0x20, 0x11),
        (0xa0, 0x11),
        (0x21, BASE),
        (0xa1, BASE + 8),
        (0x21, 4),
        (0xa1, 2),
        (0x21, 1),
        (0xa1, 1),
    ] {
        outb(port, value);
    }
    set_mask(0xffff);
}

/// Sets the mask of the 16 lines.
pub fn set_mask(mask: u16) {
    outb(0x21, mask as u8);
    outb(0xa1, (mask >> 8) as u8);
}

/// Ends the interrupt of a vector from [`BASE`].
pub fn eoi(vector: u64) {
    if vector >= u64::from(BASE) + 8 {
        outb(0xa0, 0x20);
    }
    outb(0x20, 0x20);
}

/// The interrupt request register of the master.
pub fn requests() -> u8 {
    outb(0x20, 0x0a);
    inb(0x20)
}

/// The in-service register of the master.
pub fn in_service() -> u8 {
    outb(0x20, 0x0b);
    inb(0x20)
}
