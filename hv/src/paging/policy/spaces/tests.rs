//! Address spaces of which it is known what they cost.

use super::*;

const MS: u64 = 1_000_000;

const fn spent(ran: u64, cost: u64) -> Spent {
    Spent { ran, cost, faults: None }
}

fn spaces() -> Spaces {
    let parameters = Commodity { start_ms: 100, window_ms: 10, cost_milli: 50, retry_ms: 200, upper_ms: 0 };
    Spaces::new(parameters)
}

#[test]
fn one_that_computes_becomes_shadow_and_stays_and_its_neighbour_that_builds_does_not() {
    let mut spaces = spaces();
    let mut changes = [Vec::new(), Vec::new()];
    for ms in 0..10_000u64 {
        // 10 ms of faults that fill the tables.
        let costs = [if (100..110).contains(&ms) { MS } else { MS / 100 }, MS / 5];
        for (root, cost) in [0x1000, 0x2000].into_iter().zip(costs) {
            let at = root as usize / 0x1000 - 1;
            if spaces.charge(root, spent(MS, cost), ms * MS) {
                changes[at].push((ms, spaces.engine(root)));
            }
        }
    }
    assert_eq!(changes[0], [(99, Engine::Shadow)], "one window cost too much");
    let tries: Vec<u64> = changes[1].iter().filter(|(_, to)| *to == Engine::Shadow).map(|c| c.0).collect();
    assert_eq!(tries[0], 99);
    let waits: Vec<u64> = tries.windows(2).map(|pair| (pair[1] - pair[0]) / 100).collect();
    // 20 ms of a trial cost 4 ms.
    assert_eq!(waits[..5], [4, 4, 8, 16, 16], "twice as long, up to a limit, and 100 times the cost");
    let shadow = spaces.iter().find(|space| space.root == 0x2000).unwrap().total.cost / (MS / 5);
    assert!(shadow <= 20 * tries.len() as u64, "{shadow} ms of 10 s");
    assert_eq!(spaces.counts.to_shadow, 1 + tries.len() as u64);
}

#[test]
fn a_trial_that_went_well_resets_the_wait() {
    let mut spaces = spaces();
    let mut run = |ms: u64, cost: u64| (0..ms).filter(|_| spaces.charge(0x1000, spent(MS, cost), 0)).count();
    let much = MS / 10;
    assert_eq!((run(100, 0), run(20, much), run(400, 0), run(20, much), run(800, 0)), (1, 1, 1, 1, 1));
    assert_eq!((run(200, 0), run(20, MS)), (0, 1), "for as long as the first wait");
    assert_eq!((run(199, 0), run(1, 0)), (0, 1));
}

#[test]
fn tables_that_fill_slower_and_slower_are_let_fill() {
    let mut spaces = spaces();
    assert!(spaces.charge(0x1000, spent(100 * MS, 0), 0));
    for window in 0..12 {
        // As random accesses fill them: what is missing falls by a third in each window.
        let cost = MS * 2u64.pow(window) / 3u64.pow(window);
        assert!((0..10).all(|_| !spaces.charge(0x1000, spent(MS, cost), 0)), "window {window}");
    }
    assert_eq!(spaces.engine(0x1000), Engine::Shadow);
}

#[test]
fn a_trial_that_fails_is_paid_for_before_the_next() {
    let mut spaces = spaces();
    let mut run = |ms: u64, cost: u64| (0..ms).filter(|_| spaces.charge(0x1000, spent(MS, cost), 0)).count();
    assert_eq!((run(100, 0), run(20, MS)), (1, 1));
    assert_eq!((run(1999, 0), run(1, 0)), (0, 1), "100 times the 20 ms that it cost");
}

#[test]
fn a_trial_that_could_only_fail_is_put_off() {
    let run = |spaces: &mut Spaces, ms: u64, faults: Option<u64>, cost: u64| {
        (0..ms).filter(|_| spaces.charge(0x1000, Spent { ran: MS, cost, faults }, 0)).count()
    };
    // A fault costs 2 microseconds, as long as nothing else is known: 25 in a millisecond are too many.
    let mut first = spaces();
    assert_eq!(run(&mut first, 1000, Some(26), 0), 0);
    assert_eq!((first.counts.put_off, first.engine(0x1000)), (91, Engine::Nested));
    assert_eq!(run(&mut first, 20, Some(20), 0), 1, "when there are fewer");
    assert_eq!(run(&mut spaces(), 100, None, 0), 1, "of nothing that is known");
    // A trial that fails at 20 faults in a millisecond says that one costs 5 microseconds.
    let mut second = spaces();
    assert_eq!((run(&mut second, 100, Some(20), 0), run(&mut second, 20, Some(20), MS / 10)), (1, 1));
    assert_eq!((second.fault_cost, run(&mut second, 10_000, Some(11), 0)), (5000, 0));
    assert_eq!(run(&mut second, 20, Some(9), 0), 1);
}

#[test]
fn the_first_trial_begins_early_where_page_faults_are_few() {
    let first_change = |faults: &dyn Fn(u64) -> Option<u64>| {
        let mut spaces = spaces();
        (0..200).find(|&ms| spaces.charge(0x1000, Spent { ran: MS, cost: 0, faults: faults(ms) }, 0))
    };
    assert_eq!(first_change(&|_| None), Some(99), "nothing is known of them");
    assert_eq!(first_change(&|_| Some(1)), Some(19), "after two windows");
    assert_eq!(first_change(&|ms| Some(if ms < 35 { 40 } else { 1 })), Some(59), "two windows in a row");
    assert_eq!(first_change(&|_| Some(2)), Some(99), "few is a twentieth of what is too many");
    // Later ones wait.
    let mut spaces = spaces();
    let mut run = |ms: u64, cost: u64| {
        let few = |cost| Spent { ran: MS, cost, faults: Some(1) };
        (0..ms).filter(|_| spaces.charge(0x1000, few(cost), 0)).count()
    };
    let trial = 10 * u64::from(WINDOWS_TO_FILL + WINDOWS_TO_FAIL);
    assert_eq!((run(20, 0), run(trial, MS / 5)), (1, 1));
    assert_eq!((run(20 * trial - 1, 0), run(1, 0)), (0, 1), "100 times what it cost");
}

#[test]
fn tables_may_fill_at_any_cost_for_a_while_where_page_faults_are_few() {
    let windows = |faults: Option<u64>| {
        let mut spaces = spaces();
        let first = (0..100).find(|_| spaces.charge(0x1000, Spent { ran: MS, cost: 0, faults: Some(0) }, 0));
        assert_eq!(first, Some(19));
        (1..1000)
            .find(|_| spaces.charge(0x1000, Spent { ran: MS, cost: MS / 2, faults }, 0))
            .map(|ms| ms / 10)
    };
    assert_eq!(windows(Some(1)), Some(u64::from(WINDOWS_TO_FILL + WINDOWS_TO_FAIL)));
    assert_eq!(windows(Some(20)), Some(WINDOWS_TO_FAIL.into()), "the guest builds");
    assert_eq!(windows(None), Some(WINDOWS_TO_FAIL.into()), "nothing is known");
}

#[test]
fn tables_may_fill_for_long_at_some_times_the_cost_where_page_faults_are_few() {
    let windows = |faults: u64, cost: u64| {
        let mut spaces = spaces();
        let spent = |cost, faults| Spent { ran: MS, cost, faults: Some(faults) };
        assert_eq!((0..20).filter(|_| spaces.charge(0x1000, spent(0, 0), 0)).count(), 1);
        (1..10_000).find(|_| spaces.charge(0x1000, spent(cost, faults), 0)).map(|ms| ms / 10)
    };
    let allowed = MS * 50 / 1000;
    assert_eq!(windows(1, FILLING * allowed), None);
    assert_eq!(windows(1, FILLING * allowed + 3), Some(u64::from(WINDOWS_TO_FILL + WINDOWS_TO_FAIL)));
    assert_eq!(windows(2, allowed), None);
    assert_eq!(windows(2, allowed + 1), Some(WINDOWS_TO_FAIL.into()), "the guest builds");
}

#[test]
fn what_is_known_is_bounded_and_can_be_forgotten() {
    let mut spaces = spaces();
    for root in 0..2 * MOST as u64 {
        let _young = spaces.charge(root << 12, spent(MS, 0), root);
    }
    assert_eq!(spaces.known.len(), MOST);
    assert!(spaces.iter().all(|space| space.root >> 12 >= MOST as u64), "the oldest went");
    assert!(!spaces.any_shadow());
    let root = MOST as u64 * 0x1000;
    assert!(spaces.charge(root, spent(99 * MS, 0), 0) && spaces.any_shadow());
    spaces.forget(root);
    assert_eq!((spaces.engine(root), spaces.any_shadow()), (Engine::Nested, false));
    let eager = Spaces::new(Commodity { start_ms: 0, ..Commodity::default() });
    assert_eq!(eager.engine(root), Engine::Shadow, "from the start");
}

#[test]
fn no_numbers_overflow() {
    let mut spaces = spaces();
    for n in 0..10_000u64 {
        let huge = u64::MAX >> (n % 64);
        let spent = Spent { ran: huge, cost: huge, faults: (n % 2 == 0).then_some(huge) };
        let _any = spaces.charge(n % 3, spent, huge);
    }
}
