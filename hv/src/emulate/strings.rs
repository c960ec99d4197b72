//! String instructions, with and without REP.
//!
//! A repeated instruction does at most [`CHUNK`] iterations per call, fewer if they take long ([`Memory::wants_pause`]), so that
//! interrupts wait no longer than that. After each iteration RCX, RSI and RDI are architectural: a fault or an interrupt in
//! between loses nothing (AMD APM 3, section 1.2.6).

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::flags;
use super::insn::{Alu, Operand, Repeat, Strings, mask};
use crate::arch::addr::Gva;
use crate::arch::state::rflags::{DF, TF, ZF};
use crate::arch::state::{Gpr, SegReg, VcpuState};

/// Iterations per call.
const CHUNK: u32 = 256;

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    pub(super) fn strings(&mut self, op: Strings) -> Res<Flow, M> {
        if self.insn.repeat == Repeat::Once {
            self.iteration(op)?;
            return Ok(Flow::Next);
        }
        if self.counter() == 0 {
            return Ok(Flow::Next);
        }
        let chunk = if self.state.rflags() & TF != 0 { 1 } else { CHUNK };
        for done in 0..chunk {
            match self.iteration(op) {
                Ok(()) => {}
                // Finished iterations stay; the next call meets the fault at its start.
                Err(_) if done > 0 => return Ok(Flow::Iterated),
                Err(fault) => return Err(fault),
            }
            let left = self.counter().wrapping_sub(1);
            self.set_index(Gpr::Rcx, left);
            if left & mask(self.insn.mem.addr_size) == 0 || self.is_settled(op) {
                return Ok(Flow::Next);
            }
            if self.mem.wants_pause() {
                break;
            }
        }
        Ok(Flow::Iterated)
    }

    /// Whether a comparison's result ends the repetition.
    fn is_settled(&self, op: Strings) -> bool {
        let equal = self.state.rflags() & ZF != 0;
        matches!(op, Strings::Cmps | Strings::Scas) && equal != (self.insn.repeat == Repeat::WhileEqual)
    }

    /// RCX in the address size.
    fn counter(&self) -> u64 {
        self.index(Gpr::Rcx)
    }

    /// A register in the address size.
    fn index(&self, reg: Gpr) -> u64 {
        self.state.gpr(reg) & mask(self.insn.mem.addr_size)
    }

    fn set_index(&mut self, reg: Gpr, value: u64) {
        self.set_register(Operand::Gpr(reg), self.insn.mem.addr_size, value);
    }

    /// The source, in DS or by prefix.
    fn source(&self) -> Res<Gva, M> {
        self.data_address(self.insn.mem.segment, self.index(Gpr::Rsi), self.insn.size, false)
    }

    /// The destination, always in ES.
    fn destination(&self, write: bool) -> Res<Gva, M> {
        self.data_address(SegReg::Es, self.index(Gpr::Rdi), self.insn.size, write)
    }

    /// Moves the indices on by one item.
    fn advance(&mut self, source: bool, destination: bool) {
        let size = u64::from(self.insn.size);
        let step = if self.state.rflags() & DF != 0 { size.wrapping_neg() } else { size };
        for (used, reg) in [(source, Gpr::Rsi), (destination, Gpr::Rdi)] {
            if used {
                self.set_index(reg, self.index(reg).wrapping_add(step));
            }
        }
    }

    /// One iteration, without RCX.
    fn iteration(&mut self, op: Strings) -> Res<(), M> {
        let size = self.insn.size;
        let accumulator = Operand::Gpr(Gpr::Rax);
        match op {
            Strings::Movs => {
                let from = self.source()?;
                let to = self.destination(true)?;
                // A device must not see a read whose result is then lost to a fault of the write.
                if let Err(fault) = self.mem.probe(to, usize::from(size), self.access(true)) {
                    self.mem.probe(from, usize::from(size), self.access(false))?;
                    return Err(fault);
                }
                let value = self.load(from, size, false)?;
                self.store(to, size, value)?;
                self.advance(true, true);
            }
            Strings::Stos => {
                let to = self.destination(true)?;
                let value = self.get(accumulator, size)?;
                self.store(to, size, value)?;
                self.advance(false, true);
            }
            Strings::Lods => {
                let from = self.source()?;
                let value = self.load(from, size, false)?;
                self.set_register(accumulator, size, value);
                self.advance(true, false);
            }
            Strings::Cmps => {
                let (from, to) = (self.source()?, self.destination(false)?);
                let a = self.load(from, size, false)?;
                let b = self.load(to, size, false)?;
                self.compare(a, b);
                self.advance(true, true);
            }
            Strings::Scas => {
                let to = self.destination(false)?;
                let b = self.load(to, size, false)?;
                let a = self.get(accumulator, size)?;
                self.compare(a, b);
                self.advance(false, true);
            }
            Strings::Ins => {
                let port = self.state.gpr(Gpr::Rdx) as u16;
                self.check_port(port, size)?;
                let to = self.destination(true)?;
                self.mem.probe(to, usize::from(size), self.access(true))?;
                let value = self.mem.io_in(port, size)?;
                self.store(to, size, u64::from(value))?;
                self.advance(false, true);
            }
            Strings::Outs => {
                let port = self.state.gpr(Gpr::Rdx) as u16;
                self.check_port(port, size)?;
                let from = self.source()?;
                let value = self.load(from, size, false)?;
                self.mem.io_out(port, size, value as u32)?;
                self.advance(true, false);
            }
        }
        Ok(())
    }

    fn compare(&mut self, a: u64, b: u64) {
        let (_, rflags) = flags::alu(Alu::Cmp, self.insn.size, a, b, self.state.rflags());
        self.state.set_rflags(rflags);
    }
}
