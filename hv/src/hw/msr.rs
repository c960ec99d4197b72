//! Model-specific registers that the host uses, and access to them.

use core::arch::asm;

/// Physical address and enable bits of the local APIC.
pub const IA32_APIC_BASE: u32 = 0x1b;
/// Feature control (Intel): locks VMX on or off.
pub const IA32_FEATURE_CONTROL: u32 = 0x3a;
/// Deadline of the local APIC's timer.
pub const IA32_TSC_DEADLINE: u32 = 0x6e0;
/// Page attribute table.
pub const IA32_PAT: u32 = 0x277;
/// Extended features: long mode, no-execute, SVM.
pub const EFER: u32 = 0xc000_0080;
/// Base address of FS.
pub const FS_BASE: u32 = 0xc000_0100;
/// Base address of GS.
pub const GS_BASE: u32 = 0xc000_0101;
/// What SWAPGS exchanges with GS's base.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// What RDTSCP and RDPID return.
pub const TSC_AUX: u32 = 0xc000_0103;
/// SVM control (AMD): SVMDIS and its lock.
pub const VM_CR: u32 = 0xc001_0114;

/// Reads an MSR.
///
/// # Safety
/// The register exists on this processor (else #GP).
pub unsafe fn read(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nostack, preserves_flags))
    };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes an MSR.
///
/// # Safety
/// The register exists, accepts the value, and what it changes does not break running code.
pub unsafe fn write(msr: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32,
             options(nostack, preserves_flags));
    }
}
