//! Policies on traces: a line for each event, with what the policy must want after it; and on guests of which it is known what
//! each engine costs them.
#![expect(
    clippy::float_arithmetic,
    reason = "the trainer's side of the comparison runs on people's machines"
)]

use alloc::vec::Vec;

use proptest::prelude::*;

use super::dav2m::State;
use super::fuzz::OF_GUESTS;
use super::modelled::{MISSES, Machine, NEITHER, PAGING, Work};
use super::*;
use crate::arch::counters::CounterEvent;

/// Every mode.
const WORDS: [&str; 11] = [
    "nested",
    "shadow",
    "switch=1",
    "random",
    "threshold",
    "dsp-sample",
    "dav2m",
    "dsp-offset",
    "asp-svm",
    "bandit",
    "oracle,first=shadow,changes=1:20:3000:400000",
];

/// Plays `trace`, one event a line: `start` or the number of exits that were made, then the engine that must be wanted, and
/// after how many exits the policy must ask to be told (`-` for never).
fn play(mode: &str, trace: &str) {
    let mut policy = Policy::new(mode.parse().unwrap());
    let mut sample = Sample::default();
    for (n, line) in trace.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let event = if words[0] == "start" { Event::Start } else { Event::Exits };
        sample.exits = words[0].parse().unwrap_or(0);
        let decision = policy.on(event, &sample);
        let next = match decision.next {
            Next::Never => "-".to_string(),
            Next::Exits(exits) => exits.to_string(),
            Next::Period => "period".to_string(),
        };
        assert_eq!([decision.engine.name(), &next], words[1..], "{mode}, line {}", n + 1);
        sample.engine = decision.engine;
    }
}

#[test]
fn fixed_modes_never_change() {
    play("nested", "start nested -");
    play("shadow", "start shadow -");
}

#[test]
fn switch_takes_turns() {
    play(
        "switch=50",
        "start nested 50\n50 shadow 50\n50 nested 50\n50 shadow 50\nstart shadow 50\n50 nested 50",
    );
}

#[test]
fn a_policy_stays_within_its_modes_engines() {
    for word in WORDS {
        let mode: Mode = word.parse().unwrap();
        let mut policy = Policy::new(mode);
        let mut sample =
            Sample { engine: engines_of(mode).choose(Engine::Nested).unwrap(), exits: 1, period: None };
        for event in [Event::Start, Event::Exits, Event::Exits, Event::Exits] {
            sample.engine = policy.on(event, &sample).engine;
            assert!(engines_of(mode).contains(sample.engine), "{word}");
        }
    }
}

/// Which state DAV²M is in.
fn dav2m_state(machine: &Machine) -> State {
    let Policy::Dav2m(dav2m) = &machine.policy else { panic!("another policy") };
    dav2m.state()
}

#[test]
fn page_faults_that_the_guest_counts_are_seen_with_nested_paging() {
    // Many misses and many page faults: nested paging should stay, and without the count a policy sees misses only.
    for mode in ["threshold", "dsp-offset", "asp-svm"] {
        for (counted, wanted) in [(Some(3_000_000), Engine::Nested), (None, Engine::Shadow)] {
            let mut policy = Policy::new(mode.parse().unwrap());
            let _nested = policy.on(Event::Start, &Sample::default());
            let mut guest = Counts::ABSENT;
            guest.set(CounterEvent::Instructions, 1_000_000_000);
            guest.set(CounterEvent::Cycles, 1_000_000_000);
            guest.set(CounterEvent::DtlbMisses, 2_500_000);
            counted.into_iter().for_each(|count| guest.set(CounterEvent::PageFaults, count));
            let (nanos, host) = (1_000_000_000, Counts::ABSENT);
            let period = Period { nanos, exits: 9, paging_exits: 9, guest_faults: 0, guest, host };
            let sample = Sample { engine: Engine::Nested, exits: 0, period: Some(period) };
            assert_eq!(policy.on(Event::Period, &sample).engine, wanted, "{mode}, {counted:?}");
            // With shadow paging, too, the guest's own count is the better one.
            let sample = Sample { engine: Engine::Shadow, ..sample };
            assert_eq!(policy.on(Event::Period, &sample).engine, wanted, "{mode}, {counted:?}");
        }
    }
}

#[test]
fn adaptive_policies_find_the_better_engine() {
    // A minute each; `dav2m` needs its first second to find misses, which is most of what it loses.
    for (mode, loss) in
        [("dav2m", 20), ("dsp-sample", 80), ("threshold", 30), ("dsp-offset,bias=-524288", 30)]
    {
        for (what, work, shadow) in [("paging", PAGING, false), ("misses", MISSES, true)] {
            let machine = Machine::run(mode, [(work, 6000)]);
            let share = machine.shadow as f64 / 6000.0;
            assert!(
                if shadow { share > 0.9 } else { share < 0.15 },
                "{mode} on {what}: shadow paging {share}"
            );
            assert!(
                machine.loss_milli() <= loss,
                "{mode} on {what}: {} thousandths lost",
                machine.loss_milli()
            );
        }
    }
}

#[test]
fn dav2m_follows_phases_and_rests_without_them() {
    let phases = (0..8).flat_map(|_| [(PAGING, 3000), (MISSES, 3000)]);
    let machine = Machine::run("dav2m", phases);
    assert!(
        machine.cycles < machine.alone.into_iter().min().unwrap(),
        "ahead of both: {}",
        machine.loss_milli()
    );
    let machine = Machine::run("dav2m", [(NEITHER, 60_000)]);
    assert!(machine.changes <= 13 && machine.loss_milli() <= 1, "{} changes", machine.changes);
}

#[test]
fn dav2m_goes_through_its_states() {
    // Ten periods to a unit of window_inst, as many to a window for exits, a hundred to one for misses.
    let mut machine = Machine::new("dav2m");
    let go = |machine: &mut Machine, work, periods, state| {
        (0..periods - 1).for_each(|_| machine.period(work));
        assert_ne!(dav2m_state(machine), state, "too early");
        machine.period(work);
        assert_eq!(dav2m_state(machine), state);
    };
    go(&mut machine, MISSES, 100, State::PreShadow);
    assert_eq!(machine.engine, Engine::Shadow);
    go(&mut machine, MISSES, 100, State::Shadow);
    // 600 exits in a period are more than 200.
    go(&mut machine, PAGING, 1, State::PreNested);
    assert_eq!(machine.engine, Engine::Nested);
    go(&mut machine, PAGING, 10, State::Prepaging);
    go(&mut machine, PAGING, 20, State::Nested);
    // A probe that fails: shadow paging is tried for the misses, and left for the faults that come.
    go(&mut machine, MISSES, 100, State::PreShadow);
    go(&mut machine, PAGING, 1, State::PreNested);
    assert_eq!(machine.changes, 4);
}

#[test]
fn short_averages_compare_a_probe_with_the_present_phase() {
    // The phase begins when most of the window is over. Ten steps are mostly of what was before it, and make the probe fail.
    let probe = |steps| {
        let mode = format!(
            "dav2m,steps={steps},window_inst=2000000,window_vexit=16000000,window_tmiss=20000000,window_trans=100000000"
        );
        let machine = Machine::run(&mode, [(NEITHER, 8), (MISSES, 2 + 10)]);
        (machine.changes, dav2m_state(&machine))
    };
    assert_eq!(probe(10), (2, State::Nested));
    assert_eq!(probe(2), (1, State::Shadow));
}

#[test]
fn a_failed_probe_makes_the_next_one_rarer() {
    // Misses enough for a probe, but shadow paging costs more: each probe fails.
    let work = Work { faults: 100, misses: 60 };
    let probes = |periods| Machine::run("dav2m,threshold_vexit=100000000", [(work, periods)]).changes;
    let (early, late) = (probes(2_000), probes(20_000) - probes(18_000));
    assert!(early >= 2 && late == 0, "{early} changes at first, {late} in as many periods later");
}

#[test]
fn dsp_sample_explores_and_exploits() {
    let mut machine = Machine::new("dsp-sample,interval_ms=10,explore=3,exploit=50");
    let engines: Vec<bool> = (0..112)
        .map(|_| {
            machine.period(PAGING);
            machine.engine == Engine::Shadow
        })
        .collect();
    assert_eq!(engines[..6], [true, false, true, false, true, false], "by turns, then the better one");
    assert!(engines[6..56].iter().all(|shadow| !shadow));
    assert_eq!(engines[56..59], [true, false, true], "again");
}

#[test]
fn random_depends_on_its_seed_alone() {
    let draws = |mode: &str, work: Work| -> Vec<bool> {
        let mut machine = Machine::new(mode);
        (0..1000)
            .map(|_| {
                machine.period(work);
                machine.engine == Engine::Shadow
            })
            .collect()
    };
    let (one, other) = ("random,seed=5,interval_ms=10", "random,seed=6,interval_ms=10");
    assert_eq!(draws(one, PAGING), draws(one, MISSES));
    assert_ne!(draws(one, PAGING), draws(other, PAGING));
    let shadow = draws(one, PAGING).iter().filter(|shadow| **shadow).count();
    assert!((430..570).contains(&shadow), "{shadow} of 1000");
}

#[test]
fn thresholds_are_rates_of_instructions() {
    let mut machine = Machine::new("threshold,faults=100,misses=2000,interval_ms=10");
    let mut engine = |work| {
        machine.period(work);
        machine.engine
    };
    assert_eq!(engine(Work { faults: 0, misses: 2000 }), Engine::Nested, "not more");
    assert_eq!(engine(Work { faults: 0, misses: 2001 }), Engine::Shadow);
    assert_eq!(engine(Work { faults: 100, misses: 0 }), Engine::Shadow, "not more");
    assert_eq!(engine(Work { faults: 101, misses: 9999 }), Engine::Nested);
    assert_eq!(
        engine(Work { faults: 0, misses: 9999 }),
        Engine::Nested,
        "its faults are hidden: as many as last seen"
    );
}

#[test]
fn oracle_changes_at_the_nearest_period() {
    // Two million instructions in each period: changes belong after 2, 6 and 7 of them.
    let mut machine = Machine::new("oracle,first=shadow,changes=4000:11200:14900:16001");
    assert_eq!(machine.engine, Engine::Shadow);
    let engines: Vec<bool> = (0..10)
        .map(|_| {
            machine.period(NEITHER);
            machine.engine == Engine::Shadow
        })
        .collect();
    let expected = [true, false, false, false, false, true, false, true, true, true];
    assert_eq!(engines, expected);
    // Slower, the same work is done: the changes are at the same places.
    let mut slow = Machine::new("oracle,first=shadow,changes=4000:11200:14900:16001");
    slow.base_milli = 5000;
    for shadow in expected {
        slow.period(PAGING);
        assert_eq!(slow.engine == Engine::Shadow, shadow);
    }
    // A second start is the first one again.
    let decision = machine.policy.on(Event::Start, &Sample::default());
    assert_eq!((decision.engine, decision.next), (Engine::Shadow, Next::Period));
}

#[test]
fn oracle_is_ahead_of_all_that_do_not_know_the_future() {
    let phases = || (0..8).flat_map(|_| [(PAGING, 3000), (MISSES, 3000)]);
    let changes = (1..16).map(|phase| alloc::format!("{}", phase * 6_000_000)).collect::<Vec<_>>().join(":");
    let oracle = Machine::run(&alloc::format!("oracle,changes={changes}"), phases());
    for mode in ["dav2m", "dsp-sample", "bandit"] {
        let other = Machine::run(mode, phases());
        assert!(oracle.cycles < other.cycles, "{mode}: {} against {}", other.cycles, oracle.cycles);
    }
    assert_eq!(oracle.changes, 15);
    assert!(oracle.loss_milli() < -200, "{} against the better engine alone", oracle.loss_milli());
}

/// A model as a trainer has it.
fn exact(model: &abi::policy::DspOffset, faults: u64, misses: u64) -> f64 {
    let weight = |weight: i64| weight as f64 / 65536.0;
    weight(model.faults) * (faults as f64 + 1.0).log2()
        + weight(model.misses) * (misses as f64 + 1.0).log2()
        + weight(model.bias)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn linear_models_decide_as_their_trainer(
        weights in prop::array::uniform3(-300_000..300_000i64),
        counts in prop::array::uniform2((0..40u32, any::<u64>())),
        margin in 0..100_000i64,
    ) {
        let [faults, misses, bias] = weights;
        let model = abi::policy::DspOffset { faults, misses, bias, margin, interval_ms: 1 };
        let [faults, misses] = counts.map(|(bits, random)| random >> (63 - bits));
        let (sum, margin) = (exact(&model, faults, misses), margin as f64 / 65536.0);
        let expected = if sum > margin { Some(Engine::Shadow) } else if sum < -margin { Some(Engine::Nested) } else { None };
        // Two logarithms are short by at most a 65536th each, times a weight of at most 5.
        prop_assume!((sum.abs() - margin).abs() > 12.0 / 65536.0);
        prop_assert_eq!(linear::decide(&model, faults, misses), expected);
    }
}

#[test]
fn the_largest_model_does_not_overflow() {
    let most = 1000 << 16;
    for sign in [-1, 1] {
        let model = abi::policy::DspOffset {
            faults: sign * most,
            misses: sign * most,
            bias: sign * 100 * most,
            margin: most,
            interval_ms: 1,
        };
        let expected = if sign > 0 { Engine::Shadow } else { Engine::Nested };
        assert_eq!(linear::decide(&model, u64::MAX, u64::MAX), Some(expected));
    }
}

proptest! {
    #[test]
    fn whatever_is_counted_a_policy_decides(
        word in prop::sample::select(&WORDS[3..]),
        periods in prop::collection::vec((prop::array::uniform6(prop_oneof![0..9u64, any::<u64>()]), 0..32u8), 1..200),
    ) {
        let mut policy = Policy::new(word.parse().unwrap());
        let mut sample = Sample::default();
        sample.engine = policy.on(Event::Start, &sample).engine;
        for ([nanos, exits, faults, instructions, cycles, misses], present) in periods {
            let mut guest = Counts::ABSENT;
            let values = [instructions, cycles, misses, misses, faults];
            for (bit, (event, value)) in OF_GUESTS.into_iter().zip(values).enumerate() {
                if present >> bit & 1 != 0 {
                    guest.set(event, value);
                }
            }
            let period = Period { nanos, exits, paging_exits: exits, guest_faults: faults, guest, host: Counts::ABSENT };
            sample.period = Some(period);
            let decision = policy.on(Event::Period, &sample);
            prop_assert_eq!(decision.next, Next::Period);
            if !can_compare(&period) && word != "random" {
                prop_assert_eq!(decision.engine, sample.engine, "nothing was counted");
            }
            sample.engine = decision.engine;
        }
    }
}

/// Counters that are not what they should be: absent, still, run backwards, at the limit, beyond it, or a guest's that lies.
fn lies() -> [(&'static str, [Option<u64>; 4]); 7] {
    let most = 1 << 48;
    [
        ("absent", [None; 4]),
        ("only instructions", [Some(2_000_000), None, None, None]),
        ("still", [Some(0), Some(0), Some(0), None]),
        ("backwards", [Some(2_000_000), Some(u64::MAX - 5_000), Some(100), None]),
        ("at the limit", [Some(most), Some(most), Some(most), Some(most)]),
        ("beyond it", [Some(u64::MAX); 4]),
        ("a page that lies", [Some(2_000_000), Some(2_000_000), Some(100), Some(u64::MAX - 9)]),
    ]
}

#[test]
fn after_counters_that_lied_a_policy_still_finds_the_better_engine() {
    for (what, counts) in lies() {
        for mode in ["threshold", "dsp-sample,interval_ms=10", "dav2m", "dsp-offset,bias=-524288", "bandit"] {
            let mut machine = Machine::new(mode);
            let events = [
                CounterEvent::Instructions,
                CounterEvent::Cycles,
                CounterEvent::DtlbMisses,
                CounterEvent::PageFaults,
            ];
            let mut guest = Counts::ABSENT;
            for (event, count) in events.into_iter().zip(counts) {
                count.into_iter().for_each(|count| guest.set(event, count));
            }
            let (nanos, host) = (10_000_000, Counts::ABSENT);
            let period = Period { nanos, exits: 1, paging_exits: 1, guest_faults: 0, guest, host };
            for _ in 0..1000 {
                let sample = Sample { engine: machine.engine, exits: 0, period: Some(period) };
                let decision = machine.policy.on(Event::Period, &sample);
                assert!(can_compare(&period) || decision.engine == machine.engine, "{mode}, {what}");
                machine.engine = decision.engine;
            }
            // Now all is counted as it is, page faults too: the last rate would stand for them otherwise.
            machine.counts = true;
            machine.work([(MISSES, 12_000)]);
            let before = machine.shadow;
            machine.work([(MISSES, 1000)]);
            assert!(machine.shadow - before > 850, "{mode}, {what}: {} of 1000", machine.shadow - before);
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(word in prop::sample::select(&WORDS[..]), bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        fuzz_one(&bytes);
        fuzz_one(&[word.as_bytes(), b"\n", &bytes].concat());
    }
}
