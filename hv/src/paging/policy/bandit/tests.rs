//! `bandit` on the modelled guest of the other policies' tests: beside DSP-OFFSET, whose model knows that guest, and beside the
//! bandits that were tried in its place.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::super::modelled::{Decide, MISSES, Machine, NEITHER, PAGING, Work};
use super::super::{Mode, Period, Policy};
use super::costs::{Costs, Rates};
use super::gains::{Context, Gains};
use super::others::{LinUcb, Ucb};
use super::*;
use crate::arch::counters::{CounterEvent, Counts};

/// Periods of 10 ms in a minute.
const MINUTE: u32 = 6000;
/// DSP-OFFSET for the modelled guest, whose page faults are 25 times as expensive as what nested paging adds to a miss.
const TOLD: &str = "dsp-offset,bias=-524288";

/// Work that lasts for a minute: what the guest does, and for how many periods, again and again.
type Minute = Vec<(Work, u32)>;

fn repeated(works: &[(Work, u32)]) -> Minute {
    let length: u32 = works.iter().map(|(_, periods)| periods).sum();
    (0..MINUTE / length).flat_map(|_| works.iter().copied()).collect()
}

/// Guests of each kind.
fn guests() -> [(&'static str, Minute); 6] {
    let close = Work { faults: 8, misses: 500 };
    let mixed =
        [PAGING, Work { faults: 20, misses: 500 }, MISSES, Work { faults: 2, misses: 3000 }, NEITHER, close];
    [
        ("paging", repeated(&[(PAGING, 1)])),
        ("misses", repeated(&[(MISSES, 1)])),
        ("neither", repeated(&[(NEITHER, 1)])),
        ("close", repeated(&[(close, 1)])),
        ("phases", repeated(&[(PAGING, 1500), (MISSES, 1500)])),
        ("mixed", repeated(&mixed.map(|work| (work, 500)))),
    ]
}

/// Cycles of the second to the fourth minute, and changes in all, of a guest that counts its page faults.
fn cycles<P: Decide>(policy: P, minute: &Minute, noise_milli: u64) -> (u64, u32) {
    let mut machine = Machine::with(policy);
    (machine.counts, machine.noise_milli) = (true, noise_milli);
    machine.work(minute.iter().copied());
    let before = machine.cycles;
    (0..3).for_each(|_| machine.work(minute.iter().copied()));
    (machine.cycles - before, machine.changes)
}

fn policy(mode: &str) -> Policy {
    Policy::new(mode.parse().unwrap())
}

#[test]
fn after_a_minute_it_is_within_a_hundredth_of_dsp_offset() {
    for noise_milli in [0, 50] {
        for (what, minute) in guests() {
            let ((learnt, changes), (told, _)) =
                (cycles(policy("bandit"), &minute, noise_milli), cycles(policy(TOLD), &minute, noise_milli));
            let milli = (learnt as i64 - told as i64) * 1000 / told as i64;
            assert!(milli < 10, "{what}, noise {noise_milli}: {milli} thousandths behind, {changes} changes");
        }
    }
}

/// Prints the table of docs/design/0022.
#[test]
fn no_other_bandit_does_as_well_on_all_guests() {
    let mut worst = [f64::MIN; 4];
    std::println!("loss against the better engine of each phase in minutes 2 to 4, %; speed varies by 5 %");
    for (what, minute) in guests() {
        let best = best_cycles(&minute);
        let found = [
            cycles(policy("bandit"), &minute, 50).0,
            cycles(Ucb::new(0.999), &minute, 50).0,
            cycles(Ucb::new(0.9999), &minute, 50).0,
            cycles(LinUcb::new(), &minute, 50).0,
        ];
        let losses = found.map(|cycles| (cycles as f64 / best - 1.0) * 100.0);
        std::println!("{what:10} {losses:7.2?}");
        for (worst, loss) in worst.iter_mut().zip(losses) {
            *worst = worst.max(loss);
        }
    }
    let losses = [
        swapped(policy("bandit")),
        swapped(Ucb::new(0.999)),
        swapped(Ucb::new(0.9999)),
        swapped(LinUcb::new()),
    ];
    std::println!("{:10} {losses:7.2?}", "swapped");
    let worst: Vec<f64> = worst.iter().zip(losses).map(|(worst, loss)| worst.max(loss)).collect();
    assert!(worst[0] < 1.0 && worst[1..].iter().all(|other| *other > worst[0]), "{worst:?}");
}

/// What the better engine of each phase would have taken, in minutes 2 to 4, with the mean of the noise.
fn best_cycles(minute: &Minute) -> f64 {
    let mut cycles = 0;
    for (work, periods) in minute {
        let extra = (work.misses * 120).min(work.faults * 3000 + work.misses * 30);
        cycles += 3 * u64::from(*periods) * 2 * (1_050_000 + extra);
    }
    cycles as f64
}

/// The loss in per cent in the last two of four minutes; after the first two, misses become ten times as expensive with shadow paging.
fn swapped<P: Decide>(policy: P) -> f64 {
    let mut machine = Machine::with(policy);
    (machine.counts, machine.noise_milli) = (true, 50);
    machine.work([(MISSES, 2 * MINUTE)]);
    let before = machine.cycles;
    machine.miss[1] = 300;
    machine.work([(MISSES, 2 * MINUTE)]);
    let best = 2 * u64::from(2 * MINUTE) * (1_050_000 + MISSES.misses * 120);
    ((machine.cycles - before) as f64 / best as f64 - 1.0) * 100.0
}

#[test]
fn without_counted_page_faults_it_follows_phases() {
    let mut machine = Machine::new("bandit");
    machine.work((0..8).flat_map(|_| [(PAGING, 3000), (MISSES, 3000)]));
    let best = 8 * 3000 * 2 * (2_000_000 + PAGING.misses * 120 + 3000 + MISSES.misses * 30);
    assert!(machine.cycles < best / 100 * 101, "{} for {best}", machine.cycles);
    assert!((15..40).contains(&machine.changes), "{} changes", machine.changes);
}

#[test]
fn what_changes_unseen_is_found_by_trials() {
    // Shadow paging is expensive first: nothing that nested paging shows tells that it no longer is.
    let mut machine = Machine::new("bandit");
    machine.miss[1] = 300;
    machine.work([(MISSES, MINUTE)]);
    let (changes, shadow) = (machine.changes, machine.shadow);
    assert!(changes >= 2 && shadow < MINUTE / 50, "{changes} changes, {shadow} periods");
    machine.miss[1] = 30;
    machine.work([(MISSES, 5 * MINUTE)]);
    let last = machine.shadow;
    machine.work([(MISSES, MINUTE)]);
    assert!(machine.shadow - last > MINUTE * 9 / 10, "it still prefers nested paging");
}

#[test]
fn trials_become_rare_while_nothing_changes() {
    let mut machine = Machine::new("bandit");
    machine.work([(NEITHER, 1000)]);
    let first = machine.changes;
    machine.work([(NEITHER, 5 * MINUTE)]);
    let later = machine.changes - first;
    // The first ten seconds have a thirtieth of the changes of five minutes, were there as many all the time.
    assert!(
        30 * first > 3 * later && later > 0,
        "{first} changes in the first ten seconds, {later} in five minutes"
    );
}

#[test]
fn phases_that_look_alike_do_not_mislead_it() {
    // Three times as many cycles for an instruction with either engine, each second or two. Trials lie across the changes.
    for length in [101, 137, 200] {
        let mut machine = Machine::new("bandit");
        let work = Work { faults: 2, misses: 3000 };
        let mut best = 0;
        for round in 0..100 {
            machine.base_milli = [1000, 3000][round % 2];
            machine.work([(work, length)]);
            best +=
                u64::from(length) * 2 * (machine.base_milli * 1000 + work.faults * 3000 + work.misses * 30);
        }
        let milli = (machine.cycles - best) * 1000 / best;
        assert!(milli < 20, "{length} periods: {milli} thousandths lost");
    }
}

#[test]
fn in_a_new_context_it_knows_what_misses_and_page_faults_cost_about() {
    let counting = |work, periods| {
        let mut machine = Machine::new("bandit");
        machine.counts = true;
        machine.work([(work, periods)]);
        (machine.changes, machine.engine)
    };
    // An interval has five periods, and the first thing that it sees is enough.
    assert_eq!(counting(MISSES, 5), (1, Engine::Shadow));
    assert_eq!(counting(PAGING, 500), (0, Engine::Nested), "what is bad anyway is not tried");
}

/// What a guest does that has this many misses and page faults in a million instructions.
fn rates(misses: u64, faults: u64, cycles: u64) -> Rates {
    let window = Window { instructions: 1_000_000, cycles, misses, faults, ..Window::default() };
    Rates::of(&window, true)
}

#[test]
fn costs_that_were_seen_hold_in_other_contexts() {
    // A walk that costs next to nothing more, and page faults that cost ten times what is assumed at first.
    let mut costs = Costs::new();
    let other = rates(9_000, 20, 2_000_000);
    assert!(
        costs.estimate(other, Engine::Nested).unwrap().low > 0,
        "misses cost more than so few page faults"
    );
    for (misses, faults) in [(20_000, 0), (1_000, 40), (30_000, 10), (500, 200)].repeat(4) {
        let [nested, shadow] = [2_000_000 + misses, 2_000_000 + 50_000 * faults];
        let [nested, shadow] = [nested, shadow].map(|cycles| rates(misses, faults, cycles));
        costs.learn(nested, shadow, Engine::Shadow, 0);
        costs.learn(shadow, nested, Engine::Nested, 0);
    }
    let Estimate { low, high, .. } = costs.estimate(other, Engine::Nested).unwrap();
    assert!(high < 0 && low > -ONE, "{low} to {high}");
    let hidden = Rates::of(&Window { instructions: 9, misses: 5, ..Window::default() }, false);
    assert_eq!(costs.estimate(hidden, Engine::Nested), None);
}

#[test]
fn its_budget_bounds_what_trials_cost() {
    let noisy = |explore_milli: u32| {
        let mut machine = Machine::new(&alloc::format!("bandit,explore_milli={explore_milli}"));
        machine.noise_milli = 300;
        machine.work([(NEITHER, 10 * MINUTE)]);
        machine.changes
    };
    // A change takes a period: of 60 000 periods 600 are a hundredth.
    let (few, many) = (noisy(1), noisy(20));
    assert!(few < 300 && many > few, "{few} and {many} changes");
    assert_eq!(noisy(0), 0, "without trials nothing is learnt");
}

#[test]
fn a_guest_that_waits_teaches_nothing() {
    let mut policy = policy("bandit,interval_ms=10");
    let mut sample = Sample::default();
    let _nested = policy.on(Event::Start, &sample);
    let fresh = policy.clone();
    for instructions in [0, 9] {
        let mut guest = Counts::ABSENT;
        for (event, count) in [
            (CounterEvent::Instructions, instructions),
            (CounterEvent::Cycles, 100 * instructions),
            (CounterEvent::DtlbMisses, 1),
        ] {
            guest.set(event, count);
        }
        let (nanos, host) = (10_000_000, Counts::ABSENT);
        sample.period = Some(Period { nanos, exits: 0, paging_exits: 0, guest_faults: 0, guest, host });
        for _ in 0..1000 {
            let decision = policy.on(Event::Period, &sample);
            assert_eq!((decision.engine, decision.next), (Engine::Nested, Next::Period));
        }
    }
    // Started again, it knows nothing.
    let _nested = policy.on(Event::Start, &Sample::default());
    assert_eq!(policy, fresh);
}

#[test]
fn a_gain_is_learnt_doubted_and_forgotten() {
    let mode: Mode = "bandit,interval_ms=60000".parse().unwrap();
    let Mode::Bandit(parameters) = mode else { panic!("another policy") };
    let context = Context::of(&Window { instructions: 1_000_000, misses: 5, ..Window::default() }, true);
    let mut gains = Gains::new();
    for _ in 0..6 {
        gains.learn(context, None, ONE, 0);
    }
    let known = gains.of(context, None);
    assert!((known.gain - ONE).abs() < ONE / 50 && known.radius() < ONE / 20, "{known:?}");
    gains.widen(parameters);
    let later = gains.of(context, None);
    assert!(later.gain == known.gain && later.radius() > known.radius() + ONE / 20, "{later:?}");
    gains.doubt(context, None, -ONE);
    let doubted = gains.of(context, None);
    assert_eq!((doubted.gain, doubted.radius()), (later.gain - ONE / 2, later.radius() + ONE / 2));
    let other = Context::of(&Window { instructions: 1_000_000, misses: 5, ..Window::default() }, false);
    assert_eq!(gains.of(other, None).gain, 0, "page faults that are not known are another context");
}

proptest! {
    #[test]
    fn costs_of_anything_are_bounded(
        seen in prop::collection::vec((any::<[[u64; 4]; 2]>(), any::<i64>(), any::<bool>(), 0..64u32), 1..50),
    ) {
        let mut costs = Costs::new();
        for (windows, noise, to_shadow, bits) in seen {
            let [before, after] = windows.map(|counts| {
                let [instructions, cycles, misses, faults] = counts.map(|count| count >> bits);
                Rates::of(&Window { instructions, cycles, misses, faults, ..Window::default() }, true)
            });
            let engine = if to_shadow { Engine::Shadow } else { Engine::Nested };
            costs.learn(before, after, engine, noise);
            costs.widen(Parameters::default());
            for (rates, engine) in [(before, engine.other()), (after, engine)] {
                let Estimate { gain, low, high } = costs.estimate(rates, engine).unwrap();
                prop_assert!(low <= gain && gain <= high && low >= -16 * ONE && high <= 16 * ONE);
            }
        }
    }

    #[test]
    fn gains_stay_within_bounds(
        seen in prop::collection::vec((any::<[u64; 3]>(), any::<i64>(), 0..i64::MAX, any::<bool>()), 1..100),
        drift in 0..=10_000u32,
    ) {
        let parameters = Parameters { interval_ms: 60_000, drift_milli: drift, ..Parameters::default() };
        let mut gains = Gains::new();
        for ([instructions, misses, faults], gain, noise, doubts) in seen {
            let window = Window { instructions, misses, faults, ..Window::default() };
            let context = Context::of(&window, doubts);
            gains.widen(parameters);
            if doubts { gains.doubt(context, None, gain) } else { gains.learn(context, None, gain, noise) }
            let known = gains.of(context, None);
            prop_assert!(known.gain.abs() <= 16 * ONE && (1..=4 * ONE).contains(&known.radius()), "{:?}", known);
        }
    }
}
