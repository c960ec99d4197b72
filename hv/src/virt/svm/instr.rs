//! One function per SVM instruction, and the VMRUN with its register switch.

use alloc::boxed::Box;
use core::arch::asm;

use super::vmcb::Vmcb;
use crate::arch::addr::Hpa;
use crate::arch::state::Gpr;

/// Clears the global interrupt flag: no interrupt of any kind is taken until [`stgi`] or a #VMEXIT-free STGI.
///
/// # Safety
/// SVM is enabled on this PCPU (EFER.SVME).
#[inline(always)]
pub unsafe fn clgi() {
    // SAFETY: the caller has enabled SVM.
    unsafe { asm!("clgi", options(nostack)) }
}

/// Sets the global interrupt flag.
///
/// # Safety
/// SVM is enabled on this PCPU, and the host's own segment state is loaded.
#[inline(always)]
pub unsafe fn stgi() {
    // SAFETY: the caller has enabled SVM.
    unsafe { asm!("stgi", options(nostack)) }
}

/// Loads FS, GS, TR, LDTR and the system-call MSRs from a VMCB.
///
/// # Safety
/// SVM is enabled and `vmcb` is a VMCB. If it is a guest's, interrupts stay off (GIF = 0) until the host's is loaded.
#[inline(always)]
pub unsafe fn vmload(vmcb: Hpa) {
    // SAFETY: the caller names a VMCB.
    unsafe { asm!("vmload rax", in("rax") vmcb.0, options(nostack)) }
}

/// Stores what [`vmload`] loads.
///
/// # Safety
/// SVM is enabled and `vmcb` is a VMCB that nothing else reads or writes now.
#[inline(always)]
pub unsafe fn vmsave(vmcb: Hpa) {
    // SAFETY: the caller names a VMCB.
    unsafe { asm!("vmsave rax", in("rax") vmcb.0, options(nostack)) }
}

/// Drops the translations of the page at `address` that are tagged with `asid`.
///
/// # Safety
/// SVM is enabled on this PCPU.
#[inline(always)]
pub unsafe fn invlpga(address: u64, asid: u32) {
    // SAFETY: the caller has enabled SVM; dropping a translation changes no memory.
    unsafe { asm!("invlpga rax, ecx", in("rax") address, in("ecx") asid, options(nostack, preserves_flags)) }
}

/// A VMCB and the registers that VMRUN does not switch, so that one pointer serves both.
#[repr(C)]
pub struct GuestBlock {
    /// What VMRUN switches.
    pub vmcb: Vmcb,
    /// General-purpose registers in encoding order; the slots of RAX and RSP are unused (the VMCB holds them).
    pub gprs: [u64; 16],
}

const _: () = assert!(core::mem::offset_of!(GuestBlock, gprs) == 0x1000);

impl GuestBlock {
    /// RAX, RBX, RCX, RDX as CPUID sets them.
    #[inline(always)]
    pub fn set_cpuid(&mut self, &[eax, ebx, ecx, edx]: &[u32; 4]) {
        self.vmcb.rax = eax.into();
        self.gprs[Gpr::Rbx as usize] = ebx.into();
        self.gprs[Gpr::Rcx as usize] = ecx.into();
        self.gprs[Gpr::Rdx as usize] = edx.into();
    }

    /// An all-zero block on the heap.
    pub fn new_boxed() -> Box<GuestBlock> {
        let zeroed = Box::<GuestBlock>::new_zeroed();
        // SAFETY: every field is an integer or an array of integers, for which zero is valid.
        unsafe { zeroed.assume_init() }
    }
}

/// Runs the guest until #VMEXIT. RAX points to the block on both sides of VMRUN: #VMEXIT restores the host's.
///
/// # Safety
/// SVM is enabled with a host save area; the VMCB is valid and its tables translate the guest only to memory that it
/// owns; nothing else uses the block.
#[inline(always)]
pub unsafe fn vmrun(block: *mut GuestBlock) {
    // SAFETY: VMRUN restores RSP, RAX and RIP at #VMEXIT; everything else that the guest can change is either saved on
    // the stack here (RBP and RBX, which inline assembly may not clobber) or declared as an output. The host's
    // flags come back from the host save area. XMM and x87 registers stay the guest's: the host uses none.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "mov rcx, [rax + 0x1000 + 1*8]",
            "mov rdx, [rax + 0x1000 + 2*8]",
            "mov rbx, [rax + 0x1000 + 3*8]",
            "mov rbp, [rax + 0x1000 + 5*8]",
            "mov rsi, [rax + 0x1000 + 6*8]",
            "mov rdi, [rax + 0x1000 + 7*8]",
            "mov r8,  [rax + 0x1000 + 8*8]",
            "mov r9,  [rax + 0x1000 + 9*8]",
            "mov r10, [rax + 0x1000 + 10*8]",
            "mov r11, [rax + 0x1000 + 11*8]",
            "mov r12, [rax + 0x1000 + 12*8]",
            "mov r13, [rax + 0x1000 + 13*8]",
            "mov r14, [rax + 0x1000 + 14*8]",
            "mov r15, [rax + 0x1000 + 15*8]",
            "vmrun rax",
            "mov [rax + 0x1000 + 1*8], rcx",
            "mov [rax + 0x1000 + 2*8], rdx",
            "mov [rax + 0x1000 + 3*8], rbx",
            "mov [rax + 0x1000 + 5*8], rbp",
            "mov [rax + 0x1000 + 6*8], rsi",
            "mov [rax + 0x1000 + 7*8], rdi",
            "mov [rax + 0x1000 + 8*8], r8",
            "mov [rax + 0x1000 + 9*8], r9",
            "mov [rax + 0x1000 + 10*8], r10",
            "mov [rax + 0x1000 + 11*8], r11",
            "mov [rax + 0x1000 + 12*8], r12",
            "mov [rax + 0x1000 + 13*8], r13",
            "mov [rax + 0x1000 + 14*8], r14",
            "mov [rax + 0x1000 + 15*8], r15",
            "pop rbx",
            "pop rbp",
            inout("rax") block => _,
            out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        )
    }
}
