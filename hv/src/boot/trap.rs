//! Interrupts and exceptions that reach the host.
//!
//! External interrupts arrive only in explicit windows; their handlers note work for the run loop and acknowledge.
//! Exceptions are broken invariants and end in a panic.

use core::fmt;

use super::idt;
use super::percpu::{PerCpu, work};
use crate::arch::vector;
use crate::hw::{cpu, lapic};

/// The registers at a trap, in the order in which `trap.s` pushes them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct TrapFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

impl fmt::Display for TrapFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "rip {:016x} rsp {:016x} rflags {:08x} cs {:x} ss {:x}",
            self.rip, self.rsp, self.rflags, self.cs, self.ss
        )?;
        writeln!(
            f,
            "rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}",
            self.rax, self.rbx, self.rcx, self.rdx
        )?;
        writeln!(
            f,
            "rsi {:016x} rdi {:016x} rbp {:016x} r8  {:016x}",
            self.rsi, self.rdi, self.rbp, self.r8
        )?;
        writeln!(
            f,
            "r9  {:016x} r10 {:016x} r11 {:016x} r12 {:016x}",
            self.r9, self.r10, self.r11, self.r12
        )?;
        writeln!(f, "r13 {:016x} r14 {:016x} r15 {:016x}", self.r13, self.r14, self.r15)?;
        write!(f, "cr0 {:08x} cr2 {:016x} cr3 {:x} cr4 {:x}", cpu::cr0(), cpu::cr2(), cpu::cr3(), cpu::cr4())
    }
}

/// The name of an exception.
pub const fn name(vector: u8) -> &'static str {
    match vector {
        vector::DE => "divide error",
        vector::DB => "debug exception",
        vector::NMI => "non-maskable interrupt",
        vector::BP => "breakpoint",
        vector::OF => "overflow",
        vector::BR => "bound range exceeded",
        vector::UD => "invalid opcode",
        vector::NM => "FPU or SSE instruction in the hypervisor (CR0.TS is its tripwire)",
        vector::DF => "double fault",
        vector::TS => "invalid TSS",
        vector::NP => "segment not present",
        vector::SS => "stack fault",
        vector::GP => "general protection fault",
        vector::PF => "page fault",
        vector::MF => "x87 exception",
        vector::AC => "alignment check",
        vector::MC => "machine check",
        vector::XM => "SIMD exception",
        _ => "reserved exception",
    }
}

/// Called by `trap.s` for every vector.
#[cfg_attr(feature = "baremetal", unsafe(no_mangle))]
extern "C" fn boot_trap(frame: &TrapFrame) {
    let vector = frame.vector as u8;
    if vector == vector::NMI {
        super::panic::stop_if_over();
    }
    if vector < idt::FIRST_INTERRUPT {
        super::panic::exception(frame, name(vector));
    }
    // SAFETY: the gates come with the PCPU's installation.
    let cpu = unsafe { PerCpu::current() };
    match vector {
        idt::TIMER => cpu.note(work::TIMER),
        idt::CONSOLE => cpu.note(work::CONSOLE),
        idt::KICK => cpu.note(work::KICK),
        idt::SPURIOUS => return, // needs no acknowledgement
        _ => {}
    }
    lapic::end_of_interrupt();
}
