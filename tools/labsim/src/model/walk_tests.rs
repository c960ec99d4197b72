//! Walks against known answers, and against a translation that knows no caches.

use std::collections::HashMap;

use proptest::prelude::*;

use super::super::{bank::Geometry, policy::Policy, space::Kind};
use super::*;

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
pub const TABLE: u64 = PRESENT | WRITABLE | ACCESSED;

/// Memory of 8-byte words, with accessed and dirty bits in place.
#[derive(Default, Clone)]
pub struct Words {
    pub words: HashMap<u64, u64>,
    pub references: Vec<u64>,
    pub accessed: usize,
    pub dirtied: usize,
}

impl Memory for Words {
    fn read_u64(&self, pa: u64) -> Option<u64> {
        Some(self.words.get(&pa).copied().unwrap_or(0))
    }
}

impl Environment for Words {
    fn reference(&mut self, pa: u64) {
        self.references.push(pa);
    }

    fn use_entry(&mut self, pa: u64, dirty: bool) -> bool {
        let (word, bit) = (self.words.entry(pa & !7).or_default(), 8 * (pa & 4));
        self.accessed += usize::from(*word >> bit & ACCESSED == 0);
        self.dirtied += usize::from(dirty && *word >> bit & DIRTY == 0);
        *word |= (ACCESSED | if dirty { DIRTY } else { 0 }) << bit;
        *word >> bit & DIRTY == 0
    }
}

impl Words {
    /// Writes an entry of `size` bytes.
    fn put(&mut self, at: u64, size: u64, entry: u64) {
        let word = self.words.entry(at & !7).or_default();
        match size {
            8 => *word = entry,
            _ => *word = *word & !(0xffff_ffff << (8 * (at & 4))) | entry << (8 * (at & 4)),
        }
    }

    /// Maps a page in tables of this format below `root`; new tables come from `next`, and `place` says where they are.
    pub fn map(
        &mut self,
        format: Format,
        root: u64,
        (va, pa, page_shift): (u64, u64, u32),
        next: &mut u64,
        place: &dyn Fn(u64) -> u64,
    ) {
        let (bits, size, top) = layout(format);
        let mut table = root;
        for level in (1..=top).rev() {
            let shift = 12 + bits * (level - 1);
            let index = if format == Format::Pae && level == 3 {
                va >> 30 & 3
            } else {
                va >> shift & ((1 << bits) - 1)
            };
            let at = place(table + index * size);
            if shift == page_shift {
                let large = if level > 1 { LARGE } else { 0 };
                self.put(at, size, pa | TABLE | DIRTY | large);
                return;
            }
            let word =
                if size == 4 { u64::from(self.read_u32(at).unwrap()) } else { self.read_u64(at).unwrap() };
            table = word & ADDRESS;
            if word & PRESENT == 0 {
                table = *next;
                *next += 4096;
                self.put(at, size, table | TABLE);
            }
        }
    }
}

pub fn tags(spaces: &Spaces) -> WalkTags {
    WalkTags { linear: spaces.tag(1, Kind::Linear), nested: spaces.tag(1, Kind::Nested) }
}

/// Guest tables of a format at guest-physical 16 MiB and up, below identity-like nested tables (`gpa + 1 GiB`) at 64 MiB.
fn two_dimensions(format: Format, guest_shift: u32, nested_shift: u32) -> (Words, Regime) {
    let (mut memory, mut next_nested, mut next) = (Words::default(), 65 << 20, 17 << 20);
    let (root, nested_root) = (16 << 20, 64 << 20);
    let offset = 1u64 << 30;
    for gpa in (0..256u64 << 20).step_by(1 << nested_shift) {
        memory.map(Format::Long, nested_root, (gpa, gpa + offset, nested_shift), &mut next_nested, &|at| at);
    }
    for page in 0..4u64 {
        let va = 0x4000_0000 + (page << guest_shift);
        memory.map(format, root, (va, (64 << 20) + (page << guest_shift), guest_shift), &mut next, &|at| {
            at + offset
        });
    }
    let nested = Some(nested_root);
    (memory, Regime { format, cr3: root, global_pages: true, nested })
}

/// References of the first walk of a fresh walker.
fn references(memory: &mut Words, regime: &Regime, walker: &mut Walker) -> (usize, u64) {
    let spaces = Spaces::default();
    memory.references.clear();
    let access = Access { va: 0x4000_0123, write: false };
    let (found, uncached) = walker.walk(regime, access, tags(&spaces), &spaces, memory);
    assert_eq!(
        found.map(|found| found.pa),
        Ok((64 << 20) + if regime.nested.is_some() { 1 << 30 } else { 0 })
    );
    (memory.references.len(), uncached)
}

#[test]
fn known_numbers_of_references() {
    let plain = |format, shift| {
        let (mut memory, regime) = two_dimensions(format, shift, 21);
        // The guest's tables alone: moved to where they say they are.
        let moved =
            memory.words.iter().filter(|(pa, _)| **pa >= 1 << 30).map(|(pa, word)| (pa - (1 << 30), *word));
        memory.words = moved.collect();
        references(&mut memory, &Regime { nested: None, ..regime }, &mut Walker::default())
    };
    let both = |format, shift, nested| {
        let (mut memory, regime) = two_dimensions(format, shift, nested);
        references(&mut memory, &regime, &mut Walker::default())
    };
    let two = Format::TwoLevel { pse: true };
    assert_eq!(plain(Format::Long, 12), (4, 4));
    assert_eq!(plain(Format::Long, 21), (3, 3));
    assert_eq!(plain(Format::Pae, 12), (2, 2));
    assert_eq!(plain(Format::Pae, 21), (1, 1));
    assert_eq!(plain(two, 12), (2, 2));
    assert_eq!(plain(two, 22), (1, 1));
    assert_eq!(both(Format::Long, 12, 12), (24, 24));
    assert_eq!(both(Format::Long, 12, 21), (19, 19));
    assert_eq!(both(Format::Long, 21, 21), (15, 15));
    // Two-level: two tables below four nested levels each, and the page itself.
    assert_eq!(both(two, 12, 12), (14, 14));
    // PAE's pointer is a register, and so needs no nested walk either.
    assert_eq!(both(Format::Pae, 12, 12), (14, 14));
}

#[test]
fn without_paging_only_the_nested_tables_count() {
    let (mut memory, regime) = two_dimensions(Format::Long, 12, 12);
    let spaces = Spaces::default();
    let off = Regime { format: Format::Off, ..regime };
    let access = Access { va: 0x12_3456, write: true };
    let (found, uncached) = Walker::default().walk(&off, access, tags(&spaces), &spaces, &mut memory);
    assert_eq!(found.map(|found| (found.pa, found.shift())), Ok(((1 << 30) + 0x12_3000, 12)));
    assert_eq!((memory.references.len(), uncached), (4, 4));
}

pub fn bank(entries: usize, classes: u8) -> Bank {
    Bank::new([Geometry { entries, ways: entries, policy: Policy::Lru, classes }])
}

#[test]
fn walk_caches_shorten_the_second_walk() {
    let (mut memory, regime) = two_dimensions(Format::Long, 12, 21);
    let mut walker = Walker { guest: bank(8, 7), nested: bank(8, 7), nested_tlb: bank(8, 7) };
    let spaces = Spaces::default();
    let mut count = |va| {
        memory.references.clear();
        let (found, uncached) =
            walker.walk(&regime, Access { va, write: false }, tags(&spaces), &spaces, &mut memory);
        assert_eq!((found.is_ok(), uncached), (true, 19));
        memory.references.len()
    };
    // First: tables are near each other, so the nested TLB helps at once.
    assert!(count(0x4000_0000) < 19);
    // Then the page-directory entry is known, and the page is in a nested page that was seen: one reference is left.
    assert_eq!(count(0x4000_1000), 1);
}

#[test]
fn accessed_and_dirty_bits_are_set_once() {
    let (mut memory, regime) = two_dimensions(Format::Long, 12, 21);
    memory.words.values_mut().for_each(|word| *word &= !(ACCESSED | DIRTY));
    let spaces = Spaces::default();
    let mut walker = Walker::default();
    let mut walk = |memory: &mut Words, write| {
        let access = Access { va: 0x4000_2000, write };
        (memory.accessed, memory.dirtied) = (0, 0);
        let (found, _) = walker.walk(&regime, access, tags(&spaces), &spaces, memory);
        (found.unwrap().clean, memory.accessed, memory.dirtied)
    };
    // Four guest entries; nested: two upper ones and two leaves, one of which the walker's own reads of tables dirty.
    assert_eq!(walk(&mut memory, false), (true, 8, 1));
    assert_eq!(walk(&mut memory, false), (true, 0, 0));
    assert_eq!(walk(&mut memory, true), (false, 0, 2));
    assert_eq!(walk(&mut memory, true), (false, 0, 0));
}

#[test]
fn large_pages_of_two_level_tables_reach_above_4_gib() {
    let entry = 0x0040_0000 | 0x12 << 13 | PRESENT | LARGE;
    assert_eq!(frame(Format::TwoLevel { pse: true }, entry, 22), 0x12_0040_0000);
}

#[test]
fn what_is_not_present_faults() {
    let (mut memory, regime) = two_dimensions(Format::Long, 12, 12);
    let spaces = Spaces::default();
    let access = Access { va: 0x7000_0000, write: false };
    let (found, _) = Walker::default().walk(&regime, access, tags(&spaces), &spaces, &mut memory);
    assert_eq!(found, Err(Fault));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With any caches and any order of walks, a walk leads where one without caches does, and never costs more.
    #[test]
    fn caches_change_costs_only(
        trace in prop::collection::vec((0u64..6, any::<bool>(), 0u8..10), 1..60),
        (guest, nested, tlb) in (1usize..6, 1usize..6, 1usize..6),
        sizes in (prop::bool::ANY, prop::bool::ANY),
    ) {
        let shift = |large: bool| if large { 21 } else { 12 };
        let (mut memory, regime) = two_dimensions(Format::Long, shift(sizes.0), shift(sizes.1));
        let mut plain = memory.clone();
        let mut walker = Walker { guest: bank(guest, 7), nested: bank(nested, 7), nested_tlb: bank(tlb, 7) };
        let mut spaces = Spaces::default();
        for (page, write, flush) in trace {
            if flush == 0 {
                prop_assert!(!spaces.flush(1, Kind::Linear));
            }
            let access = Access { va: 0x4000_0000 + (page << shift(sizes.0)), write };
            memory.references.clear();
            plain.references.clear();
            let with = walker.walk(&regime, access, tags(&spaces), &spaces, &mut memory);
            let without = Walker::default().walk(&regime, access, tags(&spaces), &spaces, &mut plain);
            prop_assert_eq!(with.0, without.0);
            prop_assert!(memory.references.len() <= plain.references.len());
            prop_assert!(with.0.is_err() || !memory.references.is_empty());
        }
    }
}
