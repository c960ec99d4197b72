//! Shares beside what is asked for, and E-states beside what a VM misses.

use proptest::prelude::*;

use super::*;

fn e(number: u8) -> EState {
    EState::new(number).unwrap()
}

fn demand() -> impl Strategy<Value = Option<Demand>> {
    let numbers = (
        1u32..500,
        0u32..5000,
        prop::option::of(0u32..2000),
        [0u8..STEPS, 0u8..STEPS],
        prop::bool::weighted(0.2),
    );
    let demand = numbers.prop_map(|(weight, working_set, fixed, [state, wished], is_set)| Demand {
        working_set,
        state: e(state),
        is_set,
        wished: e(wished),
        ..Demand::new(weight, fixed)
    });
    prop::option::weighted(0.8, demand)
}

/// The E-states, own and wished, after `seconds` in which a VM with `hot` hot pages has as many in fast memory as its share allows.
fn after(seconds: u32, policy: Sharing, vm: &mut Demand, hot: u32, total: u32) -> (u8, u8) {
    let mut driver = Driver::default();
    for _ in 0..seconds * u32::from(PERIOD) {
        vm.fast = hot.min(divide(policy, total, &[Some(*vm)], 0));
        vm.waiting = hot - vm.fast;
        (vm.state, vm.wished) = driver.step(policy, total, vm);
    }
    (vm.state.number(), vm.wished.number())
}

#[test]
fn a_target_decides_how_far_an_e_state_goes() {
    let vm = |per_mille| Demand { target: Target::new(per_mille), ..Demand::new(1, None) };
    let reached = |per_mille, policy, hot| after(120, policy, &mut vm(per_mille), hot, 800);
    // 515 hot pages: 500 are 97 %, which is enough; all of them take one step more, half of them two fewer.
    assert_eq!(reached(0, Sharing::EstateQos, 515), (3, 3));
    assert_eq!(reached(950, Sharing::EstateQos, 515), (3, 3));
    assert_eq!(reached(1000, Sharing::EstateQos, 515), (3, 2));
    assert_eq!(reached(500, Sharing::EstateQos, 515), (5, 5));
    assert_eq!(reached(1, Sharing::EstateQos, 515), (7, 7));
    assert_eq!(reached(1000, Sharing::EstateQos, 9000), (0, 0));
    // Other policies do not ask.
    assert_eq!(reached(1000, Sharing::EstateResource, 515), (4, 4));
    assert_eq!(reached(1000, Sharing::Shares, 515), (7, 7));
}

#[test]
fn a_target_that_is_taken_back_gives_up_what_it_had() {
    let mut vm = Demand { target: Target::new(1000), ..Demand::new(1, None) };
    assert_eq!(after(60, Sharing::EstateQos, &mut vm, 515, 800), (3, 2));
    vm.target = None;
    assert_eq!(after(2, Sharing::EstateQos, &mut vm, 515, 800), (3, 3));
    // What is not hot any more is given up after five seconds for each step.
    vm.target = Target::new(1000);
    assert_eq!(after(60, Sharing::EstateQos, &mut vm, 90, 800), (7, 7));
}

#[test]
fn a_wish_takes_only_what_is_not_claimed() {
    let wants = Demand { target: Target::new(1000), state: e(4), wished: e(0), ..Demand::new(1, None) };
    let other = |state| Some(Demand { state: e(state), ..Demand::new(1, None) });
    let shares = |state| [0, 1].map(|of| divide(Sharing::EstateQos, 800, &[Some(wants), other(state)], of));
    assert_eq!(shares(7), [700, 100]);
    assert_eq!(shares(5), [500, 300]);
    assert_eq!(shares(4), [400, 400]);
    assert_eq!([Target::new(0), Target::new(1001), Target::new(u64::MAX)], [None; 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// No VM gets more than there is, whatever is asked for; and what is not claimed is divided by the parts.
    #[test]
    fn shares_fit_the_machine(total in 0u32..4000, vms in prop::collection::vec(demand(), 1..8), policy in 0usize..5) {
        let policy = Sharing::ALL[policy];
        let shares: Vec<u32> = (0..vms.len()).map(|of| divide(policy, total, &vms, of)).collect();
        prop_assert!(shares.iter().map(|share| u64::from(*share)).sum::<u64>() <= total.into(), "{:?}", shares);
        for (vm, share) in vms.iter().zip(&shares) {
            match vm {
                None => prop_assert_eq!(*share, 0),
                Some(vm) if vm.is_set => prop_assert!(*share <= vm.state.frames(total)),
                Some(Demand { fixed: Some(fixed), .. }) => prop_assert!(share <= fixed),
                Some(_) => {}
            }
        }
        // What guests wish costs no other VM a frame, and is served in whole where there is room.
        let mut without = vms.clone();
        without.iter_mut().flatten().for_each(|vm| vm.wished = vm.state);
        let plain: Vec<u32> = (0..vms.len()).map(|of| divide(policy, total, &without, of)).collect();
        prop_assert!(shares.iter().zip(&plain).all(|(with, without)| with >= without), "{:?} {:?}", shares, plain);
        let added: u64 = shares.iter().zip(&plain).map(|(with, without)| u64::from(with - without)).sum();
        if policy != Sharing::EstateQos {
            prop_assert_eq!(added, 0);
        } else {
            let may_wish = vms.iter().flatten().filter(|vm| !vm.is_set && vm.fixed.is_none());
            let wished: u64 =
                may_wish.map(|vm| u64::from(vm.e_state().frames(total) - vm.state.frames(total))).sum();
            let left = u64::from(total) - plain.iter().map(|share| u64::from(*share)).sum::<u64>();
            prop_assert_eq!(added, wished.min(left));
        }
        if policy == Sharing::Shares {
            let free = |vm: &Option<Demand>| vm.filter(|vm| vm.fixed.is_none() && !vm.is_set);
            let of: Vec<_> = vms.iter().zip(&shares).filter_map(|(vm, share)| Some((free(vm)?.weight, *share))).collect();
            for pair in of.windows(2) {
                let [(a, of_a), (b, of_b)] = [pair[0], pair[1]].map(|(w, s)| (u64::from(w), u64::from(s)));
                prop_assert!((of_a * b).abs_diff(of_b * a) <= a.max(b), "{:?}", of);
            }
        }
    }

    /// Whatever the numbers are, a step changes a state by one at most, and the wished one has at least as much memory.
    #[test]
    fn steps_are_small(
        total in 0u32..=u32::MAX,
        policy in 0usize..5,
        vms in prop::collection::vec((any::<u32>(), any::<u32>(), 0u64..1002), 1..200),
    ) {
        let policy = Sharing::ALL[policy];
        let (mut driver, mut vm) = (Driver::default(), Demand::new(1, None));
        for (fast, waiting, target) in vms {
            (vm.fast, vm.waiting, vm.target) = (fast, waiting, Target::new(target));
            for _ in 0..PERIOD {
                let before = vm;
                (vm.state, vm.wished) = driver.step(policy, total, &vm);
                prop_assert!(vm.state.number().abs_diff(before.state.number()) <= 1);
                prop_assert!(vm.wished <= vm.state);
            }
        }
    }
}
