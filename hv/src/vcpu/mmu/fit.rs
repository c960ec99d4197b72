//! The tables that a processor can run the guest on, where not every processor can use either in every mode of the guest: VT-x
//! without EPT, or without unrestricted guests, or with a guest in real mode, which has no shadow tables.

use alloc::string::ToString;

use super::fault::no_memory;
use super::{Paging, switch};
use crate::vcpu::Vcpu;
use crate::vcpu::dispatch::died;
use crate::vcpu::outcome::{Cause, Stop};
use crate::virt::Virt;
use crate::vm::{HostMemory, Vm};

/// Whether the processor can run the guest on these tables as it is now.
pub(super) fn runs_on<V: Virt>(virt: &V, paging: Paging) -> bool {
    match paging {
        Paging::Nested => virt.runs_nested(),
        Paging::Shadow => virt.runs_shadow(),
    }
}

/// Changes to the tables that are `due` (or wanted already), or to the other ones for as long as the processor cannot run the
/// guest on those. The end of a guest that it cannot run at all.
pub(super) fn fit<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    due: Option<Paging>,
    tsc: impl Fn() -> u64,
) -> Result<(), Stop> {
    let wanted = due.unwrap_or(vcpu.mmu.wanted());
    let Some(to) = [wanted, wanted.other()].into_iter().find(|&paging| runs_on(&vcpu.virt, paging)) else {
        let what = "this processor cannot run guests in real mode (it has no unrestricted guests); start the guest in \
                    32-bit or 64-bit mode";
        return Err(died(vcpu, Cause::InvalidState, what.to_string()));
    };
    switch(vcpu, vm, to, tsc).map_err(|error| no_memory(vcpu, error))?;
    vcpu.mmu.displaced = to != wanted;
    Ok(())
}
