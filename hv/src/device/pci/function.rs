//! One PCI function's configuration space: 64 dwords, the bits of them that software may write, base addresses.

use super::super::lanes;

const DWORDS: usize = 64;
/// Dwords of the type 0 header.
const COMMAND: usize = 1;
const HEADER_TYPE: usize = 3;
const BAR0: usize = 4;
const SUBSYSTEM: usize = 11;
const INTERRUPT: usize = 15;
/// Command register: decode I/O, decode memory, be bus master, report SERR#, no INTx.
const COMMAND_WRITABLE: u32 = 0x0507;
const DECODE_IO: u32 = 1 << 0;
const DECODE_MEMORY: u32 = 1 << 1;
const MULTIFUNCTION: u32 = 1 << 23;

/// A base address register: what it decodes and how many bytes, a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// Ports; 4 bytes or more.
    Io(u32),
    /// Memory below 4 GiB; 16 bytes or more.
    Memory32(u32),
    /// Memory anywhere, prefetchable; takes two registers.
    Memory64(u64),
}

/// A function with a type 0 header.
#[derive(Clone, Debug)]
pub struct Function {
    config: [u32; DWORDS],
    writable: [u32; DWORDS],
    /// What `config` holds at power-on.
    initial: [u32; DWORDS],
}

impl Function {
    /// A function without base addresses; `class` is class code, subclass and programming interface.
    pub const fn new(vendor: u16, device: u16, class: u32) -> Function {
        let mut config = [0; DWORDS];
        config[0] = (device as u32) << 16 | vendor as u32;
        config[2] = class << 8;
        config[SUBSYSTEM] = config[0];
        let mut writable = [0; DWORDS];
        writable[COMMAND] = COMMAND_WRITABLE;
        writable[INTERRUPT] = 0xff; // the interrupt line is software's note to itself
        Function { config, writable, initial: config }
    }

    /// The function with a base address register, `index` 0 to 5. A register that does not fit is left out.
    ///
    /// # Panics
    /// At size 0: sizes are constants of the device's code.
    pub const fn with_bar(mut self, index: usize, bar: Bar) -> Function {
        let (kind, size) = match bar {
            Bar::Io(size) => (1, size as u64),
            Bar::Memory32(size) => (0, size as u64),
            Bar::Memory64(size) => (0b1100, size),
        };
        let registers = if matches!(bar, Bar::Memory64(_)) { 2 } else { 1 };
        assert!(size.is_power_of_two());
        if index + registers <= 6 {
            let mask = !(size - 1);
            self.config[BAR0 + index] = kind;
            self.writable[BAR0 + index] = mask as u32 & if kind == 1 { !3 } else { !15 };
            if registers == 2 {
                self.writable[BAR0 + index + 1] = (mask >> 32) as u32;
            }
            self.initial = self.config;
        }
        self
    }

    /// The function with base address register `index` at `address`, which it decodes from power-on: what firmware does.
    pub const fn with_bar_at(mut self, index: usize, address: u64) -> Function {
        let register = BAR0 + index;
        let wide = self.config[register] & 0b111 == 0b100;
        self.config[register] |= address as u32 & self.writable[register];
        if wide {
            self.config[register + 1] |= (address >> 32) as u32 & self.writable[register + 1];
        }
        self.config[COMMAND] |= if self.config[register] & 1 == 0 { DECODE_MEMORY } else { DECODE_IO };
        self.initial = self.config;
        self
    }

    /// The function with the bits of `value` set in a dword (0 to 63), and the bits of `writable` for software to write.
    pub const fn with_register(mut self, dword: usize, value: u32, writable: u32) -> Function {
        self.config[dword] |= value;
        self.writable[dword] |= writable;
        self.initial = self.config;
        self
    }

    /// Where base address register `index` puts the function, if it decodes at all.
    pub fn bar(&self, index: usize) -> Option<u64> {
        // The low half of a large 64-bit register has no writable bits, but a kind.
        let exists = |register: usize| self.writable[register] | self.initial[register] != 0;
        let register = (index < 6).then_some(BAR0 + index).filter(|&register| exists(register))?;
        let value = self.config[register];
        let (enable, address) = match value & 0b111 {
            0b100 => (DECODE_MEMORY, u64::from(self.config[register + 1]) << 32 | u64::from(value & !15)),
            kind if kind & 1 == 0 => (DECODE_MEMORY, u64::from(value & !15)),
            _ => (DECODE_IO, u64::from(value & !3)),
        };
        (self.config[COMMAND] & enable != 0).then_some(address)
    }

    /// Reads `size` bytes (1, 2 or 4) of configuration space; reads past its 256 bytes are ones.
    #[inline]
    pub fn read(&self, register: u16, size: u8) -> u32 {
        match self.config.get(usize::from(register / 4)) {
            Some(&dword) => lanes::read(dword, register.into(), size),
            None => lanes::size_mask(size),
        }
    }

    /// Writes `size` bytes of configuration space, as far as they are writable.
    pub fn write(&mut self, register: u16, size: u8, value: u32) {
        let index = usize::from(register / 4);
        if let (Some(dword), Some(writable)) = (self.config.get_mut(index), self.writable.get(index)) {
            let (mask, bits) = lanes::write(value, register.into(), size);
            *dword = *dword & !(mask & writable) | bits & writable;
        }
    }

    /// Back to power-on.
    pub fn reset(&mut self) {
        self.config = self.initial;
    }

    /// Says that the device has more functions than this one.
    pub(super) fn set_multifunction(&mut self) {
        self.config[HEADER_TYPE] |= MULTIFUNCTION;
        self.initial[HEADER_TYPE] |= MULTIFUNCTION;
    }
}
