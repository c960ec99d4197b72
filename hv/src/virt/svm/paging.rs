//! What translates the guest's addresses: nested tables beside the guest's own, or shadow tables in their place.
//!
//! With shadow tables the VMCB holds the control registers that they need ([`HardwareControls`]), and [`GuestCr`] holds
//! what the guest put there; [`crate::arch::VcpuState`] shows the latter. All that would show the guest the difference,
//! or change what its addresses mean, is intercepted. AMD APM 2, 15.25 and 15.16.

use super::vmcb::{clean, cr, misc1, misc3};
use super::{Features, Svm, instr};
use crate::arch::addr::{Gva, Hpa};
use crate::arch::state::{VcpuState, cr0, efer};
use crate::arch::vector;
use crate::hw::msr;
use crate::paging::shadow::HardwareControls;
use crate::virt::Roots;

use super::entry::work;

/// Control registers as the guest believes them to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestCr {
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
}

/// The intercepts of control registers that every mode has: a write of CR4 may set bits that this machine or policy does
/// not have.
pub(super) const ALWAYS: u32 = cr::CR4_WRITE;

/// What to intercept so that the `intercepted` accesses to control registers exit.
fn intercepts(features: &Features, intercepted: u32) -> u32 {
    let reads_exit = intercepted & cr::READS != 0;
    intercepted | if features.takes_reads_for_cr0 && reads_exit { cr::CR0_READ } else { 0 }
}

/// What a write of CR0 may change without an exit, by the selective intercept of CR0 (APM 2, 15.9): what no table depends on,
/// and kernels change at each switch between processes.
const FREE_CR0: u64 = cr0::TS | cr0::MP;

/// The PAT of the host, which the guest has on shadow tables: entries switch it only with nested ones (APM 2, 15.25.8).
pub(super) fn host_pat() -> u64 {
    // SAFETY: every processor with AMD-V has a PAT.
    unsafe { msr::read(msr::IA32_PAT) }
}

impl Svm {
    #[inline(always)]
    pub(super) fn use_roots(&mut self, roots: Roots) {
        match roots {
            Roots::Nested(root) => self.use_nested(root),
            Roots::Shadow(root) => {
                if self.guest_cr.is_none() {
                    self.begin_shadow();
                }
                self.block.vmcb.cr3 = root.0;
                self.dirty(clean::CONTROL_REGS);
            }
        }
    }

    #[inline(never)]
    fn use_nested(&mut self, root: Hpa) {
        let vmcb = &mut self.block.vmcb;
        (vmcb.np_control, vmcb.nested_cr3) = (1, root.0);
        self.learn_cr0();
        let vmcb = &mut self.block.vmcb;
        if let Some(guest) = self.guest_cr.take() {
            (vmcb.cr0, vmcb.cr3, vmcb.cr4) = (guest.cr0, guest.cr3, guest.cr4);
            vmcb.efer = guest.efer | efer::SVME;
            vmcb.intercept_cr = vmcb.intercept_cr & cr::CR8_WRITE | ALWAYS;
            vmcb.intercept_exceptions &= !(1 << vector::PF);
            vmcb.intercept_misc1 &= !(misc1::INVLPG | misc1::CR0_SEL_WRITE | misc1::TR_WRITE);
            vmcb.intercept_misc3 &= !misc3::INVPCID;
        }
        self.paging_changed();
    }

    /// See [`Virt::set_cr3_exits`](crate::virt::Virt::set_cr3_exits).
    pub(super) fn take_cr3_loads(&mut self, exits: bool) {
        let vmcb = &mut self.block.vmcb;
        if self.guest_cr.is_none() && exits != (vmcb.intercept_cr & cr::CR3_WRITE != 0) {
            vmcb.intercept_cr ^= cr::CR3_WRITE;
            self.dirty(clean::INTERCEPTS);
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_shadow(&mut self) {
        let (cr0, cr3, cr4) = (self.cr0(), self.cr3(), self.cr4());
        self.guest_cr = Some(GuestCr { cr0, cr3, cr4, efer: self.efer() });
        let vmcb = &mut self.block.vmcb;
        // Without nested paging CR3 is the root of the shadow tables: guest-virtual to host-physical in one walk.
        vmcb.np_control = 0;
        vmcb.intercept_exceptions |= 1 << vector::PF;
        vmcb.intercept_misc1 |= misc1::INVLPG | misc1::CR0_SEL_WRITE;
        // A guest flushes what it has changed: here the shadow entries follow the guest's tables.
        vmcb.intercept_misc3 |= misc3::INVPCID;
        self.follow_guest_cr();
        self.paging_changed();
    }

    /// See [`Virt::guarded_page`](crate::virt::Virt::guarded_page): where task switches are not intercepted, the page of the
    /// current TSS, as long as the guest can execute one. LTR exits then, so that the VMCB's copy of TR is the right one.
    pub(super) fn task_page(&mut self) -> Option<Gva> {
        let guest = self.guest_cr.filter(|_| self.features.misses_task_switches)?;
        let can_switch = guest.cr0 & cr0::PE != 0 && guest.efer & efer::LMA == 0;
        if can_switch != (self.block.vmcb.intercept_misc1 & misc1::TR_WRITE != 0) {
            self.save_hidden();
            // TR is the VMLOAD state's: the VMCB has an old one until it is saved. From then on LTR exits.
            self.block.vmcb.intercept_misc1 ^= misc1::TR_WRITE;
            self.dirty(clean::INTERCEPTS);
        }
        // The emulation writes to the first byte of the TSS before anything else.
        can_switch.then_some(Gva(self.block.vmcb.tr.base & 0xffff_f000))
    }

    fn paging_changed(&mut self) {
        self.dirty(clean::NESTED_PAGING | clean::CONTROL_REGS | clean::INTERCEPTS);
        self.request(work::FLUSH);
    }

    /// The guest's CR0 on shadow tables: some of its bits may have changed without an exit.
    #[inline(always)]
    pub(super) fn cr0_of(&self, guest: &GuestCr) -> u64 {
        guest.cr0 & !FREE_CR0 | self.block.vmcb.cr0 & FREE_CR0
    }

    /// Takes over what the guest has changed in CR0 without an exit, before [`Svm::follow_guest_cr`] writes it.
    pub(super) fn learn_cr0(&mut self) {
        if let Some(guest) = self.guest_cr {
            let cr0 = self.cr0_of(&guest);
            self.guest_cr = Some(GuestCr { cr0, ..guest });
        }
    }

    /// What [`Svm::follow_guest_cr`] does after a change of CR0, which becomes `guest`, that leaves PG alone.
    #[inline(always)]
    pub(super) fn follow_cr0(&mut self, guest: u64) {
        let hardware = HardwareControls::cr0(guest);
        // Where reads of CR0 exit for the sake of others', they go on to.
        let reads = if self.features.takes_reads_for_cr0 { 0 } else { cr::CR0_READ };
        let vmcb = &mut self.block.vmcb;
        vmcb.cr0 = hardware;
        if hardware == guest {
            vmcb.intercept_cr &= !(cr::CR0_WRITE | reads);
        } else {
            vmcb.intercept_cr |= cr::CR0_WRITE | reads;
        }
        self.dirty(clean::CONTROL_REGS | clean::INTERCEPTS);
    }

    /// [`Svm::follow_guest_cr`], after what the guest has changed without an exit is known.
    #[inline(never)]
    pub(super) fn follow_all(&mut self) {
        self.learn_cr0();
        self.follow_guest_cr();
    }

    /// Brings the VMCB in step with [`GuestCr`], after a change of it; nothing to do without shadow tables.
    pub(super) fn follow_guest_cr(&mut self) {
        let Some(guest) = self.guest_cr else { return };
        let hardware = HardwareControls::new(guest.cr0, guest.cr4, guest.efer);
        let vmcb = &mut self.block.vmcb;
        (vmcb.cr0, vmcb.cr4) = (hardware.cr0, hardware.cr4);
        vmcb.efer = hardware.efer | efer::SVME;
        let mut intercepted = ALWAYS | cr::CR3_WRITE | cr::CR3_READ;
        // The selective intercept compares with what the processor holds: that must be what the guest believes.
        if hardware.cr0 != guest.cr0 {
            intercepted |= cr::CR0_READ | cr::CR0_WRITE;
        }
        if hardware.cr4 != guest.cr4 {
            intercepted |= cr::CR4_READ;
        }
        vmcb.intercept_cr = vmcb.intercept_cr & cr::CR8_WRITE | intercepts(&self.features, intercepted);
        self.dirty(clean::CONTROL_REGS | clean::INTERCEPTS);
    }

    /// Drops the translations of one page, if not all are about to be dropped anyway.
    pub(super) fn flush_page(&mut self, gva: Gva) {
        if self.work.get() & work::FLUSH == 0 {
            // SAFETY: SVM is on (a guest ran). An ASID that is no longer this VCPU's costs its owner a translation.
            unsafe { instr::invlpga(gva.0, self.asid.value) };
        }
    }
}
