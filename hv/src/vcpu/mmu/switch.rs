//! The change from nested to shadow tables and back, at any exit.
//!
//! To nested: the nested tables were kept, so that nothing needs to be built. To shadow: the guest may have written its
//! tables unseen, so that all shadow pages are dropped and filled again by faults. Everything else (events on their
//! way, registers) stays as it is: the backend shows the guest's registers in either mode.

use super::{Paging, Settling, follow_pat, load};
use crate::guest::vm::{HostMemory, Vm};
use crate::paging::MapError;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::shadow::{Shadow, Tuning};
use crate::vcpu::Vcpu;
use crate::virt::{Roots, Virt};

/// Changes in one direction. Ticks are those of the host's TSC, and of the hypervisor's work alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCost {
    /// Changes.
    pub count: u64,
    /// Ticks for all of them.
    pub ticks: u64,
    /// Ticks for the longest.
    pub longest: u64,
}

impl SwitchCost {
    fn add(&mut self, ticks: u64) {
        self.count += 1;
        self.ticks = self.ticks.wrapping_add(ticks);
        self.longest = self.longest.max(ticks);
    }
}

/// How often the tables were changed, and what that cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// To nested tables.
    pub to_nested: SwitchCost,
    /// To shadow tables, without the faults that fill them afterwards.
    pub to_shadow: SwitchCost,
    /// Of the changes: short ones for an instruction that only the nested tables could let pass.
    pub excursions: u64,
    /// Changes to shadow tables after which the rate of faults has settled before the next change.
    pub settled: u64,
    /// Host TSC ticks that this took, together.
    pub settling_ticks: u64,
    /// Faults during that time, together.
    pub settling_faults: u64,
}

/// Makes the pool of shadow pages, if there is none.
pub(super) fn prepare<F, M>(vm: &Vm<F, M>) -> Result<(), MapError>
where
    F: PteFormat<Attr = NestedAttr>,
    M: HostMemory,
{
    let mut shadow = vm.shadow.lock();
    if shadow.is_none() {
        let memory = vm.memory.read().host.clone();
        *shadow =
            Some(Shadow::new(memory, vm.shadow_pages, vm.paging_features.physical_bits, Tuning::default())?);
    }
    Ok(())
}

/// Changes the tables that translate from the next entry on. Fails only for want of host memory, the first time that
/// shadow tables are used; then nothing has changed.
pub fn switch<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    to: Paging,
    tsc: impl Fn() -> u64,
) -> Result<(), MapError> {
    if vcpu.mmu.paging == to {
        return Ok(());
    }
    let begin = tsc();
    match to {
        Paging::Nested => {
            let root = vm.memory.read().nested.root();
            vcpu.virt.set_paging(Roots::Nested(root));
            if let Some(shadow) = &mut *vm.shadow.lock() {
                shadow.leave();
            }
            vcpu.mmu.paging = to;
            vcpu.mmu.settling = None;
            // A shadow root that was to be found before the next entry is not wanted any more.
            vcpu.mmu.reload = false;
        }
        Paging::Shadow => {
            prepare(vm)?;
            if let Some(shadow) = &mut *vm.shadow.lock() {
                let _the_root_is_loaded_below = shadow.drop_everything();
            }
            vcpu.mmu.paging = to;
            follow_pat(vcpu, vm);
            load(vcpu, vm);
            vcpu.mmu.settling = Some(Settling::new(vm.clock.tsc_khz()));
        }
    }
    let ticks = tsc().wrapping_sub(begin);
    let counts = &mut vcpu.mmu.switches;
    match to {
        Paging::Nested => counts.to_nested.add(ticks),
        Paging::Shadow => counts.to_shadow.add(ticks),
    }
    log::debug!("{}: VCPU {} uses {} tables, after {ticks} ticks of work", vm.name, vcpu.id, to.name());
    Ok(())
}
