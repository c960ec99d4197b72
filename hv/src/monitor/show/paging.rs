//! How the guest's addresses are translated: the mode, its changes, the shadow tables.

use core::fmt::{self, Write};

use crate::monitor::view::View;
use crate::paging::shadow::Shadow;
use crate::trace::cost::Cost;
use crate::virt::Virt;
use crate::vm::HostMemory;

/// The mode of the VM, the engine of each VCPU, and what changes of it have cost.
pub fn mode<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let translation = &view.vm.translation;
    let (mode, wanted, in_force) =
        (translation.mode(), translation.wanted().name(), translation.in_force().name());
    writeln!(answer, "mode {mode}: policy requests {wanted} tables; {in_force} tables in use")?;
    for vcpu in view.vcpus.iter() {
        let (mmu, counts) = (&vcpu.mmu, vcpu.mmu.switches);
        writeln!(answer, "VCPU {}: {} tables", vcpu.id, mmu.engine().name())?;
        cost("to nested tables", counts.to_nested, answer)?;
        cost("to shadow tables", counts.to_shadow, answer)?;
        let each = |sum: u64| sum / counts.refilled.max(1);
        writeln!(
            answer,
            "refill after a change: {} times, mean {} ticks and {} faults",
            counts.refilled,
            each(counts.refill_ticks),
            each(counts.refill_faults)
        )?;
        writeln!(answer, "single instructions on nested tables: {}", counts.nested_steps)?;
    }
    Ok(())
}

fn cost(direction: &str, cost: Cost, answer: &mut dyn Write) -> fmt::Result {
    let each = cost.ticks / cost.count.max(1);
    writeln!(answer, "{direction}: {} times, mean {each} ticks, longest {}", cost.count, cost.longest)
}

/// The pool of shadow pages, and what the engine has counted.
pub fn shadow<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let Some(statistics) = view.vm.shadow.lock().as_ref().map(Shadow::statistics) else {
        return writeln!(
            answer,
            "no shadow tables so far; `mode shadow` allows {} pages of them, and {} KiB for all",
            view.vm.shadow_limit.pages,
            view.vm.shadow_limit.bytes() >> 10
        );
    };
    writeln!(answer, "{:<17} {:>12} of {}", "pages", statistics.pages, view.vm.shadow_limit.pages)?;
    for (name, count) in statistics.named().iter().filter(|(name, _)| *name != "pages") {
        writeln!(answer, "{name:<17} {count:>12}")?;
    }
    Ok(())
}
