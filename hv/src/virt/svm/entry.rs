//! What an entry needs beyond VMRUN, when [`super::work`] says so: the TLB, the hidden state, events.

use super::asid::Asid;
use super::vmcb::{Vmcb, clean, event, tlb_control};
use super::{Svm, SvmCpu, instr, pa};
use crate::arch::state::rflags;
use crate::virt::Finished;

/// Where the state that VMLOAD and VMSAVE move is right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VmloadState {
    /// In the VMCB; the processor holds the host's, and GIF is 1.
    InVmcb,
    /// In the processor; the VMCB is stale, and GIF is 0.
    Live,
    /// In both, and GIF is 0.
    Both,
    /// In the VMCB, which is newer than the processor; GIF is 0.
    VmcbNewer,
}

/// Bits of [`Svm::work`]. While it is 0, an entry is VMRUN alone.
pub(super) mod work {
    /// Translations must be dropped.
    pub const FLUSH: u8 = 1 << 0;
    /// This entry drops translations by TLB_CONTROL.
    pub const FLUSHING: u8 = 1 << 1;
    /// [`super::VmloadState`] is not `Live`.
    pub const HIDDEN: u8 = 1 << 2;
    /// An exception or NMI waits.
    pub const EVENT: u8 = 1 << 3;
    /// The offer of an interrupt changed.
    pub const OFFER: u8 = 1 << 4;
    /// V_IRQ is set.
    pub const ARMED: u8 = 1 << 5;
    /// The guest is in its NMI handler.
    pub const NMI_BLOCKED: u8 = 1 << 6;
    /// The guest steps over the end of an interrupt shadow.
    pub const STEPPING: u8 = 1 << 7;
}

impl Svm {
    /// Does what an entry needs beyond VMRUN: see [`work`].
    #[cold]
    #[inline(never)]
    pub(super) fn prepare(&mut self, cpu: &mut SvmCpu) {
        if self.work.get() & (work::FLUSH | work::HIDDEN) != 0 {
            self.prepare_tlb(cpu);
            self.load_hidden();
            if self.work.get() & !work::FLUSHING == 0 {
                return;
            }
        }
        self.prepare_injection();
    }

    /// Notes what came of [`Svm::prepare`].
    #[cold]
    #[inline(never)]
    pub(super) fn finish(&mut self) -> Finished {
        if self.work.get() & work::FLUSHING != 0 {
            // #VMEXIT leaves the field as it is: the next entry would flush again.
            self.block.vmcb.tlb_control = tlb_control::NOTHING;
            self.done(work::FLUSHING);
            if self.work.get() == 0 && self.block.vmcb.exit_int_info & event::VALID == 0 {
                return Finished::Plain;
            }
        }
        if self.finish_injection() { Finished::Nothing } else { Finished::Other }
    }

    /// Flushes by an ASID that has not been used, if nothing else is to be done, there is one, and that is how it is done here.
    #[inline(always)]
    pub(super) fn take_next_asid(&mut self, cpu: &mut SvmCpu) -> bool {
        if self.work.get() != work::FLUSH || self.home != cpu.id() || self.features.flush_by_asid {
            return false;
        }
        let Some(asid) = cpu.asids.next_unused() else { return false };
        self.asid = asid;
        self.block.vmcb.asid = asid.value;
        self.dirty(clean::ASID);
        self.work.set(0);
        true
    }

    /// Gives the VMCB an ASID of this PCPU and asks for the flushes that are due.
    fn prepare_tlb(&mut self, cpu: &mut SvmCpu) {
        // Another PCPU has nothing of this VMCB in its cache, and its ASIDs are numbers of its own: that of the last PCPU
        // may be another VCPU's here (APM 2, 15.15 and 15.16).
        if self.home != cpu.id() {
            self.home = cpu.id();
            self.asid = Asid::default();
            self.block.vmcb.clean = 0;
        }
        let current = cpu.asids.is_current(self.asid);
        if self.work.get() & work::FLUSH == 0 && current {
            return;
        }
        self.done(work::FLUSH);
        // The ASID is kept where it can be flushed alone: ASIDs are few, and when they run out all VCPUs lose their
        // translations.
        if self.features.flush_by_asid && current {
            self.block.vmcb.tlb_control = tlb_control::FLUSH_ASID;
            self.request(work::FLUSHING);
        } else {
            let (asid, flush_all) = cpu.asids.allocate();
            self.asid = asid;
            self.block.vmcb.asid = asid.value;
            self.dirty(clean::ASID);
            if flush_all {
                self.block.vmcb.tlb_control = tlb_control::FLUSH_ALL;
                self.request(work::FLUSHING);
            }
        }
    }

    /// Makes the VMCB's copy of the hidden state readable.
    #[inline]
    pub(super) fn save_hidden(&self) {
        if self.vmload.get() == VmloadState::Live {
            // SAFETY: SVM is on (a guest ran), the VMCB is this VCPU's own, and the processor still holds its state.
            unsafe { instr::vmsave(pa(&self.block.vmcb)) };
            self.set_vmload(VmloadState::Both);
        }
    }

    /// Makes the VMCB's copy of the hidden state the one that counts, and gives access to it.
    #[inline]
    pub(super) fn hidden_mut(&mut self) -> &mut Vmcb {
        self.save_hidden();
        if self.vmload.get() == VmloadState::Both {
            self.set_vmload(VmloadState::VmcbNewer);
        }
        &mut self.block.vmcb
    }

    /// Every state but [`VmloadState::Live`] must be left before the next entry.
    pub(super) fn set_vmload(&self, state: VmloadState) {
        self.vmload.set(state);
        self.request(work::HIDDEN);
    }

    /// Hands the processor to the guest, as far as VMRUN does not.
    fn load_hidden(&mut self) {
        // In the state `Both` the processor still has what the VMCB has: VMLOAD is spared.
        if matches!(self.vmload.get(), VmloadState::InVmcb | VmloadState::VmcbNewer) {
            // SAFETY: SVM is on (the caller holds an SvmCpu); with GIF = 0 no interrupt can meet the guest's TR. Physical
            // interrupts are masked in the guest by the host's IF as it is at VMRUN, so IF must be 1 then.
            unsafe {
                // GIF first: an interrupt that STI lets in would run on the guest's TR after VMLOAD.
                if self.vmload.get() == VmloadState::InVmcb {
                    instr::clgi();
                    core::arch::asm!("sti", options(nomem, nostack));
                }
                instr::vmload(pa(&self.block.vmcb));
            }
        }
        self.vmload.set(VmloadState::Live);
        self.done(work::HIDDEN);
    }
}

/// Execution goes on at `rip`; the interrupt shadow and RF end. True: TF is set.
#[inline(always)]
pub(super) fn end(vmcb: &mut Vmcb, rip: u64) -> bool {
    vmcb.rip = rip;
    vmcb.int_state &= !1;
    let flags = vmcb.rflags;
    if flags & (rflags::RF | rflags::TF) == 0 {
        return false;
    }
    vmcb.rflags = flags & !rflags::RF;
    flags & rflags::TF != 0
}
