//! What the mapper does, case by case.

use super::tests::{G1, K4, M2, range};
use super::*;
use crate::arch::Access;
use crate::paging::arena::Arena;
use crate::paging::format::p2m::{P2mFormat, P2mKind};
use crate::paging::format::{NestedAttr, npt::Npt};
use crate::paging::model::{Processor, Vendor};
use crate::paging::range::Flush;

fn leaf_sizes<F: PteFormat, M: TableMemory>(table: &Table<F, M>) -> [usize; 3] {
    let mut sizes = [0; 3];
    table.for_each_leaf(GpaRange::ALL, |leaf| sizes[leaf.size as usize] += 1);
    sizes
}

#[test]
fn the_largest_leaves_that_fit_are_used() {
    let arena = Arena::new(100);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
    // From 4 KiB below 2 MiB to 4 KiB past 1 GiB + 1 GiB.
    assert_eq!(
        table.map(range(M2 - K4, 2 * G1 - M2 + 2 * K4), Hpa(8 * G1 + M2 - K4), NestedAttr::RAM),
        Ok(Flush::None)
    );
    assert_eq!(leaf_sizes(&table), [2, 511, 1]);
    assert_eq!(table.frames(), 1 + 1 + 2 + 2);
    // The same, but host memory is not congruent.
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
    assert_eq!(table.map(range(0, 2 * M2), Hpa(8 * G1 + K4), NestedAttr::RAM), Ok(Flush::None));
    assert_eq!(leaf_sizes(&table), [1024, 0, 0]);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size2M).unwrap();
    assert_eq!(table.map(range(0, G1), Hpa(8 * G1), NestedAttr::RAM), Ok(Flush::None));
    assert_eq!(leaf_sizes(&table), [0, 512, 0]);
}

/// Memory that has nothing but frames for what no processor walks.
struct Unwalked(Arena);

impl TableMemory for Unwalked {
    fn allocate(&self) -> Option<Hfn> {
        None
    }
    fn allocate_unwalked(&self) -> Option<Hfn> {
        self.0.allocate()
    }
    fn free(&self, frame: Hfn) {
        self.0.free(frame);
    }
    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.0.load(frame, index)
    }
    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.0.store(frame, index, value);
    }
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.0.compare_exchange(frame, index, old, new)
    }
}

#[test]
fn tables_that_no_processor_walks_take_no_frame_of_those_that_are_walked() {
    let memory = Unwalked(Arena::new(100));
    assert!(Table::<Npt, _>::new(&memory, PageSize::Size2M).is_err());
    let mut table = Table::<P2mFormat, _>::new(&memory, PageSize::Size2M).unwrap();
    let ram = P2mKind::Ram { writable: true };
    assert_eq!(table.map(range(0, G1), Hpa(8 * G1), ram), Ok(Flush::None));
    assert_eq!(table.unmap(range(K4, K4)), Ok(Flush::None));
    let spare = table.take_spare().unwrap();
    assert!(table.split_shared(Gpa(M2), spare));
    assert_eq!((table.frames(), memory.0.in_use()), (5, 5));
}

#[test]
fn one_page_is_unmapped_and_put_back() {
    let arena = Arena::new(100);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
    assert!(table.map(range(0, G1), Hpa(8 * G1), NestedAttr::RAM).unwrap().is_none());
    let page = range(0x1234_5000, K4);
    assert_eq!(table.unmap(page), Ok(Flush::Range(page)));
    assert_eq!(leaf_sizes(&table), [511, 511, 0]);
    assert_eq!(table.map(page, Hpa(8 * G1 + page.start.0), NestedAttr::RAM), Ok(Flush::None));
    assert_eq!(table.merge(GpaRange::ALL), Flush::Range(range(0, G1)));
    assert_eq!(leaf_sizes(&table), [0, 0, 1]);
    // The two tables stay until the flush is done.
    assert_eq!((table.frames(), arena.in_use()), (2, 4));
    table.reclaim();
    assert_eq!(arena.in_use(), 2);
}

#[test]
fn changed_attributes_keep_accessed_and_dirty_bits() {
    let arena = Arena::new(100);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
    assert!(table.map(range(0, M2), Hpa(8 * G1), NestedAttr::RAM).unwrap().is_none());
    let mut processor = Processor::new(Vendor::Amd);
    processor.access(&arena, table.root(), Gpa(0x5000), Access::WRITE).unwrap();
    assert_eq!(table.protect(range(0, K4), |_| NestedAttr::ROM), Ok(Flush::Range(range(0, K4))));
    let mut dirty = 0;
    let which = AccessBits::ACCESSED | AccessBits::DIRTY;
    let flush = table.harvest(range(0, M2), which, |leaf| {
        assert!(leaf.accessed && leaf.dirty && leaf.size == PageSize::Size4K);
        dirty += 1;
    });
    assert_eq!((dirty, flush), (512, Ok(Flush::Range(range(0, M2)))));
    let again = table.harvest(range(0, M2), which, |leaf| panic!("{leaf:?}"));
    assert_eq!(again, Ok(Flush::None));
}

#[test]
fn a_large_leaf_keeps_that_a_page_below_was_written() {
    let arena = Arena::new(100);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size2M).unwrap();
    assert!(table.map(range(0, M2), Hpa(8 * G1), NestedAttr::RAM).unwrap().is_none());
    // One page leads elsewhere for a while.
    assert!(table.map(range(K4, K4), Hpa(9 * G1), NestedAttr::RAM).is_ok());
    let mut processor = Processor::new(Vendor::Amd);
    processor.access(&arena, table.root(), Gpa(0x5000), Access::WRITE).unwrap();
    assert!(table.map(range(0, M2), Hpa(8 * G1), NestedAttr::RAM).is_ok());
    assert_eq!(leaf_sizes(&table), [0, 1, 0]);
    let mut dirty = 0;
    let _flush = table.harvest(range(0, M2), AccessBits::DIRTY, |_| dirty += 1);
    assert_eq!(dirty, 1);
}

#[test]
fn bad_addresses_are_refused() {
    let arena = Arena::new(4);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
    let ram = NestedAttr::RAM;
    let odd = GpaRange { start: Gpa(0x800), end: Gpa(0x1800) };
    let far = GpaRange { start: Gpa(1 << 48), end: Gpa((1 << 48) + K4) };
    assert_eq!(table.map(odd, Hpa(0), ram), Err(MapError::Address));
    assert_eq!(table.map(range(0, K4), Hpa(0x10), ram), Err(MapError::Address));
    assert_eq!(table.map(range(0, K4), Hpa(1 << 52), ram), Err(MapError::Address));
    assert_eq!(table.map(far, Hpa(0), ram), Err(MapError::Address));
    assert_eq!(table.unmap(odd), Err(MapError::Address));
    assert!(matches!(table.walk(Gpa(u64::MAX)), Found::Hole(_)));
    assert_eq!(table.frames(), 1);
}

#[test]
fn a_write_through_tables_that_were_merged_is_not_lost() {
    let arena = Arena::new(100);
    let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
    assert!(table.map(range(0, M2), Hpa(8 * G1), NestedAttr::RAM).unwrap().is_none());
    assert!(table.split(range(0, M2), PageSize::Size4K).unwrap().is_none());
    let mut processor = Processor::new(Vendor::Amd);
    processor.access(&arena, table.root(), Gpa(0x5000), Access::READ).unwrap();
    let flush = table.merge(GpaRange::ALL);
    // Not flushed yet: the processor goes by the old table.
    processor.access(&arena, table.root(), Gpa(0x6000), Access::WRITE).unwrap();
    processor.flush(flush);
    table.reclaim();
    let mut dirty = Vec::new();
    let flush = table.harvest(GpaRange::ALL, AccessBits::DIRTY, |leaf| dirty.push(leaf.range()));
    assert_eq!((dirty, flush), (vec![range(0, M2)], Ok(Flush::Range(range(0, M2)))));
}
