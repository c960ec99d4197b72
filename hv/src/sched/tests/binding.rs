//! VCPUs that have followed their memory to another LLC.

use super::super::topology::{PcpuId, PcpuSet, Topology};
use super::super::{Credit, Kick, Scheduler, VcpuId, VcpuStats, Why};
use super::sim::{Act, MS, Rng, S, Sim, US, add, config, seeds};

const P: [PcpuId; 4] = [PcpuId(0), PcpuId(1), PcpuId(2), PcpuId(3)];

fn turn(sched: &Scheduler<Credit>, pcpu: PcpuId, why: Why, now: u64) -> Option<VcpuId> {
    let decision = sched.schedule(pcpu, why, now);
    let _kick = sched.context_saved(pcpu, now);
    decision.run
}

/// Two LLCs of two PCPUs. One VCPU is pinned to PCPU 0 and runs; the other has just followed its memory there from PCPU 2.
fn followed() -> (Scheduler<Credit>, [VcpuId; 2], u64) {
    followed_in(2)
}

/// The same of this many LLCs.
fn followed_in(llcs: usize) -> (Scheduler<Credit>, [VcpuId; 2], u64) {
    let sched = Scheduler::new(Topology::uniform(2 * llcs, 2), config(), config().credit());
    let vm = sched.add_vm(256, 0).unwrap();
    let [pinned, moves] = [P[0], P[2]].map(|pcpu| {
        let id = add(&sched, vm, PcpuSet::only(pcpu), S).unwrap();
        let _kick = sched.wake(id, S);
        assert_eq!(turn(&sched, pcpu, Why::Preempt, S), Some(id));
        id
    });
    let _kick = sched.set_affinity(moves, PcpuSet::ALL, S).unwrap();
    let now = S + MS;
    assert_eq!(turn(&sched, P[2], Why::MoveTo(P[0]), now), None);
    let status = sched.status(moves, now).unwrap();
    assert_eq!((status.pcpu, status.stats.far_moves), (P[0], 1));
    (sched, [pinned, moves], now)
}

#[test]
fn a_vcpu_that_followed_its_memory_is_stolen_within_the_llc_only() {
    let (sched, [_, moves], now) = followed();
    for (pcpu, later) in [(P[2], 1), (P[3], 2), (P[2], 9)] {
        assert_eq!(turn(&sched, pcpu, Why::Preempt, now + later * MS), None, "{pcpu} after {later} ms");
    }
    assert_eq!(turn(&sched, P[1], Why::Preempt, now + 9 * MS), Some(moves));
    let stats = sched.status(moves, now + 9 * MS).unwrap().stats;
    assert_eq!((stats.near_moves, stats.steals, stats.unbound), (1, 1, 0));
    assert!(!sched.was_taken(moves));
}

/// Ten milliseconds of its own time, however long it takes.
#[test]
fn it_is_bound_until_it_has_run_there_for_ten_milliseconds() {
    for (runs, is_stolen) in [(9, false), (11, true)] {
        let (sched, [pinned, moves], mut now) = followed();
        let _kick = sched.pause(pinned, now).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, now), Some(moves));
        now += runs * MS;
        // The pinned one comes back, and the other waits behind it; PCPU 2 looks at once.
        let _kick = sched.pause(moves, now).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, now), None);
        let _kick = sched.resume(pinned, now).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, now), Some(pinned));
        let _kick = sched.resume(moves, now).unwrap();
        assert_eq!(turn(&sched, P[2], Why::Preempt, now).is_some(), is_stolen, "after {runs} ms");
        assert!(!sched.was_taken(moves), "it was not bound any more");
    }
}

#[test]
fn a_pcpu_that_idles_takes_a_bound_vcpu_that_has_waited_long_and_its_vm_is_told() {
    let (sched, [pinned, moves], now) = followed();
    let decision = sched.schedule(P[2], Why::Preempt, now + MS);
    let _kick = sched.context_saved(P[2], now + MS);
    assert_eq!((decision.run, decision.until), (None, now + 11 * MS), "it looks again");
    assert_eq!(turn(&sched, P[2], Why::Preempt, now + 8 * MS), None);
    assert_eq!(turn(&sched, P[2], Why::Preempt, now + 11 * MS), Some(moves));
    assert_eq!(sched.status(moves, now + 11 * MS).unwrap().stats.unbound, 1);
    assert!(sched.was_taken(moves) && !sched.was_taken(moves), "told once");
    assert!(!sched.was_taken(pinned));
    // No VCPU is bound any more: one more look, and no PCPU looks again.
    for (later, until) in [(12, now + 22 * MS), (22, u64::MAX)] {
        assert_eq!(sched.schedule(P[3], Why::Preempt, now + later * MS).until, until, "after {later} ms");
        let _kick = sched.context_saved(P[3], now + later * MS);
    }
}

/// It waits for 8 ms, runs, sleeps, and waits for 3 ms.
#[test]
fn what_a_bound_vcpu_has_waited_long_ago_does_not_count() {
    for (sleeps, is_taken) in [(5, true), (100, false)] {
        let (sched, [pinned, moves], now) = followed();
        assert_eq!(turn(&sched, P[2], Why::Preempt, now + MS), None);
        let _kick = sched.pause(pinned, now + 8 * MS).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, now + 8 * MS), Some(moves));
        assert_eq!(turn(&sched, P[0], Why::Block, now + 13 * MS), None);
        let wakes = now + (13 + sleeps) * MS;
        let _kick = sched.resume(pinned, wakes).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, wakes), Some(pinned));
        let _kick = sched.wake(moves, wakes);
        assert_eq!(turn(&sched, P[2], Why::Preempt, wakes + 3 * MS).is_some(), is_taken, "{sleeps} ms");
    }
}

/// It sleeps, and waits twice for 6 ms, before and after a look that is 40 ms behind its arrival.
#[test]
fn the_time_in_which_waits_are_counted_slides() {
    let (sched, [pinned, moves], now) = followed();
    let at = |ms: u64| now + ms * MS;
    let _kick = sched.pause(pinned, now).unwrap();
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), Some(moves));
    assert_eq!(turn(&sched, P[0], Why::Block, at(1)), None);
    let looks = |ms: u64| turn(&sched, P[2], Why::Preempt, at(ms));
    for ms in [2, 12, 22, 32] {
        assert_eq!(looks(ms), None);
    }
    let waits = |ms: u64| {
        let _kick = sched.resume(pinned, at(ms)).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, at(ms)), Some(pinned));
        let _kick = sched.wake(moves, at(ms));
    };
    waits(34);
    let _kick = sched.pause(pinned, at(40)).unwrap();
    assert_eq!(turn(&sched, P[0], Why::Preempt, at(40)), Some(moves));
    assert_eq!(turn(&sched, P[0], Why::Block, at(41)), None);
    assert_eq!(looks(41), None);
    waits(42);
    assert_eq!(looks(45), None, "it has waited for 9 ms");
    assert_eq!(looks(48), Some(moves));
}

#[test]
fn a_move_by_hand_is_no_theft() {
    let (sched, [_, moves], now) = followed();
    let _kick = sched.move_to(moves, P[3], now).unwrap();
    assert_eq!(sched.status(moves, now).unwrap().pcpu, P[3]);
    assert!(!sched.was_taken(moves));
}

#[test]
fn a_place_is_found_by_affinity_and_load() {
    let (sched, [pinned, moves], now) = followed();
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), Some(moves));
    let far = PcpuSet::only(P[2]).or(PcpuSet::only(P[3]));
    // PCPU 2 halts, PCPU 3 has never run.
    assert_eq!(turn(&sched, P[2], Why::Preempt, now), None);
    assert_eq!(sched.place_in(moves, far), Some(P[2]));
    assert_eq!(sched.place_in(pinned, far), None);
    assert_eq!(sched.place_in(pinned, PcpuSet::ALL), Some(P[0]));
}

/// The short way to another PCPU leads to the same end as the one by a decision.
#[test]
fn a_vcpu_that_is_handed_over_arrives_as_one_that_was_sent() {
    let (sent, [_, moves], now) = followed();
    let (handed, _, _) = followed();
    for sched in [&sent, &handed] {
        assert_eq!(turn(sched, P[1], Why::Preempt, now), Some(moves));
    }
    let now = now + MS;
    assert_eq!(turn(&sent, P[1], Why::MoveTo(P[3]), now), None);
    assert_eq!(handed.hand_over(P[1], P[3], now), Some(Kick::NONE), "PCPU 3 has never run");
    assert_eq!(turn(&handed, P[1], Why::Preempt, now), None);
    for later in [now, now + MS] {
        assert_eq!(handed.status(moves, later), sent.status(moves, later));
        assert_eq!(handed.pcpu_stats(P[1], later).busy, sent.pcpu_stats(P[1], later).busy);
        for sched in [&sent, &handed] {
            assert_eq!(turn(sched, P[3], Why::Preempt, later), Some(moves));
        }
    }
}

#[test]
fn what_cannot_go_is_not_handed_over() {
    let (sched, [pinned, moves], now) = followed();
    assert_eq!(sched.hand_over(P[0], P[2], now), None, "its affinity");
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), Some(moves));
    assert_eq!(sched.hand_over(P[1], P[1], now), None, "it is there");
    assert_eq!(sched.hand_over(P[1], PcpuId(4), now), None, "no PCPU");
    assert_eq!(sched.hand_over(P[3], P[1], now), None, "nothing runs there");
    let _kick = sched.pause(moves, now).unwrap();
    assert_eq!(sched.hand_over(P[1], P[3], now), None, "it is paused");
    assert_eq!(sched.runs_on(moves), Some(P[1]));
    let _kick = sched.resume(moves, now).unwrap();
    let _kick = sched.move_to(moves, P[2], now).unwrap();
    assert_eq!(sched.hand_over(P[1], P[3], now), None, "it is sent elsewhere");
    assert_eq!(sched.hand_over(P[1], P[2], now), Some(Kick(Some(P[2]))));
    assert_eq!(turn(&sched, P[2], Why::Preempt, now), Some(moves));
    let _kick = sched.wake(pinned, now);
    let capped = sched.status(moves, now).unwrap().vm;
    let _kicks = sched.set_cap(capped, 1, now).unwrap();
    assert_eq!(sched.hand_over(P[2], P[3], now + 500 * MS), None, "its VM has used up its cap");
}

/// Each queue's sum is that of the VCPUs that run and wait there, however they have come and gone.
#[test]
fn a_vcpu_that_is_handed_over_leaves_no_share_behind() {
    let (sched, [pinned, moves], mut now) = followed();
    let _kick = sched.pause(pinned, now).unwrap();
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), Some(moves));
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), None);
    for (from, to) in [(P[1], P[2]), (P[2], P[1])].into_iter().cycle().take(8) {
        now += MS;
        assert_eq!(turn(&sched, to, Why::Preempt, now), None, "it halts");
        assert_eq!(sched.hand_over(from, to, now), Some(Kick(Some(to))));
        let counts = P.map(|pcpu| sched.pcpus[pcpu.index()].queue.lock().sum.count);
        assert_eq!(counts, P.map(|pcpu| i64::from(pcpu == to)));
        assert_eq!(turn(&sched, to, Why::Preempt, now), Some(moves));
    }
}

/// All rules of the simulation hold where VCPUs are handed over at random.
#[test]
fn hand_overs_at_any_moment_lose_no_vcpu() {
    for seed in seeds(20) {
        let mut rng = Rng(seed + 1);
        let mut sim = Sim::credit(4, 2);
        sim.hands_over = Some(Rng(seed * 3 + 7));
        for n in 0..6 {
            let vm = sim.vm(64 << rng.below(4), [0, 0, 150][n as usize % 3]);
            let affinity =
                if rng.below(3) == 0 { PcpuSet::from_bits(1 + rng.below(15)) } else { PcpuSet::ALL };
            let mut rng = Rng(seed * 10 + n);
            let act = move |_| Act { run: 1 + rng.below(20 * MS), sleep: rng.below(20 * MS), wakes: None };
            sim.vcpu(vm, affinity, act);
        }
        sim.run(S / 2);
        for id in sim.vcpus().collect::<Vec<_>>() {
            assert!(sim.ran(id) > 0, "seed {seed}: {id:?}");
        }
    }
}

/// VCPUs whose memory is in the cache of the first two of four PCPUs: they compute for `run` and sleep for `sleep`.
fn drawn(vcpus: usize, run: u64, sleep: u64, seed: u64) -> Sim<Credit> {
    let mut sim = Sim::credit(4, 2);
    sim.memory = Some(PcpuSet::only(P[0]).or(PcpuSet::only(P[1])));
    let vm = sim.vm(256, 0);
    for n in 0..vcpus as u64 {
        let mut rng = Rng(seed * 64 + n);
        let act =
            move |_| Act { run: run / 2 + rng.below(run), sleep: sleep / 2 + rng.below(sleep), wakes: None };
        sim.vcpu(vm, PcpuSet::ALL, act);
    }
    sim
}

fn sum(sim: &Sim<Credit>, of: impl Fn(&VcpuStats) -> u64) -> u64 {
    sim.vcpus().map(|id| of(&sim.sched.status(id, sim.now).unwrap().stats)).sum()
}

/// Whether they wait for long or for short times: half of the machine does not idle beside them for ever.
#[test]
fn idle_pcpus_have_memory_opened_for_vcpus_that_wait_much() {
    for seed in seeds(8) {
        for (run, sleep) in [(100 * MS, MS), (2 * MS, MS), (300 * US, 50 * US)] {
            let mut sim = drawn(4, run, sleep, seed);
            sim.run(S);
            assert!(sim.memory.is_none(), "seed {seed}: {run} ns are computed at a time");
            assert!(sum(&sim, |it| it.unbound) > 0);
        }
    }
}

/// Each goes back at once, and has cost two moves.
#[test]
fn a_vcpu_that_its_memory_draws_back_is_stolen_less_and_less() {
    for seed in seeds(8) {
        let mut sim = drawn(3, 2 * MS, 6 * MS, seed);
        sim.run(3 * S);
        let (moves, back) = (sum(&sim, |it| it.far_moves), sum(&sim, |it| it.drawn_back));
        assert!(sim.memory.is_some(), "seed {seed}: they hardly wait");
        // Each VCPU has four thefts until it is bound for 160 ms, and runs for 750 ms.
        assert!((1..3 * 12).contains(&back) && moves < 2 * 3 * 12, "seed {seed}: {back} of {moves}");
    }
}

/// It waits in the queue of a PCPU that it was never bound at.
#[test]
fn a_bound_vcpu_that_was_stolen_within_the_llc_is_taken_by_an_idle_pcpu_too() {
    let (sched, [_, moves], now) = followed();
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), Some(moves));
    let vm = sched.add_vm(256, 0).unwrap();
    let other = add(&sched, vm, PcpuSet::only(P[1]), now).unwrap();
    let _kick = sched.wake(other, now);
    let later = now + 2 * MS;
    assert_eq!(turn(&sched, P[1], Why::Yield, later), Some(other));
    let looks = [0, 10].map(|after| turn(&sched, P[2], Why::Preempt, later + after * MS));
    assert_eq!(looks, [None, Some(moves)]);
    assert_eq!(sched.status(moves, later + 10 * MS).unwrap().stats.unbound, 1);
}

/// A VCPU that its memory draws to a third cache has not come back: it uses several regions.
#[test]
fn only_the_llc_that_a_vcpu_was_stolen_from_draws_it_back() {
    for (to, is_back) in [(P[0], true), (P[1], true), (PcpuId(4), false)] {
        let (sched, [pinned, moves], mut now) = followed_in(3);
        let _kick = sched.pause(pinned, now).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Preempt, now), Some(moves));
        now += 11 * MS;
        let _kick = sched.resume(pinned, now).unwrap();
        assert_eq!(turn(&sched, P[0], Why::Yield, now), Some(pinned));
        assert_eq!(turn(&sched, P[2], Why::Preempt, now), Some(moves), "it is not bound any more");
        assert_eq!(turn(&sched, P[2], Why::MoveTo(to), now + MS), None);
        let stats = sched.status(moves, now + MS).unwrap().stats;
        assert_eq!((stats.drawn_back, stats.unbound), (is_back.into(), 0), "to {to}");
    }
}
