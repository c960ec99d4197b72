//! How the guest's addresses are translated: the mode, its changes, the shadow tables.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt::{self, Write};

use crate::monitor::view::View;
use crate::paging::engine::Engine;
use crate::paging::policy::spaces::Spaces;
use crate::paging::shadow::{Shadow, UpperCounts};
use crate::trace::cost::Cost;
use crate::vcpu::mmu::AgileExits;
use crate::virt::Virt;
use crate::vm::HostMemory;

/// The mode of the VM, the engine of each VCPU, and what changes of it have cost.
pub fn mode<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let translation = &view.vm.translation;
    let (mode, wanted, in_force) =
        (translation.mode(), translation.wanted().name(), translation.in_force().name());
    if translation.is_by_space() {
        writeln!(answer, "mode {mode}: the policy chooses for each address space; {in_force} tables in use")?;
    } else {
        writeln!(answer, "mode {mode}: policy requests {wanted} tables; {in_force} tables in use")?;
    }
    for vcpu in view.vcpus.iter() {
        let (mmu, counts) = (&vcpu.mmu, vcpu.mmu.switches);
        writeln!(answer, "VCPU {}: {} tables", vcpu.id, mmu.engine().name())?;
        cost("to nested tables", counts.to_nested, answer)?;
        cost("to shadow tables", counts.to_shadow, answer)?;
        if counts.to_agile.count > 0 {
            cost("to agile paging", counts.to_agile, answer)?;
        }
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

/// Address spaces by levels: tables shadowed and nested. Then what agile paging has counted.
pub fn agile<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let upper = view.vm.shadow.read().as_ref().map(Shadow::upper_counts).unwrap_or_default();
    if let Some(spaces) = &*view.vm.translation.spaces() {
        return self::spaces(spaces, &upper, answer);
    }
    if view.vm.translation.in_force() != Engine::Agile {
        return writeln!(answer, "agile paging is not in use; `mode agile` begins it");
    }
    let Some((spaces, counts)) =
        view.vm.shadow.read().as_ref().map(|shadow| (shadow.agile_spaces(), shadow.agile_counts()))
    else {
        return Ok(());
    };
    writeln!(answer, "tables shadowed/nested:  level 4  level 3  level 2  level 1   nested  own time")?;
    for space in &spaces {
        write!(answer, "CR3 {:#018x} ", space.root.base().0)?;
        for (shadowed, nested) in space.levels.iter().rev() {
            write!(answer, " {shadowed:>4}/{nested:<3}")?;
        }
        let (shadowed, nested) = space.levels.iter().fold((0, 0), |sum, at| (sum.0 + at.0, sum.1 + at.1));
        let share = 100 * nested / (shadowed + nested).max(1);
        writeln!(answer, " {share:>5} %  {} ms", space.own / 1_000_000)?;
    }
    let sum = view.vcpus.iter().fold(AgileExits::default(), |sum, vcpu| sum.and(vcpu.mmu.agile.exits));
    for (name, count) in counts.named().into_iter().chain(sum.named()) {
        writeln!(answer, "{name:<17} {count:>12}")?;
    }
    cached_roots(sum.root_hits, sum.root_misses, answer)
}

/// How many of the guest's loads of CR3 the proposed processor's cache of eight roots would have answered.
fn cached_roots(hits: u64, misses: u64, answer: &mut dyn Write) -> fmt::Result {
    let loads = hits.saturating_add(misses);
    if loads == 0 {
        return writeln!(answer, "cache of roots: CR3 was not loaded so far");
    }
    let tenths = u128::from(hits) * 1000 / u128::from(loads);
    let (whole, tenth) = (tenths / 10, tenths % 10);
    writeln!(answer, "cache of roots: {hits} of {loads} loads of CR3 hit, {whole}.{tenth} %")
}

/// Address spaces that are nested or shadow as a whole, those that have run for longest first.
fn spaces(spaces: &Spaces, upper: &UpperCounts, answer: &mut dyn Write) -> fmt::Result {
    writeln!(answer, "address space          tables      own time  cost of shadow tables  changes")?;
    let mut all: Vec<_> = spaces.iter().collect();
    all.sort_by_key(|space| Reverse(space.total.ran));
    for space in all {
        let (name, own) = (space.engine.name(), space.total.ran / 1_000_000);
        let cost = space.total.cost / 1_000_000;
        let (root, changes) = (space.root, space.changes);
        writeln!(answer, "CR3 {root:#018x} {name:>6} {own:>10} ms {cost:>19} ms {changes:>8}")?;
    }
    for (name, count) in spaces.counts.named().into_iter().chain(upper.named()) {
        writeln!(answer, "{name:<17} {count:>12}")?;
    }
    Ok(())
}

/// The pool of shadow pages, and what the engine has counted.
pub fn shadow<V: Virt, M: HostMemory>(view: &View<'_, V, M>, answer: &mut dyn Write) -> fmt::Result {
    let Some(statistics) = view.vm.shadow.read().as_ref().map(Shadow::statistics) else {
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
