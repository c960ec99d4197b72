//! Which writes leave a table write-protected, and when it is again.

use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hfn, PAGE_SIZE};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::ept::Ept;
use crate::paging::p2m::P2m;
use crate::paging::shadow::AgileTimes;
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::tests::{HOST, STATE, with_guest_on};
use crate::paging::shadow::{AddressSpace, PageFault, Shadow, ShadowOutcome};
use crate::paging::vm_memory::VmMemory;

/// A guest of which the second page is its own table of level 1.
struct Guest<'a> {
    p2m: &'a P2m<&'a Arena>,
    host: &'a VecHost,
    write: &'a dyn Fn(u64, u64),
}

const TABLE: u64 = 4 * PAGE_SIZE;

impl Guest<'_> {
    fn fault(&self, shadow: &mut Shadow<&Arena, Ept>, gva: u64, access: Access) -> ShadowOutcome {
        let memory = VmMemory::new(self.p2m, self.host);
        shadow.fault(AddressSpace::new(self.p2m, &memory, &STATE), PageFault::new(Gva(gva), access)).0
    }

    /// The guest writes an entry; whether that was emulated.
    fn set(&self, shadow: &mut Shadow<&Arena, Ept>, index: u64, entry: u64) -> bool {
        let emulated = match self.fault(shadow, PAGE_SIZE + 8 * index, Access::WRITE) {
            ShadowOutcome::EmulateWrite(_) => true,
            ShadowOutcome::Filled { .. } => false,
            other => panic!("{other:?}"),
        };
        (self.write)(TABLE + 8 * index, entry);
        if emulated {
            let memory = VmMemory::new(self.p2m, self.host);
            let _nothing = shadow.written(self.p2m, &memory, Gpa(TABLE + 8 * index), 8);
        }
        emulated
    }

    /// The processor reads the page of an entry: whether without an exit, or the error code.
    fn read(&self, shadow: &mut Shadow<&Arena, Ept>, index: u64) -> Result<(), u32> {
        let memory = VmMemory::new(self.p2m, self.host);
        let (root, _) = shadow.load(AddressSpace::new(self.p2m, &memory, &STATE));
        let registers = Registers { smep: false, smap: false, ac: false };
        let mut processor = ShadowProcessor::default();
        let tables = shadow.pool.memory();
        processor.access(*tables, root, registers, Gva(index * PAGE_SIZE), Access::READ).map(|_| ())
    }
}

/// P, W, U, A, D: a page of memory.
const USED: u64 = (6 * PAGE_SIZE) | 0x67;
/// The error code with which a fault exits at an entry that is not filled.
const UNFILLED: Result<(), u32> = Err(0b1001);

fn with_table(f: impl FnOnce(&Guest, &mut Shadow<&Arena, Ept>)) {
    with_guest_on::<Ept>(|p2m, write, host, shadow| {
        shadow.tuning.unsync_after = 0;
        write(TABLE + 8, TABLE | 0x67);
        f(&Guest { p2m, host, write }, shadow);
    });
}

#[test]
fn a_page_on_demand_takes_one_exit() {
    with_table(|guest, shadow| {
        assert_eq!(guest.fault(shadow, 0x2000, Access::WRITE), ShadowOutcome::GuestFault(2));
        for index in 2..40 {
            assert_eq!(guest.read(shadow, index), Err(0), "{index}: the guest's own fault needs no exit");
            assert!(guest.set(shadow, index, USED), "{index}: is emulated");
            assert_eq!(guest.read(shadow, index), Ok(()), "{index}: and needs no other exit");
        }
        assert_eq!((shadow.statistics().unsynced, shadow.statistics().floods), (0, 0));
        assert!(shadow.passes_invlpg());
    });
}

#[test]
fn a_page_that_is_mapped_used_and_unmapped_takes_two_exits() {
    with_table(|guest, shadow| {
        assert_eq!(guest.fault(shadow, 0x2000, Access::WRITE), ShadowOutcome::GuestFault(2));
        for _ in 0..40 {
            assert_eq!(guest.read(shadow, 2), Err(0));
            assert!(guest.set(shadow, 2, USED));
            assert_eq!(guest.read(shadow, 2), Ok(()));
            assert!(guest.set(shadow, 2, 0));
            assert!(shadow.passes_invlpg());
        }
        assert_eq!((shadow.statistics().unsynced, shadow.statistics().floods), (0, 0));
    });
}

#[test]
fn a_run_of_entries_makes_the_table_unsync_until_a_fault_on_demand() {
    with_table(|guest, shadow| {
        assert_eq!(guest.fault(shadow, 0x2000, Access::READ), ShadowOutcome::GuestFault(0));
        assert!(guest.set(shadow, 2, USED));
        // The one before has not been used.
        assert!(!guest.set(shadow, 3, USED));
        assert!(!shadow.passes_invlpg());
        assert_eq!(guest.read(shadow, 3), UNFILLED);
        // Once too often: it takes eight faults now, and four for a new table.
        for _ in 1..8 {
            assert_eq!(guest.fault(shadow, 0x9000, Access::READ), ShadowOutcome::GuestFault(0));
            assert_eq!((shadow.passes_invlpg(), guest.read(shadow, 9)), (false, UNFILLED));
        }
        assert_eq!(guest.fault(shadow, 0x9000, Access::READ), ShadowOutcome::GuestFault(0));
        assert_eq!((shadow.passes_invlpg(), guest.read(shadow, 9)), (true, Err(0)));
        // What is there is no page on demand: that of a fork, or of copying on write.
        assert!(guest.set(shadow, 9, USED));
        assert_eq!(guest.read(shadow, 9), Ok(()));
        assert!(!guest.set(shadow, 3, USED & !2));
    });
}

#[test]
fn tables_to_which_nothing_happens_let_invlpg_pass_again() {
    with_table(|guest, shadow| {
        shadow.tuning.invlpgs = 5;
        let _filled = guest.fault(shadow, 0, Access::READ);
        assert!(!guest.set(shadow, 0, USED));
        let memory = VmMemory::new(guest.p2m, guest.host);
        let invlpg_at = |shadow: &mut Shadow<&Arena, Ept>, gva| {
            let _flush = shadow.invlpg(&memory, Gva(gva));
            shadow.passes_invlpg()
        };
        // Those of the table's own pages have to exit, and do not count.
        assert_eq!((1..=40).find(|_| invlpg_at(shadow, 0x5000)), None);
        let invlpg = |shadow: &mut Shadow<&Arena, Ept>| invlpg_at(shadow, 0x20_1000);
        // The entry has changed at the first look, and not at two more.
        assert_eq!((1..=15).find(|_| invlpg(shadow)), Some(15));
        assert!(shadow.pool.is_write_protected(Hfn(HOST.frame().0 + 4)));
    });
}

#[test]
fn nothing_is_marked_below_a_table_of_level_2_that_the_guest_writes() {
    with_table(|guest, shadow| {
        let (memory, registers) =
            (VmMemory::new(guest.p2m, guest.host), Registers { smep: false, smap: false, ac: false });
        let (root, _) = shadow.load(AddressSpace::new(guest.p2m, &memory, &STATE));
        // Not `Guest::read`: a load of the root would compare the tables.
        let read = |shadow: &Shadow<&Arena, Ept>| {
            let tables = shadow.pool.memory();
            let gva = Gva(2 * PAGE_SIZE);
            ShadowProcessor::default().access(*tables, root, registers, gva, Access::READ).map(|_| ())
        };
        assert_eq!(guest.fault(shadow, 0x2000, Access::READ), ShadowOutcome::GuestFault(0));
        assert_eq!(read(shadow), Err(0), "it is marked");
        let times = AgileTimes { window: 10, timeout: 100, start: 0 };
        let _flush = shadow.set_upper(Some(times), 40, &memory);
        let level_2 = Gpa(3 * PAGE_SIZE);
        assert!((1..=8).any(|now| shadow.agile_write(guest.p2m, level_2, now, false).is_some()));
        assert_eq!(read(shadow), UNFILLED);
        // Neither where a neighbour is filled, nor where its entry is written.
        assert!(matches!(guest.fault(shadow, 0x1000, Access::READ), ShadowOutcome::Filled { .. }));
        assert_eq!(read(shadow), UNFILLED);
        guest.set(shadow, 2, 0);
        assert_eq!(read(shadow), UNFILLED);
        // The guest replaces the table, and owes the flush: at the second access a processor finds the new one.
        (guest.write)(6 * PAGE_SIZE + 16, USED);
        (guest.write)(level_2.0, (6 * PAGE_SIZE) | 0x67);
        assert_eq!(read(shadow), UNFILLED, "it exits");
        assert!(matches!(guest.fault(shadow, 0x2000, Access::READ), ShadowOutcome::Filled { .. }));
        assert_eq!(read(shadow), Ok(()));
    });
}

#[test]
fn with_other_vcpus_invlpg_always_exits() {
    with_table(|_, shadow| {
        assert!(shadow.passes_invlpg());
        shadow.share(2, alloc::sync::Arc::new(crate::paging::shadow::tests::Silent));
        assert!(!shadow.passes_invlpg());
    });
}

#[test]
fn a_mark_is_cleared_with_the_tables_to_oneself() {
    with_table(|guest, shadow| {
        shadow.share(2, alloc::sync::Arc::new(crate::paging::shadow::tests::Silent));
        let memory = VmMemory::new(guest.p2m, guest.host);
        let space = AddressSpace::new(guest.p2m, &memory, &STATE);
        let (_root, _) = shadow.load(space);
        assert!(matches!(guest.fault(shadow, 0x1000, Access::READ), ShadowOutcome::Filled { .. }));
        assert_eq!(guest.fault(shadow, 0x2000, Access::READ), ShadowOutcome::GuestFault(0));
        let together = |shadow: &Shadow<&Arena, Ept>, gva| {
            shadow.fault_together(0, space, PageFault::new(Gva(gva), Access::READ))
        };
        // Marked, and written before the write is taken over: what fills the entry has to clear the mark, which others read.
        (guest.write)(TABLE + 16, USED);
        assert_eq!(together(shadow, 0x2000), None);
        assert!(matches!(guest.fault(shadow, 0x2000, Access::READ), ShadowOutcome::Filled { .. }));
        // One without a mark is filled by a reader.
        (guest.write)(TABLE + 8 * 0x20, USED);
        assert!(matches!(together(shadow, 0x2_0000), Some(ShadowOutcome::Filled { .. })));
    });
}
