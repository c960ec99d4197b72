//! Large leaves that are split so that each page has an accessed bit.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE, PageSize};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::mem::tier::migration::Migration;
use crate::mem::tier::tests::NoBytes;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::shadow::tests::{HOST, STATE, Silent};
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome, Tuning};
use crate::paging::vm_memory::VmMemory;

const M2: u64 = 2 << 20;

#[test]
fn a_large_leaf_is_split_where_pages_move_and_stays_so_until_the_p2m_joins_it() {
    for moves in [true, false] {
        let arena = Arena::new(100);
        let mut p2m = P2m::new(&arena).unwrap();
        let ram = GpaRange::new(Gpa(0), 2 * M2).unwrap();
        let _no_engine_yet = p2m.map_ram(ram, HOST, true).unwrap();
        if moves {
            p2m.set_migration(&Arc::new(Migration::new(1, Box::new(NoBytes)).unwrap()));
        }
        let host = VecHost::new(HOST, 2 * M2 as usize);
        // The second 2 MiB at address 0, as one page.
        for (at, entry) in [(1, (2 * PAGE_SIZE) | 7), (2, (3 * PAGE_SIZE) | 7), (3, M2 | 0xe7)] {
            VmMemory::new(&p2m, &host).write(Gpa(at * PAGE_SIZE), &u64::to_le_bytes(entry)).unwrap();
        }
        let mut shadow = Shadow::<_, Npt>::new(&arena, 32, 40, Tuning::default()).unwrap();
        shadow.share(1, Arc::new(Silent));
        let touch = |p2m: &P2m<&Arena>, shadow: &mut Shadow<&Arena, Npt>, page: u64| {
            let memory = VmMemory::new(p2m, &host);
            let fault = PageFault::new(Gva(page * PAGE_SIZE), Access::WRITE);
            let (outcome, _) = shadow.fault(AddressSpace::new(p2m, &memory, &STATE), fault);
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }), "{outcome:?}");
        };
        let _first = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &STATE));
        touch(&p2m, &mut shadow, 0);
        let frame = |page: u64| Hpa(HOST.0 + M2 + page * PAGE_SIZE).frame();
        assert!(shadow.has_large_leaf(frame(7)));
        p2m.split(GpaRange::page(Gpa(M2)), PageSize::Size4K).unwrap();
        assert_eq!(shadow.drop_large_leaves([frame(7)].into_iter()), TlbFlush::All, "bits are set again");
        assert!(!shadow.has_large_leaf(frame(7)));
        touch(&p2m, &mut shadow, 100);
        assert_eq!(
            shadow.has_large_leaf(frame(7)),
            !moves,
            "elsewhere small leaves of the P2m are no request"
        );
        if moves {
            assert_eq!([100, 300].map(|page| shadow.take_in_use(frame(page))), [true, false]);
            assert_eq!(shadow.drop_large_leaves([frame(7)].into_iter()), TlbFlush::None, "there is none");
            let _nothing_moved = p2m.join(Gpa(M2)).unwrap();
            let _all_again = shadow.drop_everything();
            let _root = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &STATE));
            touch(&p2m, &mut shadow, 100);
            assert!(shadow.has_large_leaf(frame(7)));
        } else {
            assert!(shadow.take_in_use(frame(0)) && shadow.take_in_use(frame(510)));
            assert!(shadow.take_in_use(frame(511)), "and clears the bit");
            assert!(!shadow.take_in_use(frame(1)));
            touch(&p2m, &mut shadow, 7);
            assert!(shadow.take_sample(1) && !shadow.take_sample(2), "cleared");
            assert_eq!(shadow.take_used(frame(256), 0xf0), 0xf0);
            assert_eq!([256, 260, 264].map(|page| shadow.take_in_use(frame(page))), [true, false, true]);
            assert_eq!(shadow.take_used(frame(256), u64::MAX), u64::MAX << 9 | 0xe);
        }
    }
}
