//! Cases of several VCPUs that a random trace meets seldom.

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE};
use crate::arch::state::efer;
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::PagingState;
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::shadow::tests::Silent;
pub(super) use crate::paging::shadow::tests::{HOST, STATE};
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome, TlbFlush, Tuning};
use crate::paging::vm_memory::VmMemory;
use core::sync::atomic::{AtomicBool, Ordering};

/// The registers of the other VCPU.
const OTHER: PagingState = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };

fn entry(p2m: &P2m<&Arena>, host: &VecHost, at: u64, entry: u64) {
    VmMemory::new(p2m, host).write(Gpa(at), &entry.to_le_bytes()).unwrap();
}

/// Guest memory of 16 pages: tables of levels 4 to 2 in pages 1 to 3, for a large page; and another root in page 7. VCPU 1 has the
/// first root, VCPU 0 the other one.
fn with_guest(f: impl FnOnce(&mut P2m<&Arena>, &VecHost, &mut Shadow<&Arena, Npt>)) {
    with_pages(16, 16, f);
}

/// The same with `ram` pages of guest memory, and `pages` shadow pages.
fn with_pages(ram: u64, pages: usize, f: impl FnOnce(&mut P2m<&Arena>, &VecHost, &mut Shadow<&Arena, Npt>)) {
    let arena = Arena::new(100);
    let mut p2m = P2m::new(&arena).unwrap();
    let _no_engine_yet = p2m.map_ram(GpaRange::new(Gpa(0), ram * PAGE_SIZE).unwrap(), HOST, true).unwrap();
    let host = VecHost::new(HOST, (ram * PAGE_SIZE) as usize);
    entry(&p2m, &host, PAGE_SIZE, (2 * PAGE_SIZE) | 0x67);
    entry(&p2m, &host, 7 * PAGE_SIZE, (2 * PAGE_SIZE) | 0x67);
    entry(&p2m, &host, 2 * PAGE_SIZE, (3 * PAGE_SIZE) | 0x67);
    entry(&p2m, &host, 3 * PAGE_SIZE, 0xe7);
    let mut shadow = Shadow::new(&arena, pages, 40, Tuning::default()).unwrap();
    shadow.share(2, Arc::new(Silent));
    for (vcpu, state) in [(1, STATE), (0, OTHER)] {
        shadow.switch_vcpu(vcpu);
        let _first = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &state));
    }
    f(&mut p2m, &host, &mut shadow);
}

#[test]
fn a_root_stays_while_another_vcpu_uses_it() {
    with_guest(|p2m, host, shadow| {
        for n in 1..40 {
            let _nothing = shadow.written(p2m, &VmMemory::new(p2m, host), Gpa(PAGE_SIZE + 8 * n), 8);
        }
        shadow.switch_vcpu(1);
        shadow.check(p2m, &VmMemory::new(p2m, host), &STATE).unwrap();
    });
}

#[test]
fn no_vcpu_finds_a_root_where_its_table_was_before_memory_moved() {
    with_guest(|p2m, host, shadow| {
        let page = |n: u64| GpaRange::page(Gpa(n * PAGE_SIZE));
        let place = |n: u64| Hpa(HOST.0 + n * PAGE_SIZE);
        let (before, _) = shadow.load(AddressSpace::new(p2m, &VmMemory::new(p2m, host), &OTHER));
        let changed = p2m.map_ram(page(7), place(9), true).unwrap();
        let changed = changed.and(p2m.map_ram(page(9), place(7), true).unwrap());
        shadow.switch_vcpu(1);
        let _all_reload = shadow.apply(&[changed]);
        let memory = VmMemory::new(p2m, host);
        // The second of these is in the same shadow page, for the same memory, as the root of VCPU 0 was.
        let root = |shadow: &mut Shadow<_, _>, n| {
            shadow.load(AddressSpace::new(p2m, &memory, &PagingState { cr3: n * PAGE_SIZE, ..STATE })).0
        };
        let [_, again] = [1, 9].map(|n| root(shadow, n));
        assert_eq!(again, before);
        shadow.switch_vcpu(0);
        assert_ne!(root(shadow, 7), again);
    });
}

#[test]
fn one_address_of_a_large_page_flushes_all_its_parts_when_its_tables_are_gone() {
    with_guest(|p2m, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        shadow.switch_vcpu(1);
        let (_filled, _) =
            shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x8000), Access::READ));
        shadow.switch_vcpu(0);
        for n in 1..40 {
            let _nothing = shadow.written(p2m, &VmMemory::new(p2m, host), Gpa(3 * PAGE_SIZE + 8 * n), 8);
        }
        // The guest changes the page, of which nothing is left, and flushes it everywhere.
        shadow.switch_vcpu(1);
        assert_eq!(shadow.invlpg(&memory, Gva(0x8000)), TlbFlush::All);
        assert_eq!(shadow.invlpg(&memory, Gva(0x8000)), TlbFlush::Page(Gva(0x8000)));
    });
}

#[test]
fn one_address_of_a_large_page_flushes_all_its_parts_when_the_guest_wrote_its_table_itself() {
    with_guest(|p2m, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        shadow.switch_vcpu(1);
        let (_filled, _) =
            shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(0x8000), Access::READ));
        assert!(shadow.make_unsync(p2m, &memory, Gpa(3 * PAGE_SIZE)).is_some());
        entry(p2m, host, 3 * PAGE_SIZE, 0);
        assert_eq!(shadow.invlpg(&memory, Gva(0x9000)), TlbFlush::All);
        shadow.switch_vcpu(0);
        assert_eq!(shadow.invlpg(&memory, Gva(0x9000)), TlbFlush::All);
    });
}

#[test]
fn tables_that_the_guest_writes_are_evicted_together_and_not_freed_again_at_its_flush() {
    const FIRST: u64 = 16;
    const TABLES: u64 = 64;
    with_pages(FIRST + TABLES, 64, |p2m, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        // Tables of level 1, each of which maps itself.
        for n in 0..TABLES {
            let table = (FIRST + n) * PAGE_SIZE;
            entry(p2m, host, 3 * PAGE_SIZE + 8 * n, table | 0x67);
            entry(p2m, host, table, table | 0x67);
        }
        shadow.switch_vcpu(1);
        let touch = |shadow: &mut Shadow<_, _>, n: u64, access| {
            let (_filled, _) =
                shadow.fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(n << 21), access));
        };
        // The guest writes the first two, which are the least recently used when the pool is full.
        for n in 0..2 {
            touch(shadow, n, Access::READ);
            touch(shadow, n, Access::WRITE);
        }
        assert_eq!(shadow.statistics().unsynced, 2);
        let mut others = 2..TABLES;
        while shadow.statistics().evictions == 0 {
            touch(shadow, others.next().unwrap(), Access::READ);
        }
        // One becomes another page at once, and one is free.
        assert_eq!((shadow.statistics().evictions, shadow.statistics().pages), (2, 63));
        let _everything = shadow.flush_all(&memory);
        shadow.check(p2m, &memory, &STATE).unwrap();
    });
}

#[test]
fn a_right_that_was_taken_on_behalf_of_another_vcpu_is_forgotten_before_it_counts() {
    const TABLE: u64 = 9 * PAGE_SIZE;
    // Beyond what is filled ahead.
    const OTHER_WAY: u64 = 64 * PAGE_SIZE;
    with_pages(65, 16, |p2m, host, shadow| {
        // Two ways to a table of level 2, which leads to no memory. That on which both roots meet ends before it: in ROM the
        // accessed bit cannot be set.
        entry(p2m, host, TABLE, 0x40_00e7);
        entry(p2m, host, 2 * PAGE_SIZE + 8, TABLE | 0x47);
        entry(p2m, host, PAGE_SIZE + 8, OTHER_WAY | 0x67);
        entry(p2m, host, OTHER_WAY, TABLE | 0x67);
        let (upper, place) = (GpaRange::page(Gpa(2 * PAGE_SIZE)), Hpa(HOST.0 + 2 * PAGE_SIZE));
        let _all_reload = shadow.apply(&[p2m.map_rom(upper, place).unwrap()]);
        let memory = VmMemory::new(p2m, host);
        let touch = |shadow: &mut Shadow<_, _>, state, gva, access| {
            shadow.fault(AddressSpace::new(p2m, &memory, state), PageFault::new(Gva(gva), access))
        };
        for (vcpu, state) in [(0, OTHER), (1, STATE)] {
            shadow.switch_vcpu(vcpu);
            let _root = shadow.load(AddressSpace::new(p2m, &memory, &state));
        }
        // VCPU 1 may write to it, and VCPU 0 takes that right away.
        let (outcome, _) = touch(shadow, &STATE, TABLE, Access::WRITE);
        assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        shadow.switch_vcpu(0);
        let nothing = ShadowOutcome::NotMapped(Gpa(0x40_0000));
        assert_eq!(touch(shadow, &OTHER, 1 << 30, Access::READ), (nothing, TlbFlush::All));
        assert_eq!(shadow.statistics().shootdowns, 0, "nothing counts on it yet");
        shadow.switch_vcpu(1);
        assert_eq!(touch(shadow, &STATE, 1 << 39, Access::READ), (nothing, TlbFlush::All));
        assert_eq!(shadow.statistics().shootdowns, 1);
    });
}

#[test]
fn a_page_that_another_vcpu_released_is_forgotten_before_it_becomes_another_one() {
    const FIRST: u64 = 16;
    const TABLES: u64 = 13;
    with_pages(FIRST + TABLES, 16, |p2m, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        for n in 0..TABLES {
            entry(p2m, host, 3 * PAGE_SIZE + 8 * n, ((FIRST + n) * PAGE_SIZE) | 0x67);
            entry(p2m, host, (FIRST + n) * PAGE_SIZE, (4 * PAGE_SIZE) | 0x65);
        }
        shadow.switch_vcpu(1);
        let touch = |shadow: &mut Shadow<_, _>, n: u64| {
            shadow
                .fault(AddressSpace::new(p2m, &memory, &STATE), PageFault::new(Gva(n << 21), Access::READ))
                .1
        };
        // All pages but those of two roots and of levels 3 and 2.
        for n in 0..TABLES - 1 {
            assert_eq!(touch(shadow, n), TlbFlush::None);
        }
        shadow.switch_vcpu(0);
        for n in 1..40 {
            let _released = shadow.written(p2m, &VmMemory::new(p2m, host), Gpa(FIRST * PAGE_SIZE + 8 * n), 8);
        }
        assert_eq!((shadow.statistics().pages, shadow.statistics().shootdowns), (15, 0));
        shadow.switch_vcpu(1);
        assert_eq!(touch(shadow, TABLES - 1), TlbFlush::All);
        assert_eq!((shadow.statistics().evictions, shadow.statistics().shootdowns), (0, 1));
    });
}

/// Guest memory in which another VCPU changes an entry at the last moment: when it is told to forget that it can.
struct Late<'a> {
    memory: VmMemory<'a, &'a Arena, VecHost>,
    at: Gpa,
    before: u64,
    told: &'a Told,
}

/// Others that are told.
#[derive(Clone, Default)]
struct Told(Arc<AtomicBool>);

impl Shootdown for Told {
    fn request(&self, _reload: bool) {
        self.0.store(true, Ordering::Relaxed);
    }
    fn service(&self) {}
}

impl GuestMemory for Late<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.memory.read(gpa, buf)?;
        if gpa == self.at && !self.told.0.load(Ordering::Relaxed) {
            buf.copy_from_slice(&self.before.to_le_bytes());
        }
        Ok(())
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.memory.write(gpa, buf)
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        self.memory.compare_exchange(gpa, size, old, new)
    }
}

#[test]
fn what_a_fault_read_before_the_others_were_told_leads_nowhere() {
    const PAE: PagingState = PagingState { cr3: 8 * PAGE_SIZE, efer: efer::NXE, ..STATE };
    let page = |n: u64| (n * PAGE_SIZE) | 0x67;
    // The entries of levels 2 and 1 for the address.
    let [upper, lower] = [Gpa(9 * PAGE_SIZE), Gpa(10 * PAGE_SIZE + 8)];
    for (at, before) in [(upper, page(11)), (lower, page(13))] {
        with_guest(|p2m, host, shadow| {
            let told = Told::default();
            // Tables are write-protected as they are shadowed, which is what others are told of.
            shadow.tuning.unsync_after = 1;
            shadow.share(2, Arc::new(told.clone()));
            entry(p2m, host, 8 * PAGE_SIZE, (9 * PAGE_SIZE) | 1);
            entry(p2m, host, upper.0, page(10));
            entry(p2m, host, upper.0 + 8, page(11));
            entry(p2m, host, lower.0, page(12));
            entry(p2m, host, 11 * PAGE_SIZE + 8, page(13));
            let plain = VmMemory::new(p2m, host);
            let late = Late { memory: VmMemory::new(p2m, host), at, before, told: &told };
            // VCPU 1 can write to the table of which the entry changes.
            shadow.switch_vcpu(1);
            let (_filled, _) = shadow.fault(
                AddressSpace::new(p2m, &plain, &STATE),
                PageFault::new(Gva(at.frame().base().0), Access::WRITE),
            );
            shadow.switch_vcpu(0);
            let _root = shadow.load(AddressSpace::new(p2m, &plain, &PAE));
            if at == lower {
                // The table above is known, and the pointer to it is not.
                let (_filled, _) = shadow.fault(
                    AddressSpace::new(p2m, &plain, &PAE),
                    PageFault::new(Gva(0x20_1000), Access::READ),
                );
                let _root = shadow.load(AddressSpace::new(p2m, &plain, &PAE));
            }
            told.0.store(false, Ordering::Relaxed);
            let (outcome, _) =
                shadow.fault(AddressSpace::new(p2m, &late, &PAE), PageFault::new(Gva(0x1000), Access::READ));
            assert_eq!((outcome, told.0.load(Ordering::Relaxed)), (ShadowOutcome::Retry, true));
            shadow.check(p2m, &plain, &PAE).unwrap();
            let (outcome, _) =
                shadow.fault(AddressSpace::new(p2m, &late, &PAE), PageFault::new(Gva(0x1000), Access::READ));
            assert_eq!(outcome, ShadowOutcome::Filled { prefetched: 0 });
            shadow.check(p2m, &plain, &PAE).unwrap();
        });
    }
}
