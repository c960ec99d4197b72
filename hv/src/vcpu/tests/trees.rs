//! VCPUs that run on different sets of tables.

use crate::paging::policy::Mode;
use crate::paging::tree_key::TreeKey;
use crate::vcpu::mmu::{serve, set_mode, set_tree};
use crate::vcpu::testing::Machine;
use crate::virt::{FlushScope, Roots};
use crate::vm::Memory;

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
