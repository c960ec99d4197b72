//! Machine time while exits stand in for what the processor that agile paging is for does by itself.

use crate::arch::RegMove;
use crate::arch::state::{Gpr, cr0};
use crate::vcpu::mmu::set_mode;
use crate::vcpu::testing::{CODE, Machine, START};
use crate::virt::fake::{Fake, Step};
use crate::virt::{Exit, Virt};

/// Ticks that each reading of the clock takes: an exit takes several of them.
const SLOW: u64 = 1000;

/// Plays exits on agile paging; how far the guest's TSC stands behind the host's afterwards, beyond the machine's start.
fn stood_still(stops: bool, script: &[Step]) -> u64 {
    let mut machine = Machine::with("shadow_pages = 16\n", script);
    machine.vcpu.virt.regs.cr3 = 0x5000;
    machine.vcpu.virt.regs.cr0 |= cr0::PG;
    machine.vm.stops_at_stand_ins = stops;
    set_mode(&mut machine.vcpu, &machine.vm, "agile,start_ms=0".parse().unwrap(), || START).unwrap();
    machine.host.slow = SLOW;
    machine.play();
    let behind = machine.vcpu.virt.tsc_offset().wrapping_neg();
    assert_eq!(machine.vm.start.tsc(), behind, "the guest's TSC and machine time stay together");
    behind - START
}

fn read_cr3(f: &mut Fake) -> Exit {
    f.next_rip = Some(CODE);
    Exit::ControlReg(RegMove { index: 3, write: false, gpr: Some(Gpr::Rax) })
}

#[test]
fn machine_time_is_stopped_during_stand_ins_alone() {
    let none = stood_still(true, &[|_| Exit::Cpuid, |_| Exit::Cpuid, |_| Exit::Shutdown]);
    assert_eq!(none, 0, "CPUID exits on the proposed processor, too");
    let one = stood_still(true, &[|_| Exit::Cpuid, read_cr3, |_| Exit::Shutdown]);
    assert!(one >= 2 * SLOW, "{one} ticks for a stand-in");
    let two = stood_still(true, &[read_cr3, read_cr3, |_| Exit::Cpuid, |_| Exit::Shutdown]);
    assert!(two > one, "{two} ticks for two, {one} for one");
    let real = stood_still(false, &[|_| Exit::Cpuid, read_cr3, |_| Exit::Shutdown]);
    assert_eq!(real, 0, "a real machine's time goes on");
}
