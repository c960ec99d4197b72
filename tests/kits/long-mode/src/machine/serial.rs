//! Output on COM1, polled.

use core::fmt;

use super::insn::{inb, outb};

const PORT: u16 = 0x3f8;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const ALL_SENT: u8 = 1 << 6;

/// The port as a place to write text to.
pub struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            write_byte(byte);
        }
        Ok(())
    }
}

/// Writes a byte.
pub fn write_byte(byte: u8) {
    while inb(PORT + 5) & TRANSMITTER_EMPTY == 0 {}
    outb(PORT, byte);
}

/// Writes at most 16 bytes, which the empty FIFO takes, by one instruction.
pub fn write_burst(bytes: &[u8]) {
    while inb(PORT + 5) & TRANSMITTER_EMPTY == 0 {}
    let count = bytes.len().min(16);
    // SAFETY: reads the bytes.
    unsafe {
        core::arch::asm!("rep outsb", inout("rsi") bytes.as_ptr() => _, inout("rcx") count => _, in("dx") PORT, options(nostack));
    }
}

/// Waits until everything has left the port.
pub fn drain() {
    while inb(PORT + 5) & ALL_SENT == 0 {}
}

/// 115200 8N1, FIFOs on, no interrupts.
pub fn set_up() {
    for (register, value) in [(1, 0), (3, 0x83), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
        outb(PORT + register, value);
    }
}

/// Prints a line.
#[macro_export]
macro_rules! say {
    ($($arg:tt)*) => {{
        use core::fmt::Write;
        let _ = writeln!($crate::machine::serial::Serial, $($arg)*);
    }};
}
