//! Instructions of their own kind: BOUND, XLAT, CRC32, MOVDIR64B, ADCX and ADOX. AMD APM 3.

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::insn::{Operand, mask, sign_extend};
use crate::arch::state::rflags::{CF, OF};
use crate::arch::state::{Gpr, SegReg, VcpuState};
use crate::arch::{Exception, vector};

const OUT_OF_BOUNDS: Exception = Exception { vector: vector::BR, error: None, cr2: None };
/// The polynomial 11edc6f41h, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// CRC32 of the bytes of `value`, lowest first, going on from `sum`.
fn crc32(sum: u32, value: u64, bytes: u8) -> u32 {
    let step = |sum: u32| sum >> 1 ^ if sum & 1 != 0 { POLYNOMIAL } else { 0 };
    value.to_le_bytes().iter().take(bytes.into()).fold(sum, |sum, byte| {
        let mixed = sum ^ u32::from(*byte);
        (0..8).fold(mixed, |sum, _| step(sum))
    })
}

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// BOUND: #BR if the index is below the first or above the second of two values.
    pub(super) fn bound(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let index = self.get(self.insn.dst, size)?;
        let m = &self.insn.mem;
        let at = self.linear(m.segment, self.effective(m), 2 * u64::from(size), false)?;
        let lower = self.load(at, size, false)?;
        let upper = self.load(at.wrapping_add(size.into()), size, false)?;
        let signed = |value| sign_extend(value, size) as i64;
        let within = (signed(lower)..=signed(upper)).contains(&signed(index));
        if within { Ok(Flow::Next) } else { Err(OUT_OF_BOUNDS.into()) }
    }

    /// XLAT: AL is the index of the byte that replaces it.
    pub(super) fn translate(&mut self) -> Res<Flow, M> {
        let (base, index) = (self.state.gpr(Gpr::Rbx), self.state.gpr(Gpr::Rax) & 0xff);
        let offset = base.wrapping_add(index) & mask(self.insn.mem.addr_size);
        let at = self.linear(self.insn.mem.segment, offset, 1, false)?;
        let value = self.load(at, 1, false)?;
        self.set_register(Operand::Gpr(Gpr::Rax), 1, value);
        Ok(Flow::Next)
    }

    /// CRC32, whose destination always is a whole register.
    pub(super) fn checksum(&mut self) -> Res<Flow, M> {
        let size = self.insn.src_size;
        let value = self.get(self.insn.src, size)?;
        let old = self.get(self.insn.dst, 4)? as u32;
        self.set_register(self.insn.dst, 8, crc32(old, value, size).into());
        Ok(Flow::Next)
    }

    /// MOVDIR64B. The store is not one piece to others that look meanwhile.
    pub(super) fn move_line(&mut self) -> Res<Flow, M> {
        const BYTES: usize = 64;
        let m = &self.insn.mem;
        let from = self.linear(m.segment, self.effective(m), BYTES as u64, false)?;
        let Operand::Gpr(reg) = self.insn.dst else { return Ok(Flow::Unsupported) };
        let offset = self.state.gpr(reg) & mask(m.addr_size);
        let to = self.linear(SegReg::Es, offset, BYTES as u64, true)?;
        if !to.is_aligned(BYTES as u64) {
            return Err(Exception::GP0.into());
        }
        self.mem.probe(to, BYTES, self.access(true))?;
        self.mem.probe(from, BYTES, self.access(false))?;
        let mut line = [0; BYTES];
        for (n, part) in line.chunks_mut(16).enumerate() {
            self.mem.read(from.wrapping_add(16 * n as u64), part, self.access(false))?;
        }
        for (n, part) in line.chunks(16).enumerate() {
            self.mem.write(to.wrapping_add(16 * n as u64), part, self.access(true))?;
        }
        Ok(Flow::Next)
    }

    /// ADCX and ADOX: an addition that uses and changes one flag.
    pub(super) fn add_carry(&mut self, overflow: bool) -> Res<Flow, M> {
        let size = self.insn.size;
        let flag = if overflow { OF } else { CF };
        let flags = self.state.rflags();
        let (a, b) = (self.get(self.insn.dst, size)?, self.get(self.insn.src, size)?);
        let sum = u128::from(a) + u128::from(b) + u128::from(flags & flag != 0);
        self.set_register(self.insn.dst, size, sum as u64);
        let carries = sum >> (u32::from(size) * 8) != 0;
        self.state.set_rflags(if carries { flags | flag } else { flags & !flag });
        Ok(Flow::Next)
    }
}
