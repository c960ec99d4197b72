//! PCI configuration space: the host bridge, and the table of functions on bus 0.
//!
//! Owned by [`super::chipset::Chipset`]. Both ways of access lead here: mechanism 1 (ports 0xcf8 and 0xcfc) and the
//! enhanced mechanism (ECAM). What is not there reads as ones. Reference: PCI Local Bus specification 3.0, 3.2.2.3.2 and
//! chapter 6; PCI Express base specification, 7.2.2.

mod function;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;

use super::lanes;
pub use function::{Bar, Function};

/// Functions that bus 0 can hold.
pub const MAX_FUNCTIONS: usize = 16;
/// The host bridge's identity: an Intel host bridge that no driver claims.
const HOST_BRIDGE: (u16, u16) = (0x8086, 0x0d57);
/// Class code of a host bridge.
const CLASS_HOST_BRIDGE: u32 = 0x06_0000;
/// Bits of the address register: enable, and a dword in a function.
const ENABLE: u32 = 1 << 31;
const ADDRESS: u32 = ENABLE | 0x00ff_fffc;

/// Why a function was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugError {
    /// The device and function number is taken.
    Taken,
    /// [`MAX_FUNCTIONS`] are there.
    Full,
}

/// A register of a function on bus 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Device number times 8 plus function number.
    pub devfn: u8,
    /// Offset in configuration space in bytes.
    pub register: u16,
}

/// The host bridge and its bus.
#[derive(Clone, Debug)]
pub struct Pci {
    address: u32,
    /// For each device and function number on bus 0: an index into `functions`, plus 1.
    slots: [u8; 256],
    functions: ArrayVec<Function, MAX_FUNCTIONS>,
}

impl Default for Pci {
    fn default() -> Self {
        Pci::new()
    }
}

impl Pci {
    /// A bus with nothing but its host bridge, 00:00.0.
    pub fn new() -> Pci {
        let mut pci = Pci { address: 0, slots: [0; 256], functions: ArrayVec::new() };
        let bridge = Function::new(HOST_BRIDGE.0, HOST_BRIDGE.1, CLASS_HOST_BRIDGE);
        let added = pci.plug(0, bridge);
        debug_assert_eq!(added, Ok(()));
        pci
    }

    /// All functions back to power-on; they stay on the bus.
    pub fn reset(&mut self) {
        self.address = 0;
        self.functions.iter_mut().for_each(Function::reset);
    }

    /// Adds a function; `devfn` is device number times 8 plus function number.
    pub fn plug(&mut self, devfn: u8, function: Function) -> Result<(), PlugError> {
        if self.slots[usize::from(devfn)] != 0 {
            return Err(PlugError::Taken);
        }
        self.functions.try_push(function).map_err(|_| PlugError::Full)?;
        self.slots[usize::from(devfn)] = self.functions.len() as u8;
        // Software looks at functions 1 to 7 only if function 0 says that there are some.
        if devfn & 7 != 0
            && let Some(first) = self.function_mut(0, devfn & !7)
        {
            first.set_multifunction();
        }
        Ok(())
    }

    /// The function at this place.
    #[inline]
    pub fn function(&self, bus: u8, devfn: u8) -> Option<&Function> {
        if bus != 0 {
            return None;
        }
        self.functions.get(usize::from(self.slots[usize::from(devfn)].wrapping_sub(1)))
    }

    /// The function at this place.
    pub fn function_mut(&mut self, bus: u8, devfn: u8) -> Option<&mut Function> {
        if bus != 0 {
            return None;
        }
        self.functions.get_mut(usize::from(self.slots[usize::from(devfn)].wrapping_sub(1)))
    }

    /// Reads the address register (port 0xcf8, a dword).
    pub fn read_address(&self) -> u32 {
        self.address
    }

    /// Writes the address register.
    pub fn write_address(&mut self, value: u32) {
        self.address = value & ADDRESS;
    }

    /// Reads `size` bytes (1, 2 or 4) at port 0xcfc + `offset`.
    #[inline]
    pub fn read_data(&self, offset: u16, size: u8) -> u32 {
        if self.address & ENABLE == 0 {
            return lanes::size_mask(size);
        }
        let (bus, devfn, register) = self.selected();
        self.read_config(bus, devfn, register | offset & 3, size)
    }

    /// Writes `size` bytes at port 0xcfc + `offset`.
    pub fn write_data(&mut self, offset: u16, size: u8, value: u32) {
        if self.address & ENABLE != 0 {
            let (bus, devfn, register) = self.selected();
            self.write_config(bus, devfn, register | offset & 3, size, value);
        }
    }

    /// Reads `size` bytes (1, 2, 4 or 8) at `offset` in the ECAM window.
    pub fn read_ecam(&self, offset: u64, size: u8) -> u64 {
        let (bus, devfn, register) = ecam(offset);
        let low = self.read_config(bus, devfn, register, size.min(4));
        let high = if size > 4 { self.read_config(bus, devfn, register.wrapping_add(4), 4) } else { 0 };
        u64::from(high) << 32 | u64::from(low)
    }

    /// Writes `size` bytes at `offset` in the ECAM window.
    pub fn write_ecam(&mut self, offset: u64, size: u8, value: u64) {
        let (bus, devfn, register) = ecam(offset);
        self.write_config(bus, devfn, register, size.min(4), value as u32);
        if size > 4 {
            self.write_config(bus, devfn, register.wrapping_add(4), 4, (value >> 32) as u32);
        }
    }

    /// Where an access to port 0xcfc + `offset` leads.
    #[inline]
    pub fn data_place(&self, offset: u16) -> Option<Place> {
        let (bus, devfn, register) = self.selected();
        (self.address & ENABLE != 0 && bus == 0).then_some(Place { devfn, register: register | offset & 3 })
    }

    /// Where an access at `offset` in the ECAM window leads.
    pub fn ecam_place(offset: u64) -> Option<Place> {
        let (bus, devfn, register) = ecam(offset);
        (bus == 0).then_some(Place { devfn, register })
    }

    /// Bus, device and function, register that the address register names.
    fn selected(&self) -> (u8, u8, u16) {
        ((self.address >> 16) as u8, (self.address >> 8) as u8, self.address as u16 & 0xfc)
    }

    #[inline]
    fn read_config(&self, bus: u8, devfn: u8, register: u16, size: u8) -> u32 {
        match self.function(bus, devfn) {
            Some(function) => function.read(register, size),
            None => lanes::size_mask(size),
        }
    }

    fn write_config(&mut self, bus: u8, devfn: u8, register: u16, size: u8, value: u32) {
        if let Some(function) = self.function_mut(bus, devfn) {
            function.write(register, size, value);
        }
    }
}

/// Bus, device and function, register of an ECAM offset.
fn ecam(offset: u64) -> (u8, u8, u16) {
    ((offset >> 20) as u8, (offset >> 12) as u8, (offset & 0xfff) as u16)
}

/// Drives a bus with arbitrary bytes: it must not panic, and identities must survive.
#[cfg(any(test, feature = "testing"))]
pub fn fuzz_one(data: &[u8]) {
    let mut input = super::fuzz::Input::new(data);
    let mut pci = Pci::new();
    let bars = Function::new(1, 2, 3).with_bar(0, Bar::Memory32(4096)).with_bar(2, Bar::Memory64(1 << 20));
    assert_eq!(pci.plug(9, bars), Ok(()));
    while let Some(op) = input.byte() {
        let size = 1 << (op & 3);
        match op >> 5 {
            0 => pci.write_address(input.u32()),
            1 => pci.write_address(ENABLE | input.u32() & 0x9ff),
            2 => pci.write_data((op >> 2).into(), size, input.u32()),
            3 => pci.write_ecam(u64::from(input.u32()) & 0x9fff, size, input.u64()),
            4 => drop(pci.read_ecam(input.u32().into(), size)),
            _ => drop(pci.read_data((op >> 2).into(), size)),
        }
        assert_eq!(pci.read_ecam(0, 4), 0x0d57_8086);
        let moved = pci.function(0, 9).and_then(|function| function.bar(2));
        assert!(moved.is_none_or(|address| address % (1 << 20) == 0));
    }
}
