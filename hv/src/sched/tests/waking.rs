//! Waking, sleeping, yielding: latencies, and that no pattern of them enlarges a share.

use super::super::topology::{PcpuId, PcpuSet, Topology};
use super::super::{State, VcpuId};
use super::fairness::entitled;
use super::sim::{Act, HOG, MS, Rng, S, Sim, US, config, seeds};

/// Computes for `run`, sleeps for `sleep`.
fn periodic(run: u64, sleep: u64) -> impl FnMut(u64) -> Act {
    move |_| Act { run, sleep, wakes: None }
}

fn at_percent(latencies: &[u64], percent: usize) -> u64 {
    let mut sorted = latencies.to_vec();
    sorted.sort();
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
fn an_interactive_vcpu_is_served_at_once_beside_hogs() {
    for (pcpus, hogs) in [(1, 1), (1, 4), (4, 4), (4, 13), (8, 24)] {
        let mut sim = Sim::credit(pcpus, 4);
        (0..hogs).for_each(|_| assert!(sim.hogs(256, 0, 1).0 < 64));
        let vm = sim.vm(256, 0);
        let id = sim.vcpu(vm, PcpuSet::ALL, periodic(300 * US, 20 * MS));
        sim.run(10 * S);
        // At first all have just begun to wait, and it takes its turn.
        let latencies = &sim.latencies(id)[1..];
        assert!(latencies.len() > 400);
        let (most, all) = (at_percent(latencies, 95), at_percent(latencies, 100));
        assert!(most <= MS + 100 * US, "{most} ns beside {hogs} hogs on {pcpus} PCPUs");
        assert!(all <= 35 * MS, "{all} ns");
        let boosts = sim.sched.status(id, sim.now).unwrap().stats.boosts;
        assert!(boosts > 400, "{boosts}");
    }
}

/// The same without a boost takes a turn of the others.
#[test]
fn round_robin_serves_it_later() {
    let mut sim = Sim::new(Topology::uniform(1, 1), config().round_robin());
    (0..4).for_each(|_| assert!(sim.hogs(256, 0, 1).0 < 64));
    let vm = sim.vm(256, 0);
    let id = sim.vcpu(vm, PcpuSet::ALL, periodic(300 * US, 20 * MS));
    sim.run(10 * S);
    assert!(at_percent(sim.latencies(id), 50) > 80 * MS);
}

/// Whatever it does, a VM with one PCPU and a hog of the same weight beside it gets no more than half.
#[test]
fn sleeping_earns_nothing() {
    for (run, sleep) in [
        (10 * MS, 10 * US),
        (29 * MS, 10 * US),
        (MS, US),
        (100 * US, 10 * US),
        (15 * MS, MS),
        (30 * MS, 30 * MS),
        (60 * MS, MS),
    ] {
        let mut sim = Sim::credit(1, 1);
        let hog = sim.hogs(256, 0, 1);
        let vm = sim.vm(256, 0);
        sim.vcpu(vm, PcpuSet::ALL, periodic(run, sleep));
        sim.run(10 * S);
        let part = sim.vm_ran(vm) as f64 / (10 * S) as f64;
        assert!(part < 0.51, "{part} by {run} and {sleep}");
        assert!(sim.vm_ran(hog) + sim.vm_ran(vm) > 99 * S / 10);
    }
}

#[test]
fn sleeping_at_random_earns_nothing() {
    for seed in seeds(12) {
        let mut rng = Rng(seed);
        let pcpus = 1 + rng.below(2) as usize;
        let mut sim = Sim::credit(pcpus, pcpus);
        let others = sim.hogs(256, 0, pcpus * 2);
        let vm = sim.vm(256, 0);
        for n in 0..1 + rng.below(6) {
            let mut rng = Rng(seed * 100 + n);
            let (longest, rest) = (1 + rng.below(60 * MS), 1 + rng.below(20 * MS));
            let act = move |_| Act { run: 1 + rng.below(longest), sleep: 1 + rng.below(rest), wakes: None };
            sim.vcpu(vm, PcpuSet::ALL, act);
        }
        sim.run(20 * S);
        let part = sim.vm_ran(vm) as f64 / (20 * S) as f64 / pcpus as f64;
        assert!(part < 0.515, "seed {seed}: {part}, the others {}", sim.vm_ran(others));
    }
}

/// VCPUs of a VM that take turns, so that only one wants to run at any time, get what one would.
#[test]
fn taking_turns_earns_nothing() {
    for (count, run) in
        [(2, 30 * MS), (4, 30 * MS), (8, 30 * MS), (8, 10 * MS), (8, 3 * MS), (16, MS), (3, 45 * MS)]
    {
        let mut sim = Sim::credit(1, 1);
        sim.hogs(256, 0, 1);
        let vm = sim.vm(256, 0);
        let ids: Vec<VcpuId> = (1..=count).map(VcpuId).collect();
        for n in 0..usize::from(count) {
            let next = ids[(n + 1) % ids.len()];
            let turn = move |_| Act { run, sleep: u64::MAX, wakes: Some(next) };
            let id = match n {
                0 => sim.vcpu(vm, PcpuSet::ALL, turn),
                _ => sim.sleeping_vcpu(vm, PcpuSet::ALL, turn),
            };
            assert_eq!(id, ids[n]);
        }
        sim.run(20 * S);
        let part = sim.vm_ran(vm) as f64 / (20 * S) as f64;
        assert!(part < 0.53, "{part} with {count} for {run} each");
        assert!(part > 0.30, "{part} with {count} for {run} each");
    }
}

#[test]
fn who_yields_lets_others_go_first() {
    let mut sim = Sim::credit(1, 1);
    sim.hogs(256, 0, 1);
    let vm = sim.vm(256, 0);
    let id = sim.vcpu(vm, PcpuSet::ALL, |_| Act { run: 100 * US, sleep: 0, wakes: None });
    sim.run(10 * S);
    let ran = sim.ran(id);
    assert!(ran < S, "{ran}");
    assert!(ran > 10 * MS, "{ran}");
}

#[test]
fn a_yield_without_waiting_vcpus_continues() {
    let mut sim = Sim::credit(2, 2);
    let vm = sim.vm(256, 0);
    let id = sim.vcpu(vm, PcpuSet::ALL, |_| Act { run: 100 * US, sleep: 0, wakes: None });
    sim.run(S);
    assert!(sim.ran(id) > S - MS);
}

/// Every runnable VCPU runs within a bound: what the others use meanwhile, by weight, and a few slices.
#[test]
fn no_vcpu_starves() {
    let mut worst = 0.0;
    for seed in seeds(4) {
        let mut rng = Rng(seed);
        let pcpus = 1 + rng.below(8) as usize;
        let mut sim = Sim::credit(pcpus, 1 + rng.below(8) as usize);
        let mut vms = vec![];
        for _ in 0..1 + rng.below(5) {
            let weight = 16 << rng.below(7);
            let vm = sim.vm(weight, 0);
            let mut ids = vec![];
            for _ in 0..1 + rng.below(4) {
                let mut rng = Rng(rng.below(1 << 40));
                let (run, sleep) = (1 << (16 + rng.below(12)), 1 << (16 + rng.below(12)));
                let is_hog = rng.below(3) == 0;
                let affinity = match rng.below(3) {
                    0 => PcpuSet::only(PcpuId(rng.below(pcpus as u64) as u8)),
                    1 => PcpuSet::from_bits(1 | rng.below(1 << pcpus)),
                    _ => PcpuSet::ALL,
                };
                let act = move |_| match is_hog {
                    true => HOG,
                    false => Act { run: 1 + rng.below(run), sleep: rng.below(sleep), wakes: None },
                };
                ids.push(sim.vcpu(vm, affinity, act));
            }
            vms.push((weight, ids));
        }
        sim.run(10 * S);
        let total: u32 = vms.iter().map(|(weight, _)| weight).sum();
        let count = sim.vcpus().count() as u64;
        for (weight, ids) in &vms {
            // All VMs at one PCPU, and up to two slices that one had beyond its part have to be paid back, and one more.
            let part = f64::from(*weight) / f64::from(total) / ids.len() as f64;
            let bound = (35 * MS * count) as f64 + 90.0 * MS as f64 / part;
            for id in ids {
                let since = sim.sched.status(*id, sim.now).unwrap();
                let wait = sim.longest_wait(*id);
                worst = f64::max(worst, wait as f64 / bound);
                assert!((wait as f64) < bound, "seed {seed}: {id:?} waited {wait} of {bound} {since:?}");
                assert!(
                    since.state == State::Blocked || since.stats.ran > 0,
                    "seed {seed}: {id:?} {since:?}"
                );
            }
        }
    }
    println!("waited {worst} of the bound at most");
}

/// VCPUs that need less than their share get all that they need, and the hogs share the rest by weight.
#[test]
fn what_sleepers_leave_is_shared_by_weight() {
    let mut sim = Sim::credit(4, 2);
    let hogs = [(300, sim.hogs(300, 0, 4)), (100, sim.hogs(100, 0, 4))];
    let vm = sim.vm(256, 0);
    let ids = [0; 4].map(|_| sim.vcpu(vm, PcpuSet::ALL, periodic(MS, 9 * MS)));
    sim.run(S);
    let before = (ids.map(|id| sim.ran(id)), hogs.map(|(_, hog)| sim.vm_ran(hog)));
    sim.run(10 * S);
    let slept: u64 = ids.iter().zip(before.0).map(|(id, before)| sim.ran(*id) - before).sum();
    let latencies = ids.map(|id| [50, 75, 90, 100].map(|p| at_percent(sim.latencies(id), p)));
    assert!(slept > 37 * S / 10, "{slept} {latencies:?}");
    let due = entitled(4, &[(300, 0, 4), (100, 0, 4)]);
    for (((_, hog), before), due) in hogs.iter().zip(before.1).zip(due) {
        let ran = (sim.vm_ran(*hog) - before) as f64 / (40 * S - slept) as f64 * 4.0;
        assert!((ran - due).abs() < 0.03, "{ran} of {due}");
    }
}
