//! The host's state in the VMCS: what the processor runs with (Intel SDM 3, 26.2.2 and 26.2.3).

use core::arch::asm;

use crate::hw::{cpu, msr};
use crate::virt::vmx::features::Features;
use crate::virt::vmx::field::host;

/// Writes the host's state, as it is now, to the current VMCS by `write`. RSP and RIP are written by the switch itself.
///
/// # Safety
/// In VMX operation with a current VMCS, on the PCPU that enters it.
pub unsafe fn write_host_state(features: &Features, write: impl Fn(u32, u64)) {
    const IA32_SYSENTER: [u32; 3] = [0x174, 0x175, 0x176];
    let (gdt, tr) = (descriptor_table(false), task_register());
    // SAFETY: the caller's promise; these are the values that the processor runs with, MSRs that every one has.
    unsafe {
        write(host::CR0, cpu::cr0());
        write(host::CR3, cpu::cr3());
        write(host::CR4, cpu::cr4());
        for (field, selector) in
            [(host::CS_SELECTOR, segment_selectors()[0]), (host::SS_SELECTOR, segment_selectors()[1])]
        {
            write(field, selector.into());
        }
        for field in [host::ES_SELECTOR, host::DS_SELECTOR, host::FS_SELECTOR, host::GS_SELECTOR] {
            write(field, 0);
        }
        write(host::TR_SELECTOR, tr.into());
        write(host::TR_BASE, tss_base(gdt.base, tr));
        write(host::FS_BASE, msr::read(msr::FS_BASE));
        write(host::GS_BASE, msr::read(msr::GS_BASE));
        write(host::GDTR_BASE, gdt.base);
        write(host::IDTR_BASE, descriptor_table(true).base);
        write(host::SYSENTER_CS, msr::read(IA32_SYSENTER[0]));
        write(host::SYSENTER_ESP, msr::read(IA32_SYSENTER[1]));
        write(host::SYSENTER_EIP, msr::read(IA32_SYSENTER[2]));
        if features.switches_pat {
            write(host::PAT, msr::read(msr::IA32_PAT));
        }
        if features.switches_efer {
            write(host::EFER, msr::read(msr::EFER));
        }
    }
}

/// GDTR or (`interrupts`) IDTR.
fn descriptor_table(interrupts: bool) -> cpu::TablePointer {
    let mut table = cpu::TablePointer::default();
    let to = &raw mut table;
    // SAFETY: stores ten bytes into a local variable.
    unsafe {
        if interrupts {
            asm!("sidt [{}]", in(reg) to, options(nostack, preserves_flags));
        } else {
            asm!("sgdt [{}]", in(reg) to, options(nostack, preserves_flags));
        }
    }
    table
}

/// CS and SS.
fn segment_selectors() -> [u16; 2] {
    let (code, stack): (u32, u32);
    // SAFETY: reading selectors changes nothing.
    unsafe {
        asm!("mov {:e}, cs", "mov {:e}, ss", out(reg) code, out(reg) stack,
             options(nomem, nostack, preserves_flags));
    }
    [code as u16, stack as u16]
}

fn task_register() -> u16 {
    let selector: u32;
    // SAFETY: reading a selector changes nothing.
    unsafe { asm!("str {:e}", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    selector as u16
}

/// The base address in the TSS descriptor `selector` of the GDT.
fn tss_base(gdt: u64, selector: u16) -> u64 {
    let entry = (gdt + u64::from(selector & !7)) as *const [u64; 2];
    // SAFETY: the loaded task register names a descriptor of 16 bytes in the GDT.
    let [low, high] = unsafe { entry.read_unaligned() };
    low >> 16 & 0xff_ffff | (low >> 56) << 24 | high << 32
}
