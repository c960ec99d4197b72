//! [`VcpuState`] over the cached fields of the VMCS.

use super::cache::{Field, Part};
use super::segment::{attributes, rights};
use super::{Vmx, instr};
use crate::arch::state::{Gpr, SegReg, Segment, TableReg, VcpuState, cr0, cr4, efer};

impl VcpuState for Vmx {
    #[inline(always)]
    fn gpr(&self, reg: Gpr) -> u64 {
        match reg {
            Gpr::Rsp => self.cache.get(Field::Rsp),
            _ => self.block.gprs[reg as usize],
        }
    }

    #[inline(always)]
    fn set_gpr(&mut self, reg: Gpr, value: u64) {
        match reg {
            Gpr::Rsp => self.set(Field::Rsp, value),
            _ => self.block.gprs[reg as usize] = value,
        }
    }

    #[inline(always)]
    fn rip(&self) -> u64 {
        self.cache.get(Field::Rip)
    }

    #[inline(always)]
    fn set_rip(&mut self, value: u64) {
        self.set(Field::Rip, value);
    }

    #[inline(always)]
    fn rflags(&self) -> u64 {
        self.cache.get(Field::Rflags)
    }

    #[inline(always)]
    fn set_rflags(&mut self, value: u64) {
        self.set(Field::Rflags, value);
    }

    fn cr0(&self) -> u64 {
        self.masked(Field::Cr0, Field::Cr0Mask, Field::Cr0Shadow)
    }

    fn set_cr0(&mut self, value: u64) {
        self.write_controls(value, self.cr4(), self.efer());
    }

    fn cr2(&self) -> u64 {
        // Exits do not save CR2: while the VCPU is on a PCPU the processor has the guest's.
        if self.live.get() { instr::cr2() } else { self.saved.cr2 }
    }

    fn set_cr2(&mut self, value: u64) {
        self.saved.cr2 = value;
        if self.live.get() {
            instr::set_cr2(value);
        }
    }

    #[inline(always)]
    fn cr3(&self) -> u64 {
        match &self.guest_cr {
            None => self.cache.get(Field::Cr3),
            Some(guest) => guest.cr3,
        }
    }

    fn set_cr3(&mut self, value: u64) {
        match &mut self.guest_cr {
            None => self.set(Field::Cr3, value),
            Some(guest) => guest.cr3 = value,
        }
    }

    fn cr4(&self) -> u64 {
        self.masked(Field::Cr4, Field::Cr4Mask, Field::Cr4Shadow)
    }

    fn set_cr4(&mut self, value: u64) {
        self.write_controls(self.cr0(), value, self.efer());
    }

    #[inline(always)]
    fn efer(&self) -> u64 {
        match &self.guest_cr {
            None => self.cache.get(Field::Efer),
            Some(guest) => guest.efer,
        }
    }

    fn set_efer(&mut self, value: u64) {
        self.write_controls(self.cr0(), self.cr4(), value);
    }

    fn dr6(&self) -> u64 {
        if self.live.get() { instr::dr6() } else { self.saved.dr6 }
    }

    fn set_dr6(&mut self, value: u64) {
        self.saved.dr6 = value;
        if self.live.get() {
            instr::set_dr6(value);
        }
    }

    fn dr7(&self) -> u64 {
        self.cache.get(Field::Dr7)
    }

    fn set_dr7(&mut self, value: u64) {
        self.set(Field::Dr7, value);
    }

    #[inline]
    fn segment(&self, seg: SegReg) -> Segment {
        Segment {
            selector: self.cache.segment(seg, Part::Selector) as u16,
            attributes: attributes(self.cache.segment(seg, Part::Rights)),
            limit: self.cache.segment(seg, Part::Limit) as u32,
            base: self.cache.segment(seg, Part::Base),
        }
    }

    fn set_segment(&mut self, seg: SegReg, value: Segment) {
        self.set_part(seg, Part::Selector, value.selector.into());
        self.set_part(seg, Part::Limit, value.limit.into());
        self.set_part(seg, Part::Rights, rights(&value));
        self.set_part(seg, Part::Base, value.base);
    }

    fn gdtr(&self) -> TableReg {
        TableReg { base: self.cache.get(Field::GdtrBase), limit: self.cache.get(Field::GdtrLimit) as u16 }
    }

    fn set_gdtr(&mut self, value: TableReg) {
        self.set(Field::GdtrBase, value.base);
        self.set(Field::GdtrLimit, value.limit.into());
    }

    fn idtr(&self) -> TableReg {
        TableReg { base: self.cache.get(Field::IdtrBase), limit: self.cache.get(Field::IdtrLimit) as u16 }
    }

    fn set_idtr(&mut self, value: TableReg) {
        self.set(Field::IdtrBase, value.base);
        self.set(Field::IdtrLimit, value.limit.into());
    }

    fn pointers(&self) -> Option<[u64; 4]> {
        let (cr0, cr4) = (self.cr0(), self.cr4());
        let is_pae = cr0 & cr0::PG != 0 && cr4 & cr4::PAE != 0 && self.efer() & efer::LMA == 0;
        is_pae.then(|| self.read_pointers())
    }

    /// The processor takes it from SS, in every mode.
    #[inline]
    fn cpl(&self) -> u8 {
        (self.cache.segment(SegReg::Ss, Part::Rights) >> 5 & 3) as u8
    }

    #[inline]
    fn is_64bit(&self) -> bool {
        // L is reserved outside of long mode, where entries demand that it is clear.
        self.cache.segment(SegReg::Cs, Part::Rights) & 1 << 13 != 0
    }
}
