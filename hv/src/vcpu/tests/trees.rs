//! VCPUs that run on different sets of tables.

use crate::arch::addr::{Gpa, Gva};
use crate::arch::state::{cr0, cr4, efer};
use crate::paging::policy::Mode;
use crate::paging::tree_key::TreeKey;
use crate::vcpu::mmu::{page_fault, serve, set_mode, set_tree};
use crate::vcpu::outcome::Outcome;
use crate::vcpu::testing::Machine;
use crate::virt::{FlushScope, Roots};
use crate::vm::{Memory, work};

#[test]
fn a_vcpu_runs_on_the_tables_of_its_key_with_either_engine() {
    let mut machine = Machine::with("shadow_pages = 16\n", &[]);
    let key = TreeKey::new(2, 1).unwrap();
    let nested = {
        let mut memory = machine.vm.memory.write();
        let Memory { p2m, nested, host, .. } = &mut *memory;
        nested.add(key, host.clone(), p2m).unwrap();
        [TreeKey::FIRST, key].map(|key| nested.root(key))
    };
    assert_ne!(nested[0], nested[1]);
    let Machine { vm, vcpu, .. } = &mut machine;
    set_tree(vcpu, vm, key);
    assert_eq!(vcpu.virt.roots, Some(Roots::Nested(nested[1])));
    assert_eq!(vcpu.virt.flushes, [FlushScope::All]);
    set_mode(vcpu, vm, Mode::Shadow, || 0).unwrap();
    let mut shadow = [vcpu.virt.roots.take()].to_vec();
    for tree in [TreeKey::FIRST, key, key] {
        set_tree(vcpu, vm, tree);
        serve(vcpu, vm, || 0).unwrap();
        shadow.push(vcpu.virt.roots);
    }
    assert!(matches!(shadow[0], Some(Roots::Shadow(_))) && shadow[0] != shadow[1], "{shadow:?}");
    assert_eq!([shadow[2], shadow[3]], [shadow[0], shadow[0]], "found again");
    set_mode(vcpu, vm, Mode::Nested, || 0).unwrap();
    assert_eq!(vcpu.virt.roots, Some(Roots::Nested(nested[1])));
}

#[test]
fn tables_that_the_guest_writes_are_compared_at_a_change_only_after_a_fault_of_its_own() {
    let mut machine = Machine::with("shadow_pages = 16\n", &[]);
    // Four levels; the page at 8000 is mapped, and that at 9000 is not.
    for (at, entry) in [(0x2_0000, 0x2_1027), (0x2_1000, 0x2_2027), (0x2_2000, 0x2_3027), (0x2_3040, 0x8067)]
    {
        machine.write(at, &u64::to_le_bytes(entry));
    }
    let regs = &mut machine.vcpu.virt.regs;
    (regs.cr0, regs.cr3, regs.cr4) = (regs.cr0 | cr0::PG, 0x2_0000, regs.cr4 | cr4::PAE);
    regs.efer = efer::LME | efer::LMA | efer::NXE;
    let Machine { vm, vcpu, host, .. } = &mut machine;
    set_mode(vcpu, vm, Mode::Shadow, || 0).unwrap();
    let trees = [TreeKey::FIRST, TreeKey::new(1, 0).unwrap()];
    for tree in trees {
        set_tree(vcpu, vm, tree);
        serve(vcpu, vm, || 0).unwrap();
        assert!(matches!(page_fault(vcpu, vm, host, Gva(0x8000), 0, true, 0), Outcome::Resume));
    }
    {
        let (memory, mut shadow) = (vm.memory.read(), vm.shadow.write());
        let shadow = shadow.as_mut().unwrap();
        let flush = shadow.make_unsync(&memory.p2m, &memory.ram(), Gpa(0x2_3000));
        assert!(flush.is_some(), "it was write-protected");
    }
    let mut must_load = |faults: bool, tree: TreeKey| {
        if faults {
            let outcome = page_fault(vcpu, vm, host, Gva(0x9000), 0, true, 0);
            assert!(matches!(outcome, Outcome::Resume));
        }
        set_tree(vcpu, vm, tree);
        let must_load = vcpu.work & work::MMU != 0;
        serve(vcpu, vm, || 0).unwrap();
        must_load
    };
    let changes = [(false, 0), (false, 1), (true, 0), (false, 1), (false, 0)];
    assert_eq!(
        changes.map(|(faults, tree)| must_load(faults, trees[tree])),
        [false, false, true, false, false]
    );
}
