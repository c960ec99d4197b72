//! [`VcpuState`] over the VMCB save area.

use super::Svm;
use super::vmcb::clean;
use crate::arch::state::{Gpr, SegReg, Segment, TableReg, VcpuState, code_segment, cr0, cr4, efer};

impl VcpuState for Svm {
    #[inline(always)]
    fn gpr(&self, reg: Gpr) -> u64 {
        match reg {
            Gpr::Rax => self.block.vmcb.rax,
            Gpr::Rsp => self.block.vmcb.rsp,
            _ => self.block.gprs[reg as usize],
        }
    }

    #[inline(always)]
    fn set_gpr(&mut self, reg: Gpr, value: u64) {
        match reg {
            Gpr::Rax => self.block.vmcb.rax = value,
            Gpr::Rsp => self.block.vmcb.rsp = value,
            _ => self.block.gprs[reg as usize] = value,
        }
    }

    #[inline(always)]
    fn rip(&self) -> u64 {
        self.block.vmcb.rip
    }

    #[inline(always)]
    fn set_rip(&mut self, value: u64) {
        self.block.vmcb.rip = value;
    }

    #[inline(always)]
    fn rflags(&self) -> u64 {
        self.block.vmcb.rflags
    }

    #[inline(always)]
    fn set_rflags(&mut self, value: u64) {
        self.block.vmcb.rflags = value;
    }

    // With shadow tables the VMCB's control registers are those that shadow paging needs; the guest's own are in `guest_cr`.

    #[inline(always)]
    fn cr0(&self) -> u64 {
        match &self.guest_cr {
            None => self.block.vmcb.cr0,
            Some(guest) => self.cr0_of(guest),
        }
    }

    #[inline(always)]
    fn set_cr0(&mut self, value: u64) {
        let Some(guest) = &mut self.guest_cr else {
            self.block.vmcb.cr0 = value;
            return self.dirty(clean::CONTROL_REGS);
        };
        let changed = guest.cr0 ^ value;
        guest.cr0 = value;
        // Without a change of PG neither EFER nor CR4 of the VMCB depends on it.
        if changed & cr0::PG == 0 {
            self.follow_cr0(value);
        } else {
            self.follow_guest_cr();
        }
    }

    fn cr2(&self) -> u64 {
        self.block.vmcb.cr2
    }

    fn set_cr2(&mut self, value: u64) {
        self.block.vmcb.cr2 = value;
        self.dirty(clean::CR2);
    }

    #[inline(always)]
    fn cr3(&self) -> u64 {
        match &self.guest_cr {
            None => self.block.vmcb.cr3,
            Some(guest) => guest.cr3,
        }
    }

    #[inline(always)]
    fn address_space(&self) -> u64 {
        self.block.vmcb.cr3
    }

    /// With the VMCB's EFER: shadow tables leave its LMA as it is.
    #[inline(always)]
    fn code_segment(&self) -> u64 {
        code_segment(self.block.vmcb.cs.attributes, self.block.vmcb.efer)
    }

    fn set_cr3(&mut self, value: u64) {
        match &mut self.guest_cr {
            None => self.block.vmcb.cr3 = value,
            Some(guest) => guest.cr3 = value,
        }
        self.dirty(clean::CONTROL_REGS);
    }

    #[inline(always)]
    fn cr4(&self) -> u64 {
        match &self.guest_cr {
            None => self.block.vmcb.cr4,
            Some(guest) => guest.cr4,
        }
    }

    #[inline(always)]
    fn set_cr4(&mut self, value: u64) {
        let Some(guest) = &mut self.guest_cr else {
            self.block.vmcb.cr4 = value;
            return self.dirty(clean::CONTROL_REGS);
        };
        let changed = guest.cr4 ^ value;
        guest.cr4 = value;
        if changed & !cr4::PGE == 0 {
            // Shadow paging leaves it to the guest.
            self.block.vmcb.cr4 ^= changed;
            return self.dirty(clean::CONTROL_REGS);
        }
        self.follow_all();
    }

    /// Without SVME, which the processor demands while a guest runs and the guest must not see.
    #[inline(always)]
    fn efer(&self) -> u64 {
        match &self.guest_cr {
            None => self.block.vmcb.efer & !efer::SVME,
            Some(guest) => guest.efer,
        }
    }

    fn set_efer(&mut self, value: u64) {
        // The guest may have changed TS and MP without an exit.
        self.learn_cr0();
        match &mut self.guest_cr {
            None => self.block.vmcb.efer = value | efer::SVME,
            Some(guest) => guest.efer = value,
        }
        self.follow_guest_cr();
        self.dirty(clean::CONTROL_REGS);
    }

    fn dr6(&self) -> u64 {
        self.block.vmcb.dr6
    }

    fn set_dr6(&mut self, value: u64) {
        self.block.vmcb.dr6 = value;
        self.dirty(clean::DEBUG_REGS);
    }

    fn dr7(&self) -> u64 {
        self.block.vmcb.dr7
    }

    fn set_dr7(&mut self, value: u64) {
        self.block.vmcb.dr7 = value;
        self.dirty(clean::DEBUG_REGS);
    }

    #[inline]
    fn segment(&self, seg: SegReg) -> Segment {
        match seg {
            SegReg::Es => self.block.vmcb.es,
            SegReg::Cs => self.block.vmcb.cs,
            SegReg::Ss => self.block.vmcb.ss,
            SegReg::Ds => self.block.vmcb.ds,
            // VMRUN does not switch these: the processor may hold the newest ones.
            hidden => {
                self.save_hidden();
                match hidden {
                    SegReg::Fs => self.block.vmcb.fs,
                    SegReg::Gs => self.block.vmcb.gs,
                    SegReg::Ldtr => self.block.vmcb.ldtr,
                    _ => self.block.vmcb.tr,
                }
            }
        }
    }

    fn set_segment(&mut self, seg: SegReg, value: Segment) {
        match seg {
            SegReg::Es => self.block.vmcb.es = value,
            SegReg::Cs => self.block.vmcb.cs = value,
            SegReg::Ss => {
                self.block.vmcb.ss = value;
                // AMD APM 2, 15.5.1: the VMCB has a field for the CPL, which is SS.DPL.
                self.block.vmcb.cpl = value.dpl();
            }
            SegReg::Ds => self.block.vmcb.ds = value,
            SegReg::Fs => self.hidden_mut().fs = value,
            SegReg::Gs => self.hidden_mut().gs = value,
            SegReg::Ldtr => self.hidden_mut().ldtr = value,
            SegReg::Tr => self.hidden_mut().tr = value,
        }
        self.dirty(clean::SEGMENTS);
    }

    fn gdtr(&self) -> TableReg {
        TableReg { base: self.block.vmcb.gdtr.base, limit: self.block.vmcb.gdtr.limit as u16 }
    }

    fn set_gdtr(&mut self, value: TableReg) {
        self.block.vmcb.gdtr =
            Segment { base: value.base, limit: u32::from(value.limit), ..Segment::default() };
        self.dirty(clean::TABLES);
    }

    fn idtr(&self) -> TableReg {
        TableReg { base: self.block.vmcb.idtr.base, limit: self.block.vmcb.idtr.limit as u16 }
    }

    fn set_idtr(&mut self, value: TableReg) {
        self.block.vmcb.idtr =
            Segment { base: value.base, limit: u32::from(value.limit), ..Segment::default() };
        self.dirty(clean::TABLES);
    }

    fn cpl(&self) -> u8 {
        self.block.vmcb.cpl
    }
}
