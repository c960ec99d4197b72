//! PUSH, POP, and near CALL, JMP and RET.

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::insn::{Mode, Operand, mask};
use crate::arch::addr::Gva;
use crate::arch::state::{Gpr, SegReg, Segment, VcpuState};

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// The stack pointer's size in bytes: 8 in 64-bit code, else by the stack segment's B bit.
    fn stack_size(&self) -> u8 {
        if self.insn.mode == Mode::Bits64 {
            8
        } else if self.state.segment(SegReg::Ss).attributes & Segment::BIG != 0 {
            4
        } else {
            2
        }
    }

    fn set_stack_pointer(&mut self, value: u64) {
        let size = self.stack_size();
        self.set_register(Operand::Gpr(Gpr::Rsp), size, value);
    }

    /// Where a push of `insn.size` bytes goes: the new stack pointer and the slot's linear address.
    fn push_slot(&self) -> Res<(u64, Gva), M> {
        let size = self.insn.size;
        let sp = self.state.gpr(Gpr::Rsp).wrapping_sub(u64::from(size)) & mask(self.stack_size());
        Ok((sp, self.data_address(SegReg::Ss, sp, size, true)?))
    }

    /// Reads the slot of `insn.size` bytes that the stack pointer points at; returns it with the new stack pointer.
    fn pop_slot(&mut self) -> Res<(u64, u64), M> {
        let size = self.insn.size;
        let sp = self.state.gpr(Gpr::Rsp) & mask(self.stack_size());
        let at = self.data_address(SegReg::Ss, sp, size, false)?;
        Ok((self.load(at, size, false)?, sp.wrapping_add(u64::from(size))))
    }

    pub(super) fn push(&mut self) -> Res<Flow, M> {
        let value = self.get(self.insn.src, self.insn.size)?;
        let (sp, at) = self.push_slot()?;
        self.store(at, self.insn.size, value)?;
        self.set_stack_pointer(sp);
        Ok(Flow::Next)
    }

    pub(super) fn pop(&mut self) -> Res<Flow, M> {
        let (value, sp) = self.pop_slot()?;
        let before = self.state.gpr(Gpr::Rsp);
        // The new stack pointer counts in the destination's address, and POP RSP overwrites it.
        self.set_stack_pointer(sp);
        let result = self.set(self.insn.dst, self.insn.size, value);
        if result.is_err() {
            self.state.set_gpr(Gpr::Rsp, before);
        }
        result.map(|()| Flow::Next)
    }

    /// The target of CALL or JMP, truncated to the operand size and checked.
    fn target(&mut self) -> Res<u64, M> {
        let size = self.insn.size;
        let rip = match self.insn.src {
            Operand::Immediate => self.next_rip().wrapping_add(self.insn.imm) & mask(size),
            operand => self.get(operand, size)?,
        };
        self.branch_target(rip)
    }

    pub(super) fn call(&mut self) -> Res<Flow, M> {
        let target = self.target()?;
        let (sp, at) = self.push_slot()?;
        self.store(at, self.insn.size, self.next_rip())?;
        self.set_stack_pointer(sp);
        Ok(Flow::Jump(target))
    }

    pub(super) fn jump(&mut self) -> Res<Flow, M> {
        Ok(Flow::Jump(self.target()?))
    }

    pub(super) fn ret(&mut self) -> Res<Flow, M> {
        let (rip, sp) = self.pop_slot()?;
        let target = self.branch_target(rip)?;
        self.set_stack_pointer(sp.wrapping_add(self.insn.imm));
        Ok(Flow::Jump(target))
    }
}
