//! Much memory, more than once: through pages of 4 KiB and through the identity map's of 2 MiB, with the accessed and dirty bits
//! that accesses leave. A hypervisor that takes pages away meanwhile must bring them back as they were, and lose no bit.
//!
//! The command line's word `mib=N` says how much, 1 to 24 MiB; all of it lies
//! between 18 and 44 MiB.

use crate::check::{Case, Check, case};
use crate::machine::Cell;
use crate::machine::insn::*;
use crate::machine::paging::{self, PWU};

pub const CASES: &[Case] = &[case("bulk.contents", contents), case("bulk.bits", bits)];

/// A level-2 table and its 12 level-1 tables.
const TABLES: u64 = 0x120_0000;
/// What is mapped.
const START: u64 = 0x140_0000;
/// Pages of 4 KiB in a MiB.
const MIB: u64 = 256;
/// A prime that does not divide the number of pages: pages in an order in which neighbours are far apart.
const STRIDE: u64 = 1117;

const A: u64 = 1 << 5;
const D: u64 = 1 << 6;

static PAGES: Cell<u64> = Cell::new(MIB);

/// Takes `mib=N` out of a command line's words.
pub fn set_options<'a>(words: impl Iterator<Item = &'a str>) {
    for word in words {
        if let Some(mib @ 1..=24) = word.strip_prefix("mib=").and_then(|mib| mib.parse::<u64>().ok()) {
            PAGES.set(mib * MIB);
        }
    }
}

/// Where a page lies, and as which the identity map has it.
const fn target(page: u64) -> u64 {
    START + page * 4096
}

/// Where its entry of the tables is.
const fn entry(page: u64) -> u64 {
    TABLES + 4096 + page * 8
}

/// Maps all pages, with no bits of accesses, and returns the first one's address.
fn map(pages: u64) -> u64 {
    let tables = pages.div_ceil(512);
    (0..512).for_each(|i| poke(TABLES + i * 8, if i < tables { TABLES + 4096 * (i + 1) | PWU } else { 0 }));
    (0..tables * 512).for_each(|page| poke(entry(page), if page < pages { target(page) | PWU } else { 0 }));
    let at = paging::hang_level2(TABLES);
    set_cr3(cr3());
    at
}

/// A word of a page in a round. It compresses, and no two pages are the same.
const fn word(page: u64, round: u64, index: u64) -> u64 {
    (page << 8 | round).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index / 16
}

fn fill(at: u64, page: u64, round: u64) {
    (0..512).for_each(|index| poke(at + index * 8, word(page, round, index)));
}

/// The first word that is not as it was written.
fn wrong(at: u64, page: u64, round: u64) -> Option<u64> {
    (0..512).find(|index| peek::<u64>(at + index * 8) != word(page, round, *index))
}

/// All pages are written and read three times, in two orders, through both mappings.
fn contents(c: &mut Check) {
    let pages = PAGES.get();
    let small = map(pages);
    let scattered = |i: u64| i * STRIDE % pages;
    for round in 0..3 {
        (0..pages).for_each(|page| fill(small + page * 4096, page, round));
        for page in (0..pages).map(scattered) {
            c.equal(
                format_args!("page {page}, large, round {round}"),
                wrong(target(page), page, round),
                None,
            );
        }
        // Every third is written through the large pages, and read through the small ones.
        (0..pages).step_by(3).for_each(|page| fill(target(page), page, round + 100));
        for page in (0..pages).map(scattered) {
            let of = if page % 3 == 0 { round + 100 } else { round };
            c.equal(
                format_args!("page {page}, small, round {round}"),
                wrong(small + page * 4096, page, of),
                None,
            );
        }
    }
    crate::say!("  {pages} pages");
}

/// The bits that the processor sets: accessed in each page that was read, dirty in those alone that were written, and neither before.
/// Between an access and the look at its entry all other pages have been used.
fn bits(c: &mut Check) {
    let pages = PAGES.get();
    let small = map(pages);
    let written = |page: u64| page.is_multiple_of(5);
    for round in 0..2 {
        for page in 0..pages {
            poke(entry(page), target(page) | PWU);
        }
        set_cr3(cr3());
        for page in 0..pages {
            poke(target(page), page ^ round);
        }
        let touched = |page: u64| peek::<u64>(entry(page)) & 0xfff;
        (0..pages).for_each(|page| c.equal(format_args!("entry {page} before"), touched(page), PWU));
        for page in 0..pages {
            c.equal(format_args!("page {page}"), peek::<u64>(small + page * 4096), page ^ round);
        }
        (0..pages).for_each(|page| c.equal(format_args!("entry {page}, read"), touched(page), PWU | A));
        for page in (0..pages).filter(|page| written(*page)) {
            poke(small + page * 4096 + 8, page);
        }
        for page in 0..pages {
            let want = if written(page) { PWU | A | D } else { PWU | A };
            c.equal(format_args!("entry {page}, written or not"), touched(page), want);
        }
    }
}
