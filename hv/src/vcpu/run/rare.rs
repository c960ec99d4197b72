//! Pending work that is rare: pages to evict, mail for other VCPUs, moves to other PCPUs, an entry that must end at once.

use crate::vcpu::host::Host;
use crate::vcpu::outcome::Return;
use crate::vcpu::{Vcpu, micro, overcommit, regions};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm, work};

/// What a guest that spins, one whose memory is mapped to caches, and one that has a pager, ask for.
#[cold]
#[inline(never)]
pub(super) fn serve_rare<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) -> Option<Return> {
    if vcpu.work & work::PAGER != 0
        && let Some(stop) = overcommit::serve(vcpu, vm, host)
    {
        return Some(Return::Stop(stop));
    }
    if vcpu.work & work::TREE != 0 {
        vcpu.work &= !work::TREE;
        micro::follow(vcpu, vm, host);
    }
    if vcpu.work & work::PHASE != 0 {
        regions::before_entry(vcpu, vm, host);
    }
    let spins = vcpu.work & work::SPIN != 0;
    (spins && vcpu.should_yield(host.others_wait())).then_some(Return::Spin)
}

/// Tells other VCPUs that they have mail.
#[cold]
pub(super) fn kick<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    cpu: &mut V::Cpu,
    host: &mut H,
) {
    vcpu.work &= !work::KICK;
    vcpu.virt.load_host_state(cpu);
    let kicks = core::mem::take(&mut vcpu.kicks);
    vm.mailboxes
        .iter()
        .filter(|mailbox| kicks >> mailbox.id() & 1 != 0)
        .for_each(|mailbox| host.kick(mailbox));
}

/// Has the next entry end before the guest's first instruction, but after the delivery of an event: for an NMI behind it.
#[cold]
pub(super) fn interrupt_entry<V: Virt, H: Host>(vcpu: &mut Vcpu<V>, cpu: &mut V::Cpu, host: &mut H) {
    vcpu.virt.load_host_state(cpu);
    host.interrupt_self();
}

/// Whether a halted VCPU goes on.
pub(super) fn wakes<V: Virt>(vcpu: &Vcpu<V>) -> bool {
    vcpu.virt.event_pending() || vcpu.has_offer() && vcpu.virt.can_take_interrupt()
}
