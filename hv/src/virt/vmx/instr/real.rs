//! One function per instruction, and the switch to the guest and back.
//!
//! VMX instructions report failure in CF and ZF, which are looked at in the same block of assembly: nothing guarantees flags
//! between two. Intel SDM 3, chapter 30.

use core::arch::{asm, global_asm};

use super::{FAIL_INVALID, FAIL_VALID, Failed, GuestBlock};
use crate::arch::addr::Hpa;
pub use crate::hw::msr::{read as read_msr, write as write_msr};
pub use crate::hw::speculation::clear_buffers;
use crate::virt::vmx::field;

/// Enters VMX operation with this VMXON region.
///
/// # Safety
/// CR4.VMXE is set, the feature control allows it, and the region holds the revision and lives as long as VMX operation.
pub unsafe fn vmxon(region: Hpa) -> Result<(), Failed> {
    // SAFETY: the caller's promise.
    unsafe { on_address::<0>(region) }
}

/// Makes sure that all of a VMCS is in memory, and that the processor does not hold it any longer.
///
/// # Safety
/// In VMX operation; `vmcs` is a VMCS region.
pub unsafe fn vmclear(vmcs: Hpa) -> Result<(), Failed> {
    // SAFETY: the caller's promise.
    unsafe { on_address::<1>(vmcs) }
}

/// Makes a VMCS current.
///
/// # Safety
/// In VMX operation; `vmcs` is a VMCS region that has been cleared and lives until it is cleared again.
pub unsafe fn vmptrld(vmcs: Hpa) -> Result<(), Failed> {
    // SAFETY: the caller's promise.
    unsafe { on_address::<2>(vmcs) }
}

/// # Safety
/// See the three callers.
unsafe fn on_address<const WHAT: u8>(region: Hpa) -> Result<(), Failed> {
    let failed: u8;
    let address = region.0;
    // SAFETY: the callers' promises; the operand is read from a local variable.
    unsafe {
        match WHAT {
            0 => asm!("vmxon [{}]", "setbe {}", in(reg) &address, out(reg_byte) failed, options(nostack)),
            1 => asm!("vmclear [{}]", "setbe {}", in(reg) &address, out(reg_byte) failed, options(nostack)),
            _ => asm!("vmptrld [{}]", "setbe {}", in(reg) &address, out(reg_byte) failed, options(nostack)),
        }
    }
    if failed == 0 { Ok(()) } else { Err(Failed) }
}

/// Reads a field of the current VMCS. A field that the processor does not have is a broken invariant: UD2.
///
/// # Safety
/// In VMX operation with a current VMCS.
#[inline(always)]
pub unsafe fn vmread(field: u32) -> u64 {
    let value;
    // SAFETY: the caller's promise; reading changes nothing.
    unsafe {
        asm!("vmread {value}, {field}", "ja 2f", "ud2", "2:",
             value = out(reg) value, field = in(reg) u64::from(field), options(nomem, nostack));
    }
    value
}

/// Writes a field of the current VMCS; as [`vmread`].
///
/// # Safety
/// In VMX operation with a current VMCS, and the value does not break the promises of [`enter`].
#[inline(always)]
pub unsafe fn vmwrite(field: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("vmwrite {field}, {value}", "ja 2f", "ud2", "2:",
             value = in(reg) value, field = in(reg) u64::from(field), options(nomem, nostack));
    }
}

/// Drops what was cached of nested tables: those at `ept_pointer` (`kind` 1) or all (2).
///
/// # Safety
/// The processor has INVEPT of this kind, and is in VMX operation.
pub unsafe fn invept(kind: u64, ept_pointer: u64) {
    let descriptor = [ept_pointer, 0];
    // SAFETY: the caller's promise; dropping translations changes no memory. A failure is a broken invariant.
    unsafe {
        asm!("invept {}, [{}]", "ja 2f", "ud2", "2:", in(reg) kind, in(reg) &descriptor, options(nostack));
    }
}

/// Drops what was cached of linear addresses: one of `vpid` (`kind` 0), all of `vpid` (1), all (2), all of `vpid` but global ones
/// (3).
///
/// # Safety
/// The processor has INVVPID of this kind, and is in VMX operation; the address is canonical.
pub unsafe fn invvpid(kind: u64, vpid: u16, address: u64) {
    let descriptor = [u64::from(vpid), address];
    // SAFETY: as in `invept`.
    unsafe {
        asm!("invvpid {}, [{}]", "ja 2f", "ud2", "2:", in(reg) kind, in(reg) &descriptor, options(nostack));
    }
}

macro_rules! register {
    ($read:ident, $write:ident, $name:literal) => {
        /// Reads the register, which is the guest's as long as one has run.
        pub fn $read() -> u64 {
            let value;
            // SAFETY: reading changes nothing.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }

        /// Writes the register, for which the host has no use.
        pub fn $write(value: u64) {
            // SAFETY: the host takes no page faults and has no breakpoints (DR7 is switched).
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nomem, nostack, preserves_flags)) };
        }
    };
}

register!(cr2, set_cr2, "cr2");
register!(dr6, set_dr6, "dr6");

/// Takes an NMI that ended the guest: the exit has acknowledged it.
pub fn take_nmi() {
    // SAFETY: the host's IDT is loaded; the gate switches stacks.
    unsafe { asm!("int 2") }
}

// In: RDI points to the block. Out: EAX is the exit reason. Everything but RSP is lost.
// The host's RSP and RIP are written when the stack is another than last time.
global_asm!(
    ".section .text.vmx_enter,\"ax\"",
    "vmx_enter:",
    "push rdi",
    "cmp rsp, [rdi + 128]",
    "jne 3f",
    "2: cmp qword ptr [rdi + 136], 0",
    "mov rax, [rdi + 0*8]",
    "mov rcx, [rdi + 1*8]",
    "mov rdx, [rdi + 2*8]",
    "mov rbx, [rdi + 3*8]",
    "mov rbp, [rdi + 5*8]",
    "mov rsi, [rdi + 6*8]",
    "mov r8,  [rdi + 8*8]",
    "mov r9,  [rdi + 9*8]",
    "mov r10, [rdi + 10*8]",
    "mov r11, [rdi + 11*8]",
    "mov r12, [rdi + 12*8]",
    "mov r13, [rdi + 13*8]",
    "mov r14, [rdi + 14*8]",
    "mov r15, [rdi + 15*8]",
    "mov rdi, [rdi + 7*8]",
    "je 4f",
    "vmresume",
    "jmp 5f",
    "4: vmlaunch",
    "5: mov eax, {fail_valid}",
    "mov ecx, {fail_invalid}",
    "cmovc eax, ecx",
    "pop rdi",
    "ret",
    "3: mov [rdi + 128], rsp",
    "inc qword ptr [rdi + 144]",
    "mov eax, {host_rsp}",
    "vmwrite rax, rsp",
    "mov eax, {host_rip}",
    "lea rdx, [rip + 6f]",
    "vmwrite rax, rdx",
    "jmp 2b",
    "6: push rdi",
    "mov rdi, [rsp + 8]",
    "mov [rdi + 0*8], rax",
    "mov [rdi + 1*8], rcx",
    "mov [rdi + 2*8], rdx",
    "mov [rdi + 3*8], rbx",
    "mov [rdi + 5*8], rbp",
    "mov [rdi + 6*8], rsi",
    "mov [rdi + 8*8], r8",
    "mov [rdi + 9*8], r9",
    "mov [rdi + 10*8], r10",
    "mov [rdi + 11*8], r11",
    "mov [rdi + 12*8], r12",
    "mov [rdi + 13*8], r13",
    "mov [rdi + 14*8], r14",
    "mov [rdi + 15*8], r15",
    "pop qword ptr [rdi + 7*8]",
    "pop rdi",
    "mov eax, {reason}",
    "vmread rax, rax",
    "ret",
    fail_valid = const FAIL_VALID as i32,
    fail_invalid = const FAIL_INVALID as i32,
    host_rsp = const field::host::RSP,
    host_rip = const field::host::RIP,
    reason = const field::exit::REASON,
);

unsafe extern "C" {
    fn vmx_enter();
}

/// Runs the guest until it exits; returns the reason, or one of [`FAIL_INVALID`] and [`FAIL_VALID`].
///
/// # Safety
/// In VMX operation; the current VMCS is complete but for the host's RSP and RIP, belongs to the block, and its tables
/// translate the guest only to memory that it owns; nothing else uses the block.
#[inline(always)]
pub unsafe fn enter(block: *mut GuestBlock) -> u32 {
    let reason: u32;
    // SAFETY: an exit restores RSP and continues in `vmx_enter`; everything that the guest can change is either saved on
    // the stack here (RBP and RBX, which inline assembly may not clobber) or declared as an output. An exit clears all
    // flags, which is what the ABI wants of DF. XMM and x87 registers stay the guest's: the host uses none.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "call {enter}",
            "pop rbx",
            "pop rbp",
            enter = sym vmx_enter,
            inout("rdi") block => _,
            out("eax") reason,
            out("rcx") _, out("rdx") _, out("rsi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        )
    }
    reason
}
