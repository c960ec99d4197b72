//! The engine for the next entry: what the VM's policy wants, as far as the processor can run the guest on it.
//!
//! Not every processor can use either engine in every state of the guest: VT-x without EPT, or without unrestricted guests, or
//! with a guest in real mode, which has no shadow tables. A VCPU in a phase of regioning ([`crate::vcpu::regions`]) does not use agile
//! paging, which has no tables for that.

use alloc::string::ToString;

use super::{NestedStep, spaces};
use crate::paging::engine::{Engine, Engines};
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::died;
use crate::vcpu::outcome::{Cause, Stop};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// The engine to change to, if it may be another one than that in use. The end of a guest that the processor cannot run at
/// all.
pub(super) fn choose<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Result<Option<Engine>, Stop> {
    match vcpu.mmu.nested_step {
        // No change between here and the instruction that it was armed for.
        NestedStep::Armed => {
            vcpu.mmu.nested_step = NestedStep::Done;
            return Ok(None);
        }
        NestedStep::Done => vcpu.mmu.nested_step = NestedStep::None,
        NestedStep::None
            if V::UNRESTRICTED
                && !vm.translation.counts_exits()
                && !vm.translation.is_by_space()
                && vcpu.mmu.engine == vm.translation.wanted()
                && !is_kept_from_agile(vcpu) =>
        {
            // Whatever kept it from an engine is over.
            publish(vcpu, vm, Engines::ALL);
            return Ok(None);
        }
        NestedStep::None => {}
    }
    if vm.translation.count_exit() {
        // Those that cannot use what is wanted now say so at their next entry.
        let others = vm.mailboxes.iter().filter(|mailbox| mailbox.id() != vcpu.id);
        others.for_each(|mailbox| mailbox.request(crate::vm::work::MMU));
    }
    let mut supported = vcpu.virt.engines();
    if vm.translation.is_by_space() {
        supported = spaces::allowed(vcpu, supported);
    }
    if vcpu.phase.is_on() {
        supported = supported.without(Engine::Agile);
    }
    publish(vcpu, vm, supported);
    let target = vm.translation.target(supported).ok_or_else(|| {
        let what = "this processor cannot run guests in real mode (it has no unrestricted guests); start the guest in \
                    32-bit or 64-bit mode";
        died(vcpu, Cause::InvalidState, what.to_string())
    })?;
    Ok((target != vcpu.mmu.engine).then_some(target))
}

/// Whether it is in a phase of regioning, for which agile paging has no tables, and has not left that yet.
fn is_kept_from_agile<V: Virt>(vcpu: &Vcpu<V>) -> bool {
    vcpu.mmu.engine == Engine::Agile && vcpu.phase.is_on()
}

/// Tells the VM on which engines this VCPU can run now.
pub(super) fn publish<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    supported: Engines,
) {
    if vcpu.mmu.supported != supported {
        vm.translation.publish(vcpu.id, vcpu.mmu.supported, supported);
        vcpu.mmu.supported = supported;
    }
}

/// Whether [`choose`] has something to do before the entry after the next.
pub(super) fn wants_each_entry<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> bool {
    vm.translation.counts_exits()
        || vcpu.mmu.nested_step != NestedStep::None
        || vcpu.mmu.engine == Engine::Agile
        || vcpu.mmu.engine != vm.translation.wanted()
            && (!vm.translation.is_by_space() || spaces::is_kept_back(vcpu))
}
