//! Steps: single accesses, stores and register changes as data, performed in long mode here and in 32-bit mode by `legacy`.

use core::arch::{asm, naked_asm};
use core::fmt;

use super::insn::*;
use super::trap::catch;
use super::user;

/// One step, and what came of it. legacy.s knows the layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do: one of the constants of this module.
    pub op: u32,
    /// Out: the exception that it raised, or [`NONE`].
    pub vector: u32,
    /// Out: its error code.
    pub error: u32,
    _unused: u32,
    /// On what.
    pub address: u64,
    /// With what; out: what came.
    pub value: u64,
    /// Out: CR2 at the exception.
    pub cr2: u64,
}

const _: () = assert!(size_of::<Step>() == 40);

/// No exception.
pub const NONE: u32 = u32::MAX;
/// Accesses of 4 bytes. Execution calls the address in supervisor mode, jumps to it in user mode.
pub const READ: u32 = 0;
#[allow(missing_docs)]
pub const WRITE: u32 = 1;
#[allow(missing_docs)]
pub const EXECUTE: u32 = 2;
/// LOCK XADD.
pub const MODIFY: u32 = 3;
/// Flag of an access: in user mode.
pub const USER: u32 = 4;
/// Flag of an access in supervisor mode: with RFLAGS.AC.
pub const AC: u32 = 8;
/// Stores and loads of 4 or 8 bytes that are expected to work.
pub const STORE4: u32 = 16;
#[allow(missing_docs)]
pub const STORE8: u32 = 17;
#[allow(missing_docs)]
pub const LOAD4: u32 = 18;
#[allow(missing_docs)]
pub const LOAD8: u32 = 19;
/// INVLPG of the address.
pub const INVLPG: u32 = 20;
/// Writes of registers.
pub const CR0: u32 = 21;
#[allow(missing_docs)]
pub const CR3: u32 = 22;
#[allow(missing_docs)]
pub const CR4: u32 = 23;
/// EFER.NXE becomes the value's bit 11.
pub const NXE: u32 = 24;
/// CPUID: an exit, where there is a hypervisor.
pub const CPUID: u32 = 25;
/// INVPCID of the address; the value's low byte is the type, the rest the PCID. Not in 32-bit mode.
pub const INVPCID: u32 = 26;
/// The end of a list.
pub const END: u32 = 31;

impl Step {
    /// A step to perform.
    pub const fn new(op: u32, address: u64, value: u64) -> Self {
        Step { op, vector: NONE, error: 0, _unused: 0, address, value, cr2: 0 }
    }
}

/// Performs steps in long mode; user mode sees low memory at `user_base`.
pub fn run(steps: &mut [Step], user_base: u64) {
    for step in steps {
        let (op, at, value) = (step.op, step.address, step.value);
        if op & !3 == USER {
            let entry = [user_read, user_write, user_execute, user_modify][op as usize & 3];
            let trap = user::run_at(entry, user_base, at, value);
            let done = trap.vector == user::DONE;
            step.vector = if done { NONE } else { trap.vector.into() };
            (step.error, step.cr2) = (trap.error, trap.cr2);
            step.value = if done { trap.rax & 0xffff_ffff } else { step.value };
            continue;
        }
        let mut result = value;
        let trap = catch(|| result = perform(op, at, value));
        step.value = result;
        match trap {
            Some(trap) => (step.vector, step.error, step.cr2) = (trap.vector.into(), trap.error, trap.cr2),
            None => step.vector = NONE,
        }
    }
}

/// One step in supervisor mode; returns the result.
fn perform(op: u32, at: u64, value: u64) -> u64 {
    if op < STORE4 && op & AC != 0 {
        // SAFETY: CR0.AM is clear, so that AC is for SMAP alone.
        unsafe { asm!("pushfq", "or dword ptr [rsp], 0x40000", "popfq") };
        let result = perform(op & !AC, at, value);
        // SAFETY: as above.
        unsafe { asm!("pushfq", "and dword ptr [rsp], ~0x40000", "popfq") };
        return result;
    }
    match op {
        READ | LOAD4 => return peek::<u32>(at).into(),
        WRITE | STORE4 => poke(at, value as u32),
        EXECUTE => return execute(at),
        MODIFY => {
            let result: u32;
            // SAFETY: a fault is expected and caught.
            unsafe { asm!("lock xadd [{}], {:e}", in(reg) at, inout(reg) value as u32 => result) };
            return result.into();
        }
        STORE8 => poke(at, value),
        LOAD8 => return peek(at),
        INVLPG => invlpg(at),
        CR0 => set_cr0(value),
        CR3 => set_cr3(value),
        CR4 => set_cr4(value),
        NXE => wrmsr(0xc000_0080, rdmsr(0xc000_0080) & !0x800 | value),
        CPUID => _ = cpuid(0, 0),
        INVPCID => invpcid(value & 0xff, value >> 8, at),
        _ => {}
    }
    value
}

/// Calls a function that returns a number in EAX.
fn execute(at: u64) -> u64 {
    let result: u64;
    // SAFETY: the code there changes RAX only; a fault is expected and caught.
    unsafe { asm!("call {}", in(reg) at, out("rax") result, clobber_abi("C")) };
    result & 0xffff_ffff
}

#[unsafe(naked)]
unsafe extern "C" fn user_read() {
    naked_asm!("mov eax, [rdi]", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_write() {
    naked_asm!("mov [rdi], ecx", "mov eax, ecx", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_execute() {
    naked_asm!("jmp rdi")
}

#[unsafe(naked)]
unsafe extern "C" fn user_modify() {
    naked_asm!("lock xadd [rdi], ecx", "mov eax, ecx", "int 0x80")
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { op, address, value, .. } = *self;
        match op {
            STORE4 | STORE8 => write!(f, "[{address:x}] = {value:x}"),
            LOAD4 | LOAD8 => write!(f, "load [{address:x}]"),
            INVLPG => write!(f, "INVLPG {address:x}"),
            CR0 => write!(f, "CR0 = {value:x}"),
            CR3 => write!(f, "CR3 = {value:x}"),
            CR4 => write!(f, "CR4 = {value:x}"),
            NXE => write!(f, "EFER.NXE = {value:x}"),
            CPUID => write!(f, "CPUID"),
            INVPCID => write!(f, "INVPCID type {}, PCID {}, {address:x}", value & 0xff, value >> 8),
            _ => {
                let what = ["read", "write", "execute", "modify"][op as usize & 3];
                let mode = if op & USER != 0 { "user" } else { "supervisor" };
                let ac = if op & AC != 0 { " with AC" } else { "" };
                write!(f, "{mode} {what} {address:x}{ac}")
            }
        }
    }
}

/// What came of a step.
pub struct Got<'a>(pub &'a Step);

impl fmt::Display for Got<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Step { vector, error, value, cr2, .. } = self.0;
        match *vector {
            NONE => write!(f, "{value:x}"),
            vector => write!(f, "vector {vector} error {error:x} CR2 {cr2:x}"),
        }
    }
}
