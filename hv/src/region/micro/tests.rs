//! Instructions that touch regions of several domains, and regions that move VCPUs too often.

use super::*;
use crate::paging::random::Random;

const A: Rid = Rid(300);
const B: Rid = Rid(301);

fn micro() -> Micro {
    let mut micro = Micro::default();
    for rid in [B, A, A] {
        micro.begin(rid).unwrap();
    }
    micro
}

fn touch(rid: Rid, registers: u64, now: u64) -> Touch {
    Touch { rid, registers, ran: now, now, can_move: true, most: MOST_MOVES }
}

/// Moves before an instruction completes that needs a region of each of these domains open where it runs; `between`: nanoseconds
/// from one fault to the next. `disturb`: what happens between two faults.
fn moves_of_one_instruction(
    domains: &[usize],
    between: u64,
    mut disturb: impl FnMut(&mut Micro, &mut LastTouches, u64),
) -> u32 {
    let mut micro = Micro::default();
    let rids: Vec<Rid> = (0..domains.len()).map(|n| Rid(300 + n as u16)).collect();
    rids.iter().for_each(|rid| micro.begin(*rid).unwrap());
    let mut last = LastTouches::default();
    let mut is_open = vec![false; domains.len()];
    let (mut here, mut now, mut moves) = (domains[0], 0, 0);
    while let Some(closed) = (0..domains.len()).find(|&n| !is_open[n] && domains[n] != here) {
        now = u64::saturating_add(now, between);
        disturb(&mut micro, &mut last, now);
        match micro.touch(&mut last, &touch(rids[closed], 77, now)) {
            Verdict::Move => (here, moves) = (domains[closed], moves + 1),
            Verdict::Globalise(_) => is_open[closed] = true,
        }
        assert!(moves < 1000, "no progress");
    }
    moves
}

#[test]
fn an_instruction_that_needs_several_domains_completes_whatever_the_clock_says() {
    for domains in [&[0, 1][..], &[0, 1, 2], &[3, 1, 2, 0], &[0, 1, 0, 1, 2, 2]] {
        let regions = domains.len() as u32;
        assert!(moves_of_one_instruction(domains, 1000, |_, _, _| ()) <= 3 * regions, "{domains:?}");
        // Each move waits for a processor that is busy.
        let slow = moves_of_one_instruction(domains, 30_000_000, |_, _, _| ());
        assert!(slow <= u32::from(SAME_FAULTS) * regions, "{domains:?}: {slow} moves");
        // Time does not advance, or goes by leaps.
        assert!(moves_of_one_instruction(domains, 0, |_, _, _| ()) <= 3 * regions);
        let most = u32::from(SAME_FAULTS) * regions;
        assert!(moves_of_one_instruction(domains, u64::MAX / 200, |_, _, _| ()) <= most);
    }
}

#[test]
fn interrupt_handlers_that_fault_meanwhile_do_not_hide_that_there_is_no_progress() {
    let mut random = Random(5);
    for _ in 0..50 {
        let handlers = random.draw() % 3;
        let moves = moves_of_one_instruction(&[0, 1], 40_000_000, |micro, last, now| {
            for n in 0..handlers {
                // A handler that makes progress each time, but always faults in one place.
                let _moves_or_not = micro.touch(last, &touch(Rid(400), 1000 + n, now));
            }
        });
        assert!(moves <= 2 * u32::from(SAME_FAULTS), "{moves}");
    }
}

#[test]
fn a_walk_through_two_regions_moves_and_opens_nothing() {
    // A chain of pointers: the same instruction each time, with another register. 1000 moves in a second.
    let (mut micro, mut last) = (micro(), LastTouches::default());
    for n in 0..2000 {
        let rid = if n % 2 == 0 { A } else { B };
        assert_eq!(micro.touch(&mut last, &touch(rid, n, n * 1_000_000)), Verdict::Move);
    }
    assert_eq!((micro.record(A).moves, micro.counts().moves, micro.counts().globalised), (1000, 2000, 0));
}

/// Each visit begins with the same instruction and the same registers.
#[test]
fn a_loop_over_two_regions_moves_and_opens_nothing() {
    let (mut micro, mut last) = (micro(), LastTouches::default());
    for n in 0..2000 {
        let rid = if n % 2 == 0 { A } else { B };
        assert_eq!(micro.touch(&mut last, &touch(rid, n % 2, n * 300_000)), Verdict::Move);
    }
    assert_eq!(micro.counts().globalised, 0);
    // Visits of 10 µs are none.
    let opened = (0..200).filter(|n| {
        let now = 1_000_000_000 + n * 10_000;
        let touch = Touch { most: u32::MAX, ..touch(A, 9, now) };
        micro.touch(&mut last, &touch) == Verdict::Globalise(Reason::Stuck)
    });
    assert!(opened.count() > 0);
}

#[test]
fn what_a_move_costs_says_how_many_there_may_be() {
    assert_eq!([16_000, 1_600, 3_000].map(most_moves), [MOST_MOVES, 208, 111]);
    assert_eq!(most_moves(0), 333_333);
    assert_eq!(most_moves(u32::MAX), 1);
}

#[test]
fn a_region_that_moves_too_often_is_opened_and_counted() {
    let (mut micro, mut last) = (micro(), LastTouches::default());
    let mut opened = vec![];
    for n in 0..100 {
        // 10 000 in a second.
        if let Verdict::Globalise(reason) = micro.touch(&mut last, &touch(A, n, n * 100_000)) {
            opened.push((n, reason));
            break;
        }
    }
    assert_eq!(opened, [(u64::from(MOST_MOVES), Reason::TooOften)]);
    let record = micro.record(A);
    assert_eq!((record.moves, record.globalised), (20, 1));
    assert_eq!(micro.counts(), Counts { closed_faults: 21, moves: 20, globalised: 1, opened: 0 });
    assert_eq!(micro.touch(&mut last, &touch(A, 500, 20_000_000)), Verdict::Move, "a new window");
}

#[test]
fn what_no_processor_may_serve_is_opened() {
    let (mut micro, mut last) = (micro(), LastTouches::default());
    let touch = Touch { can_move: false, ..touch(A, 0, 0) };
    assert_eq!(micro.touch(&mut last, &touch), Verdict::Globalise(Reason::NoProcessor));
    micro.opened_for_idle(B, 0);
    assert_eq!((micro.record(B).opened, micro.counts().opened), (1, 1));
    micro.end(A);
    assert_eq!(micro.record(A), Record::default());
    assert_eq!(micro.counts().globalised, 1, "counts outlive the region");
}

#[test]
fn a_region_that_idle_processors_open_rests_longer_each_time() {
    let mut micro = micro();
    assert!(!micro.rests(A, 0));
    let mut now = 5;
    for times in [1, 2, 4, 8, 16, 32, 32, 32] {
        micro.opened_for_idle(A, now);
        assert!(micro.rests(A, now + times * REST_NS - 1) && !micro.rests(B, now));
        now += times * REST_NS;
        assert!(!micro.rests(A, now));
    }
    micro.opened_for_idle(A, u64::MAX - 1);
    assert!(micro.rests(A, u64::MAX - 1));
    // Its number comes again.
    micro.end(A);
    micro.begin(A).unwrap();
    assert!(!micro.rests(A, now));
}
