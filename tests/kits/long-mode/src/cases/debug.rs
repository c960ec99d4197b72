//! Debug registers, breakpoints and single steps (AMD APM 2, chapter 13).

use core::arch::{asm, naked_asm};

use super::{GP, UD};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::trap::{self, Frame, Trap, hook, log_of, only_record, vector};
use crate::machine::{Cell, is_palimpsest, paging};

pub const CASES: &[Case] = &[
    case("debug.registers", registers),
    case("debug.breakpoint", breakpoint),
    case("debug.watchpoint", watchpoint),
    case("debug.step-plain", step_plain),
    case("debug.step-cpuid", step_cpuid),
    case("debug.step-ports", step_ports),
    case("debug.step-msr", step_msr),
    case("debug.step-mmio", step_mmio),
    case("debug.step-string", step_string),
    case("debug.step-cr4", step_cr4),
    case("debug.step-fault", step_fault),
    case("debug.step-sti", step_sti),
    case("debug.step-mov-ss", step_mov_ss),
    case("debug.general-detect", general_detect),
    case("debug.int1", int1),
];

const BS: u64 = 1 << 14;

fn registers(c: &mut Check) {
    type Access = (fn(u64), fn() -> u64);
    let set: [Access; 4] = [(set_dr0, dr0), (set_dr1, dr1), (set_dr2, dr2), (set_dr3, dr3)];
    for (i, (write, read)) in set.into_iter().enumerate() {
        write(0x1234_5678_0000 + i as u64);
        cpuid(0, 0);
        c.equal(format_args!("DR{i} across CPUID"), read(), 0x1234_5678_0000 + i as u64);
    }
    set_dr6(0);
    c.equal("DR6 written with 0", dr6() & 0xffff_efff, 0xffff_0ff0 & 0xffff_efff);
    set_dr7(0);
    c.equal("DR7 written with 0", dr7(), 0x400);
    set_dr7(0x355);
    c.equal("DR7 with enables", dr7() & 0xff, 0x55);
    set_dr7(0x400);
    c.raises("DR7 bit 32", GP, || set_dr7(1 << 32));
    c.raises("DR6 bit 32", GP, || set_dr6(1 << 32));
    set_dr6(0xffff_0ff0);
    set_cr4(cr4() | 8);
    // SAFETY: reads a register or faults.
    c.raises("DR4 with CR4.DE", UD, || unsafe { asm!("mov rax, dr4", out("rax") _) });
    set_cr4(cr4() & !8);
    // SAFETY: reads a register.
    c.raises("DR4 without CR4.DE is DR6", None, || unsafe { asm!("mov rax, dr4", out("rax") _) });
}

static TARGET: Cell<u64> = Cell::new(0);

/// Sets RF so that the instruction runs.
fn resume(frame: &mut Frame) {
    frame.rflags |= 1 << 16;
}

#[unsafe(naked)]
unsafe extern "C" fn plain() {
    naked_asm!("nop", "ret")
}

/// CPUID, which a hypervisor executes.
#[unsafe(naked)]
unsafe extern "C" fn intercepted() {
    naked_asm!("nop", "push rbx", "nop", "cpuid", "pop rbx", "ret")
}

fn breakpoint(c: &mut Check) {
    hook(vector::DB, resume);
    for (what, code, offset) in [("NOP", plain as unsafe extern "C" fn(), 0), ("CPUID", intercepted, 3)] {
        let at = code as *const () as u64 + offset;
        let before = trap::count(vector::DB);
        set_dr0(at);
        set_dr7(0x402);
        // SAFETY: functions that do nothing that matters.
        unsafe { code() };
        set_dr7(0x400);
        c.equal(format_args!("breakpoints hit on {what}"), trap::count(vector::DB) - before, 1);
        let hit = log_of(vector::DB).last().unwrap_or_default();
        c.equal(format_args!("place and DR6 on {what}"), (hit.rip, hit.dr6 & 0x400f), (at, 1));
        set_dr6(0xffff_0ff0);
    }
}

fn watchpoint(c: &mut Check) {
    hook(vector::DB, only_record);
    set_dr1(TARGET.ptr() as u64);
    // DR1: write, 8 bytes, global
    set_dr7(0x400 | 8 | 1 << 20 | 2 << 22);
    let after: u64;
    // SAFETY: a write of the watched variable.
    unsafe {
        asm!("lea {after}, [rip + 2f]", "mov qword ptr [{at}], 1", "2: nop", at = in(reg) TARGET.ptr(), after = out(reg) after);
    }
    let _ = TARGET.get();
    set_dr7(0x400);
    c.equal("watchpoint hits", trap::count(vector::DB), 1);
    let hit = log_of(vector::DB).next().unwrap_or_default();
    c.equal("it traps after the write", hit.rip, after);
    c.equal("DR6", hit.dr6 & 0x400f, 2);
}

/// Checks that the steps recorded are exactly these places, each with DR6.BS alone.
fn expect(c: &mut Check, places: &[u64]) {
    let mut got = log_of(vector::DB);
    for (i, &place) in places.iter().enumerate() {
        let step: Trap = got.next().unwrap_or_default();
        c.equal(format_args!("place of step {i}"), step.rip, place);
        c.equal(format_args!("DR6 of step {i}"), step.dr6 & 0x400f, BS);
    }
    c.equal("steps too many", got.count(), 0);
}

/// Steps through instructions: assembles them with the trap flag set around, labels 20, 21, … after each. The first step
/// comes after the first instruction that begins with TF set.
macro_rules! stepped {
    ($c:ident, [$($code:literal, $label:literal);+], $($operands:tt)*) => {{
        hook(vector::DB, |frame: &mut Frame| {
            let _ = frame;
            set_dr6(0xffff_0ff0);
        });
        let mut places = [0u64; 8];
        // SAFETY: the code under test; the flags are restored before the end.
        unsafe {
            asm!(
                "push rbx",
                $(concat!("lea rbx, [rip + ", $label, "f]"), "mov [r8], rbx", "add r8, 8",)+
                "lea rbx, [rip + 99f]", "mov [r8], rbx",
                "pushfq", "or qword ptr [rsp], 0x100", "popfq",
                $($code, concat!($label, ":"),)+
                "pushfq", "99:", "and qword ptr [rsp], ~0x100", "popfq",
                "pop rbx",
                inout("r8") places.as_mut_ptr() => _, $($operands)*
            );
        }
        // The instructions, then PUSHF, AND and POPF of the end (the last one begins with TF set as well).
        const N: usize = [$($label),+].len();
        let end = trap::log_of(vector::DB).skip(N + 1).map(|t| t.rip).take(2);
        let mut all = [0u64; 10];
        all[..=N].copy_from_slice(&places[..=N]);
        let mut n = N + 1;
        for rip in end {
            all[n] = rip;
            n += 1;
        }
        $c.equal("steps at the end", n, N + 3);
        expect($c, &all[..n]);
    }};
}

fn step_plain(c: &mut Check) {
    stepped!(c, ["nop", "20"; "inc eax", "21"; "nop", "22"], out("eax") _);
}

fn step_cpuid(c: &mut Check) {
    stepped!(c, ["cpuid", "20"; "cpuid", "21"; "mov eax, 0", "22"], inout("eax") 0 => _, inout("ecx") 0 => _, out("edx") _);
}

fn step_ports(c: &mut Check) {
    stepped!(c, ["out 0x80, al", "20"; "in al, 0x80", "21"; "out dx, eax", "22"], inout("eax") 0 => _, in("edx") 0x80);
}

fn step_msr(c: &mut Check) {
    stepped!(c, ["rdmsr", "20"; "wrmsr", "21"; "nop", "22"], in("ecx") 0x277, out("eax") _, out("edx") _);
}

fn step_mmio(c: &mut Check) {
    stepped!(c, ["mov eax, [rdi + 0x80]", "20"; "mov [rdi + 0x80], eax", "21"; "or dword ptr [rdi + 0x80], 0", "22"],
             in("rdi") crate::machine::lapic::PAGE, out("eax") _);
}

fn step_string(c: &mut Check) {
    // Each iteration of a repeated instruction is a step, with RIP at the instruction until the last.
    if !is_palimpsest() {
        return c.skip("QEMU's emulation steps over repeated port instructions as a whole");
    }
    hook(vector::DB, |_| set_dr6(0xffff_0ff0));
    let (at, end): (u64, u64);
    // SAFETY: writes three bytes to the POST port.
    unsafe {
        asm!("lea {at}, [rip + 2f]", "lea {end}, [rip + 3f]", "pushfq", "or qword ptr [rsp], 0x100", "popfq",
             "2: rep outsb", "3: pushfq", "and qword ptr [rsp], ~0x100", "popfq",
             at = out(reg) at, end = out(reg) end, in("dx") 0x80_u16, inout("rsi") paging::scratch(0) => _, inout("rcx") 3_u64 => _);
    }
    let mut steps = log_of(vector::DB).map(|t| t.rip);
    c.equal(
        "steps of REP OUTSB",
        [steps.next(), steps.next(), steps.next()],
        [Some(at), Some(at), Some(end)],
    );
}

fn step_cr4(c: &mut Check) {
    stepped!(c, ["mov cr4, rax", "20"; "mov rdx, cr8", "21"; "mov cr8, rdx", "22"], in("rax") cr4(), out("rdx") _);
}

fn step_fault(c: &mut Check) {
    // An instruction that faults does not complete, and is no step: its handler runs with TF clear.
    hook(vector::DB, |_| set_dr6(0xffff_0ff0));
    hook(vector::GP, |frame| frame.rip += 2);
    let end: u64;
    // SAFETY: RDMSR of an unknown MSR faults, and the hook steps over it.
    unsafe {
        asm!("lea {end}, [rip + 3f]", "pushfq", "or qword ptr [rsp], 0x100", "popfq", "rdmsr", "nop", "3: pushfq",
             "and qword ptr [rsp], ~0x100", "popfq", end = out(reg) end, in("ecx") 0x12345, out("eax") _, out("edx") _);
    }
    if trap::count(vector::GP) == 0 {
        return c.skip("unknown MSRs do not fault here");
    }
    c.equal("the first step", log_of(vector::DB).next().unwrap_or_default().rip, end);
}

fn step_sti(c: &mut Check) {
    // The step comes before the shadow ends.
    if c.tcg {
        // There it does not come at all.
        c.known += 1;
        return;
    }
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    stepped!(c, ["cli", "20"; "sti", "21"; "nop", "22"; "cli", "23"],);
    if flags & 1 << 9 != 0 {
        sti();
    }
}

fn step_mov_ss(c: &mut Check) {
    // The instruction behind MOV SS is not stepped over by itself: one of the processor's, CPUID, and one on a device.
    stepped!(c, ["mov ecx, ss", "20"; "mov ss, ecx\n nop", "21"; "mov ss, ecx\n cpuid", "22"; "mov ecx, ss", "23";
                 "mov ss, ecx\n mov eax, [rdi + 0x80]", "24"],
             in("rdi") crate::machine::lapic::PAGE, inout("eax") 0 => _, out("ecx") _, out("edx") _);
}

fn general_detect(c: &mut Check) {
    hook(vector::DB, only_record);
    set_dr6(0xffff_0ff0);
    set_dr7(0x2400);
    let at: u64;
    // SAFETY: reads a register; the second time, because the fault allows it.
    unsafe { asm!("lea {at}, [rip + 2f]", "2: mov {at:r}, dr0", "lea {at}, [rip + 2b]", at = out(reg) at) };
    c.equal_but_tcg("faults", trap::count(vector::DB), 1, 0);
    let hit = log_of(vector::DB).next().unwrap_or_default();
    c.equal_but_tcg("place and DR6", (hit.rip, hit.dr6 & 0x600f), (at, 1 << 13), (0, 0));
    c.equal_but_tcg("DR7 allows it afterwards", dr7(), 0x400, 0x2400);
    set_dr7(0x400);
    set_dr6(0xffff_0ff0);
}

fn int1(c: &mut Check) {
    if c.tcg {
        // It ends the emulation.
        c.known += 1;
        return;
    }
    hook(vector::DB, only_record);
    set_dr6(0xffff_0ff0);
    let after: u64;
    // SAFETY: the handler returns.
    unsafe { asm!("lea {after}, [rip + 2f]", ".byte 0xf1", "2:", after = out(reg) after) };
    c.equal("traps", trap::count(vector::DB), 1);
    let hit = log_of(vector::DB).next().unwrap_or_default();
    c.equal("place and DR6", (hit.rip, hit.dr6 & 0x600f), (after, 0));
}
