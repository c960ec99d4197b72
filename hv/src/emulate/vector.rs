//! SSE and MMX moves between a vector register and memory.

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::insn::{Operand, mask};
use crate::arch::addr::Gva;
use crate::arch::state::{VcpuState, cr0, cr4};
use crate::arch::{Exception, vector};

const NOT_AVAILABLE: Exception = Exception { vector: vector::NM, error: None, cr2: None };

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// Reads the vector operand, after the checks that all these instructions make first.
    fn vector_get(&mut self, operand: Operand) -> Res<u128, M> {
        let cr0 = self.state.cr0();
        let sse = matches!(operand, Operand::Xmm(_));
        if cr0 & cr0::EM != 0 || sse && self.state.cr4() & cr4::OSFXSR == 0 {
            return Err(Exception::UD.into());
        }
        if cr0 & cr0::TS != 0 {
            return Err(NOT_AVAILABLE.into());
        }
        match operand {
            Operand::Xmm(n) => self.mem.xmm(n),
            Operand::Mmx(n) => self.mem.mmx(n).map(u128::from),
            _ => Err(Exception::UD.into()),
        }
    }

    /// The memory operand's address; #GP for a misaligned one where alignment is demanded.
    fn vector_address(&mut self, aligned: bool, write: bool) -> Res<Gva, M> {
        let size = self.insn.size;
        let at = self.operand_address(size, write)?;
        if aligned && !at.is_aligned(u64::from(size)) { Err(Exception::GP0.into()) } else { Ok(at) }
    }

    pub(super) fn vector_load(&mut self, shift: u8, clear: bool, aligned: bool) -> Res<Flow, M> {
        let old = self.vector_get(self.insn.dst)?;
        let at = self.vector_address(aligned, false)?;
        let mut bytes = [0; 16];
        let len = usize::from(self.insn.size).min(16);
        self.mem.read(at, &mut bytes[..len], self.access(false))?;
        let loaded = u128::from_le_bytes(bytes) << shift;
        let kept = if clear { 0 } else { old & !(u128::from(mask(self.insn.size)) << shift) };
        match self.insn.dst {
            Operand::Mmx(n) => self.mem.set_mmx(n, (kept | loaded) as u64)?,
            Operand::Xmm(n) => self.mem.set_xmm(n, kept | loaded)?,
            _ => {}
        }
        Ok(Flow::Next)
    }

    pub(super) fn vector_store(&mut self, shift: u8, aligned: bool) -> Res<Flow, M> {
        let value = self.vector_get(self.insn.src)? >> shift;
        let at = self.vector_address(aligned, true)?;
        let len = usize::from(self.insn.size).min(16);
        self.mem.write(at, &value.to_le_bytes()[..len], self.access(true))?;
        Ok(Flow::Next)
    }
}
