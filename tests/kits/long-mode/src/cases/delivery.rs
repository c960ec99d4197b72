//! Delivery of exceptions: gates that are not there, double faults, faults during delivery (AMD APM 2, 8.2.9 and 8.9).

use core::arch::{asm, naked_asm};

use super::{GP, UD};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::paging::{P, PW, PWU, map, scratch, window as page};
use crate::machine::trap::{self, GATE, catch, hook, set_gate, vector};
use crate::machine::{is_palimpsest, lapic, user};

pub const CASES: &[Case] = &[
    case("delivery.simple", simple),
    case("delivery.int-n", int_n),
    case("delivery.gate-absent", gate_absent),
    case("delivery.gate-wrong", gate_wrong),
    case("delivery.double-fault", double_fault),
    case("delivery.injected", injected),
    case("delivery.injected-double-fault", injected_double_fault),
    case("delivery.interrupt-gate-absent", interrupt_gate_absent),
    case("delivery.stack-absent", stack_absent),
    case("delivery.resume-flag", resume_flag),
    case("delivery.alignment", alignment),
    case("delivery.page-faults", page_faults),
    case("delivery.own-page-faults", own_page_faults),
];

fn simple(c: &mut Check) {
    // SAFETY: faults.
    unsafe {
        c.raises(
            "DIV by zero",
            Some((vector::DE, 0)),
            || asm!("xor ecx, ecx", "div ecx", out("ecx") _, inout("eax") 1 => _, inout("edx") 0 => _),
        );
        c.raises("UD2", UD, || asm!("ud2"));
        c.raises("INT3", Some((vector::BP, 0)), || asm!("int3"));
        c.raises(
            "a selector beyond the GDT",
            Some((vector::GP, 0x1000)),
            || asm!("mov ds, {:x}", in(reg) 0x1000u16),
        );
        c.raises("a code segment that is not present", Some((vector::NP, 0x40)), || {
            asm!("push 0x40", "lea rax, [rip + 2f]", "push rax", "retfq", "2:", "add rsp, 0", out("rax") _);
        });
    }
}

/// The error code that QEMU's emulation gives where a gate of the IDT is wrong: it takes gates of 16 bytes for the number's unit,
/// which is 8, and has no EXT.
fn tcg_error(vector: u8) -> u32 {
    u32::from(vector) * 16 + 2
}

fn int_n(c: &mut Check) {
    hook(0x77, |_| ());
    let at: u64;
    // SAFETY: the handler returns.
    unsafe { asm!("lea {at}, [rip + 2f]", "int 0x77", "2:", at = out(reg) at) };
    let trap = trap::log_of(0x77).next().unwrap_or_default();
    c.equal("INT 0x77 returns behind itself", trap.rip, at);
    let trap = user::run(user_int77, 0);
    c.equal("INT through a gate of the kernel's", trap.vector, vector::GP);
    c.equal_but_tcg("its error code", trap.error, 0x77 << 3 | 2, tcg_error(0x77));
}

#[unsafe(naked)]
unsafe extern "C" fn user_int77() {
    naked_asm!("int 0x77", "int 0x80")
}

fn alignment(c: &mut Check) {
    const AM: u64 = 1 << 18;
    let before = cr0();
    set_cr0(before | AM);
    let trap = user::run(user_unaligned, 0);
    set_cr0(before);
    c.equal_but_tcg(
        "an access that is not aligned",
        (trap.vector, trap.error),
        (vector::AC, 0),
        (user::DONE, 0),
    );
    let trap = user::run(user_unaligned, 0);
    c.equal("the same with no check enabled", trap.vector, user::DONE);
}

#[unsafe(naked)]
unsafe extern "C" fn user_unaligned() {
    naked_asm!("pushfq", "or dword ptr [rsp], 0x40000", "popfq", "mov eax, [rsp - 15]", "int 0x80")
}

fn gate_absent(c: &mut Check) {
    set_gate(vector::UD, 0x0e00, 0x08);
    // SAFETY: faults.
    let fault = catch(|| unsafe { asm!("ud2") });
    let fault = fault.unwrap_or_default();
    c.equal("#UD whose gate is absent", fault.vector, vector::NP);
    // EXT (bit 0) is set: the event was no software interrupt.
    c.equal_but_tcg("its error code", fault.error, 6 << 3 | 2 | 1, tcg_error(vector::UD));
    set_gate(0x77, 0x0e00, 0x08);
    // SAFETY: faults.
    let got = super::raised(|| unsafe { asm!("int 0x77") });
    let np = |error| Some((vector::NP, error));
    c.equal_but_tcg("INT whose gate is absent", got, np(0x77 << 3 | 2), np(tcg_error(0x77)));
}

fn gate_wrong(c: &mut Check) {
    let gp = |error| Some((vector::GP, error));
    set_gate(0x77, 0x8200, 0x08);
    // SAFETY: faults.
    let got = super::raised(|| unsafe { asm!("int 0x77") });
    c.equal_but_tcg("INT through an LDT's type", got, gp(0x77 << 3 | 2), gp(tcg_error(0x77)));
    set_gate(0x77, GATE, 0x10);
    // SAFETY: faults.
    c.raises("INT to a data segment", Some((vector::GP, 0x10)), || unsafe { asm!("int 0x77") });
    set_gate(0x77, GATE, 0x40);
    // SAFETY: faults.
    let got = super::raised(|| unsafe { asm!("int 0x77") });
    c.equal_but_bochs("INT to a segment that is not present", got, Some((vector::NP, 0x40)), gp(0x40));
    set_gate(0x77, GATE, 0);
    // SAFETY: faults.
    c.raises("INT to the null selector", GP, || unsafe { asm!("int 0x77") });
    trap::load_idt(0x77 * 16 + 14);
    // SAFETY: faults.
    let got = super::raised(|| unsafe { asm!("int 0x77") });
    c.equal_but_tcg("INT beyond the IDT", got, gp(0x77 << 3 | 2), gp(tcg_error(0x77)));
    trap::load_idt(4095);
}

fn double_fault(c: &mut Check) {
    // A contributory exception during the delivery of another, or of a page fault.
    set_gate(vector::GP, 0x0e00, 0x08);
    // SAFETY: faults.
    c.raises("#GP, #NP", Some((vector::DF, 0)), || unsafe { asm!("mov ds, {:x}", in(reg) 0x1000u16) });
    set_gate(vector::GP, GATE, 0x08);
    set_gate(vector::PF, 0x0e00, 0x08);
    map(50, 0, 0);
    let trap = catch(|| _ = peek::<u64>(page(50))).unwrap_or_default();
    let (got, want) = ((trap.vector, trap.error), (vector::DF, 0));
    if c.shadow {
        c.equal_but_tcg("#PF, #NP", got, want, (vector::NP, tcg_error(vector::PF)))
    } else {
        c.equal("#PF, #NP", got, want)
    }
    set_gate(vector::PF, GATE, 0x08);
    // #UD is no contributory exception: #UD, #NP is just #NP.
    set_gate(vector::UD, 0x0e00, 0x08);
    // SAFETY: faults.
    let fault = catch(|| unsafe { asm!("ud2") }).unwrap_or_default();
    c.equal("#UD, #NP", fault.vector, vector::NP);
}

/// Without a hypervisor QEMU's emulation accepts every value of CR4.
fn bare_tcg(c: &mut Check) -> bool {
    let bare = c.tcg && !is_palimpsest();
    if bare {
        c.skip("QEMU's emulation does not check CR4");
    }
    bare
}

fn injected(c: &mut Check) {
    // Exceptions that a hypervisor delivers look as those of the processor.
    if bare_tcg(c) {
        return;
    }
    let mut at = 0u64;
    let trap = catch(|| {
        // SAFETY: faults.
        unsafe {
            asm!("lea {at}, [rip + 2f]", "mov [{to}], {at}", "2: mov cr4, {bad}", at = out(reg) _, to = in(reg) &raw mut at, bad = in(reg) 0u64)
        };
    });
    let trap = trap.unwrap_or_default();
    c.equal("#GP of a write of CR4", (trap.vector, trap.error, trap.rip), (vector::GP, 0, at));
}

fn injected_double_fault(c: &mut Check) {
    if bare_tcg(c) {
        return;
    }
    set_gate(vector::GP, 0x0e00, 0x08);
    let trap = catch(|| set_cr4(0)).unwrap_or_default();
    let (got, known) = ((trap.vector, trap.error), (vector::NP, tcg_error(vector::GP)));
    c.equal_but_tcg("#GP of a write of CR4 whose gate is absent", got, (vector::DF, 0), known);
    set_gate(vector::GP, GATE, 0x08);
    c.raises("and with it", GP, || set_cr4(0));
}

fn interrupt_gate_absent(c: &mut Check) {
    const V: u8 = 0x61;
    set_gate(V, 0x0e00, 0x08);
    lapic::send_self(V);
    let trap = catch(sti).unwrap_or_default();
    c.equal("an interrupt whose gate is absent", trap.vector, vector::NP);
    c.equal_but_tcg("its error code", trap.error, u32::from(V) << 3 | 2 | 1, tcg_error(V));
    cli();
    set_gate(V, GATE, 0x08);
    window();
    let (pending, in_service) = (lapic::bit(lapic::reg::IRR, V), lapic::bit(lapic::reg::ISR, V));
    // Whether the interrupt was acknowledged before the fault is the processor's choice; it must not be lost twice.
    c.holds("it is either taken now or in service", trap::count(V) == 1 || in_service);
    c.holds("it is not pending any more", !pending);
    if in_service {
        lapic::eoi();
    }
}

/// Reads where there is nothing.
#[unsafe(naked)]
unsafe extern "C" fn user_ud2() {
    naked_asm!("ud2")
}

fn stack_absent(c: &mut Check) {
    // A push onto a stack that is not there, in delivery without a stack switch: #PF, then #DF on a stack of its own.
    map(52, 0, 0);
    let trap = catch(|| {
        // SAFETY: double-faults; the landing place restores RSP.
        unsafe { asm!("mov rsp, {}", "ud2", in(reg) page(53)) };
    });
    let trap = trap.unwrap_or_default();
    c.equal("#UD on a missing stack", (trap.vector, trap.error), (vector::DF, 0));
    map(52, scratch(0), PW);
    let trap = user::run(user_ud2, 0);
    c.equal("#UD in user mode", (trap.vector, trap.from_user), (vector::UD, true));
}

fn resume_flag(c: &mut Check) {
    // RF is set in the flags that a fault pushes, clear in those that a trap or interrupt pushes.
    // SAFETY: faults.
    let fault = catch(|| unsafe { asm!("ud2") }).unwrap_or_default();
    c.equal_but_tcg("RF pushed by a fault", fault.rflags >> 16 & 1, 1, 0);
    // SAFETY: traps.
    let trap = catch(|| unsafe { asm!("int3") }).unwrap_or_default();
    c.equal("RF pushed by a trap", trap.rflags >> 16 & 1, 0);
    if bare_tcg(c) {
        return;
    }
    let fault = catch(|| set_cr4(0)).unwrap_or_default();
    c.equal_but_tcg("RF pushed by a fault that may be a hypervisor's", fault.rflags >> 16 & 1, 1, 0);
}

fn page_faults(c: &mut Check) {
    let at = page(60);
    let mut fault = |what: &str, flags: u64, want: Option<(u8, u32)>, write: bool, exact: bool| {
        map(60, scratch(0), flags);
        let got = super::raised(|| if write { poke(at + 8, 1u64) } else { _ = peek::<u64>(at + 8) });
        if exact {
            c.equal(what, got, want);
        } else {
            // P is missing in the error code.
            c.equal_but_tcg(what, got, want, want.map(|(vector, error)| (vector, error & !1)));
        }
        c.holds("CR2", got.is_none() || cr2() == at + 8);
    };
    let pf = |error| Some((vector::PF, error));
    fault("read, not present", 0, pf(0), false, true);
    fault("write, not present", 0, pf(2), true, true);
    fault("write, read-only", P, pf(3), true, true);
    fault("read, read-only", P, None, false, true);
    fault("reserved address bit", PW | 1 << 51, pf(9), false, false);
    fault("reserved address bit, write", PWU | 1 << 51, pf(11), true, false);
    map(60, scratch(0), PW | 1 << 63);
    poke(scratch(0), 0xc3u8);
    // SAFETY: calls into a page that must not be executed.
    c.raises("execution of a no-execute page", pf(0x11), || unsafe { asm!("call {}", in(reg) at) });
    map(60, scratch(0), PW);
    // SAFETY: the page holds RET.
    c.raises("execution of a page", None, || unsafe { asm!("call {}", in(reg) at) });
}

/// Two thousand faults that no hypervisor needs to see: at an entry that is not present, and where there is no table. The
/// hypervisor's statistics tell which it saw.
fn own_page_faults(c: &mut Check) {
    map(61, scratch(0), PW);
    map(60, 0, 0);
    poke(page(61), 1u64);
    // The tables are not written any more.
    for _ in 0..16 {
        set_cr3(cr3());
        _ = peek::<u64>(page(61));
    }
    for _ in 0..1000 {
        for at in [page(60), page(0) + (5 << 30)] {
            c.equal("a read, not present", super::raised(|| _ = peek::<u64>(at)), Some((vector::PF, 0)));
        }
    }
    // Present from now on.
    c.equal("a read, present", peek::<u64>(map(60, scratch(0), PW)), 1);
}
