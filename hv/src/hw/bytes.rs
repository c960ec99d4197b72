//! Copying and filling memory by string instructions.
//!
//! Eight bytes per iteration: emulators that count instructions count each iteration as one, and processors with fast
//! string operations (ERMS) run both widths at full speed. One block of assembly is also how memory is accessed that
//! guests change at the same time: the compiler assumes nothing about it.

use core::arch::asm;

/// Copies `len` bytes upwards.
///
/// # Safety
/// Both ranges are accessible; `to` does not begin within `from`'s bytes behind its first.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsq", "mov ecx, {tail:e}", "rep movsb", tail = in(reg) len & 7,
             inout("rcx") len >> 3 => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
}

/// Copies `len` bytes downwards: for ranges that overlap with `to` above `from`.
///
/// # Safety
/// Both ranges are accessible.
#[inline(always)]
pub unsafe fn copy_down(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise; the tail's bytes first, then eight at a time; the direction flag is clear again.
    unsafe {
        asm!("std", "rep movsb",
             "sub rdi, 7", "sub rsi, 7", "mov rcx, {words}", "rep movsq", "cld",
             words = in(reg) len >> 3, inout("rcx") len & 7 => _,
             inout("rdi") to.wrapping_add(len).wrapping_sub(1) => _,
             inout("rsi") from.wrapping_add(len).wrapping_sub(1) => _, options(nostack));
    }
}

/// Writes `len` times `byte`.
///
/// # Safety
/// The range is writable.
#[inline(always)]
pub unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    let pattern = u64::from(byte) * 0x0101_0101_0101_0101;
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosq", "mov ecx, {tail:e}", "rep stosb", tail = in(reg) len & 7,
             inout("rcx") len >> 3 => _, inout("rdi") to => _, in("rax") pattern,
             options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn move_as_slices_do(from in 0usize..64, to in 0usize..64, len in 0usize..64) {
            let mut memory: Vec<u8> = (0..128).collect();
            let mut model = memory.clone();
            model.copy_within(from..from + len, to);
            let base = memory.as_mut_ptr();
            // SAFETY: within `memory`, in the direction that reads everything before it is overwritten.
            unsafe {
                if to > from {
                    copy_down(base.add(to), base.add(from), len);
                } else {
                    copy(base.add(to), base.add(from), len);
                }
            }
            prop_assert_eq!(&memory, &model);
            model[to..to + len].fill(7);
            // SAFETY: within `memory`.
            unsafe { fill(memory.as_mut_ptr().add(to), 7, len) };
            prop_assert_eq!(&memory, &model);
        }
    }
}
