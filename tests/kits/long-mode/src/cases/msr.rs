//! The MSR policy (AMD APM 2, appendix A).

use core::arch::{asm, naked_asm};

use super::GP;
use crate::check::{Case, Check, case};
use crate::machine::insn::{self, cpuid, peek, poke, rdmsr, wrmsr};
use crate::machine::paging::scratch;
use crate::machine::trap::{catch, vector};
use crate::machine::{is_intel, is_palimpsest, lapic, user};

pub const CASES: &[Case] = &[
    case("msr.unknown", unknown),
    case("msr.promised", promised),
    case("msr.efer", efer),
    case("msr.apic-base", apic_base),
    case("msr.apic-moves", apic_moves),
    case("msr.apic-off", apic_off),
    case("msr.x2apic-registers", x2apic_registers),
    case("msr.pat", pat),
    case("msr.tsc", tsc),
    case("msr.canonical", canonical),
    case("msr.user-mode", user_mode),
    case("msr.syscall", syscall),
    case("msr.hidden", hidden),
];

const EFER: u32 = 0xc000_0080;

fn unknown(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("QEMU's emulation ignores unknown MSRs");
    }
    let fault = if c.permissive { None } else { GP };
    for index in [0x12345, 0x3ff, 0xc000_0fff, 0xc002_0000, u32::MAX] {
        c.raises(format_args!("RDMSR {index:x}"), fault, || _ = rdmsr(index));
        c.raises(format_args!("WRMSR {index:x}"), fault, || wrmsr(index, 1));
    }
    if c.permissive {
        return c.equal("an unknown MSR's value", rdmsr(0x12345), 0);
    }
    // A fault leaves the registers alone and points at the instruction.
    let (mut at, mut a) = (0u64, 0u64);
    let trap = catch(|| {
        // SAFETY: faults.
        unsafe {
            asm!("lea {at}, [rip + 2f]", "mov [{to}], {at}", "mov rax, 0x1122334455667788", "2: rdmsr", at = out(reg) _,
                 to = in(reg) &raw mut at, in("ecx") 0x12345, out("rax") a, out("rdx") _);
        }
    });
    let _ = a;
    let trap = trap.unwrap_or_default();
    c.equal("RIP of the fault", trap.rip, at);
    c.equal("RAX after the fault", trap.rax, 0x1122_3344_5566_7788);
}

/// What every processor of the vendor has, whatever CPUID says.
fn promised(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("QEMU's emulation ignores unknown MSRs, and Bochs has fewer");
    }
    let (amd, intel): (&[(u32, u32)], &[(u32, u32)]) = (
        &[(0, 1), (0xc001_0000, 0xc001_0007), (0xc001_0016, 0xc001_001a), (0xc001_0200, 0xc001_020b)],
        &[(0, 1), (0xc1, 0xc2), (0x186, 0x187)],
    );
    for msr in (if is_intel() { intel } else { amd }).iter().flat_map(|&(first, last)| first..=last) {
        let mut value = 1;
        c.raises(format_args!("WRMSR {msr:x}"), None, || wrmsr(msr, 0x53_0076));
        c.raises(format_args!("RDMSR {msr:x}"), None, || value = rdmsr(msr));
        c.equal(format_args!("MSR {msr:x}"), value, 0);
    }
    for part in (0..6).filter(|_| !is_intel()) {
        let [a, b, cx, d] = cpuid(0x8000_0002 + part / 2, 0);
        let (low, high) = if part % 2 == 0 { (a, b) } else { (cx, d) };
        let name = u64::from(high) << 32 | u64::from(low);
        c.equal(format_args!("part {part} of the name"), rdmsr(0xc001_0030 + part), name);
    }
}

fn efer(c: &mut Check) {
    let before = rdmsr(EFER);
    c.equal("LME, LMA and NXE", before & 0xd00, 0xd00);
    let ours = is_palimpsest();
    for bit in [1, 9, 16, 21, 31, 32, 63].into_iter().filter(|_| ours) {
        c.raises(format_args!("EFER bit {bit}"), GP, || wrmsr(EFER, before | 1 << bit));
    }
    if ours {
        c.raises("EFER.SVME, which guests do not have", GP, || wrmsr(EFER, before | 1 << 12));
        c.raises("EFER.LME cleared with paging on", GP, || wrmsr(EFER, before & !0x100));
        c.equal("EFER after all this", rdmsr(EFER), before);
    }
    wrmsr(EFER, before | 1);
    c.equal("EFER.SCE set", rdmsr(EFER), before | 1);
    wrmsr(EFER, before & !1);
    c.equal("EFER.SCE cleared", rdmsr(EFER), before & !1);
}

fn apic_base(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("QEMU's emulation does not check APIC_BASE, and has no x2APIC before version 9");
    }
    let base = rdmsr(lapic::BASE_MSR);
    c.equal("page", base & !0xfff, lapic::PAGE);
    c.equal("bootstrap processor, enabled", base & 0xd00, 0x900);
    let (on, x2) = (lapic::ENABLE, lapic::X2APIC);
    c.raises("reserved bit 9", GP, || wrmsr(lapic::BASE_MSR, base | 1 << 9));
    c.raises("reserved bit 0", GP, || wrmsr(lapic::BASE_MSR, base | 1));
    c.raises("address bit 52", GP, || wrmsr(lapic::BASE_MSR, base | 1 << 52));
    c.raises("x2APIC without enable", GP, || wrmsr(lapic::BASE_MSR, base & !on | x2));
    if !lapic::has_x2() {
        c.raises("xAPIC to x2APIC without that mode", GP, || wrmsr(lapic::BASE_MSR, base | x2));
        c.raises("an x2APIC register without that mode", GP, || _ = rdmsr(0x802));
        return;
    }
    c.raises("xAPIC to x2APIC", None, || wrmsr(lapic::BASE_MSR, base | x2));
    c.raises("x2APIC back to xAPIC", GP, || wrmsr(lapic::BASE_MSR, base));
    c.equal("still x2APIC", rdmsr(lapic::BASE_MSR), base | x2);
    c.equal("nothing in the page in x2APIC mode", peek::<u32>(lapic::PAGE + 0x30), u32::MAX);
    c.raises("x2APIC to disabled", None, || wrmsr(lapic::BASE_MSR, base & !on));
    c.raises("disabled to x2APIC at once", GP, || wrmsr(lapic::BASE_MSR, base | x2));
    c.raises("an x2APIC register of a disabled APIC", GP, || _ = rdmsr(0x802));
    c.raises("disabled to xAPIC", None, || wrmsr(lapic::BASE_MSR, base));
    c.raises("an x2APIC register in xAPIC mode", GP, || _ = rdmsr(0x802));
}

/// The page goes where APIC_BASE says: over memory, where there is nothing, and back.
fn apic_moves(c: &mut Check) {
    const NOT_HERE: &str = "QEMU's emulation does not move the page, and Bochs' machine has none to spare";
    if !is_palimpsest() {
        return c.skip(NOT_HERE);
    }
    let base = rdmsr(lapic::BASE_MSR);
    let memory = scratch(3);
    poke(memory + 0x30, 0x1234_5678_u32);
    poke(memory + 0xff0, 0x9abc_def0_u32);
    for to in [memory, 0xd000_0000, memory] {
        wrmsr(lapic::BASE_MSR, base & 0xfff | to);
        c.equal(format_args!("APIC_BASE at {to:x}"), rdmsr(lapic::BASE_MSR), base & 0xfff | to);
        c.equal(format_args!("the version at {to:x}"), peek::<u32>(to + 0x30) & 0xff, 0x14);
        c.equal("the old place", peek::<u32>(lapic::PAGE + 0x30), u32::MAX);
        c.equal("beside it", peek::<u32>(scratch(4)), 0);
        // Still the same APIC: a request, which this leaves pending.
        poke(to + 0x300, lapic::TO_SELF as u32 | 0x71);
        c.equal(format_args!("vector 71 requested at {to:x}"), peek::<u32>(to + 0x230), 1 << 0x11);
    }
    wrmsr(lapic::BASE_MSR, base & !lapic::ENABLE & 0xfff | memory);
    c.equal("the memory under it while it is off", peek::<u32>(memory + 0x30), 0x1234_5678);
    wrmsr(lapic::BASE_MSR, base);
    c.equal(
        "the memory once it has left",
        [peek::<u32>(memory + 0x30), peek(memory + 0xff0)],
        [0x1234_5678, 0x9abc_def0],
    );
    c.equal("back again", peek::<u32>(lapic::PAGE + 0x30) & 0xff, 0x14);
    poke(memory, 7_u32);
    c.equal("memory again", peek::<u32>(memory), 7);
}

/// Off, and on again as after power-up.
fn apic_off(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("QEMU's emulation never enables again an APIC that was disabled");
    }
    let base = rdmsr(lapic::BASE_MSR);
    let apic = || cpuid(1, 0)[3] >> 9 & 1;
    lapic::write(lapic::reg::TPR, 0x50);
    lapic::write(lapic::reg::LDR, 1 << 24);
    lapic::write(lapic::reg::LVT_TIMER, 0x40);
    lapic::send_self(0x45);
    c.equal("CR8 follows TPR", insn::cr8(), 5);
    wrmsr(lapic::BASE_MSR, base & !lapic::ENABLE);
    c.equal("CPUID while it is off", apic(), 0);
    c.equal("the page while it is off", peek::<u32>(lapic::PAGE + 0x30), u32::MAX);
    wrmsr(lapic::BASE_MSR, base);
    c.equal("CPUID once it is on", apic(), 1);
    c.equal("CR8", insn::cr8(), 0);
    for (what, register, value) in [
        ("TPR", lapic::reg::TPR, 0),
        ("LDR", lapic::reg::LDR, 0),
        ("DFR", lapic::reg::DFR, u32::MAX),
        ("SVR: disabled by software", lapic::reg::SVR, 0xff),
        ("LVT of the timer", lapic::reg::LVT_TIMER, lapic::MASKED),
        ("LVT of LINT0", lapic::reg::LVT_LINT0, lapic::MASKED),
        ("IRR", lapic::reg::IRR + 0x20, 0),
    ] {
        c.equal(what, lapic::read(register), value);
    }
    c.equal("APIC_BASE, with the boot processor's bit", rdmsr(lapic::BASE_MSR), base);
}

fn x2apic_registers(c: &mut Check) {
    if c.lacks_x2apic() {
        return;
    }
    lapic::set_x2(true);
    c.equal("logical id", rdmsr(0x80d), u64::from(lapic::id() >> 4) << 16 | 1 << (lapic::id() & 15));
    for (what, msr, value) in [
        ("the id", 0x802, 0),
        ("the version", 0x803, 0),
        ("the logical id", 0x80d, 0),
        ("a register that does not exist", 0x804, 0),
        ("the in-service register", 0x810, 0),
        ("EOI with a value", 0x80b, 1),
        ("TPR beyond 8 bits", 0x808, 0x100),
        ("SVR beyond 32 bits", 0x80f, 1 << 32),
        ("ESR with a value", 0x828, 1),
        ("self-IPI beyond 8 bits", 0x83f, 0x100),
    ] {
        c.raises(format_args!("WRMSR of {what}"), GP, || wrmsr(msr, value));
    }
    for (what, msr) in
        [("EOI", 0x80b), ("self-IPI", 0x83f), ("DFR", 0x80e), ("ICR high", 0x831), ("0x8ff", 0x8ff)]
    {
        c.raises(format_args!("RDMSR of {what}"), GP, || _ = rdmsr(msr));
    }
    wrmsr(0x808, 0x20);
    c.equal("CR8 follows TPR", crate::machine::insn::cr8(), 2);
    wrmsr(0x808, 0);
}

fn pat(c: &mut Check) {
    const PAT: u32 = 0x277;
    let before = rdmsr(PAT);
    wrmsr(PAT, 0x0007_0106_0007_0406);
    c.equal("PAT", rdmsr(PAT), 0x0007_0106_0007_0406);
    wrmsr(PAT, before);
    if is_palimpsest() {
        c.raises("PAT type 2", GP, || wrmsr(PAT, 2));
        c.raises("PAT type 8", GP, || wrmsr(PAT, 8 << 56));
        c.equal("PAT after the faults", rdmsr(PAT), before);
    }
}

fn tsc(c: &mut Check) {
    const TSC: u32 = 0x10;
    if !is_palimpsest() {
        return c.skip("the emulated machine keeps time by its TSC");
    }
    let before = rdmsr(TSC);
    c.holds("it counts", rdmsr(TSC) > before);
    wrmsr(TSC, before + (1 << 40));
    let jumped = rdmsr(TSC);
    c.holds("it goes on from what was written", (before + (1 << 40)..before + (3 << 39)).contains(&jumped));
    c.holds("RDTSC agrees", crate::machine::insn::rdtsc() >= jumped);
    wrmsr(TSC, rdmsr(TSC) - (1 << 40));
}

fn canonical(c: &mut Check) {
    for msr in [0xc000_0082, 0xc000_0083, 0xc000_0100, 0xc000_0101, 0xc000_0102, 0x175, 0x176] {
        let before = rdmsr(msr);
        c.raises_but_tcg(format_args!("a non-canonical address in MSR {msr:x}"), GP, || wrmsr(msr, 1 << 47));
        wrmsr(msr, before);
    }
}

#[unsafe(naked)]
unsafe extern "C" fn user_rdmsr() {
    naked_asm!("mov ecx, edi", "rdmsr", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_wrmsr() {
    naked_asm!("mov ecx, edi", "xor eax, eax", "xor edx, edx", "wrmsr", "int 0x80")
}

fn user_mode(c: &mut Check) {
    for index in [0xc000_0080_u64, 0x10, 0x277, 0xc000_0100, 0x12345] {
        let (read, write) = (user::run(user_rdmsr, index), user::run(user_wrmsr, index));
        c.equal(format_args!("RDMSR {index:x} in user mode"), (read.vector, read.error), (vector::GP, 0));
        c.equal(format_args!("WRMSR {index:x} in user mode"), (write.vector, write.error), (vector::GP, 0));
    }
}

#[unsafe(naked)]
unsafe extern "C" fn user_syscall() {
    naked_asm!("mov rax, 0x77", "syscall", "2: inc rax", "int 0x80")
}

/// Where SYSCALL leads: notes where it came from, and returns.
#[unsafe(naked)]
unsafe extern "C" fn syscall_entry() {
    naked_asm!("add rax, 0x100", "sysretq")
}

fn syscall(c: &mut Check) {
    let saved = [EFER, 0xc000_0081, 0xc000_0082, 0xc000_0084].map(|msr| (msr, rdmsr(msr)));
    wrmsr(EFER, rdmsr(EFER) | 1);
    wrmsr(0xc000_0081, 0x1b << 48 | 0x08 << 32);
    wrmsr(0xc000_0082, syscall_entry as *const () as u64);
    wrmsr(0xc000_0084, 0x4_7700);
    let trap = user::run(user_syscall, 0);
    c.equal("SYSCALL, SYSRET and back", (trap.vector, trap.rax, trap.from_user), (user::DONE, 0x178, true));
    wrmsr(EFER, rdmsr(EFER) & !1);
    let trap = user::run(user_syscall, 0);
    c.equal("SYSCALL without EFER.SCE", trap.vector, vector::UD);
    for (msr, value) in saved {
        wrmsr(msr, value);
    }
}

/// Registers that no exit guards where the feature is there.
fn hidden(c: &mut Check) {
    let has_sysenter = cpuid(1, 0)[3] >> 11 & 1 != 0;
    let fault = if has_sysenter { None } else { GP };
    for msr in [0x174, 0x175, 0x176] {
        c.raises(format_args!("RDMSR {msr:x}, SYSENTER: {has_sysenter}"), fault, || _ = rdmsr(msr));
        c.raises(format_args!("WRMSR {msr:x}, SYSENTER: {has_sysenter}"), fault, || wrmsr(msr, 0));
    }
}
