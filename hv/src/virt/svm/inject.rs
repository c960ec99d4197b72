//! Delivery of events: exceptions and NMIs by EVENTINJ, external interrupts by V_IRQ (AMD APM 2, 15.20 and 15.21).
//!
//! External interrupts never go through EVENTINJ: V_IRQ waits in the processor until the guest can take them, which
//! needs no window exit, and QEMU's emulation delivers EVENTINJ interrupts twice. NMIs and steps over single instructions
//! have modules of their own. One word, [`super::entry::work`], keeps
//! the common entry and exit free of all this.

use super::Svm;
use super::entry::work;
use super::step::Step;
use super::vmcb::{clean, cr, event, exit_code, int_ctl, misc1};
use crate::arch::addr::Gva;
use crate::arch::state::{VcpuState, rflags};
use crate::arch::{Exception, vector};
use crate::virt::{Event, PendingIrq, Virt};

/// EVENTINJ for #PF, without the error code.
const PAGE_FAULT: u64 = event::VALID | event::TYPE_EXCEPTION | event::ERROR_VALID | vector::PF as u64;

/// What waits for the guest; [`super::entry::work`] says whether there is anything.
#[derive(Debug, Default)]
pub(super) struct Injection {
    pub(super) event: Option<Event>,
    pub(super) interrupted: Option<Event>,
    offered: PendingIrq,
    pub(super) taken: Option<u8>,
    /// The IRET of the NMI handler has been intercepted, and is executed next: in a step.
    pub(super) leaving_nmi: bool,
    /// An NMI waits for the end of the interrupt shadow.
    pub(super) nmi_window: bool,
    pub(super) stepping: Option<Step>,
}

impl Svm {
    pub(super) fn queue(&mut self, event: Event) {
        self.injection.event = Some(event);
        self.request(work::EVENT);
    }

    /// The short way of an exception that is alone: EVENTINJ at once, which #VMEXIT clears.
    #[inline]
    pub(super) fn deliver_page_fault(&mut self, gva: Gva, error: u32) {
        let vmcb = &mut self.block.vmcb;
        vmcb.event_inj = PAGE_FAULT | u64::from(error) << event::ERROR_SHIFT;
        vmcb.cr2 = gva.0;
        // In the image that a fault pushes, so that its handler's IRET gets over an instruction breakpoint.
        vmcb.rflags |= rflags::RF;
        self.dirty(clean::CR2);
    }

    pub(super) fn offer(&mut self, offer: PendingIrq) {
        if offer != self.injection.offered {
            self.injection.offered = offer;
            self.request(work::OFFER);
        }
    }

    /// Writes what waits for the guest into the VMCB.
    pub(super) fn prepare_injection(&mut self) {
        // An event of this exit comes before the interrupted one, which an exception has taken into account when it was
        // injected (`take_interrupted_event`, the double-fault rules).
        match self.injection.event.take().or_else(|| self.injection.interrupted.take()) {
            Some(Event::Nmi) => self.inject_nmi(),
            Some(Event::Exception(exception)) => {
                self.block.vmcb.event_inj = encode(Event::Exception(exception));
                // The delivery ends it.
                self.block.vmcb.int_state &= !1;
                if let Some(cr2) = exception.cr2 {
                    self.set_cr2(cr2);
                }
            }
            None => {}
        }
        self.done(work::EVENT);
        let hold = self.prepare_step();
        let offered = self.injection.offered;
        let ctl = if hold || offered == PendingIrq::None || self.is_held_by_cr8(offered) {
            self.done(work::ARMED);
            0
        } else {
            self.request(work::ARMED);
            armed(offered)
        };
        self.done(work::OFFER);
        const OFFER: u64 =
            int_ctl::V_IRQ | int_ctl::V_IGN_TPR | int_ctl::V_INTR_PRIO | int_ctl::V_INTR_VECTOR;
        let ctl = self.block.vmcb.int_ctl & !OFFER | ctl;
        if ctl != self.block.vmcb.int_ctl {
            self.block.vmcb.int_ctl = ctl;
            self.dirty(clean::INTERRUPT);
        }
        self.watch(offered);
    }

    pub(super) fn set_virtual_tpr(&mut self, value: u8) {
        self.block.vmcb.int_ctl = self.block.vmcb.int_ctl & !int_ctl::V_TPR | u64::from(value & 0xf);
        self.dirty(clean::INTERRUPT);
        if self.features.misjudges_task_priority {
            self.request(work::OFFER);
        }
    }

    /// Whether an offer must not be armed because CR8 holds it back; where the processor judges that itself, never.
    fn is_held_by_cr8(&self, offer: PendingIrq) -> bool {
        let PendingIrq::Vector(vector) = offer else { return false };
        self.features.misjudges_task_priority && vector >> 4 <= self.task_priority()
    }

    /// Intercepts what an offer needs: the window, and writes of CR8 where the processor misjudges them.
    fn watch(&mut self, offer: PendingIrq) {
        let vmcb = &mut self.block.vmcb;
        let (misc, registers) = (vmcb.intercept_misc1, vmcb.intercept_cr);
        let is_window = offer == PendingIrq::Window;
        // VINTR exits before the guest takes the interrupt: then the 8259A is asked for the vector, which may have
        // changed meanwhile.
        vmcb.intercept_misc1 = misc & !misc1::VINTR | if is_window { misc1::VINTR } else { 0 };
        let holds = self.features.misjudges_task_priority && offer != PendingIrq::None;
        vmcb.intercept_cr = registers & !cr::CR8_WRITE | if holds { cr::CR8_WRITE } else { 0 };
        if (misc, registers) != (vmcb.intercept_misc1, vmcb.intercept_cr) {
            self.dirty(clean::INTERCEPTS);
        }
    }

    /// Notes what became of the events of the last entry. True: the exit was caused by this module alone (a step over
    /// an interrupt shadow) and the guest just goes on.
    pub(super) fn finish_injection(&mut self) -> bool {
        self.block.vmcb.event_inj = 0;
        let info = self.block.vmcb.exit_int_info;
        let interrupted = info & event::VALID != 0;
        if interrupted {
            self.injection.interrupted = decode(info, self.block.vmcb.cr2);
            if self.injection.interrupted.is_some() {
                self.request(work::EVENT);
            }
            if self.injection.interrupted == Some(Event::Nmi) {
                self.end_nmi_handler();
            }
        }
        if self.block.vmcb.exit_code == exit_code::VINTR {
            // The window: the next offer follows.
            self.injection.offered = PendingIrq::None;
            self.done(work::ARMED);
            self.request(work::OFFER);
        } else if self.work.get() & work::ARMED != 0 {
            if self.block.vmcb.int_ctl & int_ctl::V_IRQ != 0 {
                // Still waiting.
            } else if interrupted && is_external(info) {
                // Its delivery faulted: offer it again.
                self.done(work::ARMED);
                self.request(work::OFFER);
            } else {
                if let PendingIrq::Vector(vector) | PendingIrq::ExtInt(vector) =
                    core::mem::take(&mut self.injection.offered)
                {
                    self.injection.taken = Some(vector);
                }
                self.done(work::ARMED);
                if self.features.misjudges_task_priority {
                    // CR8 need not be intercepted any longer.
                    self.request(work::OFFER);
                }
            }
        }
        self.note_iret() || self.end_step()
    }

    /// The event whose delivery was interrupted has been delivered in software.
    pub(super) fn end_delivery(&mut self) {
        let info = self.block.vmcb.exit_int_info;
        if info & event::VALID == 0 {
            return;
        }
        if self.injection.interrupted.take() == Some(Event::Nmi) {
            self.block_nmis();
        } else if is_external(info)
            && let PendingIrq::Vector(vector) | PendingIrq::ExtInt(vector) =
                core::mem::take(&mut self.injection.offered)
        {
            self.injection.taken = Some(vector);
            self.request(work::OFFER);
        }
    }

    /// To be called at an exit after which the guest may go on where it was: an interrupt shadow that stands then must stand at
    /// the next entry, also where the processor does not look at it.
    #[inline(always)]
    pub(super) fn keep_shadow(&self) {
        if self.block.vmcb.int_state & 1 != 0 && self.features.ignores_interrupt_shadow {
            self.request(work::OFFER);
        }
    }
}

/// The part of `int_ctl` that makes the processor offer an interrupt.
fn armed(offer: PendingIrq) -> u64 {
    let interrupt = |vector: u8| int_ctl::V_IRQ | u64::from(vector) << int_ctl::V_INTR_VECTOR_SHIFT;
    match offer {
        PendingIrq::None => 0,
        PendingIrq::Vector(vector) => {
            interrupt(vector) | u64::from(vector >> 4) << int_ctl::V_INTR_PRIO_SHIFT
        }
        // The 8259A's interrupts do not pass the local APIC, so its task priority does not hold them back.
        PendingIrq::ExtInt(vector) => interrupt(vector) | int_ctl::V_IGN_TPR,
        PendingIrq::Window => int_ctl::V_IRQ | int_ctl::V_IGN_TPR,
    }
}

/// EVENTINJ for an event.
pub(super) fn encode(what: Event) -> u64 {
    let (word, error) = crate::virt::event::encode(what);
    u64::from(word) | u64::from(error.unwrap_or(0)) << event::ERROR_SHIFT
}

/// Whether EXITINTINFO names an external interrupt. QEMU's emulation calls a virtual one whose delivery faults an exception
/// with that vector.
fn is_external(info: u64) -> bool {
    let number = info & event::VECTOR;
    info & event::TYPE == event::TYPE_INTR || info & event::TYPE == event::TYPE_EXCEPTION && number >= 32
}

/// The event of EXITINTINFO that must be delivered again, where INT3 and INTO look like hardware exceptions.
fn decode(info: u64, cr2: u64) -> Option<Event> {
    let found = crate::virt::event::decode(info as u32, || (info >> event::ERROR_SHIFT) as u32, cr2);
    // RIP is still at the INT3 or INTO, which the guest executes again; delivered as an event, too, it would come twice.
    let again = |e: &Exception| e.vector != vector::BP && e.vector != vector::OF && e.vector < 32;
    found.filter(|found| !matches!(found, Event::Exception(e) if !again(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_a_round_trip() {
        let pf = Event::Exception(Exception { vector: 14, error: Some(7), cr2: Some(0x1000) });
        assert_eq!(decode(encode(pf), 0x1000), Some(pf));
        assert_eq!(encode(pf), 0x7_8000_0b0e);
        assert_eq!(decode(encode(Event::Nmi), 0), Some(Event::Nmi));
        let ud = Event::Exception(Exception::UD);
        assert_eq!(decode(encode(ud), 0), Some(ud));
    }

    #[test]
    fn the_task_priority_holds_only_what_the_local_apic_sends() {
        assert_eq!(armed(PendingIrq::None), 0);
        assert_eq!(armed(PendingIrq::Vector(0x61)), 0x61_0006_0100);
        assert_eq!(armed(PendingIrq::ExtInt(0x30)), 0x30_0010_0100);
        assert_eq!(armed(PendingIrq::Window), 0x10_0100);
    }

    #[test]
    fn software_and_external_interrupts_are_not_repeated_as_events() {
        assert_eq!(decode(event::VALID | u64::from(crate::virt::event::SOFTWARE) | 0x80, 0), None);
        assert_eq!(decode(event::VALID | event::TYPE_INTR | 0x40, 0), None);
        assert_eq!(decode(event::VALID | event::TYPE_EXCEPTION | 3, 0), None);
        assert_eq!(decode(event::VALID | event::TYPE_EXCEPTION | 0x30, 0), None);
        assert!(is_external(event::VALID | event::TYPE_EXCEPTION | 0x30));
    }
}
