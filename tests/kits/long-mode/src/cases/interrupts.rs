//! When interrupts are taken: the interrupt flag, its shadows, HLT, and priorities (AMD APM 2, 8.2, 8.6 and 16.6).

use core::arch::asm;

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::trap::{self, Frame, Trap, hook, log_of};
use crate::machine::{Cell, lapic, time};

pub const CASES: &[Case] = &[
    case("interrupts.flag-holds", flag_holds),
    case("interrupts.sti-shadow", sti_shadow),
    case("interrupts.sti-shadow-exits", sti_shadow_exits),
    case("interrupts.mov-ss-shadow", mov_ss_shadow),
    case("interrupts.sti-cli", sti_cli),
    case("interrupts.popf", popf),
    case("interrupts.sti-hlt", sti_hlt_wakes),
    case("interrupts.sti-hlt-pending", sti_hlt_pending),
    case("interrupts.hlt-rip", hlt_rip),
    case("interrupts.priority", priority),
    case("interrupts.priority-tpr", priority_tpr),
    case("interrupts.cr8-lowers-itself", cr8_lowers),
    case("interrupts.nested", nested),
    case("interrupts.same-class", same_class),
    case("interrupts.x2apic", x2apic),
];

const V: u8 = 0x51;

/// Runs code in which interrupt `V` is pending, that names the place where it must be taken with label 3.
macro_rules! taken_at {
    ($c:ident, $what:expr, [$($code:literal),+] $(, $($operands:tt)*)?) => {{
        lapic::send_self(V);
        $c.holds("the interrupt is pending", lapic::bit(lapic::reg::IRR, V));
        let before = trap::count(V);
        let at: u64;
        // SAFETY: the code under test leaves IF clear.
        unsafe { asm!("lea {at}, [rip + 3f]", $($code),+, at = out(reg) at, $($($operands)*)?); }
        cli();
        $c.equal(concat!("interrupts taken: ", $what), trap::count(V) - before, 1);
        let trap: Trap = log_of(V).last().unwrap_or_default();
        $c.equal(concat!("place: ", $what), trap.rip, at);
    }};
}

fn flag_holds(c: &mut Check) {
    lapic::send_self(V);
    let end = rdtsc() + time::micros(2000);
    while rdtsc() < end {
        cpuid(0, 0);
    }
    c.equal("taken with IF clear", trap::count(V), 0);
    c.holds("it is pending", lapic::bit(lapic::reg::IRR, V));
    window();
    c.equal("taken with IF set", trap::count(V), 1);
    c.holds("it is pending no more", !lapic::bit(lapic::reg::IRR, V));
    c.holds("its service has ended", !lapic::bit(lapic::reg::ISR, V));
}

fn sti_shadow(c: &mut Check) {
    taken_at!(c, "after STI and one instruction", ["sti", "nop", "3: cli"]);
    taken_at!(c, "after STI and an INC", ["sti", "inc eax", "3: nop", "cli"], out("eax") _);
    taken_at!(c, "after STI and a load", ["sti", "mov rax, [rsp]", "3: nop", "cli"], out("rax") _);
    taken_at!(c, "STI twice shadows once", ["sti", "sti", "3: nop", "cli"]);
}

fn sti_shadow_exits(c: &mut Check) {
    // The instruction in the shadow is one that a hypervisor executes.
    taken_at!(c, "after STI and OUT", ["sti", "out 0x80, al", "3: nop", "cli"], in("al") 0_u8);
    taken_at!(c, "after STI and IN", ["sti", "in al, 0x80", "3: nop", "cli"], out("al") _);
    taken_at!(c, "after STI and RDMSR", ["sti", "rdmsr", "3: nop", "cli"], in("ecx") 0x277, out("eax") _, out("edx") _);
    taken_at!(c, "after STI and CPUID", ["push rbx", "sti", "cpuid", "3: nop", "cli", "pop rbx"],
              inout("eax") 0 => _, inout("ecx") 0 => _, out("edx") _);
    taken_at!(c, "after STI and a read of a device", ["sti", "mov eax, [rdi]", "3: nop", "cli"],
              in("rdi") lapic::PAGE + 0x30, out("eax") _);
}

fn mov_ss_shadow(c: &mut Check) {
    // Of several instructions in a row that have a shadow only the first is guaranteed to: the interrupt comes after MOV SS,
    // or one instruction later.
    lapic::send_self(V);
    let (at, later): (u64, u64);
    // SAFETY: loads SS with what it holds.
    unsafe {
        asm!("lea {at}, [rip + 2f]", "lea {later}, [rip + 3f]", "mov ax, ss", "sti", "mov ss, ax", "2: out 0x80, al", "3: nop",
             "cli", at = out(reg) at, later = out(reg) later, out("rax") _);
    }
    let got = log_of(V).next().unwrap_or_default().rip;
    c.holds("taken after MOV SS in the shadow of STI", got == at || got == later);
    c.equal("interrupts taken", trap::count(V), 1);
    for _ in 0..100 {
        // SAFETY: as above.
        unsafe { asm!("mov ax, ss", "sti", "nop", "mov ss, ax", "out 0x80, al", "cli", out("rax") _) };
    }
    c.equal("none more", trap::count(V), 1);
}

fn sti_cli(c: &mut Check) {
    lapic::send_self(V);
    for _ in 0..200 {
        // SAFETY: STI's shadow covers CLI.
        unsafe { asm!("sti", "cli", "nop", options(nostack)) };
    }
    // An exit right after a shadow must not take it for an open one.
    for _ in 0..50 {
        // SAFETY: as above.
        unsafe { asm!("sti", "cli", "out 0x80, al", options(nostack)) };
    }
    c.equal("taken between STI and CLI", trap::count(V), 0);
    window();
    c.equal("taken afterwards", trap::count(V), 1);
}

fn popf(c: &mut Check) {
    // POPF has no shadow.
    taken_at!(c, "at once after POPF", ["pushfq", "or qword ptr [rsp], 0x200", "popfq", "3: nop", "cli"]);
}

fn sti_hlt_wakes(c: &mut Check) {
    const ROUNDS: u32 = 4000;
    lapic::write(lapic::reg::LVT_TIMER, V.into());
    lapic::write(lapic::reg::DIVIDE, 0b1011);
    let mut state = 0x1234_5678_u32;
    for round in 1..=ROUNDS {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // From deadlines that pass before STI, over those that meet STI and HLT, to long ones.
        let ticks = match state >> 30 {
            0 => 1,
            1 => 1 + (state >> 8 & 0xff),
            2 => 1 + (state >> 8 & 0xfff),
            _ => 1 + (state >> 8 & 0x3fff),
        };
        lapic::write(lapic::reg::INITIAL_COUNT, ticks);
        for _ in 0..state >> 4 & 0x3f {
            core::hint::spin_loop();
        }
        while trap::count(V) < round {
            sti_hlt();
        }
        if trap::count(V) != round {
            return c.equal("interrupts so far", trap::count(V), round);
        }
    }
    c.equal("interrupts", trap::count(V), ROUNDS);
}

fn sti_hlt_pending(c: &mut Check) {
    // The interrupt is there before STI: HLT must end at once.
    for round in 1..=1000 {
        lapic::send_self(V);
        sti_hlt();
        if trap::count(V) != round {
            return c.equal("interrupts so far", trap::count(V), round);
        }
    }
}

fn hlt_rip(c: &mut Check) {
    lapic::write(lapic::reg::LVT_TIMER, V.into());
    lapic::write(lapic::reg::INITIAL_COUNT, 2_000_000);
    let at: u64;
    // SAFETY: the timer ends HLT.
    unsafe { asm!("lea {at}, [rip + 3f]", "sti", "hlt", "3: cli", at = out(reg) at) };
    let trap = log_of(V).next().unwrap_or_default();
    c.equal("an interrupt returns behind HLT", trap.rip, at);
}

/// Raises vectors of three classes with IF clear.
fn raise(vectors: &[u8]) {
    for &v in vectors {
        lapic::send_self(v);
    }
}

fn order(c: &mut Check, what: &str, want: &[u8]) {
    let mut n = 0;
    for (i, got) in trap::log().filter(|t| t.vector >= 32).enumerate() {
        c.equal(format_args!("{what}: vector {i}"), got.vector, want.get(i).copied().unwrap_or(0));
        n = i + 1;
    }
    c.equal(format_args!("{what}: number of interrupts"), n, want.len());
}

fn priority(c: &mut Check) {
    raise(&[0x41, 0x63, 0x52, 0x60]);
    window();
    order(c, "highest first", &[0x63, 0x60, 0x52, 0x41]);
}

fn priority_tpr(c: &mut Check) {
    raise(&[0x41, 0x63, 0x52, 0x60, 0x71]);
    set_cr8(6);
    window();
    order(c, "above class 6", &[0x71]);
    c.holds("a blocked vector stays pending", lapic::bit(lapic::reg::IRR, 0x63));
    c.equal("PPR", lapic::read(lapic::reg::PPR), 0x60);
    set_cr8(5);
    window();
    order(c, "above class 5", &[0x71, 0x63, 0x60]);
    lapic::write(lapic::reg::TPR, 0x4f);
    window();
    order(c, "TPR written by the APIC's register", &[0x71, 0x63, 0x60, 0x52]);
    set_cr8(15);
    window();
    order(c, "nothing passes class 15", &[0x71, 0x63, 0x60, 0x52]);
    set_cr8(0);
    window();
    order(c, "all", &[0x71, 0x63, 0x60, 0x52, 0x41]);
}

fn cr8_lowers(c: &mut Check) {
    // With IF set, the move to CR8 itself lets the interrupt in.
    set_cr8(15);
    raise(&[0x52]);
    let at: u64;
    // SAFETY: lowers the priority.
    unsafe {
        asm!("lea {at}, [rip + 3f]", "sti", "nop", "nop", "mov cr8, {zero}", "3: nop", "nop", "cli", at = out(reg) at,
             zero = in(reg) 0u64);
    }
    c.equal("interrupts", trap::count(0x52), 1);
    c.equal("place", log_of(0x52).next().unwrap_or_default().rip, at);
}

static EVENTS: [Cell<u8>; 16] = [const { Cell::new(0) }; 16];
static EVENT_COUNT: Cell<usize> = Cell::new(0);

fn event(e: u8) {
    let n = EVENT_COUNT.get();
    if n < 16 {
        EVENTS[n].set(e);
        EVENT_COUNT.set(n + 1);
    }
}

fn events(c: &mut Check, want: &[u8]) {
    let mut got = [0; 16];
    let n = EVENT_COUNT.get();
    for (to, from) in got.iter_mut().zip(&EVENTS[..n]) {
        *to = from.get();
    }
    c.equal("order of events", &got[..n], want);
    EVENT_COUNT.set(0);
}

/// A handler that raises a lower and a higher vector, opens interrupts, and ends its own service last.
fn outer(_: &mut Frame) {
    event(0x50);
    lapic::send_self(0x40);
    lapic::send_self(0x60);
    window();
    event(0x51);
    lapic::eoi();
    // The lower one is still held, by IF.
    event(0x52);
}

fn inner(frame: &mut Frame) {
    event(frame.vector as u8);
    lapic::eoi();
}

fn nested(c: &mut Check) {
    hook(0x50, outer);
    hook(0x60, inner);
    hook(0x40, inner);
    EVENT_COUNT.set(0);
    lapic::send_self(0x50);
    window();
    events(c, &[0x50, 0x60, 0x51, 0x52, 0x40]);
}

/// A handler with a neighbour of its own class pending: that waits for the EOI, although IF is set.
fn class_outer(_: &mut Frame) {
    event(1);
    lapic::send_self(0x5f);
    window();
    event(2);
    lapic::eoi();
    window();
    event(3);
}

fn same_class(c: &mut Check) {
    hook(0x51, class_outer);
    hook(0x5f, inner);
    EVENT_COUNT.set(0);
    lapic::send_self(0x51);
    window();
    events(c, &[1, 2, 0x5f, 3]);
}

fn x2apic(c: &mut Check) {
    if c.lacks_x2apic() {
        return;
    }
    lapic::set_x2(true);
    wrmsr(0x80f, 0x1ff);
    priority_tpr(c);
    nested(c);
    sti_hlt_pending(c);
}
