//! After a round samples tell of single pages for a time.

use super::*;

#[test]
fn leaves_may_be_joined_after_two_samples_of_all_that_were_in_the_round() {
    let roots = [0x10_0000, 0x20_0000];
    let (mut partition, mut rounds) = in_phase("balance,phase_ms=10");
    for (root, frame) in roots.into_iter().zip([0x40, 0x50]) {
        let _touched = program(&mut partition, &mut rounds, root, frame, 0);
    }
    let spaces = roots.map(|root| rounds.known(Some(root)).unwrap());
    let complete = Scan { is_complete: true, ..Scan::default() };
    assert!(!rounds.sampled(Space::VM, complete), "nothing is small yet");
    let _ended = rounds.on(&mut partition, 0, Event::End);
    let _nothing_to_move = rounds.end(&mut partition, 0, &at(), |_| false, |_| {}).unwrap();
    let mut sampled = |space, is_complete| rounds.sampled(space, Scan { is_complete, ..complete });
    let told = [Space::VM, Space::VM, spaces[0], spaces[0], spaces[1]].map(|space| sampled(space, true));
    assert_eq!(told, [false; 5]);
    assert!(!sampled(spaces[1], false), "a part of a sample");
    assert!(sampled(spaces[1], true) && !sampled(spaces[1], true), "once");
    // A program that is gone is not waited for.
    let begun = rounds.due(&mut partition, 0, Some(roots[0]), SAMPLE_NS);
    assert_eq!(begun.change, Change::CloseAll);
    for (root, frame) in roots.into_iter().zip([0x40, 0x50]) {
        let _touched = program(&mut partition, &mut rounds, root, frame, SAMPLE_NS);
    }
    let _ended = rounds.on(&mut partition, SAMPLE_NS, Event::End);
    let _nothing_to_move = rounds.end(&mut partition, SAMPLE_NS, &at(), |_| false, |_| {}).unwrap();
    rounds.spaces.end(spaces[0]);
    assert_eq!([spaces[1]; 2].map(|space| rounds.sampled(space, complete)), [false, true]);
}
