//! A VCPU that changes to the tables of another cache domain and finds a table there that the guest has written unseen.

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gva, PAGE_SIZE};
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::ept::Ept;
use crate::paging::format::npt::Npt;
use crate::paging::shadow::left_out::LeftOut;
use crate::paging::shadow::tests::{HOST, STATE, with_guest_on};
use crate::paging::shadow::{PageFault, ShadowOutcome};
use crate::paging::vm_memory::VmMemory;

/// What the guest does on the first set of tables after it has changed the entry of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Nothing,
    Invlpg,
    FlushAll,
    LoadCr3,
    Fault,
}

/// Whether the root in the other domain's tables is used as it is, and the guest's page to which the address leads there; it was
/// the fifth before.
fn after_change<F: PteFormat>(does: Does, left_out: Option<Step>) -> (bool, Option<u64>) {
    let mut result = (false, None);
    with_guest_on::<F>(|p2m: &P2m<&Arena>, write, host: &VecHost, shadow: &mut Shadow<&Arena, F>| {
        let memory = VmMemory::new(p2m, host);
        let space = AddressSpace::new(p2m, &memory, &STATE);
        let (first, second) = (TreeKey::FIRST, TreeKey::new(1, 0).unwrap());
        shadow.left_out = LeftOut(left_out);
        for tree in [first, second] {
            shadow.select(tree);
            let _all = shadow.load(space);
            let (outcome, _) = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. }));
        }
        let PagingState { cr0, cr3, cr4, efer, .. } = STATE;
        let registers = Registers { cr0, cr3, cr4, efer };
        assert!(shadow.load_in_tree(first, &registers, true).is_some(), "nothing is unsync");
        let _all = shadow.make_unsync(p2m, &memory, Gpa(4 * PAGE_SIZE)).expect("it is write-protected");
        write(4 * PAGE_SIZE, (6 * PAGE_SIZE) | 0x67);
        match does {
            Does::Nothing | Does::Fault => {}
            Does::Invlpg => _ = shadow.invlpg(&memory, Gva(0)),
            Does::FlushAll => _ = shadow.flush_all(&memory),
            Does::LoadCr3 => _ = shadow.load(space),
        }
        let is_used = shadow.load_in_tree(second, &registers, does == Does::Fault).is_some();
        if !is_used {
            let _all = shadow.load(space);
        }
        let page = shadow.code(Gva(0), true).map(|at| (at.0 - HOST.0) / PAGE_SIZE);
        result = (is_used, page);
    });
    result
}

#[test]
fn other_tables_have_no_entry_that_is_older_than_a_flush() {
    assert_eq!(after_change::<Npt>(Does::Nothing, None), (true, Some(5)), "as a processor may remember it");
    for flushes in [Does::Invlpg, Does::FlushAll, Does::LoadCr3] {
        assert_eq!(after_change::<Npt>(flushes, None), (true, None), "{flushes:?}");
    }
    assert_eq!(after_change::<Npt>(Does::Fault, None), (false, None), "a fault flushes its address");
    for does in [Does::Nothing, Does::Invlpg, Does::Fault] {
        assert_eq!(after_change::<Ept>(does, None), (false, None), "it may have taken faults without exits");
    }
}

#[test]
fn steps_that_are_left_out_leave_such_entries() {
    for (does, step) in [(Does::Invlpg, Step::CompareOtherTrees), (Does::Fault, Step::CompareAfterFault)] {
        assert_eq!(after_change::<Npt>(does, Some(step)), (true, Some(5)), "{step:?}");
    }
}
