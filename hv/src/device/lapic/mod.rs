//! The local APIC of one VCPU, in xAPIC and in x2APIC mode.
//!
//! Called by the bus for accesses to its page, the MSR policy for 0x1b, 0x6e0 and 0x800–0x8ff, the VM to
//! [`Lapic::deliver`] messages, and the run loop before each entry: [`Lapic::tick`] if [`Lapic::deadline`] has
//! come, then [`Lapic::pending`] and, once the processor takes the interrupt, [`Lapic::acknowledge`].
//! Everything that concerns other parts of the machine is returned: [`LapicEffect`] by what the guest does,
//! [`Signal`] by what arrives.
//!
//! Time is the guest's TSC, which is also the timer's input clock; the LVT timer runs at TSC frequency /
//! divisor.
//!
//! What must hold: IRR, ISR and TMR contain no vector below 16; the PPR is always up to date; while
//! APIC_BASE.EN or the SVR's enable bit is clear, every LVT entry is masked and no vector is accepted.
//!
//! Intel SDM 3, chapter 11 (advanced programmable interrupt controller); AMD APM 2, chapter 16. The version
//! register says 0x14, six LVT entries, EOI-broadcast suppression.

mod base;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod icr;
mod lvt;
mod registers;
#[cfg(test)]
mod tests;
mod timer;
mod vectors;

#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
pub use lvt::Lint;

use super::Tsc;
use super::message::{ApicAddress, DeliveryMode, InterruptMessage, LogicalModel, x2apic_logical_id};
use timer::Timer;
use vectors::VectorSet;

/// What an access by the guest asks of the rest of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum LapicEffect {
    /// Nothing
    None,
    /// Route this message; the sender is this APIC.
    Ipi(InterruptMessage),
    /// Tell the I/O APIC that the level-triggered interrupt with this vector has ended.
    EoiBroadcast(u8),
    /// [`Lapic::address`] or [`Lapic::mmio_page`] changed.
    Readdressed,
}

/// What something that arrived asks of the VCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Signal {
    /// Nothing
    None,
    /// [`Lapic::pending`] may have become true: wake the VCPU.
    Interrupt,
    /// System-management interrupt
    Smi,
    /// Non-maskable interrupt
    Nmi,
    /// Reset the VCPU and call [`Lapic::init`].
    Init,
    /// If it waits for start-up: start the VCPU at this page (CS = page << 8, IP = 0).
    Startup(u8),
    /// Take a vector from the 8259A.
    ExtInt,
}

/// Error status bits.
mod esr {
    pub(super) const SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
    pub(super) const RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
    pub(super) const ILLEGAL_REGISTER: u32 = 1 << 7;
}

/// SVR bit 8: the APIC is enabled by software.
const SVR_ENABLED: u32 = 1 << 8;
/// SVR bit 12: EOIs are not told to the I/O APIC.
const SVR_SUPPRESS_EOI: u32 = 1 << 12;
const SVR_RESET: u32 = 0xff;

/// What local APICs of some processors have and others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// x2APIC mode.
    pub x2apic: bool,
    /// TSC deadlines of the timer.
    pub tsc_deadline: bool,
    /// APIC_BASE's BSP flag can be written.
    pub bsp_writable: bool,
}

impl Abilities {
    const DEFAULT: Abilities = Abilities { x2apic: true, tsc_deadline: true, bsp_writable: false };
}

/// A local APIC.
#[derive(Clone, Debug)]
pub struct Lapic {
    /// Interrupts requested and not yet taken.
    irr: VectorSet,
    /// Interrupts taken and not yet ended.
    isr: VectorSet,
    /// For vectors in IRR or ISR: level-triggered.
    tmr: VectorSet,
    tpr: u8,
    /// Processor priority, from TPR and ISR.
    ppr: u8,
    timer: Timer,
    svr: u32,
    lvt: [u32; lvt::ENTRIES],
    lint_lines: [bool; 2],
    /// Interrupt command register, as x2APIC mode reads it.
    icr: u64,
    /// Logical destination and its format, xAPIC mode.
    ldr: u8,
    dfr: u32,
    /// The error status register, and the errors since it was last written.
    esr: u32,
    errors: u32,
    id: u32,
    base: u64,
    abilities: Abilities,
}

impl Lapic {
    /// The local APIC of VCPU `id` as firmware leaves it: that of the boot processor (0) in virtual-wire mode.
    pub fn after_firmware(id: u32) -> Lapic {
        let mut lapic = Lapic::new(id, id == 0);
        // The 8259A is wired to the boot processor alone; the others start by INIT, which leaves their pins masked.
        if id == 0 {
            lapic.set_virtual_wire();
        }
        lapic
    }

    /// After power-up: xAPIC mode, disabled by software. `id` is the (x2)APIC ID; in xAPIC mode its low 8 bits
    /// count.
    pub fn new(id: u32, bsp: bool) -> Lapic {
        Lapic {
            irr: VectorSet::default(),
            isr: VectorSet::default(),
            tmr: VectorSet::default(),
            tpr: 0,
            ppr: 0,
            timer: Timer::RESET,
            svr: SVR_RESET,
            lvt: [lvt::MASKED; lvt::ENTRIES],
            lint_lines: [false; 2],
            icr: 0,
            ldr: 0,
            dfr: u32::MAX,
            esr: 0,
            errors: 0,
            id,
            base: base::reset(bsp),
            abilities: Abilities::DEFAULT,
        }
    }

    /// What it has of what not all have; after power-up, before it is used.
    pub fn set_abilities(&mut self, abilities: Abilities) {
        self.abilities = abilities;
    }

    /// Whether its timer has TSC deadlines.
    #[inline(always)]
    pub fn has_tsc_deadline(&self) -> bool {
        self.abilities.tsc_deadline
    }

    /// The state in which firmware hands over the boot processor, for guests that start without firmware:
    /// enabled, LINT0 lets the 8259A through ("virtual wire"), LINT1 is NMI.
    pub fn set_virtual_wire(&mut self) {
        self.svr = SVR_RESET | SVR_ENABLED;
        self.set_lvt(lvt::Entry::Lint0, lvt::EXT_INT);
        self.set_lvt(lvt::Entry::Lint1, lvt::NMI);
    }

    /// INIT: all registers but the ID and APIC_BASE take their power-up values.
    pub fn init(&mut self) {
        self.reset_registers();
    }

    fn reset_registers(&mut self) {
        let Lapic { base, lint_lines, abilities, .. } = *self;
        *self = Lapic { base, lint_lines, abilities, ..Lapic::new(self.id, false) };
    }

    /// What senders need to know to address this APIC.
    pub fn address(&self) -> ApicAddress {
        let model = match self.dfr >> 28 {
            _ if self.is_x2apic() => LogicalModel::X2Apic,
            0 => LogicalModel::Cluster,
            _ => LogicalModel::Flat,
        };
        ApicAddress {
            id: self.physical_id(),
            logical_id: self.logical_id(),
            model,
            hardware_enabled: self.hardware_enabled(),
            software_enabled: self.software_enabled(),
        }
    }

    /// Its number, as it was made with.
    pub fn id(&self) -> u32 {
        self.id
    }

    fn physical_id(&self) -> u32 {
        // xAPIC IDs have 8 bits (SDM 3, 11.4.6).
        if self.is_x2apic() { self.id } else { self.id & 0xff }
    }

    fn logical_id(&self) -> u32 {
        if self.is_x2apic() { x2apic_logical_id(self.id) } else { self.ldr.into() }
    }

    fn software_enabled(&self) -> bool {
        self.svr & SVR_ENABLED != 0
    }

    /// A message that addresses this APIC ([`ApicAddress::matches`]) arrives.
    pub fn deliver(&mut self, message: &InterruptMessage) -> Signal {
        // Pins still reach the processor then (`set_lint`), messages do not (SDM 3, 11.4.3).
        if !self.hardware_enabled() {
            return Signal::None;
        }
        match message.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                self.accept(message.vector, message.level);
                Signal::Interrupt
            }
            DeliveryMode::Smi => Signal::Smi,
            DeliveryMode::Nmi => Signal::Nmi,
            DeliveryMode::Init => Signal::Init,
            DeliveryMode::Startup => Signal::Startup(message.vector),
            DeliveryMode::ExtInt => Signal::ExtInt,
        }
    }

    /// Requests this vector. Vectors below 16 are an error that the ESR shows; a disabled APIC accepts nothing.
    pub fn accept(&mut self, vector: u8, level: bool) {
        // INIT, NMI, SMI and start-up are not vectors and arrive nevertheless (SDM 3, 11.4.7.2).
        if !self.software_enabled() {
            return;
        }
        if vector < 16 {
            self.error(esr::RECEIVE_ILLEGAL_VECTOR);
            return;
        }
        self.irr.insert(vector);
        if level {
            self.tmr.insert(vector);
        } else {
            self.tmr.remove(vector);
        }
    }

    /// The interrupt that the processor should take: the highest requested one if its class is above the
    /// processor's.
    #[inline]
    pub fn pending(&self) -> Option<u8> {
        let vector = self.irr.max();
        (vector & 0xf0 > self.ppr & 0xf0).then_some(vector)
    }

    /// The vector that would be delivered if the task priority were 0.
    #[inline]
    pub fn requested(&self) -> Option<u8> {
        let vector = self.irr.max();
        (vector & 0xf0 > self.isr.max() & 0xf0).then_some(vector)
    }

    /// The processor takes the pending interrupt: the vector to deliver. If none is pending any more, it is the
    /// spurious vector, which is not in service and gets no EOI.
    #[inline]
    pub fn acknowledge(&mut self) -> u8 {
        match self.pending() {
            Some(vector) => {
                self.take(vector);
                vector
            }
            None => self.svr as u8,
        }
    }

    /// The processor took this vector, offered to it when it was pending; nothing happens if it is not
    /// requested.
    #[inline]
    pub fn take(&mut self, vector: u8) {
        if self.irr.contains(vector) {
            self.irr.remove(vector);
            self.isr.insert(vector);
            self.update_ppr();
        }
    }

    /// A write of the EOI register: ends the highest interrupt in service.
    #[inline]
    pub fn eoi(&mut self) -> LapicEffect {
        let vector = self.isr.max();
        if vector == 0 {
            return LapicEffect::None;
        }
        self.isr.remove(vector);
        self.update_ppr();
        if !self.tmr.contains(vector) { LapicEffect::None } else { self.level_eoi(vector) }
    }

    #[cold]
    fn level_eoi(&mut self, vector: u8) -> LapicEffect {
        self.lint0_eoi(vector);
        if self.svr & SVR_SUPPRESS_EOI == 0 { LapicEffect::EoiBroadcast(vector) } else { LapicEffect::None }
    }

    /// The task priority register; CR8 is bits 7:4.
    pub fn tpr(&self) -> u8 {
        self.tpr
    }

    /// Sets the task priority register; CR8 is bits 7:4.
    #[inline]
    pub fn set_tpr(&mut self, tpr: u8) {
        self.tpr = tpr;
        self.update_ppr();
    }

    /// The processor priority register.
    pub fn ppr(&self) -> u8 {
        self.ppr
    }

    #[inline]
    fn update_ppr(&mut self) {
        let serving = self.isr.max() & 0xf0;
        self.ppr = if self.tpr & 0xf0 >= serving { self.tpr } else { serving };
    }

    /// The arbitration priority, which the receiver of a lowest-priority message is chosen by.
    pub fn arbitration_priority(&self) -> u8 {
        let (task, requested, serving) = (self.tpr & 0xf0, self.irr.max() & 0xf0, self.isr.max() & 0xf0);
        if task >= requested && task > serving { self.tpr } else { task.max(requested).max(serving) }
    }

    /// When [`Lapic::tick`] has something to do.
    #[inline]
    pub fn deadline(&self) -> Option<Tsc> {
        self.timer.deadline()
    }

    /// Raises the timer interrupt if it is due. A periodic timer raises it once for all periods that passed.
    #[inline]
    pub fn tick(&mut self, now: Tsc) {
        if self.timer.is_due(now) {
            self.expire(now);
        }
    }

    #[inline(never)]
    fn expire(&mut self, now: Tsc) {
        if let Some(vector) = self.timer.expire(now) {
            self.accept(vector, false);
        }
    }

    /// The TSC-deadline MSR (0x6e0): 0 unless armed.
    pub fn tsc_deadline(&self) -> u64 {
        self.timer.tsc_deadline()
    }

    /// WRMSR to the TSC-deadline MSR: arms the timer, or disarms it with 0; ignored unless the LVT timer is in
    /// that mode. A deadline that has passed expires at the next tick.
    #[inline]
    pub fn set_tsc_deadline(&mut self, value: u64, now: Tsc) {
        self.tick(now);
        self.timer.set_tsc_deadline(value);
    }

    /// The guest's TSC jumped (a write of the TSC or of its adjustment): counting goes on unmoved.
    pub fn tsc_jumped(&mut self, old: Tsc, new: Tsc) {
        self.tick(old);
        self.timer.tsc_jumped(old, new);
    }
}
