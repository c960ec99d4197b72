//! Effective and linear addresses: segmentation, canonical form, alignment checks.
//!
//! AMD APM 2, sections 4.5 to 4.8 (segmentation), 5.3.1 (canonical form), 8.2.18 (#AC).

use super::execute::{Exec, Res};
use super::insn::{Base, MemRef, Mode, mask};
use super::{Fault, Memory};
use crate::arch::addr::Gva;
use crate::arch::state::{SegReg, Segment, VcpuState, cr0, cr4, rflags};
use crate::arch::{Exception, vector};

const ALIGNMENT_CHECK: Exception = Exception { vector: vector::AC, error: Some(0), cr2: None };

/// Whether an address is canonical: bits above the 48 (57 with CR4.LA57) that are translated repeat the highest one.
#[inline]
pub(super) fn is_canonical(state: &impl VcpuState, linear: u64) -> bool {
    let unused = if state.cr4() & cr4::LA57 != 0 { 7 } else { 16 };
    ((linear << unused) as i64 >> unused) as u64 == linear
}

/// Whether segment types are not checked: real mode and virtual-8086 mode.
pub(super) fn is_real_or_v86(state: &impl VcpuState) -> bool {
    state.cr0() & cr0::PE == 0 || state.rflags() & rflags::VM != 0
}

/// Whether bytes `offset` to `last` lie within the segment's limit.
pub(super) fn is_within_limit(segment: &Segment, offset: u64, last: u64) -> bool {
    let expand_down = segment.attributes & (Segment::NON_SYSTEM | 0b1100) == Segment::NON_SYSTEM | 0b0100;
    let limit = u64::from(segment.limit);
    if expand_down {
        let top = if segment.attributes & Segment::BIG != 0 { 0xffff_ffff } else { 0xffff };
        offset > limit && last <= top
    } else {
        last <= limit
    }
}

/// Whether the segment's type allows the access: writes need writable data, reads anything but execute-only code.
fn is_type_allowed(segment: &Segment, write: bool) -> bool {
    let code = segment.attributes & 0b1000 != 0;
    let read_write = segment.attributes & 0b0010 != 0;
    let present = segment.attributes & Segment::PRESENT != 0;
    present && if write { !code && read_write } else { !code || read_write }
}

impl MemRef {
    /// The offset within the segment; `next_rip` is the RIP of the following instruction.
    #[inline]
    pub(super) fn effective(&self, state: &impl VcpuState, next_rip: u64) -> u64 {
        let base = match self.base {
            Base::None => 0,
            Base::Rip => next_rip,
            Base::Gpr(reg) => state.gpr(reg),
        };
        let index = self.index.map_or(0, |reg| state.gpr(reg).wrapping_mul(u64::from(self.scale)));
        base.wrapping_add(index).wrapping_add(self.disp) & mask(self.addr_size)
    }
}

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// The memory operand's offset within its segment.
    #[inline]
    pub(super) fn effective(&self, m: &MemRef) -> u64 {
        m.effective(self.state, self.next_rip())
    }

    /// The linear address of `len` bytes (1 to 64) at `offset`, checked as the processor would for a read or write.
    #[inline]
    pub(super) fn linear(&self, reg: SegReg, offset: u64, len: u64, write: bool) -> Res<Gva, M> {
        // Limits and the canonical form of the stack segment raise #SS, those of all others #GP (SDM 3, 6.15; AMD APM 2,
        // 8.2.13).
        let fault = if reg == SegReg::Ss { Exception::SS0 } else { Exception::GP0 };
        if self.insn.mode == Mode::Bits64 {
            // 64-bit code takes the other bases for 0, and checks no limits.
            let base = if matches!(reg, SegReg::Fs | SegReg::Gs) { self.state.segment(reg).base } else { 0 };
            let first = base.wrapping_add(offset);
            let last = first.wrapping_add(len - 1);
            return if is_canonical(self.state, first) && is_canonical(self.state, last) {
                Ok(Gva(first))
            } else {
                Err(fault.into())
            };
        }
        let segment = self.state.segment(reg);
        let allowed = is_real_or_v86(self.state) || is_type_allowed(&segment, write);
        if !allowed || !is_within_limit(&segment, offset, offset + (len - 1)) {
            return Err(fault.into());
        }
        let first = segment.base.wrapping_add(offset) & mask(4);
        // Whether such an access wraps differs among processors.
        if first + (len - 1) > mask(4) {
            return Err(fault.into());
        }
        Ok(Gva(first))
    }

    /// As [`Exec::linear`], for one data item: #AC if alignment checks are on and it is misaligned.
    #[inline]
    pub(super) fn data_address(&self, reg: SegReg, offset: u64, size: u8, write: bool) -> Res<Gva, M> {
        let at = self.linear(reg, offset, u64::from(size), write)?;
        let checked = self.user
            // Wider operands are those of vector instructions, which have rules of their own.
            && size <= 8
            && !at.is_aligned(u64::from(size))
            && self.state.cr0() & cr0::AM != 0
            && self.state.rflags() & rflags::AC != 0;
        if checked { Err(Fault::Exception(ALIGNMENT_CHECK)) } else { Ok(at) }
    }

    /// The linear address of the memory operand.
    #[inline]
    pub(super) fn operand_address(&self, size: u8, write: bool) -> Res<Gva, M> {
        self.data_address(self.insn.mem.segment, self.effective(&self.insn.mem), size, write)
    }

    /// A near branch's target, checked against the canonical form or the code segment's limit.
    pub(super) fn branch_target(&self, rip: u64) -> Res<u64, M> {
        let ok = match self.insn.mode {
            Mode::Bits64 => is_canonical(self.state, rip),
            _ => rip <= u64::from(self.state.segment(SegReg::Cs).limit),
        };
        if ok { Ok(rip) } else { Err(Exception::GP0.into()) }
    }
}
