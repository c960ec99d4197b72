//! The allocator against a model that keeps one flag per frame.

use super::*;
use proptest::prelude::*;

const BASE: u64 = 0x12345;

/// One flag per frame: free.
struct Model {
    free: Vec<bool>,
    held: Vec<(Hfn, u8)>,
}

impl Model {
    fn take(&mut self, frame: Hfn, order: u8) {
        assert_eq!(frame.0 % (1 << order), 0, "alignment");
        for f in &mut self.free[(frame.0 - BASE) as usize..][..1 << order] {
            assert!(std::mem::replace(f, false), "allocated twice");
        }
        self.held.push((frame, order));
    }

    fn give(&mut self, which: usize) -> (Hfn, u8) {
        let (frame, order) = self.held.swap_remove(which % self.held.len());
        self.free[(frame.0 - BASE) as usize..][..1 << order].fill(true);
        (frame, order)
    }

    fn has_block(&self, order: u8) -> bool {
        let size = 1 << order;
        let first = BASE.next_multiple_of(size);
        (first..)
            .step_by(size as usize)
            .take_while(|at| at + size <= BASE + self.free.len() as u64)
            .any(|at| self.free[(at - BASE) as usize..][..size as usize].iter().all(|f| *f))
    }
}

proptest! {
    #[test]
    fn behaves_as_the_model(len in 1u64..3000, holes in prop::collection::vec((0u64..3000, 0u64..40), 0..4),
                            ops in prop::collection::vec((any::<bool>(), 0u8..12, any::<usize>()), 1..200)) {
        let range = Hfn(BASE)..Hfn(BASE + len);
        let mut words = vec![u64::MAX; Buddy::words(&range)];
        let mut buddy = Buddy::new(range, &mut words);
        let mut model = Model { free: vec![true; len as usize], held: vec![] };
        for (at, size) in holes {
            let at = at % len;
            model.free[at as usize..][..size.min(len - at) as usize].fill(false);
        }
        for (i, free) in model.free.iter().enumerate() {
            if *free {
                let at = BASE + i as u64;
                buddy.insert(Hfn(at)..Hfn(at + 1)).unwrap();
            }
        }
        let start = buddy.free_blocks();
        for (alloc, order, which) in ops {
            if alloc {
                let can = model.has_block(order);
                match buddy.alloc(order) {
                    Some(frame) => model.take(frame, order),
                    // Free neighbours are always joined, so that a block is found if there is one.
                    None => prop_assert!(!can, "missed a block of order {}", order),
                }
            } else if !model.held.is_empty() {
                let (frame, order) = model.give(which);
                prop_assert_eq!(buddy.free(frame, order), Ok(()));
                prop_assert_eq!(buddy.free(frame, order), Err(FreeError::AlreadyFree));
                prop_assert_eq!(buddy.free(frame, 0), Err(FreeError::AlreadyFree));
            }
            prop_assert_eq!(buddy.free_frames(), model.free.iter().filter(|f| **f).count() as u64);
        }
        while !model.held.is_empty() {
            let (frame, order) = model.give(0);
            buddy.free(frame, order).unwrap();
        }
        prop_assert_eq!(buddy.free_blocks(), start, "all came together again");
    }

    #[test]
    fn whole_ranges_become_the_largest_blocks(start in 0u64..2_000_000, len in 1u64..2_000_000) {
        let range = Hfn(start)..Hfn(start + len);
        let mut words = vec![0; Buddy::words(&range)];
        let mut buddy = Buddy::new(range.clone(), &mut words);
        buddy.insert(range).unwrap();
        prop_assert_eq!(buddy.free_frames(), len);
        let blocks = buddy.free_blocks();
        let (largest, smaller) = blocks.split_last().unwrap();
        prop_assert!(smaller.iter().all(|count| *count <= 2), "{blocks:?}");
        let gib = 1u64 << MAX_ORDER;
        let whole = ((start + len) / gib).saturating_sub(start.div_ceil(gib));
        prop_assert_eq!(*largest, whole);
    }
}

fn with_buddy(range: Range<u64>, test: impl FnOnce(&mut Buddy<'_>)) {
    let range = Hfn(range.start)..Hfn(range.end);
    let mut words = vec![0; Buddy::words(&range)];
    let mut buddy = Buddy::new(range.clone(), &mut words);
    buddy.insert(range).unwrap();
    test(&mut buddy);
}

#[test]
fn limits_are_kept() {
    with_buddy(0x100..0x2000, |buddy| {
        assert_eq!(buddy.alloc_below(4, Hfn(0x100)), None);
        assert_eq!(buddy.alloc_below(4, Hfn(0x110)), Some(Hfn(0x100)));
        assert_eq!(buddy.alloc_below(4, Hfn(0x110)), None);
        assert_eq!(buddy.alloc_below(12, Hfn(u64::MAX)), Some(Hfn(0x1000)));
        assert_eq!(buddy.alloc(13), None);
        assert_eq!(buddy.alloc(200), None);
    });
}

#[test]
fn wrong_releases_are_refused() {
    with_buddy(0x1000..0x2000, |buddy| {
        let frame = buddy.alloc(3).unwrap();
        assert_eq!(buddy.free(Hfn(frame.0 + 1), 3), Err(FreeError::NotABlock));
        assert_eq!(buddy.free(Hfn(0x2000), 0), Err(FreeError::NotABlock));
        assert_eq!(buddy.free(Hfn(u64::MAX), 0), Err(FreeError::NotABlock));
        assert_eq!(buddy.free(frame, 64), Err(FreeError::NotABlock));
        assert_eq!(buddy.free(Hfn(0x1000), 12), Err(FreeError::AlreadyFree), "its other half is free");
        assert_eq!(buddy.free(frame, 3), Ok(()));
    });
}

/// The allocator's own memory stays below one part in ten thousand.
#[test]
fn metadata_is_small() {
    let gib16 = Hfn(0)..Hfn(16 << 18);
    assert!(Buddy::words(&gib16) as u64 * 8 < (16 << 30) / 10_000);
}
