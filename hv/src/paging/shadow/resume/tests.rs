//! What stays of shadow pages over a time on nested tables.

use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Gva, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::PteFormat;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::shadow::left_out::{LeftOut, Step};
use crate::paging::shadow::tests::{HOST, STATE, with_guest_on};
use crate::paging::shadow::{AddressSpace, PageFault, Shadow, ShadowOutcome, Tuning};
use crate::paging::vm_memory::VmMemory;

/// The guest writes an entry on nested tables. What its address translates to when it is back, if no fault is needed, and how many
/// pages there are.
fn after<F: PteFormat>(at: u64, entry: u64, is_written: bool) -> (Option<u64>, u64) {
    let mut result = (None, 0);
    with_guest_on::<F>(|p2m: &P2m<&Arena>, write, host: &VecHost, shadow: &mut Shadow<&Arena, F>| {
        let memory = VmMemory::new(p2m, host);
        let (outcome, _) =
            shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0), Access::READ));
        assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        let first = shadow.code(Gva(0), true).expect("just filled");
        assert_eq!(shadow.tables().map(|table| table.0).collect::<Vec<_>>(), [1, 2, 3, 4]);
        shadow.leave();
        write(at, entry);
        let table = Gfn(at / PAGE_SIZE);
        let (_, _all) = shadow.resume(p2m, &memory, 40, |page| is_written && page == table);
        let _all = shadow.load(AddressSpace::new(p2m, &memory, &STATE));
        if is_written {
            shadow.check(p2m, &memory, &STATE).unwrap();
        }
        let now = shadow.code(Gva(0), true);
        result = (now.map(|now| now.0.wrapping_sub(first.0) / PAGE_SIZE), shadow.statistics().pages);
    });
    result
}

fn resumes<F: PteFormat>() {
    // What was written, and what is left of the way down: page 5 is mapped, by tables in pages 1 to 4.
    for level in 1..=3 {
        let at = (4 - level) * PAGE_SIZE;
        let same = ((5 - level) * PAGE_SIZE) | 0x27;
        assert_eq!(after::<F>(at, same, true), (Some(0), 4), "level {level}: nothing has changed");
        assert_eq!(after::<F>(at, same | 0x200, true), (Some(0), 4), "a bit for software");
        for other in [0, (9 * PAGE_SIZE) | 0x27, same & !2, same & !4, same & !0x20, same | 0x80] {
            assert_eq!(after::<F>(at, other, true).0, None, "level {level}: {other:#x}");
        }
    }
    let leaf = 4 * PAGE_SIZE;
    assert_eq!(after::<F>(leaf, (5 * PAGE_SIZE) | 0x27, true), (Some(0), 4));
    assert_eq!(after::<F>(leaf, (5 * PAGE_SIZE) | 0x67, true), (Some(0), 4), "a dirty bit");
    assert_eq!(after::<F>(leaf, (6 * PAGE_SIZE) | 0x27, true).0, None);
    // Only what is dirty is looked at.
    assert_eq!(after::<F>(leaf, 0, false), (Some(0), 4));
}

#[test]
fn pages_of_tables_that_say_the_same_stay() {
    resumes::<Npt>();
    resumes::<Ept>();
}

/// More entries than are compared at once: the page stays, nothing leads to it until it is used. Its second entry is changed
/// meanwhile, a fault at the first links it. Where the second leads then, if it leads anywhere.
fn second_page_after_deferral(left_out: Option<Step>) -> Option<u64> {
    let mut result = None;
    with_guest_on::<Npt>(|p2m, write, host, shadow| {
        shadow.tuning = Tuning { compared: 1, window: 1, ..shadow.tuning };
        shadow.left_out = LeftOut(left_out);
        let memory = VmMemory::new(p2m, host);
        let space = AddressSpace::new(p2m, &memory, &STATE);
        let touch = |shadow: &mut Shadow<&Arena, Npt>, gva| {
            let (outcome, _) = shadow.fault(space, PageFault::new(Gva(gva), Access::READ));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        };
        write(4 * PAGE_SIZE + 8, (6 * PAGE_SIZE) | 0x27);
        touch(shadow, 0);
        touch(shadow, PAGE_SIZE);
        let first = shadow.code(Gva(0), true).expect("just filled");
        shadow.leave();
        write(4 * PAGE_SIZE + 8, (7 * PAGE_SIZE) | 0x27);
        let (_, _all) = shadow.resume(p2m, &memory, 40, |_| true);
        let _all = shadow.load(space);
        shadow.check(p2m, &memory, &STATE).unwrap();
        let found = [0, PAGE_SIZE].map(|gva| shadow.code(Gva(gva), true));
        assert_eq!(found, [None, None], "a processor finds nothing in it");
        assert_eq!((shadow.statistics().pages, shadow.statistics().deferred), (4, 1));
        touch(shadow, 0);
        assert_eq!(shadow.statistics().pages_made, 4, "the same page");
        if left_out.is_none() {
            shadow.check(p2m, &memory, &STATE).unwrap();
        }
        assert_eq!(shadow.code(Gva(0), true), Some(first));
        result = shadow.code(Gva(PAGE_SIZE), true).map(|now| (now.0 - first.0) / PAGE_SIZE);
    });
    result
}

#[test]
fn a_page_that_is_deferred_is_compared_when_it_is_used() {
    assert_eq!(second_page_after_deferral(None), None, "what has changed is gone");
    assert_eq!(second_page_after_deferral(Some(Step::CompareDeferred)), Some(1), "the mistake is seen");
}

/// A large page: its accessed bit, which the walk has set, is set again after the guest has cleared it.
#[test]
fn an_accessed_bit_of_a_large_page_that_is_cleared_meanwhile_is_seen() {
    const MIB_2: u64 = 2 << 20;
    with_guest_on::<Npt>(|_, write, host, _| {
        let arena = Arena::new(100);
        let mut p2m = P2m::new(&arena).unwrap();
        // The tables below 2 MiB, and a contiguous page of 2 MiB above, of which nothing is read.
        let (tables, large) = (GpaRange::new(Gpa(0), 6 * PAGE_SIZE), GpaRange::new(Gpa(MIB_2), MIB_2));
        let _no_engine_yet = p2m.map_ram(tables.unwrap(), HOST, true).unwrap();
        let _no_engine_yet = p2m.map_ram(large.unwrap(), Hpa(4 * MIB_2), true).unwrap();
        let memory = VmMemory::new(&p2m, host);
        let mut shadow: Shadow<&Arena, Npt> = Shadow::new(&arena, 16, 40, Tuning::default()).unwrap();
        let entry = Gpa(3 * PAGE_SIZE);
        write(entry.0, MIB_2 | 0x87);
        let space = AddressSpace::new(&p2m, &memory, &STATE);
        let touch = |shadow: &mut Shadow<&Arena, Npt>| {
            let (outcome, _) = shadow.fault(space, PageFault::new(Gva(0), Access::WRITE));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }), "{outcome:?}");
            assert_eq!(memory.read_u64(entry).unwrap() & 0xff, 0xe7);
        };
        let _first = shadow.load(space);
        touch(&mut shadow);
        for cleared in [0xa7, 0xc7] {
            shadow.leave();
            write(entry.0, MIB_2 | cleared);
            let (_, _all) = shadow.resume(&p2m, &memory, 40, |_| true);
            let _all = shadow.load(space);
            shadow.check(&p2m, &memory, &STATE).unwrap();
            touch(&mut shadow);
        }
    });
}
