//! Tables that serve twice: under two roots, at two levels, as their own tables, and seen through several mappings.

use super::Random;
use super::model::{Kind, Setup, entry_bytes, shifts};
use super::options;
use super::region::{PAGES, Region, target};
use super::script::Script;
use super::space::{Space, TABLES, clear, linear};
use crate::check::Check;
use crate::machine::insn::{peek, poke};
use crate::machine::step::{EXECUTE, READ, USER, WRITE};

/// Two roots with the same lower tables: of the same rights, or of others.
pub fn roots(c: &mut Check, kind: Kind) {
    let mut random = Random::new(options().seed + 5);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let copies = [space.table(), space.table()];
    let low = space.cr3() & 0xfff;
    for copy in copies {
        (0..512).for_each(|i| poke(copy + i * 8, peek::<u64>(space.root + i * 8)));
    }
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    region.map(&mut script);
    let roots = [script.root, copies[0] + low, copies[1] + low];
    let rights = if kind == Kind::Pae { [1, 1, 1] } else { [7, 5, 3] };
    for (root, rights) in roots.into_iter().zip(rights) {
        let entry = region.entry(0, linear(kind)) - script.space.cr3() + root;
        script.store(entry, region.tables[1] | rights);
    }
    for _ in 0..rounds(400) {
        script.group();
        let page = random.below(PAGES);
        script.load_root(*random.choose(&roots));
        if random.below(2) == 0 {
            let flags = *random.choose(&[0, 1, 3, 5, 7]);
            script.store(region.leaf(page), target(random.below(PAGES)) | flags);
            script.invlpg(region.page(page));
            if random.below(2) == 0 {
                // The other address space sees it after its own flush, which the load of CR3 is.
                script.load_root(*random.choose(&roots));
            }
        }
        for op in [READ, WRITE, READ | USER, WRITE | USER] {
            let page = if op & USER == 0 { page } else { random.below(PAGES) };
            script.access(op, region.at(page, op));
        }
        script.load(region.leaf(page), entry_bytes(kind));
    }
}

/// A table that is the last table for some addresses and the one above for others: entries that map its neighbours, and itself.
pub fn levels(c: &mut Check, kind: Kind) {
    let mut random = Random::new(options().seed + 6);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    region.map(&mut script);
    let bytes = entry_bytes(kind);
    let last = region.levels() - 1;
    let shift = shifts(kind)[last - 1];
    let (table, above) = (region.leaf_table(), region.tables[last - 1]);
    let at = linear(kind);
    // The last table also hangs where a table of the level above does: one entry further up, if there is a level.
    let up = if last >= 2 { shifts(kind)[last - 2] } else { shift };
    let second = at + (1 << up);
    if last >= 2 {
        let entry = region.entry(last - 2, second);
        script.store(entry, table | region.pointer_flags(last - 2));
        script.reload();
    }
    // The self-map: an entry of the table above leads back to that table.
    let slot = 40;
    script.store(above + slot * bytes, above | 3);
    script.reload();
    let window = (at >> shift >> index_bits(kind) << index_bits(kind) | slot) << shift;
    let index = at >> shift & ((1 << index_bits(kind)) - 1);
    for round in 0..rounds(300) {
        script.group();
        let page = random.below(PAGES);
        let entry = target(random.below(PAGES)) | *random.choose(&[0, 1, 3, 7, 0x47, 0x67]);
        // The entry for `page`, stored through the self-map, which shows the last table as a page.
        let through = window + index * 4096 + page * bytes;
        match round % 3 {
            0 => script.store_through(through, bytes, entry),
            1 => script.store(table + page * bytes, entry),
            _ => {
                script.store_through(through, bytes, 0);
                script.store(table + page * bytes, entry);
            }
        }
        script.invlpg(region.page(page));
        let op = *random.choose(&[READ, WRITE, EXECUTE]);
        script.access(op, region.at(page, op));
        script.access(READ, through);
        // The table above, as a page: through two steps of the self-map.
        script.access(READ, window + slot * 4096 + index * bytes);
        if last >= 2 {
            // Its entries as pointers to tables: the targets are no tables, so that most of it faults; the model reads them.
            let far = second + (page << shift) + (random.below(16) << 12);
            script.invlpg(far);
            script.access(READ, far + 0x100);
        }
        script.load(table + page * bytes, bytes);
    }
}

/// Bits of an index into a table.
fn index_bits(kind: Kind) -> u32 {
    if kind == Kind::Two { 10 } else { 9 }
}

/// All tables are one: every address leads to it, at all levels.
pub fn all_in_one(c: &mut Check) {
    let kind = Kind::Four;
    let mut space = Space::new(kind);
    let one = space.table();
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    // Entry i of the table is the table, for an address all of whose indices are i; the root has it at i = 9.
    let index = |i: u64| i << 39 | i << 30 | i << 21 | i << 12;
    for i in [9, 10, 300] {
        script.store(one + i * 8, one | 3);
    }
    script.store(script.space.root + 9 * 8, one | 3);
    script.reload();
    let mixed = 9 << 39 | 10 << 30 | 300 << 21 | 9 << 12;
    for at in [index(9), mixed] {
        script.group();
        script.access(READ, at + 0x800);
        script.store_through(at + 0x800, 8, 0x1234);
        // An entry that is used for this very store.
        script.store_through(at + 10 * 8, 8, one | 3);
        script.reload();
        script.access(READ, at + 10 * 8);
        script.store_through(at + 300 * 8, 8, one | 1);
        script.reload();
        script.access(READ, at + 0x800);
        script.access(WRITE, mixed + 0x808);
        script.store(one + 300 * 8, one | 3);
        script.reload();
        script.access(WRITE, mixed + 0x808);
        (9..=10).for_each(|i| _ = script.load(one + i * 8, 8));
    }
}

/// Tables seen through pages of 4 KiB, of 2 MiB or 4 MiB, and through user pages, all used in turn.
pub fn aliases(c: &mut Check, kind: Kind) {
    let mut random = Random::new(options().seed + 7);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let small = space.table();
    clear(small);
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    region.map(&mut script);
    let bytes = entry_bytes(kind);
    let last = region.levels() - 1;
    let shift = shifts(kind)[last - 1];
    let at = linear(kind);
    let table = region.leaf_table();
    // The next entry of the table above maps the tables by small pages, the one after that by a large one.
    let by_small = ((at >> shift) + 1) << shift;
    let by_large = by_small + (1 << shift);
    script.store(region.entry(last - 1, by_small), small | 3);
    for i in 0..32 {
        script.store(small + i * bytes, (TABLES + i * 4096) | if i % 2 == 0 { 3 } else { 7 });
    }
    let large = TABLES >> shift << shift;
    script.store(region.entry(last - 1, by_large), large | 0x87);
    script.reload();
    for _ in 0..rounds(400) {
        script.group();
        let page = random.below(PAGES);
        let entry = target(random.below(PAGES)) | *random.choose(&[0, 1, 3, 5, 7, 0x67]);
        let to = table + page * bytes;
        match random.below(4) {
            0 => script.store_through(by_small + (to - TABLES), bytes, entry),
            1 | 2 => script.store_through(by_large + (to - large), bytes, entry),
            _ => script.store(to, entry),
        }
        script.invlpg(region.page(page));
        let op = *random.choose(&[READ, WRITE, READ | USER, WRITE | USER]);
        script.access(op, region.at(page, op));
        // Accessed and dirty bits, seen through the other mappings.
        script.access(READ, by_small + (to - TABLES));
        script.access(READ | USER, by_large + (to - large));
        // User mode writes to the table as well: where no entry is in use.
        script.access(WRITE | USER, by_large + (table - large) + 0x800 + page * bytes);
        script.load(to, bytes);
    }
}

/// How often to do something.
pub fn rounds(usual: u32) -> u32 {
    let options = options();
    if options.full { usual * 20 } else { usual.div_ceil(options.thin) }
}
