//! INS and OUTS: repeated, backwards, over page ends, and interrupted by faults.

use core::arch::asm;

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::is_palimpsest;
use crate::machine::paging::{self, PW, map, scratch, window as page};
use crate::machine::trap::{self, vector};

pub const CASES: &[Case] = &[
    case("strings.ins", ins),
    case("strings.outs", outs),
    case("strings.backwards", backwards),
    case("strings.page-crossing", page_crossing),
    case("strings.fault", fault),
    case("strings.address-size", address_size),
    case("strings.long", long),
];

/// The port with memory that the cases use is the latch of our test device.
fn has_latch(c: &mut Check) -> bool {
    if !is_palimpsest() {
        c.skip("this machine's test device has no latch");
    }
    is_palimpsest()
}

/// `rep ins` or `rep outs` with these registers; returns what RDI or RSI and RCX hold afterwards.
macro_rules! rep {
    ($code:literal, $pointer:tt, $at:expr, $count:expr) => {{
        let (at, left): (u64, u64);
        // SAFETY: the code under test.
        unsafe {
            asm!($code, "cld", inout($pointer) $at => at, inout("rcx") $count as u64 => left, in("dx") 0xe0_u16);
        }
        (at, left)
    }};
}

fn ins(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    let to = scratch(0);
    outl(0xe0, 0x4433_2211);
    c.equal("REP INSB", rep!("rep insb", "rdi", to, 5), (to + 5, 0));
    c.equal("bytes", peek::<u64>(to), 0x11_1111_1111);
    c.equal("REP INSW", rep!("rep insw", "rdi", to, 3), (to + 6, 0));
    c.equal("words", peek::<u64>(to), 0x2211_2211_2211);
    c.equal("REP INSD", rep!("rep insd", "rdi", to, 3), (to + 12, 0));
    c.equal(
        "longs",
        [peek::<u32>(to), peek(to + 4), peek(to + 8), peek(to + 12)],
        [0x4433_2211, 0x4433_2211, 0x4433_2211, 0],
    );
    c.equal("REP with count 0", rep!("rep insd", "rdi", to + 64, 0), (to + 64, 0));
    c.equal("without REP", rep!("insb", "rdi", to + 64, 7), (to + 65, 7));
    c.equal("its byte", peek::<u16>(to + 64), 0x11);
}

fn outs(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    let from = scratch(0);
    for i in 0..8 {
        poke(from + i * 4, 0x1111_1111 * (i as u32 + 1));
    }
    c.equal("REP OUTSD", rep!("rep outsd", "rsi", from, 6), (from + 24, 0));
    c.equal("the last long", inl(0xe0), 0x6666_6666);
    poke(from, 0xddcc_bbaa_u32);
    c.equal("REP OUTSB", rep!("rep outsb", "rsi", from, 3), (from + 3, 0));
    c.equal("the last byte", inl(0xe0), 0x6666_66cc);
    c.equal("REP OUTSW", rep!("rep outsw", "rsi", from, 2), (from + 4, 0));
    c.equal("the last word", inl(0xe0), 0x6666_ddcc);
}

fn backwards(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    let at = scratch(0) + 64;
    outl(0xe0, 0x4433_2211);
    c.equal("STD, REP INSW", rep!("std; rep insw", "rdi", at, 3), (at - 6, 0));
    c.equal(
        "words",
        [peek::<u16>(at - 6), peek(at - 4), peek(at - 2), peek(at), peek(at + 2)],
        [0, 0x2211, 0x2211, 0x2211, 0],
    );
    poke(at - 8, 0x0102_0304_0506_0708_u64);
    c.equal("STD, REP OUTSB", rep!("std; rep outsb", "rsi", at - 1, 8), (at - 9, 0));
    c.equal("the last byte is the lowest", inb(0xe0), 8);
}

fn page_crossing(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    // Two neighbours of the window lie apart in memory.
    let (first, second) = (scratch(4), scratch(2));
    map(8, first, PW);
    map(9, second, PW);
    outl(0xe0, 0x4433_2211);
    let at = page(9) - 6;
    c.equal("REP INSD over the end of a page", rep!("rep insd", "rdi", at, 3), (at + 12, 0));
    c.equal(
        "the end of the first page",
        [peek::<u32>(first + 4090), peek::<u32>(first + 4092) >> 16],
        [0x4433_2211, 0x2211],
    );
    c.equal("the start of the second page", peek::<u64>(second), 0x4433_2211_4433);
    poke(first + 4092, 0xaabb_ccdd_u32);
    poke(second, 0x1122_3344_u32);
    let at = page(9) - 2;
    c.equal("REP OUTSD over the end of a page", rep!("rep outsd", "rsi", at, 1), (at + 4, 0));
    c.equal("the long", inl(0xe0), 0x3344_aabb);
}

fn fault(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    // The third iteration meets a page that is not there; after the handler has mapped it, the rest follows.
    map(8, scratch(4), PW);
    paging::map(9, 0, 0);
    outl(0xe0, 0x4433_2211);
    trap::hook(vector::PF, |_| {
        paging::map(9, scratch(2), PW);
    });
    let at = page(9) - 8;
    c.equal("REP INSD into a page that is mapped on demand", rep!("rep insd", "rdi", at, 4), (at + 16, 0));
    let fault = trap::log_of(vector::PF).next().unwrap_or_default();
    c.equal("CR2 and error code", (fault.cr2, fault.error), (page(9), 2));
    c.equal("page faults", trap::count(vector::PF), 1);
    c.equal("both parts", [peek::<u64>(scratch(4) + 4088), peek(scratch(2))], [0x4433_2211_4433_2211; 2]);
    // A source that is read-only is fine, a destination is not.
    map(8, scratch(4), paging::P);
    c.raises("OUTS from a read-only page", None, || _ = rep!("rep outsb", "rsi", page(8), 2));
    trap::hook(vector::PF, |frame| frame.rip += 2);
    c.equal("REP INSB into a read-only page", rep!("rep insb", "rdi", page(8), 2), (page(8), 2));
    c.equal("its error code", trap::log_of(vector::PF).last().unwrap_or_default().error, 3);
    // An access that crosses into a missing page writes nothing.
    map(8, scratch(4), PW);
    map(9, 0, 0);
    poke(scratch(4) + 4092, 0x5a5a_5a5a_u32);
    let faults = trap::count(vector::PF);
    trap::hook(vector::PF, |frame| frame.rip += 1);
    c.equal("INSD across", rep!("insd", "rdi", page(9) - 2, 1), (page(9) - 2, 1));
    let fault = trap::log_of(vector::PF).last().unwrap_or_default();
    c.equal(
        "faults, CR2, error code",
        (trap::count(vector::PF) - faults, fault.cr2, fault.error),
        (1, page(9), 2),
    );
    c.equal("nothing is written", peek::<u32>(scratch(4) + 4092), 0x5a5a_5a5a);
}

fn address_size(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    let to = scratch(0);
    outl(0xe0, 0x4433_2211);
    // The address-size prefix: EDI and ECX, whose upper halves become zero.
    let high = 0x7777_0000_0000_0000;
    let (at, left): (u64, u64);
    // SAFETY: the code under test; EDI alone is the address.
    unsafe {
        asm!("addr32 rep insb", inout("rdi") high | to => at, inout("rcx") high | 3 => left, in("dx") 0xe0_u16);
    }
    c.equal("RDI and RCX after 32-bit addressing", (at, left), (to + 3, 0));
    c.equal("bytes", peek::<u32>(to), 0x11_1111);
    c.raises("a non-canonical address", super::GP, || _ = rep!("insb", "rdi", 1_u64 << 47, 1));
}

fn long(c: &mut Check) {
    if !has_latch(c) {
        return;
    }
    // 8 pages at once: interrupts come in between, and nothing is lost.
    let to = scratch(8);
    outl(0xe0, 0x4433_2211);
    crate::machine::lapic::write(crate::machine::lapic::reg::LVT_TIMER, 0x20041);
    crate::machine::lapic::write(crate::machine::lapic::reg::INITIAL_COUNT, 3_000_000);
    sti();
    let end = rep!("rep insd", "rdi", to, 8192);
    cli();
    crate::machine::lapic::write(crate::machine::lapic::reg::INITIAL_COUNT, 0);
    c.equal("RDI and RCX", end, (to + 8 * 4096, 0));
    c.holds("all written", (0..8192).all(|i| peek::<u32>(to + i * 4) == 0x4433_2211));
}
