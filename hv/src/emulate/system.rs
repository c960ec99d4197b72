//! Operands of intercepted system instructions, for processors that do not report them: MOV to and from control and
//! debug registers, LMSW, SMSW, INVLPG, INVPCID. The effects are the caller's.

use super::execute::{Exec, complete};
use super::insn::{Insn, Mode, Op, Operand, System, mask};
use super::{Fault, Memory};
use crate::arch::addr::Gva;
use crate::arch::state::{Gpr, SegReg, VcpuState};
use crate::arch::{Access, RegMove};

/// Ends an instruction of `len` bytes that the caller has executed: RIP moves on, RF is cleared. True: RFLAGS.TF
/// asks for a single-step #DB.
#[must_use]
pub fn advance(state: &mut impl VcpuState, len: u8) -> bool {
    let next = state.rip().wrapping_add(u64::from(len));
    let wide = state.is_64bit();
    complete(state, if wide { next } else { next & mask(4) })
}

/// The registers of a MOV to or from a control or debug register; `None` for any other instruction.
pub fn register_move(insn: &Insn) -> Option<RegMove> {
    if !matches!(insn.op, Op::System(System::MovControl | System::MovDebug)) {
        return None;
    }
    match (insn.dst, insn.src) {
        (Operand::Control(index) | Operand::Debug(index), Operand::Gpr(reg)) => {
            Some(RegMove { index, write: true, gpr: Some(reg) })
        }
        (Operand::Gpr(reg), Operand::Control(index) | Operand::Debug(index)) => {
            Some(RegMove { index, write: false, gpr: Some(reg) })
        }
        _ => None,
    }
}

/// The source of an LMSW.
pub fn read_msw<S: VcpuState, M: Memory>(
    insn: &Insn,
    state: &mut S,
    mem: &mut M,
) -> Result<u16, Fault<M::Stop>> {
    let user = state.cpl() == 3;
    Exec { insn, state, mem, user }.get(insn.dst, 2).map(|value| value as u16)
}

/// Stores what SMSW shows of `cr0`: 16 bits in memory, the operand size in a register.
pub fn write_msw<S: VcpuState, M: Memory>(
    insn: &Insn,
    state: &mut S,
    mem: &mut M,
    cr0: u64,
) -> Result<(), Fault<M::Stop>> {
    let user = state.cpl() == 3;
    Exec { insn, state, mem, user }.set(insn.dst, insn.size, cr0)
}

/// The linear address that an INVLPG names; `None` for any other instruction. It takes no segmentation faults;
/// one for a non-canonical address does nothing.
pub fn invlpg_address<S: VcpuState>(insn: &Insn, state: &S) -> Option<Gva> {
    if insn.op != Op::System(System::Invlpg) {
        return None;
    }
    let next = state.rip().wrapping_add(u64::from(insn.len));
    let offset = insn.mem.effective(state, next);
    Some(match insn.mode {
        Mode::Bits64 if matches!(insn.mem.segment, SegReg::Fs | SegReg::Gs) => {
            Gva(state.segment(insn.mem.segment).base.wrapping_add(offset))
        }
        Mode::Bits64 => Gva(offset),
        _ => Gva(state.segment(insn.mem.segment).base.wrapping_add(offset) & mask(4)),
    })
}

/// Type and descriptor of an INVPCID.
pub fn invpcid_operands<S: VcpuState, M: Memory>(
    insn: &Insn,
    state: &mut S,
    mem: &mut M,
) -> Result<(u64, u128), Fault<M::Stop>> {
    let user = state.cpl() == 3;
    let exec = Exec { insn, state, mem, user };
    let at = exec.operand_address(16, false)?;
    let mut bytes = [0; 16];
    exec.mem.read(at, &mut bytes, Access { user, ..Access::READ })?;
    let reg = match insn.dst {
        Operand::Gpr(reg) => reg,
        _ => Gpr::Rax,
    };
    let size = if insn.mode == Mode::Bits64 { 8 } else { 4 };
    Ok((exec.state.gpr(reg) & mask(size), u128::from_le_bytes(bytes)))
}
