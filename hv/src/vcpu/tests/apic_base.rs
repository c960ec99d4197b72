//! Moving, turning off and on, and changing modes, as a guest sees it.

use super::instructions::expect_gp;
use super::{answer, rdmsr, wrmsr};
use crate::arch::addr::Gpa;
use crate::arch::msr as index;
use crate::arch::state::Gpr;
use crate::arch::{Exception, VcpuState};
use crate::paging::P2mEntry;
use crate::vcpu::apic_base::write;
use crate::vcpu::testing::Machine;
use crate::virt::{Event, Exit, FlushScope, Virt};

const PAGE: u64 = 0xfee0_0000;
const ON: u64 = 1 << 11;
const X2: u64 = 1 << 10;
const BSP: u64 = 1 << 8;
/// In the guest's RAM.
const RAM: u64 = 0x40_0000;
/// Between RAM and devices.
const HOLE: u64 = 0x8000_0000;
const GP: Event = Event::Exception(Exception::GP0);

/// A machine whose local APIC is in xAPIC mode.
fn xapic() -> Machine {
    let mut machine = Machine::new(&[]);
    let Machine { vm, vcpu, .. } = &mut machine;
    assert!(write(vcpu, vm, PAGE | BSP) && write(vcpu, vm, PAGE | ON | BSP));
    machine
}

/// What is at a guest-physical address.
fn at(machine: &Machine, gpa: u64) -> P2mEntry {
    machine.vm.memory.read().p2m.translate(Gpa(gpa))
}

/// What the guest finds there, read by 32 bits through its bus.
fn bus_read(machine: &mut Machine, gpa: u64) -> u32 {
    let Machine { vm, vcpu, host } = machine;
    let mut bus = crate::vcpu::bus::Bus::new(vm, &mut vcpu.lapic, host, 0);
    let mut bytes = [0; 4];
    bus.mmio_read(Gpa(gpa), &mut bytes);
    let _nothing_ends = bus.finish();
    u32::from_le_bytes(bytes)
}

#[test]
fn the_page_moves_over_ram_and_back() {
    let mut machine = xapic();
    machine.write(RAM + 0x30, &[1, 2, 3, 4]);
    let was = at(&machine, RAM);
    assert!(matches!(was, P2mEntry::Ram { writable: true, .. }));
    let Machine { vm, vcpu, .. } = &mut machine;
    assert!(write(vcpu, vm, RAM | ON | BSP));
    assert_eq!(vcpu.virt.flushes, [FlushScope::All]);
    assert_eq!(at(&machine, RAM), P2mEntry::Mmio);
    assert!(matches!(at(&machine, RAM + 0x1000), P2mEntry::Ram { .. }), "its neighbour stays");
    assert_eq!(bus_read(&mut machine, RAM + 0x30) & 0xff, 0x14, "the version");
    assert_eq!(bus_read(&mut machine, PAGE + 0x30), u32::MAX, "no device at the old address");
    // To a hole, and back to where it came from.
    let Machine { vm, vcpu, .. } = &mut machine;
    assert!(write(vcpu, vm, HOLE | ON | BSP));
    assert_eq!((at(&machine, RAM), at(&machine, HOLE)), (was, P2mEntry::Mmio));
    assert_eq!(machine.read(RAM + 0x30), [1, 2, 3, 4]);
    assert_eq!(bus_read(&mut machine, HOLE + 0x30) & 0xff, 0x14);
    let Machine { vm, vcpu, .. } = &mut machine;
    assert!(write(vcpu, vm, PAGE | ON | BSP));
    assert_eq!((at(&machine, HOLE), at(&machine, PAGE)), (P2mEntry::Hole, P2mEntry::Mmio));
    assert!(machine.vm.memory.read().covered.is_empty());
}

#[test]
fn other_processors_find_what_the_page_covers() {
    let mut machine = xapic();
    machine.write(RAM + 0x30, &[1, 2, 3, 4]);
    // As if a second VCPU had its registers there.
    let cover = |p2m: &mut _, covered: &mut crate::vm::covered::Covered| {
        Ok(covered.cover(p2m, Gpa(RAM), 1)?.into_iter().collect())
    };
    assert!(machine.vm.change_map(0, &mut 0, cover).unwrap().flush);
    assert_eq!(at(&machine, RAM), P2mEntry::Mmio);
    assert_eq!(bus_read(&mut machine, RAM + 0x30), 0x0403_0201);
    let Machine { vm, vcpu, host } = &mut machine;
    let mut bus = crate::vcpu::bus::Bus::new(vm, &mut vcpu.lapic, host, 0);
    bus.mmio_write(Gpa(RAM + 0x32), &[7, 8]);
    let _nothing_ends = bus.finish();
    assert_eq!(bus_read(&mut machine, RAM + 0x30), 0x0807_0201);
    // Both: the second one to leave gives the page back.
    let Machine { vm, vcpu, .. } = &mut machine;
    assert!(write(vcpu, vm, RAM | ON | BSP));
    let uncover = |p2m: &mut _, covered: &mut crate::vm::covered::Covered| {
        Ok(covered.uncover(p2m, Gpa(RAM), 1).into_iter().collect())
    };
    assert!(!vm.change_map(0, &mut 0, uncover).unwrap().flush);
    assert_eq!(bus_read(&mut machine, RAM + 0x30) & 0xff, 0x14);
    machine.vm.uncover();
    assert!(matches!(at(&machine, RAM), P2mEntry::Ram { .. }), "a reset takes all of them away");
    assert_eq!(machine.read(RAM + 0x30), [1, 2, 7, 8]);
}

#[test]
fn turned_off_it_is_gone_and_comes_back_as_after_power_up() {
    let mut machine = Machine::new(&[
        |f| wrmsr(f, index::APIC_BASE, PAGE | ON | X2 | BSP),
        |f| wrmsr(f, 0x808, 0x40),
        |f| {
            assert_eq!(f.task_priority(), 4);
            wrmsr(f, index::APIC_BASE, PAGE | BSP)
        },
        |f| {
            assert_eq!(f.task_priority(), 0, "CR8 follows");
            f.set_gpr(Gpr::Rax, 1);
            Exit::Cpuid
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rdx) >> 9 & 1, 0, "CPUID");
            wrmsr(f, index::APIC_BASE, PAGE | ON | BSP)
        },
        |f| {
            f.set_gpr(Gpr::Rax, 1);
            Exit::Cpuid
        },
        |f| {
            assert_eq!(f.gpr(Gpr::Rdx) >> 9 & 1, 1);
            rdmsr(f, index::APIC_BASE)
        },
        |f| {
            assert_eq!(answer(f), PAGE | ON | BSP);
            Exit::Shutdown
        },
    ]);
    machine.play();
    assert!(machine.vcpu.virt.delivered.is_empty());
    assert_eq!(bus_read(&mut machine, PAGE + 0xf0), 0xff, "disabled by software");
    assert_eq!(bus_read(&mut machine, PAGE + 0x80), 0);
}

#[test]
fn illegal_transitions_and_reserved_bits_fault() {
    for value in [PAGE | ON | 1, PAGE | ON | 1 << 9, 1 << 52 | ON, 1 << 48 | ON] {
        let mut machine = Machine::new(&[]);
        let Machine { vm, vcpu, .. } = &mut machine;
        assert!(!write(vcpu, vm, value), "{value:#x}");
    }
    expect_gp("permissive_msr = true\n", |f| wrmsr(f, index::APIC_BASE, PAGE | X2 | BSP));
}

#[test]
fn without_x2apic_its_bit_is_reserved() {
    const WITHOUT: &str = "cpu = { without = [\"x2apic\"] }\n";
    expect_gp(WITHOUT, |f| wrmsr(f, index::APIC_BASE, PAGE | ON | X2 | BSP));
    expect_gp(WITHOUT, |f| rdmsr(f, 0x802));
    let mut machine = Machine::with(
        "cpu = { without = [\"apic\"] }\n",
        &[
            |f| rdmsr(f, index::APIC_BASE),
            |f| {
                assert_eq!(f.delivered, [GP]);
                wrmsr(f, index::TSC_DEADLINE, 5)
            },
            |f| {
                assert_eq!(f.delivered, [GP, GP]);
                Exit::Shutdown
            },
        ],
    );
    machine.play();
}

#[test]
fn the_boot_processors_bit_is_intels_to_change() {
    for (amd, kept) in [(true, BSP), (false, 0)] {
        let mut machine = xapic();
        let Machine { vm, vcpu, .. } = &mut machine;
        vcpu.lapic.set_abilities(crate::device::lapic::Abilities {
            x2apic: true,
            tsc_deadline: true,
            bsp_writable: !amd,
        });
        assert!(write(vcpu, vm, PAGE | ON));
        assert_eq!(vcpu.lapic.base(), PAGE | ON | kept);
        assert_eq!(vcpu.lapic.is_bsp(), amd);
    }
}
