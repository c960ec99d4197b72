//! Two PCPUs and others at work on the same VCPUs, in every order of their steps (with up to three preemptions): no VCPU is
//! lost, none runs twice, and no PCPU sleeps beside one that waits.

use loom::sync::Arc;
use loom::thread;
use sched_loom::sched::policy::Policy;
use sched_loom::sched::topology::{PcpuId, PcpuSet, Topology};
use sched_loom::sched::{Config, Credit, Decision, Kick, Scheduler, State, VcpuId, VmId, Why};

const P0: PcpuId = PcpuId(0);
const P1: PcpuId = PcpuId(1);
const T: u64 = 1 << 32;
/// The VM of [`machine`].
const VM: VmId = VmId(0);

type Sched<P> = Arc<Scheduler<P>>;

/// A turn of a PCPU's run loop.
fn turn<P: Policy>(sched: &Scheduler<P>, pcpu: PcpuId, why: Why, now: u64) -> (Option<VcpuId>, Kick) {
    let Decision { run, is_settled, .. } = sched.schedule(pcpu, why, now);
    (run, if is_settled { Kick::NONE } else { sched.context_saved(pcpu, now) })
}

/// Two PCPUs that share an LLC, and N blocked VCPUs of one VM that may run.
fn machine<const N: usize>() -> (Sched<Credit>, [VcpuId; N]) {
    machine_with(CONFIG.credit())
}

const CONFIG: Config = Config::new(1_000_000);

fn machine_with<P: Policy, const N: usize>(policy: P) -> (Sched<P>, [VcpuId; N]) {
    let config = Config { vms: 1, vcpus: N, ..CONFIG };
    let sched = Scheduler::new(Topology::uniform(2, 2), config, policy);
    let vm = sched.add_vm(256, 0).unwrap();
    let ids = [(); N].map(|()| sched.add_vcpu(vm, PcpuSet::only(P0), T).unwrap());
    for id in ids {
        assert_eq!(sched.resume(id, T), Ok(Kick::NONE));
        assert_eq!(sched.set_affinity(id, PcpuSet::ALL, T), Ok(Kick::NONE));
    }
    (Arc::new(sched), ids)
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// All kicked PCPUs decide, until none is kicked. Then the VCPU must run or have run.
fn settle<P: Policy>(sched: &Scheduler<P>, kicks: &[Kick], now: u64) {
    let mut kicks: Vec<Kick> = kicks.to_vec();
    for pcpu in [P0, P1] {
        if sched.wanted(pcpu) {
            kicks.push(Kick(Some(pcpu)));
        }
    }
    let mut rounds = 0;
    while let Some(kick) = kicks.pop() {
        if let Some(pcpu) = kick.0 {
            kicks.push(turn(sched, pcpu, Why::Preempt, now).1);
        }
        rounds += 1;
        assert!(rounds < 20);
    }
}

/// One PCPU halts while another wakes a VCPU of its queue.
#[test]
fn a_wake_up_is_not_lost_on_a_pcpu_that_halts() {
    check(|| {
        let (sched, [id]) = machine();
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(id, T + 1))
        };
        let (run, kick) = turn(&sched, P0, Why::Preempt, T + 1);
        let woken = waker.join().unwrap();
        if run.is_none() {
            settle(&sched, &[kick, woken], T + 2);
        }
        assert_eq!(sched.runs_on(id), Some(P0));
    });
}

/// The PCPU whose queue it is runs another one, which it does not preempt; its neighbour halts at the same time and must take it.
#[test]
fn a_wake_up_is_not_lost_on_a_neighbour_that_halts() {
    check(|| {
        let (sched, [busy, id]) = machine_with(CONFIG.round_robin());
        let _kick = sched.wake(busy, T);
        assert_eq!(turn(&sched, P0, Why::Preempt, T).0, Some(busy));
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(id, T + 1))
        };
        let (run, kick) = turn(&sched, P1, Why::Preempt, T + 1);
        let woken = waker.join().unwrap();
        assert!(run.is_none() || run == Some(id));
        settle(&sched, &[kick, woken], T + 2_000_000);
        assert!(sched.runs_on(id).is_some(), "{:?} {woken:?} {:?}", run, sched.status(id, T));
        assert!(sched.runs_on(busy).is_some());
    });
}

/// A VCPU blocks while it is woken: it runs again.
#[test]
fn a_wake_up_is_not_lost_on_a_vcpu_that_blocks() {
    check(|| {
        let (sched, [id]) = machine();
        let _kick = sched.wake(id, T);
        assert_eq!(turn(&sched, P0, Why::Preempt, T).0, Some(id));
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(id, T + 1))
        };
        let (run, kick) = turn(&sched, P0, Why::Block, T + 1);
        let woken = waker.join().unwrap();
        if run.is_none() {
            settle(&sched, &[kick, woken], T + 2);
        }
        assert_eq!(sched.runs_on(id), Some(P0));
    });
}

/// A VCPU is handed over to a PCPU that is about to halt, or has.
#[test]
fn one_that_is_handed_over_is_not_lost() {
    check(|| {
        let (sched, [id]) = machine();
        let _kick = sched.wake(id, T);
        assert_eq!(turn(&sched, P0, Why::Preempt, T).0, Some(id));
        let other = {
            let sched = sched.clone();
            thread::spawn(move || turn(&sched, P1, Why::Preempt, T + 1))
        };
        let handed = sched.hand_over(P0, P1, T + 1).expect("it may run there");
        let mine = turn(&sched, P0, Why::Preempt, T + 1);
        let theirs = other.join().unwrap();
        assert!(mine.0.is_none() || theirs.0.is_none(), "it runs once");
        settle(&sched, &[handed, mine.1, theirs.1], T + 2);
        assert!(sched.runs_on(id).is_some(), "{:?}", sched.status(id, T + 2));
    });
}

/// A halted PCPU is given a VCPU by its neighbour while another one is woken: both run in the end, one on each.
#[test]
fn a_wake_up_beside_one_that_is_handed_over_is_not_lost() {
    check(|| {
        let (sched, [id, sleeper]) = machine();
        let _kick = sched.wake(id, T);
        assert_eq!(turn(&sched, P0, Why::Preempt, T).0, Some(id));
        assert_eq!(turn(&sched, P1, Why::Preempt, T).0, None);
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(sleeper, T + 1))
        };
        let handed = sched.hand_over(P0, P1, T + 1).expect("it may run there");
        let mine = turn(&sched, P0, Why::Preempt, T + 1);
        let woken = waker.join().unwrap();
        settle(&sched, &[handed, mine.1, woken], T + 2);
        let places = [id, sleeper].map(|id| sched.runs_on(id).map(|pcpu| pcpu.0));
        assert!(places == [Some(0), Some(1)] || places == [Some(1), Some(0)], "{places:?}");
    });
}

/// It is paused meanwhile: it runs nowhere, and again when it is resumed.
#[test]
fn a_pause_meets_a_hand_over() {
    check(|| {
        let (sched, [id]) = machine();
        let _kick = sched.wake(id, T);
        assert_eq!(turn(&sched, P0, Why::Preempt, T).0, Some(id));
        assert_eq!(turn(&sched, P1, Why::Preempt, T).0, None);
        let pauser = {
            let sched = sched.clone();
            thread::spawn(move || sched.pause(id, T + 1).unwrap())
        };
        let handed = sched.hand_over(P0, P1, T + 1).unwrap_or(Kick::NONE);
        let mine = turn(&sched, P0, Why::MoveTo(P1), T + 1);
        let paused = pauser.join().unwrap();
        settle(&sched, &[handed, mine.1, paused], T + 2);
        assert_eq!(sched.runs_on(id), None);
        let resumed = sched.resume(id, T + 3).unwrap();
        settle(&sched, &[resumed], T + 3);
        assert!(sched.runs_on(id).is_some());
    });
}

/// Two PCPUs want the same VCPU: one gets it.
#[test]
fn one_of_two_gets_it() {
    check(|| {
        let (sched, [id]) = machine();
        let _kick = sched.wake(id, T);
        let other = {
            let sched = sched.clone();
            thread::spawn(move || turn(&sched, P1, Why::Preempt, T + 1))
        };
        let mine = turn(&sched, P0, Why::Preempt, T + 1);
        let theirs = other.join().unwrap();
        let ran = [mine.0, theirs.0];
        assert_eq!(ran.iter().flatten().count(), 1, "{ran:?}");
        assert_eq!(sched.runs_on(id), Some(if mine.0.is_some() { P0 } else { P1 }));
    });
}

/// It is paused and stolen at once: it ends up paused, wherever.
#[test]
fn a_pause_meets_a_theft() {
    check(|| {
        let (sched, [id]) = machine();
        let _kick = sched.wake(id, T);
        let pauser = {
            let sched = sched.clone();
            thread::spawn(move || sched.pause(id, T + 1).unwrap())
        };
        let (_, kick) = turn(&sched, P1, Why::Preempt, T + 1);
        let paused = pauser.join().unwrap();
        settle(&sched, &[kick, paused], T + 2);
        assert_eq!(sched.runs_on(id), None);
        assert_eq!(sched.status(id, T + 2).unwrap().state, State::Paused);
        assert!(sched.remove_vcpu(id, T + 3).is_ok());
    });
}

/// A PCPU wakes a VCPU that is gone, while a new one gets its number: that does not run before it is resumed, and then it does.
#[test]
fn a_late_wake_up_lets_no_new_one_run() {
    check(|| {
        let (sched, [id]) = machine();
        let _kick = sched.pause(id, T).unwrap();
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(id, T + 1))
        };
        sched.remove_vcpu(id, T + 1).unwrap();
        assert_eq!(sched.add_vcpu(VM, PcpuSet::ALL, T + 1), Ok(id));
        let (run, kick) = turn(&sched, P0, Why::Preempt, T + 1);
        let woken = waker.join().unwrap();
        settle(&sched, &[kick, woken], T + 2);
        assert_eq!((run, sched.runs_on(id)), (None, None));
        let kicks = [sched.resume(id, T + 3).unwrap(), sched.wake(id, T + 3)];
        settle(&sched, &kicks, T + 3);
        assert!(sched.runs_on(id).is_some());
    });
}

/// Two PCPUs lock each other's queues: moves in both directions.
#[test]
fn moves_in_both_directions_end() {
    check(|| {
        let (sched, [a, b]) = machine();
        assert_eq!(sched.move_to(b, P1, T), Ok(Kick::NONE));
        let other = {
            let sched = sched.clone();
            thread::spawn(move || sched.move_to(a, P1, T + 1).unwrap())
        };
        let _kick = sched.move_to(b, P0, T + 1).unwrap();
        let _kick = other.join().unwrap();
        assert_eq!(sched.status(a, T).unwrap().pcpu, P1);
        assert_eq!(sched.status(b, T).unwrap().pcpu, P0);
    });
}

/// VCPUs of a VM with a cap begin to want to run at once: each gets its part of the turn.
#[test]
fn a_turn_is_shared_by_all_that_want_to_run() {
    check(|| {
        let (sched, [a, b]) = machine();
        assert_eq!(sched.move_to(b, P1, T), Ok(Kick::NONE));
        let _kicks = sched.set_cap(VM, 50, T).unwrap();
        let other = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(b, T + 1))
        };
        let _kick = sched.wake(a, T + 1);
        let _kick = other.join().unwrap();
        assert_eq!(sched.schedule(P0, Why::Preempt, T + 2).until, T + 2 + CONFIG.credit().slice / 4);
    });
}

/// One begins to want to run while its VM gets a cap: it runs for as long as that allows.
#[test]
fn a_cap_comes_while_one_wakes() {
    check(|| {
        let (sched, [id]) = machine();
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(id, T + 1))
        };
        let _kicks = sched.set_cap(VM, 25, T + 1).unwrap();
        let _kick = waker.join().unwrap();
        assert_eq!(sched.schedule(P0, Why::Preempt, T + 2).until, T + 2 + CONFIG.credit().slice / 4);
    });
}

/// A VCPU whose VM has used up its cap blocks while it is woken: if nothing is to run, the PCPU looks again when the cap allows it.
#[test]
fn a_wake_up_of_one_that_is_held_back_is_not_lost() {
    check(|| {
        let (sched, [id]) = machine();
        let _kicks = sched.set_cap(VM, 50, T).unwrap();
        let _kick = sched.wake(id, T);
        assert_eq!(turn(&sched, P0, Why::Preempt, T).0, Some(id));
        let now = T + 2 * CONFIG.credit().slice;
        let waker = {
            let sched = sched.clone();
            thread::spawn(move || sched.wake(id, now))
        };
        let mut decision = sched.schedule(P0, Why::Block, now);
        let mut kick = sched.context_saved(P0, now);
        let woken = waker.join().unwrap();
        assert_eq!(decision.run, None);
        while kick.0.is_some() || sched.wanted(P0) {
            decision = sched.schedule(P0, Why::Preempt, now);
            kick = sched.context_saved(P0, now);
        }
        assert_eq!(sched.status(id, now).unwrap().state, State::Capped, "{woken:?}");
        assert_eq!(turn(&sched, P0, Why::Preempt, decision.until).0, Some(id));
    });
}
