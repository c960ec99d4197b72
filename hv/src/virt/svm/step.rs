//! Steps over one instruction, after which something may come that the processor cannot be asked for.
//!
//! RFLAGS.TF makes the guest exit after the instruction (#DB is always intercepted). Two things need that: the end of an
//! interrupt shadow, where the processor does not look at it or an NMI waits for it, and the IRET of an NMI handler
//! ([`super::nmi`]). The prepare and finish steps of [`super::inject`] call this module; nothing of it is seen outside the
//! backend, except that a step for which an NMI waits ends as [`crate::virt::Exit::NmiWindow`]. AMD APM volume 2, 13.1.4
//! and 15.20.

use super::Svm;
use super::entry::work;
use super::vmcb::{clean, event, exit_code};
use crate::arch::state::{VcpuState, rflags};
use crate::arch::vector;
use crate::virt::{Event, Exit};

/// DR6.BS: a single-step trap.
const DR6_BS: u64 = 1 << 14;

/// DR6.BS and B3 to B0: what a #DB adds to.
const DR6_HITS: u64 = DR6_BS | 0xf;

/// What an IRET may raise. (#DB and #AC are intercepted anyway.)
const FAULTS_OF_IRET: u32 =
    1 << vector::UD | 1 << vector::TS | 1 << vector::NP | 1 << vector::SS | 1 << vector::GP | 1 << vector::PF;

/// The instruction that the guest steps over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    rip: u64,
    /// RFLAGS.TF as the guest knows it.
    tf: u64,
    /// DR6 likewise.
    dr6: u64,
    /// The IRET of an NMI handler: the exceptions that were intercepted before. Otherwise an interrupt shadow covers it.
    iret: Option<u32>,
}

impl Svm {
    /// Begins the step that is due, if any. True: interrupts must not be armed.
    pub(super) fn prepare_step(&mut self) -> bool {
        let vmcb = &self.block.vmcb;
        if vmcb.event_inj & event::VALID != 0 {
            if self.injection.leaving_nmi {
                // The IRET has faulted, and so the handler goes on.
                self.await_iret();
            }
            return false;
        }
        let in_shadow = vmcb.int_state & 1 != 0;
        let honours = !self.features.ignores_interrupt_shadow && !self.injection.nmi_window;
        if self.injection.leaving_nmi {
            self.begin_step(true);
        } else if in_shadow && !honours {
            self.begin_step(false);
        } else {
            return false;
        }
        true
    }

    /// Lets the guest execute one instruction. Where the processor ignores interrupt shadows, that is done even if nothing is
    /// offered: an exit before the instruction would not say any more that there was a shadow, and an interrupt between STI
    /// and HLT is slept through. The trap flag is not hidden from the instruction: PUSHF would see it; IRET would, in the
    /// frame of a fault, so those are intercepted.
    fn begin_step(&mut self, is_iret: bool) {
        if self.injection.stepping.is_none() {
            let vmcb = &mut self.block.vmcb;
            let iret = is_iret.then_some(vmcb.intercept_exceptions);
            let (rip, dr6, tf) = (vmcb.rip, vmcb.dr6, vmcb.rflags & rflags::TF);
            self.injection.stepping = Some(Step { rip, tf, dr6, iret });
            vmcb.rflags |= rflags::TF;
            // Its bits stay until software clears them: what is found there at the end is new.
            self.set_dr6(dr6 & !DR6_HITS);
            if is_iret {
                let vmcb = &mut self.block.vmcb;
                vmcb.intercept_exceptions |= FAULTS_OF_IRET;
                self.dirty(clean::INTERCEPTS);
            }
        }
        self.request(work::STEPPING);
    }

    /// Ends the step that is under way, if any. True: the exit was caused by it alone, and the guest just goes on.
    pub(super) fn end_step(&mut self) -> bool {
        let Some(step) = self.injection.stepping.take() else { return false };
        self.done(work::STEPPING);
        self.request(work::OFFER);
        let is_db = self.block.vmcb.exit_code == exit_code::EXCEPTION + u64::from(vector::DB);
        let hits = self.block.vmcb.dr6 & DR6_HITS;
        self.set_dr6(step.dr6 | if is_db { self.block.vmcb.dr6 } else { 0 });
        // A breakpoint at the instruction itself comes before it.
        let executed = is_db && hits & DR6_BS != 0 || self.block.vmcb.rip != step.rip;
        match step.iret {
            Some(exceptions) => {
                self.block.vmcb.intercept_exceptions = exceptions;
                self.dirty(clean::INTERCEPTS);
                if !executed {
                    self.restore_trap_flag(step.tf);
                    return self.reflect_fault(exceptions);
                }
                // RFLAGS is what the IRET has loaded.
                self.end_nmi_handler();
            }
            None => {
                self.restore_trap_flag(step.tf);
                if !is_db {
                    if !executed {
                        // Something of the host's, or a fault, came first.
                        self.block.vmcb.int_state |= 1;
                    }
                    return false;
                }
            }
        }
        self.block.vmcb.int_state &= !1;
        is_db && self.end_by_trap(step, hits)
    }

    fn restore_trap_flag(&mut self, tf: u64) {
        self.block.vmcb.rflags = self.block.vmcb.rflags & !rflags::TF | tf;
    }

    /// Delivers an exception that only the step has intercepted. `exceptions`: what is intercepted otherwise.
    fn reflect_fault(&mut self, exceptions: u32) -> bool {
        let vmcb = &mut self.block.vmcb;
        let number = vmcb.exit_code.wrapping_sub(exit_code::EXCEPTION);
        if number >= 32 || exceptions >> number & 1 != 0 {
            return false;
        }
        let Exit::Exception(fault) = super::decode::exit(vmcb, false) else { return false };
        vmcb.rflags |= rflags::RF;
        self.queue(Event::Exception(fault));
        true
    }

    /// The debug exception after the instruction: the step's, the guest's, or both.
    fn end_by_trap(&mut self, step: Step, hits: u64) -> bool {
        if step.tf != 0 {
            return false;
        }
        // The guest did not ask for the single step.
        self.set_dr6(self.block.vmcb.dr6 & !DR6_BS | step.dr6 & DR6_BS);
        if hits != DR6_BS {
            // A breakpoint of its own.
            return false;
        }
        if step.iret.is_none() && !core::mem::take(&mut self.injection.nmi_window) {
            return true;
        }
        // Decoded as the NMI window: what waits for it comes at once.
        self.block.vmcb.exit_code = exit_code::IRET;
        false
    }
}
