//! Page tables where there is no memory: the guest gets what its processor makes of what it reads there, and lives on; or
//! it cannot.

use super::model::{Kind, Setup};
use super::region::{ALL, PAGES, Region, target};
use super::script::Script;
use super::space::Space;
use crate::check::Check;
use crate::machine::insn::{invlpg, peek, poke, set_cr3};
use crate::machine::trap::{catch, vector};
use crate::say;

/// Places for a table: a hole below the devices, the end of the ROM, the ROM below 1 MiB, the local APIC, the I/O APIC, beyond
/// memory.
const PLACES: [u64; 6] = [0xd000_0000, 0xffff_f000, 0xf_f000, 0xfee0_0000, 0xfec0_0000, 0x70_0000_0000];

/// Each level's table at each place; each access must fault, or come back.
pub fn places(c: &mut Check) {
    let mut space = Space::new(Kind::Four);
    let region = Region::new(&mut space);
    region.map(&mut Script::new(c, &mut space, Setup::new(Kind::Four)));
    for place in PLACES {
        for level in 0..3 {
            let entry = region.entry(level, region.page(0));
            let before: u64 = peek(entry);
            poke(entry, place | ALL);
            for index in [0, 1, 2, 15] {
                let at = region.page(0) + (index << 12);
                invlpg(at);
                let fault = catch(|| _ = peek::<u32>(at));
                let vector = fault.map_or(vector::PF, |trap| trap.vector);
                c.equal(format_args!("level {level} at {place:x}, page {index}"), vector, vector::PF);
                if fault.is_none() {
                    continue;
                }
                let fault = catch(|| poke(at + 0xf0, 0u32));
                let vector = fault.map_or(vector::PF, |trap| trap.vector);
                c.equal(format_args!("level {level} at {place:x}, page {index}, write"), vector, vector::PF);
            }
            poke(entry, before);
            invlpg(region.page(0));
        }
    }
    for page in 0..PAGES {
        invlpg(region.page(page));
        c.equal("the tables afterwards", peek::<u32>(region.page(page)), peek(target(page)));
    }
}

/// Leaves that lead to no memory, to ROM and to devices: what is read there is what the address itself gives.
pub fn targets(c: &mut Check) {
    let mut space = Space::new(Kind::Four);
    let region = Region::new(&mut space);
    region.map(&mut Script::new(c, &mut space, Setup::new(Kind::Four)));
    // Registers that do not change by themselves: the local APIC's version, for one.
    for place in [0xd000_0000, 0xffff_f000, 0xf_f000, 0xfee0_0000] {
        for flags in [1, ALL, ALL | 0x60] {
            poke(region.leaf(3), place | flags);
            invlpg(region.page(3));
            for offset in [0x30, 0xff0] {
                if place == 0xfee0_0000 && offset != 0x30 {
                    continue;
                }
                let got: u32 = peek(region.page(3) + offset);
                c.equal(format_args!("{place:x} through an entry"), got, peek(place + offset));
            }
            c.equal(
                format_args!("the entry for {place:x}"),
                peek::<u64>(region.leaf(3)),
                place | flags | 0x20,
            );
        }
    }
}

/// CR3 where there is no memory.
pub fn cr3_in_hole(_: &mut Check) {
    say!("kit: CR3");
    set_cr3(PLACES[0]);
    say!("kit: lives");
}

/// CR3 on the local APIC.
pub fn cr3_on_apic(_: &mut Check) {
    say!("kit: CR3");
    set_cr3(PLACES[3]);
    say!("kit: lives");
}
