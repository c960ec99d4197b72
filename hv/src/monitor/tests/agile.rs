//! What the monitor says of agile paging.

use super::model::answer;
use super::session::long_mode;
use crate::arch::RegMove;
use crate::arch::state::{Gpr, VcpuState, cr0};
use crate::paging::policy::spaces::Spent;
use crate::paging::shadow::Limit;
use crate::vcpu::mmu::set_mode;
use crate::vcpu::testing::{CODE, Machine, START, Scene};
use crate::virt::Exit;
use crate::virt::fake::Fake;

#[test]
fn address_spaces_are_shown_with_their_tables() {
    let mut scene = long_mode();
    scene.vm.shadow_limit = Limit::pages(16);
    assert!(answer(&mut scene, "agile").starts_with("agile paging is not in use"));
    let text = answer(&mut scene, "mode agile,machine=commodity,start_ms=7");
    let expected = "mode agile,machine=commodity,start_ms=7: the policy chooses for each address space; nested tables in use\n";
    assert!(text.starts_with(expected), "{text}");
    for (root, ms) in [(0x5000, 6), (0x1000, 8)] {
        let mut spaces = scene.vm.translation.spaces();
        let spent = Spent { ran: ms * 1_000_000, cost: 0, faults: None };
        let _moved = spaces.as_mut().unwrap().charge(root, spent, 0);
    }
    let text = answer(&mut scene, "agile");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["CR3", "0x0000000000001000", "shadow", "8", "ms", "0", "ms", "1"], "{text}");
    assert_eq!(lines[2], ["CR3", "0x0000000000005000", "nested", "6", "ms", "0", "ms", "0"], "{text}");
    assert_eq!(lines[3], ["spaces_to_shadow", "1"], "{text}");
}

/// MOV CR3 to this root.
fn load(f: &mut Fake, cr3: u64) -> Exit {
    f.set_gpr(Gpr::Rax, cr3);
    f.next_rip = Some(CODE);
    Exit::ControlReg(RegMove { index: 3, write: true, gpr: Some(Gpr::Rax) })
}

#[test]
fn the_cache_of_roots_is_told_by_its_hits() {
    let mut machine = Machine::with(
        "shadow_pages = 64\n",
        &[
            |f| load(f, 0x6000),
            |f| load(f, 0x5000),
            |f| load(f, 0x6000),
            |f| load(f, 0x5000),
            |f| load(f, 0x6000),
            // It was not used before.
            |f| load(f, 0x7000),
            |_| Exit::Shutdown,
        ],
    );
    machine.vcpu.virt.regs.cr3 = 0x5000;
    machine.vcpu.virt.regs.cr0 |= cr0::PG;
    set_mode(&mut machine.vcpu, &machine.vm, "agile,start_ms=0".parse().unwrap(), || START).unwrap();
    let mut scene = Scene { vm: machine.vm, vcpus: [machine.vcpu] };
    let text = answer(&mut scene, "agile");
    assert!(text.ends_with("\ncache of roots: CR3 was not loaded so far\n"), "{text}");
    let Scene { vm, vcpus: [vcpu] } = scene;
    let mut machine = Machine { vm, vcpu, host: machine.host };
    machine.play();
    let mut scene = Scene { vm: machine.vm, vcpus: [machine.vcpu] };
    let text = answer(&mut scene, "agile");
    // The root that was in use from the start is loaded for the first time, too.
    assert!(text.ends_with("\ncache of roots: 3 of 6 loads of CR3 hit, 50.0 %\n"), "{text}");
}
