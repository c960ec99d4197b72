//! Whose turn it is on a VCPU that several programs share.

use super::*;
use crate::region::regioning::Outcome;

/// Roots of two programs.
const ROOTS: [u64; 2] = [0x10_0000, 0x20_0000];

/// Both have been in a phase.
fn two_programs() -> (Partition, Rounds) {
    let (mut partition, mut rounds) = in_phase("balance,phase_ms=10");
    for (root, frame) in ROOTS.into_iter().zip([0x40, 0x50]) {
        let _touched = program(&mut partition, &mut rounds, root, frame, 0);
    }
    let _ended = rounds.on(&mut partition, 0, Event::End);
    (partition, rounds)
}

/// Rounds of this address space have led to nothing new: its next turn is left out.
fn leave_out(rounds: &mut Rounds, root: u64) {
    let space = rounds.known(Some(root)).unwrap();
    let steady = rounds.regioning.steady(space).unwrap();
    (0..2).for_each(|_| steady.ended(Outcome::default(), 1));
}

#[test]
fn a_program_that_leaves_its_turn_out_leaves_it_to_others_on_its_vcpu() {
    let (mut partition, mut rounds) = two_programs();
    leave_out(&mut rounds, ROOTS[0]);
    rounds.ran(1, SAMPLE_NS, Some(ROOTS[1]), SAMPLE_NS);
    let due = |rounds: &mut Rounds, partition: &mut Partition| {
        rounds.due(partition, 0, Some(ROOTS[0]), 2 * SAMPLE_NS).change
    };
    assert_eq!(due(&mut rounds, &mut partition), Change::None, "the other one runs on another VCPU");
    leave_out(&mut rounds, ROOTS[0]);
    rounds.ran(0, SAMPLE_NS, Some(ROOTS[1]), 0);
    assert_eq!(due(&mut rounds, &mut partition), Change::CloseAll);
    let spaces = ROOTS.map(|root| rounds.known(Some(root)).unwrap());
    assert!(spaces.iter().all(|space| !rounds.regioning.is_on(*space)), "neither has touched anything");
    let _touched = program(&mut partition, &mut rounds, ROOTS[0], 0x40, 2 * SAMPLE_NS);
    let _touched = program(&mut partition, &mut rounds, ROOTS[1], 0x50, 2 * SAMPLE_NS);
    assert_eq!(spaces.map(|space| rounds.regioning.is_on(space)), [false, true]);
    let _ended = rounds.on(&mut partition, 3 * SAMPLE_NS, Event::End);
    ROOTS.into_iter().for_each(|root| leave_out(&mut rounds, root));
    let before = rounds.counts().left_out;
    assert_eq!(due(&mut rounds, &mut partition), Change::None, "both leave it out");
    assert_eq!(rounds.counts().left_out, before + 2);
}

#[test]
fn a_program_that_has_not_run_for_a_period_is_not_asked() {
    let (mut partition, mut rounds) = two_programs();
    let period_ns = rounds.params().period_ns;
    rounds.ran(0, SAMPLE_NS, Some(ROOTS[1]), SAMPLE_NS);
    for (ago_ns, expected) in [(period_ns + 1, Change::None), (period_ns, Change::CloseAll)] {
        leave_out(&mut rounds, ROOTS[0]);
        rounds.spaces.vm_ran(SAMPLE_NS + ago_ns);
        assert_eq!(rounds.due(&mut partition, 0, Some(ROOTS[0]), SAMPLE_NS).change, expected);
    }
}

#[test]
fn what_can_have_no_number_has_no_phase_begin() {
    let (mut partition, mut rounds) = in_phase("balance,phase_ms=10");
    let spaces = partition.space_records() as u64;
    for n in 1..spaces {
        let _touched = program(&mut partition, &mut rounds, n << 20, 0x40, 0);
    }
    let _ended = rounds.on(&mut partition, 0, Event::End);
    let root = spaces << 20;
    let unknown = Some(root);
    assert!(rounds.is_unknown(unknown) && !rounds.spaces.has_room());
    assert_eq!(rounds.due(&mut partition, 0, unknown, SAMPLE_NS).change, Change::None);
    // One that is gone has its number until its frames are unmapped.
    rounds.spaces.end(rounds.known(Some(2 << 20)).unwrap());
    assert_eq!(rounds.due(&mut partition, 0, unknown, SAMPLE_NS).change, Change::None);
    let (space, is_new) = rounds.spaces.enter(&mut partition, root);
    assert_eq!((space, is_new), (Space::VM, false));
    // A program that is known, and has run there, takes its turn.
    rounds.ran(0, SAMPLE_NS, Some(1 << 20), 0);
    assert_eq!(rounds.due(&mut partition, 0, unknown, SAMPLE_NS).change, Change::CloseAll);
}
