//! Which operation an instruction is: the list of everything that is emulated.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};

use super::insn::*;
use crate::arch::state::SegReg;

/// Which operation this is.
pub(super) fn operation(i: &Instruction) -> Option<Op> {
    use Mnemonic as M;
    // First, because MOVSD and CMPSD are also names of SSE instructions.
    if i.is_string_instruction() {
        return strings(i.mnemonic());
    }
    let alu = |op| Some(Op::Alu(op));
    let system = |what| Some(Op::System(what));
    match i.mnemonic() {
        M::Add => alu(Alu::Add),
        M::Or => alu(Alu::Or),
        M::Adc => alu(Alu::Adc),
        M::Sbb => alu(Alu::Sbb),
        M::And => alu(Alu::And),
        M::Sub => alu(Alu::Sub),
        M::Xor => alu(Alu::Xor),
        M::Cmp => alu(Alu::Cmp),
        M::Test => alu(Alu::Test),
        M::Inc => Some(Op::Unary(Unary::Inc)),
        M::Dec => Some(Op::Unary(Unary::Dec)),
        M::Not => Some(Op::Unary(Unary::Not)),
        M::Neg => Some(Op::Unary(Unary::Neg)),
        M::Rol => Some(Op::Shift(Shift::Rol)),
        M::Ror => Some(Op::Shift(Shift::Ror)),
        M::Rcl => Some(Op::Shift(Shift::Rcl)),
        M::Rcr => Some(Op::Shift(Shift::Rcr)),
        M::Shl | M::Sal => Some(Op::Shift(Shift::Shl)),
        M::Shr => Some(Op::Shift(Shift::Shr)),
        M::Sar => Some(Op::Shift(Shift::Sar)),
        M::Shld => Some(Op::ShiftDouble { right: false }),
        M::Shrd => Some(Op::ShiftDouble { right: true }),
        M::Bt => Some(Op::Bit(BitTest::Test)),
        M::Bts => Some(Op::Bit(BitTest::Set)),
        M::Btr => Some(Op::Bit(BitTest::Reset)),
        M::Btc => Some(Op::Bit(BitTest::Complement)),
        M::Bsf => Some(Op::Scan(BitScan::Bsf)),
        M::Bsr => Some(Op::Scan(BitScan::Bsr)),
        M::Tzcnt => Some(Op::Scan(BitScan::Tzcnt)),
        M::Lzcnt => Some(Op::Scan(BitScan::Lzcnt)),
        M::Popcnt => Some(Op::Scan(BitScan::Popcnt)),
        M::Mov => match (i.op0_register(), i.op1_register()) {
            (a, b) if a.is_cr() || b.is_cr() => system(System::MovControl),
            (a, b) if a.is_dr() || b.is_dr() => system(System::MovDebug),
            // Test registers went with the 486: #UD since.
            (a, b) if a.is_tr() || b.is_tr() => None,
            (a, _) if a.is_segment_register() => Some(Op::LoadSegment),
            _ => Some(Op::Mov),
        },
        // Their hints are about caches, which emulated devices do not have.
        M::Movnti | M::Movdiri => Some(Op::Mov),
        M::Movdir64b => Some(Op::MoveLine),
        M::Arpl => Some(Op::AdjustLevel),
        M::Movzx => Some(Op::MovZx),
        M::Movsx | M::Movsxd => Some(Op::MovSx),
        M::Movbe => Some(Op::MovBe),
        M::Xchg => Some(Op::Xchg),
        M::Xadd => Some(Op::Xadd),
        M::Cmpxchg => Some(Op::Cmpxchg),
        M::Cmpxchg8b | M::Cmpxchg16b => Some(Op::CmpxchgPair),
        M::Imul if i.op_count() == 1 => Some(Op::MulWide { signed: true }),
        M::Imul => Some(Op::Imul),
        M::Mul => Some(Op::MulWide { signed: false }),
        M::Div => Some(Op::Div { signed: false }),
        M::Idiv => Some(Op::Div { signed: true }),
        M::Push => Some(Op::Push),
        M::Pop if i.op0_register().is_segment_register() => Some(Op::PopSegment),
        M::Pop => Some(Op::Pop),
        // Through memory only: a far pointer in the instruction accesses no device.
        M::Call if i.is_call_far_indirect() => Some(Op::CallFar),
        M::Jmp if i.is_jmp_far_indirect() => Some(Op::JumpFar),
        M::Retf => Some(Op::RetFar),
        M::Enter => Some(Op::Enter { level: i.immediate8_2nd() & 31 }),
        M::Leave => Some(Op::Leave),
        M::Pushf | M::Pushfd | M::Pushfq => Some(Op::PushFlags),
        M::Pusha | M::Pushad => Some(Op::PushAll),
        M::Popa | M::Popad => Some(Op::PopAll),
        M::Les => Some(Op::LoadFar(SegReg::Es)),
        M::Lds => Some(Op::LoadFar(SegReg::Ds)),
        M::Lss => Some(Op::LoadFar(SegReg::Ss)),
        M::Lfs => Some(Op::LoadFar(SegReg::Fs)),
        M::Lgs => Some(Op::LoadFar(SegReg::Gs)),
        M::Lldt => Some(Op::LoadLdt),
        M::Ltr => Some(Op::LoadTask),
        M::Lar => Some(Op::Inspect(Descriptor::Rights)),
        M::Lsl => Some(Op::Inspect(Descriptor::Limit)),
        M::Verr => Some(Op::Inspect(Descriptor::Readable)),
        M::Verw => Some(Op::Inspect(Descriptor::Writable)),
        M::Sgdt => Some(Op::StoreTable(Table::Global)),
        M::Sidt => Some(Op::StoreTable(Table::Interrupt)),
        M::Lgdt => Some(Op::LoadTable(Table::Global)),
        M::Lidt => Some(Op::LoadTable(Table::Interrupt)),
        M::Sldt => Some(Op::StoreSelector(SegReg::Ldtr)),
        M::Str => Some(Op::StoreSelector(SegReg::Tr)),
        M::Bound => Some(Op::Bound),
        M::Xlatb => Some(Op::Xlat),
        M::Crc32 => Some(Op::Crc32),
        M::Adcx => Some(Op::AddCarry { overflow: false }),
        M::Adox => Some(Op::AddCarry { overflow: true }),
        M::Call => Some(Op::Call),
        M::Jmp => Some(Op::Jmp),
        M::Ret => Some(Op::Ret),
        M::In => Some(Op::In),
        M::Out => Some(Op::Out),
        M::Clflush | M::Clflushopt | M::Clwb => Some(Op::FlushLine),
        // The register form of one of them is #UD on AMD's processors.
        M::Reservednop if i.op0_kind() == OpKind::Memory => Some(Op::Nop),
        M::Nop
        | M::Cldemote
        | M::Prefetchwt1
        | M::Prefetchit0
        | M::Prefetchit1
        | M::Prefetch
        | M::Prefetchw
        | M::Prefetchnta
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2 => Some(Op::Nop),
        M::Cpuid => system(System::Cpuid),
        M::Hlt => system(System::Hlt),
        M::Rdmsr => system(System::Rdmsr),
        M::Wrmsr => system(System::Wrmsr),
        M::Clts => system(System::Clts),
        M::Lmsw => system(System::Lmsw),
        M::Smsw => system(System::Smsw),
        M::Invlpg => system(System::Invlpg),
        M::Invpcid => system(System::Invpcid),
        M::Xsetbv => system(System::Xsetbv),
        M::Vmcall | M::Vmmcall => system(System::Hypercall),
        M::Invd | M::Wbinvd | M::Wbnoinvd => system(System::Wbinvd),
        M::Rdpmc => system(System::Rdpmc),
        M::Rdtsc => system(System::Rdtsc),
        M::Rdtscp => system(System::Rdtscp),
        M::Pause => system(System::Pause),
        M::Monitor => system(System::Monitor),
        M::Mwait => system(System::Mwait),
        _ => condition(i).or_else(|| vector(i)),
    }
}

fn strings(mnemonic: Mnemonic) -> Option<Op> {
    use Mnemonic as M;
    Some(Op::Strings(match mnemonic {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq => Strings::Movs,
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => Strings::Stos,
        M::Lodsb | M::Lodsw | M::Lodsd | M::Lodsq => Strings::Lods,
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => Strings::Cmps,
        M::Scasb | M::Scasw | M::Scasd | M::Scasq => Strings::Scas,
        M::Insb | M::Insw | M::Insd => Strings::Ins,
        M::Outsb | M::Outsw | M::Outsd => Strings::Outs,
        _ => return None,
    }))
}

/// SETcc and CMOVcc.
fn condition(i: &Instruction) -> Option<Op> {
    use iced_x86::ConditionCode as C;
    let code = match i.condition_code() {
        C::o => 0,
        C::no => 1,
        C::b => 2,
        C::ae => 3,
        C::e => 4,
        C::ne => 5,
        C::be => 6,
        C::a => 7,
        C::s => 8,
        C::ns => 9,
        C::p => 10,
        C::np => 11,
        C::l => 12,
        C::ge => 13,
        C::le => 14,
        C::g => 15,
        _ => return None,
    };
    let code_name = i.code();
    if (Code::Seto_rm8..=Code::Setg_rm8).contains(&code_name) {
        Some(Op::Set(code))
    } else if (Code::Cmovo_r16_rm16..=Code::Cmovg_r64_rm64).contains(&code_name) {
        Some(Op::Cmov(code))
    } else {
        None
    }
}

/// SSE and MMX moves with a memory operand.
fn vector(i: &Instruction) -> Option<Op> {
    use Mnemonic as M;
    // Between registers they access no memory, and do not come here.
    let store = i.op0_kind() == OpKind::Memory;
    if !store && i.op1_kind() != OpKind::Memory {
        return None;
    }
    let vector = if store { i.op1_register() } else { i.op0_register() };
    if !vector.is_xmm() && !vector.is_mm() {
        return None;
    }
    // Where in the register the operand is, whether a load clears the rest, whether the address must be aligned (#GP).
    let (shift, clear, aligned) = match i.mnemonic() {
        M::Movups | M::Movupd | M::Movdqu | M::Lddqu => (0, true, false),
        M::Movaps | M::Movapd | M::Movdqa | M::Movntps | M::Movntpd | M::Movntdq | M::Movntdqa => {
            (0, true, true)
        }
        M::Movd | M::Movq | M::Movss | M::Movsd | M::Movntq => (0, true, false),
        M::Movntss | M::Movntsd => (0, true, false),
        M::Pextrb | M::Pextrw | M::Pextrd | M::Pextrq | M::Extractps if store => (lane(i)?, true, false),
        M::Pinsrb | M::Pinsrw | M::Pinsrd | M::Pinsrq if !store => (lane(i)?, false, false),
        M::Movlps | M::Movlpd => (0, false, false),
        M::Movhps | M::Movhpd => (64, false, false),
        _ => return None,
    };
    Some(if store { Op::VectorStore { shift, aligned } } else { Op::VectorLoad { shift, clear, aligned } })
}

/// The first bit of the element that the immediate names, of elements as wide as the memory operand.
fn lane(i: &Instruction) -> Option<u8> {
    let bytes = i.memory_size().size();
    let register = if i.op0_register().is_mm() { 8 } else { 16 };
    let lanes = usize::checked_div(register, bytes)?;
    u8::try_from((usize::from(i.immediate8()) & (lanes - 1)) * bytes * 8).ok()
}
