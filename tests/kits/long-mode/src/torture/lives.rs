//! Tables come and go: large pages are split and merged, tables become data and data tables, address spaces pile up.

use super::Random;
use super::model::{Kind, Setup, entry_at, entry_bytes, shifts};
use super::options;
use super::region::{ALL, PAGES, Region, target};
use super::script::Script;
use super::sharing::rounds;
use super::space::{BULK, END, Space, TARGET, clear, linear};
use crate::check::Check;
use crate::machine::insn::{peek, poke};
use crate::machine::step::{EXECUTE, READ, USER, WRITE};

/// A large page becomes small ones that map the same, one of them is changed, and all are merged again.
pub fn split(c: &mut Check, kind: Kind) {
    let mut random = Random::new(options().seed + 8);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let (bytes, last) = (entry_bytes(kind), region.levels() - 1);
    let shift = shifts(kind)[last - 1];
    let base = TARGET >> shift << shift;
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    region.link(&mut script);
    let above = region.entry(last - 1, linear(kind));
    for _ in 0..rounds(60) {
        script.group();
        let flags = *random.choose(&[1, 3, 7, 0x27, 0x67]);
        script.store(above, base | flags | 0x80);
        // The small pages that were cached are not of one address.
        script.reload();
        for _ in 0..3 {
            let op = *random.choose(&[READ, WRITE, EXECUTE, READ | USER]);
            script.access(op, region.at(random.below(PAGES), op));
        }
        script.load(above, bytes);
        // Split: the pages that the round looks at.
        for page in 0..PAGES {
            script.store(region.leaf(page), target(page) | flags);
        }
        script.store(above, region.leaf_table() | ALL);
        if random.below(2) == 0 {
            script.invlpg(region.page(random.below(PAGES)));
        } else {
            script.reload();
        }
        let odd = random.below(PAGES);
        script.store(region.leaf(odd), target(random.below(PAGES)) | *random.choose(&[0, 1, 7]));
        script.invlpg(region.page(odd));
        for page in [odd, random.below(PAGES), random.below(PAGES)] {
            let op = *random.choose(&[READ, WRITE, EXECUTE, WRITE | USER]);
            script.access(op, region.at(page, op));
        }
        script.load(region.leaf(odd), bytes);
    }
}

/// A table is unlinked, written as data, linked again; its place is taken by another.
pub fn reuse(c: &mut Check, kind: Kind) {
    let mut random = Random::new(options().seed + 9);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let tables = [region.leaf_table(), space.table(), space.table()];
    let (bytes, last) = (entry_bytes(kind), region.levels() - 1);
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    region.map(&mut script);
    let above = region.entry(last - 1, linear(kind));
    for _ in 0..rounds(40) {
        script.group();
        let table = *random.choose(&tables);
        for page in 0..PAGES {
            let op = *random.choose(&[READ, WRITE]);
            script.access(op, region.at(page, op));
        }
        script.store(above, 0);
        script.reload();
        // Data: a flood of words that look like entries, or nothing like them.
        for i in 0..random.below(80) {
            script.store(table + i * 7 % 512 * bytes, random.next() << 20 | random.next());
        }
        script.group();
        for page in 0..PAGES {
            script.store(table + page * bytes, target(random.below(PAGES)) | *random.choose(&[0, 1, 7]));
        }
        script.store(above, table | ALL);
        // From not present to present: no flush.
        for page in 0..PAGES {
            let op = *random.choose(&[READ, WRITE, EXECUTE, READ | USER]);
            script.access(op, region.at(page, op));
        }
        // A table page mapped as data, while it is a table.
        let page = random.below(PAGES);
        script.store(table + page * bytes, table | 7);
        script.invlpg(region.page(page));
        let other = (page + 1) % PAGES;
        script.store_through(region.page(page) + other * bytes, bytes, target(3) | 7);
        script.invlpg(region.page(other));
        script.access(READ, region.at(other, READ));
        script.load(table + other * bytes, bytes);
    }
}

/// Address spaces by the hundred, each with tables of its own, entered again and again.
pub fn flood(c: &mut Check, kind: Kind) {
    let mut random = Random::new(options().seed + 10);
    let mut space = Space::new(kind);
    let levels = shifts(kind).len() as u64;
    let count = ((END - BULK) / 4096 / levels).min(rounds(1000).into());
    let at = linear(kind);
    let low = space.cr3() & 0xfff;
    let page_of = |i: u64| (i * 7 + i / 16) % PAGES;
    for i in 0..count {
        let tables = BULK + i * levels * 4096;
        (0..levels).for_each(|level| clear(tables + level * 4096));
        for word in 0..512 {
            poke(tables + word * 8, peek::<u64>(space.root + word * 8));
        }
        for (level, &shift) in (0..).zip(shifts(kind)) {
            let next = if level + 1 < levels { tables + (level + 1) * 4096 } else { target(page_of(i)) };
            let flags = if kind == Kind::Pae && level == 0 { 1 } else { 0x67 };
            let table = tables + level * 4096 + if level == 0 { low } else { 0 };
            let entry = entry_at(kind, shift, table, at);
            if kind == Kind::Two { poke(entry, (next | flags) as u32) } else { poke(entry, next | flags) }
        }
    }
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    for i in 0..count * 2 {
        script.group();
        let i = if i < count { i } else { random.below(count) };
        script.load_root(BULK + i * levels * 4096 + low);
        script.access(READ, at + 0x100);
        script.access(WRITE, at + 0x108);
    }
    let root = script.space.cr3();
    script.load_root(root);
}
