//! IN and OUT, and the permission to use a port.
//!
//! AMD APM 2, section 12.2.4: at a CPL above IOPL, and in virtual-8086 mode, the TSS's I/O permission bitmap decides.

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::insn::{Operand, mask};
use crate::arch::addr::Gva;
use crate::arch::state::{Gpr, SegReg, Segment, VcpuState, cr0, rflags};
use crate::arch::{Access, Exception};

/// Offset of the I/O map's base in a 32-bit or 64-bit TSS.
const IO_MAP_BASE: u64 = 0x66;

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// #GP unless this code may access `size` ports from `port` on.
    pub(super) fn check_port(&mut self, port: u16, size: u8) -> Res<(), M> {
        let rflags = self.state.rflags();
        let iopl = (rflags >> 12 & 3) as u8;
        let v86 = rflags & rflags::VM != 0;
        if self.state.cr0() & cr0::PE == 0 || !v86 && self.state.cpl() <= iopl {
            return Ok(());
        }
        let tr = self.state.segment(SegReg::Tr);
        // A 16-bit TSS (types 1 and 3) has no map.
        let has_map = tr.attributes & Segment::PRESENT != 0 && tr.attributes & 0b1000 != 0;
        if !has_map {
            return Err(Exception::GP0.into());
        }
        let map = self.task_word(&tr, IO_MAP_BASE)?;
        let bits = self.task_word(&tr, map + u64::from(port / 8))? >> (port % 8);
        if bits & ((1 << size) - 1) == 0 { Ok(()) } else { Err(Exception::GP0.into()) }
    }

    /// Two bytes of the TSS, read by the processor itself; #GP beyond its limit.
    fn task_word(&mut self, tr: &Segment, offset: u64) -> Res<u64, M> {
        if offset + 1 > u64::from(tr.limit) {
            return Err(Exception::GP0.into());
        }
        let mut bytes = [0; 2];
        self.mem.read(Gva(tr.base.wrapping_add(offset)), &mut bytes, Access::READ)?;
        Ok(u64::from(u16::from_le_bytes(bytes)))
    }

    /// The port that an IN or OUT names.
    fn port(&self, operand: Operand) -> u16 {
        match operand {
            Operand::Immediate => self.insn.imm as u8 as u16,
            _ => self.state.gpr(Gpr::Rdx) as u16,
        }
    }

    pub(super) fn port_in(&mut self) -> Res<Flow, M> {
        let (port, size) = (self.port(self.insn.src), self.insn.size);
        self.check_port(port, size)?;
        let value = self.mem.io_in(port, size)?;
        self.set_register(self.insn.dst, size, u64::from(value));
        Ok(Flow::Next)
    }

    pub(super) fn port_out(&mut self) -> Res<Flow, M> {
        let (port, size) = (self.port(self.insn.dst), self.insn.size);
        self.check_port(port, size)?;
        let value = self.state.gpr(Gpr::Rax) & mask(size);
        self.mem.io_out(port, size, value as u32)?;
        Ok(Flow::Next)
    }
}
