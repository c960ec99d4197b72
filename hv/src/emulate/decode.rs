//! From bytes to [`Insn`]: iced-x86 knows the encodings, this file picks what the emulator executes.
//!
//! Pure functions of the bytes. Which operation an instruction is stands in `opcode`; this file turns its operands
//! into the compact form. Guest-controlled bytes never cause more than an error here.

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, Instruction, MemorySize, OpKind, Register};

use super::insn::*;
use super::opcode::operation;
use crate::arch::state::{Gpr, SegReg};

/// The longest instruction in bytes.
pub const MAX_LEN: usize = 15;

/// Why bytes are not an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// More bytes are needed than were given (fewer than 15).
    Truncated,
    /// More than 15 bytes: #GP.
    TooLong,
    /// LOCK on a form that does not allow it: #UD.
    BadLock,
    /// No instruction that the decoder knows.
    Unknown,
}

/// The length in bytes of the instruction that `bytes` start with, for code of 16, 32 or 64 `bits`.
pub fn instruction_length(bytes: &[u8], bits: u32) -> Option<u8> {
    raw_decode(bytes, Mode::from_bits(bits)).ok().map(|i| i.len() as u8)
}

/// Decodes the first instruction in `bytes`; bytes after it are ignored.
pub fn decode(bytes: &[u8], mode: Mode) -> Result<Insn, DecodeError> {
    raw_decode(bytes, mode).map(|i| compact(&i, mode))
}

/// Builds the decoder's tables (about 80 KiB of heap, a million machine instructions), which the first decoding would
/// otherwise do in the middle of a guest's run. Call it once at start-up.
pub fn prepare_decoder() {
    let _ = iced(&[0x90], Mode::Bits64);
}

fn raw_decode(bytes: &[u8], mode: Mode) -> Result<Instruction, DecodeError> {
    // Nothing behind 15 bytes belongs to an instruction; a fetch may have read more.
    let bytes = &bytes[..bytes.len().min(MAX_LEN)];
    let (insn, error) = iced(bytes, mode);
    match error {
        DecoderError::None => Ok(insn),
        DecoderError::NoMoreBytes if bytes.len() < MAX_LEN => Err(DecodeError::Truncated),
        // The decoder does not tell an overlong instruction from an unknown one; without its first prefix it does.
        _ if bytes.len() == MAX_LEN && iced(&bytes[1..], mode).1 == DecoderError::NoMoreBytes => {
            Err(DecodeError::TooLong)
        }
        // Without LOCK the same bytes may be an instruction: so #UD, and not a report of one that is unknown.
        _ if has_lock_prefix(bytes, mode) => Err(DecodeError::BadLock),
        _ => Err(DecodeError::Unknown),
    }
}

fn iced(bytes: &[u8], mode: Mode) -> (Instruction, DecoderError) {
    // AMD's reading of 66h on near branches in 64-bit code makes them stand out (see `adjust`).
    let mut decoder = Decoder::with_ip(mode.bits(), bytes, 0, DecoderOptions::AMD);
    let insn = decoder.decode();
    (insn, decoder.last_error())
}

fn has_lock_prefix(bytes: &[u8], mode: Mode) -> bool {
    bytes
        .iter()
        .take_while(|&&b| {
            matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
                || mode == Mode::Bits64 && b & 0xf0 == 0x40
        })
        .any(|&b| b == 0xf0)
}

/// The compact form; [`Op::Unsupported`] (with the right length) for what is not executed here.
fn compact(i: &Instruction, mode: Mode) -> Insn {
    let unsupported = Insn { mode, len: i.len() as u8, ..Insn::NONE };
    supported(i, unsupported).unwrap_or(unsupported)
}

/// Fills in `insn`; `None` if an operand or the operation is not one that is executed here.
fn supported(i: &Instruction, mut insn: Insn) -> Option<Insn> {
    insn.op = operation(i)?;
    insn.lock = i.has_lock_prefix();
    insn.repeat = match (i.has_repe_prefix(), i.has_repne_prefix()) {
        (true, _) => Repeat::WhileEqual,
        (_, true) => Repeat::WhileNotEqual,
        _ => Repeat::Once,
    };
    if let Op::Strings(_) = insn.op {
        insn.size = size_of(i.memory_size().size())?;
        insn.src_size = insn.size;
        insn.mem.segment = segment(i, insn.mode, false);
        insn.mem.addr_size = string_address_size(i)?;
        return Some(insn);
    }
    if irregular(i, &mut insn)? {
        return Some(insn);
    }
    let operands = |n| if n < i.op_count() { operand(i, n) } else { Some(Operand::None) };
    // Cache lines and INVLPG's operand have no size; others hold more than one item.
    let no_item = matches!(
        insn.op,
        Op::FlushLine
            | Op::Nop
            | Op::System(_)
            | Op::LoadFar(_)
            | Op::Bound
            | Op::MoveLine
            | Op::StoreTable(_)
            | Op::LoadTable(_)
    );
    let unsized_operand = no_item.then_some(0);
    let sizes = |n| if n < i.op_count() { operand_size(i, n).or(unsized_operand) } else { Some(0) };
    (insn.dst, insn.src, insn.count) = (operands(0)?, operands(1)?, operands(2)?);
    (insn.size, insn.src_size) = (sizes(0)?, sizes(1)?);
    for n in 0..i.op_count() {
        match i.op_kind(n) {
            OpKind::Memory => insn.mem = memory(i, insn.mode)?,
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                insn.imm = i.near_branch_target().wrapping_sub(i.next_ip());
            }
            _ => insn.imm = i.try_immediate(n).unwrap_or(insn.imm),
        }
    }
    adjust(i, &mut insn)?;
    Some(insn)
}

/// Instructions whose operands are implied, or of no size that the compact form has; false for any other.
fn irregular(i: &Instruction, insn: &mut Insn) -> Option<bool> {
    insn.size = match insn.op {
        Op::JumpFar | Op::CallFar => match i.memory_size() {
            MemorySize::SegPtr16 => 2,
            MemorySize::SegPtr32 => 4,
            MemorySize::SegPtr64 => 8,
            _ => return None,
        },
        // Two slots each, or eight, or (ENTER) as many as the level says and one.
        Op::RetFar => stack_bytes(i)?.checked_sub(u32::from(i.immediate16()))? as u8 / 2,
        Op::PushFlags | Op::Leave => {
            insn.imm = 0;
            slot_size(i)
        }
        Op::PushAll | Op::PopAll => stack_bytes(i)? as u8 / 8,
        Op::Enter { .. } => slot_size(i),
        Op::Xlat => 1,
        _ => return Some(false),
    };
    size_of(insn.size.into())?;
    match insn.op {
        Op::JumpFar | Op::CallFar => insn.mem = memory(i, insn.mode)?,
        Op::RetFar | Op::Enter { .. } => insn.imm = u64::from(i.immediate16()),
        Op::Xlat => {
            insn.mem.segment = segment(i, insn.mode, false);
            insn.mem.addr_size = i.memory_base().size() as u8;
        }
        _ => {}
    }
    Some(true)
}

/// By how much the stack pointer changes.
fn stack_bytes(i: &Instruction) -> Option<u32> {
    Some(i.stack_pointer_increment().unsigned_abs())
}

/// The size of a stack slot of an instruction that names it only by its operand size.
fn slot_size(i: &Instruction) -> u8 {
    match i.code() {
        Code::Pushfw | Code::Leavew | Code::Enterw_imm16_imm8 => 2,
        Code::Pushfd | Code::Leaved | Code::Enterd_imm16_imm8 => 4,
        _ => 8,
    }
}

/// Brings the operands of the irregular instructions into the compact form's roles.
fn adjust(i: &Instruction, insn: &mut Insn) -> Option<()> {
    match insn.op {
        // Their only operand is the source; the operand size of stack instructions is that of the stack slot.
        Op::MulWide { .. } | Op::Div { .. } => (insn.src, insn.src_size) = (insn.dst, insn.size),
        Op::Push | Op::Call | Op::Ret => {
            (insn.src, insn.src_size) = (insn.dst, insn.size);
            let slot = match insn.op {
                Op::Ret => i.stack_pointer_increment().checked_sub(i32::try_from(insn.imm).ok()?)?,
                _ => i.stack_pointer_increment().checked_neg()?,
            };
            insn.size = size_of(usize::try_from(slot).ok()?)?;
        }
        Op::Pop | Op::PopSegment => insn.size = size_of(usize::try_from(i.stack_pointer_increment()).ok()?)?,
        Op::LoadLdt | Op::LoadTask | Op::Inspect(Descriptor::Readable | Descriptor::Writable) => {
            insn.src = insn.dst;
        }
        Op::LoadTable(_) => {
            insn.size = if matches!(i.code(), Code::Lgdt_m1632_16 | Code::Lidt_m1632_16) { 2 } else { 4 }
        }
        Op::Jmp => (insn.src, insn.src_size, insn.size) = (insn.dst, insn.size, branch_size(i, insn)?),
        Op::Imul if i.op_count() == 2 => insn.count = insn.dst,
        Op::Imul => insn.count = Operand::Immediate,
        // XCHG with memory is locked without the prefix (SDM 3, 9.1.2.1).
        Op::Xchg => insn.lock |= insn.dst == Operand::Memory || insn.src == Operand::Memory,
        Op::VectorLoad { .. } => insn.size = insn.src_size,
        // The accumulator is the data operand; the port is the other one.
        Op::Out => insn.size = insn.src_size,
        _ => {}
    }
    // 66h on a near branch means different things to AMD and Intel in 64-bit code.
    let odd_branch =
        matches!(insn.op, Op::Call | Op::Jmp | Op::Ret) && insn.mode == Mode::Bits64 && insn.size != 8;
    (!odd_branch).then_some(())
}

/// The operand size of a near JMP.
fn branch_size(i: &Instruction, insn: &Insn) -> Option<u8> {
    match i.op0_kind() {
        OpKind::NearBranch16 => Some(2),
        OpKind::NearBranch32 => Some(4),
        OpKind::NearBranch64 => Some(8),
        _ => Some(insn.size),
    }
}

fn size_of(bytes: usize) -> Option<u8> {
    matches!(bytes, 1 | 2 | 4 | 8 | 16).then_some(bytes as u8)
}

fn operand(i: &Instruction, n: u32) -> Option<Operand> {
    match i.op_kind(n) {
        OpKind::Register => register(i.op_register(n)),
        OpKind::Memory => Some(Operand::Memory),
        OpKind::FarBranch16 | OpKind::FarBranch32 => None,
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => Some(Operand::Immediate),
        _ => i.try_immediate(n).ok().map(|_| Operand::Immediate),
    }
}

fn operand_size(i: &Instruction, n: u32) -> Option<u8> {
    match i.op_kind(n) {
        OpKind::Register => size_of(i.op_register(n).size()),
        OpKind::Memory => size_of(i.memory_size().size()),
        _ => Some(0),
    }
}

/// The 64-bit register that a general-purpose register is part of.
fn full(r: Register) -> Gpr {
    Gpr::from_encoding(r.full_register().number() as u8)
}

/// A register operand; `None` for the kinds that are not handled.
fn register(r: Register) -> Option<Operand> {
    if (Register::AH..=Register::BH).contains(&r) {
        return Some(Operand::HighByte(full(r)));
    }
    let n = r.number() as u8;
    match r {
        _ if r.is_gpr() => Some(Operand::Gpr(full(r))),
        Register::ES => Some(Operand::Segment(SegReg::Es)),
        Register::CS => Some(Operand::Segment(SegReg::Cs)),
        Register::SS => Some(Operand::Segment(SegReg::Ss)),
        Register::DS => Some(Operand::Segment(SegReg::Ds)),
        Register::FS => Some(Operand::Segment(SegReg::Fs)),
        Register::GS => Some(Operand::Segment(SegReg::Gs)),
        _ if r.is_cr() => Some(Operand::Control(n)),
        _ if r.is_dr() => Some(Operand::Debug(n)),
        _ if r.is_xmm() && n < 16 => Some(Operand::Xmm(n)),
        _ if r.is_mm() => Some(Operand::Mmx(n)),
        _ => None,
    }
}

fn segment(i: &Instruction, mode: Mode, stack_based: bool) -> SegReg {
    match i.memory_segment() {
        Register::FS => SegReg::Fs,
        Register::GS => SegReg::Gs,
        // 64-bit code ignores the other four as overrides.
        _ if mode == Mode::Bits64 => [SegReg::Ds, SegReg::Ss][usize::from(stack_based)],
        Register::ES => SegReg::Es,
        Register::CS => SegReg::Cs,
        Register::SS => SegReg::Ss,
        _ => SegReg::Ds,
    }
}

fn memory(i: &Instruction, mode: Mode) -> Option<MemRef> {
    let (base, index) = (i.memory_base(), i.memory_index());
    if i.is_vsib() {
        return None;
    }
    let gpr = |r: Register| r.is_gpr().then(|| full(r));
    let addr_size = match (base, index) {
        (Register::None, Register::None) => i.memory_displ_size() as u8,
        (Register::None, r) | (r, _) => r.size() as u8,
    };
    let relative = i.is_ip_rel_memory_operand();
    // Decoded at address 0, so that an absolute target is the displacement plus the length.
    let disp = if relative {
        i.ip_rel_memory_address().wrapping_sub(i.next_ip())
    } else if addr_size == 4 {
        i.memory_displacement64() as i32 as u64
    } else {
        i.memory_displacement64()
    };
    let stack_based = matches!(gpr(base), Some(Gpr::Rsp | Gpr::Rbp));
    Some(MemRef {
        segment: segment(i, mode, stack_based),
        base: if relative { Base::Rip } else { gpr(base).map_or(Base::None, Base::Gpr) },
        index: gpr(index),
        scale: i.memory_index_scale() as u8,
        addr_size: matches!(addr_size, 2 | 4 | 8).then_some(addr_size)?,
        disp,
    })
}

/// The address size of a string instruction, from its index registers.
fn string_address_size(i: &Instruction) -> Option<u8> {
    (0..i.op_count()).find_map(|n| match i.op_kind(n) {
        OpKind::MemorySegSI | OpKind::MemoryESDI => Some(2),
        OpKind::MemorySegESI | OpKind::MemoryESEDI => Some(4),
        OpKind::MemorySegRSI | OpKind::MemoryESRDI => Some(8),
        _ => None,
    })
}
