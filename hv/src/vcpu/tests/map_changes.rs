//! Changes of the guest-physical address space: which VCPUs are shot down, and what becomes of the memory of nested tables.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::arch::addr::Gpa;
use crate::paging::shadow::Shootdown;
use crate::paging::{Changed, GpaRange};
use crate::vcpu::testing::Machine;
use crate::vm::MapChanges;

/// Where there is nothing else below one table of level 1.
const FAR: u64 = 0x1_0000_0000;

/// Other VCPUs, which count.
#[derive(Default)]
struct Told(AtomicU32);

impl Shootdown for Told {
    fn request(&self, _: bool) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn service(&self) {}
}

/// A page comes to a place of its own and goes with all around it, in one way and back.
fn come_and_go(machine: &Machine) -> [MapChanges; 2] {
    let page = GpaRange::new(Gpa(FAR), 0x1000).unwrap();
    let around = GpaRange::new(Gpa(FAR), 0x20_0000).unwrap();
    let hpa = machine.vm.memory.read().p2m.translate(Gpa(0x9000)).writable().unwrap();
    let vm = &machine.vm;
    let one = |changed: Changed| Vec::from([changed]);
    [
        vm.change_map(0, &mut 0, |p2m, _| p2m.map_ram(page, hpa, true).map(one)).unwrap(),
        vm.change_map(0, &mut 0, |p2m, _| p2m.unmap(around).map(one)).unwrap(),
    ]
}

#[test]
fn tables_that_a_change_replaces_are_freed() {
    let machine = Machine::new(&[]);
    let _first = come_and_go(&machine);
    let frames = machine.vm.memory.read().host.tables.in_use();
    for _ in 0..50 {
        let _again = come_and_go(&machine);
    }
    assert_eq!(machine.vm.memory.read().host.tables.in_use(), frames);
}

#[test]
fn others_are_told_of_what_goes_and_not_of_what_comes() {
    let machine = Machine::new(&[]);
    let others = Arc::new(Told::default());
    machine.vm.shootdown.call_once(|| others.clone());
    let [comes, goes] = come_and_go(&machine);
    assert_eq!(comes, MapChanges::default());
    assert_eq!((goes, others.0.load(Ordering::Relaxed)), (MapChanges { flush: true, root: false }, 1));
}
