//! The processor's clock, and marks for a lab machine (docs/lab.md). The programs of `bench/workloads` and of several
//! processors have this file as a module, too.

use std::arch::{
    asm,
    x86_64::{_mm_lfence, _rdtsc},
};

/// The time-stamp counter after everything before it has happened. Where QEMU counts instructions (`-icount shift=0`),
/// a tick is an instruction.
pub fn now() -> u64 {
    // SAFETY: LFENCE is part of SSE2, which every x86-64 processor has; RDTSC is allowed in user space by default.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// Tells a lab machine (docs/lab.md) that what it is to count under this number begins or ends. Elsewhere it is a no-op.
pub fn mark<const MARK: u32>(region: u64) {
    const { assert!(matches!(abi::lab::MARKS, [0x0f, 0x1f, 0x84, 0x00])) };
    // SAFETY: a no-op.
    unsafe {
        asm!(
            ".byte 0x0f, 0x1f, 0x84, 0x00",
            ".long {mark}",
            mark = const MARK,
            in("rax") region,
            options(nostack, preserves_flags),
        );
    }
}
