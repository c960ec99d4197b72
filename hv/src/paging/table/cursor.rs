//! Leaves of 4 KiB that are looked up, made and emptied one after the other, near each other: the tables that have them are found once.

use super::{Found, ROOT_LEVEL, Table, TableMemory, entry_range, index, leaf};
use crate::arch::addr::{Gpa, Hfn, Hpa, PageSize};
use crate::paging::format::{Entry, PteFormat};
use crate::paging::range::GpaRange;

/// Tables that are remembered: pages that are used in no order lie in a few.
const SLOTS: usize = 8;

/// Tables of leaves of 4 KiB that were found, by the 2 MiB that they are for. For one tree, and as long as no table of it is taken away.
#[derive(Debug, Default)]
pub struct Cursor {
    found: [Option<(u64, Hfn)>; SLOTS],
}

impl<F: PteFormat, M: TableMemory> Table<F, M> {
    /// The table that has the leaf of 4 KiB of a page, if there is one.
    #[inline]
    fn leaf_table(&self, cursor: &mut Cursor, page: Gpa) -> Option<Hfn> {
        let piece = page.0 >> PageSize::Size2M.shift();
        let slot = &mut cursor.found[piece as usize % SLOTS];
        match slot {
            Some((own, table)) if *own == piece => Some(*table),
            _ => {
                let table = self.find_leaf_table(page)?;
                *slot = Some((piece, table));
                Some(table)
            }
        }
    }

    /// The same by a walk.
    pub(super) fn find_leaf_table(&self, page: Gpa) -> Option<Hfn> {
        if !GpaRange::ALL.contains(page) {
            return None;
        }
        let mut table = self.root;
        for level in (2..=ROOT_LEVEL).rev() {
            let Entry::Table(child) = F::decode(self.memory.load(table, index(page, level)), level) else {
                return None;
            };
            table = child;
        }
        Some(table)
    }

    /// What [`Table::walk`] finds.
    #[inline]
    pub fn walk_by(&self, cursor: &mut Cursor, gpa: Gpa) -> Found<F::Attr> {
        let Some(table) = self.leaf_table(cursor, gpa) else { return self.walk(gpa) };
        let raw = self.memory.load(table, index(gpa, 1));
        match F::decode(raw, 1) {
            Entry::Leaf { to, attr } => Found::Leaf(leaf::<F>(gpa, 1, raw, to, attr)),
            Entry::Table(_) | Entry::Empty => Found::Hole(entry_range(gpa, 1)),
        }
    }

    /// Makes the entry of a page a leaf if it is empty, and says whether it was; no processor remembers anything of it then. `None`: there
    /// is no table that has it.
    #[inline]
    pub fn fill_page(&mut self, cursor: &mut Cursor, page: Gpa, to: Hpa, attr: F::Attr) -> Option<bool> {
        let table = self.leaf_table(cursor, page)?;
        let is_empty = self.memory.load(table, index(page, 1)) == 0;
        if is_empty {
            // Processors set bits in present entries alone.
            self.memory.store(table, index(page, 1), F::leaf(to, 1, attr));
        }
        Some(is_empty)
    }

    /// Empties the entry of a page, if there is a table that has it. That stays, also if it holds nothing then: it takes no search, and the
    /// next page is likely to need it. Processors may remember the leaf that was there, which goes with its bits.
    #[inline]
    pub fn clear_page(&mut self, cursor: &mut Cursor, page: Gpa) {
        if let Some(table) = self.leaf_table(cursor, page) {
            self.memory.store(table, index(page, 1), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::paging::arena::Arena;
    use crate::paging::format::{NestedAttr, npt::Npt};
    use crate::paging::random::Random;

    /// More pieces than a cursor remembers: some share a slot.
    const PIECES: u64 = 3 * SLOTS as u64;
    const HOST: u64 = 1 << 40;

    #[test]
    fn pages_by_a_cursor_are_those_of_walks() {
        let arena = Arena::new(100);
        let mut table = Table::<Npt, _>::new(&arena, PageSize::Size4K).unwrap();
        let (mut cursor, mut random, mut expected) = (Cursor::default(), Random(7), BTreeMap::new());
        for n in 0..20_000 {
            let page = Gpa((random.draw() % PIECES) << 21 | (random.draw() % 4) << 12);
            let to = Hpa(HOST + (n << 12));
            let was_empty = !expected.contains_key(&page.0);
            match (random.draw() % 4, table.fill_page(&mut cursor, page, to, NestedAttr::RAM)) {
                (0, None) => {
                    let _nothing_was_there = table.map(GpaRange::page(page), to, NestedAttr::RAM).unwrap();
                    expected.insert(page.0, to);
                }
                (_, None) => assert!(was_empty),
                (0, Some(is_filled)) => {
                    assert_eq!(is_filled, was_empty);
                    expected.entry(page.0).or_insert(to);
                    table.clear_page(&mut cursor, page);
                    expected.remove(&page.0);
                }
                (_, Some(is_filled)) => {
                    assert_eq!(is_filled, was_empty);
                    expected.entry(page.0).or_insert(to);
                }
            }
            let other = Gpa((random.draw() % PIECES) << 21 | (random.draw() % 4) << 12);
            let found = table.walk_by(&mut cursor, other);
            let leads_to = match found {
                Found::Leaf(leaf) => Some(leaf.to),
                Found::Hole(_) => None,
            };
            assert_eq!(
                (leads_to, found),
                (expected.get(&other.0).copied(), table.walk(other)),
                "{n}: {other}"
            );
        }
        assert_eq!(table.find_leaf_table(Gpa(u64::MAX)), None);
    }

    #[test]
    fn large_leaves_are_found_without_a_table() {
        let arena = Arena::new(10);
        let mut table = Table::<Npt, _>::new(&arena, PageSize::Size2M).unwrap();
        let piece = GpaRange::new(Gpa(1 << 21), 1 << 21).unwrap();
        let _nothing_was_there = table.map(piece, Hpa(HOST), NestedAttr::RAM).unwrap();
        let (mut cursor, page) = (Cursor::default(), Gpa(piece.start.0 + 0x5000));
        assert_eq!(table.walk_by(&mut cursor, page), table.walk(page));
        assert_eq!(table.fill_page(&mut cursor, page, Hpa(0), NestedAttr::RAM), None);
        table.clear_page(&mut cursor, page);
        assert!(matches!(table.walk(page), Found::Leaf(leaf) if leaf.to == Hpa(HOST)));
    }
}
