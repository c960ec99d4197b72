//! PUSH and POP in all forms, ENTER and LEAVE, and near CALL, JMP and RET.

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::insn::{Mode, Operand, mask};
use crate::arch::Exception;
use crate::arch::addr::Gva;
use crate::arch::state::{Gpr, SegReg, Segment, VcpuState, cr4, rflags};

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// The stack pointer's size in bytes: 8 in 64-bit code, else by the stack segment's B bit.
    pub(super) fn stack_size(&self) -> u8 {
        if self.insn.mode == Mode::Bits64 {
            8
        } else if self.state.segment(SegReg::Ss).attributes & Segment::BIG != 0 {
            4
        } else {
            2
        }
    }

    pub(super) fn set_stack_pointer(&mut self, value: u64) {
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

    /// PUSHF. In virtual-8086 mode with IOPL below 3 it is #GP; with the mode's extensions 16 bits have VIF for IF.
    pub(super) fn push_flags(&mut self) -> Res<Flow, M> {
        const IOPL: u64 = 3 << 12;
        const VIF: u64 = 1 << 19;
        let mut flags = self.state.rflags();
        if flags & rflags::VM != 0 && flags & IOPL != IOPL {
            if self.state.cr4() & cr4::VME == 0 || self.insn.size != 2 {
                return Err(Exception::GP0.into());
            }
            let virtual_if = if flags & VIF != 0 { rflags::IF } else { 0 };
            flags = flags & !rflags::IF | virtual_if | IOPL;
        }
        let (sp, at) = self.push_slot()?;
        self.store(at, self.insn.size, flags & !(rflags::VM | rflags::RF))?;
        self.set_stack_pointer(sp);
        Ok(Flow::Next)
    }

    /// Slot `n` of eight that begin at `sp`.
    fn slot_of_all(&self, sp: u64, n: u64, write: bool) -> Res<Gva, M> {
        let size = self.insn.size;
        let at = sp.wrapping_add(n * u64::from(size)) & mask(self.stack_size());
        self.data_address(SegReg::Ss, at, size, write)
    }

    /// PUSHA: EAX first, at the highest address; ESP as it was.
    pub(super) fn push_all(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let sp = self.state.gpr(Gpr::Rsp).wrapping_sub(8 * u64::from(size)) & mask(self.stack_size());
        for n in 0..8 {
            let at = self.slot_of_all(sp, n, true)?;
            self.mem.probe(at, size.into(), self.access(true))?;
        }
        for n in 0..8 {
            let at = self.slot_of_all(sp, n, true)?;
            self.store(at, size, self.state.gpr(Gpr::ALL[7 - n as usize]))?;
        }
        self.set_stack_pointer(sp);
        Ok(Flow::Next)
    }

    /// POPA: all but ESP.
    pub(super) fn pop_all(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let sp = self.state.gpr(Gpr::Rsp) & mask(self.stack_size());
        let mut values = [0; 8];
        for n in 0..8 {
            let at = self.slot_of_all(sp, n, false)?;
            self.mem.probe(at, size.into(), self.access(false))?;
        }
        for (n, value) in values.iter_mut().enumerate() {
            let at = self.slot_of_all(sp, n as u64, false)?;
            *value = self.load(at, size, false)?;
        }
        for (n, value) in values.iter().enumerate() {
            let reg = Gpr::ALL[7 - n];
            if reg != Gpr::Rsp {
                self.set_register(Operand::Gpr(reg), size, *value);
            }
        }
        self.set_stack_pointer(sp.wrapping_add(8 * u64::from(size)));
        Ok(Flow::Next)
    }

    /// POP of a segment register.
    pub(super) fn pop_segment(&mut self) -> Res<Flow, M> {
        let Operand::Segment(reg) = self.insn.dst else { return Ok(Flow::Unsupported) };
        let (selector, sp) = self.pop_slot()?;
        let segment = self.checked_segment(reg, selector as u16)?;
        // The stack pointer's size is that of the old stack segment.
        self.set_stack_pointer(sp);
        self.state.set_segment(reg, segment);
        Ok(Flow::Next)
    }

    pub(super) fn leave(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let frame = self.state.gpr(Gpr::Rbp) & mask(self.stack_size());
        let at = self.data_address(SegReg::Ss, frame, size, false)?;
        let value = self.load(at, size, false)?;
        self.set_stack_pointer(frame.wrapping_add(u64::from(size)));
        self.set_register(Operand::Gpr(Gpr::Rbp), size, value);
        Ok(Flow::Next)
    }

    /// ENTER. With a level, the frame pointers of the procedures around this one are copied, and this one's is added.
    pub(super) fn enter(&mut self, level: u8) -> Res<Flow, M> {
        let size = self.insn.size;
        let step = u64::from(size);
        let stack = mask(self.stack_size());
        let (top, base) = (self.state.gpr(Gpr::Rsp), self.state.gpr(Gpr::Rbp));
        let below = |from: u64, n: u64| from.wrapping_sub(n * step) & stack;
        let frame = below(top, 1);
        // What is copied is read first, so that nothing has happened if a read faults.
        let mut frames = [0; 32];
        frames[0] = base;
        let copied = u64::from(level).saturating_sub(1);
        for n in 0..=u64::from(level) {
            let at = self.data_address(SegReg::Ss, below(frame, n), size, true)?;
            self.mem.probe(at, size.into(), self.access(true))?;
        }
        for n in 1..=copied {
            let slot = below(base, n);
            let at = self.data_address(SegReg::Ss, slot, size, false)?;
            // One that this instruction itself has pushed by then.
            let pushed = (frame.wrapping_sub(slot) & stack) / step;
            frames[n as usize] = if below(frame, pushed) == slot && pushed < n {
                frames[pushed as usize]
            } else {
                self.load(at, size, false)?
            };
        }
        let sp = below(frame, level.into()).wrapping_sub(self.insn.imm) & stack;
        // The processor looks whether the frame's end can be written.
        let end = self.linear(SegReg::Ss, sp, step, true)?;
        self.mem.probe(end, size.into(), self.access(true))?;
        if level != 0 {
            frames[usize::from(level)] = frame;
        }
        for n in 0..=level {
            let at = self.data_address(SegReg::Ss, below(frame, n.into()), size, true)?;
            self.store(at, size, frames[usize::from(n)])?;
        }
        self.set_stack_pointer(sp);
        self.set_register(Operand::Gpr(Gpr::Rbp), size, frame);
        Ok(Flow::Next)
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
