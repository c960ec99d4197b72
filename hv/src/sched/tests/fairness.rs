//! Time by weight, and no more than the cap.

use super::super::topology::{PcpuId, PcpuSet};
use super::sim::{Act, HOG, MS, Rng, S, Sim, seeds};

/// A VM of hogs: weight, cap, VCPUs.
type Spec = (u32, u32, usize);

/// What each VM is entitled to, in thousandths of a PCPU: shares by weight, but no more than its cap and a PCPU for each VCPU; what is
/// left goes to the others by weight.
pub fn entitled(pcpus: usize, vms: &[Spec]) -> Vec<f64> {
    let limit = |vm: &Spec| {
        let vcpus = vm.2.min(pcpus) as f64;
        if vm.1 == 0 { vcpus } else { vcpus.min(f64::from(vm.1) / 100.0) }
    };
    let mut shares: Vec<Option<f64>> = vec![None; vms.len()];
    loop {
        let left = pcpus as f64 - shares.iter().flatten().sum::<f64>();
        let open = vms.iter().zip(&shares).filter(|(_, share)| share.is_none());
        let weights: f64 = open.map(|(vm, _)| f64::from(vm.0)).sum();
        let fair = |vm: &Spec| left * f64::from(vm.0) / weights;
        let full = (0..vms.len()).find(|n| shares[*n].is_none() && fair(&vms[*n]) >= limit(&vms[*n]));
        match full {
            Some(n) => shares[n] = Some(limit(&vms[n])),
            None => {
                return vms
                    .iter()
                    .zip(&shares)
                    .map(|(vm, share)| share.unwrap_or_else(|| fair(vm)))
                    .collect();
            }
        }
    }
}

/// Runs hogs for 10 s after a warm-up and returns by how much each VM is off at most, relative to what it is due, or to one
/// PCPU if that is more.
fn error(warm_up: u64, pcpus: usize, per_llc: usize, vms: &[Spec]) -> f64 {
    let mut sim = Sim::credit(pcpus, per_llc);
    let ids: Vec<_> = vms.iter().map(|vm| sim.hogs(vm.0, vm.1, vm.2)).collect();
    sim.run(warm_up);
    let before: Vec<_> = ids.iter().map(|id| sim.vm_ran(*id)).collect();
    sim.run(10 * S);
    let ran = ids.iter().zip(before).map(|(id, before)| (sim.vm_ran(*id) - before) as f64 / (10 * S) as f64);
    let off = ran.zip(entitled(pcpus, vms)).map(|(ran, due)| (ran - due).abs() / due.max(1.0));
    off.fold(0.0, f64::max)
}

#[test]
fn mixed_weights_get_their_shares_within_one_percent() {
    let mixes: [&[Spec]; 9] = [
        &[(256, 0, 1), (256, 0, 1), (256, 0, 1)],
        &[(256, 0, 1), (512, 0, 1), (1024, 0, 1)],
        &[(100, 0, 1), (300, 0, 4), (600, 0, 2)],
        &[(256, 0, 4), (256, 0, 2), (256, 0, 1), (128, 0, 8)],
        &[(1000, 0, 1), (200, 0, 1), (100, 0, 1)],
        &[(256, 0, 9)],
        &[(256, 0, 16), (256, 0, 1), (16, 0, 3)],
        &[(65_535, 0, 2), (40_000, 0, 4), (30_000, 0, 3), (20_000, 0, 8)],
        &[(10, 0, 5), (20, 0, 5), (30, 0, 5), (40, 0, 1), (50, 0, 7)],
    ];
    for (pcpus, per_llc) in MACHINES {
        for vms in mixes {
            let error = error(3 * S, pcpus, per_llc, vms);
            assert!(error < 0.01, "{error} on {pcpus} PCPUs, {per_llc} to an LLC: {vms:?}");
        }
    }
}

/// PCPUs, and how many share an LLC.
const MACHINES: [(usize, usize); 8] = [(1, 1), (2, 2), (2, 1), (4, 4), (4, 2), (8, 8), (8, 4), (8, 2)];

/// Up to six VMs with up to eight VCPUs each, whose weights differ by up to 2^`spread`.
fn random_vms(rng: &mut Rng, spread: u64) -> Vec<Spec> {
    let spec = |rng: &mut Rng| {
        let weight = 1 << rng.below(spread);
        (weight + rng.below(weight.into()) as u32, 0, 1 + rng.below(8) as usize)
    };
    (0..1 + rng.below(6)).map(|_| spec(rng)).collect()
}

fn random_shares(spread: u64, warm_up: u64, usual: u64) {
    let mut worst = 0.0;
    for seed in seeds(usual) {
        let mut rng = Rng(seed);
        let (pcpus, per_llc) = MACHINES[rng.below(8) as usize];
        let vms = random_vms(&mut rng, spread);
        let error = error(warm_up, pcpus, per_llc, &vms);
        worst = f64::max(worst, error);
        assert!(error < 0.01, "seed {seed}: {error} on {pcpus} PCPUs, {per_llc} to an LLC: {vms:?}");
    }
    println!("off by {worst} at most");
}

#[test]
fn random_weights_get_their_shares_within_one_percent() {
    random_shares(4, 3 * S, 20);
}

/// Weights that differ by a factor of a thousand: after a while, because a light VCPU's first run counts for long.
#[test]
fn extreme_weights_get_their_shares_within_one_percent() {
    random_shares(11, 10 * S, 20);
}

/// Mixes in which one rule alone makes the difference.
#[test]
fn light_ones_get_their_shares_beside_heavy_ones() {
    let mixes: [(usize, usize, &[Spec]); 4] = [
        // A VCPU that is entitled to more than a PCPU, and so always runs, does not delay one that waits behind it,
        (2, 1, &[(2, 0, 2), (1570, 0, 1), (51, 0, 2), (3, 0, 5)]),
        // nor if the waiting one has just crossed LLCs.
        (8, 2, &[(1, 0, 7), (1, 0, 1), (737, 0, 3), (3, 0, 1)]),
        // A light one's slice is short also if the heavy ones wait elsewhere.
        (8, 4, &[(1097, 0, 8), (3, 0, 2), (6, 0, 1), (17, 0, 8), (698, 0, 1)]),
        // Slices are shorter where many are present.
        (2, 2, &[(815, 0, 1), (2, 0, 2), (1, 0, 4), (11, 0, 8), (3, 0, 6)]),
    ];
    for (pcpus, per_llc, vms) in mixes {
        let error = error(10 * S, pcpus, per_llc, vms);
        assert!(error < 0.01, "{error} on {pcpus} PCPUs, {per_llc} to an LLC: {vms:?}");
    }
}

/// Over 100 s, relative to what each is due.
#[test]
fn shares_become_exact() {
    let vms: [Spec; 4] = [(256, 0, 3), (128, 0, 1), (64, 0, 2), (300, 0, 4)];
    for (pcpus, per_llc) in MACHINES {
        let mut sim = Sim::credit(pcpus, per_llc);
        let ids = vms.map(|vm| sim.hogs(vm.0, vm.1, vm.2));
        sim.run(100 * S);
        for (id, due) in ids.iter().zip(entitled(pcpus, &vms)) {
            let ran = sim.vm_ran(*id) as f64 / (100 * S) as f64;
            assert!((ran - due).abs() / due < 0.01, "{ran} of {due} on {pcpus} PCPUs, {per_llc} to an LLC");
        }
    }
}

#[test]
fn caps_hold_within_one_percent() {
    // Alone, where nothing but the cap stops them: as much as the cap says, and no more.
    for (pcpus, cap, vcpus) in [
        (1, 10, 1),
        (1, 50, 1),
        (1, 99, 2),
        (2, 50, 4),
        (4, 200, 4),
        (4, 150, 3),
        (8, 333, 5),
        (4, 5, 16),
        (2, 100, 1),
    ] {
        let mut sim = Sim::credit(pcpus, pcpus);
        let vm = sim.hogs(256, cap, vcpus);
        sim.run(S);
        let before = sim.vm_ran(vm);
        sim.run(10 * S);
        let percent = (sim.vm_ran(vm) - before) as f64 / (S / 10) as f64;
        let error = (percent - f64::from(cap)).abs() / f64::from(cap);
        assert!(error < 0.01, "{percent} % of {cap} % on {pcpus} PCPUs with {vcpus} VCPUs");
    }
}

#[test]
fn what_a_cap_forbids_goes_to_the_others() {
    for (pcpus, per_llc) in MACHINES {
        let vms: [Spec; 3] = [(1000, 30, 2), (256, 0, pcpus), (256, 80, pcpus)];
        let error = error(S, pcpus, per_llc, &vms);
        assert!(error < 0.01, "{error} on {pcpus} PCPUs");
    }
}

/// A VM that sleeps in between does not come beyond its cap either.
#[test]
fn caps_hold_for_those_who_sleep() {
    for seed in seeds(8) {
        let mut rng = Rng(seed);
        let mut sim = Sim::credit(2, 2);
        let cap = 5 + rng.below(100) as u32;
        let vm = sim.vm(256, cap);
        for n in 0..3 {
            let mut rng = Rng(seed * 8 + n);
            let act =
                move |_| Act { run: 1 + rng.below(20 * MS), sleep: 1 + rng.below(20 * MS), wakes: None };
            sim.vcpu(vm, PcpuSet::ALL, act);
        }
        sim.run(10 * S);
        let percent = sim.vm_ran(vm) as f64 / (S / 10) as f64;
        assert!(percent < f64::from(cap) * 1.01 + 0.3, "seed {seed}: {percent} % of {cap} %");
    }
}

#[test]
fn weights_and_caps_can_be_changed() {
    let mut sim = Sim::credit(1, 1);
    let (a, b) = (sim.hogs(100, 0, 1), sim.hogs(100, 0, 2));
    sim.run(2 * S);
    sim.sched.set_weight(a, 300, sim.now).unwrap();
    let before = sim.vm_ran(a);
    sim.run(10 * S);
    assert!((sim.vm_ran(a) - before).abs_diff(7500 * MS) < 100 * MS);
    let kicks = sim.sched.set_cap(a, 20, sim.now).unwrap();
    assert!(kicks.0.is_empty());
    let before = sim.vm_ran(a);
    sim.run(10 * S);
    assert!((sim.vm_ran(a) - before).abs_diff(2000 * MS) < 40 * MS);
    let kicks = sim.sched.set_cap(a, 0, sim.now).unwrap();
    assert!(kicks.0.is_empty());
    let before = sim.vm_ran(a);
    sim.run(10 * S);
    assert!((sim.vm_ran(a) - before).abs_diff(7500 * MS) < 100 * MS);
    assert!(sim.vm_ran(b) > 0);
}

#[test]
fn pinned_vcpus_share_their_pcpu_by_weight() {
    let mut sim = Sim::credit(4, 2);
    let only = PcpuSet::only(PcpuId(1));
    let pinned = [300u32, 200, 100].map(|weight| {
        let vm = sim.vm(weight, 0);
        sim.vcpu(vm, only, |_| HOG)
    });
    sim.hogs(256, 0, 3);
    sim.run(10 * S);
    let ran = pinned.map(|id| sim.ran(id) / MS);
    let due = [5000, 3333, 1667];
    assert!(ran.iter().zip(due).all(|(ran, due)| ran.abs_diff(due) < 100), "{ran:?}");
}

/// A VM that came late to where a heavy one has run alone for long gets what it is due.
#[test]
fn who_comes_late_to_a_heavy_one_gets_its_share() {
    let mut sim = Sim::credit(3, 3);
    sim.hogs(4000, 0, 1);
    let early = [sim.hogs(100, 0, 1), sim.hogs(100, 0, 1), sim.hogs(100, 0, 1)];
    sim.run(60 * S);
    let late = sim.hogs(100, 0, 1);
    sim.run(S);
    let before = [early[0], early[1], early[2], late].map(|vm| sim.vm_ran(vm));
    sim.run(10 * S);
    for (vm, before) in [early[0], early[1], early[2], late].into_iter().zip(before) {
        let ran = sim.vm_ran(vm) - before;
        assert!(ran.abs_diff(5 * S) < 100 * MS, "{ran}");
    }
}
