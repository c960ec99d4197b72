//! The host's PCI configuration space, by its two ports (PCI Local Bus 3.0, 3.2.2.3.2).
//!
//! The hypervisor drives no PCI device but a disk for evicted pages ([`virtio_blk`](super::virtio_blk)), which is looked for once at
//! the start, on one processor: an access takes two ports, and nothing keeps processors apart here. Guests' own configuration
//! space is emulated (`device::pci`) and has nothing to do with this one.

use super::port::{in32, out32};

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
/// The address register: the access is one to configuration space.
const ENABLE: u32 = 1 << 31;

/// Offsets in the header of every function.
const ID: u8 = 0;
const COMMAND: u8 = 4;
const HEADER: u8 = 0xc;
const BAR0: u8 = 0x10;

/// Command: port I/O, access to memory by the device, no INTx.
const COMMAND_IO: u32 = 1 << 0;
const COMMAND_MASTER: u32 = 1 << 2;
const COMMAND_NO_INTX: u32 = 1 << 10;

/// A function of a device: bus, device, function, as they stand in the address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(u32);

impl Function {
    fn read(self, offset: u8) -> u32 {
        // SAFETY: the two ports are this module's; reading the registers that it names changes nothing.
        unsafe {
            out32(ADDRESS, ENABLE | self.0 << 8 | u32::from(offset));
            in32(DATA)
        }
    }

    fn write(self, offset: u8, value: u32) {
        // SAFETY: as above; what is written is the caller's choice in this module.
        unsafe {
            out32(ADDRESS, ENABLE | self.0 << 8 | u32::from(offset));
            out32(DATA, value);
        }
    }

    /// The first base address register, if it says ports.
    pub fn ports(self) -> Option<u16> {
        let bar = self.read(BAR0);
        let port = bar & !3;
        (bar & 1 != 0 && port != 0).then(|| u16::try_from(port).ok()).flatten()
    }

    /// Lets the device answer at its ports and read and write memory, without interrupts.
    ///
    /// # Safety
    /// What the device is told to do is the caller's: it reaches all memory.
    pub unsafe fn enable(self) {
        // The upper half is status, where ones that are written clear errors.
        let command = self.read(COMMAND) & 0xffff;
        self.write(COMMAND, command | COMMAND_IO | COMMAND_MASTER | COMMAND_NO_INTX);
    }
}

/// The functions with this vendor and device, on all buses that the firmware has numbered. It takes 16 384 port accesses and some.
pub fn find(vendor: u16, device: u16) -> impl Iterator<Item = Function> {
    const MULTIPLE: u32 = 1 << 23;
    let wanted = u32::from(device) << 16 | u32::from(vendor);
    let devices = (0..1u32 << 13).map(|number| Function(number << 3));
    let present = devices.filter(|first| first.read(ID) != u32::MAX);
    let functions = present.flat_map(|first| {
        let count = if first.read(HEADER) & MULTIPLE != 0 { 8 } else { 1 };
        (0..count).map(move |number| Function(first.0 | number))
    });
    functions.filter(move |function| function.read(ID) == wanted)
}
