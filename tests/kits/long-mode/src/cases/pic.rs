//! The 8259A pair behind the local APIC's LINT0 as ExtINT: virtual wire mode.

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::trap::{self, Frame, hook, log};
use crate::machine::{is_palimpsest, lapic, pic};

pub const CASES: &[Case] = &[
    case("pic.masks", masks),
    case("pic.pit-by-extint", pit_by_extint),
    case("pic.lines", lines),
    case("pic.edges", edges),
    case("pic.priority", priority),
    case("pic.lapic-first", lapic_first),
    case("pic.lint0-masked", lint0_masked),
];

fn end(frame: &mut Frame) {
    pic::eoi(frame.vector);
}

fn set_up() {
    lapic::write(lapic::reg::LVT_LINT0, lapic::EXT_INT);
    for n in 0..16 {
        hook(pic::BASE + n, end);
    }
}

fn line(n: u16, high: bool) {
    outb(abi::testdev::IRQ + n, high.into());
}

fn masks(c: &mut Check) {
    for value in [0x5a, 0xff] {
        outb(0x21, value);
        outb(0xa1, !value);
        c.equal("masks read back", (inb(0x21), inb(0xa1)), (value, !value));
    }
    pic::set_mask(0xffff);
}

fn pit_by_extint(c: &mut Check) {
    set_up();
    outb(0x43, 0x34);
    outb(0x40, 0xa9);
    outb(0x40, 0x04);
    pic::set_mask(0xfffe);
    while trap::count(pic::BASE) < 50 {
        sti_hlt();
    }
    pic::set_mask(0xffff);
    outb(0x43, 0x30);
    c.equal("only its vector came", log().filter(|t| t.vector >= 32 && t.vector != pic::BASE).count(), 0);
    c.equal("the local APIC has nothing in service", lapic::bit(lapic::reg::ISR, pic::BASE), false);
}

fn lines(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device has no interrupt lines");
    }
    set_up();
    pic::set_mask(0);
    for n in [1, 3, 4, 5, 6, 7, 9, 10, 11, 12, 14, 15] {
        line(n, true);
        window();
        let vector = pic::BASE + n as u8;
        c.equal(format_args!("line {n}"), trap::count(vector), 1);
        line(n, false);
    }
    c.equal("nothing in service", pic::in_service(), 0);
}

/// An edge is requested until it is acknowledged, although its line has fallen: so it is on QEMU's and KVM's chips.
fn edges(c: &mut Check) {
    if c.bochs && !is_palimpsest() {
        return c.skip("this machine has no test device");
    }
    set_up();
    for n in [5, 14] {
        let vector = pic::BASE + n as u8;
        line(n, true);
        line(n, false);
        c.equal(format_args!("line {n}, masked"), trap::count(vector), 0);
        pic::set_mask(!(1 << 2 | 1 << n));
        window();
        c.equal(format_args!("line {n}, unmasked"), trap::count(vector), 1);
        // With interrupts disabled, and twice.
        line(n, true);
        line(n, false);
        line(n, true);
        line(n, false);
        window();
        window();
        c.equal(format_args!("line {n}, two edges"), trap::count(vector), 2);
        pic::set_mask(0xffff);
    }
    c.equal("no spurious one", trap::count(pic::BASE + 7) + trap::count(pic::BASE + 15), 0);
    c.equal("nothing in service", pic::in_service(), 0);
}

fn priority(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device has no interrupt lines");
    }
    set_up();
    let lines = [5, 3, 10, 4];
    pic::set_mask(0xffff);
    for n in lines {
        line(n, true);
    }
    pic::set_mask(!(1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 10));
    c.equal("requests of the master", pic::requests() & 0x3c, 0x3c);
    for _ in 0..4 {
        window();
    }
    let mut got = [0; 4];
    for (to, trap) in got.iter_mut().zip(log().filter(|t| t.vector >= 32)) {
        *to = trap.vector - pic::BASE;
    }
    c.equal("order of lines", got, [10, 3, 4, 5]);
    for n in lines {
        line(n, false);
    }
}

fn lapic_first(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device has no interrupt lines");
    }
    set_up();
    pic::set_mask(!(1 << 5));
    line(5, true);
    // TPR does not hold ExtINT; it holds the local APIC's own.
    set_cr8(15);
    lapic::send_self(0x61);
    window();
    window();
    c.equal("ExtINT and the other with CR8 = 15", (trap::count(pic::BASE + 5), trap::count(0x61)), (1, 0));
    set_cr8(0);
    window();
    c.equal("the other with CR8 = 0", trap::count(0x61), 1);
    line(5, false);
}

fn lint0_masked(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("this machine's test device has no interrupt lines");
    }
    set_up();
    lapic::write(lapic::reg::LVT_LINT0, lapic::MASKED | lapic::EXT_INT);
    pic::set_mask(!(1 << 5));
    line(5, true);
    window();
    c.equal("LINT0 masked", trap::count(pic::BASE + 5), 0);
    lapic::write(lapic::reg::LVT_LINT0, lapic::EXT_INT);
    window();
    c.equal("LINT0 open", trap::count(pic::BASE + 5), 1);
    line(5, false);
}
