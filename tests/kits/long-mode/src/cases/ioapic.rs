//! The I/O APIC, driven through the test device's interrupt lines at ports 0x2000 + n.

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::ioapic::{LEVEL, MASKED, REMOTE_IRR, entry, pins, read, route, write};
use crate::machine::trap::{self, Frame, hook, only_record, vector};
use crate::machine::{Cell, is_palimpsest, lapic};

pub const CASES: &[Case] = &[
    case("ioapic.registers", registers),
    case("ioapic.edge", edge),
    case("ioapic.edge-masked", edge_masked),
    case("ioapic.level", level),
    case("ioapic.level-again", level_again),
    case("ioapic.level-masked", level_masked),
    case("ioapic.all-pins", all_pins),
    case("ioapic.nmi", nmi),
    case("ioapic.self-lowering", self_lowering),
];

const V: u8 = 0x61;

/// Drives an interrupt line.
fn line(n: u16, high: bool) {
    outb(abi::testdev::IRQ + n, high.into());
}

/// Whether there are lines to drive.
fn can_drive(c: &mut Check) -> bool {
    if !is_palimpsest() {
        c.skip("this machine's test device has no interrupt lines");
    }
    is_palimpsest()
}

fn registers(c: &mut Check) {
    c.holds("version", matches!(read(1) & 0xff, 0x11 | 0x20));
    c.equal("pins", pins(), 24);
    write(0x10 + 2 * 20, MASKED | LEVEL | REMOTE_IRR | 1 << 12 | 0x77);
    c.equal("read-only bits of an entry", entry(20), MASKED | LEVEL | 0x77);
    write(0x11 + 2 * 20, 0xff00_0000);
    c.equal("destination", read(0x11 + 2 * 20) & 0xff00_0000, 0xff00_0000);
}

fn edge(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    route(10, V.into());
    line(10, true);
    window();
    c.equal("a rising edge", trap::count(V), 1);
    line(10, true);
    window();
    c.equal("a line that stays high", trap::count(V), 1);
    line(10, false);
    line(10, true);
    window();
    c.equal("the next edge", trap::count(V), 2);
    c.holds("edge in TMR", !lapic::bit(lapic::reg::TMR, V));
    c.equal("no remote IRR", entry(10) & REMOTE_IRR, 0);
    line(10, false);
}

fn edge_masked(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    route(10, MASKED | u32::from(V));
    line(10, true);
    window();
    c.equal("masked", trap::count(V), 0);
    route(10, V.into());
    window();
    c.equal("an edge that came while masked is lost", trap::count(V), 0);
    line(10, false);
}

/// Counts and lowers the line, then ends the interrupt.
fn lower_and_end(_: &mut Frame) {
    line(11, false);
    lapic::eoi();
}

fn level(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    route(11, LEVEL | u32::from(V));
    hook(V, only_record);
    line(11, true);
    window();
    c.equal("a high line", trap::count(V), 1);
    c.holds("level in TMR", lapic::bit(lapic::reg::TMR, V));
    c.equal("remote IRR in service", entry(11) & REMOTE_IRR, REMOTE_IRR);
    window();
    c.equal("nothing more before the EOI", trap::count(V), 1);
    line(11, false);
    lapic::eoi();
    c.equal("no remote IRR after the EOI", entry(11) & REMOTE_IRR, 0);
    window();
    c.equal("nothing more after the EOI", trap::count(V), 1);
}

fn level_again(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    route(11, LEVEL | u32::from(V));
    hook(V, |frame| {
        if trap::count(V) >= 3 {
            lower_and_end(frame);
        } else {
            lapic::eoi();
        }
    });
    line(11, true);
    window();
    window();
    window();
    window();
    c.equal("a line that stays high over the EOI comes again", trap::count(V), 3);
}

fn level_masked(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    route(11, LEVEL | MASKED | u32::from(V));
    hook(V, lower_and_end);
    line(11, true);
    window();
    c.equal("masked", trap::count(V), 0);
    route(11, LEVEL | u32::from(V));
    window();
    c.equal("unmasked while high", trap::count(V), 1);
}

fn all_pins(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    // Mode 0 without a count: the timer's output, which shares line 0, stays low. A BIOS leaves it ticking.
    outb(0x43, 0x30);
    for pin in 0..24 {
        // ISA IRQ 0 arrives at pin 2.
        let at = if pin == 0 { 2 } else { pin };
        if pin == 2 {
            continue;
        }
        route(at, 0x80 + pin);
        let v = 0x80 + pin as u8;
        if v == crate::machine::user::DONE {
            trap::set_gate(v, trap::GATE, 0x08);
        }
        hook(v, |_| lapic::eoi());
        line(pin as u16, true);
        window();
        c.equal(format_args!("line {pin}"), trap::count(v), 1);
        line(pin as u16, false);
        route(at, MASKED);
    }
}

fn nmi(c: &mut Check) {
    if !can_drive(c) {
        return;
    }
    hook(vector::NMI, only_record);
    route(12, lapic::NMI as u32);
    line(12, true);
    cpuid(0, 0);
    c.equal("NMI by a pin", trap::count(vector::NMI), 1);
    line(12, false);
}

static AT: Cell<u32> = Cell::new(0);

fn self_lowering(c: &mut Check) {
    // A line that falls before the interrupt is taken: the request stands, remote IRR until the EOI.
    if !can_drive(c) {
        return;
    }
    route(11, LEVEL | u32::from(V));
    line(11, true);
    line(11, false);
    AT.set(entry(11));
    window();
    c.equal("remote IRR while it is pending", AT.get() & REMOTE_IRR, REMOTE_IRR);
    c.equal("the interrupt", trap::count(V), 1);
    c.equal("remote IRR at the end", entry(11) & REMOTE_IRR, 0);
}
