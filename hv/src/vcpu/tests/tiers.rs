//! The hypercall by which a guest says what it wants of the fast memory.

use abi::hypercall::*;
use abi::tiers::{HotPolicy, Sharing};

use super::*;
use crate::guest::build::scrub;
use crate::mem::tier::sharing::Target;
use crate::mem::tier::tests::{pool, tiers};
use crate::vcpu::testing::Machine;
use crate::virt::fake::Step;

fn call(f: &mut Fake, per_mille: u64) -> Exit {
    f.set_gpr(Gpr::Rax, TIER_TARGET);
    f.set_gpr(Gpr::Rbx, per_mille);
    Exit::Hypercall
}

const ALL: Step = |f| call(f, 1000);
const NONE: Step = |f| call(f, 0);
const TOO_MUCH: Step = |f| call(f, 1001);

/// What RAX holds after each of these, on a machine with this policy or without fast memory, and the machine.
#[track_caller]
fn answers<const N: usize>(sharing: Option<Sharing>, steps: [Step; N]) -> ([i64; N], Machine) {
    let mut machine = Machine::new(&[]);
    machine.vm.tiers = sharing.map(|sharing| tiers(&pool(800, sharing), 0, HotPolicy::Threshold).into());
    let answers = steps.map(|step| {
        machine.vcpu.virt.script.push_back(step);
        machine.play();
        assert!(machine.vcpu.virt.delivered.is_empty(), "no hypercall faults");
        machine.vcpu.virt.gpr(Gpr::Rax) as i64
    });
    (answers, machine)
}

/// What the guest wants, and its calls.
fn wanted(machine: &Machine) -> (Option<u16>, u64) {
    let (target, calls) = machine.vm.tiers.as_ref().unwrap().view().target;
    (target.map(Target::per_mille), calls)
}

#[test]
fn each_answer_has_its_number() {
    let user: Step = |f| {
        f.regs.cpl = 3;
        ALL(f)
    };
    assert_eq!(answers(None, [ALL, NONE, TOO_MUCH]).0, [-19, -19, -22]);
    assert_eq!(answers(Some(Sharing::Shares), [ALL, NONE, TOO_MUCH]).0, [-95, -95, -22]);
    assert_eq!(answers(Some(Sharing::EstateResource), [ALL]).0, [-95]);
    let (found, machine) = answers(Some(Sharing::EstateQos), [ALL, TOO_MUCH, |f| call(f, 1 << 31), user]);
    assert_eq!(
        (found, wanted(&machine)),
        ([0, -22, -22, -1], (Some(1000), 3)),
        "what is refused changes nothing"
    );
    let (found, machine) = answers(Some(Sharing::EstateQos), [|f| call(f, 1), NONE]);
    assert_eq!((found, wanted(&machine)), ([0, 0], (None, 2)));
}

#[test]
fn a_reset_takes_it_back() {
    let (_, machine) = answers(Some(Sharing::EstateQos), [|f| call(f, 700)]);
    assert_eq!(wanted(&machine), (Some(700), 1));
    scrub(&machine.vm, 0).unwrap();
    assert_eq!(wanted(&machine), (None, 1));
}
