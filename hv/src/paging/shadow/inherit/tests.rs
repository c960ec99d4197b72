//! What a new address space costs no fault for.

use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, PAGE_SIZE};
use crate::arch::state::cr4;
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::PteFormat;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::format::x86::{ADDRESS, WRITE};
use crate::paging::guest_walk::PagingState;
use crate::paging::p2m::P2m;
use crate::paging::shadow::tests::{HOST, STATE, with_guest, with_guest_on};
use crate::paging::shadow::{AddressSpace, PageFault, Shadow, ShadowOutcome};
use crate::paging::vm_memory::VmMemory;

#[test]
fn a_new_root_inherits_links_of_used_entries_with_the_same_rights() {
    // Accessed or not, writable or not.
    for (bits, inherits) in [(0x27, true), (7, false), (0x25, false)] {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let (outcome, _) =
                shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0), Access::READ));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
            write(7 * PAGE_SIZE, (2 * PAGE_SIZE) | bits);
            let other = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };
            let _flush = shadow.load(AddressSpace::new(p2m, &memory, &other));
            assert_eq!(shadow.code(Gva(0), true).is_some(), inherits, "{bits:#x}");
            shadow.check(p2m, &memory, &other).unwrap();
        });
    }
}

/// The right to write that leaves give to a page of the guest's.
fn is_writable<F: PteFormat>(shadow: &Shadow<&Arena, F>, page: u64) -> bool {
    let to = HOST.0 + page * PAGE_SIZE;
    shadow.pool.leaves().any(|(_, _, raw)| raw & ADDRESS == to && raw & WRITE != 0)
}

/// Two tables of level 1, the one in page 6 below the second entry of level 2. The first one maps it, with its dirty bit set.
fn two_tables(write: &dyn Fn(u64, u64)) {
    write(3 * PAGE_SIZE + 8, (6 * PAGE_SIZE) | 0x67);
    write(4 * PAGE_SIZE + 8, (6 * PAGE_SIZE) | 0x67);
    write(6 * PAGE_SIZE, (8 * PAGE_SIZE) | 0x67);
}

fn first_use<F: PteFormat>(p2m: &P2m<&Arena>, host: &VecHost, shadow: &mut Shadow<&Arena, F>) {
    let memory = VmMemory::new(p2m, host);
    shadow.tuning.unsync_after = 0;
    let _mapped =
        shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x1000), Access::WRITE));
    assert!(is_writable(shadow, 6));
    let (outcome, _) =
        shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x20_0000), Access::READ));
    assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
    shadow.check(p2m, &memory, &STATE).unwrap();
}

#[test]
fn a_table_that_the_guest_can_write_to_starts_unsync() {
    with_guest_on::<Npt>(|p2m, write, host, shadow| {
        two_tables(write);
        first_use(p2m, host, shadow);
        assert!(is_writable(shadow, 6));
        assert_eq!(shadow.statistics().unsynced, 1);
        // What the guest changes unseen is found at its flush.
        write(6 * PAGE_SIZE, 0);
        let memory = VmMemory::new(p2m, host);
        let _flush = shadow.invlpg(&memory, Gva(0x20_0000));
        assert_eq!(shadow.statistics().resynced_entries, 1);
        let (outcome, _) = shadow
            .fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x20_0000), Access::READ));
        assert_eq!(outcome, ShadowOutcome::GuestFault(0));
    });
    // Faults without an exit need tables that are write-protected.
    with_guest_on::<Ept>(|p2m, write, host, shadow| {
        two_tables(write);
        first_use(p2m, host, shadow);
        assert!(!is_writable(shadow, 6));
        assert_eq!(shadow.statistics().unsynced, 0);
    });
}

#[test]
fn a_dead_table_can_be_written_without_a_fault() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        two_tables(write);
        let _table = shadow
            .fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x20_0000), Access::READ));
        let _mapped =
            shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x1000), Access::READ));
        assert!(!is_writable(shadow, 6));
        write(3 * PAGE_SIZE + 8, 0);
        let _flush = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE + 8), 8);
        assert!(is_writable(shadow, 6));
        shadow.check(p2m, &memory, &STATE).unwrap();
        // The last entry of level 2: the tables above have none left, and go with it.
        write(3 * PAGE_SIZE, 0);
        let _flush = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE), 8);
        assert_eq!(shadow.statistics().pages, 1);
        // The root goes when it is left.
        write(PAGE_SIZE, 0);
        let _flush = shadow.written(p2m, &memory, Gpa(PAGE_SIZE), 8);
        let _flush =
            shadow.load(AddressSpace::new(p2m, &memory, &PagingState { cr3: 7 * PAGE_SIZE, ..STATE }));
        assert_eq!(shadow.statistics().pages, 1);
    });
}

const UPPER: u64 = 0xffff_8000_0000_0000;

/// An address space with two tables of level 1, both unsync, and a mapping of the first pages in its upper half. Of the user's
/// memory is mapped what `left` says.
fn unmapped<F: PteFormat>(left: bool, check: impl Fn(&P2m<&Arena>, &VecHost, &mut Shadow<&Arena, F>)) {
    with_guest_on::<F>(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        shadow.tuning.unsync_after = 0;
        two_tables(write);
        for (at, to) in [(PAGE_SIZE + 0x800, 9), (9 * PAGE_SIZE, 10), (10 * PAGE_SIZE, 11)] {
            write(at, (to * PAGE_SIZE) | 0x67);
        }
        (0..8).for_each(|page| write(11 * PAGE_SIZE + 8 * page, (page * PAGE_SIZE) | 0x67));
        for (page, access) in [(4, Access::WRITE), (6, Access::WRITE), (3, Access::READ)] {
            let _mapped = shadow.fault(
                AddressSpace::new(p2m, &memory, &STATE),
                PageFault::new(Gva(UPPER + page * PAGE_SIZE), access),
            );
        }
        for gva in [0, 0x20_0000] {
            let (outcome, _) =
                shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(gva), Access::READ));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        }
        // Where they do not start unsync, they are now.
        for page in [4, 6] {
            let _unsync = shadow.fault(
                AddressSpace::new(p2m, &memory, &STATE),
                PageFault::new(Gva(UPPER + page * PAGE_SIZE), Access::WRITE),
            );
        }
        assert_eq!([1, 2, 3, 4, 6].map(|page| is_writable(shadow, page)), [false, false, false, true, true]);
        // What the tables of level 1 hold goes first, then the first of these tables.
        write(4 * PAGE_SIZE, 0);
        write(4 * PAGE_SIZE + 8, 0);
        write(6 * PAGE_SIZE, if left { (8 * PAGE_SIZE) | 0x65 } else { 0 });
        write(3 * PAGE_SIZE, 0);
        let _flush = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE), 8);
        shadow.check(p2m, &memory, &STATE).unwrap();
        check(p2m, host, shadow);
    });
}

#[test]
fn the_tables_of_an_address_space_at_its_end_can_be_written_without_a_fault() {
    unmapped::<Npt>(false, |p2m, host, shadow| {
        assert_eq!([1, 2, 3, 4, 6].map(|page| is_writable(shadow, page)), [true; 5]);
        assert_eq!(shadow.statistics().pages, 4, "the root and the upper half");
        // The guest clears the root unseen, and leaves it.
        let memory = VmMemory::new(p2m, host);
        memory.write(Gpa(PAGE_SIZE), &[0; 8]).unwrap();
        memory.write(Gpa(7 * PAGE_SIZE + 0x800), &((9 * PAGE_SIZE) | 0x67).to_le_bytes()).unwrap();
        let other = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };
        let _flush = shadow.load(AddressSpace::new(p2m, &memory, &other));
        assert_eq!(shadow.statistics().pages, 4, "another root, and the upper half");
        assert!(shadow.code(Gva(UPPER), true).is_some(), "links were inherited");
        assert!(is_writable(shadow, 1));
        shadow.check(p2m, &memory, &other).unwrap();
    });
    // There roots stay write-protected.
    unmapped::<Ept>(false, |_, _, shadow| {
        assert_eq!([1, 2, 3, 4, 6].map(|page| is_writable(shadow, page)), [false, true, true, true, true]);
    });
}

#[test]
fn an_open_root_that_stays_in_use_is_compared_at_the_next_flush() {
    unmapped::<Npt>(false, |p2m, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        // The upper half leads elsewhere, unseen.
        memory.write(Gpa(PAGE_SIZE + 0x800), &[0; 8]).unwrap();
        let _flush = shadow.load(AddressSpace::new(p2m, &memory, &STATE));
        assert!(!is_writable(shadow, 1) && shadow.code(Gva(UPPER), true).is_none());
        shadow.check(p2m, &memory, &STATE).unwrap();
    });
}

#[test]
fn a_dying_root_with_two_pages_is_left() {
    // The same table under registers with another meaning has another page.
    let other = PagingState { cr4: STATE.cr4 | cr4::SMEP, ..STATE };
    for (first, last) in [(&STATE, &other), (&other, &STATE)] {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            for state in [first, last] {
                let space = AddressSpace::new(p2m, &memory, state);
                let _root = shadow.load(space);
                let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
            }
            write(PAGE_SIZE, 0);
            let _flush = shadow.written(p2m, &memory, Gpa(PAGE_SIZE), 8);
            assert!(shadow.dying.is_some());
            // Both are unsync, for an instruction that is not executed in software.
            assert!(shadow.make_unsync(p2m, &memory, Gpa(PAGE_SIZE)).is_some());
            let next = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };
            let _flush = shadow.load(AddressSpace::new(p2m, &memory, &next));
            shadow.check(p2m, &memory, &next).unwrap();
        });
    }
}

#[test]
fn an_address_space_that_maps_memory_is_not_at_its_end() {
    unmapped::<Npt>(true, |_, _, shadow| {
        assert_eq!([1, 2, 3].map(|page| is_writable(shadow, page)), [false; 3]);
        assert_eq!(shadow.statistics().pages, 7);
    });
}
