//! A VCPU's part in paging for an overcommitted VM: it evicts what its accesses have pushed out, and ends if that fails.
//!
//! Pages come in wherever guest memory is accessed, mostly deep in a walk or a device, with locks held. So nothing is evicted there;
//! the places that follow such accesses ask for it ([`note`]), and the run loop does it before the next entry ([`serve`]).

use alloc::format;

use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::died;
use crate::vcpu::host::Host;
use crate::vcpu::mmu::follow_changes;
use crate::vcpu::outcome::{Cause, Stop};
use crate::virt::Virt;
use crate::vm::work;
use crate::vm::{HostMemory, Vm};

/// Batches between two looks at what else there is to do.
const MOST_BATCHES: u32 = 4;

/// After accesses to guest memory: has the run loop evict or discard if that is due.
#[inline(always)]
pub(super) fn note<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if vm.wants_pager() {
        vcpu.request(work::PAGER);
    }
}

/// The end of a VM that cannot have all its pages, if so. An access to one of them has found nothing, which the guest must not see.
#[inline]
pub(super) fn failure<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> Option<Stop> {
    let failure = vm.pager.as_ref()?.failure()?;
    Some(died(vcpu, Cause::OutOfMemory, format!("{failure}")))
}

/// Evicts, or ends the VM.
#[cold]
pub(super) fn serve<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) -> Option<Stop> {
    vcpu.work &= !work::PAGER;
    for _ in 0..MOST_BATCHES {
        if let Some(stop) = failure(vcpu, vm) {
            return Some(stop);
        }
        if vm.virtio.has_named() {
            let changes = vm.discard(vcpu.id, &mut vcpu.work);
            follow_changes(vcpu, changes);
            if !vm.virtio.has_named() {
                // The balloon is served again before the guest goes on, or the VCPU is idle.
                vcpu.request(work::MAIL);
            }
        }
        if !vm.wants_pager() || host.is_wanted() {
            break;
        }
        let changes = vm.evict(vcpu.id, &mut vcpu.work);
        follow_changes(vcpu, changes);
    }
    // The rest comes after the next exit.
    note(vcpu, vm);
    // Another VCPU was at work. The last one to look finds its pages stored.
    if vm.virtio.has_named() {
        vcpu.request(work::PAGER);
    }
    None
}
