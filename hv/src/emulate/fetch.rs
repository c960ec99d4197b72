//! Fetches and decodes the instruction at CS:RIP, as the processor would: limits and canonical form are checked, and
//! a page is touched only if the instruction reaches into it.

use super::address::is_canonical;
use super::decode::{DecodeError, MAX_LEN, decode};
use super::insn::{Mode, mask};
use super::{Bytes, DecodeCache, Fault, Fetched, Key, Memory, Outcome};
use crate::arch::Exception;
use crate::arch::addr::{Gva, PAGE_SIZE};
use crate::arch::state::{SegReg, VcpuState};

/// Where the instruction at CS:RIP stands, for the [`DecodeCache`].
#[inline]
pub fn current_key(state: &impl VcpuState) -> Key {
    let mode = Mode::from_bits(state.code_bitness());
    let linear = match mode {
        Mode::Bits64 => state.rip(),
        _ => state.segment(SegReg::Cs).base.wrapping_add(state.rip()) & mask(4),
    };
    Key { linear, cr3: state.cr3(), mode }
}

/// Fetches and decodes the instruction at CS:RIP. The error is an [`Outcome`] to act upon: a fault of the fetch, #UD,
/// or [`Outcome::Unsupported`] for bytes that the decoder does not know.
#[inline]
pub fn fetch<'c, S: VcpuState, M: Memory>(
    state: &S,
    mem: &mut M,
    cache: &'c mut DecodeCache,
) -> Result<&'c Fetched, Outcome<M::Stop>> {
    let key = current_key(state);
    let allowed = allowed_bytes(state, &key).ok_or(Outcome::Fault(Exception::GP0))?;
    let user = state.cpl() == 3;
    let is_current = |expected: &Bytes| {
        let len = usize::from(expected.len).min(MAX_LEN);
        let mut bytes = [0; MAX_LEN];
        len <= allowed && read_code(mem, &key, &mut bytes, 0..len, user).is_ok() && bytes == expected.bytes
    };
    match cache.instruction(key, is_current) {
        Ok(fetched) => Ok(fetched),
        Err(vacant) => read_and_decode(mem, &key, allowed, user).map(|fetched| vacant.insert(fetched)),
    }
}

/// The way without the cache.
#[cold]
#[inline(never)]
fn read_and_decode<M: Memory>(
    mem: &mut M,
    key: &Key,
    allowed: usize,
    user: bool,
) -> Result<Fetched, Outcome<M::Stop>> {
    let mut bytes = [0; MAX_LEN];
    // The next page is touched only if the instruction reaches into it: it may not be mapped, and a fault there would not
    // be the guest's.
    let in_page = (PAGE_SIZE - Gva(key.linear).offset()) as usize;
    let mut have = in_page.min(allowed);
    read_code(mem, key, &mut bytes, 0..have, user).map_err(outcome)?;
    let mut decoded = decode(&bytes[..have], key.mode);
    if decoded == Err(DecodeError::Truncated) && have < allowed {
        read_code(mem, key, &mut bytes, have..allowed, user).map_err(outcome)?;
        have = allowed;
        decoded = decode(&bytes[..have], key.mode);
    }
    match decoded {
        Ok(insn) => {
            // Zeros above the length, so that a comparison may look at all bytes.
            bytes[usize::from(insn.len).min(MAX_LEN)..].fill(0);
            Ok(Fetched { insn, bytes: Bytes { bytes, len: insn.len } })
        }
        // It runs into the segment's limit, or is longer than any instruction.
        Err(DecodeError::Truncated | DecodeError::TooLong) => Err(Outcome::Fault(Exception::GP0)),
        Err(DecodeError::BadLock) => Err(Outcome::Fault(Exception::UD)),
        Err(DecodeError::Unknown) => Err(Outcome::Unsupported(Bytes { bytes, len: have as u8 })),
    }
}

/// How many bytes from CS:RIP on may be fetched, 1 to 15; `None` if not even the first.
#[inline]
fn allowed_bytes(state: &impl VcpuState, key: &Key) -> Option<usize> {
    if key.mode == Mode::Bits64 {
        return is_canonical(state, key.linear).then_some(MAX_LEN);
    }
    let left = u64::from(state.segment(SegReg::Cs).limit).checked_sub(state.rip())?;
    Some(left.min(MAX_LEN as u64 - 1) as usize + 1)
}

/// Reads code bytes, page by page.
fn read_code<M: Memory>(
    mem: &mut M,
    key: &Key,
    bytes: &mut [u8; MAX_LEN],
    range: core::ops::Range<usize>,
    user: bool,
) -> Result<(), Fault<M::Stop>> {
    let mut from = range.start;
    while from < range.end {
        let sum = key.linear.wrapping_add(from as u64);
        let at = Gva(if key.mode == Mode::Bits64 { sum } else { sum & mask(4) });
        let to = range.end.min(from + (PAGE_SIZE - at.offset()) as usize);
        mem.fetch(at, &mut bytes[from..to], user)?;
        from = to;
    }
    Ok(())
}

fn outcome<S>(fault: Fault<S>) -> Outcome<S> {
    match fault {
        Fault::Exception(exception) => Outcome::Fault(exception),
        Fault::Stop(stop) => Outcome::Stop(stop),
    }
}
