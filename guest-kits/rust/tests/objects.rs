//! Objects in a region: what they hold, when they are dropped, when memory comes back. On a machine without the guest kit memory
//! is plain, from the same allocator.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use palimpsest_region::{ALIGNMENT_MAX, FastMemory, Region, RegionVec};
use proptest::prelude::*;

/// Counts how many of it there are.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Counted<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn objects_are_dropped_once_and_their_memory_comes_back() {
    let (region, count) = (Region::new(), AtomicUsize::new(0));
    let object = region.alloc(Counted::new(&count)).unwrap();
    let mut several = region.vec();
    several.extend((0..1000).map(|_| Counted::new(&count)));
    assert_eq!((count.load(Ordering::Relaxed), region.frames() > 0), (1001, true));
    drop(object);
    several.truncate(10);
    assert_eq!(count.load(Ordering::Relaxed), 10);
    drop(several);
    region.trim();
    assert_eq!((count.load(Ordering::Relaxed), region.frames()), (0, 0));
}

#[test]
fn an_object_keeps_its_region() {
    let object = {
        let region = Region::new();
        region.alloc([7u8; 1000]).unwrap()
    };
    assert!(object.iter().all(|byte| *byte == 7));
}

#[test]
fn a_wish_is_kept_or_refused_with_a_reason() {
    match FastMemory::want(FastMemory::ALL) {
        Ok(wish) => {
            wish.change(0).unwrap();
            let too_much = wish.change(FastMemory::ALL + 1).unwrap_err();
            assert_eq!(too_much.raw_os_error(), Some(abi::kit::EINVAL as i32));
        }
        Err(why) => {
            let reasons = [abi::kit::ENOENT, abi::kit::EACCES, abi::kit::ENODEV, abi::kit::EOPNOTSUPP]
                .map(|n| n as i32);
            assert!(why.raw_os_error().is_some_and(|number| reasons.contains(&number)), "{why}");
        }
    }
}

#[test]
fn what_has_no_size_takes_no_memory() {
    let region = Region::new();
    let (nothing, mut many) = (region.alloc(()).unwrap(), region.vec());
    many.extend([(); 100]);
    assert_eq!((*nothing, many.len(), region.frames()), ((), 100, 0));
}

#[test]
fn alignment_has_a_limit() {
    #[repr(align(65536))]
    struct Aligned(u8);
    #[repr(align(131072))]
    struct TooAligned(#[allow(dead_code, reason = "it is never made")] u8);
    let region = Region::new();
    let object = region.alloc(Aligned(3)).unwrap();
    assert!(std::ptr::from_ref(&*object).addr().is_multiple_of(ALIGNMENT_MAX) && object.0 == 3);
    assert!(region.alloc(TooAligned(3)).is_err());
}

#[test]
fn a_region_says_what_its_memory_is() {
    let region = Region::new();
    assert_eq!(region.number().is_some(), region.reason().is_none());
    assert_eq!(Region::of_hypervisor().is_ok(), region.reason().is_none());
}

#[test]
fn threads_share_a_region() {
    let region = Region::new();
    thread::scope(|scope| {
        for seed in 0..4u64 {
            let region = &region;
            scope.spawn(move || {
                let mut kept: Vec<RegionVec<u64>> = vec![];
                for n in 0..3000u64 {
                    let mut numbers = region.vec();
                    numbers.extend((0..n % 70).map(|at| seed << 32 | n ^ at));
                    kept.push(numbers);
                    if n % 3 == 2 {
                        let numbers = kept.swap_remove((n * 7919 + seed) as usize % kept.len());
                        let first = numbers.first().copied().unwrap_or(0);
                        assert!(numbers.iter().zip(0..).all(|(number, at)| *number == first ^ at));
                    }
                }
            });
        }
    });
    region.trim();
    assert_eq!(region.frames(), 0);
}

proptest! {
    /// Vectors that grow, shrink and go have what vectors of the standard library have.
    #[test]
    fn vectors_are_those_of_the_standard_library(
        steps in prop::collection::vec((0..8usize, 0..4u8, 0..3000usize), 1..120)
    ) {
        let region = Region::new();
        let mut ours: [RegionVec<u32>; 8] = [(); 8].map(|()| region.vec());
        let mut theirs: [Vec<u32>; 8] = Default::default();
        for (at, what, length) in steps {
            let values = (0..length as u32).map(|n| n.wrapping_mul(2_654_435_761) ^ at as u32);
            match what {
                0 => { ours[at].extend(values.clone()); theirs[at].extend(values); }
                1 => { ours[at].truncate(length); ours[at].shrink_to_fit(); theirs[at].truncate(length); }
                2 => { ours[at].resize(length, 9); theirs[at].resize(length, 9); }
                _ => { ours[at] = region.vec(); theirs[at] = vec![]; }
            }
            for (ours, theirs) in ours.iter().zip(&theirs) {
                prop_assert_eq!(&ours[..], &theirs[..]);
            }
        }
    }
}
