//! Control registers and XCR0 (AMD APM 2, 3.1 and 11.5).

use core::arch::naked_asm;

use super::{GP, UD};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::trap::vector;
use crate::machine::{is_palimpsest, lapic, user};

pub const CASES: &[Case] = &[
    case("control.cr0", cr0_moves),
    case("control.cr2", cr2_moves),
    case("control.cr3-reserved", cr3_reserved),
    case("control.cr4", cr4_moves),
    case("control.cr8", cr8_moves),
    case("control.missing", missing),
    case("control.user-mode", user_mode),
    case("control.tsd", tsd),
    case("control.xsetbv", xcr0),
];

fn cr0_moves(c: &mut Check) {
    let before = cr0();
    for bit in [1, 2, 3, 18, 29 + 1] {
        // MP, EM, TS, AM, CD: each may be changed alone.
        c.raises(format_args!("a change of CR0 bit {bit}"), None, || set_cr0(before ^ 1 << bit));
        c.equal(format_args!("CR0 with bit {bit} changed"), cr0(), before ^ 1 << bit);
        set_cr0(before);
    }
    c.raises_but_tcg("PG without PE", GP, || set_cr0(before & !1));
    set_cr0(before);
    c.raises_but_tcg("NW without CD", GP, || set_cr0(before | 1 << 29));
    set_cr0(before);
    c.raises_but_tcg("a bit of the upper half", GP, || set_cr0(before | 1 << 32));
    set_cr0(before);
    // SAFETY: sets and clears CR0.TS only.
    unsafe {
        set_cr0(before | 8);
        core::arch::asm!("clts");
        c.equal("CR0 after CLTS", cr0(), before);
        let status: u64;
        core::arch::asm!("smsw {0}", "mov {1:e}, {0:e}", "or {1:e}, 8", "lmsw {1:x}", out(reg) status, out(reg) _);
        c.equal("SMSW", status, before);
        c.equal("CR0 after LMSW with TS", cr0(), before | 8);
        set_cr0(before | 8);
        c.raises("an SSE instruction with TS set", Some((7, 0)), || core::arch::asm!("movaps xmm0, xmm0"));
        set_cr0(before | 4);
        c.raises("an SSE instruction with EM set", UD, || core::arch::asm!("movaps xmm0, xmm0"));
    }
    set_cr0(before);
}

fn cr2_moves(c: &mut Check) {
    for value in [0, 0x1234_5678_9abc_def0, u64::MAX] {
        set_cr2(value);
        cpuid(0, 0);
        c.equal("CR2 across CPUID", cr2(), value);
    }
}

fn cr3_reserved(c: &mut Check) {
    let before = cr3();
    set_cr3(before | 0x18);
    c.equal("CR3 with PWT and PCD", cr3(), before | 0x18);
    set_cr3(before);
    if c.tcg {
        return c.skip("QEMU's emulation loops for ever after a write of reserved bits to CR3");
    }
    let bits = cpuid(0x8000_0008, 0)[0] & 0xff;
    c.raises("an address bit beyond the width", GP, || set_cr3(before | 1 << bits));
    set_cr3(before);
    c.raises("bit 63 without PCID", GP, || set_cr3(before | 1 << 63));
    set_cr3(before);
}

fn cr4_moves(c: &mut Check) {
    let before = cr4();
    let ours = is_palimpsest();
    // 12 is LA57, 13 VMXE, 14 SMXE, 19 KL, 25 UINTR and more: nothing here has them.
    for bit in
        [12, 13, 14, 15, 19, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 47, 63].into_iter().filter(|_| ours)
    {
        c.raises(format_args!("CR4 bit {bit}"), GP, || set_cr4(before | 1 << bit));
    }
    if ours || !c.tcg {
        c.raises("PAE cleared in long mode", GP, || set_cr4(before & !0x20));
    }
    c.equal("CR4 after the faults", cr4(), before);
    // VME, PVI, TSD, DE, PSE, MCE, PGE, PCE
    let vme = cpuid(1, 0)[3] >> 1 & 1 != 0;
    for bit in [0, 1, 2, 3, 4, 6, 7, 8].into_iter().filter(|&bit| vme || bit > 1) {
        c.raises(format_args!("a change of CR4 bit {bit}"), None, || set_cr4(before ^ 1 << bit));
        c.equal(format_args!("CR4 with bit {bit} changed"), cr4(), before ^ 1 << bit);
        set_cr4(before);
    }
    if ours && cpuid(1, 0)[2] >> 17 & 1 != 0 {
        let root = cr3();
        set_cr3(root | 8);
        c.raises("PCIDE with CR3[11:0] not zero", GP, || set_cr4(before | 1 << 17));
        set_cr3(root);
    }
}

fn cr8_moves(c: &mut Check) {
    for value in 0..16 {
        set_cr8(value);
        c.equal("CR8", cr8(), value);
        c.equal("TPR after a move to CR8", lapic::read(lapic::reg::TPR), (value as u32) << 4);
    }
    lapic::write(lapic::reg::TPR, 0x5a);
    c.equal("CR8 after a write of TPR", cr8(), 5);
    c.equal("TPR keeps its low bits", lapic::read(lapic::reg::TPR), 0x5a);
    c.raises_but_tcg("CR8 bit 4", GP, || set_cr8(0x10));
    set_cr8(0);
}

fn missing(c: &mut Check) {
    // SAFETY: faults.
    unsafe {
        c.raises("CR1", UD, || core::arch::asm!("mov rax, cr1", out("rax") _));
        c.raises("CR5", UD, || core::arch::asm!(".byte 0x0f, 0x20, 0xe8", out("rax") _));
        c.raises("CR7", UD, || core::arch::asm!(".byte 0x0f, 0x20, 0xf8", out("rax") _));
        c.raises("CR9", UD, || core::arch::asm!(".byte 0x44, 0x0f, 0x20, 0xc8", out("rax") _));
    }
}

macro_rules! in_user_mode {
    ($($name:ident $what:literal: $($code:literal),+;)*) => {
        $(#[unsafe(naked)] unsafe extern "C" fn $name() { naked_asm!($($code,)+ "int 0x80") })*
        const PRIVILEGED: &[(&str, unsafe extern "C" fn())] = &[$(($what, $name)),*];
    };
}

in_user_mode! {
    user_read_cr0 "reading CR0": "mov rax, cr0";
    user_write_cr3 "writing CR3": "mov rax, 0", "mov cr3, rax";
    user_write_cr4 "writing CR4": "mov rax, 0", "mov cr4, rax";
    user_read_cr8 "reading CR8": "mov rax, cr8";
    user_read_dr7 "reading DR7": "mov rax, dr7";
    user_clts "CLTS": "clts";
    user_hlt "HLT": "hlt";
    user_cli "CLI": "cli";
    user_invlpg "INVLPG": "invlpg [rsp]";
    user_invd "INVD": "invd";
    user_wbinvd "WBINVD": "wbinvd";
    user_xsetbv "XSETBV": "xor ecx, ecx", "mov eax, 1", "xor edx, edx", "xsetbv";
    user_input "IN": "in al, 0x80";
    user_output "OUT": "out 0x80, al";
    user_lgdt "LGDT": "lgdt [rsp]";
}

fn user_mode(c: &mut Check) {
    let xsave = cpuid(1, 0)[2] >> 26 & 1 != 0;
    if xsave {
        set_cr4(cr4() | 1 << 18);
    }
    for (what, code) in PRIVILEGED.iter().filter(|(what, _)| xsave || *what != "XSETBV") {
        let trap = user::run(*code, 0);
        c.equal(format_args!("{what} in user mode"), (trap.vector, trap.error), (vector::GP, 0));
    }
}

#[unsafe(naked)]
unsafe extern "C" fn user_rdtsc() {
    naked_asm!("rdtsc", "int 0x80")
}

fn tsd(c: &mut Check) {
    c.equal("RDTSC in user mode", user::run(user_rdtsc, 0).vector, user::DONE);
    set_cr4(cr4() | 4);
    c.equal("RDTSC in user mode with CR4.TSD", user::run(user_rdtsc, 0).vector, vector::GP);
    c.raises("RDTSC in the kernel with CR4.TSD", None, || _ = rdtsc());
    set_cr4(cr4() & !4);
}

fn xcr0(c: &mut Check) {
    if cpuid(1, 0)[2] >> 26 & 1 == 0 {
        return c.skip("no XSAVE");
    }
    c.raises("XSETBV without CR4.OSXSAVE", UD, || set(1));
    c.raises("XGETBV without CR4.OSXSAVE", UD, || _ = xgetbv(0));
    set_cr4(cr4() | 1 << 18);
    let [low, ..] = cpuid(0xd, 0);
    let before = xgetbv(0);
    c.equal("x87 is always in XCR0", before & 1, 1);
    c.raises("XCR0 = 0", GP, || set(0));
    c.raises("SSE without x87", GP, || set(2));
    c.raises("AVX without SSE", GP, || set(5));
    set(before);
    c.raises("bit 63", GP, || set(1 << 63 | 1));
    c.raises("a component that does not exist", GP, || set(1 | 1 << 40));
    c.raises("XCR1", GP, || xsetbv(1, 1));
    c.equal("XCR0 after the faults", xgetbv(0), before);
    let mut sizes = [0; 2];
    for (i, value) in [3, u64::from(low & 7)].into_iter().enumerate() {
        set(value);
        c.equal("XCR0", xgetbv(0), value);
        sizes[i] = cpuid(0xd, 0)[1];
    }
    c.equal("XSAVE size with SSE only", sizes[0], 576);
    if low & 4 != 0 {
        c.equal("XSAVE size with AVX", sizes[1], 832);
    }
    set(1);
}

fn set(value: u64) {
    xsetbv(0, value);
}
