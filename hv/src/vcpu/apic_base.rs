//! WRMSR of APIC_BASE, as far as it concerns more than the local APIC: where the registers appear, CPUID, CR8, addresses.
//!
//! The page may be anywhere. Where it covers something ([`Covered`]) the P2m leads to the device bus instead, for all VCPUs of
//! the VM; the bus then tells the APIC of the one from what the others find there. Intel SDM 3, 11.4.3 to 11.4.5; AMD APM 2,
//! 16.3.1 and 16.3.2.
//!
//! [`Covered`]: crate::vm::covered::Covered

use crate::arch::addr::Gpa;
use crate::vcpu::Vcpu;
use crate::vcpu::mmu::follow_changes;
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Writes; false is #GP(0). A move for which the host has no page tables left is refused, too.
#[cold]
pub fn write<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, value: u64) -> bool {
    vcpu.sync_task_priority();
    let before = vcpu.lapic.clone();
    let bits = vcpu.cpuid.limits().phys_bits;
    if vcpu.lapic.set_base(value, bits).is_err() {
        return false;
    }
    let (from, to) = (before.mmio_page(), vcpu.lapic.mmio_page());
    if from != to && !move_page(vcpu, vm, from, to) {
        vcpu.lapic = before;
        return false;
    }
    // Turning it off has reset the task priority.
    vcpu.sync_cr8();
    vm.mailboxes[vcpu.id as usize].readdress(&vcpu.lapic);
    let enabled = vcpu.lapic.hardware_enabled();
    vcpu.cpuid.set_apic(enabled);
    vcpu.request(work::INTERRUPTS | work::TIMERS);
    true
}

/// The registers appear elsewhere, or nowhere.
fn move_page<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    from: Option<Gpa>,
    to: Option<Gpa>,
) -> bool {
    let id = vcpu.id;
    let moved = vm.change_map(id, &mut vcpu.work, |p2m, covered| {
        let covers = to.map_or(Ok(None), |page| covered.cover(p2m, page, id))?;
        Ok(covers.into_iter().chain(from.and_then(|page| covered.uncover(p2m, page, id))).collect())
    });
    let Ok(changes) = moved else { return false };
    follow_changes(vcpu, changes);
    true
}
