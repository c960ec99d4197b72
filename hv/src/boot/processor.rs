//! Control-register features that the host turns on where the processor has them.

use crate::arch::state::{cr0, cr4};
use crate::hw::{cpu, msr};

/// The entry of the PAT that means write-combining in the host. No system uses it for anything (its meaning after reset
/// is that of entry 2), so that it is free to take where guests' page tables are used with the host's PAT.
pub const WRITE_COMBINING: u8 = 6;
/// Write-combining in an entry of the PAT (Intel SDM 3, 13.12.2; AMD APM 2, 7.8.1).
const PAT_WC: u64 = 1;

/// Whether the processor has a PAT.
pub fn has_pat() -> bool {
    cpu::cpuid(1, 0).edx & 1 << 16 != 0
}

/// Sets up the processor that executes this.
///
/// CR0.TS stays set for the host's whole life: an FPU or SSE instruction that the build let slip through raises #NM
/// instead of changing a guest's registers. OSFXSR and OSXSAVE are on so that the documented save and restore routines
/// see the whole state; SMEP, SMAP and UMIP cost nothing, because the host has no user pages.
///
/// # Safety
/// Once per processor, on tables without user pages.
pub unsafe fn start() {
    let leaf1 = cpu::cpuid(1, 0);
    let leaf_of_zeroes = cpu::CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    let leaf7 = if cpu::cpuid(0, 0).eax >= 7 { cpu::cpuid(7, 0) } else { leaf_of_zeroes };
    let wanted = [
        // Without MCE a machine check shuts the processor down, and nothing is reported.
        (leaf1.edx, 7, cr4::MCE),
        (leaf1.edx, 24, cr4::OSFXSR),
        (leaf1.edx, 25, cr4::OSXMMEXCPT),
        (leaf1.ecx, 26, cr4::OSXSAVE),
        (leaf7.ebx, 7, cr4::SMEP),
        (leaf7.ebx, 20, cr4::SMAP),
        (leaf7.ecx, 2, cr4::UMIP),
    ];
    let on =
        wanted.iter().filter(|(word, bit, _)| word >> bit & 1 != 0).fold(0, |on, (_, _, flag)| on | flag);
    if has_pat() {
        const SHIFT: u32 = 8 * WRITE_COMBINING as u32;
        // SAFETY: the register exists, and no mapping uses the entry yet.
        unsafe { msr::write(msr::IA32_PAT, msr::read(msr::IA32_PAT) & !(0xff << SHIFT) | PAT_WC << SHIFT) };
    }
    // SAFETY: the processor has these features, and none of them concerns running code.
    unsafe {
        cpu::set_cr4(cpu::cr4() | on);
        // WP, so that the hypervisor's own constants and code are write-protected against it.
        cpu::set_cr0((cpu::cr0() | cr0::TS | cr0::WP | cr0::NE | cr0::MP) & !cr0::EM);
    }
}
