//! An I/O APIC of the host: which interrupt lines arrive as which vector.
//!
//! Intel 82093AA data sheet, section 3. Used for the console's serial port only; every other line stays masked.

/// Masks the line.
const MASKED: u32 = 1 << 16;
const LEVEL: u32 = 1 << 15;
const ACTIVE_LOW: u32 = 1 << 13;

const VERSION: u32 = 1;
const REDIRECTION: u32 = 0x10;

/// An I/O APIC at an address.
#[derive(Debug)]
pub struct IoApic {
    registers: *mut u32,
    gsi_base: u32,
    lines: u32,
}

impl IoApic {
    /// Takes over the I/O APIC at `address` and masks all of its lines.
    ///
    /// # Safety
    /// There is one, mapped uncached, whose first global system interrupt is `gsi_base`; the caller is its only user.
    pub unsafe fn new(address: u64, gsi_base: u32) -> IoApic {
        let mut io_apic = IoApic { registers: address as *mut u32, gsi_base, lines: 0 };
        io_apic.lines = (io_apic.read(VERSION) >> 16 & 0xff) + 1;
        for line in 0..io_apic.lines {
            // Firmware may have left lines open, whose vectors mean nothing here.
            io_apic.write(REDIRECTION + 2 * line, MASKED);
        }
        io_apic
    }

    fn select(&self, register: u32) {
        // SAFETY: the registers are mapped and ours by the promise given to `new`.
        unsafe { self.registers.write_volatile(register) };
    }

    fn read(&self, register: u32) -> u32 {
        self.select(register);
        // SAFETY: as in `select`; the data window is at offset 16.
        unsafe { self.registers.add(4).read_volatile() }
    }

    fn write(&self, register: u32, value: u32) {
        self.select(register);
        // SAFETY: as in `read`.
        unsafe { self.registers.add(4).write_volatile(value) };
    }

    /// Whether this I/O APIC serves the global system interrupt.
    pub fn serves(&self, gsi: u32) -> bool {
        (self.gsi_base..self.gsi_base + self.lines).contains(&gsi)
    }

    /// Delivers `gsi`, which it serves, as `vector` to the local APIC with this ID (below 255), and unmasks it.
    /// `flags` are the polarity and trigger bits of a MADT override; 0 is edge-triggered, active high.
    pub fn route(&mut self, gsi: u32, flags: u16, vector: u8, apic_id: u8) {
        let low = u32::from(vector)
            | if flags & 3 == 3 { ACTIVE_LOW } else { 0 }
            | if flags >> 2 & 3 == 3 { LEVEL } else { 0 };
        let line = REDIRECTION + 2 * (gsi - self.gsi_base);
        // The lower half unmasks: the destination must stand before.
        self.write(line + 1, u32::from(apic_id) << 24);
        self.write(line, low);
    }
}
