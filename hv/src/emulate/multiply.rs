//! MUL, IMUL, DIV and IDIV.
//!
//! SF, ZF, AF and PF after a multiplication, and all flags after a division, are undefined: they are left alone.

use super::Memory;
use super::execute::{Exec, Flow, Res};
use super::insn::{Operand, mask, sign_extend};
use crate::arch::state::rflags::{CF, OF};
use crate::arch::state::{Gpr, VcpuState};
use crate::arch::{Exception, vector};

const DIVIDE_ERROR: Exception = Exception { vector: vector::DE, error: None, cr2: None };

/// The full product of two values of `size` bytes, and whether its upper half is more than an extension.
fn product(signed: bool, size: u8, a: u64, b: u64) -> (u128, bool) {
    if signed {
        let full = i128::from(sign_extend(a, size) as i64) * i128::from(sign_extend(b, size) as i64);
        (full as u128, full != i128::from(sign_extend(full as u64 & mask(size), size) as i64))
    } else {
        let full = u128::from(a) * u128::from(b);
        (full, full >> (u32::from(size) * 8) != 0)
    }
}

/// Quotient and remainder of a dividend of `2 × size` bytes; `None` is #DE.
fn quotient(signed: bool, size: u8, dividend: u128, divisor: u64) -> Option<(u64, u64)> {
    let width = u32::from(size) * 8;
    if !signed {
        let divisor = u128::from(divisor);
        let q = dividend.checked_div(divisor)?;
        return (q >> width == 0).then_some((q as u64, (dividend % divisor) as u64));
    }
    // Sign-extends the dividend of twice the operand's width.
    let spare = 128 - 2 * width;
    let dividend = (dividend << spare) as i128 >> spare;
    let divisor = i128::from(sign_extend(divisor, size) as i64);
    let q = dividend.checked_div(divisor)?;
    let fits = q == i128::from(sign_extend(q as u64 & mask(size), size) as i64);
    fits.then_some((q as u64 & mask(size), (dividend % divisor) as u64 & mask(size)))
}

impl<S: VcpuState, M: Memory> Exec<'_, S, M> {
    fn set_overflow(&mut self, overflow: bool) {
        let rflags = self.state.rflags() & !(CF | OF);
        self.state.set_rflags(if overflow { rflags | CF | OF } else { rflags });
    }

    /// IMUL with two or three operands.
    pub(super) fn imul(&mut self) -> Res<Flow, M> {
        let size = self.insn.size;
        let a = self.get(self.insn.src, size)?;
        let b = self.get(self.insn.count, size)?;
        let (full, overflow) = product(true, size, a, b);
        self.set_register(self.insn.dst, size, full as u64);
        self.set_overflow(overflow);
        Ok(Flow::Next)
    }

    /// MUL and IMUL into xDX:xAX (AX for bytes).
    pub(super) fn multiply_wide(&mut self, signed: bool) -> Res<Flow, M> {
        let size = self.insn.size;
        let a = self.get(self.insn.src, size)?;
        let (full, overflow) = product(signed, size, a, self.state.gpr(Gpr::Rax) & mask(size));
        self.set_wide(size, full as u64, (full >> (u32::from(size) * 8)) as u64);
        self.set_overflow(overflow);
        Ok(Flow::Next)
    }

    /// DIV and IDIV of xDX:xAX (AX for bytes).
    pub(super) fn divide(&mut self, signed: bool) -> Res<Flow, M> {
        let size = self.insn.size;
        let divisor = self.get(self.insn.src, size)?;
        let low = self.state.gpr(Gpr::Rax);
        let high = if size == 1 { low >> 8 } else { self.state.gpr(Gpr::Rdx) } & mask(size);
        let dividend = u128::from(high) << (u32::from(size) * 8) | u128::from(low & mask(size));
        let (q, r) = quotient(signed, size, dividend, divisor).ok_or(DIVIDE_ERROR)?;
        self.set_wide(size, q, r);
        Ok(Flow::Next)
    }

    /// Sets xAX and xDX, or AL and AH.
    fn set_wide(&mut self, size: u8, low: u64, high: u64) {
        self.set_register(Operand::Gpr(Gpr::Rax), size, low);
        let upper = if size == 1 { Operand::HighByte(Gpr::Rax) } else { Operand::Gpr(Gpr::Rdx) };
        self.set_register(upper, size, high);
    }
}
