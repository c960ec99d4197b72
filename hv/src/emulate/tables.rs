//! The registers of descriptor tables and the machine status word, to and from memory. AMD APM 3, chapter 4.

use super::Memory;
use super::address::is_canonical;
use super::execute::{Exec, Flow, Res};
use super::insn::{Mode, Operand, Table};
use crate::arch::state::{SegReg, TableReg, VcpuState, cr0, cr4};
use crate::arch::{Access, Exception};

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// #GP for user code where CR4.UMIP hides these registers from it.
    fn check_visible(&self) -> Res<(), M> {
        let hidden = self.user && self.state.cr4() & cr4::UMIP != 0;
        if hidden { Err(Exception::GP0.into()) } else { Ok(()) }
    }

    /// SGDT and SIDT: 2 bytes of limit, 8 or 4 of base.
    pub(super) fn store_table(&mut self, table: Table) -> Res<Flow, M> {
        self.check_visible()?;
        let reg = match table {
            Table::Global => self.state.gdtr(),
            Table::Interrupt => self.state.idtr(),
        };
        let base_size = if self.insn.mode == Mode::Bits64 { 8 } else { 4 };
        let m = &self.insn.mem;
        let at = self.linear(m.segment, self.effective(m), 2 + u64::from(base_size), true)?;
        let base_at = at.wrapping_add(2);
        let access = Access { write: true, user: self.user, ..Access::READ };
        self.mem.probe(base_at, base_size.into(), access)?;
        self.store(at, 2, u64::from(reg.limit))?;
        self.store(base_at, base_size, reg.base)?;
        Ok(Flow::Next)
    }

    /// LGDT and LIDT. A 16-bit operand has 24 bits of base.
    pub(super) fn load_table(&mut self, table: Table) -> Res<Flow, M> {
        self.check_supervisor()?;
        let base_size = if self.insn.mode == Mode::Bits64 { 8 } else { 4 };
        let m = &self.insn.mem;
        let at = self.linear(m.segment, self.effective(m), 2 + u64::from(base_size), false)?;
        let limit = self.load(at, 2, false)? as u16;
        let base = self.load(at.wrapping_add(2), base_size, false)?;
        let base = if self.insn.size == 2 { base & 0xff_ffff } else { base };
        if !is_canonical(self.state, base) {
            return Err(Exception::GP0.into());
        }
        let reg = TableReg { base, limit };
        match table {
            Table::Global => self.state.set_gdtr(reg),
            Table::Interrupt => self.state.set_idtr(reg),
        }
        Ok(Flow::Next)
    }

    /// SLDT and STR: 2 bytes in memory, the operand size in a register.
    pub(super) fn store_selector(&mut self, reg: SegReg) -> Res<Flow, M> {
        if self.has_no_descriptors() {
            return Err(Exception::UD.into());
        }
        self.check_visible()?;
        let selector = u64::from(self.state.segment(reg).selector);
        self.set(self.insn.dst, self.insn.size, selector)?;
        Ok(Flow::Next)
    }

    /// SMSW to memory.
    pub(super) fn store_status(&mut self) -> Res<Flow, M> {
        if self.insn.dst != Operand::Memory {
            return Ok(Flow::Unsupported);
        }
        self.check_visible()?;
        let status = self.state.cr0();
        self.set(Operand::Memory, 2, status)?;
        Ok(Flow::Next)
    }

    /// LMSW from memory. One that enters protected mode is not executed here: more than a register changes then.
    pub(super) fn load_status(&mut self) -> Res<Flow, M> {
        const LOADED: u64 = cr0::MP | cr0::EM | cr0::TS;
        self.check_supervisor()?;
        let old = self.state.cr0();
        let at = match self.insn.dst {
            Operand::Memory => self.operand_address(2, false)?,
            _ => return Ok(Flow::Unsupported),
        };
        // A device must not be read if the instruction does nothing then.
        if old & cr0::PE == 0 {
            return Ok(Flow::Unsupported);
        }
        let value = self.load(at, 2, false)?;
        self.state.set_cr0(old & !LOADED | value & LOADED);
        Ok(Flow::Next)
    }
}
