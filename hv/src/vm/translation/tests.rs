//! When policies are asked, what they see, and which engine is in force then.

use alloc::vec::Vec;

use super::*;
use core::num::NonZeroU32;

fn switching(exits: u32) -> Translation {
    let translation = Translation::default();
    translation.request(Mode::Switch(NonZeroU32::new(exits).unwrap()));
    translation
}

#[test]
fn exits_of_all_vcpus_count_together() {
    let translation = switching(3);
    let changes: Vec<bool> = (0..9).map(|_| translation.count_exit()).collect();
    assert_eq!(changes, [false, false, true, false, false, true, false, false, true]);
    assert_eq!(translation.wanted(), Engine::Shadow);
    assert_eq!(translation.in_force(), Engine::Nested, "nothing has changed it");
}

#[test]
fn a_fixed_mode_counts_nothing() {
    let translation = switching(1);
    assert!(translation.count_exit());
    translation.request(Mode::Shadow);
    assert!(!translation.counts_exits() && !translation.count_exit());
    assert_eq!((translation.wanted(), translation.mode()), (Engine::Shadow, Mode::Shadow));
    translation.reset();
    assert_eq!((translation.wanted(), translation.in_force()), (Engine::Nested, Engine::Nested));
}

#[test]
fn policies_see_what_a_period_has_added() {
    use crate::arch::counters::{CounterEvent, Counts};
    let sums = |n: u64| {
        let mut guest = Counts::ABSENT;
        guest.set(CounterEvent::Instructions, 1000 * n);
        Period { nanos: n, exits: 2 * n, paging_exits: n, guest_faults: 0, guest, host: Counts::ABSENT }
    };
    let translation = Translation::default();
    let nothing = PeriodEnd { changed: false, blind: false, lacks_page_faults: false };
    assert_eq!(translation.end_period(sums(3)), nothing);
    assert_eq!(translation.last_period(), None, "the first one has no begin");
    assert_eq!(translation.end_period(sums(10)), nothing);
    assert_eq!(translation.last_period(), Some(sums(7)));
    translation.request(Mode::Shadow);
    assert_eq!(translation.last_period(), Some(sums(7)), "another policy begins with it");
}

#[test]
fn policies_are_asked_at_the_end_of_periods() {
    use crate::arch::counters::Counts;
    let sums = |ms: u64| Period {
        nanos: ms * 1_000_000,
        exits: 0,
        paging_exits: 0,
        guest_faults: 0,
        guest: Counts::ABSENT,
        host: Counts::ABSENT,
    };
    let translation = Translation::default();
    translation.request("random,interval_ms=10".parse().unwrap());
    let ends: Vec<PeriodEnd> = (0..100).map(|n| translation.end_period(sums(10 * n))).collect();
    let changes = ends.iter().filter(|end| end.changed).count();
    assert!((25..75).contains(&changes), "{changes} changes in 100 draws");
    assert!(ends.iter().all(|end| !end.blind), "it compares nothing");
    assert!(!translation.counts_exits());
    translation.request("dav2m".parse().unwrap());
    let blind = [1000, 1010, 1020].map(|ms| translation.end_period(sums(ms)).blind);
    assert_eq!(blind, [true, false, false], "said once");
    // A lab machine that has not begun to model: it may soon.
    let sums = |ms: u64| {
        let mut guest = Counts::ABSENT;
        guest.set(CounterEvent::Instructions, ms);
        Period { guest, ..sums(ms) }
    };
    assert!(!translation.end_period(sums(1020)).blind, "said before");
    translation.request("bandit".parse().unwrap());
    let ends = (103..1210).filter(|n| translation.end_period(sums(10 * n)).blind);
    assert_eq!(ends.collect::<Vec<_>>(), [1102], "after ten seconds");
}

#[test]
fn exits_during_a_decision_count_for_the_next_period() {
    let translation = switching(2);
    // Five more VCPUs have counted theirs before the sixth decides.
    translation.left.store(1, Ordering::SeqCst);
    let mut asked = translation.asked.lock();
    translation.left.fetch_sub(6, Ordering::SeqCst);
    let mut asks = 1;
    while translation.decide(&mut asked, Event::Exits) {
        asks += 1;
    }
    assert_eq!((asks, translation.left.load(Ordering::SeqCst)), (3, 1));
}

#[test]
fn one_vcpu_keeps_all_from_an_engine() {
    let translation = Translation::default();
    translation.request(Mode::Shadow);
    let nested = Engines::only(Engine::Nested);
    assert_eq!(translation.target(Engines::ALL), Some(Engine::Shadow));
    translation.publish(5, Engines::ALL, nested);
    assert_eq!(translation.target(Engines::ALL), Some(Engine::Nested));
    translation.publish(6, Engines::ALL, nested);
    translation.publish(5, nested, Engines::ALL);
    assert_eq!(translation.target(Engines::ALL), Some(Engine::Nested), "VCPU 6 still does");
    translation.publish(6, nested, Engines::ALL);
    assert_eq!(translation.target(Engines::ALL), Some(Engine::Shadow));
    assert_eq!(translation.target(Engines::NONE), None);
}

#[test]
fn vcpus_that_exclude_everything_between_them_get_their_own() {
    let translation = Translation::default();
    let (nested, shadow) = (Engines::only(Engine::Nested), Engines::only(Engine::Shadow));
    translation.publish(0, Engines::ALL, nested);
    translation.publish(1, Engines::ALL, shadow);
    assert_eq!(translation.target(nested), Some(Engine::Nested));
    assert_eq!(translation.target(shadow), Some(Engine::Shadow));
}
