//! The functions that compiled code expects to find: memory operations and the unwinder's names.

use core::arch::asm;

use crate::hw::bytes;

/// # Safety
/// As C's memcpy.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { bytes::copy(to, from, len) };
    to
}

/// # Safety
/// As C's memmove.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise; the direction is the one that reads everything before it is overwritten.
    unsafe {
        if (to as usize).wrapping_sub(from as usize) >= len {
            bytes::copy(to, from, len);
        } else {
            bytes::copy_down(to, from, len);
        }
    }
    to
}

/// # Safety
/// As C's memset.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { bytes::fill(to, byte as u8, len) };
    to
}

/// # Safety
/// As C's memcmp.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    for i in 0..len {
        // SAFETY: both ranges are readable by the caller's promise.
        let (x, y) = unsafe { (a.add(i).read(), b.add(i).read()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// # Safety
/// As BSD's bcmp.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(a, b, len) }
}

/// # Safety
/// As C's strlen.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let left: usize;
    // SAFETY: the string ends with a zero by the caller's promise. (As a Rust loop it would be compiled to a call
    // of itself.)
    unsafe {
        asm!("repne scasb", inout("rcx") usize::MAX => left, inout("rdi") text => _, in("al") 0u8,
             options(nostack, readonly));
    }
    usize::MAX - left - 1
}

/// Named by the landing pads of the precompiled `alloc`; nothing unwinds, because panics abort.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("unwinding in the hypervisor")
}

/// Named by the same landing pads.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    panic!("unwinding in the hypervisor")
}
