//! Samples on shadow tables.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::*;
use crate::arch::addr::{Hfn, Hpa};
use crate::mem::pager::{Budget, FrameMemory, Pager, Span};
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::shadow::Tuning;

/// 2 MiB of guest memory.
const FRAMES: u64 = 512;

/// No page may be brought in.
#[derive(Debug)]
struct Never;

impl FrameMemory for Never {
    fn take(&mut self) -> Option<Hfn> {
        panic!("an absent page is brought in");
    }
    fn give_back(&mut self, _frame: Hfn) {}
    fn read(&self, _at: Hpa, _buf: &mut [u8]) {}
    fn write(&self, _at: Hpa, _buf: &[u8]) {}
    fn clear(&self, _frame: Hfn) {}
    fn ticks(&self) -> u64 {
        0
    }
}

#[test]
fn pages_that_are_absent_stay_so() {
    let arena = Arena::new(100);
    let mut p2m = P2m::new(&arena).unwrap();
    let span = Span { low: FRAMES as u32, high_start: Gfn(1 << 20), high: 0 };
    let budget = Budget { resident: 100, reserve: 8, store: 60 };
    let pager = Arc::new(Pager::new(span, budget, abi::config::Replacement::Clock, Box::new(Never)).unwrap());
    p2m.map_absent(GpaRange::new(Gpa(0), FRAMES << PAGE_SHIFT).unwrap(), &pager).unwrap();
    let mut shadow = Shadow::<_, Npt>::new(&arena, 32, 40, Tuning::default()).unwrap();
    let mut access = BothAccess {
        p2m: &p2m,
        nested: None,
        shadow: Some(&mut shadow),
        large: LargeLeaves::default(),
        has_cleared: false,
    };
    assert_eq!(access.take_accessed(Gfn(0), u64::MAX, 0), 0);
}
