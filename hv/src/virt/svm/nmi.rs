//! NMIs: at most one handler runs, and the next NMI comes right after its IRET (AMD APM 2, 8.2.3 and 15.21.10).
//!
//! Processors with virtual NMIs do all of it: V_NMI_PENDING asks for one, V_NMI_MASK is set while the handler runs. On others
//! an NMI goes through EVENTINJ and this module follows the handler: its IRET is intercepted, and executed in a step
//! ([`super::step`]), so that the exit after it is before the next instruction. An IRET that faults does not end the
//! blocking, neither here nor where the processor tracks it ("successfully completes", 15.21.10).

use super::entry::work;
use super::inject::encode;
use super::vmcb::{clean, exit_code, int_ctl, misc1};
use super::{Svm, decode};
use crate::arch::state::{cr0, efer, rflags};
use crate::virt::{Event, Virt};

impl Svm {
    /// Gives the guest an NMI. The processor takes a virtual one when it can, and several that wait are one.
    pub(super) fn inject_nmi(&mut self) {
        self.injection.nmi_window = false;
        if self.features.virtual_nmi {
            self.block.vmcb.int_ctl |= int_ctl::V_NMI_PENDING;
            self.dirty(clean::INTERRUPT);
        } else {
            self.block.vmcb.event_inj = encode(Event::Nmi);
            self.await_iret();
        }
    }

    /// NMIs are blocked until an IRET.
    pub(super) fn await_iret(&mut self) {
        self.request(work::NMI_BLOCKED);
        self.injection.leaving_nmi = false;
        self.block.vmcb.intercept_misc1 |= misc1::IRET;
        self.dirty(clean::INTERCEPTS);
    }

    /// Whether the exit is the IRET of an NMI handler, and the guest goes on with a step over it. One that returns from a task
    /// is executed in software instead, like all task switches: it would save the step's trap flag in the TSS.
    pub(super) fn note_iret(&mut self) -> bool {
        let is_iret = self.block.vmcb.exit_code == exit_code::IRET;
        if is_iret && self.is_in_nested_task() {
            decode::make_task_return(&mut self.block.vmcb);
            return false;
        }
        if is_iret {
            self.injection.leaving_nmi = true;
            self.block.vmcb.intercept_misc1 &= !misc1::IRET;
            self.dirty(clean::INTERCEPTS);
        }
        is_iret
    }

    /// Whether an IRET is a task switch.
    fn is_in_nested_task(&self) -> bool {
        let vmcb = &self.block.vmcb;
        vmcb.rflags & (rflags::NT | rflags::VM) == rflags::NT
            && vmcb.cr0 & cr0::PE != 0
            && vmcb.efer & efer::LMA == 0
    }

    /// An NMI has been delivered in software: others are blocked.
    pub(super) fn block_nmis(&mut self) {
        if self.features.virtual_nmi {
            self.block.vmcb.int_ctl |= int_ctl::V_NMI_MASK;
            self.dirty(clean::INTERRUPT);
        } else {
            self.await_iret();
        }
    }

    /// NMIs are no longer blocked.
    pub(super) fn end_nmi_handler(&mut self) {
        if self.features.virtual_nmi {
            // The processor has not executed the IRET.
            self.block.vmcb.int_ctl &= !int_ctl::V_NMI_MASK;
            self.dirty(clean::INTERRUPT);
        }
        self.injection.leaving_nmi = false;
        self.block.vmcb.intercept_misc1 &= !misc1::IRET;
        self.dirty(clean::INTERCEPTS);
        self.done(work::NMI_BLOCKED);
    }

    /// Whether an NMI that waits in the processor can be taken at once.
    pub(super) fn has_virtual_nmi(&self) -> bool {
        self.block.vmcb.int_ctl & (int_ctl::V_NMI_PENDING | int_ctl::V_NMI_MASK) == int_ctl::V_NMI_PENDING
    }

    /// Whether an NMI can be injected.
    pub(super) fn accepts_nmi(&self) -> bool {
        let blocked = self.work.get() & work::NMI_BLOCKED != 0;
        self.features.virtual_nmi || !blocked && self.block.vmcb.int_state & 1 == 0 && !self.event_pending()
    }

    /// Sees to an exit once an NMI can be injected. False: the end of another event's delivery cannot be seen.
    pub(super) fn watch_for_nmi(&mut self) -> bool {
        // The IRET of the handler exits anyway.
        if self.work.get() & work::NMI_BLOCKED != 0 {
            return true;
        }
        if self.event_pending() {
            return false;
        }
        self.injection.nmi_window = true;
        self.request(work::OFFER);
        true
    }
}
