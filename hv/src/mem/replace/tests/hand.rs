//! Small answers, by hand, and what the policies are for.

use std::vec::Vec;

use super::{super::apr::score::Side, *};

/// The evictions of a trace of letters; a capital letter is accessed twice.
fn evictions(policy: impl Policy, frames: u32, trace: &str) -> String {
    let mut memory = Memory::new(policy, frames);
    let evicted = trace.chars().filter_map(|letter| {
        let page = u64::from(u32::from(letter.to_ascii_lowercase()));
        memory.access((page, 0, if letter.is_uppercase() { 2 } else { 1 })).flatten()
    });
    evicted.map(|page| char::from(page as u8)).collect()
}

/// A loop over this many pages, each accessed twice in a row.
fn looping(pages: u64, rounds: u64) -> Vec<Reference> {
    (0..pages * rounds).map(|n| (n % pages, 1, 2)).collect()
}

#[test]
fn the_textbooks_string() {
    let trace = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1].map(|page| (page, 0, 1));
    assert_eq!(opt_faults(&trace, 3), 9);
    assert_eq!(Memory::new(Lru::new(3).unwrap(), 3).faults(&trace), 12);
}

#[test]
fn clock_gives_a_second_chance() {
    assert_eq!(evictions(Clock::new(3).unwrap(), 3, "abcad"), "b");
    assert_eq!(evictions(Clock::new(3).unwrap(), 3, "Abcde"), "bc");
    assert_eq!(evictions(Clock::new(3).unwrap(), 3, "ABCd"), "a", "after a whole round");
    assert_eq!(evictions(Clock::new(1).unwrap(), 1, "abab"), "aba");
}

#[test]
fn sieves_hand_stays() {
    // The hand spares a, evicts b, goes on with c and d, and comes to a, whose bit is clear by now.
    assert_eq!(evictions(Sieve::new(3).unwrap(), 3, "abcadefg"), "bcde");
    assert_eq!(evictions(Sieve::new(3).unwrap(), 3, "Abcdea"), "bc");
}

#[test]
fn s3_fifo_lets_a_scan_pass() {
    // The small queue has room for one; b to j go to the main queue while frames are free. Later new pages go as they came, until a
    // comes back, a ghost: it goes to the main queue, in the place of the page of the small queue.
    assert_eq!(evictions(S3Fifo::new(10).unwrap(), 10, "abcdefghijklmanop"), "aklmbno");
}

#[test]
fn a_cold_page_becomes_hot_when_it_returns_in_its_test() {
    // a goes, and returns in its test period: hot. Then c and d go by, and a stays.
    assert_eq!(evictions(ClockPro::new(3).unwrap(), 3, "abcdaefagha"), "abcdefg".split_at(6).0);
}

#[test]
fn seq_evicts_behind_the_head() {
    let mut memory = Memory::new(Seq::new(40).unwrap(), 40);
    let trace: Vec<Reference> = (0..41).map(|page| (page, 0, 1)).collect();
    let evicted: Vec<Outcome> = trace.iter().map(|reference| memory.access(*reference)).collect();
    // At the fault on 40 the head is 39: 20 behind it is 19.
    assert_eq!(evicted[40], Some(Some(19)));
    let down: Vec<Reference> = (0..41).map(|page| (100 - page, 0, 1)).collect();
    let mut memory = Memory::new(Seq::new(40).unwrap(), 40);
    let evicted: Vec<Outcome> = down.iter().map(|reference| memory.access(*reference)).collect();
    assert_eq!(evicted[40], Some(Some(81)));
}

#[test]
fn apr_forced_to_its_default_is_clock() {
    proptest!(|(trace in traces(), frames in 1u32..50)| {
        let forced = Apr::new(frames, Parameters::default()).unwrap().force(Side::Clock);
        agree(forced, models::Clock::new(frames), frames, &trace, 0);
    });
}

#[test]
fn lifo_evicts_below_the_access_window() {
    let forced = || Apr::new(3, Parameters::default()).unwrap().force(Side::Lifo);
    // When d comes, c is at the top, and LIFO+ begins at b below it; a stays.
    assert_eq!(evictions(forced(), 3, "abcdef"), "bcd");
    // b is accessed after c came: it is in the window, and a goes.
    assert_eq!(evictions(forced(), 3, "abcbd"), "a");
    // The former top is not, although it was accessed while it was the top.
    assert_eq!(evictions(forced(), 3, "aBcd"), "b");
}

#[test]
fn apr_learns_a_loop() {
    let trace = looping(100, 60);
    let opt = opt_faults(&trace, 80);
    let faults = all_faults(&trace, 80);
    assert_eq!(faults["clock"], 6000, "a loop is what CLOCK is worst at");
    assert_eq!(faults["lru"], 6000);
    assert!(faults["apr"] < 2 * opt, "{} of {opt}", faults["apr"]);
    assert!(faults["seq"] * 10 < faults["clock"] * 6, "{}", faults["seq"]);
}

#[test]
fn apr_tells_objects_apart() {
    // A loop in one object, and in another one pages that are used in turn, each some times, where CLOCK is right.
    let mut trace = Vec::new();
    for n in 0..6000u64 {
        trace.push((n % 100, 1, 2));
        trace.push((1000 + n / 50 % 200, 2, 2));
    }
    let mut memory = Memory::new(Apr::new(80, Parameters::default()).unwrap(), 80);
    let faults = memory.faults(&trace);
    let clock = all_faults(&trace, 80)["clock"];
    assert!(faults * 10 < clock * 8, "{faults} of {clock}");
    let [clock, lifo] = memory.policy.scores(Object(1));
    assert!(lifo > clock, "the loop's object");
}

#[test]
fn tables_are_small() {
    const FRAMES: u32 = 1 << 14;
    let per_frame = |policy: &dyn Fn() -> usize| policy().div_ceil(FRAMES as usize);
    // `mem::replacement` has what they take at most.
    assert_eq!(per_frame(&|| Clock::new(FRAMES).unwrap().bytes()), 8);
    assert_eq!(per_frame(&|| Lru::new(FRAMES).unwrap().bytes()), 8);
    assert_eq!(per_frame(&|| Sieve::new(FRAMES).unwrap().bytes()), 8);
    for (most, bytes) in [
        (82, per_frame(&|| S3Fifo::new(FRAMES).unwrap().bytes())),
        (56, per_frame(&|| Seq::new(FRAMES).unwrap().bytes())),
        (188, per_frame(&|| ClockPro::new(FRAMES).unwrap().bytes())),
        (254, per_frame(&|| Apr::new(FRAMES, Parameters::default()).unwrap().bytes())),
    ] {
        assert!(bytes <= most, "{bytes} of {most}");
    }
}
