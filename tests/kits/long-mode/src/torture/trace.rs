//! Random changes of entries and registers, with every kind of flush and with none.
//!
//! Without a flush an access may go by the old entry or the new one; but an entry that was not present is never cached, and after
//! a fault the new one counts (Intel SDM 3, 4.10.2.3 and 4.10.4.3; AMD APM 2, 5.5.2).

use super::Random;
use super::combos::ACCESSES;
use super::model::{Kind, Setup, Walk};
use super::options;
use super::region::{ALL, PAGES, Region, target};
use super::script::Script;
use super::space::{Space, predicted};
use crate::check::Check;
use crate::machine::step::{EXECUTE, MODIFY, READ, USER, WRITE};

/// A trace in tables of a kind.
pub fn run(c: &mut Check, kind: Kind) {
    let options = options();
    let changes = if options.full { 40_000 } else { 2000 / options.thin };
    let mut random = Random::new(options.seed + 77);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let mut script = Script::new(c, &mut space, Setup { pge: true, ..Setup::new(kind) });
    region.map(&mut script);
    for _ in 0..changes {
        script.group();
        let page = random.below(PAGES);
        let op = *random.choose(&ACCESSES);
        match random.below(12) {
            0..=7 => change_leaf(&mut script, &region, &mut random, page, op),
            8 | 9 => change_above(&mut script, &region, &mut random, page, op),
            _ => change_registers(&mut script, &region, &mut random, page, op),
        }
    }
}

/// Another entry for one page.
fn change_leaf(script: &mut Script<'_>, region: &Region, random: &mut Random, page: u64, op: u32) {
    let at = region.at(page, op);
    let entry = region.leaf(page);
    let old = predicted(entry, super::model::entry_bytes(script.setup.kind));
    let older = script.foresee(op, at);
    script.store(entry, target(random.below(PAGES)) | flags(script.setup.kind, random));
    match random.below(8) {
        0..=2 => script.invlpg(at),
        // A global page outlives a load of CR3.
        3 if old & 0x100 == 0 || !script.setup.pge => script.reload(),
        3 | 4 => flush_all(script),
        _ => return unflushed(script, region, page, op, older),
    }
    script.access(op, at);
    script.load(entry, super::model::entry_bytes(script.setup.kind));
}

/// Accesses by an entry that was changed and not flushed.
fn unflushed(script: &mut Script<'_>, region: &Region, page: u64, op: u32, older: Walk) {
    let at = region.at(page, op);
    let newer = script.foresee(op, at);
    let absent = older.result.is_err_and(|error| error & 1 == 0);
    match (op & 3, older.result, newer.result) {
        // Only a present entry can be cached.
        _ if absent => _ = script.access(op, at),
        // The first time, the old entry may still forbid it.
        (WRITE | READ | EXECUTE, Err(_), Ok(_)) => {
            script.access_stale(op, at, older);
            script.access(op, at);
        }
        (READ | EXECUTE, Ok(_), _) => {
            script.access_stale(op, at, older);
            script.access_stale(op, at, older);
        }
        _ => {}
    }
    region.link(script);
    script.store(region.leaf(page), target(page) | ALL);
    flush_all(script);
    script.settle();
    script.access(READ, region.at(page, READ));
}

/// Other rights in an entry that points to a table.
fn change_above(script: &mut Script<'_>, region: &Region, random: &mut Random, page: u64, op: u32) {
    let first = usize::from(script.setup.kind == Kind::Pae);
    let level = first + random.below((region.levels() - 1 - first) as u64) as usize;
    let at = region.at(page, op);
    let entry = region.entry(level, at);
    let rights = flags(script.setup.kind, random) & !0x180;
    script.store(entry, region.tables[level + 1] | rights);
    flush_all(script);
    script.access(op, at);
    let other = (page + 5) % PAGES;
    script.access(op, region.at(other, op));
    script.store(entry, region.tables[level + 1] | ALL);
    flush_all(script);
    script.access(op, at);
}

/// Another setting of the registers.
fn change_registers(script: &mut Script<'_>, region: &Region, random: &mut Random, page: u64, op: u32) {
    let at = region.at(page, op);
    let mut setup = script.setup;
    let nxe = setup.nxe;
    let (smep, smap) = (script.cpu.smep, script.cpu.smap);
    match random.below(5) {
        // These count from the next access on.
        0 => setup.wp ^= true,
        1 => setup.smep = !setup.smep && smep,
        2 => setup.smap = !setup.smap && smap,
        3 => setup.pge ^= true,
        // With EFER.NXE another bit is reserved.
        _ => setup.nxe ^= true,
    }
    script.access(op, at);
    script.set(setup);
    if setup.nxe != nxe || random.below(2) == 0 {
        flush_all(script);
    }
    script.access(op, at);
    for op in [READ, WRITE, EXECUTE, MODIFY, READ | USER, EXECUTE | USER] {
        script.access(op, region.at(page, op));
    }
}

/// Flushes global pages as well.
fn flush_all(script: &mut Script<'_>) {
    let setup = script.setup;
    script.set(Setup { pge: !setup.pge, ..setup });
    script.set(setup);
}

/// The low bits and NX of an entry, mostly present.
fn flags(kind: Kind, random: &mut Random) -> u64 {
    let low = random.next() & 0x176 | u64::from(random.below(8) != 0);
    let nx = kind != Kind::Two && random.below(5) == 0;
    low | u64::from(nx) << 63
}
