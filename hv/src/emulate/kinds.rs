//! The kinds within families of instructions: which arithmetic, which string instruction, which table.

/// Two-operand arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Alu {
    Add,
    Or,
    Adc,
    Sbb,
    And,
    Sub,
    Xor,
    /// SUB that keeps only the flags.
    Cmp,
    /// AND that keeps only the flags.
    Test,
}

/// One-operand arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Unary {
    Inc,
    Dec,
    Not,
    Neg,
}

/// Shifts and rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Shift {
    Rol,
    Ror,
    Rcl,
    Rcr,
    Shl,
    Shr,
    Sar,
}

/// Bit test, and what happens to the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BitTest {
    Test,
    Set,
    Reset,
    Complement,
}

/// Bit searches and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BitScan {
    Bsf,
    Bsr,
    Tzcnt,
    Lzcnt,
    Popcnt,
}

/// String instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Strings {
    Movs,
    Stos,
    Lods,
    Cmps,
    Scas,
    Ins,
    Outs,
}

/// Repeat prefix of a string instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// No prefix: once.
    Once,
    /// F3: REP, or REPE for CMPS and SCAS.
    WhileEqual,
    /// F2: REPNE for CMPS and SCAS; the same as REP for the others.
    WhileNotEqual,
}

/// What LAR, LSL, VERR and VERW ask of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Descriptor {
    Rights,
    Limit,
    Readable,
    Writable,
}

/// A register that says where a descriptor table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Table {
    Global,
    Interrupt,
}

/// Instructions that the emulator does not execute (but SMSW and LMSW of memory) but whose operands or length a backend
/// asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u8)]
pub enum System {
    #[default]
    Cpuid = 1,
    Hlt,
    Rdmsr,
    Wrmsr,
    /// MOV to or from CR0 to CR15.
    MovControl,
    /// MOV to or from DR0 to DR15.
    MovDebug,
    Clts,
    Lmsw,
    Smsw,
    Invlpg,
    Invpcid,
    Xsetbv,
    /// VMCALL or VMMCALL.
    Hypercall,
    /// INVD or WBINVD (WBNOINVD too).
    Wbinvd,
    Rdpmc,
    Rdtsc,
    Rdtscp,
    Pause,
    Monitor,
    Mwait,
    /// IN or OUT with one data item: also executed by the emulator.
    Io,
}

impl System {
    /// How many kinds there are, numbered from 1.
    pub const COUNT: usize = System::Io as usize;
}
