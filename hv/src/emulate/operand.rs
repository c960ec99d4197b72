//! Reads and writes operands: registers with their partial forms, memory, immediates.

use super::Memory;
use super::execute::{Exec, Res};
use super::insn::{Operand, mask};
use crate::arch::Access;
use crate::arch::addr::Gva;
use crate::arch::state::VcpuState;

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// How the memory operand is accessed.
    #[inline]
    pub(super) fn access(&self, write: bool) -> Access {
        Access { write, execute: false, user: self.user }
    }

    /// Reads `size` (1 to 8) bytes; `for_write` if they will be written afterwards.
    #[inline]
    pub(super) fn load(&mut self, at: Gva, size: u8, for_write: bool) -> Res<u64, M> {
        let mut bytes = [0; 8];
        self.mem.read(at, &mut bytes[..usize::from(size)], self.access(for_write))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes the low `size` (1 to 8) bytes of `value`.
    #[inline]
    pub(super) fn store(&mut self, at: Gva, size: u8, value: u64) -> Res<(), M> {
        self.mem.write(at, &value.to_le_bytes()[..usize::from(size)], self.access(true))
    }

    /// Reads an operand as `size` bytes.
    #[inline]
    pub(super) fn get(&mut self, operand: Operand, size: u8) -> Res<u64, M> {
        self.get_at(operand, size, 0)
    }

    /// As [`Exec::get`], with a memory operand taken `reach` bytes further.
    #[inline]
    pub(super) fn get_at(&mut self, operand: Operand, size: u8, reach: u64) -> Res<u64, M> {
        Ok(match operand {
            Operand::Gpr(reg) => self.state.gpr(reg) & mask(size),
            Operand::HighByte(reg) => self.state.gpr(reg) >> 8 & 0xff,
            Operand::Immediate => self.insn.imm & mask(size),
            Operand::Segment(reg) => u64::from(self.state.segment(reg).selector),
            Operand::Memory => {
                let m = &self.insn.mem;
                let offset = self.effective(m).wrapping_add(reach) & mask(m.addr_size);
                let at = self.data_address(m.segment, offset, size, false)?;
                self.load(at, size, false)?
            }
            _ => 0,
        })
    }

    /// Writes an operand of `size` bytes.
    #[inline]
    pub(super) fn set(&mut self, operand: Operand, size: u8, value: u64) -> Res<(), M> {
        if operand == Operand::Memory {
            let at = self.operand_address(size, true)?;
            return self.store(at, size, value);
        }
        self.set_register(operand, size, value);
        Ok(())
    }

    /// Writes a register operand: bytes and words keep the rest of the register, doublewords clear its upper half.
    #[inline]
    pub(super) fn set_register(&mut self, operand: Operand, size: u8, value: u64) {
        let (reg, new) = match operand {
            Operand::Gpr(reg) if size >= 4 => (reg, value & mask(size)),
            Operand::Gpr(reg) => (reg, self.state.gpr(reg) & !mask(size) | value & mask(size)),
            Operand::HighByte(reg) => (reg, self.state.gpr(reg) & !0xff00 | (value & 0xff) << 8),
            _ => return,
        };
        self.state.set_gpr(reg, new);
    }
}
