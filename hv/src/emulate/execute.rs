//! Executes one [`Insn`]: the choice among operations, and the ones that only move or combine operands.
//!
//! Each function does its accesses first and commits registers last; [`Exec::finish`] alone moves RIP.

use super::flags::{self, Flagged};
use super::insn::*;
use super::{Fault, Memory, Outcome};
use crate::arch::Exception;
use crate::arch::state::rflags::{RF, TF, ZF};
use crate::arch::state::{Gpr, VcpuState};

/// The result of a step that can fault.
pub(super) type Res<T, M> = Result<T, Fault<<M as Memory>::Stop>>;

/// Where execution goes after an instruction.
pub(super) enum Flow {
    /// To the next instruction.
    Next,
    /// To this RIP.
    Jump(u64),
    /// A repeated string instruction did some iterations and is not finished.
    Iterated,
    /// A locked instruction lost a race; nothing has happened.
    Retry,
    /// Not executed here; nothing has happened.
    Unsupported,
}

/// How often a locked instruction tries before it lets the caller look at pending events.
const LOCK_ATTEMPTS: u32 = 64;

/// One instruction with all that it may touch.
pub(super) struct Exec<'a, S, M> {
    pub insn: &'a Insn,
    pub state: &'a mut S,
    pub mem: &'a mut M,
    /// CPL 3.
    pub user: bool,
}

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    /// Executes the instruction.
    pub(super) fn run(&mut self) -> Res<Flow, M> {
        match self.insn.op {
            Op::Alu(op) => self.alu(op),
            Op::Unary(op) => self.modify_flags(|size, a, rflags| flags::unary(op, size, a, rflags)),
            Op::Shift(op) => {
                let count = self.get(self.insn.src, 1)?;
                self.modify_flags(|size, a, rflags| flags::shift(op, size, a, count, rflags))
            }
            Op::ShiftDouble { right } => {
                let (fill, count) = (self.get(self.insn.src, self.insn.size)?, self.get(self.insn.count, 1)?);
                self.modify_flags(|size, a, rflags| flags::shift_double(right, size, a, fill, count, rflags))
            }
            Op::Bit(op) => self.bit(op),
            Op::Scan(op) => self.scan(op),
            Op::Mov => self.plain_move(),
            Op::MovZx => self.move_value(|value, _| value),
            Op::MovSx => self.move_value(sign_extend),
            Op::MovBe => self.move_value(|value, size| value.swap_bytes() >> (64 - 8 * u32::from(size))),
            Op::Xchg => self.exchange(),
            Op::Xadd => self.exchange_add(),
            Op::Cmpxchg => self.compare_exchange(),
            Op::CmpxchgPair => self.compare_exchange_pair(),
            Op::Set(code) => {
                let holds = flags::condition(code, self.state.rflags());
                self.set(self.insn.dst, 1, u64::from(holds))?;
                Ok(Flow::Next)
            }
            Op::Cmov(code) => {
                // The source is read, and a 32-bit destination zero-extended, whatever the condition.
                let source = self.get(self.insn.src, self.insn.size)?;
                let kept = self.get(self.insn.dst, self.insn.size)?;
                let holds = flags::condition(code, self.state.rflags());
                self.set_register(self.insn.dst, self.insn.size, if holds { source } else { kept });
                Ok(Flow::Next)
            }
            Op::Imul => self.imul(),
            Op::MulWide { signed } => self.multiply_wide(signed),
            Op::Div { signed } => self.divide(signed),
            Op::Push => self.push(),
            Op::Pop => self.pop(),
            Op::PushFlags => self.push_flags(),
            Op::PushAll => self.push_all(),
            Op::PopAll => self.pop_all(),
            Op::PopSegment => self.pop_segment(),
            Op::Enter { level } => self.enter(level),
            Op::Leave => self.leave(),
            Op::LoadSegment => self.load_segment(),
            Op::LoadFar(reg) => self.load_far(reg),
            Op::JumpFar => self.jump_far(),
            Op::CallFar => self.call_far(),
            Op::RetFar => self.ret_far(),
            Op::LoadLdt => self.load_ldt(),
            Op::LoadTask => self.load_task(),
            Op::Inspect(what) => self.inspect(what),
            Op::StoreTable(table) => self.store_table(table),
            Op::LoadTable(table) => self.load_table(table),
            Op::StoreSelector(reg) => self.store_selector(reg),
            Op::Bound => self.bound(),
            Op::Xlat => self.translate(),
            Op::Crc32 => self.checksum(),
            Op::MoveLine => self.move_line(),
            Op::AdjustLevel => self.adjust_level(),
            Op::AddCarry { overflow } => self.add_carry(overflow),
            Op::System(System::Smsw) => self.store_status(),
            Op::System(System::Lmsw) => self.load_status(),
            Op::Call => self.call(),
            Op::Jmp => self.jump(),
            Op::Ret => self.ret(),
            Op::Strings(op) => self.strings(op),
            Op::In => self.port_in(),
            Op::Out => self.port_out(),
            Op::VectorLoad { shift, clear, aligned } => self.vector_load(shift, clear, aligned),
            Op::VectorStore { shift, aligned } => self.vector_store(shift, aligned),
            Op::FlushLine => {
                let at = self.linear(self.insn.mem.segment, self.effective(&self.insn.mem), 1, false)?;
                self.mem.probe(at, 1, self.access(false))?;
                Ok(Flow::Next)
            }
            Op::Nop => Ok(Flow::Next),
            Op::System(_) | Op::Unsupported => Ok(Flow::Unsupported),
        }
    }

    /// RIP of the instruction after this one.
    #[inline]
    pub(super) fn next_rip(&self) -> u64 {
        let next = self.state.rip().wrapping_add(u64::from(self.insn.len));
        if self.insn.mode == Mode::Bits64 { next } else { next & mask(4) }
    }

    /// Turns the result of [`Exec::run`] into what the caller must do; moves RIP.
    pub(super) fn finish(&mut self, result: Res<Flow, M>) -> Option<Outcome<M::Stop>> {
        let rip = match result {
            Ok(Flow::Next) => self.next_rip(),
            Ok(Flow::Jump(rip)) => rip,
            Ok(Flow::Iterated) => {
                let rflags = self.state.rflags();
                // An interrupt between two iterations pushes RF, so that the breakpoint of the instruction does not hit
                // again.
                self.state.set_rflags(rflags | RF);
                let stepping = rflags & TF != 0;
                return Some(if stepping { Outcome::Done { single_step: true } } else { Outcome::Continue });
            }
            Ok(Flow::Retry) => return Some(Outcome::Continue),
            Ok(Flow::Unsupported) => return None,
            Err(Fault::Exception(exception)) => return Some(Outcome::Fault(exception)),
            Err(Fault::Stop(stop)) => return Some(Outcome::Stop(stop)),
        };
        Some(Outcome::Done { single_step: complete(self.state, rip) })
    }

    fn alu(&mut self, op: Alu) -> Res<Flow, M> {
        let size = self.insn.size;
        let b = self.get(self.insn.src, size)?;
        if !matches!(op, Alu::Cmp | Alu::Test) {
            return self.modify_flags(|size, a, rflags| flags::alu(op, size, a, b, rflags));
        }
        let a = self.get(self.insn.dst, size)?;
        let (_, rflags) = flags::alu(op, size, a, b, self.state.rflags());
        self.state.set_rflags(rflags);
        Ok(Flow::Next)
    }

    /// MOV. Stores and loads of general-purpose registers, the most frequent instructions here, take a short way.
    fn plain_move(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        match (self.insn.dst, self.insn.src) {
            (Operand::Memory, Operand::Gpr(reg)) => {
                let at = self.operand_address(size, true)?;
                self.store(at, size, self.state.gpr(reg))?;
            }
            (Operand::Gpr(_), Operand::Memory) => {
                let at = self.operand_address(size, false)?;
                let value = self.load(at, size, false)?;
                self.set_register(self.insn.dst, size, value);
            }
            _ => return self.move_value(|value, _| value),
        }
        Ok(Flow::Next)
    }

    /// `dst = f(src)`, where `f` also gets the source's size.
    fn move_value(&mut self, f: impl Fn(u64, u8) -> u64) -> Res<Flow, M> {
        // Only MOVZX and MOVSX have a source of another size, and theirs is never wider.
        let from = match self.insn.op {
            Op::MovZx | Op::MovSx => self.insn.src_size,
            _ => self.insn.size,
        };
        let value = f(self.get(self.insn.src, from)?, from);
        self.set(self.insn.dst, self.insn.size, value)?;
        Ok(Flow::Next)
    }

    fn scan(&mut self, op: BitScan) -> Res<Flow, M> {
        let size = self.insn.size;
        let source = self.get(self.insn.src, size)?;
        let (result, rflags) = flags::scan(op, size, source, self.state.rflags());
        if let Some(result) = result {
            self.set_register(self.insn.dst, size, result);
        }
        self.state.set_rflags(rflags);
        Ok(Flow::Next)
    }

    fn bit(&mut self, op: BitTest) -> Res<Flow, M> {
        use crate::arch::state::rflags::CF;
        let size = self.insn.size;
        let offset = self.get(self.insn.src, size)?;
        let bit = 1u64 << (offset & (u64::from(size) * 8 - 1));
        // A bit offset in a register reaches beyond the operand, in steps of the operand size.
        let far = matches!(self.insn.src, Operand::Gpr(_)) && self.insn.dst == Operand::Memory;
        let units = sign_extend(offset, size) as i64 >> (3 + size.trailing_zeros());
        let reach = if far { (units as u64).wrapping_mul(u64::from(size)) } else { 0 };
        let with_carry = |a: u64, rflags: u64| if a & bit != 0 { rflags | CF } else { rflags & !CF };
        let rflags = self.state.rflags();
        if op == BitTest::Test {
            let a = self.get_at(self.insn.dst, size, reach)?;
            self.state.set_rflags(with_carry(a, rflags));
            return Ok(Flow::Next);
        }
        let change = |a: u64| match op {
            BitTest::Set => a | bit,
            BitTest::Reset => a & !bit,
            _ => a ^ bit,
        };
        let Some(old) = self.modify(size, reach, change)? else { return Ok(Flow::Retry) };
        self.state.set_rflags(with_carry(old, rflags));
        Ok(Flow::Next)
    }

    fn exchange(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let new = self.get(self.insn.src, size)?;
        let Some(old) = self.modify(size, 0, |_| new)? else { return Ok(Flow::Retry) };
        self.set_register(self.insn.src, size, old);
        Ok(Flow::Next)
    }

    fn exchange_add(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let addend = self.get(self.insn.src, size)?;
        let rflags = self.state.rflags();
        let sum = |a| flags::alu(Alu::Add, size, a, addend, rflags);
        let Some(old) = self.modify(size, 0, |a| sum(a).0)? else { return Ok(Flow::Retry) };
        // With one register as both operands the sum stays.
        if self.insn.src != self.insn.dst {
            self.set_register(self.insn.src, size, old);
        }
        self.state.set_rflags(sum(old).1);
        Ok(Flow::Next)
    }

    fn compare_exchange(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let new = self.get(self.insn.src, size)?;
        let expected = self.state.gpr(Gpr::Rax) & mask(size);
        let old = if self.insn.dst == Operand::Memory {
            // Memory is written either way.
            let Some(old) = self.modify(size, 0, |a| if a == expected { new } else { a })? else {
                return Ok(Flow::Retry);
            };
            old
        } else {
            // A register is not, which shows in the upper half of a 32-bit one.
            let old = self.get(self.insn.dst, size)?;
            if old == expected {
                self.set_register(self.insn.dst, size, new);
            }
            old
        };
        if old != expected {
            self.set_register(Operand::Gpr(Gpr::Rax), size, old);
        }
        let (_, rflags) = flags::alu(Alu::Cmp, size, expected, old, self.state.rflags());
        self.state.set_rflags(rflags);
        Ok(Flow::Next)
    }

    /// CMPXCHG8B and CMPXCHG16B: `size` is that of the pair.
    fn compare_exchange_pair(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let half = size / 2;
        let width = u32::from(half) * 8;
        let pair = |s: &S, high: Gpr, low: Gpr| {
            u128::from(s.gpr(high) & mask(half)) << width | u128::from(s.gpr(low) & mask(half))
        };
        let expected = pair(self.state, Gpr::Rdx, Gpr::Rax);
        let new = pair(self.state, Gpr::Rcx, Gpr::Rbx);
        let at = self.operand_address(size, true)?;
        if size == 16 && !at.is_aligned(16) {
            return Err(Exception::GP0.into());
        }
        let mut bytes = [0; 16];
        let old_bytes = &mut bytes[..usize::from(size)];
        self.mem.read(at, old_bytes, self.access(true))?;
        let mut old = [0; 16];
        old[..usize::from(size)].copy_from_slice(old_bytes);
        let old = u128::from_le_bytes(old);
        // Memory is written in either case, as CMPXCHG8B does (SDM 2, "CMPXCHG8B").
        let result = if old == expected { new } else { old }.to_le_bytes();
        let result = &result[..usize::from(size)];
        if self.insn.lock {
            if !self.mem.compare_exchange(at, old_bytes, result, self.access(true))? {
                return Ok(Flow::Retry);
            }
        } else {
            self.mem.write(at, result, self.access(true))?;
        }
        let rflags = self.state.rflags() & !ZF;
        self.state.set_rflags(if old == expected { rflags | ZF } else { rflags });
        if old != expected {
            self.set_register(Operand::Gpr(Gpr::Rax), half, old as u64);
            self.set_register(Operand::Gpr(Gpr::Rdx), half, (old >> width) as u64);
        }
        Ok(Flow::Next)
    }

    /// `dst = f(dst)` with flags.
    fn modify_flags(&mut self, f: impl Fn(u8, u64, u64) -> Flagged) -> Res<Flow, M> {
        let (size, rflags) = (self.insn.size, self.state.rflags());
        let Some(old) = self.modify(size, 0, |a| f(size, a, rflags).0)? else { return Ok(Flow::Retry) };
        let (_, rflags) = f(size, old, rflags);
        self.state.set_rflags(rflags);
        Ok(Flow::Next)
    }

    /// `dst = f(dst)`, atomically with LOCK; a memory operand is `reach` bytes further. The old value, or `None` if
    /// other processors kept changing it.
    pub(super) fn modify(&mut self, size: u8, reach: u64, f: impl Fn(u64) -> u64) -> Res<Option<u64>, M> {
        if self.insn.dst != Operand::Memory {
            let old = self.get(self.insn.dst, size)?;
            self.set_register(self.insn.dst, size, f(old));
            return Ok(Some(old));
        }
        let offset = self.effective(&self.insn.mem).wrapping_add(reach) & mask(self.insn.mem.addr_size);
        let at = self.data_address(self.insn.mem.segment, offset, size, true)?;
        let bytes = usize::from(size);
        // Bounded: other VCPUs decide how often it fails.
        for _ in 0..LOCK_ATTEMPTS {
            let old = self.load(at, size, true)?;
            let new = f(old);
            if !self.insn.lock {
                self.store(at, size, new)?;
                return Ok(Some(old));
            }
            let (from, to) = (old.to_le_bytes(), new.to_le_bytes());
            if self.mem.compare_exchange(at, &from[..bytes], &to[..bytes], self.access(true))? {
                return Ok(Some(old));
            }
        }
        Ok(None)
    }
}

/// Ends an instruction: sets RIP, clears RF; says whether TF asks for a single-step #DB.
pub(super) fn complete(state: &mut impl VcpuState, rip: u64) -> bool {
    state.set_rip(rip);
    let rflags = state.rflags();
    if rflags & RF != 0 {
        state.set_rflags(rflags & !RF);
    }
    rflags & TF != 0
}
