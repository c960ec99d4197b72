//! The program's first instructions: they keep the time-stamp counter before anything else runs, so that a guest whose
//! first process is this program knows when its user space began. build.rs makes `first_instruction` the entry point.

use std::{
    arch::global_asm,
    sync::atomic::{AtomicU64, Ordering},
};

/// The counter at the first instruction. A zero-initialised variable, so that storing it touches no page of the file.
#[unsafe(no_mangle)]
static FIRST_TSC: AtomicU64 = AtomicU64::new(0);

// The System V ABI gives the C library's `_start` a pointer in RDX, which RDTSC overwrites.
global_asm!(
    ".globl first_instruction",
    ".type first_instruction, @function",
    "first_instruction:",
    "mov r8, rdx",
    "rdtsc",
    "mov dword ptr [rip + {first}], eax",
    "mov dword ptr [rip + {first} + 4], edx",
    "mov rdx, r8",
    "jmp _start",
    ".size first_instruction, . - first_instruction",
    first = sym FIRST_TSC,
);

/// The time-stamp counter at the program's first instruction.
pub fn tsc() -> u64 {
    FIRST_TSC.load(Ordering::Relaxed)
}
