//! Cases that a random trace meets seldom.

use super::model::{Registers, ShadowProcessor};
use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Hpa, PAGE_SIZE};
use crate::arch::state::{cr0, cr4, efer};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::PteFormat;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::format::x86::{ACCESSED, ADDRESS};
use crate::paging::guest_walk::{PagingFeatures, PagingState, error_code};
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::vm_memory::VmMemory;

pub(super) const HOST: Hpa = Hpa(0x8000_0000);
pub(crate) const STATE: PagingState = PagingState {
    cr0: cr0::PE | cr0::PG | cr0::WP,
    cr3: PAGE_SIZE,
    cr4: cr4::PAE,
    efer: efer::LME | efer::LMA | efer::NXE,
    rflags: 0,
    cpl: 0,
    pdptes: None,
    features: PagingFeatures {
        physical_bits: 40,
        gib_pages: true,
        upper_global_reserved: false,
        pointer_bits_reserved: true,
    },
};

/// Other PCPUs that have nothing to forget.
#[derive(Debug)]
pub(crate) struct Silent;

impl Shootdown for Silent {
    fn request(&self, _reload: bool) {}
    fn service(&self) {}
}

/// The address space of a guest with the registers in [`STATE`].
fn space<'a, T: TableMemory, G: GuestMemory>(p2m: &'a P2m<T>, ram: &'a G) -> AddressSpace<'a, T, G> {
    AddressSpace::new(p2m, ram, &STATE)
}

fn page_fault(gva: u64, access: Access) -> PageFault {
    PageFault::new(Gva(gva), access)
}

/// Guest memory of 16 pages: tables of levels 4 to 1 in pages 1 to 4, for one page of which the frame is 5.
pub(super) fn with_guest(
    f: impl FnOnce(&P2m<&Arena>, &dyn Fn(u64, u64), &VecHost, &mut Shadow<&Arena, Npt>),
) {
    with_guest_on::<Npt>(f);
}

/// The same on a processor of this vendor.
pub(super) fn with_guest_on<F: PteFormat>(
    f: impl FnOnce(&P2m<&Arena>, &dyn Fn(u64, u64), &VecHost, &mut Shadow<&Arena, F>),
) {
    let arena = Arena::new(100);
    let mut p2m = P2m::new(&arena).unwrap();
    let _no_engine_yet = p2m.map_ram(GpaRange::new(Gpa(0), 16 * PAGE_SIZE).unwrap(), HOST, true).unwrap();
    let host = VecHost::new(HOST, 16 * PAGE_SIZE as usize);
    let write = |at: u64, entry: u64| {
        VmMemory::new(&p2m, &host).write(Gpa(at), &entry.to_le_bytes()).unwrap();
    };
    for level in 1..=4 {
        write(level * PAGE_SIZE, ((level + 1) * PAGE_SIZE) | 7);
    }
    let mut shadow = Shadow::new(&arena, 16, 40, Tuning { unsync_after: 2, ..Tuning::default() }).unwrap();
    let _first = shadow.load(space(&p2m, &VmMemory::new(&p2m, &host)));
    f(&p2m, &write, &host, &mut shadow);
}

#[test]
fn a_stale_writable_translation_is_flushed_when_its_frame_becomes_a_table() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(0, Access::WRITE));
        assert_eq!(outcome, ShadowOutcome::Filled { prefetched: 0 });
        write(4 * PAGE_SIZE, 0);
        // The guest owes the flush, and does not do it.
        assert_eq!(shadow.written(p2m, &memory, Gpa(4 * PAGE_SIZE), 8), TlbFlush::None);
        write(3 * PAGE_SIZE + 8, (5 * PAGE_SIZE) | 7);
        let _nothing = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE + 8), 8);
        write(5 * PAGE_SIZE, (6 * PAGE_SIZE) | 7);
        let (outcome, flush) = shadow.fault(space(p2m, &memory), page_fault(0x20_0000, Access::READ));
        assert_eq!((outcome, flush), (ShadowOutcome::Filled { prefetched: 0 }, TlbFlush::All));
    });
}

#[test]
fn accessed_bits_of_a_frame_are_those_of_its_leaves() {
    with_guest(|p2m, _, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        let (root, _) = shadow.load(space(p2m, &memory));
        let _filled = shadow.fault(space(p2m, &memory), page_fault(0, Access::READ));
        let frame = |page: u64| Hpa(HOST.0 + page * PAGE_SIZE).frame();
        let tables = *shadow.pool.memory();
        let mut processor = ShadowProcessor::default();
        let registers = Registers { smep: false, smap: false, ac: false };
        let access = |processor: &mut ShadowProcessor| {
            let root = Root { frame: root.frame, ..root };
            processor.access(&tables, root, registers, Gva(0), Access::READ).unwrap()
        };
        access(&mut processor);
        assert!(shadow.take_sample(1));
        assert_eq!([5, 6, 5].map(|page| shadow.take_used(frame(page), 1)), [1, 0, 0]);
        // It remembers the translation, and sets no bit.
        access(&mut processor);
        assert!(!shadow.take_sample(2));
        assert_eq!(shadow.take_used(frame(5), 1), 0);
        let flush = shadow.flush_accessed();
        assert_eq!(flush, TlbFlush::All);
        processor.flush(flush);
        access(&mut processor);
        assert!(shadow.take_sample(3));
        assert_eq!(shadow.take_used(frame(0), u64::MAX), 1 << 5);
    });
}

#[test]
fn bits_of_links_and_of_leaves_are_collected_each_by_itself() {
    with_guest(|p2m, _, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        let (root, _) = shadow.load(space(p2m, &memory));
        let _filled = shadow.fault(space(p2m, &memory), page_fault(0, Access::READ));
        let tables = *shadow.pool.memory();
        let below = |table| Hpa(tables.load(table, 0) & ADDRESS).frame();
        let links = below(below(root.frame));
        let leaves = below(links);
        let set = |table| tables.store(table, 0, tables.load(table, 0) | ACCESSED);
        let frame = Hpa(HOST.0 + 5 * PAGE_SIZE).frame();
        let mut number = 0;
        let mut sample = |shadow: &mut Shadow<&Arena, _>, is_all| {
            number += 1;
            (shadow.pool.collect_all(number, is_all), shadow.take_used(frame, 1))
        };
        let _as_filled = sample(shadow, false);
        // As by a processor that keeps a pointer to the page over a sample, or, with agile paging, walks to it through a table of the guest's.
        set(leaves);
        assert_eq!(sample(shadow, false), (false, 0));
        assert_eq!(sample(shadow, true), (true, 1));
        set(links);
        assert_eq!(sample(shadow, false), (true, 0));
        assert_eq!(sample(shadow, false), (false, 0));
    });
}

#[test]
fn an_address_space_that_comes_back_needs_no_fault() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        let (first, _) = shadow.load(space(p2m, &memory));
        let _filled = shadow.fault(space(p2m, &memory), page_fault(0, Access::READ));
        write(7 * PAGE_SIZE, (2 * PAGE_SIZE) | 7);
        let other = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };
        let (second, flush) = shadow.load(AddressSpace::new(p2m, &memory, &other));
        assert_eq!((second == first, flush), (false, TlbFlush::NonGlobal));
        let pages = shadow.statistics().pages_made;
        let _filled = shadow.fault(AddressSpace::new(p2m, &memory, &other), page_fault(0, Access::READ));
        assert_eq!(shadow.statistics().pages_made, pages, "the lower tables are shared");
        assert_eq!(shadow.load(space(p2m, &memory)), (first, TlbFlush::NonGlobal));
    });
}

#[test]
fn a_table_is_written_by_emulation_twice_and_then_by_the_guest() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        // Page 1 of the address space is its own table of level 1.
        write(4 * PAGE_SIZE + 8, (4 * PAGE_SIZE) | 7);
        for _ in 0..2 {
            let mut outcomes = 0;
            loop {
                let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(0x1000, Access::WRITE));
                outcomes += 1;
                if outcome == ShadowOutcome::EmulateWrite(Gpa(4 * PAGE_SIZE)) {
                    break;
                }
                assert!(outcomes < 3);
            }
            write(4 * PAGE_SIZE + 16, (6 * PAGE_SIZE) | 7);
            let _nothing = shadow.written(p2m, &memory, Gpa(4 * PAGE_SIZE + 16), 8);
        }
        let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(0x1000, Access::WRITE));
        assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        assert_eq!(shadow.statistics().unsynced, 1);
        // Unseen; found when the guest flushes.
        let _filled = shadow.fault(space(p2m, &memory), page_fault(0x2000, Access::READ));
        write(4 * PAGE_SIZE + 16, 0);
        assert_eq!(shadow.invlpg(&memory, Gva(0x2000)), TlbFlush::Page(Gva(0x2000)));
        assert_eq!(shadow.statistics().resynced_entries, 1);
        let change_unseen = |shadow: &mut Shadow<&Arena, Npt>| {
            write(4 * PAGE_SIZE + 16, (6 * PAGE_SIZE) | 7);
            let _filled = shadow.fault(space(p2m, &memory), page_fault(0x2000, Access::READ));
        };
        change_unseen(shadow);
        write(4 * PAGE_SIZE + 16, 0);
        let _same_root = shadow.load(space(p2m, &memory));
        assert_eq!(shadow.statistics().resynced_entries, 2);
        // An accessed bit that the guest clears is a change too.
        change_unseen(shadow);
        write(4 * PAGE_SIZE + 16, (6 * PAGE_SIZE) | 7);
        let _flush = shadow.invlpg(&memory, Gva(0x2000));
        assert_eq!(shadow.statistics().resynced_entries, 3);
        // A table that nothing points to any more is dropped, and made again if it comes back.
        let made = shadow.statistics().pages_made;
        for entry in [0, (4 * PAGE_SIZE) | 7] {
            write(3 * PAGE_SIZE, entry);
            let _everything = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE), 8);
        }
        // So are those above it, whose last entry it was.
        assert_eq!(shadow.statistics().dead, 3);
        write(4 * PAGE_SIZE + 16, 0);
        let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(0x2000, Access::READ));
        assert_eq!(outcome, ShadowOutcome::GuestFault(0));
        let _filled = shadow.fault(space(p2m, &memory), page_fault(0, Access::READ));
        assert_eq!(shadow.statistics().pages_made, made + 3);
    });
}

#[test]
fn invlpg_reaches_tables_to_which_nothing_leads_at_that_moment() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        const OTHER: u64 = 1 << 30;
        let fault = |shadow: &mut Shadow<&Arena, Npt>, gva, access| {
            shadow.fault(space(p2m, &memory), page_fault(gva, access)).0
        };
        // Page 1 of the address space is its own table of level 1, which is also used 1 GiB further up.
        write(4 * PAGE_SIZE + 8, (4 * PAGE_SIZE) | 7);
        write(4 * PAGE_SIZE + 16, (6 * PAGE_SIZE) | 7);
        let upper = |shadow: &mut Shadow<&Arena, Npt>, entry| {
            write(2 * PAGE_SIZE + 8, entry);
            let _nothing = shadow.written(p2m, &memory, Gpa(2 * PAGE_SIZE + 8), 8);
        };
        upper(shadow, (3 * PAGE_SIZE) | 7);
        while shadow.statistics().unsynced == 0 {
            if let ShadowOutcome::EmulateWrite(at) = fault(shadow, 0x1000, Access::WRITE) {
                let _nothing = shadow.written(p2m, &memory, at, 8);
            }
        }
        assert!(matches!(fault(shadow, OTHER + 0x2000, Access::READ), ShadowOutcome::Filled { .. }));
        upper(shadow, 0);
        write(4 * PAGE_SIZE + 16, 0);
        let _flush = shadow.invlpg(&memory, Gva(OTHER + 0x2000));
        assert_eq!(shadow.statistics().resynced_entries, 1);
        // The link comes back with what was not changed.
        upper(shadow, (3 * PAGE_SIZE) | 7);
        assert!(matches!(fault(shadow, OTHER, Access::READ), ShadowOutcome::Filled { .. }));
        assert_eq!(fault(shadow, OTHER + 0x2000, Access::READ), ShadowOutcome::GuestFault(0));
    });
}

#[test]
fn a_table_that_the_guest_writes_is_in_step_when_it_gets_another_place() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        let page = |n: u64| (n * PAGE_SIZE) | 7;
        // Page 1 of the address space is its own table of level 1.
        write(4 * PAGE_SIZE + 8, page(4));
        write(4 * PAGE_SIZE + 16, page(6));
        while shadow.statistics().unsynced == 0 {
            if let (ShadowOutcome::EmulateWrite(at), _) =
                shadow.fault(space(p2m, &memory), page_fault(0x1000, Access::WRITE))
            {
                let _nothing = shadow.written(p2m, &memory, at, 8);
            }
        }
        let touch = |shadow: &mut Shadow<&Arena, Npt>, gva| {
            let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(gva, Access::READ));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        };
        let place =
            |shadow: &Shadow<_, _>, gva| shadow.code(Gva(gva), true).map(|Hpa(at)| (at - HOST.0) / PAGE_SIZE);
        touch(shadow, 0x2000);
        assert_eq!(place(shadow, 0x2000), Some(6));
        // Unseen, and not flushed. At the other address there was nothing that could be remembered.
        write(4 * PAGE_SIZE + 16, page(8));
        write(3 * PAGE_SIZE + 8, page(4));
        let _nothing = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE + 8), 8);
        touch(shadow, 0x20_0000);
        assert_eq!(place(shadow, 0x20_2000), None);
        touch(shadow, 0x20_2000);
        assert_eq!(place(shadow, 0x20_2000), Some(8));
    });
}

#[test]
fn a_right_to_write_that_comes_unseen_does_not_reach_write_protected_tables() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        // Page 1 of the address space is its own table of level 1, page 2 is that of level 2, and page 3 is data.
        write(4 * PAGE_SIZE + 8, (4 * PAGE_SIZE) | 7);
        let second = |flags: u64| {
            write(4 * PAGE_SIZE + 16, (3 * PAGE_SIZE) | 0x60 | flags);
            write(4 * PAGE_SIZE + 24, (6 * PAGE_SIZE) | 0x60 | flags);
        };
        second(5);
        while shadow.statistics().unsynced == 0 {
            if let (ShadowOutcome::EmulateWrite(at), _) =
                shadow.fault(space(p2m, &memory), page_fault(0x1000, Access::WRITE))
            {
                let _nothing = shadow.written(p2m, &memory, at, 8);
            }
        }
        for page in [2, 3] {
            let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(page * PAGE_SIZE, Access::READ));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        }
        second(7);
        let _same_root = shadow.load(space(p2m, &memory));
        let writable = |shadow: &Shadow<&Arena, Npt>, page| {
            shadow.pool.writable_leaf(Hpa(HOST.0 + page * PAGE_SIZE).frame()).is_some()
        };
        assert_eq!((writable(shadow, 3), writable(shadow, 6)), (false, true));
    });
}

#[test]
fn a_large_page_that_is_mapped_in_pieces_is_flushed_when_an_entry_on_its_way_changes() {
    for level in [2, 3] {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let at = Gpa(level * PAGE_SIZE);
            write(3 * PAGE_SIZE, 0x87);
            // Nothing is there yet.
            assert_eq!(shadow.written(p2m, &memory, at, 8), TlbFlush::None);
            for page in [8, 9] {
                let (outcome, _) =
                    shadow.fault(space(p2m, &memory), page_fault(page * PAGE_SIZE, Access::READ));
                assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
            }
            write(at.0, 0);
            // The guest will flush one address only.
            assert_eq!(shadow.written(p2m, &memory, at, 8), TlbFlush::All);
        });
    }
}

#[test]
fn a_table_that_maps_itself_is_write_protected_in_its_own_entry_too() {
    with_guest(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        write(4 * PAGE_SIZE + 8, (4 * PAGE_SIZE) | 7);
        let touch = |shadow: &mut Shadow<&Arena, Npt>| loop {
            let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(0x1000, Access::WRITE));
            match outcome {
                ShadowOutcome::EmulateWrite(gpa) => {
                    let _nothing = shadow.written(p2m, &memory, gpa, 8);
                }
                _ if shadow.statistics().unsynced > 0 => break,
                _ => {}
            }
        };
        touch(shadow);
        touch(shadow);
        // Unseen: a bit for software in the entry of the table itself. Then the table serves in another role too.
        write(4 * PAGE_SIZE + 8, (4 * PAGE_SIZE) | 0x267);
        write(3 * PAGE_SIZE + 8, (4 * PAGE_SIZE) | 5);
        let _nothing = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE + 8), 8);
        let (outcome, _) = shadow.fault(space(p2m, &memory), page_fault(0x20_0000, Access::READ));
        assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        assert_eq!(shadow.check(p2m, &memory, &STATE), Ok(()));
    });
}

#[test]
fn tables_in_rom_do_not_fault_for_ever() {
    with_guest(|_, write, host, _| {
        // Accessed and dirty bits are clear, and stay so.
        for level in 1..=4 {
            write(level * PAGE_SIZE, ((level + 1) * PAGE_SIZE) | 7);
        }
        let arena = Arena::new(100);
        let mut rom = P2m::new(&arena).unwrap();
        let tables = GpaRange::new(Gpa(0), 5 * PAGE_SIZE).unwrap();
        let data = GpaRange::page(Gpa(5 * PAGE_SIZE));
        let _no_engine_yet = rom.map_rom(tables, HOST).unwrap();
        let _no_engine_yet = rom.map_ram(data, Hpa(HOST.0 + data.start.0), true).unwrap();
        let memory = VmMemory::new(&rom, host);
        let mut shadow: Shadow<_, Npt> = Shadow::new(&arena, 16, 40, Tuning::default()).unwrap();
        let _first = shadow.load(space(&rom, &memory));
        let (outcome, _) = shadow.fault(space(&rom, &memory), page_fault(0, Access::WRITE));
        assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        let writable = shadow.pool.leaves().any(|(_, _, raw)| raw & 2 != 0);
        assert!(writable, "the write would fault again");
    });
}

/// The error code of a fault of a processor that remembers nothing.
fn fault_code<F: PteFormat>(shadow: &Shadow<&Arena, F>, gva: u64) -> u32 {
    let registers = Registers { smep: false, smap: false, ac: false };
    let root = Root { frame: shadow.pool.page(shadow.pool.root().unwrap()).frame, long: true };
    let access =
        ShadowProcessor::default().access(shadow.pool.memory(), root, registers, Gva(gva), Access::READ);
    access.expect_err("nothing is mapped there")
}

#[test]
fn faults_of_the_guests_own_do_not_exit_while_it_cannot_change_that_unseen() {
    const EXITS: u32 = error_code::PRESENT | error_code::RESERVED;
    const ITS_OWN: u32 = 0;
    assert_eq!(exiting_faults(STATE.cr4, STATE.efer, 40), Some(error_code::PRESENT));
    with_guest_on::<Ept>(|p2m, write, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        let touch = |shadow: &mut Shadow<_, _>, gva| {
            shadow.fault(space(p2m, &memory), page_fault(gva, Access::READ)).0
        };
        // Nothing is known at first. What a look-ahead finds is.
        assert_eq!(fault_code(shadow, 0x1000), EXITS);
        let _filled = touch(shadow, 0);
        assert_eq!((fault_code(shadow, 0x1000), fault_code(shadow, 0x3000)), (ITS_OWN, EXITS));
        assert_eq!(touch(shadow, 0x3000), ShadowOutcome::GuestFault(0));
        assert_eq!(fault_code(shadow, 0x3000), ITS_OWN);
        // Above level 1 a fault tells of its neighbours.
        assert_eq!(touch(shadow, 0x20_0000), ShadowOutcome::GuestFault(0));
        assert_eq!((fault_code(shadow, 0x20_0000), fault_code(shadow, 0xe0_0000)), (ITS_OWN, ITS_OWN));
        assert_eq!(fault_code(shadow, 0x100_0000), EXITS);
        // A write ends that for what it touches.
        write(3 * PAGE_SIZE + 8, (6 * PAGE_SIZE) | 7);
        let _nothing = shadow.written(p2m, &memory, Gpa(3 * PAGE_SIZE + 8), 8);
        assert_eq!((fault_code(shadow, 0x20_0000), fault_code(shadow, 0x40_0000)), (EXITS, ITS_OWN));
        // A table that the guest may write is not trusted.
        for _ in 0..2 {
            let _nothing = shadow.written(p2m, &memory, Gpa(4 * PAGE_SIZE + 0x800), 8);
        }
        assert!(shadow.allow_write(&memory, Hpa(HOST.0 + 4 * PAGE_SIZE)));
        assert_eq!((fault_code(shadow, 0x1000), fault_code(shadow, 0x3000)), (EXITS, EXITS));
        // Until the guest faults there for the eighth time, which write-protects it again.
        for n in 1..=8 {
            assert_eq!(touch(shadow, 0x3000), ShadowOutcome::GuestFault(0));
            assert_eq!(shadow.pool.is_write_protected(Hpa(HOST.0 + 4 * PAGE_SIZE).frame()), n == 8);
        }
        assert_eq!((fault_code(shadow, 0x3000), fault_code(shadow, 0x1000)), (ITS_OWN, ITS_OWN));
        let _all = shadow.drop_everything();
        let _root = shadow.load(space(p2m, &memory));
        assert_eq!((fault_code(shadow, 0x1000), fault_code(shadow, 0x40_0000)), (EXITS, EXITS));
    });
    // AMD's processors have no such choice.
    with_guest(|p2m, _, host, shadow| {
        assert_eq!(fault_code(shadow, 0x1000), ITS_OWN);
        let _own = shadow.fault(space(p2m, &VmMemory::new(p2m, host)), page_fault(0x20_0000, Access::READ));
        assert_eq!(fault_code(shadow, 0x1000), ITS_OWN);
    });
}

#[test]
fn faults_that_the_guest_must_not_see_as_they_are_exit() {
    assert_eq!(exiting_faults(STATE.cr4, STATE.efer, 52), None, "no bit is reserved");
    assert_eq!(exiting_faults(STATE.cr4, efer::NXE, 40), None, "not in long mode");
    let fetches = Some(error_code::PRESENT | error_code::FETCH);
    assert_eq!(exiting_faults(STATE.cr4, efer::LMA, 40), fetches);
    assert_eq!(exiting_faults(STATE.cr4 | cr4::SMEP, efer::LMA, 40), Some(error_code::PRESENT));
}
