//! Control-register features that the host turns on where the processor has them.

use crate::hw::cpu;
use crate::virt::state::{cr0, cr4};

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
    // SAFETY: the processor has these features, and none of them concerns running code.
    unsafe {
        cpu::set_cr4(cpu::cr4() | on);
        cpu::set_cr0((cpu::cr0() | cr0::TS | cr0::WP | cr0::NE | cr0::MP) & !cr0::EM);
    }
}
