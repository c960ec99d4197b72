//! What touches are evidence for, one by one.

use super::*;

const Q: u32 = 1000;
const SPACE: Space = Space(1);
/// Two large regions, and small ones.
const A: Rid = Rid(100);
const B: Rid = Rid(101);
const C: Rid = Rid(102);
const D: Rid = Rid(103);
const IN_USE_SMALL: About = About { is_in_use: true, is_large: false };

/// Touches 10 ns after each other.
#[derive(Default)]
struct Touches {
    records: Records,
    at_ns: u32,
}

impl Touches {
    fn met(&mut self, rid: Rid, gfn: u64, is_entered: bool) -> Met {
        self.at_ns += 10;
        Met { rid, gfn: Gfn(gfn), at_ns: self.at_ns, is_entered, idle_ns: Some(10) }
    }

    /// A large region is entered through a page, or touched again.
    fn touch(&mut self, rid: Rid, gfn: u64, is_entered: bool) -> Met {
        let met = self.met(rid, gfn, is_entered);
        self.records.touched(SPACE, &met, Q);
        met
    }

    /// `left` is left for a large region, which is entered through this page.
    fn enter(&mut self, left: Rid, rid: Rid, gfn: u64) -> Evidence {
        let met = self.touch(rid, gfn, true);
        self.records.judge([left, rid], [true; 2], &met, |_| unreachable!())
    }

    /// A large region is left for a small one; `about`: of the one that stands beside it.
    fn enter_small(&mut self, left: Rid, small: Rid, about: About) -> Evidence {
        let met = self.met(small, 999, true);
        self.records.judge([left, small], [true, false], &met, |_| about)
    }
}

#[test]
fn a_hub_is_a_page_by_which_a_region_is_entered_64_times() {
    let hub_after = |pages: u64, pause_at: Option<u32>| {
        let mut touches = Touches::default();
        (1..200).find(|n| {
            let _unclear = touches.enter(B, A, u64::from(*n) % pages);
            touches.at_ns += if pause_at == Some(*n) { Q } else { 0 };
            // All are closed and it is touched again: that is no second time.
            let evidence = touches.enter(A, B, 1000);
            touches.records.closed(B);
            let _touched = touches.touch(B, 1000, false);
            assert!([Evidence::Unclear, Evidence::Hub].contains(&evidence), "{evidence:?}");
            evidence == Evidence::Hub
        })
    };
    assert_eq!(hub_after(20, None), Some(64));
    assert_eq!(hub_after(8, None), Some(64));
    assert_eq!(hub_after(8 - 1, None), None, "two regions of a few hot pages each");
    assert_eq!(hub_after(20, Some(30)), Some(29 + 64), "not used for `q` meanwhile");
}

#[test]
fn regions_of_which_several_pages_are_used_by_turns_are_one() {
    let mut touches = Touches::default();
    let together = (1..100).find(|n| {
        let _unclear = touches.enter(B, A, *n);
        touches.enter(A, B, 1000 + n) == Evidence::Together
    });
    // The first touch of each is the moment since when it is in use.
    assert_eq!(together, Some(8 + 1));
}

#[test]
fn a_visit_of_five_touches_says_as_much() {
    let evidence = |touched: u8, closed_after: Option<u8>| {
        let mut touches = Touches::default();
        (0..20).for_each(|gfn| _ = touches.enter(B, A, gfn));
        let _first = touches.touch(B, 1000, true);
        (20..40).for_each(|gfn| _ = touches.enter(B, A, gfn));
        let _entered = touches.touch(B, 1000, true);
        for n in 1..touched {
            if closed_after == Some(n) {
                touches.records.closed(B);
            }
            let _again = touches.touch(B, 1000, false);
        }
        touches.enter(B, A, 40)
    };
    assert_eq!(evidence(5, None), Evidence::Together);
    assert_eq!(evidence(5 - 1, None), Evidence::Unclear);
    // An interrupt makes a page fault a second time.
    for closed_after in 1..5 {
        assert_eq!(evidence(5, Some(closed_after)), Evidence::Unclear, "{closed_after}");
    }
    assert_eq!(evidence(1 + 5, Some(1)), Evidence::Together, "all after it");
}

#[test]
fn a_region_that_is_in_use_keeps_its_record() {
    for others in [63, 64] {
        let mut touches = Touches::default();
        (0..16_u16).for_each(|n| _ = touches.touch(Rid(200 + n), 1, true));
        // All others are touched in turn.
        for n in 16..others {
            let _touched = touches.touch(Rid(201 + (n % 15) as u16), 2, true);
        }
        let new = touches.touch(A, 3, true);
        let known = [Rid(200), A].map(|rid| touches.records.of(rid).is_some());
        assert_eq!(known, if others == 64 { [false, true] } else { [true, false] });
        let expected = if others == 64 { Evidence::Unclear } else { Evidence::Together };
        let evidence = touches.records.judge([Rid(201), A], [true; 2], &new, |_| unreachable!());
        assert_eq!(evidence, expected, "without a record it merges");
    }
}

#[test]
fn small_regions_join_beside_a_large_one_until_much_of_that_is_used() {
    let idle = About { is_in_use: false, ..IN_USE_SMALL };
    let mut touches = Touches::default();
    let _entered = touches.touch(A, 0, true);
    assert_eq!(touches.enter_small(A, C, idle), Evidence::Unclear);
    assert_eq!(touches.enter_small(A, C, IN_USE_SMALL), Evidence::Unclear, "it is that");
    assert_eq!(touches.enter_small(A, D, IN_USE_SMALL), Evidence::Beside { small: D, of: C });
    // What is not in use is no longer beside it, and joins nothing.
    assert_eq!(touches.enter_small(A, D, idle), Evidence::Unclear);
    assert_eq!(touches.enter_small(A, C, IN_USE_SMALL), Evidence::Beside { small: C, of: D });
    (0..8 - 1).for_each(|gfn| _ = touches.touch(A, gfn, true));
    assert_eq!(touches.enter_small(A, D, IN_USE_SMALL), Evidence::Unclear);
    let mut broad = Touches { records: touches.records.clone(), ..touches };
    let _last = broad.touch(A, 8, true);
    let other = |about| Touches { records: broad.records.clone(), ..broad }.enter_small(A, C, about);
    assert_eq!(other(IN_USE_SMALL), Evidence::Beside { small: D, of: A });
    assert_eq!(other(idle), Evidence::Unclear);
    assert_eq!(other(About { is_large: true, ..IN_USE_SMALL }), Evidence::Unclear, "that takes more");
    assert_eq!(broad.enter_small(A, D, idle), Evidence::Together);
}

#[test]
fn what_stands_beside_a_region_stays_there_when_either_merges() {
    let beside = |both: [Rid; 2], now: Rid| {
        let mut touches = Touches::default();
        let _large = [A, B].map(|rid| touches.touch(rid, 0, true));
        assert_eq!(touches.enter_small(A, C, IN_USE_SMALL), Evidence::Unclear);
        touches.records.merged(both, now);
        both.into_iter().filter(|rid| *rid != now).for_each(|gone| touches.records.forget(gone));
        (touches.records.of(now).and_then(|of| of.beside), touches.records.of(A).and_then(|of| of.beside))
    };
    let since = |rid| Some((rid, 30));
    assert_eq!(beside([A, B], B).0, since(C), "B has not had any");
    assert_eq!(beside([B, A], A).0, since(C));
    assert_eq!(beside([D, C], D).1, since(D), "the small one has another number");
    assert_eq!(beside([A, C], A).0, None, "it is part of it");
    assert_eq!(beside([A, C], C).0, None);
    // Both have one: the later one stays.
    let mut touches = Touches::default();
    let _large = [A, B].map(|rid| touches.touch(rid, 0, true));
    let _first = touches.enter_small(A, C, IN_USE_SMALL);
    let _later = touches.enter_small(B, D, IN_USE_SMALL);
    touches.records.merged([A, B], A);
    assert_eq!(touches.records.of(A).unwrap().beside, Some((D, 40)));
}
