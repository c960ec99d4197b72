//! Interrupt commands, and NMIs (AMD APM 2, 16.5 and 8.2.3).

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::lapic::{self, reg};
use crate::machine::trap::{self, Frame, hook, only_record, vector};
use crate::machine::{Cell, is_intel, is_palimpsest, user};

pub const CASES: &[Case] = &[
    case("ipi.destinations", destinations),
    case("ipi.x2apic", x2apic),
    case("ipi.illegal-vector", illegal_vector),
    case("ipi.disabled", disabled),
    case("ipi.nmi", nmi),
    case("ipi.nmi-blocked", nmi_blocked),
    case("ipi.nmi-blocked-exits", nmi_blocked_exits),
    case("ipi.nmi-iret-user", nmi_iret_user),
    case("ipi.nmi-hlt", nmi_hlt),
    case("ipi.nmi-after-iret", nmi_after_iret),
    case("ipi.nmi-iret-faults", nmi_iret_faults),
    case("ipi.nmi-single-step", nmi_single_step),
];

const V: u8 = 0x71;
const LOGICAL: u64 = 1 << 11;
const ALL: u64 = 2 << 18;
const OTHERS: u64 = 3 << 18;

/// How many interrupts a command brings.
fn sent(command: u64, destination: u32) -> u32 {
    let before = trap::count(V);
    lapic::send(command | u64::from(V), destination);
    window();
    trap::count(V) - before
}

fn destinations(c: &mut Check) {
    let me = lapic::id();
    c.equal("to itself", sent(lapic::TO_SELF, 0), 1);
    c.equal("by physical id", sent(0, me), 1);
    c.equal("to all", sent(ALL, 0), 1);
    c.equal("to all others", sent(OTHERS, 0), 0);
    c.equal("physical broadcast", sent(0, 0xff), 1);
    c.equal("to another id", sent(0, me + 1), 0);
    lapic::write(reg::DFR, u32::MAX);
    lapic::write(reg::LDR, 0x04 << 24);
    c.equal("flat logical, among others", sent(LOGICAL, 0x06), 1);
    c.equal("flat logical, not this", sent(LOGICAL, 0x02), 0);
    c.equal("lowest priority among one", sent(LOGICAL | 1 << 8, 0x04), 1);
    lapic::write(reg::DFR, 0x0fff_ffff);
    lapic::write(reg::LDR, 0x24 << 24);
    c.equal("cluster logical", sent(LOGICAL, 0x24), 1);
    c.equal("cluster logical, another cluster", sent(LOGICAL, 0x14), 0);
    lapic::write(reg::DFR, u32::MAX);
    lapic::write(reg::LDR, 0);
}

fn x2apic(c: &mut Check) {
    if c.lacks_x2apic() {
        return;
    }
    lapic::set_x2(true);
    wrmsr(0x80f, 0x1ff);
    let me = lapic::id();
    c.equal("to itself", sent(lapic::TO_SELF, 0), 1);
    c.equal("by physical id", sent(0, me), 1);
    c.equal("physical broadcast", sent(0, u32::MAX), 1);
    c.equal("0xff is an id like others", sent(0, 0xff), 0);
    let ldr = rdmsr(0x80d) as u32;
    c.equal("logical", sent(LOGICAL, ldr), 1);
    c.equal("logical, not this", sent(LOGICAL, ldr & !0xffff | (!ldr & 0xffff)), 0);
    wrmsr(0x83f, V.into());
    let before = trap::count(V);
    window();
    c.equal("by the self-IPI register", trap::count(V) - before, 1);
}

fn illegal_vector(c: &mut Check) {
    if c.tcg && !is_palimpsest() {
        return c.skip("QEMU's emulation delivers vectors below 16");
    }
    lapic::write(reg::ESR, 0);
    lapic::send_self(5);
    lapic::write(reg::ESR, 0);
    window();
    c.holds("ESR tells of the illegal vector", lapic::read(reg::ESR) & 0x60 != 0);
    c.equal("nothing came", trap::log().count(), 0);
}

fn disabled(c: &mut Check) {
    lapic::send_self(V);
    lapic::write(reg::SVR, lapic::SPURIOUS.into());
    lapic::write(reg::LVT_TIMER, 0x30);
    let masked = lapic::read(reg::LVT_TIMER) & lapic::MASKED != 0;
    // The emulated APIC of QEMU lets them be opened.
    c.holds("LVT entries are masked by software disable", masked || !is_palimpsest());
    lapic::write(reg::SVR, 0x100 | u32::from(lapic::SPURIOUS));
    window();
    c.equal("what was pending comes after all", trap::count(V), 1);
}

fn nmi(c: &mut Check) {
    hook(vector::NMI, only_record);
    for round in 1..=100 {
        lapic::send(lapic::NMI, lapic::id());
        c.equal("NMIs, IF clear", trap::count(vector::NMI), round);
    }
}

static DEPTH: Cell<u32> = Cell::new(0);
static DEEPEST: Cell<u32> = Cell::new(0);

/// Sends two more NMIs from within the first, which may come only after IRET, and as one.
fn nmi_handler(_: &mut Frame) {
    DEPTH.set(DEPTH.get() + 1);
    DEEPEST.set(DEEPEST.get().max(DEPTH.get()));
    if trap::count(vector::NMI) == 1 {
        lapic::send(lapic::NMI, lapic::id());
        lapic::send(lapic::NMI, lapic::id());
        for _ in 0..20 {
            cpuid(0, 0);
        }
    }
    DEPTH.set(DEPTH.get() - 1);
}

fn nmi_blocked(c: &mut Check) {
    hook(vector::NMI, nmi_handler);
    DEPTH.set(0);
    DEEPEST.set(0);
    lapic::send(lapic::NMI, lapic::id());
    cpuid(0, 0);
    c.equal("handlers at the same time", DEEPEST.get(), 1);
    c.equal("NMIs: the first, and the two as one", trap::count(vector::NMI), 2);
    lapic::send(lapic::NMI, lapic::id());
    c.equal("NMIs afterwards", trap::count(vector::NMI), 3);
}

fn nmi_blocked_exits(c: &mut Check) {
    // An interrupt within the NMI handler: its IRET ends the blocking (AMD APM 2, 8.2.3: any IRET does).
    hook(vector::NMI, |_| {
        DEPTH.set(DEPTH.get() + 1);
        DEEPEST.set(DEEPEST.get().max(DEPTH.get()));
        if trap::count(vector::NMI) == 1 {
            lapic::send(lapic::NMI, lapic::id());
            lapic::send_self(V);
            window();
            cpuid(0, 0);
        }
        DEPTH.set(DEPTH.get() - 1);
    });
    DEPTH.set(0);
    DEEPEST.set(0);
    lapic::send(lapic::NMI, lapic::id());
    cpuid(0, 0);
    c.equal("NMIs", trap::count(vector::NMI), 2);
    c.equal("interrupts", trap::count(V), 1);
    c.equal("the second came within the first", DEEPEST.get(), 2);
}

/// Reads a variable of the kernel's until it changes.
#[unsafe(naked)]
unsafe extern "C" fn user_wait() {
    core::arch::naked_asm!("2: pause", "cmp dword ptr [rdi], 0", "je 2b", "int 0x80")
}

static SEEN: Cell<u32> = Cell::new(0);

fn nmi_iret_user(c: &mut Check) {
    // A timer's handler sends the NMI while user mode runs; both IRETs return to it.
    hook(vector::NMI, |_| SEEN.set(1));
    hook(V, |_| {
        lapic::eoi();
        lapic::send(lapic::NMI, lapic::id());
    });
    SEEN.set(0);
    lapic::write(reg::LVT_TIMER, V.into());
    lapic::write(reg::INITIAL_COUNT, 500_000);
    // User mode inherits the flags.
    sti();
    let trap = user::run(user_wait, SEEN.ptr() as u64);
    cli();
    c.equal("user mode goes on", trap.vector, user::DONE);
    c.equal("NMIs", trap::count(vector::NMI), 1);
}

fn nmi_hlt(c: &mut Check) {
    // The NMI is sent by a timer's handler, whose IRET leads behind HLT.
    hook(vector::NMI, only_record);
    hook(V, |_| {
        lapic::eoi();
        lapic::send(lapic::NMI, lapic::id());
    });
    lapic::write(reg::LVT_TIMER, V.into());
    for round in 1..=50 {
        lapic::write(reg::INITIAL_COUNT, 20_000);
        while trap::count(V) < round {
            sti_hlt();
        }
        c.equal("NMIs", trap::count(vector::NMI), round);
    }
}

/// The number of handlers, from the first on, that send the next NMI.
const ROW: u32 = 50;

fn nmi_after_iret(c: &mut Check) {
    // Nothing exits between the handlers: each comes before the first instruction that the last one's IRET leads to.
    hook(vector::NMI, |_| {
        if trap::count(vector::NMI) % ROW != 0 {
            lapic::send(lapic::NMI, lapic::id());
        }
    });
    let mut counted = 0u64;
    lapic::send(lapic::NMI, lapic::id());
    // SAFETY: counts.
    unsafe { core::arch::asm!(".rept 64", "inc {0}", ".endr", inout(reg) counted) };
    c.equal("instructions afterwards", counted, 64);
    c.equal("NMIs in a row", trap::count(vector::NMI), ROW);
    let mut places = trap::log_of(vector::NMI).map(|trap| trap.rip);
    let first = places.next();
    c.equal("of which at another place than the first", places.filter(|rip| Some(*rip) != first).count(), 0);
    // The same in user mode, which is interrupted anywhere.
    hook(V, |_| {
        lapic::eoi();
        lapic::send(lapic::NMI, lapic::id());
    });
    SEEN.set(0);
    hook(vector::NMI, |_| match trap::count(vector::NMI) % ROW {
        0 => SEEN.set(1),
        _ => lapic::send(lapic::NMI, lapic::id()),
    });
    lapic::write(reg::LVT_TIMER, V.into());
    lapic::write(reg::INITIAL_COUNT, 500_000);
    sti();
    let ended = user::run(user_wait, SEEN.ptr() as u64);
    cli();
    c.equal("user mode goes on", ended.vector, user::DONE);
    c.equal("NMIs in a row there", trap::count(vector::NMI), 2 * ROW);
    let user = || trap::log_of(vector::NMI).filter(|trap| trap.from_user);
    let first = user().next().map(|trap| trap.rip);
    c.equal(
        "of which at another place than the first",
        user().filter(|trap| Some(trap.rip) != first).count(),
        0,
    );
}

static FAULTED: Cell<[u64; 3]> = Cell::new([0; 3]);

fn nmi_iret_faults(c: &mut Check) {
    // The handler's IRET finds a code segment beyond the GDT. AMD's processors unblock NMIs when an IRET has completed, Intel's
    // when it is executed (SDM 3, 26.3): before the first instruction of the fault's handler.
    const BEYOND: u64 = 0x1008;
    hook(vector::NMI, |frame| {
        if trap::count(vector::NMI) == 1 {
            lapic::send(lapic::NMI, lapic::id());
            frame.cs = BEYOND;
        }
    });
    hook(vector::GP, |frame| {
        FAULTED.set([frame.error, frame.rip, frame.rflags]);
        SEEN.set(trap::count(vector::NMI));
        // The code segment of the frame that the IRET found.
        poke(frame.rsp + 8, 0x08);
    });
    SEEN.set(0);
    lapic::send(lapic::NMI, lapic::id());
    let [error, iret, flags] = FAULTED.get();
    c.equal("#GP", (trap::count(vector::GP), error), (1, BEYOND));
    c.equal("its TF", flags >> 8 & 1, 0);
    c.equal("NMIs", trap::count(vector::NMI), 2);
    let second = trap::log_of(vector::NMI).nth(1).map(|trap| trap.rip);
    if is_intel() {
        c.equal("NMIs at the time of the #GP", SEEN.get(), 2);
    } else {
        c.equal("NMIs at the time of the #GP", SEEN.get(), 1);
        c.equal("where the second one came", second, Some(iret));
    }
}

/// Executes 16 instructions with TF, the first of which sends an NMI.
fn single_step_nmi() {
    let flags = 1u64 << 8 | 2;
    let quiet = 2u64;
    // SAFETY: the handlers return; the store commands the local APIC.
    unsafe {
        core::arch::asm!(
            "push {quiet}",
            "push {flags}",
            "popfq",
            "mov dword ptr [{icr}], {command:e}",
            ".rept 14",
            "nop",
            ".endr",
            "popfq",
            icr = in(reg) lapic::PAGE + u64::from(reg::ICR),
            command = in(reg) lapic::NMI,
            quiet = in(reg) quiet,
            flags = in(reg) flags,
        );
    }
}

fn nmi_single_step(c: &mut Check) {
    if lapic::is_x2() {
        return c.skip("the local APIC is in x2APIC mode");
    }
    hook(vector::DB, only_record);
    hook(vector::NMI, |_| {
        if trap::count(vector::NMI) < 3 {
            lapic::send(lapic::NMI, lapic::id());
        }
    });
    lapic::write(reg::ICR_HIGH, lapic::id() << 24);
    single_step_nmi();
    c.equal("NMIs", trap::count(vector::NMI), 3);
    // The handlers do not step: TF is clear there, and their IRETs set it again for the instruction after them.
    c.equal("single steps", trap::count(vector::DB), 16);
    let with = |steps: fn(&trap::Trap) -> bool| trap::log_of(vector::DB).filter(steps).count();
    c.equal("of which with BS", with(|trap| trap.dr6 >> 14 & 1 != 0), 16);
    c.equal("before the last, which has loaded TF", with(|trap| trap.rflags >> 8 & 1 != 0), 15);
    set_dr6(0xffff_0ff0);
}
