//! The interrupt lines between the devices and the two kinds of interrupt controller.
//!
//! Several sources may share a line; a line is high while any of them drives it. ISA IRQs go to the PICs under their
//! number and to the IOAPIC pin of the same number, but IRQ 0 to pin 2, because pin 0 and the PICs' input 2 are taken.

use super::super::effect::Line;
use super::super::ioapic::IoApic;
use super::super::layout::{PIT_GSI, PIT_IRQ, RTC_IRQ};
use super::super::message::Messages;
use super::super::pic::Pic;

/// Lines that the HPET takes from the PIT and the RTC in legacy replacement mode.
const REPLACED: u32 = 1 << PIT_IRQ | 1 << RTC_IRQ;
/// Inputs of the PICs.
const PIC_INPUTS: u32 = 0xffff;

/// The levels on all lines, a bit each.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    /// Driven by ISA devices.
    isa: u32,
    /// Driven by the HPET.
    hpet: u32,
    /// The HPET has replaced the PIT and the RTC.
    replaced: bool,
    /// Driven by the test device.
    test: u32,
    /// Driven by PCI devices.
    pci: u32,
    /// What the controllers have been told.
    told: u32,
}

/// The controllers at the other end.
pub(super) struct Controllers<'a> {
    pub(super) pic: &'a mut Pic,
    pub(super) ioapic: &'a mut IoApic,
    pub(super) messages: &'a mut Messages,
}

impl Lines {
    /// An ISA device drives its line.
    #[inline]
    pub(super) fn set_isa(&mut self, irq: u8, line: Line, to: Controllers<'_>) {
        let bit = 1 << irq;
        let isa = if line.level { self.isa | bit } else { self.isa & !bit };
        if isa != self.isa || line.pulsed {
            self.isa = isa;
            let connected = !(self.replaced && REPLACED & bit != 0);
            self.tell(if line.pulsed && connected { bit } else { 0 }, to);
        }
    }

    /// The HPET drives its lines.
    pub(super) fn set_hpet(&mut self, levels: u32, pulses: u32, replaces: bool, to: Controllers<'_>) {
        self.hpet = levels;
        self.replaced = replaces;
        self.tell(pulses, to);
    }

    /// The test device drives lines.
    pub(super) fn set_test(&mut self, levels: u32, to: Controllers<'_>) {
        self.test = levels;
        self.tell(0, to);
    }

    /// PCI devices drive lines.
    #[inline]
    pub(super) fn set_pci(&mut self, levels: u32, to: Controllers<'_>) {
        if levels != self.pci {
            self.pci = levels;
            self.tell(0, to);
        }
    }

    /// Tells the controllers what has changed, and of edges that came and went.
    fn tell(&mut self, pulses: u32, mut to: Controllers<'_>) {
        let isa = if self.replaced { self.isa & !REPLACED } else { self.isa };
        let levels = isa | self.hpet | self.test | self.pci;
        let mut changed = levels ^ self.told | pulses;
        let before = core::mem::replace(&mut self.told, levels);
        while changed != 0 {
            let irq = changed.trailing_zeros() as u8;
            let bit = 1 << irq;
            changed &= changed - 1;
            to.set(irq, pulses & bit != 0, before & bit != 0, levels & bit != 0);
        }
    }
}

impl Controllers<'_> {
    /// Line `irq` was at `before`, is at `level` now, and if it `pulsed` there was a rising edge in between.
    fn set(&mut self, irq: u8, pulsed: bool, before: bool, level: bool) {
        if PIC_INPUTS >> irq & 1 != 0 {
            if pulsed {
                self.pic.pulse(irq);
            }
            self.pic.set_line(irq, level);
        }
        let pin = if irq == PIT_IRQ { PIT_GSI } else { irq };
        if pulsed {
            if before {
                self.ioapic.set_line(pin, false, self.messages);
            }
            self.ioapic.set_line(pin, true, self.messages);
        }
        self.ioapic.set_line(pin, level, self.messages);
    }
}
