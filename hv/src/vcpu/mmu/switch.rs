//! The change from nested to shadow tables and back, at any exit.
//!
//! To nested: the nested tables were kept, so that nothing needs to be built; their dirty bits are cleared where the guest has
//! its tables. To shadow: the guest may have written its tables unseen, so that the shadow pages of those that are dirty are
//! compared; without dirty bits all are dropped, and filled again by faults. Everything else (events on their
//! way, registers) stays as it is: the backend shows the guest's registers in either mode.

use super::{NestedStep, RefillWindow, follow_pat, follow_unsync, load, shadowed_registers};
use crate::paging::MapError;
use crate::paging::engine::Engine;
use crate::paging::shadow::{Shadow, Tuning};
use crate::paging::tree_key::TreeKey;
use crate::trace::cost::Cost;
use crate::vcpu::Vcpu;
use crate::virt::{FlushScope, Roots, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, MapChanges, Vm};

/// How often the tables were changed, and what the hypervisor's work for that cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// To nested tables.
    pub to_nested: Cost,
    /// To shadow tables, without the faults that fill them afterwards.
    pub to_shadow: Cost,
    /// To agile paging, likewise.
    pub to_agile: Cost,
    /// Of the changes: those for a single instruction that only nested tables could let pass.
    pub nested_steps: u64,
    /// Changes to shadow tables that faults had filled again before the next change.
    pub refilled: u64,
    /// Host TSC ticks that this took, together.
    pub refill_ticks: u64,
    /// Faults during that time, together.
    pub refill_faults: u64,
}

/// Makes the pool of shadow pages, if there is none.
pub(super) fn prepare<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Result<(), MapError> {
    let memory = vm.read_memory(&mut vcpu.work).host.clone();
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    if shadow.is_none() {
        let bits = vm.paging_features.physical_bits;
        let mut tables = Shadow::new(memory, vm.shadow_limit, bits, Tuning::default())?;
        if let Some(others) = vm.shootdown.get() {
            tables.share(vm.mailboxes.len(), others.clone());
        }
        *shadow = Some(tables);
    }
    Ok(())
}

/// Makes the VM's other VCPUs change, too, before their next entry: none of them may write the guest's tables unseen while another
/// runs on shadow tables. When it returns none runs on the tables that were in use before. The caller holds the shadow tables.
fn switch_others<V: Virt, M: HostMemory>(vcpu: &Vcpu<V>, vm: &Vm<V::NestedFormat, M>, to: Engine) {
    let changed = vm.translation.enforce(to);
    if let Some(others) = vm.shootdown.get().filter(|_| changed) {
        let all = vm.mailboxes.iter().filter(|mailbox| mailbox.id() != vcpu.id);
        all.for_each(|mailbox| mailbox.request(work::MMU));
        others.request(false);
    }
}

/// Changes to the tables that the VM uses, if another VCPU has changed them.
pub(super) fn follow<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if vm.shootdown.get().is_none() {
        return;
    }
    let now = vm.translation.in_force();
    if vcpu.mmu.engine != now {
        // One that was about to execute its instruction finds its fault again.
        vcpu.mmu.nested_step = NestedStep::None;
        adopt(vcpu, vm, now);
    }
}

/// Gives back the memory of the shadow tables, which no VCPU uses, after the monitor's `mode nested`.
pub(super) fn give_back<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    // The engine in force changes under this lock alone.
    if vm.translation.in_force() == Engine::Nested
        && let Some(shadow) = &mut *shadow
    {
        let _flushed_with_the_next_root = shadow.give_back();
    }
}

/// Uses other tables from the next entry on.
fn adopt<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, to: Engine) {
    vcpu.mmu.engine = to;
    match to {
        Engine::Nested => {
            let root = vm.read_memory(&mut vcpu.work).nested.root(vcpu.mmu.tree);
            vcpu.virt.set_paging(Roots::Nested(root));
            vcpu.virt.set_agile(None);
            if let Some(shadow) = &mut *vm.lock_shadow(vcpu.id, &mut vcpu.work) {
                shadow.leave();
            }
            vcpu.mmu.refill_window = None;
            // A shadow root that was to be found before the next entry is not wanted any more.
            vcpu.mmu.reload = false;
        }
        Engine::Shadow | Engine::Agile => {
            vcpu.virt.set_agile(None);
            // From one kind of shadow tables to the other the processor keeps what it has otherwise.
            vcpu.virt.flush(FlushScope::All);
            if vcpu.mmu.tree != TreeKey::FIRST {
                if to == Engine::Agile && vcpu.mmu.tree.is_of_phase() {
                    // It has no phases: this one ends before the entry after the next, and the VCPU changes to the tables of its domain.
                    vcpu.mmu.tree = TreeKey::FIRST;
                }
                if let Some(shadow) = &mut *vm.lock_shadow(vcpu.id, &mut vcpu.work) {
                    shadow.select(vcpu.mmu.tree);
                }
            }
            follow_pat(vcpu, vm);
            load(vcpu, vm);
            // For what is guarded.
            vcpu.request(work::MMU);
            vcpu.mmu.refill_window = (to == Engine::Shadow).then(|| RefillWindow::new(vm.clock.tsc_khz()));
        }
    }
}

/// The shadow engine finds the VCPU's roots by its key from now on. True: on shadow tables the root was in use lately, nothing else is due, and the
/// processor has it; a VCPU that goes to and fro between two cache domains goes on by this.
#[inline(always)]
fn select<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) -> bool {
    // Without a root here one is loaded, which brings everything in step.
    let faults = vcpu.interrupts.counts.exceptions;
    let has_faulted = core::mem::replace(&mut vcpu.mmu.faults_in_step, faults) != faults;
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = &mut *shadow else { return false };
    let tree = vcpu.mmu.tree;
    // A root that is to be loaded may be another one than registers say.
    if vcpu.mmu.engine != Engine::Shadow || vcpu.mmu.reload {
        shadow.select(tree);
        return false;
    }
    let registers = shadowed_registers(vcpu, vcpu.virt.cr0());
    let Some(root) = shadow.load_in_tree(tree, &registers, has_faulted) else { return false };
    vcpu.virt.set_paging(Roots::Shadow(root.frame.base()));
    true
}

/// The VCPU runs on the tables of this key from its next entry on, with either engine. Nested tables of the key are there
/// ([`NestedTrees::add`](crate::paging::nested_trees::NestedTrees::add)), or it runs on the first; a shadow root is found or made.
#[inline(always)]
pub fn set_tree<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, tree: TreeKey) {
    if vcpu.mmu.tree == tree {
        return;
    }
    vcpu.mmu.tree = tree;
    let has_root = select(vcpu, vm);
    match vcpu.mmu.engine {
        Engine::Nested => {
            let root = vm.read_memory(&mut vcpu.work).nested.root(tree);
            vcpu.virt.set_paging(Roots::Nested(root));
        }
        Engine::Shadow | Engine::Agile if has_root => {}
        Engine::Shadow | Engine::Agile => vcpu.request_root(),
    }
    vcpu.virt.flush(FlushScope::All);
}

/// Has the VCPU's processor forget what a change of the guest-physical address space has made wrong.
#[inline(always)]
pub fn follow_changes<V: Virt>(vcpu: &mut Vcpu<V>, changes: MapChanges) {
    if changes.flush {
        vcpu.virt.flush(FlushScope::All);
    }
    if changes.root {
        vcpu.request_root();
    }
}

/// All VCPUs change to nested tables, which tell from then on which of the guest's tables are written.
fn switch_all_to_nested<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    // No VCPU comes to the nested tables while their dirty bits are being cleared.
    let mut memory = vcpu.virt.sets_dirty_bits().then(|| vm.lock_memory(&mut vcpu.work));
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    // Where another VCPU was first, the guest may have written its tables since, and the dirty bits must stay.
    let before = vm.translation.in_force();
    let is_first = before != Engine::Nested;
    switch_others(vcpu, vm, Engine::Nested);
    if let Some(shadow) = &mut *shadow {
        let _no_vcpu_runs_on_these_tables = shadow.end_agile();
    }
    if let (true, Some(memory), Some(shadow)) = (is_first, &mut memory, &*shadow) {
        memory.nested.start_dirty_log(shadow.tables());
    }
}

/// All VCPUs change to shadow tables or to agile paging. What is kept of the tables is right again.
fn switch_all_to_shadow<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, to: Engine) {
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    // At its start a VCPU is on nested tables while the VM may be on shadow tables: no writes were logged then.
    let before = vm.translation.in_force();
    let has_dirty_log = vcpu.virt.sets_dirty_bits() && before == Engine::Nested;
    switch_others(vcpu, vm, to);
    let Some(shadow) = &mut *shadow else { return };
    let bits = vm.paging_features.physical_bits;
    let _the_root_is_loaded_next = if before != to && before.is_shadow() {
        // The guest has written no table unseen but those that were nested.
        shadow.end_agile()
    } else if has_dirty_log {
        shadow.resume(&memory.p2m, &memory.ram(), bits, |page| memory.nested.is_written(page))
    } else {
        shadow.drop_everything()
    };
    let _every_vcpu_flushes = if to == Engine::Agile {
        shadow.begin_agile(vm.translation.agile_times(), bits, &memory.ram())
    } else {
        shadow.set_upper(vm.translation.upper_times(), bits, &memory.ram())
    };
}

/// Tables above level 1 stay unsync, or do not any more, as the VM's mode is now. On other tables than shadow ones that follows with
/// the change to these.
pub(super) fn follow_upper<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if vcpu.mmu.engine != Engine::Shadow {
        return;
    }
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = &mut *shadow else { return };
    let (times, bits) = (vm.translation.upper_times(), vm.paging_features.physical_bits);
    let flush = shadow.set_upper(times, bits, &memory.ram());
    vcpu.perform_flush(flush);
    follow_unsync(vcpu, shadow);
}

/// Changes the tables that translate from the next entry on. Fails only for want of host memory, the first time that
/// shadow tables are used; then nothing has changed.
pub fn switch<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    to: Engine,
    tsc: impl Fn() -> u64,
) -> Result<(), MapError> {
    if vcpu.mmu.engine == to {
        return Ok(());
    }
    let begin = tsc();
    if to.is_shadow() {
        prepare(vcpu, vm)?;
    }
    match to {
        Engine::Nested => switch_all_to_nested(vcpu, vm),
        Engine::Shadow | Engine::Agile => switch_all_to_shadow(vcpu, vm, to),
    }
    adopt(vcpu, vm, to);
    let ticks = tsc().wrapping_sub(begin);
    let counts = &mut vcpu.mmu.switches;
    match to {
        Engine::Nested => counts.to_nested.add(ticks),
        Engine::Shadow => counts.to_shadow.add(ticks),
        Engine::Agile => counts.to_agile.add(ticks),
    }
    log::debug!("{}: VCPU {} uses {} tables, after {ticks} ticks of work", vm.name, vcpu.id, to.name());
    Ok(())
}
