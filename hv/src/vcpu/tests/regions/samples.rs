//! Samples of accesses, and the flushes that they owe.

use super::*;
use crate::region::Space;

#[test]
fn a_sample_that_has_cleared_accessed_bits_has_processors_flush() {
    for mode in [Mode::Nested, Mode::Shadow, Mode::Agile(Agile::default())] {
        let mut scene = Scene::in_mode("balance,spaces=vm", mode);
        let sample = |scene: &mut Scene| {
            let Machine { vm, vcpu, .. } = &mut scene.machine;
            let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
            let records = slot.as_mut().unwrap();
            let (scan, changes) = vm.sample(vcpu.id, &mut vcpu.work, records, Space::VM, 0);
            assert!(scan.is_complete);
            (scan.accessed > 0, changes.flush)
        };
        scene.access(REGIONS[0]);
        assert_eq!(sample(&mut scene), (true, true), "{mode:?}");
        assert_eq!(sample(&mut scene), (false, false), "{mode:?}: nothing was accessed since");
        // The model's processor has remembered the translation.
        scene.processor.flush(crate::paging::range::Flush::All);
        scene.shadow_processor.flush(TlbFlush::All);
        scene.access(REGIONS[0]);
        assert_eq!(sample(&mut scene), (true, true), "{mode:?}");
    }
}

#[test]
fn samples_that_take_more_than_their_share_of_the_time_come_later() {
    // The host's clock goes on by so much each time that it is read: a sample reads it when it begins, and at its end.
    let taken = |slow: u64| {
        let mut scene = Scene::new("balance,spaces=vm");
        let Machine { vm, vcpu, host } = &mut scene.machine;
        let began = host.cpu.tsc.get();
        host.slow = slow;
        for ms in 1..=2_000 {
            let _next = tick(vcpu, vm, host, began + ms * 1_000_000);
        }
        let slot = vm.regions.lock(|| unreachable!("the lock is free"));
        let scans = &slot.as_ref().unwrap().scans;
        (scans.samples, scans.put_off)
    };
    assert_eq!(taken(0), (21, 0));
    // 4 ms a sample, but for the first: one in 400 ms after the first three.
    assert_eq!(taken(4_000_000), (7, 5));
}

#[test]
fn leaves_are_joined_a_piece_at_a_time() {
    // With the last one left out: it is where the guest's RAM ends.
    const SPLIT: [u64; 4] = [1, 2, 5, 8];
    let mut scene = Scene::new("balance,spaces=vm");
    scene.access(REGIONS[0]);
    let vm = &scene.machine.vm;
    let small = || {
        let memory = vm.memory.read();
        let is_small = |n: &u64| match memory.nested.tree(TreeKey::FIRST).find(Gpa(n << 21)) {
            Found::Leaf(leaf) => leaf.size == PageSize::Size4K,
            Found::Hole(_) => panic!("nothing at {n}"),
        };
        SPLIT.iter().filter(|n| is_small(n)).count()
    };
    SPLIT.iter().for_each(|n| vm.memory.write().nested.keep_small(Gfn(n << 9)));
    let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
    let records = vm.regions.records(&mut slot, vm.layout).unwrap();
    assert_eq!((small(), vm.join_part(&mut 0, records).flush), (4, false), "samples have not told enough");
    for cancels in [true, false] {
        vm.join_leaves(&mut records.scans);
        let mut left = 4;
        while records.scans.is_joining() {
            let changes = vm.join_part(&mut 0, records);
            let now = small();
            assert!(now == left && !changes.flush || now + 1 == left && changes.flush, "{now} after {left}");
            left = now;
            if cancels && left == 2 {
                vm.tell_of_pages(&mut 0, &mut records.scans);
                assert_eq!((records.scans.is_joining(), small()), (false, 4), "a round has ended");
            }
        }
        assert!(cancels || left == 0);
    }
}
