//! Samples on shadow tables.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gva, Hfn, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::mem::pager::{Budget, FrameMemory, Pager, Span};
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::tests::{STATE, Silent};
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome, Tuning};
use crate::paging::vm_memory::VmMemory;

/// 2 MiB of guest memory.
const FRAMES: u64 = 512;
const M2: u64 = FRAMES << PAGE_SHIFT;
const HOST: Hpa = Hpa(0x8000_0000);
/// Memory that does not end at 2 MiB has no piece there, and the next piece always is another one.
#[test]
fn pieces_are_whole_and_come_to_an_end() {
    const MIB: u64 = 1 << 20;
    for (mib, high) in [(20, 5), (21, 6), (97, 7), (1, 0), (3, 1)] {
        let ram = [Gpa(0)..Gpa(mib * MIB), Gpa((4096 + 1) * MIB)..Gpa((4096 + 1 + high) * MIB)];
        let (mut from, mut found) = (Gpa(0), 0);
        while let Some(piece) = pieces(ram.clone(), from).next() {
            assert!(piece.start >= from && piece.start.0.is_multiple_of(M2) && piece.len() == M2);
            assert!(ram.iter().any(|ram| ram.start <= piece.start && piece.end <= ram.end));
            (from, found) = (piece.end, found + 1);
        }
        assert_eq!(found, mib / 2 + high.saturating_sub(1) / 2);
    }
}

/// A guest whose second 2 MiB of memory lie at `to`. Its tables have them at address 0, as one page or as small ones. `samples` gets what
/// performs a [`Step`].
fn with_shadow(to: Hpa, is_large: bool, samples: impl FnOnce(&mut dyn FnMut(Step) -> u64)) {
    with_pages(|page| Hpa(to.0 + (page << PAGE_SHIFT)), is_large, samples);
}

/// The same where `place` says where each page lies.
fn with_pages(place: impl Fn(u64) -> Hpa, is_large: bool, samples: impl FnOnce(&mut dyn FnMut(Step) -> u64)) {
    let arena = Arena::new(100);
    let mut p2m = P2m::new(&arena).unwrap();
    let host = VecHost::new(HOST, 4 * M2 as usize);
    let mut map = |at, size, to| {
        let _no_engine_yet = p2m.map_ram(GpaRange::new(Gpa(at), size).unwrap(), to, true).unwrap();
    };
    map(0, M2, HOST);
    if is_large {
        map(M2, M2, place(0));
    } else {
        (0..FRAMES).for_each(|page| map(M2 + (page << PAGE_SHIFT), PAGE_SIZE, place(page)));
    }
    let write =
        |at: u64, entry: u64| VmMemory::new(&p2m, &host).write(Gpa(at), &entry.to_le_bytes()).unwrap();
    let last = if is_large { M2 | 0xe7 } else { (4 * PAGE_SIZE) | 7 };
    [(2 * PAGE_SIZE) | 7, (3 * PAGE_SIZE) | 7, last]
        .into_iter()
        .zip(1..)
        .for_each(|(entry, n)| write(n * PAGE_SIZE, entry));
    // Not accessed yet: what a fault fills ahead is not used.
    (0..FRAMES).for_each(|page| write(4 * PAGE_SIZE + page * 8, (M2 + page * PAGE_SIZE) | 7));
    let mut shadow = Shadow::<_, Npt>::new(&arena, 32, 40, Tuning::default()).unwrap();
    shadow.share(1, Arc::new(Silent));
    let (root, _) = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &STATE));
    let (mut scans, mut owe) = (Scans::default(), false);
    let (mut number, mut has_begun) = (0, false);
    samples(&mut |step| match step {
        Step::Touch(page) => {
            let fault = PageFault::new(Gva(page << PAGE_SHIFT), Access::WRITE);
            let memory = VmMemory::new(&p2m, &host);
            let _flushed = shadow.drop_large_leaves([place(page).frame()].into_iter());
            let (outcome, _) = shadow.fault(AddressSpace::new(&p2m, &memory, &STATE), fault);
            let is_allowed = |outcome| matches!(outcome, ShadowOutcome::Filled { .. } | ShadowOutcome::Retry);
            assert!(is_allowed(outcome), "{outcome:?}");
            // That of a processor which has flushed.
            let registers = Registers { smep: false, smap: false, ac: false };
            let mut processor = ShadowProcessor::default();
            let reached = processor.access(&&arena, root, registers, fault.gva, Access::WRITE);
            assert_eq!(reached.map(Hpa::frame), Ok(place(page).frame()));
            0
        }
        Step::Take(group, wanted) => {
            let mut access = Tables::new(None, Some((&p2m, &mut shadow)), &mut scans);
            if !core::mem::replace(&mut has_begun, true) {
                number += 1;
                assert!(access.begin(number, true));
            }
            let touched = access.touched(Gfn(FRAMES), number - 1);
            let asked = Asked { wanted, ..Asked::default() };
            let found = access.take_accessed(Gfn(FRAMES + group * GROUP), asked);
            assert!(touched >> group & 1 != 0 || found == 0, "it would not be asked");
            owe |= access.shadow_owe;
            assert!(owe || found == 0, "without a flush no bit is set again");
            found
        }
        Step::Touched => {
            let mut access = Tables::new(None, Some((&p2m, &mut shadow)), &mut scans);
            access.touched(Gfn(FRAMES), number - 1).into()
        }
        Step::End => {
            scans.end_sample();
            (owe, has_begun) = (false, false);
            0
        }
        Step::Restart => {
            (number, has_begun) = (0, false);
            0
        }
        Step::Drop => {
            let _no_processor_remembers = shadow.drop_everything();
            let _same_root = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &STATE));
            0
        }
    });
}

enum Step {
    /// An access to a page.
    Touch(u64),
    /// These pages of a group are asked for.
    Take(u64, u64),
    /// Which groups of the piece are to be asked in this sample.
    Touched,
    /// The sample is complete.
    End,
    /// The VM was reset: its records are new, and the numbers of samples begin again.
    Restart,
    /// All shadow pages go.
    Drop,
}

#[test]
fn a_large_leaf_tells_of_each_of_its_frames_once() {
    use Step::{End, Take, Touch};
    with_shadow(Hpa(HOST.0 + M2), true, |step| {
        step(Touch(77));
        assert_eq!(step(Take(3, 0xf0)), 0xf0, "whichever is asked for first");
        assert_eq!(step(Take(3, 0x3c0)), 0x300);
        assert_eq!([step(Take(4, u64::MAX)), step(Take(7, 1))], [u64::MAX, 1]);
        step(End);
        assert_eq!([step(Take(3, 0xf0)), step(Take(4, u64::MAX))], [0, 0]);
        step(End);
        step(Touch(5));
        assert_eq!(step(Take(4, 2)), 2);
        assert_eq!(step(Take(4, 2)), 0);
    });
}

#[test]
fn what_was_not_used_is_not_asked() {
    use Step::{Drop, End, Take, Touch, Touched};
    for is_large in [false, true] {
        with_shadow(Hpa(HOST.0 + M2), is_large, |step| {
            let all = if is_large { 0xff } else { 1 << 1 };
            step(Touch(77));
            step(Take(0, 0));
            assert_eq!(step(Touched), all);
            assert_ne!(step(Take(1, u64::MAX)), 0);
            assert_eq!(step(Touched), all & !(1 << 1), "it was asked for");
            step(End);
            assert_eq!([step(Take(1, u64::MAX)), step(Touched)], [0, 0], "found by an older sample");
            step(End);
            step(Touch(130));
            assert_ne!(step(Take(2, u64::MAX)), 0);
            step(End);
            // What was there goes with its bits.
            step(Touch(131));
            step(Drop);
            step(Take(0, 0));
            assert_eq!(step(Touched), 0);
        });
    }
}

#[test]
fn numbers_that_begin_again_forget_what_samples_before_have_found() {
    use Step::{End, Restart, Take, Touch, Touched};
    with_shadow(Hpa(HOST.0 + M2), false, |step| {
        for _ in 0..3 {
            step(Touch(77));
            step(Touch(200));
            assert_eq!(step(Take(3, u64::MAX)), 1 << (200 % GROUP));
            step(End);
        }
        step(Restart);
        step(Touch(200));
        step(Take(0, 0));
        assert_eq!(step(Touched), 1 << 3, "and not page 77, which was not asked for");
        assert_eq!([step(Take(1, u64::MAX)), step(Take(3, u64::MAX))], [0, 1 << (200 % GROUP)]);
    });
}

#[test]
fn small_leaves_tell_of_their_own_frames() {
    use Step::{End, Take, Touch};
    // Behind page 411 another window of the lists begins.
    with_shadow(Hpa((4 << 30) - (412 << PAGE_SHIFT)), false, |step| {
        let pages = [0, 7, 8, 63, 64, 384, 411, 412, 447, 511];
        pages.iter().for_each(|page| _ = step(Touch(*page)));
        assert_eq!(step(Take(0, 1 << 7)), 1 << 7, "no others");
        for group in 0..8 {
            let own = pages.iter().filter(|page| **page / GROUP == group && **page != 7);
            let want = own.fold(0, |all, page| all | 1u64 << (page % GROUP));
            assert_eq!(step(Take(group, u64::MAX)), want, "group {group}");
        }
        step(End);
        assert!((0..8).all(|group| step(Take(group, u64::MAX)) == 0));
    });
}

/// Touches pages at random, and takes samples of all.
fn samples_are_exact(place: impl Fn(u64) -> Hpa) {
    use Step::{End, Take, Touch};
    with_pages(place, false, |step| {
        let mut word = 7u64;
        for _ in 0..20 {
            let mut used = [0u64; 8];
            for _ in 0..60 {
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let page = word >> 55;
                step(Touch(page));
                used[(page / GROUP) as usize] |= 1 << (page % GROUP);
            }
            for (group, used) in (0..).zip(used) {
                assert_eq!(step(Take(group, word)), used & word, "group {group}");
                assert_eq!(step(Take(group, !word)), used & !word, "the others of group {group}");
            }
            step(End);
        }
    });
}

/// Five pages at a time lie side by side, in many pieces of 2 MiB: a group is asked for in runs of any length.
#[test]
fn scattered_pages_tell_of_their_own_frames() {
    samples_are_exact(|page| Hpa(HOST.0 + M2 + ((page / 5 * 41 % 103 * 1021 + page % 5) << PAGE_SHIFT)));
}

/// Pages 64 MiB apart, more than there are lists for: some are on the same list of leaves.
#[test]
fn pages_on_one_list_tell_of_their_own_frames() {
    samples_are_exact(|page| Hpa(HOST.0 + M2 + ((page % 64) << 26) + ((page / 64) << PAGE_SHIFT)));
}

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
    p2m.map_absent(GpaRange::new(Gpa(0), M2).unwrap(), &pager).unwrap();
    let mut shadow = Shadow::<_, Npt>::new(&arena, 32, 40, Tuning::default()).unwrap();
    let mut scans = Scans::default();
    let mut access = Tables::new(None, Some((&p2m, &mut shadow)), &mut scans);
    assert_eq!(access.take_accessed(Gfn(0), Asked { wanted: u64::MAX, ..Asked::default() }), 0);
}

#[test]
fn samples_of_the_vm_leave_joined_leaves_to_those_of_an_address_space() {
    let arena = Arena::new(100);
    let (_p2m, mut trees) = NestedTrees::<Npt, _>::of_domains(&arena, M2, HOST, 1);
    trees.keep_small(Gfn(3));
    let _nothing_remembers = trees.join_pieces(GpaRange::ALL, |_| true);
    trees.take_retired().free(&arena);
    let mut scans = Scans::default();
    let mut take = |wanted, last, is_second| {
        let mut tables = Tables::new(Some(&trees), None, &mut scans);
        let found = tables.take_accessed(Gfn(0), Asked { wanted, last, is_second });
        let owes = tables.nested_owe;
        scans.end_sample();
        (found, owes)
    };
    assert_eq!(take(0xff, 0x13, true), (0x13, false));
    assert_eq!(take(0xf00, 0x300, false), (0x300, true), "what was accessed is theirs");
    assert_eq!(take(0xff, 0x13, true), (0x13, false));
    assert_eq!([take(0xf00, 0x300, false), take(0xff, 0x13, true)], [(0, false); 2], "idle for both");
}
