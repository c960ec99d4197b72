//! What stays of shadow pages over a time on nested tables.

use crate::arch::Access;
use crate::arch::addr::{Gfn, Gva, PAGE_SIZE};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::PteFormat;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::p2m::P2m;
use crate::paging::shadow::tests::{STATE, with_guest_on};
use crate::paging::shadow::{AddressSpace, PageFault, Shadow, ShadowOutcome};
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
