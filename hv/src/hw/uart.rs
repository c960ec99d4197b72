//! A 16550 serial port of the host: polled output, polled or interrupt-driven input.
//!
//! Stateless beyond its port number, so that a panic can write without taking a lock. National Semiconductor
//! PC16550D data sheet, section 8.

use core::fmt;

use super::port::{in8, out8};

/// I/O port of COM1.
pub const COM1: u16 = 0x3f8;
/// I/O port of COM2.
pub const COM2: u16 = 0x2f8;

/// A serial port of the host machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SerialPort {
    Com1,
    Com2,
    Com3,
    Com4,
}

impl SerialPort {
    /// The first of its eight I/O ports.
    pub const fn base(self) -> u16 {
        match self {
            SerialPort::Com1 => 0x3f8,
            SerialPort::Com2 => 0x2f8,
            SerialPort::Com3 => 0x3e8,
            SerialPort::Com4 => 0x2e8,
        }
    }

    /// The port of this name, `com1` to `com4`.
    pub fn parse(word: &str) -> Option<SerialPort> {
        match word {
            "com1" => Some(SerialPort::Com1),
            "com2" => Some(SerialPort::Com2),
            "com3" => Some(SerialPort::Com3),
            "com4" => Some(SerialPort::Com4),
            _ => None,
        }
    }
}

const FIFO_BYTES: usize = 16;
/// Status reads before a byte is given up: half a second on an ISA bus, so that a stuck port cannot hang the host.
const MAX_POLLS: u32 = 500_000;
/// Status reads in which any serial line sends a byte: a millisecond on an ISA bus.
const BYTE_POLLS: u32 = 1000;

/// Register offsets.
mod reg {
    /// Data: receive and transmit buffers; divisor low byte under DLAB.
    pub const DATA: u16 = 0;
    /// Interrupt enable; divisor high byte under DLAB.
    pub const IER: u16 = 1;
    /// FIFO control (write).
    pub const FCR: u16 = 2;
    /// Line control.
    pub const LCR: u16 = 3;
    /// Modem control.
    pub const MCR: u16 = 4;
    /// Line status.
    pub const LSR: u16 = 5;
    /// Scratch: the chip stores it and does not use it.
    pub const SCR: u16 = 7;
}

const LSR_DATA_READY: u8 = 1 << 0;
const LSR_THR_EMPTY: u8 = 1 << 5;
const LSR_ALL_SENT: u8 = 1 << 6;
const LCR_8N1: u8 = 3;
const LCR_DLAB: u8 = 1 << 7;
const MCR_DTR_RTS_OUT2: u8 = 0b1011;
/// All four interrupts.
const IER_BITS: u8 = 0b1111;
const MCR_LOOPBACK: u8 = 1 << 4;
/// Enable and clear both FIFOs, trigger at one byte.
const FCR_ENABLE_CLEAR: u8 = 0b111;

/// A 16550 at a base port.
#[derive(Clone, Copy, Debug)]
pub struct Uart {
    base: u16,
}

impl Uart {
    /// The UART at `base`, not touched yet.
    ///
    /// # Safety
    /// The eight ports from `base` belong to a 16550 or to nothing.
    pub const unsafe fn new(base: u16) -> Uart {
        Uart { base }
    }

    fn read(self, offset: u16) -> u8 {
        // SAFETY: the port is ours by the promise given to `new`.
        unsafe { in8(self.base + offset) }
    }

    fn write(self, offset: u16, value: u8) {
        // SAFETY: the port is ours by the promise given to `new`.
        unsafe { out8(self.base + offset, value) }
    }

    /// 115 200 baud, 8N1, FIFOs on, no interrupts. False: there is no UART.
    pub fn init(self) -> bool {
        set_up(&self)
    }

    /// Writes all bytes as they are; waits for the transmitter a bounded time for each FIFO-full.
    pub fn write_bytes(self, bytes: &[u8]) {
        for chunk in bytes.chunks(FIFO_BYTES) {
            let mut polls = 0;
            while self.read(reg::LSR) & LSR_THR_EMPTY == 0 {
                polls += 1;
                if polls == MAX_POLLS {
                    return;
                }
                core::hint::spin_loop();
            }
            for &byte in chunk {
                self.write(reg::DATA, byte);
            }
        }
    }

    /// Writes one byte as it is. False: the transmitter stays full, as when an emulated port's output is not read. Used for
    /// a guest's console output.
    #[inline]
    pub fn try_write(self, byte: u8) -> bool {
        let room = (0..BYTE_POLLS).any(|_| self.read(reg::LSR) & LSR_THR_EMPTY != 0);
        if room {
            self.write(reg::DATA, byte);
        }
        room
    }

    /// Waits a bounded time until everything has left the port.
    pub fn drain(self) {
        let _sent = (0..MAX_POLLS).any(|_| self.read(reg::LSR) & LSR_ALL_SENT != 0);
    }

    /// A received byte, if there is one.
    pub fn try_read(self) -> Option<u8> {
        (self.read(reg::LSR) & LSR_DATA_READY != 0).then(|| self.read(reg::DATA))
    }

    /// Turns the interrupt for received data on or off.
    pub fn set_receive_interrupt(self, on: bool) {
        self.write(reg::IER, u8::from(on));
    }
}

/// The registers of what may be a 16550, by offset.
trait Registers {
    fn get(&self, offset: u16) -> u8;
    fn set(&self, offset: u16, value: u8);
}

impl Registers for Uart {
    fn get(&self, offset: u16) -> u8 {
        self.read(offset)
    }
    fn set(&self, offset: u16, value: u8) {
        self.write(offset, value);
    }
}

/// What [`Uart::init`] does. A bus without a device reads as ones or as the last value on it, so two bytes must come back one
/// by one when transmitter and receiver are connected inside the chip (section 8.6.6, loopback). Ports that a server's
/// management controller plays may know no loopback: for them it is enough that they remember which interrupts are on.
fn set_up(port: &impl Registers) -> bool {
    port.set(reg::IER, 0);
    port.set(reg::LCR, LCR_DLAB | LCR_8N1);
    port.set(reg::DATA, 1);
    port.set(reg::IER, 0);
    port.set(reg::LCR, LCR_8N1);
    port.set(reg::FCR, FCR_ENABLE_CLEAR);
    port.set(reg::MCR, MCR_LOOPBACK);
    let is_there = [0x55, 0xae].into_iter().all(|byte| loops_back(port, byte))
        || remembers(port, IER_BITS) && remembers(port, 0);
    port.set(reg::MCR, MCR_DTR_RTS_OUT2);
    port.set(reg::FCR, FCR_ENABLE_CLEAR);
    is_there
}

/// Whether a byte, and nothing before it, comes back.
fn loops_back(port: &impl Registers, byte: u8) -> bool {
    if port.get(reg::LSR) & LSR_DATA_READY != 0 {
        return false;
    }
    port.set(reg::DATA, byte);
    let arrived = (0..BYTE_POLLS).any(|_| port.get(reg::LSR) & LSR_DATA_READY != 0);
    arrived && port.get(reg::DATA) == byte
}

/// Whether the interrupt enable register holds a value while another is on the bus.
fn remembers(port: &impl Registers, interrupts: u8) -> bool {
    port.set(reg::IER, interrupts);
    port.set(reg::SCR, !interrupts);
    port.get(reg::IER) == interrupts
}

/// Text for people: line feeds become carriage return and line feed.
impl fmt::Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                self.write_bytes(b"\r\n");
            }
            self.write_bytes(line.as_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::{Cell, RefCell};

    /// A bus without a device that reads as the last value on it, or else as ones.
    struct Bus {
        last: Cell<u8>,
        sticks: bool,
    }

    impl Registers for Bus {
        fn get(&self, _: u16) -> u8 {
            self.last.get()
        }
        fn set(&self, _: u16, value: u8) {
            if self.sticks {
                self.last.set(value);
            }
        }
    }

    /// A UART whose divisor, control registers and single byte are kept; with loopback or without.
    struct Chip {
        registers: RefCell<[u8; 8]>,
        arrived: Cell<Option<u8>>,
        loops: bool,
    }

    impl Registers for Chip {
        fn get(&self, offset: u16) -> u8 {
            match offset {
                reg::DATA => self.arrived.take().unwrap_or(0),
                reg::LSR => LSR_THR_EMPTY | LSR_ALL_SENT | u8::from(self.arrived.get().is_some()),
                _ => self.registers.borrow()[usize::from(offset)],
            }
        }
        fn set(&self, offset: u16, value: u8) {
            let divisor = self.get(reg::LCR) & LCR_DLAB != 0 && offset <= reg::IER;
            if offset == reg::DATA && !divisor && self.get(reg::MCR) & MCR_LOOPBACK != 0 && self.loops {
                self.arrived.set(Some(value));
            }
            if !divisor {
                self.registers.borrow_mut()[usize::from(offset)] = value;
            }
        }
    }

    #[test]
    fn a_bus_without_a_device_is_no_uart() {
        for sticks in [false, true] {
            for last in [0, 0x0f, 0x55, 0xff] {
                assert!(!set_up(&Bus { last: Cell::new(last), sticks }), "{sticks} {last:#x}");
            }
        }
    }

    #[test]
    fn a_uart_is_found_and_left_ready() {
        for loops in [false, true] {
            let chip = Chip { registers: RefCell::new([0; 8]), arrived: Cell::new(None), loops };
            assert!(set_up(&chip), "{loops}");
            let registers = chip.registers.borrow();
            assert_eq!([registers[1], registers[3], registers[4]], [0, LCR_8N1, MCR_DTR_RTS_OUT2]);
            assert_eq!(chip.arrived.get(), None);
        }
    }
}
