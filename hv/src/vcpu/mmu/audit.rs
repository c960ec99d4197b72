//! Checks of the shadow tables before entries (`audit_shadow`), to debug the engine.

use alloc::format;
use core::num::NonZeroU32;

use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::died;
use crate::vcpu::outcome::{Cause, Stop};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// When the next check is due. One looks at all shadow pages, so that people may want fewer than one for each entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Audit {
    every: NonZeroU32,
    entries: u32,
}

impl Audit {
    /// Checks before every `every`-th entry.
    pub(super) fn new(every: NonZeroU32) -> Audit {
        Audit { every, entries: 0 }
    }
}

/// Checks the tables in use, if they are shadow tables and it is time to; the end of a guest for which they are wrong.
pub(super) fn check<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Result<(), Stop> {
    let shadow_in_use = vcpu.mmu.is_shadow();
    let Some(audit) = vcpu.mmu.audit.as_mut().filter(|_| shadow_in_use) else { return Ok(()) };
    audit.entries = (audit.entries + 1) % audit.every;
    if audit.entries != 0 {
        return Ok(());
    }
    let state = super::shadowed_state(vcpu, vm);
    let memory = vm.read_memory(&mut vcpu.work);
    let checked = {
        let shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        let Some(shadow) = &*shadow else { return Ok(()) };
        shadow.check(&memory.p2m, &memory.ram(), &state)
    };
    checked.map_err(|disagreement| {
        died(vcpu, Cause::ShadowDisagreement, format!("the shadow tables are wrong: {disagreement}"))
    })
}
