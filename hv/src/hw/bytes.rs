//! Copying and filling memory, mostly by string instructions.
//!
//! Eight bytes per iteration: emulators that count instructions count each iteration as one, and processors with fast
//! string operations (ERMS) run both widths at full speed. One block of assembly is also how memory is accessed that
//! guests change at the same time: the compiler assumes nothing about it.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

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

/// Copies pages of 4 KiB, one after the other, until all are copied, or `stop` is not 0 after one of them; how many.
/// Beside [`copy`] it spares what there is for a tail: a piece of 2 MiB has 512 pages.
///
/// # Safety
/// Both ranges are accessible and do not overlap, and nothing else writes to the second one.
pub unsafe fn copy_pages(to: *mut u8, from: *const u8, pages: u64, stop: &AtomicU32) -> u64 {
    let (mut to, mut from, mut left) = (to, from, pages);
    while left > 0 {
        // SAFETY: a page of the caller's ranges; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep movsq", inout("rcx") 512u64 => _, inout("rdi") to, inout("rsi") from,
                 options(nostack, preserves_flags));
        }
        left -= 1;
        if stop.load(Ordering::Relaxed) != 0 {
            break;
        }
    }
    pages - left
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
    let large = if len < LARGE { 0 } else { len / STRIDE * STRIDE };
    if large > 0 {
        // SAFETY: a part of the caller's range.
        unsafe { fill_large(to, pattern, large) };
    }
    let (to, len) = (to.wrapping_add(large), len - large);
    // SAFETY: the caller's promise; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosq", "mov ecx, {tail:e}", "rep stosb", tail = in(reg) len & 7,
             inout("rcx") len >> 3 => _, inout("rdi") to => _, in("rax") pattern,
             options(nostack, preserves_flags));
    }
}

/// Memory from this size on is filled by a loop: more than the caches next to a processor hold.
pub const LARGE: usize = 2 << 20;
/// Bytes of an iteration of [`fill_large`].
const STRIDE: usize = 128;

/// Fills memory by stores in an unrolled loop. Where it is larger than caches, processors write as fast as it takes the data, this way
/// or by a string instruction. But an emulator that translates code executes each iteration of a string instruction as a block of its
/// own, and these stores in a fraction of that time: of a guest's memory that is seconds.
///
/// # Safety
/// The range is writable; its length is a multiple of [`STRIDE`], and not 0.
#[inline(never)]
unsafe fn fill_large(to: *mut u8, pattern: u64, len: usize) {
    // SAFETY: the caller's promise; the index goes from -len to 0 in steps that divide it.
    unsafe {
        asm!("2:",
             "mov [{end} + {index}], {pattern}", "mov [{end} + {index} + 8], {pattern}",
             "mov [{end} + {index} + 16], {pattern}", "mov [{end} + {index} + 24], {pattern}",
             "mov [{end} + {index} + 32], {pattern}", "mov [{end} + {index} + 40], {pattern}",
             "mov [{end} + {index} + 48], {pattern}", "mov [{end} + {index} + 56], {pattern}",
             "mov [{end} + {index} + 64], {pattern}", "mov [{end} + {index} + 72], {pattern}",
             "mov [{end} + {index} + 80], {pattern}", "mov [{end} + {index} + 88], {pattern}",
             "mov [{end} + {index} + 96], {pattern}", "mov [{end} + {index} + 104], {pattern}",
             "mov [{end} + {index} + 112], {pattern}", "mov [{end} + {index} + 120], {pattern}",
             "add {index}, {stride}",
             "jnz 2b",
             end = in(reg) to.wrapping_add(len), index = inout(reg) len.wrapping_neg() => _,
             pattern = in(reg) pattern, stride = const STRIDE,
             options(nostack));
    }
}

/// Fills memory with zeroes where it is not: of each page that has none yet, it is only read. Where the machine is emulated, memory that
/// nothing has written to takes no memory there, and the first store to a page takes the emulator's own kernel many times as long as
/// a look. A guest uses a part of its memory.
///
/// # Safety
/// The range is readable and writable, and nothing else writes to it.
pub unsafe fn clear(to: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        let (page, bytes) = (to.wrapping_add(at), PAGE.min(len - at));
        // SAFETY: a part of the caller's range.
        unsafe {
            if !bytes.is_multiple_of(STRIDE) || !is_zero(page, bytes) {
                fill(page, 0, bytes);
            }
        }
        at += bytes;
    }
}

/// What [`clear`] looks at before it writes.
const PAGE: usize = 4096;

/// Whether memory is all zeroes; as [`fill_large`], it is read by an unrolled loop.
///
/// # Safety
/// The range is readable; its length is a multiple of [`STRIDE`], and not 0.
#[inline(never)]
unsafe fn is_zero(from: *const u8, len: usize) -> bool {
    let mut found: u64;
    // SAFETY: the caller's promise; the index goes from -len to 0 in steps that divide it.
    unsafe {
        asm!("2:",
             "mov {found}, [{end} + {index}]", "or {found}, [{end} + {index} + 8]",
             "or {found}, [{end} + {index} + 16]", "or {found}, [{end} + {index} + 24]",
             "or {found}, [{end} + {index} + 32]", "or {found}, [{end} + {index} + 40]",
             "or {found}, [{end} + {index} + 48]", "or {found}, [{end} + {index} + 56]",
             "or {found}, [{end} + {index} + 64]", "or {found}, [{end} + {index} + 72]",
             "or {found}, [{end} + {index} + 80]", "or {found}, [{end} + {index} + 88]",
             "or {found}, [{end} + {index} + 96]", "or {found}, [{end} + {index} + 104]",
             "or {found}, [{end} + {index} + 112]", "or {found}, [{end} + {index} + 120]",
             "jnz 3f",
             "add {index}, {stride}",
             "jnz 2b",
             "3:",
             found = out(reg) found, end = in(reg) from.wrapping_add(len),
             index = inout(reg) len.wrapping_neg() => _, stride = const STRIDE,
             options(nostack, readonly));
    }
    found == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_that_is_not_zero_is_cleared_and_nothing_else() {
        let len = 2 * PAGE + 3 * STRIDE + 9;
        let inside = [0, 7, 8, STRIDE - 1, STRIDE, PAGE - 1, PAGE, 2 * PAGE, 2 * PAGE + STRIDE, len - 1];
        for at in inside {
            let mut memory = vec![0u8; 3 + len + 5];
            (memory[2], memory[3 + at], memory[3 + len]) = (1, 0x80, 2);
            // SAFETY: within `memory`.
            unsafe { clear(memory.as_mut_ptr().add(3), len) };
            let left: Vec<_> = memory.iter().enumerate().filter(|(_, byte)| **byte != 0).collect();
            assert_eq!(left, [(2, &1), (3 + len, &2)], "a byte at {at}");
        }
    }

    #[test]
    fn large_memory_is_filled_to_its_last_byte() {
        for len in [LARGE - 1, LARGE, LARGE + STRIDE - 1, LARGE + STRIDE + 9] {
            let mut memory = vec![0x5a; 3 + len + 5];
            // SAFETY: within `memory`.
            unsafe { fill(memory.as_mut_ptr().add(3), 0xc3, len) };
            let filled = 3..3 + len;
            assert!(
                memory
                    .iter()
                    .enumerate()
                    .all(|(at, byte)| *byte == if filled.contains(&at) { 0xc3 } else { 0x5a })
            );
        }
    }

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
