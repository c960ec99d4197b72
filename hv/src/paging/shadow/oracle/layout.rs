//! The guest's memory: where tables lie, and random contents that most walks get through.
//!
//! Tables of 8-byte entries (long mode and PAE) share pages; those of 4-byte entries have pages of their own. Most
//! entries make a tree, so that some tables serve at level 1 only; some lead to any other page.

use super::Guest;
use crate::arch::addr::{Gpa, Hpa, PAGE_SIZE, PageSize};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::mem::tier::migration::{Move, Way};
use crate::paging::guest_walk::PagingKind;
use crate::paging::random::Random;
use crate::paging::range::{Changed, GpaRange, OldFrames};
use crate::paging::shadow::{AgileTimes, Tuning};

/// Where guest memory lies in host memory.
pub const HOST: Hpa = Hpa(0x8000_0000);
/// Bytes of guest memory from address 0: two large pages.
pub const RAM: u64 = 0x40_0000;
/// Pages of tables, from address 0.
pub const TABLES: u64 = 19;
/// Bytes of them.
pub const TABLE_BYTES: u64 = TABLES * PAGE_SIZE;
/// Host memory: that of the guest, and a second place for each table, and for all that is in the 2 MiB with them.
pub const HOST_BYTES: u64 = RAM + (2 << 20);
/// The page of PAE's page-directory pointers.
const POINTERS: u64 = 12;

/// What the tables of a page are for.
#[derive(Clone, Copy)]
enum Use {
    /// 8-byte entries of this level.
    Wide(u8),
    /// Page-directory pointers.
    Pointers,
    /// 4-byte entries of this level.
    Narrow(u8),
}

fn use_of(page: u64) -> Use {
    match page {
        0..3 => Use::Wide(4),
        3 | 4 => Use::Wide(3),
        5 | 6 => Use::Wide(2),
        POINTERS => Use::Pointers,
        13 | 14 => Use::Narrow(2),
        15..TABLES => Use::Narrow(1),
        _ => Use::Wide(1),
    }
}

/// How the engine is tuned, and its pages: often too few.
pub fn tuning(random: &mut Random) -> (Tuning, usize) {
    let mut choose = |n: u64| random.draw() % n;
    let tuning = Tuning {
        window: 1 << choose(5),
        direct_window: 1 << choose(7),
        unsync_after: [0, 0, 1, 2, u8::MAX][choose(5) as usize],
        flood: [3, 16][choose(2) as usize],
        quiet: [1, 3][choose(2) as usize],
        demand: choose(4) != 0,
        invlpgs: [1, 3, u8::MAX][choose(3) as usize],
        compared: [0, 2, 1 << 20][choose(3) as usize],
    };
    (tuning, [16, 24, 64, 64][choose(4) as usize])
}

/// A page of tables comes to its other place or goes, can be written or not; or everything is as in the beginning. The page, and
/// what has changed.
pub fn change_p2m(random: &mut Random, p2m: &mut Guest) -> (GpaRange, Changed) {
    let page = random.draw() % TABLES * PAGE_SIZE;
    let range = GpaRange::page(Gpa(page));
    let place = Hpa(HOST.0 + page + if random.once_in(3) { RAM } else { 0 });
    let all = GpaRange { start: Gpa(0), end: Gpa(RAM) };
    let changed = match random.draw() % 10 {
        0 => p2m.unmap(range),
        1 => p2m.map_rom(range, place),
        2 => p2m.map_mmio(range),
        3 => p2m.map_ram(range, place, false),
        4 => Ok(p2m.merge(all)),
        // The pager has no part of that.
        5 | 6 if p2m.is_paged() => p2m.map_ram(range, place, true),
        7 => p2m.set_writable(range, random.once_in(2)),
        8 => p2m.split(range, PageSize::Size4K).map(|()| Changed::new(range, OldFrames::NONE)),
        5 | 6 => p2m.map_ram(all, HOST, true).map(|changed| changed.and(p2m.merge(all))),
        _ => p2m.map_ram(range, place, true),
    };
    (range, changed.expect("the arena is large"))
}

/// Tables that are to move, neighbours, and where each is and will be: to its other place. Only those that the guest can write now.
pub fn moves(random: &mut Random, p2m: &Guest) -> Vec<(GpaRange, Hpa, Hpa)> {
    let first = random.draw() % TABLES;
    let pages = first..TABLES.min(first + 1 + random.draw() % 3);
    pages.filter_map(|page| place(page, p2m)).collect()
}

/// A page of tables, where it is and its other place, if the guest can write it now.
fn place(page: u64, p2m: &Guest) -> Option<(GpaRange, Hpa, Hpa)> {
    let range = GpaRange::page(Gpa(page.checked_mul(PAGE_SIZE)?));
    let from = p2m.translate(range.start).writable().filter(|_| page < TABLES)?;
    let places = [HOST.0, HOST.0 + RAM].map(|base| Hpa(base + range.start.0));
    Some((range, from, if from == places[0] { places[1] } else { places[0] }))
}

/// Neighbours that may go to their other places, as tiers have it.
pub fn migrations(random: &mut Random, p2m: &Guest) -> Vec<Move> {
    let first = random.draw() % TABLES;
    let pages = first..TABLES.min(first + 1 + random.draw() % 3);
    pages.filter_map(|page| migrates(page, p2m)).collect()
}

/// A page of tables that may go to its other place, as tiers have it: the first place is its home.
pub fn migrates(page: u64, p2m: &Guest) -> Option<Move> {
    let at = Gpa(page.checked_mul(PAGE_SIZE)?);
    let (from, is_clean) = p2m.movable(at).filter(|_| page < TABLES)?;
    let [home, fast] = [HOST.0, HOST.0 + RAM].map(|base| Hpa(base + at.0).frame());
    let (to, way) = match from == home {
        true => (fast, Way::In),
        false if is_clean => (home, Way::Discard),
        false => (home, Way::Back),
    };
    Some(Move { page: at.frame(), from, to, way })
}

/// The 2 MiB with the tables, which may go to their other place as one.
pub fn migrates_whole(p2m: &Guest) -> Option<Move> {
    let (from, is_clean) = p2m.movable_piece(Gpa(0))?;
    let [home, fast] = [HOST.0, HOST.0 + RAM].map(|base| Hpa(base).frame());
    let (to, way) = match from == home {
        true => (fast, Way::In),
        false if is_clean => (home, Way::Discard),
        false => (home, Way::Back),
    };
    Some(Move { page: Gpa(0).frame(), from, to, way })
}

/// All of the guest's memory is at its first place again.
pub fn all_home(p2m: &mut Guest) -> Changed {
    let all = GpaRange { start: Gpa(0), end: Gpa(RAM) };
    p2m.map_ram(all, HOST, true).expect("the arena is large")
}

/// What is at `from` is at `to` as well.
pub fn copy_page(host: &VecHost, from: Hpa, to: Hpa) {
    host.write(to, &page_at(host, from));
}

/// A page of host memory.
pub fn page_at(host: &VecHost, at: Hpa) -> Vec<u8> {
    let mut bytes = vec![0; PAGE_SIZE as usize];
    host.read(at, &mut bytes);
    bytes
}

/// Eight random bytes for this place.
pub fn word(random: &mut Random, at: u64) -> u64 {
    match use_of(at / PAGE_SIZE) {
        Use::Wide(level) => wide(random, level),
        Use::Narrow(level) => narrow(random, level) | narrow(random, level) << 32,
        Use::Pointers => {
            let bad = if random.once_in(16) { 1 << (random.draw() % 64) } else { 0 };
            ((5 + random.draw() % 2) << 12 | 1) ^ bad
        }
    }
}

/// P, W, U, PWT, PCD, A and D.
fn flags(random: &mut Random) -> u64 {
    let mut entry = random.draw() & 0x78;
    entry |= if random.once_in(16) { 0 } else { 1 };
    entry |= if random.once_in(4) { 0 } else { 2 };
    entry | if random.once_in(4) { 0 } else { 4 }
}

fn wide(random: &mut Random, level: u8) -> u64 {
    let mut entry = flags(random);
    let global = if level < 3 { 2 } else { 8 };
    entry |= if random.once_in(global) { 0x100 } else { 0 };
    entry |= if random.once_in(8) { 1 << 63 } else { 0 };
    let large = random.once_in(if level == 4 { 32 } else { 4 });
    entry |= if large { 0x80 } else { 0 };
    let pages = match level {
        1 if random.once_in(4) => random.draw() % (RAM / PAGE_SIZE + 8),
        1 => random.draw() % TABLES,
        2 if large => {
            (random.draw() % 2) << 9 | if random.once_in(8) { 1 << (random.draw() % 24) } else { 0 }
        }
        3 if large => {
            if random.once_in(8) {
                1 << (random.draw() % 24)
            } else {
                random.draw() % 2
            }
        }
        _ if random.once_in(8) => random.draw() % TABLES,
        2 => 7 + random.draw() % 5,
        3 => 5 + random.draw() % 2,
        _ => 3 + random.draw() % 2,
    };
    let odd = if random.once_in(24) { 1 << (random.draw() % 52) } else { 0 };
    entry | (pages ^ odd) << 12
}

fn narrow(random: &mut Random, level: u8) -> u64 {
    let mut entry = flags(random);
    entry |= if random.once_in(2) { 0x100 } else { 0 };
    let large = random.once_in(4);
    entry |= if large { 0x80 } else { 0 };
    let pages = match level {
        1 if random.once_in(4) => random.draw() % (RAM / PAGE_SIZE + 8),
        1 => random.draw() % TABLES,
        _ if large => {
            if random.once_in(8) {
                1 << (random.draw() % 20)
            } else {
                random.draw() % 2
            }
        }
        _ if random.once_in(8) => random.draw() % TABLES,
        _ => 15 + random.draw() % 4,
    };
    (entry | pages << 12) & 0xffff_ffff
}

/// A root table.
pub fn cr3(random: &mut Random, kind: PagingKind) -> u64 {
    let flags = random.draw() & 0x18;
    if random.once_in(32) {
        // Any page, or none.
        return random.draw() % (2 * RAM);
    }
    match kind {
        PagingKind::Pae => {
            POINTERS * PAGE_SIZE + random.draw() % if random.once_in(4) { 128 } else { 2 } * 32
        }
        PagingKind::TwoLevel => ((13 + random.draw() % 2) * PAGE_SIZE) | flags,
        _ => (random.draw() % 3 * PAGE_SIZE) | flags,
    }
}

/// Another value for the eight bytes at `at`, which are `old`.
pub fn change(random: &mut Random, at: u64, old: u64) -> u64 {
    let half = if matches!(use_of(at / PAGE_SIZE), Use::Narrow(_)) { random.draw() % 2 * 32 } else { 0 };
    match random.draw() % 8 {
        0 | 1 => word(random, at),
        2 | 3 => old ^ 1 << ([0, 1, 2, 5, 6, 7, 8, 12, 13, 31][(random.draw() % 10) as usize] + half),
        4 => old & !(0x60 << half),
        5 => old & !(0xffff_ffff << half),
        6 if half == 0 => old ^ 1 << 63,
        _ => old | 7 << half,
    }
}

/// Addresses that the guest uses.
pub fn addresses(random: &mut Random) -> Vec<u64> {
    let mut all = Vec::new();
    // Often alike in their lower parts: a table that becomes another one has entries at the same places then.
    let same = [0, 0, 0x1f_ffff, 0x3fff_ffff][(random.draw() % 4) as usize];
    let alike = random.draw() & same;
    for _ in 0..6 {
        let mut base = (random.draw() as i64 >> 16) as u64 & !same | alike;
        if random.once_in(2) {
            // Low in a large page, where the tables may be.
            base &= !0x1e_0000;
        }
        if random.once_in(3) {
            // Low in a page of 1 GiB.
            base &= !0x3fc0_0000;
        }
        if random.once_in(3) {
            base &= !0xc000_0000;
        }
        for more in [0, 0x1000, 0x3000, 0x20_1000] {
            all.push((base ^ more) & !7);
        }
    }
    all
}

/// The parameters of agile paging, in accesses.
pub fn agile_times(random: &mut Random) -> AgileTimes {
    AgileTimes {
        window: [0, 5, 50, u64::MAX][random.draw() as usize % 4],
        timeout: [0, 30, 300, 1_000_000][random.draw() as usize % 4],
        start: [0, 50, 500, u64::MAX][random.draw() as usize % 4],
    }
}
