//! Integer arithmetic with flags. Pure functions: values are of `size` bytes (1, 2, 4 or 8) with zeros above.
//!
//! Flags that the manuals leave undefined are what processors do: unchanged, or cleared where noted.

use super::insn::{Alu, BitScan, Shift, Unary, mask};
use crate::arch::state::rflags::{AF, CF, OF, PF, SF, ZF};

/// The six arithmetic flags.
pub(super) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// A result and the new RFLAGS.
pub(super) type Flagged = (u64, u64);

const fn bits(size: u8) -> u32 {
    size as u32 * 8
}

/// `bit` if `on`.
const fn when(on: bool, bit: u64) -> u64 {
    if on { bit } else { 0 }
}

/// The top bit of a value.
pub(super) const fn sign(value: u64, size: u8) -> bool {
    value >> (bits(size) - 1) & 1 != 0
}

/// SF, ZF and PF of a result.
pub(super) const fn result_flags(value: u64, size: u8) -> u64 {
    when(sign(value, size), SF)
        | when(value == 0, ZF)
        | when((value as u8).count_ones().is_multiple_of(2), PF)
}

const fn add(size: u8, a: u64, b: u64, carry: u64) -> Flagged {
    let sum = a as u128 + b as u128 + carry as u128;
    let r = sum as u64 & mask(size);
    let flags = result_flags(r, size)
        | when(sum >> bits(size) != 0, CF)
        | (a ^ b ^ r) & AF
        | when(sign((a ^ r) & (b ^ r), size), OF);
    (r, flags)
}

const fn sub(size: u8, a: u64, b: u64, borrow: u64) -> Flagged {
    let r = a.wrapping_sub(b).wrapping_sub(borrow) & mask(size);
    let flags = result_flags(r, size)
        | when((a as u128) < b as u128 + borrow as u128, CF)
        | (a ^ b ^ r) & AF
        | when(sign((a ^ b) & (a ^ r), size), OF);
    (r, flags)
}

/// Two-operand arithmetic. For CMP and TEST the result is to be dropped. AF after a logical operation is cleared.
pub(super) const fn alu(op: Alu, size: u8, a: u64, b: u64, rflags: u64) -> Flagged {
    let carry = rflags & CF;
    let (r, flags) = match op {
        Alu::Add => add(size, a, b, 0),
        Alu::Adc => add(size, a, b, carry),
        Alu::Sub | Alu::Cmp => sub(size, a, b, 0),
        Alu::Sbb => sub(size, a, b, carry),
        Alu::And | Alu::Test => (a & b, result_flags(a & b, size)),
        Alu::Or => (a | b, result_flags(a | b, size)),
        Alu::Xor => (a ^ b, result_flags(a ^ b, size)),
    };
    (r, rflags & !STATUS | flags)
}

/// One-operand arithmetic. INC and DEC keep CF, NOT keeps all flags.
pub(super) const fn unary(op: Unary, size: u8, a: u64, rflags: u64) -> Flagged {
    match op {
        Unary::Inc => {
            let (r, flags) = add(size, a, 1, 0);
            (r, rflags & !(STATUS & !CF) | flags & !CF)
        }
        Unary::Dec => {
            let (r, flags) = sub(size, a, 1, 0);
            (r, rflags & !(STATUS & !CF) | flags & !CF)
        }
        Unary::Not => (!a & mask(size), rflags),
        Unary::Neg => {
            let (r, flags) = sub(size, 0, a, 0);
            (r, rflags & !STATUS | flags)
        }
    }
}

/// Shifts and rotates by a count that is masked here. A masked count of 0 changes no flags. OF is given for every
/// count by the rule for 1; AF after a shift is cleared.
pub(super) const fn shift(op: Shift, size: u8, a: u64, count: u64, rflags: u64) -> Flagged {
    let width = bits(size);
    let count = count as u32 & if size == 8 { 63 } else { 31 };
    if count == 0 {
        return (a, rflags);
    }
    match op {
        Shift::Rol | Shift::Ror | Shift::Rcl | Shift::Rcr => rotate(op, size, a, count, rflags),
        Shift::Shl => {
            let wide = (a as u128) << count;
            let r = wide as u64 & mask(size);
            let carry = wide >> width & 1 != 0;
            let flags = result_flags(r, size) | when(carry, CF) | when(carry != sign(r, size), OF);
            (r, rflags & !STATUS | flags)
        }
        Shift::Shr | Shift::Sar => {
            let arithmetic = matches!(op, Shift::Sar);
            let wide = if arithmetic { super::insn::sign_extend(a, size) as i64 as i128 } else { a as i128 };
            let r = (wide >> count) as u64 & mask(size);
            let carry = wide >> (count - 1) & 1 != 0;
            let overflow = !arithmetic && sign(r ^ r << 1, size);
            let flags = result_flags(r, size) | when(carry, CF) | when(overflow, OF);
            (r, rflags & !STATUS | flags)
        }
    }
}

/// Rotates by a count of 1 to 63; through CF for RCL and RCR. Only CF and OF change.
const fn rotate(op: Shift, size: u8, a: u64, count: u32, rflags: u64) -> Flagged {
    let width = bits(size);
    let through_carry = matches!(op, Shift::Rcl | Shift::Rcr);
    let left = matches!(op, Shift::Rol | Shift::Rcl);
    // The rotated quantity: the operand, with CF above it when rotating through carry.
    let total = if through_carry { width + 1 } else { width };
    let value = if through_carry { a as u128 | ((rflags & CF) as u128) << width } else { a as u128 };
    let by = count % total;
    if by == 0 && through_carry {
        return (a, rflags);
    }
    let by = if left { by } else { (total - by) % total };
    let all = (value << by) | (value >> (total - by));
    let r = all as u64 & mask(size);
    let carry = match (through_carry, left) {
        (true, _) => all >> width & 1 != 0,
        (false, true) => r & 1 != 0,
        (false, false) => sign(r, size),
    };
    let overflow = if left { carry != sign(r, size) } else { sign(r ^ r << 1, size) };
    (r, rflags & !(CF | OF) | when(carry, CF) | when(overflow, OF))
}

/// SHLD and SHRD. For 16-bit operands a count above 16 is undefined; nothing is promised about it.
pub(super) const fn shift_double(
    right: bool,
    size: u8,
    a: u64,
    fill: u64,
    count: u64,
    rflags: u64,
) -> Flagged {
    let width = bits(size);
    let count = count as u32 & if size == 8 { 63 } else { 31 };
    if count == 0 {
        return (a, rflags);
    }
    let (r, carry) = if right {
        // fill:a, then fill's copy above it for 16-bit counts beyond the width.
        let wide = a as u128 | (fill as u128) << width;
        ((wide >> count) as u64 & mask(size), wide >> (count - 1) & 1 != 0)
    } else {
        let wide = (a as u128) << width | fill as u128;
        let low = 2 * width - count;
        let r = if count > width {
            (fill << (count - width)) & mask(size)
        } else {
            (wide >> (width - count)) as u64 & mask(size)
        };
        (r, wide >> low & 1 != 0)
    };
    let flags = result_flags(r, size) | when(carry, CF) | when(sign(a ^ r, size), OF);
    (r, rflags & !STATUS | flags)
}

/// Bit searches and counts. `None`: BSF or BSR of zero, which leaves the destination as it is.
pub(super) const fn scan(op: BitScan, size: u8, a: u64, rflags: u64) -> (Option<u64>, u64) {
    let width = bits(size);
    let leading = a.leading_zeros() - (64 - width);
    let trailing = if a == 0 { width } else { a.trailing_zeros() };
    let kept = rflags & !STATUS;
    match op {
        BitScan::Bsf | BitScan::Bsr if a == 0 => (None, rflags | ZF),
        BitScan::Bsf => (Some(trailing as u64), rflags & !ZF),
        BitScan::Bsr => (Some((width - 1 - leading) as u64), rflags & !ZF),
        BitScan::Tzcnt | BitScan::Lzcnt => {
            let n = if matches!(op, BitScan::Tzcnt) { trailing } else { leading };
            (Some(n as u64), rflags & !(CF | ZF) | when(n == width, CF) | when(n == 0, ZF))
        }
        BitScan::Popcnt => (Some(a.count_ones() as u64), kept | when(a == 0, ZF)),
    }
}

/// Whether the condition with this encoding (0 to 15: O, NO, B, AE, E, NE, BE, A, S, NS, P, NP, L, GE, LE, G) holds.
pub(super) const fn condition(code: u8, rflags: u64) -> bool {
    let less = (rflags & SF != 0) != (rflags & OF != 0);
    let holds = match code >> 1 & 7 {
        0 => rflags & OF != 0,
        1 => rflags & CF != 0,
        2 => rflags & ZF != 0,
        3 => rflags & (CF | ZF) != 0,
        4 => rflags & SF != 0,
        5 => rflags & PF != 0,
        6 => less,
        _ => less || rflags & ZF != 0,
    };
    holds != (code & 1 != 0)
}
