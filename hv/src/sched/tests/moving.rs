//! Moves: by command, by stealing, between LLCs; VCPUs that come and go; traces.

use super::super::policy::Policy;
use super::super::replay::{Replay, Trace};
use super::super::topology::{LlcId, PcpuId, PcpuSet, Topology};
use super::super::{Config, Kick, Refused, Scheduler, State, VcpuId, Why};
use super::sim::{Act, HOG, Input, MS, Rng, S, Sim, US, add, config, seeds};

const P: [PcpuId; 8] =
    [PcpuId(0), PcpuId(1), PcpuId(2), PcpuId(3), PcpuId(4), PcpuId(5), PcpuId(6), PcpuId(7)];

/// A PCPU decides and saves the context; the VCPU that runs, and the PCPU to kick.
fn turn<Q: Policy>(sched: &Scheduler<Q>, pcpu: PcpuId, why: Why, now: u64) -> (Option<VcpuId>, Kick) {
    let decision = sched.schedule(pcpu, why, now);
    (decision.run, sched.context_saved(pcpu, now))
}

fn credit(pcpus: usize, per_llc: usize) -> Scheduler<super::super::Credit> {
    Scheduler::new(Topology::uniform(pcpus, per_llc), config(), config().credit())
}

#[test]
fn idle_pcpus_steal_within_the_llc_first() {
    let sched = credit(4, 2);
    let vm = sched.add_vm(256, 0).unwrap();
    let mut now = S;
    // One waits on PCPU 1 and two on PCPU 2, all of which may run anywhere.
    let place = |pcpu, now| {
        let id = add(&sched, vm, PcpuSet::only(pcpu), now).unwrap();
        assert_eq!(sched.wake(id, now), Kick::NONE, "no PCPU halts yet");
        assert_eq!(sched.set_affinity(id, PcpuSet::ALL, now), Ok(Kick::NONE));
        id
    };
    let ids = [place(P[1], now), place(P[2], now), place(P[2], now)];
    now += MS;
    assert_eq!(turn(&sched, P[0], Why::Preempt, now).0, Some(ids[0]), "from its neighbour");
    let status = sched.status(ids[0], now).unwrap().stats;
    assert_eq!((status.steals, status.near_moves, status.far_moves), (1, 1, 0));
    let (run, _) = turn(&sched, P[1], Why::Preempt, now);
    assert!(run == Some(ids[1]) || run == Some(ids[2]), "else from afar");
    assert_eq!(sched.status(run.unwrap(), now).unwrap().stats.far_moves, 1);
    assert_eq!(sched.pcpu_stats(P[1], now).steals, 1);
}

#[test]
fn no_vcpu_runs_on_an_excluded_pcpu() {
    let alone = PcpuSet::only(P[1]);
    let sched = Scheduler::new(Topology::uniform(4, 2).without(alone), config(), config().credit());
    let vm = sched.add_vm(256, 0).unwrap();
    // The second one is told to run there if it can, and the third one there alone.
    let add = |affinity| add(&sched, vm, affinity, S);
    let [a, b] = [PcpuSet::ALL, alone.or(PcpuSet::only(P[2]))].map(|affinity| add(affinity).unwrap());
    assert_eq!(add(alone), Err(Refused::Affinity));
    let others = (0..6).map(|_| add(PcpuSet::ALL).unwrap());
    let all: Vec<_> = [a, b].into_iter().chain(others).collect();
    for id in &all {
        assert!(!sched.wake(*id, S).pcpus().contains(P[1]));
    }
    assert_eq!(sched.set_affinity(b, alone, S), Err(Refused::Affinity));
    assert_eq!(sched.move_to(a, P[1], S), Err(Refused::Affinity));
    let kick = sched.move_to_llc(b, LlcId(0), S);
    assert_eq!(kick, Err(Refused::Affinity), "its neighbour is not for it, and it is left alone");
    // All of them get their turns without it.
    let mut ran = vec![];
    let mut now = S;
    for _ in 0..8 {
        for pcpu in [P[0], P[2], P[3]] {
            let (run, kick) = turn(&sched, pcpu, Why::Preempt, now);
            ran.extend(run);
            assert!(!kick.pcpus().contains(P[1]));
        }
        now += 100 * MS;
    }
    assert!(all.iter().all(|id| ran.contains(id)), "{ran:?}");
}

#[test]
fn who_has_just_crossed_llcs_is_left_there() {
    let sched = credit(2, 1);
    let vm = sched.add_vm(256, 0).unwrap();
    let mut now = S;
    let [a, b] = [0; 2].map(|_| add(&sched, vm, PcpuSet::only(P[0]), now).unwrap());
    for id in [a, b] {
        let _kick = sched.wake(id, now);
        let _kick = sched.set_affinity(id, PcpuSet::ALL, now);
    }
    assert!(turn(&sched, P[0], Why::Preempt, now).0.is_some());
    let (moved, _) = turn(&sched, P[1], Why::Preempt, now);
    let moved = moved.expect("PCPU 1 takes the other one");
    // It runs for 4 ms and has to wait for a third one then. PCPU 0 has nothing to do and leaves it there.
    now += 4 * MS;
    let third = add(&sched, vm, PcpuSet::only(P[1]), now).unwrap();
    assert_ne!(sched.wake(third, now).0, Some(P[0]));
    assert_eq!(turn(&sched, P[1], Why::Yield, now), (Some(third), Kick::NONE));
    assert_eq!(turn(&sched, P[0], Why::Block, now).0, None, "the moved one is marked");
    // After another 7 ms it may cross LLCs again: the PCPU that preempts it wakes PCPU 0.
    now += 2 * MS;
    assert_eq!(turn(&sched, P[1], Why::Yield, now).0, Some(moved));
    now += 7 * MS;
    assert_eq!(turn(&sched, P[1], Why::Yield, now), (Some(third), Kick(Some(P[0]))));
    assert_eq!(turn(&sched, P[0], Why::Preempt, now).0, Some(moved));
}

/// A VCPU that has crossed LLCs and waits there has lost what it had in the cache: a PCPU of another LLC that halts gets it after
/// a while, though it has not run.
#[test]
fn who_has_crossed_llcs_does_not_wait_there_for_ever() {
    let sched = credit(2, 1);
    let heavy = sched.add_vm(60_000, 0).unwrap();
    let light = sched.add_vm(1, 0).unwrap();
    let mut now = S;
    let heavy = add(&sched, heavy, PcpuSet::only(P[1]), now).unwrap();
    let light = add(&sched, light, PcpuSet::ALL, now).unwrap();
    let _kick = sched.wake(heavy, now);
    assert_eq!(turn(&sched, P[1], Why::Preempt, now).0, Some(heavy));
    let _kick = sched.wake(light, now);
    let _kick = sched.move_to(light, P[1], now);
    assert_eq!(turn(&sched, P[0], Why::Preempt, now).0, None, "it has crossed just now");
    now += 4 * MS;
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), (Some(light), Kick::NONE));
    now += MS;
    assert_eq!(
        turn(&sched, P[1], Why::Preempt, now),
        (Some(heavy), Kick::NONE),
        "the light one's run counts for long"
    );
    now += 4 * MS;
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), (Some(heavy), Kick::NONE));
    now += 2 * MS;
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), (Some(heavy), Kick(Some(P[0]))));
    assert_eq!(turn(&sched, P[0], Why::Preempt, now).0, Some(light));
}

/// In a long run no VCPU that was stolen beyond its LLC is stolen so again within 10 ms.
#[test]
fn crossings_are_as_rare_as_the_rule_says() {
    const LOOK: u64 = 100 * US;
    for seed in seeds(4) {
        let mut rng = Rng(seed);
        let mut sim = Sim::credit(4, 2);
        for n in 0..7 {
            let vm = sim.vm(64 << rng.below(4), 0);
            let mut rng = Rng(seed * 10 + n);
            let act =
                move |_| Act { run: 1 + rng.below(20 * MS), sleep: 1 + rng.below(20 * MS), wakes: None };
            sim.vcpu(vm, PcpuSet::ALL, act);
        }
        let mut last = vec![(0, 0); 7];
        for _ in 0..40_000 {
            sim.run(LOOK);
            for id in sim.vcpus().collect::<Vec<_>>() {
                let moves = sim.sched.status(id, sim.now).unwrap().stats.far_moves;
                let (before, at) = last[usize::from(id.0)];
                if moves != before {
                    assert!(moves == before + 1, "two within 100 us");
                    let after = sim.now - at;
                    assert!(before == 0 || after > 10 * MS - LOOK, "seed {seed}: {id:?} after {after}");
                    last[usize::from(id.0)] = (moves, sim.now);
                }
            }
        }
        assert!(last.iter().any(|(moves, _)| *moves > 2), "{last:?}");
    }
}

#[test]
fn moves_take_a_running_vcpu_along() {
    let sched = credit(4, 2);
    let vm = sched.add_vm(256, 0).unwrap();
    let id = add(&sched, vm, PcpuSet::from_bits(0b1101), S).unwrap();
    let _kick = sched.wake(id, S);
    for pcpu in P.into_iter().take(4) {
        assert_eq!(turn(&sched, pcpu, Why::Preempt, S).0, (pcpu == P[0]).then_some(id));
    }
    // A move of a running VCPU: its PCPU is kicked to preempt it, and then the new PCPU is kicked.
    assert_eq!(sched.move_to(id, P[2], S + MS), Ok(Kick(Some(P[0]))));
    assert!(sched.wanted(P[0]));
    let decision = sched.schedule(P[0], Why::Preempt, S + MS);
    assert_eq!(decision.run, None);
    assert_eq!(sched.schedule(P[2], Why::Preempt, S + MS).run, None, "its state is not in memory yet");
    assert_eq!(sched.context_saved(P[2], S + MS), Kick::NONE);
    assert_eq!(sched.remove_vcpu(id, S + MS), Err(Refused::Running));
    assert_eq!(sched.runs_on(id), Some(P[0]));
    assert_eq!(sched.context_saved(P[0], S + MS), Kick(Some(P[2])));
    assert_eq!(turn(&sched, P[2], Why::Preempt, S + 2 * MS).0, Some(id));
    // By its own PCPU, to another LLC.
    assert_eq!(turn(&sched, P[2], Why::MoveTo(P[0]), S + 3 * MS), (None, Kick(Some(P[0]))));
    assert_eq!(turn(&sched, P[0], Why::Preempt, S + 3 * MS).0, Some(id));
    assert_eq!(sched.move_to_llc(id, LlcId(1), S + 4 * MS), Ok(Kick(Some(P[0]))));
    let (run, kick) = turn(&sched, P[0], Why::Preempt, S + 4 * MS);
    assert_eq!((run, kick.0.is_some_and(|p| p == P[2] || p == P[3])), (None, true));
    assert_eq!(sched.move_to(id, P[1], S), Err(Refused::Affinity));
    assert_eq!(turn(&sched, P[2], Why::MoveTo(P[1]), S + 5 * MS).0, Some(id), "not where it may not");
    assert_eq!(sched.set_affinity(id, PcpuSet::from_bits(1 << 40), S), Err(Refused::Affinity));
    assert_eq!(sched.status(id, S + 5 * MS).unwrap().stats.far_moves, 3);
}

#[test]
fn a_wake_up_before_the_block_is_kept() {
    let sched = credit(1, 1);
    let vm = sched.add_vm(256, 0).unwrap();
    let id = add(&sched, vm, PcpuSet::ALL, S).unwrap();
    assert_eq!(sched.status(id, S).unwrap().state, State::Blocked);
    assert_eq!(sched.wake(id, S), Kick::NONE, "PCPU 0 does not halt: it has never decided");
    assert_eq!(turn(&sched, P[0], Why::Preempt, S).0, Some(id));
    assert_eq!(sched.wake(id, S), Kick(Some(P[0])));
    assert_eq!(turn(&sched, P[0], Why::Block, S + 1).0, Some(id));
    assert_eq!(turn(&sched, P[0], Why::Block, S + 2).0, None);
    // On its way out.
    assert_eq!(sched.wake(id, S + 3), Kick(Some(P[0])));
    assert_eq!(sched.wake(id, S + 3), Kick::NONE, "once is enough");
    assert_eq!(turn(&sched, P[0], Why::Preempt, S + 4).0, Some(id));
    let decision = sched.schedule(P[0], Why::Block, S + 5);
    assert_eq!(decision.run, None);
    assert_eq!(sched.wake(id, S + 5), Kick::NONE);
    assert_eq!(sched.context_saved(P[0], S + 5), Kick(Some(P[0])), "PCPU 0 has something to do again");
}

#[test]
fn pauses_hold_whatever_happens() {
    let sched = credit(2, 2);
    let vm = sched.add_vm(256, 0).unwrap();
    let [a, b] = [0; 2].map(|_| add(&sched, vm, PcpuSet::only(P[0]), S).unwrap());
    let _kick = sched.pause(a, S).unwrap();
    let _kick = sched.wake(a, S);
    assert_eq!(sched.status(a, S).unwrap().state, State::Paused);
    let _kick = sched.wake(b, S);
    assert_eq!(turn(&sched, P[0], Why::Preempt, S).0, Some(b));
    let _kick = sched.resume(a, S).unwrap();
    assert_eq!(sched.status(a, S).unwrap().state, State::Waiting);
    // The one that runs, the one that waits; and a pause taken back in time.
    assert_eq!(sched.pause(b, S + 2 * MS), Ok(Kick(Some(P[0]))));
    let _kick = sched.pause(a, S + 2 * MS);
    assert_eq!(turn(&sched, P[0], Why::Preempt, S + 2 * MS).0, None);
    assert_eq!(sched.runs_on(b), None);
    assert_eq!(sched.resume(b, S + 3 * MS), Ok(Kick(Some(P[0]))));
    assert_eq!(turn(&sched, P[0], Why::Preempt, S + 3 * MS).0, Some(b));
    let _kick = sched.pause(b, S + 4 * MS);
    assert_eq!(sched.resume(b, S + 4 * MS), Ok(Kick::NONE));
    assert_eq!(turn(&sched, P[0], Why::Preempt, S + 5 * MS).0, Some(b));
    assert_eq!(sched.remove_vcpu(b, S), Err(Refused::Running));
    assert!(sched.remove_vcpu(a, S).is_ok());
    assert_eq!(sched.remove_vcpu(a, S), Err(Refused::Unknown));
    assert_eq!(sched.remove_vm(vm), Err(Refused::InUse));
    let _kick = sched.pause(b, S);
    assert_eq!(turn(&sched, P[0], Why::Preempt, S + 5 * MS).0, None);
    assert_eq!(sched.remove_vcpu(b, S).unwrap().ran, 4 * MS);
    assert_eq!(sched.remove_vm(vm), Ok(()));
    assert_eq!(add(&sched, vm, PcpuSet::ALL, S), Err(Refused::Unknown));
    assert_eq!(sched.set_weight(vm, 1, S), Err(Refused::Unknown));
    assert_eq!(sched.add_vm(0, 0), Err(Refused::Weight));
}

#[test]
fn a_new_vcpu_does_not_run_before_it_is_resumed() {
    let sched = credit(1, 1);
    let vm = sched.add_vm(256, 0).unwrap();
    assert_eq!(turn(&sched, P[0], Why::Preempt, S).0, None);
    let id = sched.add_vcpu(vm, PcpuSet::ALL, S).unwrap();
    assert_eq!(sched.status(id, S).unwrap().state, State::Paused);
    assert_eq!(sched.wake(id, S), Kick::NONE, "by a stale ID, of an earlier VCPU with the same number");
    assert_eq!(turn(&sched, P[0], Why::Preempt, S).0, None);
    assert!(sched.remove_vcpu(id, S).is_ok());
    // A VCPU that was woken meanwhile runs as soon as it is resumed.
    let id = sched.add_vcpu(vm, PcpuSet::ALL, S).unwrap();
    let _kick = sched.wake(id, S);
    assert_eq!(sched.resume(id, S), Ok(Kick(Some(P[0]))));
    assert_eq!(turn(&sched, P[0], Why::Preempt, S).0, Some(id));
}

#[test]
fn places_are_limited() {
    let config = Config { vms: 1, vcpus: 2, ..config() };
    let sched = Scheduler::new(Topology::uniform(1, 1), config, config.round_robin());
    let vm = sched.add_vm(1, 0).unwrap();
    assert_eq!(sched.add_vm(1, 0), Err(Refused::Full));
    let ids = [0; 2].map(|_| add(&sched, vm, PcpuSet::ALL, 0).unwrap());
    assert_eq!(add(&sched, vm, PcpuSet::ALL, 0), Err(Refused::Full));
    sched.remove_vcpu(ids[0], 0).unwrap();
    assert_eq!(add(&sched, vm, PcpuSet::ALL, 0), Ok(ids[0]));
    assert_eq!(sched.wake(VcpuId(7), 0), Kick::NONE);
}

/// Everything that can be done to VCPUs, at random, while the invariants are checked. At the end no VCPU is lost.
fn random_commands<Q: Policy + 'static>(seed: u64, policy: Q) {
    let mut rng = Rng(seed);
    let pcpus = 1 + rng.below(8) as usize;
    let mut sim = Sim::new(Topology::uniform(pcpus, 1 + rng.below(8) as usize), policy);
    let mut vms = vec![];
    for n in 0..1 + rng.below(4) {
        let cap = if rng.below(3) == 0 { 1 + rng.below(300) as u32 } else { 0 };
        let vm = sim.vm(1 + rng.below(1000) as u32, cap);
        vms.push(vm);
        for m in 0..1 + rng.below(6) {
            let mut rng = Rng(seed * 1000 + n * 10 + m);
            let (run, sleep) = (1 << (14 + rng.below(14)), 1 << (14 + rng.below(14)));
            sim.vcpu(vm, PcpuSet::ALL, move |_| match rng.below(50) {
                0 => HOG,
                _ => Act { run: 1 + rng.below(run), sleep: rng.below(sleep), wakes: None },
            });
        }
    }
    for _ in 0..300 {
        sim.run(rng.below(8 * MS));
        let ids: Vec<_> = sim.vcpus().collect();
        let Some(id) = ids.get(rng.below(ids.len().max(1) as u64) as usize).copied() else { break };
        let to = PcpuId(rng.below(pcpus as u64) as u8);
        let now = sim.now;
        let kick = match rng.below(10) {
            0 | 1 => sim.sched.pause(id, now),
            2..4 => sim.sched.resume(id, now),
            4 => sim.sched.move_to(id, to, now),
            5 => sim.sched.move_to_llc(id, LlcId(rng.below(3) as u8), now),
            6 => sim.sched.set_affinity(id, PcpuSet::from_bits(rng.below(1 << pcpus)), now),
            7 => {
                let kicks = sim.sched.set_cap(vms[0], rng.below(3) as u32 * 70, now).unwrap();
                kicks.0.into_iter().for_each(|pcpu| sim.deliver(Kick(Some(pcpu))));
                continue;
            }
            8 => sim.sched.set_weight(vms[0], 1 + rng.below(500) as u32, now).map(|()| Kick::NONE),
            _ if rng.below(10) == 0 => {
                if sim.sched.remove_vcpu(id, now).is_ok() {
                    sim.forget(id);
                }
                continue;
            }
            _ => {
                sim.wake(id);
                continue;
            }
        };
        match kick {
            Ok(kick) => sim.deliver(kick),
            Err(Refused::Affinity | Refused::Unknown) => {}
            Err(refused) => panic!("{refused:?}"),
        }
    }
    let ids: Vec<_> = sim.vcpus().collect();
    for vm in vms {
        let kicks = sim.sched.set_cap(vm, 0, sim.now).unwrap();
        kicks.0.into_iter().for_each(|pcpu| sim.deliver(Kick(Some(pcpu))));
        sim.sched.set_weight(vm, 256, sim.now).unwrap();
    }
    for id in &ids {
        let kick = sim.sched.resume(*id, sim.now).unwrap();
        sim.deliver(kick);
        sim.wake(*id);
    }
    let before: Vec<_> =
        ids.iter().map(|id| sim.sched.status(*id, sim.now).unwrap().stats.dispatched).collect();
    sim.run(10 * S);
    for (id, before) in ids.iter().zip(before) {
        let status = sim.sched.status(*id, sim.now).unwrap();
        let ran = status.stats.dispatched > before || status.state == State::Running;
        assert!(ran, "seed {seed}: {id:?} is lost: {status:?}");
    }
    // Time is accounted for.
    let busy: u64 = P.iter().map(|pcpu| sim.sched.pcpu_stats(*pcpu, sim.now).busy).sum();
    let ran: u64 = ids.iter().map(|id| sim.ran(*id)).sum();
    assert!(busy >= ran);
    for pcpu in P.iter().take(pcpus) {
        let stats = sim.sched.pcpu_stats(*pcpu, sim.now);
        let passed = sim.now - (1 << 40);
        assert!(
            (stats.busy + stats.idle).abs_diff(passed) < passed / 100,
            "seed {seed}: {stats:?} in {passed}"
        );
    }
}

#[test]
fn random_commands_lose_no_vcpu() {
    for seed in seeds(24) {
        random_commands(seed, config().credit());
        random_commands(seed, config().round_robin());
    }
}

#[test]
fn a_trace_repeats_the_decisions() {
    for seed in seeds(4) {
        let mut sim = Sim::credit(4, 2);
        sim.log = Some(vec![]);
        let mut ids = vec![];
        for n in 0..9 {
            let vm = sim.vm(100 + 50 * n as u32, 0);
            let mut rng = Rng(seed * 10 + n);
            let act = move |_| Act { run: 1 + rng.below(40 * MS), sleep: rng.below(20 * MS), wakes: None };
            ids.push(sim.vcpu(vm, PcpuSet::ALL, act));
        }
        let start = sim.now;
        sim.run(2 * S);
        let log = sim.log.take().unwrap();
        let mut trace = Trace::default();
        for (now, input) in &log {
            if let Input::Turn(pcpu, _, decision) = input {
                trace.record(*pcpu, *decision, *now);
            }
        }
        // The same is said to one that repeats, and it answers the same.
        let again = Scheduler::new(Topology::uniform(4, 2), config(), Replay::new(trace));
        for n in 0..9 {
            let vm = again.add_vm(100 + 50 * n as u32, 0).unwrap();
            assert_eq!(add(&again, vm, PcpuSet::ALL, start), Ok(ids[n as usize]));
        }
        assert!(log.len() > 500);
        for (now, input) in log {
            match input {
                Input::Wake(id) => drop(again.wake(id, now).0),
                Input::Turn(pcpu, why, decision) => {
                    assert_eq!(again.schedule(pcpu, why, now), decision, "seed {seed}");
                    let _kick = again.context_saved(pcpu, now);
                }
            }
        }
        assert_eq!(again.policy().missed(), 0);
        for id in ids {
            let stats = |status: Option<super::super::VcpuStatus>| {
                let stats = status.unwrap().stats;
                (stats.ran, stats.waited, stats.capped, stats.near_moves, stats.far_moves)
            };
            assert_eq!(stats(again.status(id, sim.now)), stats(sim.sched.status(id, sim.now)));
        }
    }
}

#[test]
fn idle_pcpus_halt_until_kicked() {
    let mut sim = Sim::credit(4, 4);
    let vm = sim.vm(256, 0);
    let id = sim.vcpu(vm, PcpuSet::ALL, |_| Act { run: MS, sleep: 99 * MS, wakes: None });
    sim.run(10 * S);
    let stats = P.map(|pcpu| sim.sched.pcpu_stats(pcpu, sim.now));
    let decisions: u64 = stats.iter().map(|stats| stats.decisions).sum();
    assert!(decisions < 4 + 3 * 100, "{decisions}");
    assert_eq!(
        stats.iter().map(|stats| stats.kicks).sum::<u64>(),
        sim.sched.status(id, sim.now).unwrap().stats.wakes
    );
    assert!(stats[1].idle == 10 * S && stats[0].idle > 98 * S / 10, "{stats:?}");
}
