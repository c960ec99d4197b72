//! One function per SVM instruction, and the VMRUN with its register switch.

use core::arch::asm;

use crate::paging::addr::Hpa;

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

/// Runs the guest of `vmcb` until #VMEXIT with all general-purpose registers but RAX and RSP (which the VMCB holds)
/// taken from and stored to `gprs`, in encoding order.
///
/// # Safety
/// SVM is enabled with a host save area; `vmcb` is valid and its tables translate the guest only to memory that it
/// owns; `gprs` is valid for reads and writes.
#[inline(always)]
pub unsafe fn vmrun(vmcb: Hpa, gprs: *mut [u64; 16]) {
    // SAFETY: VMRUN restores RSP, RAX and RIP at #VMEXIT; everything else that the guest can change is either saved on
    // the stack here (RBP and RBX, which inline assembly may not clobber) or declared as an output. The host's
    // flags come back from the host save area. XMM and x87 registers stay the guest's: the host uses none.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "push rdi",
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
            "vmrun rax",
            "pop rax",
            "mov [rax + 1*8], rcx",
            "mov [rax + 2*8], rdx",
            "mov [rax + 3*8], rbx",
            "mov [rax + 5*8], rbp",
            "mov [rax + 6*8], rsi",
            "mov [rax + 7*8], rdi",
            "mov [rax + 8*8], r8",
            "mov [rax + 9*8], r9",
            "mov [rax + 10*8], r10",
            "mov [rax + 11*8], r11",
            "mov [rax + 12*8], r12",
            "mov [rax + 13*8], r13",
            "mov [rax + 14*8], r14",
            "mov [rax + 15*8], r15",
            "pop rbx",
            "pop rbp",
            inout("rax") vmcb.0 => _,
            inout("rdi") gprs => _,
            out("rcx") _, out("rdx") _, out("rsi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        )
    }
}
