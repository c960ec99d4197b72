//! The hypercalls by which a guest divides its memory into regions.

use alloc::sync::Arc;

use abi::hypercall::*;

use super::*;
use crate::arch::addr::Gfn;
use crate::guest::build::scrub;
use crate::mem::objects::Objects;
use crate::mem::pager::Span;
use crate::vcpu::testing::Machine;
use crate::virt::fake::Step;

fn call(f: &mut Fake, number: u64, arguments: [u64; 3]) -> Exit {
    f.set_gpr(Gpr::Rax, number);
    for (gpr, value) in [Gpr::Rbx, Gpr::Rcx, Gpr::Rdx].into_iter().zip(arguments) {
        f.set_gpr(gpr, value);
    }
    Exit::Hypercall
}

const ADD: Step = |f| call(f, ADD_GUEST_REGION, [0; 3]);

/// The machine after these steps, and what RAX holds.
#[track_caller]
fn answer_to(steps: &[Step]) -> (Machine, i64) {
    let mut machine = Machine::new(steps);
    machine.play();
    assert!(machine.vcpu.virt.delivered.is_empty(), "no hypercall faults");
    let answer = machine.vcpu.virt.gpr(Gpr::Rax) as i64;
    (machine, answer)
}

#[test]
fn each_answer_has_its_number() {
    let answer = |steps: &[Step]| answer_to(steps).1;
    assert_eq!(answer(&[ADD]), 1);
    assert_eq!(answer(&[ADD, ADD]), 2);
    assert_eq!(answer(&[|f| call(f, ADD_PAGE, [8, 3, 1])]), -2, "no such region");
    assert_eq!(answer(&[ADD, |f| call(f, ADD_PAGE, [8, 3, 1])]), 0);
    assert_eq!(answer(&[ADD, |f| call(f, ADD_PAGE, [9, 3, 1])]), -22, "not aligned");
    assert_eq!(answer(&[ADD, |f| call(f, ADD_PAGE, [0, 11, 1])]), -22, "order");
    assert_eq!(answer(&[ADD, |f| call(f, ADD_PAGE, [0xfee00, 0, 1])]), -14, "the local APIC");
    assert_eq!(answer(&[ADD, |f| call(f, ADD_PAGE, [0xffff_fc00, 10, 1])]), -14, "beyond all memory");
    let twice = |f: &mut Fake| call(f, ADD_PAGE, [8, 0, 1]);
    assert_eq!(answer(&[ADD, twice, twice]), -17);
    let out = |f: &mut Fake| call(f, DEL_PAGE, [8, 0, 1]);
    assert_eq!(answer(&[ADD, twice, out]), 0);
    assert_eq!(answer(&[ADD, twice, out, out]), -2);
    assert_eq!(answer(&[ADD, |f| call(f, DEL_GUEST_REGION, [1, 0, 0])]), 0);
    assert_eq!(answer(&[ADD, |f| call(f, DEL_GUEST_REGION, [2, 0, 0])]), -2);
    let user = |f: &mut Fake| {
        f.regs.cpl = 3;
        ADD(f)
    };
    assert_eq!(answer(&[user]), -1);
}

#[test]
fn a_reset_ends_all_regions() {
    let (machine, _) = answer_to(&[ADD, |f| call(f, ADD_PAGE, [8, 3, 1])]);
    let regions = |machine: &Machine| {
        let regions = machine.vm.regions.lock(|| unreachable!("the lock is free"));
        regions.as_ref().map(|records| records.guest.partition().region_of(Gfn(8)))
    };
    assert!(regions(&machine).is_some());
    scrub(&machine.vm, 0).unwrap();
    assert_eq!(regions(&machine), None);
}

/// What a policy of page replacement knows of the regions follows each call, and a reset.
#[test]
fn objects_are_those_of_the_regions() {
    let calls: [Step; 6] = [
        ADD,
        ADD,
        |f| call(f, ADD_PAGE, [8, 3, 2]),
        |f| call(f, ADD_PAGE, [16, 0, 1]),
        |f| call(f, DEL_PAGE, [9, 0, 2]),
        |f| call(f, DEL_GUEST_REGION, [1, 0, 0]),
    ];
    let after = |calls: &[Step], resets: bool| {
        let span = Span { low: 64, high_start: Gfn(1 << 20), high: 0 };
        let objects = Arc::new(Objects::new(span).unwrap());
        let mut machine = Machine::new(calls);
        machine.vm.regions.tell(objects.clone());
        machine.play();
        if resets {
            scrub(&machine.vm, 0).unwrap();
        }
        let numbers = [8, 9, 15, 16].map(|page| objects.of(page));
        numbers.map(|object| if object == objects.of(0) { 0 } else { object.0 })
    };
    assert_eq!(after(&calls[..2], false), [0; 4]);
    assert_eq!(after(&calls[..3], false), [2, 2, 2, 0]);
    assert_eq!(after(&calls[..4], false), [2, 2, 2, 1]);
    assert_eq!(after(&calls[..5], false), [2, 0, 2, 1]);
    assert_eq!(after(&calls, false), [2, 0, 2, 0]);
    assert_eq!(after(&calls, true), [0; 4]);
}
