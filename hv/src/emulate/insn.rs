//! The compact form of one decoded instruction: what [`super::decode`] produces and everything else here reads.
//!
//! It does not depend on where the instruction stands (RIP-relative operands and branch targets are kept relative
//! to the next instruction), so a cached copy serves every address at which the same bytes are found.

pub use super::kinds::*;
use crate::arch::state::{Gpr, SegReg, VcpuState};

/// How the code segment makes the processor read instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// 16-bit code: real mode, virtual-8086 mode, and segments with D = 0.
    Bits16 = 2,
    /// 32-bit code, compatibility mode included.
    Bits32 = 4,
    /// 64-bit code.
    #[default]
    Bits64 = 8,
}

impl Mode {
    /// The width of code in bits: 16, 32 or 64.
    pub const fn bits(self) -> u32 {
        self as u32 * 8
    }

    /// The mode of the code segment in use.
    pub fn of(state: &impl VcpuState) -> Mode {
        Mode::from_bits(state.code_bitness())
    }

    /// The mode for a width in bits; anything but 16 and 64 is 32.
    pub const fn from_bits(bits: u32) -> Mode {
        match bits {
            16 => Mode::Bits16,
            64 => Mode::Bits64,
            _ => Mode::Bits32,
        }
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    /// `dst ∘= src`
    Alu(Alu),
    Unary(Unary),
    /// `dst` by `src` bits.
    Shift(Shift),
    /// SHLD, SHRD: `dst` filled from `src` by the third operand ([`Insn::count`]).
    ShiftDouble {
        right: bool,
    },
    Bit(BitTest),
    Scan(BitScan),
    Mov,
    /// MOVZX: `src` has [`Insn::src_size`].
    MovZx,
    /// MOVSX, MOVSXD: `src` has [`Insn::src_size`].
    MovSx,
    /// MOVBE
    MovBe,
    Xchg,
    Xadd,
    Cmpxchg,
    /// CMPXCHG8B, CMPXCHG16B.
    CmpxchgPair,
    /// SETcc; the condition's encoding, 0 to 15.
    Set(u8),
    /// CMOVcc; the condition's encoding, 0 to 15.
    Cmov(u8),
    /// IMUL with two or three operands: `dst = src × (immediate or dst)`.
    Imul,
    /// MUL, IMUL with one operand, `src`.
    MulWide {
        signed: bool,
    },
    /// DIV, IDIV with the divisor `src`.
    Div {
        signed: bool,
    },
    Push,
    Pop,
    /// PUSHF, without VM and RF.
    PushFlags,
    /// PUSHA
    PushAll,
    /// POPA
    PopAll,
    /// POP of a segment register, `dst`.
    PopSegment,
    /// ENTER: `imm` is the frame's size, `level` that of nesting.
    Enter {
        level: u8,
    },
    Leave,
    /// MOV to a segment register, `dst`.
    LoadSegment,
    /// LES, LDS, LSS, LFS, LGS: this register, and `dst`.
    LoadFar(SegReg),
    /// JMP far, through memory.
    JumpFar,
    /// CALL far, through memory.
    CallFar,
    /// RET far; `imm` more bytes are released.
    RetFar,
    /// LLDT of `src`.
    LoadLdt,
    /// LTR of `src`.
    LoadTask,
    /// LAR, LSL, VERR, VERW of `src`.
    Inspect(Descriptor),
    /// SGDT, SIDT
    StoreTable(Table),
    /// LGDT, LIDT
    LoadTable(Table),
    /// SLDT, STR
    StoreSelector(SegReg),
    /// BOUND: `dst` against two values of its size.
    Bound,
    /// XLAT
    Xlat,
    /// CRC32: `src` has [`Insn::src_size`].
    Crc32,
    /// MOVDIR64B: 64 bytes to ES:`dst`.
    MoveLine,
    /// ARPL
    AdjustLevel,
    /// ADCX (with CF), ADOX (with OF).
    AddCarry {
        overflow: bool,
    },
    /// CALL near, to `src`.
    Call,
    /// JMP near, to `src`.
    Jmp,
    /// RET near; `imm` more bytes are released.
    Ret,
    Strings(Strings),
    In,
    Out,
    /// Memory to a vector register at bit `shift`; clears the rest of the register if `clear`.
    VectorLoad {
        shift: u8,
        clear: bool,
        aligned: bool,
    },
    /// A vector register's bits from `shift` up to memory.
    VectorStore {
        shift: u8,
        aligned: bool,
    },
    /// CLFLUSH, CLFLUSHOPT, CLWB: behave like a load of the line.
    FlushLine,
    /// PREFETCHx and NOP with an operand: no access that could be seen.
    Nop,
    System(System),
    /// Decoded but not executed here.
    Unsupported,
}

/// Where an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// No such operand.
    None,
    /// The low bytes of a general-purpose register.
    Gpr(Gpr),
    /// Bits 15:8 of RAX to RBX (AH to BH).
    HighByte(Gpr),
    /// Memory at [`Insn::mem`].
    Memory,
    /// [`Insn::imm`].
    Immediate,
    /// A segment register's selector.
    Segment(SegReg),
    /// CRn
    Control(u8),
    /// DRn
    Debug(u8),
    /// XMMn
    Xmm(u8),
    /// MMn
    Mmx(u8),
}

/// The base of an effective address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// None.
    None,
    /// The next instruction's RIP.
    Rip,
    /// A register.
    Gpr(Gpr),
}

/// A memory operand: `segment:[base + index × scale + disp]`, truncated to the address size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemRef {
    /// The segment (default or by prefix). 64-bit code: FS, GS, SS for a stack-based reference, else DS.
    pub segment: SegReg,
    /// The base.
    pub base: Base,
    /// The index register.
    pub index: Option<Gpr>,
    /// 1, 2, 4 or 8.
    pub scale: u8,
    /// Address size in bytes: 2, 4 or 8.
    pub addr_size: u8,
    /// The displacement, sign-extended.
    pub disp: u64,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// What it does.
    pub op: Op,
    /// The mode that it was decoded for.
    pub mode: Mode,
    /// Length in bytes, 1 to 15.
    pub len: u8,
    /// Operand size in bytes: 1, 2, 4 or 8 (16 for XMM and CMPXCHG16B, 8 for CMPXCHG8B).
    pub size: u8,
    /// Size of `src` in bytes where it differs from `size`; else equal to it.
    pub src_size: u8,
    /// LOCK prefix, or an XCHG with memory.
    pub lock: bool,
    /// Repeat prefix.
    pub repeat: Repeat,
    /// First operand.
    pub dst: Operand,
    /// Second operand.
    pub src: Operand,
    /// Third operand of SHLD and SHRD (an immediate or CL), factor of the three-operand IMUL.
    pub count: Operand,
    /// The memory operand, if an operand is [`Operand::Memory`]; for string instructions the source.
    pub mem: MemRef,
    /// The immediate, sign-extended to 64 bits; a near branch's displacement from the next instruction.
    pub imm: u64,
}

impl Insn {
    /// No instruction: unsupported, without operands, of length 0.
    pub(super) const NONE: Insn = Insn {
        op: Op::Unsupported,
        mode: Mode::Bits64,
        len: 0,
        size: 0,
        src_size: 0,
        lock: false,
        repeat: Repeat::Once,
        dst: Operand::None,
        src: Operand::None,
        count: Operand::None,
        mem: MemRef { segment: SegReg::Ds, base: Base::None, index: None, scale: 1, addr_size: 8, disp: 0 },
        imm: 0,
    };
}

/// All bits of a value of `size` bytes.
pub const fn mask(size: u8) -> u64 {
    match size {
        1 => 0xff,
        2 => 0xffff,
        4 => 0xffff_ffff,
        _ => u64::MAX,
    }
}

/// `value` of `size` bytes, sign-extended.
pub const fn sign_extend(value: u64, size: u8) -> u64 {
    match size {
        1 => value as i8 as u64,
        2 => value as i16 as u64,
        4 => value as i32 as u64,
        _ => value,
    }
}
