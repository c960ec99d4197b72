//! Regioning, histories and balance together, on a modelled machine: the gain is where thesis 2.3.1 foretells it, and not where its
//! conditions forbid it.
//!
//! The machine is small, so that a test takes seconds: a cache holds 256 frames, and all times are shorter in proportion. What the
//! thesis measured depends on ratios: of working sets to caches, and of what a cache saves to what moves cost.
#![expect(clippy::float_arithmetic, reason = "times of a model, for people")]

mod lru;
mod machine;
mod memory;
mod program;

use self::machine::{CACHE, Machine, Mapping};
use self::program::Program;
use super::balance::{Policy, Profitable};

/// Accesses at 10 to 100 ns each; beyond it the gain is a few percent, as with visits of 2^16 elements on Clovertown.
const PROFITABLE: Profitable = Profitable { least_ns: 8000, most_ns: 300_000 };

/// Nanoseconds for an access of a program alone on two caches, everything included.
fn alone(program: &Program, mapping: Mapping) -> (f64, Machine) {
    let mut machine = Machine::new(mapping, core::slice::from_ref(program));
    (machine.run()[0], machine)
}

/// A two-region memlat: its time with both regions on one cache, as a multiple of that with them on two; by the policy, and by hand.
fn memlat(frames: u64, visit: u64) -> (f64, f64) {
    let program = Program::memlat(frames, visit);
    let (confined, _) = alone(&program, Mapping::Policy(Policy::Balance));
    let (unified, machine) = alone(&program, Mapping::Policy(Policy::Unify(PROFITABLE)));
    let (forced, _) = alone(&program, Mapping::Apart);
    let gains = (confined / unified, confined / forced);
    println!(
        "memlat 2 * {frames} of {CACHE} frames, visits of {visit}: {confined:.1} ns, unified {unified:.1} ns ({:+.1} %, {} moves), \
         apart by hand {forced:.1} ns ({:+.1} %)",
        100.0 * (gains.0 - 1.0),
        machine.moves(),
        100.0 * (gains.1 - 1.0),
    );
    gains
}

#[test]
fn unification_gains_where_all_conditions_hold() {
    let (unified, forced) = memlat(192, 4096);
    assert!(unified > 1.25 && forced > 1.25, "{unified} {forced}");
}

#[test]
fn visits_that_are_too_long_or_too_short_are_not_unified() {
    // Condition 1: of a long visit, loading the region is a small part.
    let (unified, forced) = memlat(192, 65_536);
    assert!((0.97..1.03).contains(&unified) && forced < 1.05, "{unified} {forced}");
    // In visits of six accesses no frame comes again soon: nothing is found, and moves would cost more than they save.
    let (unified, forced) = memlat(192, 6);
    assert!((0.97..1.03).contains(&unified) && forced < 0.9, "{unified} {forced}");
}

#[test]
fn working_sets_that_are_too_small_or_too_large_are_not_unified() {
    // Condition 2: both fit one cache, and moves are all that changes.
    let (unified, forced) = memlat(100, 4096);
    assert!((0.97..1.03).contains(&unified) && forced < 1.0, "{unified} {forced}");
    // Condition 3: each loop misses always. What the first has left are phases, until regions are given up.
    let (unified, forced) = memlat(300, 2048);
    assert!((0.97..1.03).contains(&unified) && forced < 1.03, "{unified} {forced}");
}

#[test]
fn a_noisy_neighbour_gets_a_cache_of_its_own() {
    let programs = [Program::memlat_of_one(200), Program::random(600)];
    let run = |mapping| {
        let mut machine = Machine::new(mapping, &programs);
        let times = machine.run();
        println!(
            "loop of 200 frames beside random accesses to 600, {mapping:?}: {:.1} and {:.1} ns",
            times[0], times[1]
        );
        times
    };
    let without = run(Mapping::None);
    for policy in [Policy::Balance, Policy::Unify(PROFITABLE), Policy::Partition(&[])] {
        let with = run(Mapping::Policy(policy));
        assert!(without[0] / with[0] > 1.5, "{policy:?}: {without:?} {with:?}");
        assert!(without[1] / with[1] > 0.95, "the neighbour does not pay for it: {without:?} {with:?}");
    }
}

#[test]
fn accesses_without_locality_cost_little_and_are_given_up() {
    let program = Program::memlat_of_one(800);
    let (without, _) = alone(&program, Mapping::None);
    let (with, machine) = alone(&program, Mapping::Policy(Policy::Unify(PROFITABLE)));
    println!(
        "loop of 800 frames: {without:.1} ns, with regions {with:.1} ns, given up {} times",
        machine.given_up()
    );
    assert!(machine.given_up() > 0 && machine.moves() < 10 && with / without < 1.1, "{with} {without}");
}

#[test]
fn phases_become_rare_where_nothing_changes() {
    // Phases after 1, 2, 4, 7 and 12 periods, all but two of them while it is measured.
    let program = Program::memlat_of_one(100);
    let mut machine = Machine::for_periods(12, Mapping::Policy(Policy::Balance), &[program]);
    let time = machine.run()[0];
    println!("loop of 100 frames: {time:.2} ns, {} phases", machine.phases());
    assert!((4..=6).contains(&machine.phases()) && time < 10.2, "{} phases, {time}", machine.phases());
}
