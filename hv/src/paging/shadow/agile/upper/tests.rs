//! Tables above level 1 that stay unsync on commodity processors.

use super::super::AgileTimes;
use super::MAX_UPPER;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, PAGE_SIZE};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::p2m::P2m;
use crate::paging::shadow::left_out::{LeftOut, Step};
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::sync::MAX_UNSYNC;
use crate::paging::shadow::tests::{HOST, STATE, Silent, with_guest};
use crate::paging::shadow::{AddressSpace, PageFault, Root, Shadow, ShadowOutcome, TlbFlush};
use crate::paging::vm_memory::VmMemory;
use alloc::sync::Arc;

const TIMES: AgileTimes = AgileTimes { window: 10, timeout: 100, start: 0 };
/// The guest's tables of levels 4 to 1 are in these pages; of the last one the second entry maps the table above it.
const ROOT: u64 = 1;
const L3: u64 = 2;
const L2: u64 = 3;
const L1: u64 = 4;
const TO_L2: Gva = Gva(PAGE_SIZE);

/// A guest that has used address 0 and the mapping of its table of level 2, on one processor.
struct Guest<'a, 'p, 's> {
    p2m: &'a P2m<&'p Arena>,
    host: &'a VecHost,
    write: &'a dyn Fn(u64, u64),
    shadow: &'a mut Shadow<&'s Arena, Npt>,
    root: Root,
    processor: ShadowProcessor,
}

fn with(f: impl FnOnce(&mut Guest)) {
    with_guest(|p2m, write, host, shadow| {
        write(L1 * PAGE_SIZE + 8, (L2 * PAGE_SIZE) | 7);
        let memory = VmMemory::new(p2m, host);
        let _none = shadow.set_upper(Some(TIMES), 40, &memory);
        let (root, _) = shadow.load(AddressSpace::new(p2m, &memory, &STATE));
        let mut guest = Guest { p2m, host, write, shadow, root, processor: ShadowProcessor::default() };
        guest.access(Gva(0), Access::READ).unwrap();
        f(&mut guest);
    });
}

impl Guest<'_, '_, '_> {
    fn space<R>(&mut self, f: impl FnOnce(&mut Self, &VmMemory<'_, &Arena, VecHost>) -> R) -> R {
        let (p2m, host) = (self.p2m, self.host);
        f(self, &VmMemory::new(p2m, host))
    }

    /// The page that an access leads to, and the exits that it took; otherwise the outcome of the last one.
    fn access(&mut self, gva: Gva, access: Access) -> Result<(u64, usize), ShadowOutcome> {
        let registers = Registers { smep: false, smap: false, ac: false };
        let tables = *self.shadow.pool.memory();
        for exits in 0.. {
            if let Ok(hpa) = self.processor.access(&tables, self.root, registers, gva, access) {
                return Ok(((hpa.0 - HOST.0) / PAGE_SIZE, exits));
            }
            let (outcome, flush) = self.space(|guest, memory| {
                let space = AddressSpace::new(guest.p2m, memory, &STATE);
                guest.shadow.fault(space, PageFault::new(gva, access))
            });
            self.processor.flush(flush);
            if !matches!(outcome, ShadowOutcome::Filled { .. }) {
                return Err(outcome);
            }
        }
        unreachable!("accesses do not exit for ever")
    }

    /// A write to a table has exited: whether the guest makes it by itself now.
    fn exit(&mut self, page: u64, now: u64) -> bool {
        let moved = self.shadow.agile_write(self.p2m, Gpa(page * PAGE_SIZE), now, false);
        moved.map(|flush| self.processor.flush(flush)).is_some()
    }

    /// Enough of them to the table of level 2.
    fn leave_unsync(&mut self) {
        let exits = ShadowOutcome::EmulateWrite(Gpa(L2 * PAGE_SIZE));
        assert_eq!(self.access(TO_L2, Access::WRITE), Err(exits));
        assert!((1..8).all(|now| !self.exit(L2, now)));
        assert_eq!(self.access(TO_L2, Access::WRITE), Err(exits), "it is write-protected until then");
        let before = self.shadow.statistics().emulated_writes;
        assert!(self.exit(L2, 8));
        assert_eq!(self.shadow.statistics().emulated_writes, before - 1, "this one is not emulated");
        self.access(TO_L2, Access::WRITE).unwrap();
    }

    fn time(&mut self, now: u64) {
        let flush = self.space(|guest, memory| guest.shadow.agile_time(memory, None, 0, now, false));
        self.processor.flush(flush);
    }

    fn flush_all(&mut self) {
        let flush = self.space(|guest, memory| guest.shadow.flush_all(memory));
        self.processor.flush(flush);
    }

    fn check(&mut self) {
        self.space(|guest, memory| guest.shadow.check(guest.p2m, memory, &STATE).unwrap());
    }

    fn is_unsync(&self, page: u64) -> bool {
        let frame = crate::arch::addr::Hpa(HOST.0 + page * PAGE_SIZE).frame();
        let mut pages = self.shadow.pool.shadows(frame);
        pages.next().is_some()
            && pages.all(|id| self.shadow.pool.page(id).unsync)
            && !self.shadow.pool.is_write_protected(frame)
    }

    /// Address 0 leads through another table of level 1 to page 7 from now on, which the guest has not flushed.
    fn change_link(&mut self) {
        (self.write)(6 * PAGE_SIZE, (7 * PAGE_SIZE) | 7);
        (self.write)(6 * PAGE_SIZE + 8, (L2 * PAGE_SIZE) | 7);
        assert_eq!(self.access(TO_L2, Access::WRITE), Ok((L2, 0)), "no exit");
        (self.write)(L2 * PAGE_SIZE, (6 * PAGE_SIZE) | 7);
    }
}

/// Where an access to address 0 leads after each of two flushes, before which the guest has changed the entry of level 2: no write
/// to that table exits, and so only the flush can find it.
fn pages_after_flushes(left_out: Option<Step>) -> [u64; 2] {
    let mut found = [0; 2];
    with(|guest| {
        guest.leave_unsync();
        guest.shadow.left_out = LeftOut(left_out);
        guest.change_link();
        guest.flush_all();
        assert!(guest.is_unsync(L2) && !guest.is_unsync(L3), "it stays so");
        found[0] = guest.access(Gva(0), Access::READ).unwrap().0;
        (guest.write)(L2 * PAGE_SIZE, (L1 * PAGE_SIZE) | 7);
        let flush = guest.space(|guest, memory| guest.shadow.invlpg(memory, Gva(0)));
        guest.processor.flush(flush);
        found[1] = guest.access(Gva(0), Access::READ).unwrap().0;
        if left_out.is_none() {
            guest.check();
            let counts = guest.shadow.upper_counts();
            assert_eq!((counts.unsync, counts.to_unsync, counts.protected), (1, 1, 0));
        }
    });
    found
}

#[test]
fn a_table_above_level_1_that_is_written_eight_times_is_compared_at_flushes() {
    assert_eq!(pages_after_flushes(None), [7, 5]);
    assert_eq!(pages_after_flushes(Some(Step::CompareNestedLinks))[0], 5, "the mistake is seen");
}

#[test]
fn it_is_write_protected_again_when_nothing_in_it_has_changed_for_the_timeout() {
    with(|guest| {
        guest.leave_unsync();
        guest.time(10);
        assert!(!guest.shadow.is_upper_due(109) && guest.shadow.is_upper_due(110));
        guest.time(110);
        assert!(guest.is_unsync(L2), "it is looked at for the first time");
        guest.change_link();
        guest.time(210);
        assert!(guest.is_unsync(L2), "it has changed");
        guest.time(310);
        assert!(!guest.is_unsync(L2) && guest.shadow.upper_counts().protected == 1);
        let leads_to_nested = |id| guest.shadow.pool.page(id).nested_below;
        assert!(!guest.shadow.pool.ids().any(leads_to_nested), "flushes go down no further than the root");
        guest.check();
        let exits = ShadowOutcome::EmulateWrite(Gpa(L2 * PAGE_SIZE));
        assert_eq!(guest.access(TO_L2, Access::WRITE), Err(exits));
        guest.flush_all();
        assert_eq!(guest.access(Gva(0), Access::READ).unwrap().0, 7);
        guest.check();
    });
}

#[test]
fn roots_and_tables_of_level_1_do_not_stay_unsync() {
    with(|guest| {
        for page in [ROOT, L1] {
            assert!((1..=100).all(|now| !guest.exit(page, now)), "page {page}");
        }
        assert!((0..20).all(|n| !guest.exit(L3, 200 + 2 * n)), "too few within the window");
        assert!((300..307).all(|now| !guest.exit(L3, now)) && guest.exit(L3, 307));
        assert!(guest.is_unsync(L3) && !guest.is_unsync(L2) && !guest.is_unsync(L1));
        guest.check();
    });
}

#[test]
fn a_table_that_is_first_shadowed_below_one_begins_so_and_is_counted() {
    with(|guest| {
        assert!((1..=8).any(|now| guest.exit(L3, now)));
        (guest.write)(L3 * PAGE_SIZE + 8, (8 * PAGE_SIZE) | 7);
        (guest.write)(8 * PAGE_SIZE, (L1 * PAGE_SIZE) | 7);
        assert_eq!(guest.access(Gva(1 << 30), Access::READ).unwrap().0, 5);
        assert!(guest.is_unsync(8) && !guest.is_unsync(L2) && !guest.is_unsync(L1));
        let counts = guest.shadow.upper_counts();
        assert_eq!((counts.unsync, counts.to_unsync), (2, 2));
        guest.check();
    });
}

#[test]
fn a_flush_of_an_address_forgets_links_that_another_vcpu_has_dropped() {
    with(|guest| {
        guest.shadow.share(2, Arc::new(Silent));
        guest.leave_unsync();
        let on = |guest: &mut Guest, vcpu, is_load: bool| {
            guest.shadow.switch_vcpu(vcpu);
            let flush = guest.space(|guest, memory| match is_load {
                true => guest.shadow.load(AddressSpace::new(guest.p2m, memory, &STATE)).1,
                false => guest.shadow.invlpg(memory, Gva(1 << 30)),
            });
            guest.shadow.switch_vcpu(0);
            flush
        };
        let invlpg = |guest: &mut Guest, vcpu| on(guest, vcpu, false);
        let _flush = on(guest, 1, true);
        let other = TlbFlush::Page(Gva(1 << 30));
        assert_eq!(invlpg(guest, 1), other);
        guest.change_link();
        guest.flush_all();
        // A processor forgets all its upper entries at INVLPG.
        assert_eq!(invlpg(guest, 1), TlbFlush::All);
        assert_eq!(invlpg(guest, 1), other, "once");
        assert_eq!(invlpg(guest, 0), other, "this one has flushed everything");
        // Also where no table is unsync any more by then.
        // A shootdown has the first access tried again.
        let _again = guest.access(Gva(0), Access::READ);
        assert_eq!(guest.access(Gva(0), Access::READ).unwrap().0, 7);
        (guest.write)(L2 * PAGE_SIZE, (L1 * PAGE_SIZE) | 7);
        guest.flush_all();
        for now in [1000, 2000, 3000] {
            guest.time(now);
        }
        assert!(guest.shadow.unsync.is_empty() && !guest.shadow.pool.upper_unsync);
        assert_eq!(invlpg(guest, 1), TlbFlush::All);
    });
}

#[test]
fn what_stays_unsync_is_kept_over_a_time_on_nested_tables_and_ends_with_the_mode() {
    with(|guest| {
        guest.leave_unsync();
        // The guest does the rest on nested tables, where no flush is seen.
        (guest.write)(6 * PAGE_SIZE, (7 * PAGE_SIZE) | 7);
        (guest.write)(L2 * PAGE_SIZE, (6 * PAGE_SIZE) | 7);
        guest.shadow.leave();
        let (root, flush) = guest.space(|guest, memory| {
            let (_loaded, flush) = guest.shadow.resume(guest.p2m, memory, 40, |_| true);
            guest.processor.flush(flush);
            guest.shadow.load(AddressSpace::new(guest.p2m, memory, &STATE))
        });
        guest.root = root;
        guest.processor.flush(flush);
        assert!(guest.is_unsync(L2));
        assert_eq!(guest.access(Gva(0), Access::READ).unwrap().0, 7);
        guest.check();
        let flush = guest.space(|guest, memory| guest.shadow.set_upper(None, 40, memory));
        guest.processor.flush(flush);
        assert!(!guest.is_unsync(L2) && (10..30).all(|now| !guest.exit(L2, now)));
        guest.check();
    });
}

#[test]
fn what_a_flush_compares_is_bounded() {
    with(|guest| {
        guest.leave_unsync();
        let pages = guest.shadow.nested_pages();
        assert!(pages <= MAX_UPPER);
        let frame = crate::arch::addr::Hpa(HOST.0 + L3 * PAGE_SIZE).frame();
        assert!(guest.shadow.can_nest(frame));
        // As if as many were unsync as may be.
        let full = guest.shadow.unsync[0];
        guest.shadow.unsync.resize(MAX_UPPER, full);
        assert!(!guest.shadow.can_nest(frame));
        assert!(guest.shadow.has_unsync_room(MAX_UNSYNC), "tables of level 1 have room of their own");
        guest.shadow.unsync.truncate(pages);
    });
}
