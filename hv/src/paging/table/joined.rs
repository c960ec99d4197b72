//! Small leaves that are joined for a time: walks are shorter, and accessed bits tell less. Bits that processors ignore mark the large leaf,
//! so that it is known of which pages more had been told, and that they become small leaves again, and then these until a sample has
//! taken what they have inherited.

use super::{AccessedLarge, ROOT_LEVEL, Table, TableMemory, entry_range, index, parts, span};
use crate::arch::addr::{Gpa, Hfn, PageSize};
use crate::paging::format::{Entry, LeafAttr, PteFormat};
use crate::paging::range::{Flush, GpaRange};

/// The level of leaves of 2 MiB.
const LEVEL: u8 = 2;

impl<F: PteFormat, M: TableMemory> Table<F, M> {
    /// Joins the leaves of 4 KiB of each piece of 2 MiB in `range` that `may` accepts and for which one leaf could stand that is present,
    /// and marks that. Because processors may still set bits in the old tables, it counts as accessed and dirty.
    pub fn join_pieces(&mut self, range: GpaRange, may: impl Fn(GpaRange) -> bool) -> Flush {
        if self.largest < PageSize::Size2M {
            return Flush::None;
        }
        self.join_below(self.root, ROOT_LEVEL, range.intersect(GpaRange::ALL), &may)
    }

    fn join_below(
        &mut self,
        table: Hfn,
        level: u8,
        range: GpaRange,
        may: &impl Fn(GpaRange) -> bool,
    ) -> Flush {
        let mut flush = Flush::None;
        for (index, part) in parts(range, level) {
            let Entry::Table(child) = F::decode(self.memory.load(table, index), level) else { continue };
            if level > LEVEL {
                flush = flush.and(self.join_below(child, level - 1, part, may));
            } else if part.len() == span(LEVEL)
                && let Some(leaf) = self.uniform(child, LEVEL - 1).filter(|(_, attr)| attr.is_present())
                && may(part)
            {
                flush = flush.and(self.set(table, index, LEVEL, part, Some(leaf)));
                self.mark(table, index);
            }
        }
        flush
    }

    /// Marks a leaf that has just been joined.
    fn mark(&self, table: Hfn, index: usize) {
        let mut raw = self.memory.load(table, index);
        // Processors set accessed and dirty bits meanwhile.
        while let Err(now) = self.memory.compare_exchange(table, index, raw, raw | F::JOINED) {
            raw = now;
        }
    }

    /// Notes that a joined leaf was not accessed: of what is accessed there later it is not known which pages that are.
    pub(super) fn mark_idle(&self, table: Hfn, index: usize) {
        let mut raw = self.memory.load(table, index);
        while raw & F::JOINED_IDLE == 0
            && raw & F::ACCESSED == 0
            && let Err(now) = self.memory.compare_exchange(table, index, raw, raw | F::JOINED_IDLE)
        {
            raw = now;
        }
    }

    /// What the leaf at `gpa` tells of its pages if it is joined. Nothing is cleared, so that it counts as accessed until one that clears
    /// ([`Table::take_accessed_group`]) finds it idle.
    pub fn joined_leaf(&self, gpa: Gpa) -> Option<AccessedLarge> {
        let (table, _) = self.above_piece(gpa).filter(|(_, level)| *level == LEVEL)?;
        let raw = self.memory.load(table, index(gpa, LEVEL));
        let is_leaf = matches!(F::decode(raw, LEVEL), Entry::Leaf { .. });
        let is_joined = raw & F::JOINED_IDLE == 0;
        let is_accessed = is_joined || raw & F::ACCESSED != 0;
        let range = entry_range(gpa, LEVEL);
        (is_leaf && raw & F::JOINED != 0).then_some(AccessedLarge { range, is_accessed, is_joined })
    }

    /// Has small leaves stand again for those in `range` that are marked, where there is memory for that. Translations stay the same.
    pub fn split_joined(&mut self, range: GpaRange) {
        self.split_below(self.root, ROOT_LEVEL, range.intersect(GpaRange::ALL));
    }

    fn split_below(&mut self, table: Hfn, level: u8, range: GpaRange) {
        for (index, part) in parts(range, level) {
            let raw = self.memory.load(table, index);
            match F::decode(raw, level) {
                Entry::Table(child) if level > LEVEL => self.split_below(child, level - 1, part),
                Entry::Leaf { .. } if level == LEVEL && raw & F::JOINED != 0 => {
                    let _stays_large = self.split_leaf(table, index, level);
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::addr::Hpa;
    use crate::paging::arena::Arena;
    use crate::paging::format::{NestedAttr, ept::Ept, npt::Npt};
    use crate::paging::table::scan::AccessedSmall;
    use crate::paging::table::{AccessBits, AccessedGroup, AccessedLarge, Found, Touched};

    const M2: u64 = 0x20_0000;
    const HOST: Hpa = Hpa(1 << 30);

    fn piece(n: u64) -> GpaRange {
        GpaRange::new(Gpa(n * M2), M2).unwrap()
    }

    fn size<F: PteFormat>(table: &Table<F, &Arena>, gpa: u64) -> Option<PageSize> {
        match table.walk(Gpa(gpa)) {
            Found::Leaf(leaf) => Some(leaf.size),
            Found::Hole(_) => None,
        }
    }

    /// What a sample finds in the first piece.
    fn sample<F: PteFormat>(table: &Table<F, &Arena>) -> AccessedLarge {
        match table.take_accessed_group(Gpa(0), u64::MAX) {
            AccessedGroup::Large(leaf) => leaf,
            small => panic!("{small:?}"),
        }
    }

    fn small_sample<F: PteFormat>(table: &Table<F, &Arena>) -> AccessedSmall {
        match table.take_accessed_group(Gpa(0), u64::MAX) {
            AccessedGroup::Small(found) => found,
            large => panic!("{large:?}"),
        }
    }

    /// Another access, by which a processor sets the bit.
    fn access<F: PteFormat<Attr = NestedAttr>>(table: &Table<F, &Arena>, arena: &Arena) {
        let leaves = table.find_above(Gpa(0), LEVEL);
        arena.store(leaves, 0, arena.load(leaves, 0) | F::ACCESSED);
    }

    impl<F: PteFormat> Table<F, &Arena> {
        /// The table of this level.
        fn find_above(&self, gpa: Gpa, level: u8) -> Hfn {
            let mut table = self.root;
            for level in (level + 1..=ROOT_LEVEL).rev() {
                let Entry::Table(child) =
                    F::decode(self.memory.load(table, super::super::index(gpa, level)), level)
                else {
                    panic!("no table of level {level}")
                };
                table = child;
            }
            table
        }
    }

    fn pieces_are_joined_and_split<F: PteFormat<Attr = NestedAttr>>() {
        let arena = Arena::new(20);
        let mut table = Table::<F, _>::new(&arena, PageSize::Size2M).unwrap();
        let all = GpaRange::new(Gpa(0), 4 * M2).unwrap();
        let _nothing_was_there = table.map(all, HOST, NestedAttr::RAM).unwrap();
        let _same = table.split(GpaRange::new(Gpa(0), 3 * M2).unwrap(), PageSize::Size4K).unwrap();
        let _closed = table.protect(GpaRange::page(Gpa(M2 + 0x5000)), |_| NestedAttr::CLOSED).unwrap();
        let _closed = table.protect(piece(2), |_| NestedAttr::CLOSED).unwrap();
        assert_eq!(table.join_pieces(GpaRange::ALL, |own| own != piece(0)), Flush::None);
        assert_eq!(table.join_pieces(GpaRange::new(Gpa(0), M2 / 2).unwrap(), |_| true), Flush::None);
        assert_eq!(table.join_pieces(GpaRange::ALL, |_| true), Flush::Range(piece(0)));
        table.reclaim();
        let sizes = |table: &Table<F, _>| [0, 1, 2, 3].map(|n| size(table, n * M2));
        let small = Some(PageSize::Size4K);
        assert_eq!(sizes(&table), [Some(PageSize::Size2M), small, small, Some(PageSize::Size2M)]);
        assert_eq!(table.join_pieces(GpaRange::ALL, |_| true), Flush::None);
        // Whatever is accessed there: those that were found the time before.
        let first = sample(&table);
        assert_eq!((first.is_accessed, first.is_joined, first.pages(0xff, 0x13)), (true, true, 0x13));
        let touched = |table: &Table<F, &Arena>| {
            let Touched { is_touched, owes } = table.take_touched(Gpa(0x7000));
            (is_touched, owes)
        };
        assert_eq!(touched(&table), (true, false), "it is asked until it was found idle");
        access(&table, &arena);
        assert_eq!(sample(&table).pages(0xf0, 0x13), 0x10);
        // One that clears nothing tells the same until it is idle.
        let peek = |table: &Table<F, &Arena>| table.joined_leaf(Gpa(0x7000)).unwrap().pages(0xff, 0x13);
        assert_eq!(
            (peek(&table), table.joined_leaf(Gpa(M2)), table.joined_leaf(Gpa(3 * M2))),
            (0x13, None, None)
        );
        // Then nothing, and from then on any page may be meant.
        assert_eq!((sample(&table).pages(0xff, 0x13), peek(&table)), (0, 0));
        assert_eq!(touched(&table), (false, false));
        access(&table, &arena);
        assert_eq!([peek(&table); 2], [0xff; 2]);
        assert_eq!(sample(&table).pages(0xff, 0x13), 0xff);
        table.split_joined(GpaRange::ALL);
        table.reclaim();
        assert_eq!(sizes(&table), [small, small, small, Some(PageSize::Size2M)], "idle or not");
        let none = small_sample(&table);
        assert_eq!((none.any(), none.pages(0xff)), (false, 0));
        let _all_bits_are_set = table.join_pieces(GpaRange::ALL, |_| true);
        table.split_joined(GpaRange::ALL);
        table.reclaim();
        assert_eq!([touched(&table), touched(&table)], [(true, true), (false, false)], "as the leaves");
        let mut told = 0;
        let _flushed = table.harvest(piece(0), AccessBits::ACCESSED, |leaf| {
            assert_eq!(leaf.to.0, HOST.0 + leaf.gpa.0);
            told += 1;
        });
        assert_eq!(told, 512, "what was accessed before counts for each");
        // Where samples tell of it, for those that were found the time before.
        let _all_bits_are_set = table.join_pieces(GpaRange::ALL, |_| true);
        table.split_joined(GpaRange::ALL);
        table.reclaim();
        let first = small_sample(&table);
        assert_eq!((first.any(), first.pages(0x13), first.pages(0)), (true, 0x13, 0));
        let leaves = table.find_above(Gpa(0), 1);
        arena.store(leaves, 2, arena.load(leaves, 2) | F::ACCESSED);
        assert_eq!(small_sample(&table).pages(0), 4, "it tells of itself again");
    }

    #[test]
    fn pieces_are_joined_and_split_in_both_formats() {
        pieces_are_joined_and_split::<Npt>();
        pieces_are_joined_and_split::<Ept>();
    }

    fn eight_pieces_are_idle_where_none_was_touched<F: PteFormat<Attr = NestedAttr>>() {
        let arena = Arena::new(20);
        let mut table = Table::<F, _>::new(&arena, PageSize::Size2M).unwrap();
        let _nothing_was_there =
            table.map(GpaRange::new(Gpa(0), 16 * M2).unwrap(), HOST, NestedAttr::RAM).unwrap();
        let _same = table.split(piece(3), PageSize::Size4K).unwrap();
        let entries = table.find_above(Gpa(0), 2);
        let is_touched = |n: usize| arena.load(entries, n) & F::ACCESSED != 0;
        let idle = |table: &Table<F, &Arena>| [0, 8].map(|n| table.is_idle(Gpa(n * M2), 8));
        (0..16).filter(|n| is_touched(*n)).for_each(|n| {
            arena.store(entries, n, arena.load(entries, n) & !F::ACCESSED);
        });
        assert_eq!(idle(&table), [true; 2]);
        for n in [0, 3, 7] {
            arena.store(entries, n, arena.load(entries, n) | F::ACCESSED);
            assert_eq!(idle(&table), [false, true], "{n}");
            arena.store(entries, n, arena.load(entries, n) & !F::ACCESSED);
        }
        arena.store(entries, 9, arena.load(entries, 9) | F::JOINED);
        assert_eq!(idle(&table), [true, false], "joined leaves are asked");
        assert!(!table.is_idle(Gpa(1 << 40), 8), "nothing is known where nothing is");
    }

    #[test]
    fn eight_pieces_are_idle_in_both_formats() {
        eight_pieces_are_idle_where_none_was_touched::<Npt>();
        eight_pieces_are_idle_where_none_was_touched::<Ept>();
    }

    #[test]
    fn leaves_stay_small_where_all_are() {
        let arena = Arena::new(10);
        let mut table = Table::<Npt, _>::new(&arena, PageSize::Size4K).unwrap();
        let _nothing_was_there = table.map(piece(0), HOST, NestedAttr::RAM).unwrap();
        assert_eq!(
            (table.join_pieces(GpaRange::ALL, |_| true), size(&table, 0)),
            (Flush::None, Some(PageSize::Size4K))
        );
    }
}
