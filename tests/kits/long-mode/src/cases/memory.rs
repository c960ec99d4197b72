//! Physical memory beyond RAM: holes, ROM, ACPI tables.

use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::is_palimpsest;

pub const CASES: &[Case] = &[case("memory.holes", holes), case("memory.acpi", acpi), case("memory.rom", rom)];

/// Within the PCI window, where no device is.
const HOLE: u64 = 0xd000_0000;

fn holes(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("other machines have devices there");
    }
    for at in [HOLE, HOLE + 0x123, 0xfedf_fff8] {
        poke(at, 0u64);
        c.equal(
            format_args!("{at:x}"),
            (peek::<u64>(at), peek::<u32>(at), peek::<u16>(at), peek::<u8>(at)),
            (u64::MAX, u32::MAX, u16::MAX, u8::MAX),
        );
    }
    let old: u64;
    // SAFETY: exchanges with nothing.
    unsafe { core::arch::asm!("lock xchg [{}], {}", in(reg) HOLE, inout(reg) 5u64 => old) };
    c.equal("XCHG with a hole", old, u64::MAX);
}

fn acpi(c: &mut Check) {
    // The root pointer is in its area, with a checksum of 0.
    let at = (0xe_0000..0x10_0000).step_by(16).find(|&at| peek::<[u8; 8]>(at) == *b"RSD PTR ");
    let Some(at) = at else { return c.holds("a root pointer", false) };
    let sum = |at: u64, len: u64| (0..len).fold(0u8, |sum, i| sum.wrapping_add(peek(at + i)));
    c.equal("checksum of the root pointer", sum(at, 20), 0);
    // Revision 2 has an XSDT, whose entries are 8 bytes; before there was the RSDT.
    let wide = peek::<u8>(at + 15) >= 2;
    let table = if wide { peek(at + 24) } else { u64::from(peek::<u32>(at + 16)) };
    c.equal("the table's name", peek::<[u8; 4]>(table), if wide { *b"XSDT" } else { *b"RSDT" });
    let length = u64::from(peek::<u32>(table + 4));
    c.equal("its checksum", sum(table, length), 0);
    let mut seen = 0;
    for i in (36..length).step_by(if wide { 8 } else { 4 }) {
        let entry = if wide { peek(table + i) } else { u64::from(peek::<u32>(table + i)) };
        c.equal("checksum of a table", sum(entry, peek::<u32>(entry + 4).into()), 0);
        seen |= match &peek::<[u8; 4]>(entry) {
            b"FACP" => 1,
            b"APIC" => 2,
            b"HPET" => 4,
            _ => 0,
        };
    }
    c.equal("FADT, MADT and HPET table", seen, 7);
    // The tables lie in RAM that the guest may write: nothing breaks.
    let before: u8 = peek(at + 9);
    poke(at + 9, !before);
    poke(at + 9, before);
}

fn rom(c: &mut Check) {
    const TOP: u64 = 0xffff_fff0;
    let before: u64 = peek(TOP);
    poke(TOP, !before);
    c.equal("the reset vector keeps its contents", peek::<u64>(TOP), before);
}
