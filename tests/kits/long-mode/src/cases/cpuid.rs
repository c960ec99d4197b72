//! CPUID: leaves that must agree with each other and with the machine (AMD APM 3, appendix E).

use crate::check::{Case, Check, case};
use crate::machine::insn::{cpuid, cr4, rdmsr, set_cr4, wrmsr};
use crate::machine::{is_intel, is_palimpsest, lapic, time};

pub const CASES: &[Case] = &[
    case("cpuid.vendor", vendor),
    case("cpuid.features", features),
    case("cpuid.follows-state", follows_state),
    case("cpuid.beyond-the-last", beyond),
    case("cpuid.upper-halves", upper_halves),
    case("cpuid.hypervisor", hypervisor),
];

fn vendor(c: &mut Check) {
    let ([max, b, cx, d], [ext, b2, cx2, d2]) = (cpuid(0, 0), cpuid(0x8000_0000, 0));
    let name = [b, d, cx].map(u32::to_le_bytes);
    let known = if is_intel() { b"GenuineIntel" } else { b"AuthenticAMD" };
    c.equal("vendor", name.as_flattened(), known);
    c.equal("the vendor repeated", [b2, cx2, d2], if is_intel() { [0; 3] } else { [b, cx, d] });
    c.holds("leaf 0xd exists", max >= 0xd);
    c.holds("leaf 8000_0008 exists", ext >= 0x8000_0008);
    for leaf in 0x8000_0002..=0x8000_0004 {
        let text = cpuid(leaf, 0).map(u32::to_le_bytes);
        c.holds(
            "the brand string is printable",
            text.as_flattened().iter().all(|b| matches!(b, 0 | b' '..=b'~')),
        );
    }
    let [widths, ..] = cpuid(0x8000_0008, 0);
    c.holds("physical address bits", (36..=52).contains(&(widths & 0xff)));
    c.holds("linear address bits", matches!(widths >> 8 & 0xff, 48 | 57));
}

fn features(c: &mut Check) {
    let ([signature, _, _, d1], [signature2, _, _, d]) = (cpuid(1, 0), cpuid(0x8000_0001, 0));
    // What leaf 8000_0001 EDX repeats on AMD: bits 0 to 9, 12 to 17, 23, 24. Intel's is 0 there, and so is EAX.
    const REPEATED: u32 = 0x0183_f3ff;
    let repeated = |value| if is_intel() { 0 } else { value };
    c.equal("the repeated features", d & REPEATED, repeated(d1 & REPEATED));
    c.equal("the family, model and stepping repeated", signature2, repeated(signature));
    c.holds("long mode, in which this runs", d >> 29 & 1 != 0);
    c.holds("NX, which is enabled", d >> 20 & 1 != 0);
    c.holds("local APIC and MSRs", d1 >> 9 & 1 != 0 && d1 >> 5 & 1 != 0);
    let xsave = cpuid(1, 0)[2] >> 26 & 1 != 0;
    if xsave {
        let [low, size, max, _] = cpuid(0xd, 0);
        c.equal("x87 and SSE state", low & 3, 3);
        c.holds("XSAVE sizes", size >= 576 && max >= size);
        let [avx_size, avx_offset, ..] = cpuid(0xd, 2);
        if low & 4 != 0 {
            c.equal("the AVX component", [avx_size, avx_offset], [256, 576]);
        }
    }
}

fn follows_state(c: &mut Check) {
    let osxsave = || cpuid(1, 0)[2] >> 27 & 1 != 0;
    if cpuid(1, 0)[2] >> 26 & 1 != 0 {
        c.equal("OSXSAVE at first", osxsave(), false);
        set_cr4(cr4() | 1 << 18);
        c.equal("OSXSAVE once CR4 has it", osxsave(), true);
        set_cr4(cr4() & !(1 << 18));
        c.equal("OSXSAVE once CR4 has it no more", osxsave(), false);
    }
    c.equal("the APIC id", cpuid(1, 0)[1] >> 24, lapic::id());
    if !is_palimpsest() {
        // QEMU's emulation never enables again an APIC that was disabled.
        return;
    }
    let base = rdmsr(lapic::BASE_MSR);
    wrmsr(lapic::BASE_MSR, base & !lapic::ENABLE);
    let without = cpuid(1, 0)[3] >> 9 & 1;
    wrmsr(lapic::BASE_MSR, base);
    c.equal("the APIC bit of a disabled APIC", without, 0);
    c.equal("the APIC bit of an enabled APIC", cpuid(1, 0)[3] >> 9 & 1, 1);
}

fn beyond(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("other hypervisors answer leaves beyond the last in other ways");
    }
    let (basic, extended) = (cpuid(0, 0)[0], cpuid(0x8000_0000, 0)[0]);
    for leaf in [
        basic + 1,
        basic + 0x1000,
        0x3fff_ffff,
        0x4fff_ffff,
        extended + 1,
        0x8fff_ffff,
        0xc000_0000,
        u32::MAX,
    ] {
        c.equal(format_args!("leaf {leaf:x}"), cpuid(leaf, 0), [0; 4]);
    }
    for sub in [3, 100, u32::MAX] {
        c.equal(format_args!("leaf 7.{sub}"), cpuid(7, sub), [0; 4]);
    }
}

fn upper_halves(c: &mut Check) {
    let (a, b, cx, d): (u64, u64, u64, u64);
    // SAFETY: CPUID has no other effect; RBX, which the compiler keeps, is restored.
    unsafe {
        core::arch::asm!(
            "xchg {saved}, rbx", "mov rbx, -1", "cpuid", "xchg {saved}, rbx",
            saved = inout(reg) 0u64 => b, inout("rax") 0xffff_ffff_0000_0000_u64 => a, inout("rcx") u64::MAX << 32 => cx,
            inout("rdx") u64::MAX => d, options(nostack)
        );
    }
    c.equal("upper halves of the four registers", [a, b, cx, d].map(|v| v >> 32), [0; 4]);
}

fn hypervisor(c: &mut Check) {
    c.equal("the hypervisor bit", cpuid(1, 0)[2] >> 31, 1);
    if !is_palimpsest() {
        return c.skip("another hypervisor");
    }
    let [max, ..] = cpuid(0x4000_0000, 0);
    c.holds("leaf 4000_0010 exists", max >= 0x4000_0010);
    let [tsc_khz, apic_khz, ..] = cpuid(0x4000_0010, 0);
    c.near("TSC rate in kHz", tsc_khz.into(), time::tsc_hz() / 1000, 10);
    c.equal("the APIC timer runs at the same rate", apic_khz, tsc_khz);
    c.equal("no SVM for guests", cpuid(0x8000_0001, 0)[2] >> 2 & 1, 0);
}
