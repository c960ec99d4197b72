//! The PC's pair of 8259A interrupt controllers with the edge/level control registers.
//!
//! The bus calls it for the ports and for changes of lines; the run loop looks at [`Pic::output`], and if the
//! boot processor's local APIC lets external interrupts through, delivers the vector that [`Pic::acknowledge`]
//! returns.
//!
//! IRQ 0–7 are the master's inputs, 8–15 the slave's; the slave's output is the master's input 2, so line 2
//! does not exist for devices. Modelled: ICW1–4, OCW1–3, edge and level triggering, fully nested, special fully
//! nested and special mask mode, rotation, automatic EOI, poll mode, the spurious interrupt. The buffered and
//! MCS-80 modes have no meaning in a PC and are accepted without effect.
//!
//! An edge stays requested until it is acknowledged, although its line falls before: so do the chips of KVM and QEMU, and
//! the vector is the input's own. The data sheet wants the line to stay high until the first INTA, and has the chip
//! answer with the spurious vector, input 7, if it does not; guests must be ready for either, and the chips of KVM and
//! QEMU lose no interrupt. A level-triggered input counts only while it is high, as everywhere.
//!
//! Intel 8259A data sheet (231468); ELCR: Intel PIIX data sheets.

mod chip;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
#[cfg(test)]
mod tests;

use chip::Chip;
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;

/// The master's input that the slave drives.
const CASCADE: u8 = 2;
/// Inputs that the edge/level registers can make level-triggered: not 0, 1, 2, 8 and 13.
const ELCR_WRITABLE: [u8; 2] = [0xf8, 0xde];

/// Both controllers.
#[derive(Clone, Debug)]
pub struct Pic {
    master: Chip,
    slave: Chip,
}

impl Pic {
    /// After reset: all inputs masked (the data sheet leaves it open), nothing initialized.
    pub const fn new() -> Pic {
        Pic { master: Chip::new(1 << CASCADE), slave: Chip::new(0) }
    }

    /// Input `irq`, 0 to 15, goes high or low; 2 and numbers from 16 up are ignored. A level-triggered input
    /// must stay high until it is acknowledged, or there is no interrupt (a spurious IRQ 7 or 15 if the output
    /// was already seen).
    pub fn set_line(&mut self, irq: u8, high: bool) {
        match irq {
            CASCADE => {}
            0..8 => self.master.set_line(irq, high),
            8..16 => {
                self.slave.set_line(irq - 8, high);
                self.cascade();
            }
            _ => {}
        }
    }

    /// A rising and a falling edge at once, because emulated time passes in steps. Level-triggered inputs ignore it.
    pub fn pulse(&mut self, irq: u8) {
        match irq {
            CASCADE => {}
            0..8 => self.master.pulse(irq),
            8..16 => {
                self.slave.pulse(irq - 8);
                self.cascade();
            }
            _ => {}
        }
    }

    /// The master's INT output: an interrupt waits to be acknowledged.
    pub fn output(&self) -> bool {
        self.master.output()
    }

    /// The processor's interrupt acknowledge: the vector to deliver. Without a request it is the spurious
    /// interrupt, input 7.
    pub fn acknowledge(&mut self) -> u8 {
        let input = self.master.acknowledge();
        // The master leaves the bus to the slave, which answers with a vector of its own; its input 7 if its request is
        // gone.
        let vector = if input == Some(CASCADE) {
            let input = self.slave.acknowledge();
            self.slave.vector(input)
        } else {
            self.master.vector(input)
        };
        self.cascade();
        vector
    }

    /// An IN from one of the ports; 0xff from any other.
    pub fn read(&mut self, port: u16) -> u8 {
        let value = match port {
            0x20 | 0x21 => self.master.read(port & 1 != 0),
            0xa0 | 0xa1 => self.slave.read(port & 1 != 0),
            0x4d0 => self.master.elcr() & ELCR_WRITABLE[0],
            0x4d1 => self.slave.elcr(),
            _ => 0xff,
        };
        self.cascade();
        value
    }

    /// An OUT to one of the ports; ignored for any other.
    pub fn write(&mut self, port: u16, value: u8) {
        match port {
            0x20 | 0x21 => self.master.write(port & 1 != 0, value),
            0xa0 | 0xa1 => self.slave.write(port & 1 != 0, value),
            // The slave's output has no edge between two of its requests: the cascade input is a level.
            0x4d0 => self.master.set_elcr(value & ELCR_WRITABLE[0] | 1 << CASCADE),
            0x4d1 => self.slave.set_elcr(value & ELCR_WRITABLE[1]),
            _ => {}
        }
        self.cascade();
    }

    fn cascade(&mut self) {
        self.master.set_line(CASCADE, self.slave.output());
    }
}

impl Default for Pic {
    fn default() -> Self {
        Pic::new()
    }
}
