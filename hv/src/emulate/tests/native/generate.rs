//! Random instructions with operands that make sense for them.

use super::harness::{DATA, DATA_LEN, EXIT, GS_BASE, INSN, Registers};
use super::*;
use crate::arch::state::rflags::{AF, CF, DF, OF, PF, SF, ZF};

const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// One instruction with its inputs.
pub(super) struct Case {
    pub bytes: [u8; MAX_LEN],
    pub insn: Insn,
    pub gprs: [u64; 16],
    pub rflags: u64,
    pub xmm: [u128; 16],
}

/// A number from the corners more often than not.
fn value(random: &mut Random) -> u64 {
    let any = random.next();
    match random.below(8) {
        0 => any & 0xff,
        1 => 1 << (any & 63),
        2 => (1u64 << (any & 63)).wrapping_sub(1),
        3 => 0u64.wrapping_sub(any & 0xff),
        4 => [0, 1, 0x7f, 0x80, 0x7fff, 0x8000, 0x7fff_ffff, 0x8000_0000][(any & 7) as usize],
        _ => any,
    }
}

/// Prefixes and an opcode from all three maps, followed by random bytes.
fn random_bytes(random: &mut Random) -> [u8; MAX_LEN] {
    let mut bytes = [0u8; MAX_LEN];
    bytes.iter_mut().for_each(|b| *b = random.next() as u8);
    let mut at = 0;
    let mut put = |byte: u8| {
        bytes[at] = byte;
        at += 1;
    };
    for prefix in [0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x65] {
        let rare = match prefix {
            0x66 => 3,
            0xf0 => 4,
            0x67 | 0xf1.. => 6,
            _ => 30,
        };
        if random.once_in(rare) {
            put(prefix);
        }
    }
    if random.once_in(2) {
        put(0x40 | random.below(16) as u8);
    }
    match random.below(12) {
        0..3 => {}
        // Stack frames, XLAT, and (with 0F 38) CRC32, ADCX and ADOX.
        10 => put(*[0xc8, 0xc9, 0xd7].get(random.below(3) as usize).expect("one of three")),
        11 => {
            put(0x0f);
            put(0x38);
            put(*[0xf0, 0xf1, 0xf6].get(random.below(3) as usize).expect("one of three"));
        }
        // The groups of one-operand arithmetic, shifts and branches.
        3 => put(*[0xf6, 0xf7, 0xfe, 0xff, 0xd1, 0xd3, 0x83]
            .get(random.below(7) as usize)
            .expect("one of seven")),
        4 => {
            put(0x0f);
            put(*[0xc7, 0xb8, 0xbc, 0xbd].get(random.below(4) as usize).expect("one of four"));
        }
        5..=8 => put(0x0f),
        _ => {
            put(0x0f);
            put(0x38);
            put(*[0x2a, 0xf0, 0xf1].get(random.below(3) as usize).expect("one of three"));
        }
    }
    bytes
}

/// Whether this processor and this test can run it.
fn is_testable(insn: &Insn) -> bool {
    let mmx = matches!(insn.dst, Operand::Mmx(_)) || matches!(insn.src, Operand::Mmx(_));
    let segment = matches!(insn.dst, Operand::Segment(_)) || matches!(insn.src, Operand::Segment(_));
    let ports = matches!(insn.op, Op::In | Op::Out | Op::Strings(Strings::Ins | Strings::Outs));
    let never = matches!(insn.op, Op::Unsupported | Op::System(_));
    let present = match insn.op {
        Op::MovBe => is_x86_feature_detected!("movbe"),
        Op::Crc32 => is_x86_feature_detected!("sse4.2"),
        Op::AddCarry { .. } => is_x86_feature_detected!("adx"),
        // They need the kernel, or tables that are the kernel's.
        Op::LoadSegment
        | Op::PopSegment
        | Op::LoadFar(_)
        | Op::JumpFar
        | Op::CallFar
        | Op::RetFar
        | Op::LoadLdt
        | Op::LoadTask
        | Op::Inspect(_)
        | Op::StoreTable(_)
        | Op::LoadTable(_)
        | Op::StoreSelector(_) => false,
        // With flags that are the host's.
        Op::PushFlags | Op::MoveLine => false,
        Op::Scan(BitScan::Lzcnt) => is_x86_feature_detected!("lzcnt"),
        Op::Scan(BitScan::Tzcnt) => is_x86_feature_detected!("bmi1"),
        Op::Scan(BitScan::Popcnt) => is_x86_feature_detected!("popcnt"),
        // Not every processor has all of them, and there is nothing to compare.
        Op::FlushLine => false,
        Op::VectorLoad { .. } | Op::VectorStore { .. } => is_x86_feature_detected!("sse4.1"),
        _ => true,
    };
    // F2 and F3 on locked instructions may start a hardware transaction.
    let elided = insn.lock && insn.repeat != Repeat::Once;
    // FS is this thread's own.
    let local = insn.mem.segment == SegReg::Fs;
    !local && !mmx && !segment && !ports && !never && present && !elided
}

/// Whether it is MOVNTSS or MOVNTSD, which only AMD's processors have; to the emulator they are one more store of a vector register.
fn is_scalar_non_temporal(bytes: &[u8], insn: &Insn) -> bool {
    matches!(insn.op, Op::VectorStore { .. })
        && insn.size < 16
        && bytes.windows(2).any(|part| part == [0x0f, 0x2b])
}

impl Case {
    /// A random instruction with random registers; `None` if it is none, or cannot run here.
    pub(super) fn random(random: &mut Random) -> Option<Case> {
        let bytes = random_bytes(random);
        // MOVDIRI is a MOV to the emulator, and no processor here has it.
        if bytes.windows(3).any(|part| part == [0x0f, 0x38, 0xf9]) {
            return None;
        }
        let insn = decode(&bytes, Mode::Bits64).ok().filter(is_testable)?;
        if is_scalar_non_temporal(&bytes, &insn) && !is_x86_feature_detected!("sse4a") {
            return None;
        }
        let gprs = core::array::from_fn(|_| value(random));
        let xmm = core::array::from_fn(|_| u128::from(random.next()) << 64 | u128::from(random.next()));
        let rflags = rflags::FIXED | rflags::IF | random.next() & (STATUS | DF);
        Some(Case { bytes, insn, gprs, rflags, xmm })
    }

    /// Makes the operands lie in RAM, and writes to `mem` what the instruction shall find there. `None` if the dice
    /// fell badly.
    pub(super) fn choose_operands(&mut self, random: &mut Random, mem: &mut TestMemory) -> Option<()> {
        let target = DATA + 0x1000 + random.below(0x2000);
        let target = if random.once_in(2) { target & !15 } else { target };
        mem.put(target, &value(random).to_le_bytes());
        self.aim(target, random)?;
        self.prepare(target, random, mem)
    }

    fn set(&mut self, reg: Gpr, value: u64) {
        self.gprs[reg as usize] = value;
    }

    /// Makes the memory operand point to `target`.
    fn aim(&mut self, target: u64, random: &mut Random) -> Option<()> {
        let m = self.insn.mem;
        let target = target.wrapping_sub(if m.segment == SegReg::Gs { GS_BASE } else { 0 });
        if self.insn.dst != Operand::Memory && self.insn.src != Operand::Memory {
            return Some(());
        }
        // Garbage above a 32-bit address must not matter.
        let garbage = if m.addr_size == 4 { random.next() << 32 } else { 0 };
        let scaled = |gprs: &[u64; 16], reg: Gpr| gprs[reg as usize].wrapping_mul(u64::from(m.scale));
        match (m.base, m.index) {
            (Base::Gpr(base), None) => {
                self.set(base, target.wrapping_sub(m.disp) & mask(m.addr_size) | garbage)
            }
            (Base::Gpr(base), Some(index)) if base != index => {
                let rest = scaled(&self.gprs, index).wrapping_add(m.disp);
                self.set(base, target.wrapping_sub(rest) & mask(m.addr_size) | garbage);
            }
            (Base::None, Some(index)) => {
                let difference = target.wrapping_sub(m.disp) & mask(m.addr_size);
                if !difference.is_multiple_of(u64::from(m.scale)) {
                    return None;
                }
                self.set(index, difference / u64::from(m.scale));
            }
            (Base::None, None) => self.patch(target)?,
            (Base::Rip, _) => self.patch(target.wrapping_sub(INSN + u64::from(self.insn.len)))?,
            _ => return None,
        }
        Some(())
    }

    /// Replaces the displacement within the instruction's bytes.
    fn patch(&mut self, disp: u64) -> Option<()> {
        let absolute =
            matches!(self.insn.len, 9..) && self.insn.mem.addr_size == 8 && self.insn.op == Op::Mov;
        let len = if absolute { 8 } else { 4 };
        let old = self.insn.mem.disp.to_le_bytes();
        let end = usize::from(self.insn.len);
        let at = (1..=end.checked_sub(len)?).find(|&at| self.bytes[at..at + len] == old[..len])?;
        self.bytes[at..at + len].copy_from_slice(&disp.to_le_bytes()[..len]);
        self.insn = decode(&self.bytes, Mode::Bits64).ok()?;
        Some(())
    }

    /// What particular instructions want: pointers in RAM, comparisons that come out equal half of the time.
    fn prepare(&mut self, target: u64, random: &mut Random, mem: &mut TestMemory) -> Option<()> {
        // Processors differ in whether a 32-bit destination that is not written loses its upper half.
        if let (Op::Cmpxchg | Op::Scan(BitScan::Bsf | BitScan::Bsr), Operand::Gpr(reg), 4) =
            (self.insn.op, self.insn.dst, self.insn.size)
        {
            self.set(reg, self.gprs[reg as usize] & mask(4));
        }
        match self.insn.op {
            Op::Strings(_) => {
                let garbage = if self.insn.mem.addr_size == 4 { random.next() << 32 } else { 0 };
                let base = if self.insn.mem.segment == SegReg::Gs { GS_BASE } else { 0 };
                self.set(Gpr::Rsi, (target - base) | garbage);
                self.set(Gpr::Rdi, (DATA + 0x1000 + random.below(0x2000)) | garbage);
                // A 32-bit count of 0 clears upper halves on Intel's processors but not on AMD's.
                let least = u64::from(self.insn.mem.addr_size == 4);
                let count = random.below(600) / (1 + random.below(200));
                self.set(Gpr::Rcx, count.max(least) | garbage);
                if random.once_in(2) {
                    mem.ram.fill(random.next() as u8 & 1);
                    self.set(Gpr::Rax, mem.get(target, 8));
                }
            }
            // Else most quotients would not fit.
            Op::Div { .. } => self.set(Gpr::Rdx, random.below(3).wrapping_sub(1)),
            Op::Bit(_) => {
                // Keep what a register bit offset reaches within RAM.
                if let Operand::Gpr(reg) = self.insn.src {
                    let reach = (random.below(0x7000) as i64 - 0x3800) as u64;
                    let uses = |r| self.insn.mem.base == Base::Gpr(r) || self.insn.mem.index == Some(r);
                    if self.insn.dst == Operand::Memory && !uses(reg) {
                        self.set(reg, reach);
                    }
                }
            }
            Op::Cmpxchg | Op::CmpxchgPair if random.once_in(2) => {
                // Likely aimed with RAX or RDX; then the case is simply another one.
                self.set(Gpr::Rax, mem.get(target, 8));
                self.set(Gpr::Rdx, mem.get(target + if self.insn.size == 16 { 8 } else { 4 }, 8));
                self.aim(target, random)?;
            }
            // A 16-bit operand has no defined result for counts beyond its width.
            Op::ShiftDouble { .. } if self.insn.size == 2 => match self.insn.count {
                Operand::Immediate if self.insn.imm & 31 > 16 => return None,
                Operand::Immediate => {}
                _ => self.set(Gpr::Rcx, random.below(17)),
            },
            Op::Enter { .. } => {
                self.set(Gpr::Rbp, target);
                // Frames apart, or one in the other.
                let apart = DATA + 0x3400 + random.below(0x800);
                self.set(Gpr::Rsp, if random.once_in(2) { apart } else { target + 8 * random.below(8) });
                // A frame that fits into RAM: the operand's upper byte is the third of the instruction's last four.
                let at = usize::from(self.insn.len) - 2;
                self.bytes[at] &= 0xf;
                self.insn = decode(&self.bytes, Mode::Bits64).ok()?;
            }
            Op::Leave => self.set(Gpr::Rbp, target),
            Op::Xlat => self.set(
                Gpr::Rbx,
                target.wrapping_sub(if self.insn.mem.segment == SegReg::Gs { GS_BASE } else { 0 }),
            ),
            Op::Push | Op::Pop => self.set(Gpr::Rsp, DATA + 0x1000 + random.below(0x1000)),
            Op::Ret => {
                self.set(Gpr::Rsp, target);
                mem.put(target, &EXIT.to_le_bytes());
            }
            Op::Call | Op::Jmp => {
                self.set(Gpr::Rsp, DATA + 0x3000);
                match self.insn.src {
                    Operand::Gpr(reg) => self.set(reg, EXIT),
                    Operand::Memory => {
                        self.aim(target, random)?;
                        mem.put(target, &EXIT.to_le_bytes());
                    }
                    _ if matches!(self.insn.len, 5..) => {
                        let end = usize::from(self.insn.len);
                        let disp = EXIT.wrapping_sub(INSN + u64::from(self.insn.len)) as u32;
                        self.bytes[end - 4..end].copy_from_slice(&disp.to_le_bytes());
                        self.insn = decode(&self.bytes, Mode::Bits64).ok()?;
                    }
                    _ => return None,
                }
            }
            _ => {}
        }
        debug_assert!(mem.ram.len() == DATA_LEN);
        Some(())
    }

    pub(super) fn registers(&self) -> Registers {
        Registers { gprs: self.gprs, rflags: self.rflags }
    }

    /// A user-mode state about to execute the instruction at `rip`.
    pub(super) fn state(&self, rip: u64) -> ArchState {
        let mut state =
            ArchState { gprs: self.gprs, rip, rflags: self.rflags, cpl: 3, ..machine(Mode::Bits64) };
        state.segments[SegReg::Gs as usize].base = GS_BASE;
        state
    }
}

/// The flags that Intel's and AMD's manuals both define after this case.
pub(super) fn defined_flags(case: &Case) -> u64 {
    let insn = &case.insn;
    let width = u64::from(insn.size) * 8;
    let count = |operand| match operand {
        Operand::Immediate => insn.imm,
        _ => case.gprs[Gpr::Rcx as usize],
    } & if insn.size == 8 { 63 } else { 31 };
    let shifted = |count, beyond| match count {
        0 => 0,
        1 => AF,
        n if n >= width => AF | OF | beyond,
        _ => AF | OF,
    };
    let undefined = match insn.op {
        Op::Alu(Alu::And | Alu::Or | Alu::Xor | Alu::Test) => AF,
        Op::Shift(Shift::Sar) => shifted(count(insn.src), 0),
        Op::Shift(Shift::Shl | Shift::Shr) => shifted(count(insn.src), CF),
        Op::Shift(_) => shifted(count(insn.src), 0) & OF,
        Op::ShiftDouble { .. } => shifted(count(insn.count), STATUS),
        Op::Imul | Op::MulWide { .. } => SF | ZF | AF | PF,
        Op::Div { .. } => STATUS,
        Op::Bit(_) => OF | SF | AF | PF,
        Op::Scan(BitScan::Bsf | BitScan::Bsr) => STATUS & !ZF,
        Op::Scan(BitScan::Tzcnt | BitScan::Lzcnt) => OF | SF | AF | PF,
        _ => 0,
    };
    (STATUS | DF) & !undefined
}

/// What kinds of instructions are counted as.
pub(super) fn kind(insn: &Insn) -> String {
    let op = match insn.op {
        Op::Alu(op) => format!("{op:?}"),
        Op::Unary(op) => format!("{op:?}"),
        Op::Shift(op) => format!("{op:?}"),
        Op::Bit(op) => format!("Bit{op:?}"),
        Op::Scan(op) => format!("{op:?}"),
        Op::Strings(op) => format!("{op:?}{}", if insn.repeat == Repeat::Once { "" } else { " repeated" }),
        Op::Set(_) => "Set".into(),
        Op::Cmov(_) => "Cmov".into(),
        Op::Enter { .. } => "Enter".into(),
        op => format!("{op:?}").replace([',', ':'], "").replace(" }", "").replace(" {", ""),
    };
    let memory = insn.dst == Operand::Memory || insn.src == Operand::Memory;
    let lock = if insn.lock { " locked" } else { "" };
    format!("{op} {}{}{lock}", insn.size, if memory { " memory" } else { "" })
}

/// The kinds that must have run.
pub(super) fn expected_kinds() -> Vec<String> {
    let locked = "Add Or Adc Sbb And Sub Xor Inc Dec Not Neg Xadd Cmpxchg";
    let plain = "Cmp Test Rol Ror Rcl Rcr Shl Shr Sar Mov";
    let wide = "BitTest Bsf Bsr Cmov Imul";
    let wide_locked = "BitSet BitReset BitComplement";
    let strings = "Movs Stos Lods Cmps Scas";
    let mut kinds = Vec::new();
    let mut add = |ops: &str, sizes: &[u8], forms: &[&str]| {
        for op in ops.split(' ') {
            for size in sizes {
                kinds.extend(forms.iter().map(|form| format!("{} {size}{form}", op.replace('_', " "))));
            }
        }
    };
    let (register, memory, lock) = ("", " memory", " memory locked");
    add(locked, &[1, 2, 4, 8], &[register, memory, lock]);
    add(plain, &[1, 2, 4, 8], &[register, memory]);
    add(wide, &[2, 4, 8], &[register, memory]);
    add(wide_locked, &[2, 4, 8], &[register, memory, lock]);
    add(strings, &[1, 2, 4, 8], &[register]);
    add("Movs_repeated Stos_repeated Lods_repeated Cmps_repeated Scas_repeated", &[1, 2, 4, 8], &[register]);
    add("ShiftDouble_right_false ShiftDouble_right_true", &[2, 4, 8], &[register, memory]);
    add("MovZx MovSx", &[2, 4, 8], &[register, memory]);
    add("MulWide_signed_false MulWide_signed_true", &[1, 2, 4, 8], &[register, memory]);
    add("Div_signed_false Div_signed_true", &[1, 2, 4, 8], &[register, memory]);
    add("Xchg", &[1, 2, 4, 8], &[register, lock]);
    add("CmpxchgPair", &[8, 16], &[memory, lock]);
    add("Set", &[1], &[register, memory]);
    add("Leave", &[2, 8], &[register]);
    add("Xlat", &[1], &[register]);
    if is_x86_feature_detected!("sse4.2") {
        add("Crc32", &[4, 8], &[register, memory]);
    }
    if is_x86_feature_detected!("adx") {
        add("AddCarry_overflow_false AddCarry_overflow_true", &[4, 8], &[register, memory]);
    }
    add("Enter", &[2, 8], &[register]);
    add("Push Pop", &[2, 8], &[register, memory]);
    add("Call Jmp", &[8], &[register, memory]);
    add("Ret", &[8], &[register]);
    let load = "VectorLoad_shift_0_clear_true_aligned_";
    add(&format!("{load}true {load}false"), &[16], &[memory]);
    add(&format!("{load}false"), &[4, 8], &[memory]);
    add("VectorLoad_shift_0_clear_false_aligned_false", &[8], &[memory]);
    add("VectorLoad_shift_64_clear_false_aligned_false", &[8], &[memory]);
    add("VectorStore_shift_0_aligned_true VectorStore_shift_0_aligned_false", &[16], &[memory]);
    add("VectorStore_shift_64_aligned_false", &[8], &[memory]);
    if is_x86_feature_detected!("movbe") {
        add("MovBe", &[2, 4, 8], &[memory]);
    }
    kinds
}
