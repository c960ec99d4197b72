//! Which entries a change of the P2m zaps, which stay, and whether a shootdown is due.

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gva, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::PagingState;
use crate::paging::p2m::P2m;
use crate::paging::shadow::tests::{HOST, STATE as LONG, Silent};
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome, Tuning};
use crate::paging::vm_memory::VmMemory;
use alloc::sync::Arc;

const PAGES: u64 = 64;
/// The tables from level 2 down, below pointers in page 6.
const PAE: PagingState = PagingState { cr3: 6 * PAGE_SIZE, efer: 0, ..LONG };

fn page(n: u64) -> GpaRange {
    GpaRange::page(Gpa(n * PAGE_SIZE))
}

fn place(n: u64) -> Hpa {
    Hpa(HOST.0 + n * PAGE_SIZE)
}

/// Tables of levels 4 to 1 in pages 1 to 4. Addresses 0 and 8 MiB lead to pages 16 and 17 through tables of level 1 in
/// pages 4 and 5.
fn with_guest(
    state: PagingState,
    f: impl FnOnce(
        &mut P2m<&Arena>,
        &VecHost,
        &mut Shadow<&Arena, Npt>,
        &dyn Fn(&P2m<&Arena>, &mut Shadow<&Arena, Npt>, u64),
    ),
) {
    let arena = Arena::new(300);
    let mut p2m = P2m::new(&arena).unwrap();
    let ram = GpaRange::new(Gpa(0), PAGES * PAGE_SIZE).unwrap();
    let _no_engine_yet = p2m.map_ram(ram, HOST, true).unwrap();
    let host = VecHost::new(HOST, (2 * PAGES * PAGE_SIZE) as usize);
    let entries = [(1, 0, 2), (2, 0, 3), (3, 0, 4), (3, 4, 5), (4, 0, 16), (5, 0, 17)];
    for (table, index, to) in entries {
        let entry: u64 = (to * PAGE_SIZE) | 0x67;
        VmMemory::new(&p2m, &host).write(Gpa(table * PAGE_SIZE + 8 * index), &entry.to_le_bytes()).unwrap();
    }
    VmMemory::new(&p2m, &host).write(Gpa(6 * PAGE_SIZE), &((3 * PAGE_SIZE) | 1).to_le_bytes()).unwrap();
    let mut shadow = Shadow::new(&arena, 32, 40, Tuning::default()).unwrap();
    shadow.share(1, Arc::new(Silent));
    let touch = |p2m: &P2m<&Arena>, shadow: &mut Shadow<&Arena, Npt>, gva: u64| {
        let memory = VmMemory::new(p2m, &host);
        let (outcome, _) =
            shadow.fault(AddressSpace::new(p2m, &memory, &state), PageFault::new(Gva(gva), Access::READ));
        assert!(matches!(outcome, ShadowOutcome::Filled { .. }), "{gva:#x}: {outcome:?}");
    };
    let _first = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &state));
    [0, 8 << 20].iter().for_each(|&gva| touch(&p2m, &mut shadow, gva));
    f(&mut p2m, &host, &mut shadow, &touch);
    shadow.check(&p2m, &VmMemory::new(&p2m, &host), &state).unwrap();
}

#[test]
fn a_data_page_takes_its_leaf_with_it_and_nothing_else() {
    with_guest(LONG, |p2m, _, shadow, _| {
        let pages = shadow.statistics().pages;
        let changed = p2m.map_ram(page(16), place(PAGES), true).unwrap();
        assert_eq!(shadow.apply(&[changed]), (None, TlbFlush::All));
        assert_eq!((shadow.code(Gva(0), true), shadow.code(Gva(8 << 20), true)), (None, Some(place(17))));
        assert_eq!((shadow.statistics().pages, shadow.statistics().shootdowns), (pages, 1));
    });
}

#[test]
fn a_table_takes_its_shadow_page_with_it_and_nothing_else() {
    with_guest(LONG, |p2m, host, shadow, touch| {
        let pages = shadow.statistics().pages;
        crate::paging::shadow::oracle::copy_page(host, place(4), place(PAGES));
        let changed = p2m.map_ram(page(4), place(PAGES), true).unwrap();
        assert_eq!(shadow.apply(&[changed]), (None, TlbFlush::All));
        assert_eq!((shadow.code(Gva(0), true), shadow.code(Gva(8 << 20), true)), (None, Some(place(17))));
        assert_eq!(shadow.statistics().pages, pages - 1);
        touch(p2m, shadow, 0);
        assert_eq!(shadow.code(Gva(0), true), Some(place(16)));
    });
}

#[test]
fn a_root_that_moves_is_looked_for_again() {
    with_guest(LONG, |p2m, host, shadow, touch| {
        crate::paging::shadow::oracle::copy_page(host, place(1), place(PAGES));
        let changed = p2m.map_ram(page(1), place(PAGES), true).unwrap();
        assert_eq!(shadow.apply(&[changed]), (Some(Reload), TlbFlush::All));
        let _found = shadow.load(AddressSpace::new(p2m, &VmMemory::new(p2m, host), &LONG));
        let made = shadow.statistics().pages_made;
        touch(p2m, shadow, 0);
        assert_eq!(shadow.statistics().pages_made, made, "all below the root is still there");
    });
}

#[test]
fn pointers_whose_memory_goes_lead_nowhere() {
    with_guest(PAE, |p2m, host, shadow, touch| {
        assert_eq!(shadow.code(Gva(0), true), Some(place(16)));
        let elsewhere = p2m.unmap(page(40)).unwrap();
        assert_eq!(shadow.apply(&[elsewhere]), (None, TlbFlush::None));
        assert_eq!(shadow.code(Gva(0), true), Some(place(16)));
        let gone = p2m.unmap(page(6)).unwrap();
        assert_eq!(shadow.apply(&[gone]), (None, TlbFlush::All));
        assert_eq!(shadow.code(Gva(0), true), None);
        let memory = VmMemory::new(p2m, host);
        let (outcome, _) =
            shadow.fault(AddressSpace::new(p2m, &memory, &PAE), PageFault::new(Gva(0), Access::READ));
        assert_eq!(outcome, ShadowOutcome::TableNotRam(Gpa(6 * PAGE_SIZE)));
        let back = p2m.map_ram(page(6), place(6), true).unwrap();
        assert_eq!(shadow.apply(&[back]), (None, TlbFlush::None));
        touch(p2m, shadow, 0);
    });
}

#[test]
fn a_root_without_memory_is_looked_for_when_there_is_some() {
    with_guest(LONG, |p2m, host, shadow, _| {
        let state = PagingState { cr3: 2 * PAGES * PAGE_SIZE, ..LONG };
        let (nothing, _) = shadow.load(AddressSpace::new(p2m, &VmMemory::new(p2m, host), &state));
        let range = GpaRange::page(Gpa(state.cr3));
        let changed = p2m.map_ram(range, place(PAGES + 1), true).unwrap();
        assert_eq!(shadow.apply(&[changed]), (Some(Reload), TlbFlush::All));
        assert_ne!(shadow.load(AddressSpace::new(p2m, &VmMemory::new(p2m, host), &state)).0, nothing);
        let _back = shadow.load(AddressSpace::new(p2m, &VmMemory::new(p2m, host), &LONG));
    });
}

#[test]
fn what_no_processor_can_hold_is_no_reason_for_a_shootdown() {
    with_guest(LONG, |p2m, host, shadow, _| {
        let changed = p2m.unmap(page(40)).unwrap();
        assert_eq!(shadow.apply(&[changed]), (None, TlbFlush::None));
        let merged = p2m.merge(GpaRange::ALL);
        assert_eq!(shadow.apply(&[merged]), (None, TlbFlush::None));
        assert_eq!(shadow.statistics().shootdowns, 0);
        // The guest takes a page away and owes the flush: it could still be remembered.
        VmMemory::new(p2m, host).write(Gpa(4 * PAGE_SIZE), &[0; 8]).unwrap();
        assert_eq!(shadow.written(p2m, &VmMemory::new(p2m, host), Gpa(4 * PAGE_SIZE), 8), TlbFlush::None);
        let changed = p2m.unmap(page(16)).unwrap();
        assert_eq!(shadow.apply(&[changed]), (None, TlbFlush::All));
        assert_eq!(shadow.statistics().shootdowns, 1);
    });
}

#[test]
fn several_changes_are_one_shootdown() {
    with_guest(LONG, |p2m, _, shadow, _| {
        let changes = [16, 17].map(|n| p2m.set_writable(page(n), false).unwrap());
        assert_eq!(shadow.apply(&changes), (None, TlbFlush::All));
        assert_eq!((shadow.code(Gva(0), true), shadow.code(Gva(8 << 20), true)), (None, None));
        assert_eq!(shadow.statistics().shootdowns, 1);
    });
}

#[test]
fn many_frames_go_by_one_look_at_all_entries() {
    with_guest(LONG, |p2m, _, shadow, _| {
        let more = GpaRange::new(Gpa(PAGES * PAGE_SIZE), 2 * FEW * PAGE_SIZE).unwrap();
        let all = GpaRange { start: Gpa(17 * PAGE_SIZE), end: more.end };
        let _new = p2m.map_ram(more, Hpa(1 << 40), true).unwrap();
        let gone = p2m.unmap(all).unwrap();
        assert_eq!(shadow.apply(&[gone]), (None, TlbFlush::All));
        assert_eq!((shadow.code(Gva(0), true), shadow.code(Gva(8 << 20), true)), (Some(place(16)), None));
    });
}
