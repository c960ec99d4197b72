//! A VCPU that is throttled by a cap runs again in time, wherever it is moved.

use super::super::topology::{PcpuId, PcpuSet, Topology};
use super::super::{Credit, Kick, Scheduler, State, VcpuId, Why};
use super::sim::{MS, S, add, config};

const P: [PcpuId; 2] = [PcpuId(0), PcpuId(1)];

/// Two PCPUs, the second of which halts, and a VCPU that has run on the first one for 100 ms although its VM's cap is half of a
/// PCPU. The time.
fn overdrawn() -> (Scheduler<Credit>, VcpuId, u64) {
    let sched = Scheduler::new(Topology::uniform(2, 2), config(), config().credit());
    let vm = sched.add_vm(256, 50).unwrap();
    let id = add(&sched, vm, PcpuSet::ALL, S).unwrap();
    for pcpu in [P[1], P[0]] {
        assert_eq!(turn(&sched, pcpu, Why::Preempt, S), (None, u64::MAX, Kick::NONE));
    }
    assert_eq!(sched.wake(id, S), Kick(Some(P[0])));
    let (run, until, _) = turn(&sched, P[0], Why::Preempt, S);
    assert_eq!((run, until), (Some(id), S + 15 * MS));
    (sched, id, S + 100 * MS)
}

/// When what has been run for 100 ms of which 30 were saved up is paid for.
const PAID: u64 = S + 170 * MS;

/// A turn of a PCPU's run loop: what runs, until when, and the PCPU to kick.
fn turn(sched: &Scheduler<Credit>, pcpu: PcpuId, why: Why, now: u64) -> (Option<VcpuId>, u64, Kick) {
    let decision = sched.schedule(pcpu, why, now);
    (decision.run, decision.until, sched.context_saved(pcpu, now))
}

#[test]
fn a_pcpu_halts_no_longer_than_the_cap_says() {
    let (sched, id, now) = overdrawn();
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), (None, PAID, Kick::NONE));
    assert_eq!(sched.status(id, now).unwrap().state, State::Capped);
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID - 1), (None, PAID, Kick::NONE));
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID).0, Some(id));
}

#[test]
fn another_that_runs_makes_room_when_the_cap_says() {
    let (sched, id, now) = overdrawn();
    let vm = sched.add_vm(256, 0).unwrap();
    let other = add(&sched, vm, PcpuSet::only(P[0]), now).unwrap();
    let _kick = sched.wake(other, now);
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), (Some(other), now + 30 * MS, Kick::NONE));
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID - 10 * MS), (Some(other), PAID, Kick::NONE));
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID).0, Some(id));
}

#[test]
fn one_that_is_woken_before_it_is_put_away_is_looked_at_again() {
    let (sched, id, now) = overdrawn();
    let decision = sched.schedule(P[0], Why::Block, now);
    assert_eq!((decision.run, decision.until), (None, u64::MAX), "it blocks");
    assert_eq!(sched.wake(id, now), Kick::NONE, "its state is not in memory yet");
    assert_eq!(sched.context_saved(P[0], now), Kick(Some(P[0])));
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), (None, PAID, Kick::NONE));
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID).0, Some(id));
}

#[test]
fn one_that_is_moved_to_a_pcpu_that_halts_is_looked_at_there() {
    let (sched, id, now) = overdrawn();
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), (None, PAID, Kick::NONE));
    assert_eq!(sched.move_to(id, P[1], now), Ok(Kick(Some(P[1]))));
    assert_eq!(turn(&sched, P[1], Why::Preempt, now), (None, PAID, Kick::NONE));
    assert_eq!(turn(&sched, P[1], Why::Preempt, PAID).0, Some(id));
    // The PCPU that it has left still has a timer armed for it, and finds nothing to run.
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID), (None, u64::MAX, Kick::NONE));
}

#[test]
fn who_has_no_cap_any_more_is_held_back_no_more() {
    let (sched, id, now) = overdrawn();
    assert_eq!(turn(&sched, P[0], Why::Preempt, now), (None, PAID, Kick::NONE));
    let vm = sched.status(id, now).unwrap().vm;
    assert_eq!(sched.set_cap(vm, 0, now).unwrap().0, PcpuSet::only(P[0]).or(PcpuSet::only(P[1])));
    assert_eq!(turn(&sched, P[0], Why::Preempt, now).0, Some(id));
}

#[test]
fn one_that_is_held_back_as_another_may_run_again_is_not_late() {
    let (sched, id, now) = overdrawn();
    let only = PcpuSet::only(P[0]);
    let [other, third] = [20, 0].map(|cap| {
        let vm = sched.add_vm(256, cap).unwrap();
        add(&sched, vm, only, now).unwrap()
    });
    let _kick = sched.wake(third, now);
    assert_eq!(turn(&sched, P[0], Why::Preempt, now).0, Some(third));
    // Ten milliseconds cost fifty, of which thirty were saved up.
    let _kick = sched.wake(other, PAID - 10 * MS);
    assert_eq!(turn(&sched, P[0], Why::Preempt, PAID - 10 * MS).0, Some(other));
    let (run, until, _) = turn(&sched, P[0], Why::Preempt, PAID);
    assert!(run == Some(id) || run == Some(third));
    assert_eq!(until, PAID + 10 * MS);
    assert_eq!(sched.status(other, PAID).unwrap().state, State::Capped);
}
