//! The page that shadow tables must guard, on a processor that executes task switches although they are intercepted
//! ([`Virt::guarded_page`]).
//!
//! Which page it is follows from the guest's registers: it is looked for before each entry while there is one, and after
//! changes of CR0.PE, CR0.PG and the engine, by which one can come about.

use crate::vcpu::Vcpu;
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Has the shadow tables, if they are in use, guard the page that the guest's registers ask for.
pub(super) fn follow<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if !vcpu.mmu.is_shadow() {
        return;
    }
    let page = vcpu.virt.guarded_page();
    if page == vcpu.mmu.guarded {
        return;
    }
    let changed = {
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        shadow.as_mut().map(|shadow| shadow.guard(vcpu.id, page))
    };
    let Some((reload, flush)) = changed else { return };
    vcpu.mmu.guarded = page;
    vcpu.perform_flush(flush);
    vcpu.mmu.reload |= reload.is_some();
}
