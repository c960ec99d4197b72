//! Cases of several VCPUs that a random trace meets seldom.

use super::*;
use crate::guest::mem::GuestMemory;
use crate::guest::ram::{VecHost, VmMemory};
use crate::paging::addr::{Gpa, Gva, Hpa, PAGE_SIZE};
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::{PagingFeatures, PagingState};
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::shadow::{TlbFlush, Tuning};
use crate::virt::Access;
use crate::virt::state::{cr0, cr4, efer};

pub(super) const HOST: Hpa = Hpa(0x8000_0000);
pub(super) const STATE: PagingState = PagingState {
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
/// The registers of the other VCPU.
const OTHER: PagingState = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };

struct Silent;

impl Others for Silent {
    fn forget(&self, _reload: bool) {}
    fn answer(&self) {}
}

fn entry(p2m: &P2m<&Arena>, host: &VecHost, at: u64, entry: u64) {
    VmMemory::new(p2m, host).write(Gpa(at), &entry.to_le_bytes()).unwrap();
}

/// Guest memory of 16 pages: tables of levels 4 to 2 in pages 1 to 3, for a large page; and another root in page 7. VCPU 1 has the
/// first root, VCPU 0 the other one.
fn with_guest(f: impl FnOnce(&mut P2m<&Arena>, &VecHost, &mut Shadow<&Arena, Npt>)) {
    with_pages(16, 16, f);
}

/// The same with so many pages of guest memory, and so many shadow pages.
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
        shadow.serve(vcpu);
        let _first = shadow.load(&p2m, &VmMemory::new(&p2m, &host), &state);
    }
    f(&mut p2m, &host, &mut shadow);
}

#[test]
fn a_root_stays_while_another_vcpu_uses_it() {
    with_guest(|p2m, host, shadow| {
        for n in 1..40 {
            let _nothing = shadow.written(p2m, Gpa(PAGE_SIZE + 8 * n), 8);
        }
        shadow.serve(1);
        shadow.check(p2m, &VmMemory::new(p2m, host), &STATE).unwrap();
    });
}

#[test]
fn no_vcpu_finds_a_root_where_its_table_was_before_memory_moved() {
    with_guest(|p2m, host, shadow| {
        let page = |n: u64| GpaRange::page(Gpa(n * PAGE_SIZE));
        let place = |n: u64| Hpa(HOST.0 + n * PAGE_SIZE);
        let changed = p2m.map_ram(page(1), place(9), true).unwrap();
        let changed = changed.and(p2m.map_ram(page(9), place(1), true).unwrap());
        shadow.serve(1);
        let _all_reload = shadow.apply(changed);
        let memory = VmMemory::new(p2m, host);
        let (root, _) = shadow.load(p2m, &memory, &PagingState { cr3: 9 * PAGE_SIZE, ..STATE });
        shadow.serve(0);
        let (other, _) = shadow.load(p2m, &memory, &STATE);
        assert_ne!(root, other);
    });
}

#[test]
fn one_address_of_a_large_page_flushes_all_its_parts_when_its_tables_are_gone() {
    with_guest(|p2m, host, shadow| {
        let memory = VmMemory::new(p2m, host);
        shadow.serve(1);
        let (_filled, _) = shadow.fault(p2m, &memory, &STATE, Gva(0x8000), Access::READ);
        shadow.serve(0);
        for n in 1..40 {
            let _nothing = shadow.written(p2m, Gpa(3 * PAGE_SIZE + 8 * n), 8);
        }
        // The guest changes the page, of which nothing is left, and flushes it everywhere.
        shadow.serve(1);
        assert_eq!(shadow.invlpg(&memory, Gva(0x8000)), TlbFlush::All);
        assert_eq!(shadow.invlpg(&memory, Gva(0x8000)), TlbFlush::Page(Gva(0x8000)));
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
        shadow.serve(1);
        let touch = |shadow: &mut Shadow<_, _>, n: u64, access| {
            let (_filled, _) = shadow.fault(p2m, &memory, &STATE, Gva(n << 21), access);
        };
        // The guest writes the first two, which nobody uses for longest when the pages have run out.
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
