//! Changes of the kind of paging, and what only PAE paging has: pointers that count from a load of CR3 on.

use super::Random;
use super::model::{Cpu, Kind, Setup};
use super::options;
use super::region::{ALL, PAGES, Region, offset, target};
use super::script::Script;
use super::sharing::rounds;
use super::space::{Space, cr3_of};
use crate::check::Check;
use crate::machine::step::{CR3, EXECUTE, MODIFY, READ, Step, USER, WRITE};
use crate::machine::trap::vector::GP;

/// Paging off, of two levels, PAE, in any order and with all settings; tables are changed while others are in use.
pub fn changes(c: &mut Check) {
    let mut random = Random::new(options().seed + 11);
    let mut space = Space::new(Kind::Two);
    let pae_root = cr3_of(Kind::Pae, space.make_root(Kind::Pae));
    let two_root = space.cr3();
    let two = Region::new(&mut space);
    let pae = Region::under(&mut space, Kind::Pae, pae_root);
    let cpu = Cpu::here(c.tcg);
    let mut script = Script::new(c, &mut space, Setup::new(Kind::Two));
    two.map(&mut script);
    pae.fill(&mut script);
    let kinds = [(Kind::Two, two_root, &two), (Kind::Pae, pae_root, &pae), (Kind::Off, 0, &two)];
    for round in 0..rounds(300) {
        script.group();
        let (kind, root, region) = *random.choose(&kinds);
        // Paging goes off in between: translations do not survive that.
        script.set(Setup { kind: Kind::Off, ..script.setup });
        let page = random.below(PAGES);
        script.access(READ, target(page) + offset(READ));
        script.access(WRITE, target(page) + offset(WRITE));
        if kind != Kind::Off {
            script.load_root(root);
            script.set(Setup { pge: round % 3 == 0, ..Setup::numbered(kind, random.below(16) as u32, &cpu) });
            for _ in 0..6 {
                let op = *random.choose(&super::combos::ACCESSES);
                script.access(op, region.at(random.below(PAGES), op));
            }
        }
        for region in [&two, &pae] {
            let page = random.below(PAGES);
            let entry = target(random.below(PAGES)) | *random.choose(&[0, 1, 3, 5, 7, 0x107, 0x67]);
            region.store(&mut script, page, entry);
            script.invlpg(region.page(page));
        }
        // Now and then the stay ends with whatever is in use.
        if random.below(4) == 0 {
            script.run();
        }
    }
    script.run();
}

/// A pointer that was changed: the old or the new one counts, until CR3 is loaded (AMD APM 2, 15.25.10: with nested paging each
/// walk reads it; else the processor read it with CR3).
pub fn pointers(c: &mut Check) {
    let mut random = Random::new(options().seed + 12);
    let mut space = Space::new(Kind::Pae);
    let first = Region::new(&mut space);
    let root = space.cr3();
    let second = Region::under(&mut space, Kind::Pae, root);
    let cpu = Cpu::here(c.tcg);
    let mut script = Script::new(c, &mut space, Setup::new(Kind::Pae));
    for region in [&first, &second] {
        region.fill(&mut script);
    }
    script.store(second.leaf(3), target(9) | ALL);
    script.reload();
    let pointer = first.entry(0, first.page(0));
    let reserved = [1u32, 2, 6, 7, 8, 52, 63, cpu.width];
    for _ in 0..rounds(200) {
        script.group();
        let page = *random.choose(&[0, 3, 5]);
        let older = script.foresee(READ, first.at(page, READ));
        let to = *random.choose(&[first.tables[1], second.tables[1]]);
        if random.below(3) == 0 {
            // Refused at once, or when it is used; or, by the emulation, not at all. Then CR3 holds what it did.
            script.store(pointer, to | 1 | 1 << random.choose(&reserved));
            let load = Step::new(CR3, 0, root);
            script.raises(load, GP, 0, true);
            let healthy = script.foresee_with(pointer, to | 1, READ, first.at(page, READ));
            script.access_one_of(READ, first.at(page, READ), &[older, healthy]);
            script.store(pointer, to | 1);
        } else {
            script.store(pointer, to | random.below(2));
            script.access_stale(READ, first.at(page, READ), older);
        }
        script.reload();
        script.settle();
        for op in [READ, WRITE, EXECUTE, MODIFY, READ | USER] {
            script.access(op, first.at(page, op));
        }
        // What follows begins with entries that are certain.
        first.fill(&mut script);
        second.fill(&mut script);
        script.store(second.leaf(3), target(9) | ALL);
        script.reload();
        script.access(READ, first.at(3, READ));
    }
}
