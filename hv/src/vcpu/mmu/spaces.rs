//! Agile paging's machine `commodity` as a VCPU performs it: each address space on the engine that the policy has for it.
//!
//! The policy ([`crate::paging::policy::spaces`]) is the VM's; here is what it is told, and what follows from its answer. All VCPUs of a
//! VM use one engine at a time, so one whose address space is to be nested keeps the others from shadow tables by the set of
//! engines that it supports (`vm::translation`), as if its processor had no shadow tables for this state. A halted one
//! restricts no other.
//!
//! Loads of CR3 exit while some address space of the VM is shadow. Where one is missed nothing is wrong but the engine for a while:
//! the change of engines is right at any exit.

use super::choose::publish;
use super::{Vcpu, follow_unsync};
use crate::arch::addr::Gpa;
use crate::arch::state::{cr0, efer};
use crate::device::Tsc;
use crate::paging::engine::{Engine, Engines};
use crate::paging::policy::spaces::Spent;
use crate::vcpu::sampling::read_counter_page;
use crate::virt::{FlushScope, Virt};
use crate::vm::work;
use crate::vm::{HostMemory, Vm};
use abi::telemetry::ExitKind;

/// What a VCPU keeps of its address space.
#[derive(Debug, Default)]
pub struct SpaceEntry {
    /// Its root; `None` without paging.
    root: Option<u64>,
    /// The engine that it is to run on.
    engine: Engine,
    /// What the VCPU had run when this began, in ticks, and what shadow tables had cost it.
    ran: u64,
    cost: u64,
    /// Page faults that the guest had counted then.
    faults: u64,
    /// Loads of CR3 that have exited on nested tables.
    nested_loads: u64,
}

/// What tells the address space of a VCPU. Kernels that isolate their tables from their users have two roots for one address
/// space, side by side; they do so on Intel's processors only.
pub(in crate::vcpu) fn root<V: Virt>(vcpu: &Vcpu<V>) -> Option<u64> {
    let isolates = !vcpu.cpuid.limits().amd;
    let below = match vcpu.virt.efer() & efer::LMA != 0 {
        true if isolates => 0x1fff,
        true => 0xfff,
        false => 0x1f,
    };
    (vcpu.virt.cr0() & cr0::PG != 0).then(|| vcpu.virt.cr3() & !below)
}

/// Ticks that shadow tables have cost the VCPU so far. What an exit costs in the processor is not seen here, and taken for as much
/// as the work; and for each change to shadow tables there is one back.
fn cost<V: Virt>(vcpu: &Vcpu<V>) -> u64 {
    let exits = [ExitKind::PageFault, ExitKind::Invlpg].map(|kind| vcpu.exits.of(kind).ticks);
    let ticks = exits[0].wrapping_add(exits[1]).wrapping_add(vcpu.mmu.switches.to_shadow.ticks);
    ticks.wrapping_mul(2)
}

/// The guest has loaded CR3: the engine for its address space is found before the next entry.
#[cold]
pub(in crate::vcpu) fn loaded<V: Virt>(vcpu: &mut Vcpu<V>) {
    if vcpu.mmu.is_shadow() {
        vcpu.mmu.reload = true;
    } else {
        vcpu.mmu.space.nested_loads += 1;
        vcpu.virt.flush(FlushScope::NonGlobal);
    }
    vcpu.request(work::MMU);
}

/// Charges the time since the last call to the address space that has run, and learns the engine for the one that runs next. Once
/// for each entry for which [`work::MMU`] was set.
pub(super) fn follow<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, tsc: u64) {
    let (ran, cost, root) = (vcpu.ran_until(tsc), cost(vcpu), root(vcpu));
    read_counter_page(vcpu, vm, ran);
    let is_counted = vcpu.counter_page.is_registered();
    let faults = vcpu.counter_page.page_faults();
    let nanos = |ticks: u64| vm.clock.nanos(Tsc(ticks)).0;
    let entry = &mut vcpu.mmu.space;
    let mut spaces = vm.translation.spaces();
    let Some(spaces) = &mut *spaces else { return };
    let any = spaces.any_shadow();
    if let Some(root) = entry.root {
        let spent = Spent {
            ran: nanos(ran.wrapping_sub(entry.ran)),
            cost: nanos(cost.wrapping_sub(entry.cost)),
            faults: is_counted.then(|| faults.wrapping_sub(entry.faults)),
        };
        if spaces.charge(root, spent, vm.nanos(tsc).0) {
            vcpu.mmu.decisions.space(root, spaces.engine(root));
            let to = spaces.engine(root).name();
            log::debug!("{}: the address space at CR3 {root:#x} uses {to} tables from now on", vm.name);
        }
    }
    spaces.counts.nested_loads += core::mem::take(&mut entry.nested_loads);
    entry.engine = root.map_or(Engine::Nested, |root| spaces.engine(root));
    (entry.root, entry.ran, entry.cost, entry.faults) = (root, ran, cost, faults);
    if any != spaces.any_shadow() {
        // From now on their loads of CR3 exit, or do not any more.
        let others = vm.mailboxes.iter().filter(|mailbox| mailbox.id() != vcpu.id);
        others.for_each(|mailbox| mailbox.request(work::MMU));
    }
}

/// The engines of `supported` on which the address space is to run: without shadow tables if it is nested, and nested ones can
/// be used.
pub(super) fn allowed<V: Virt>(vcpu: &Vcpu<V>, supported: Engines) -> Engines {
    let nested = vcpu.mmu.space.engine == Engine::Nested && supported.contains(Engine::Nested);
    if nested { Engines::only(Engine::Nested) } else { supported }
}

/// Has loads of CR3 exit on nested tables as long as there is a shadow address space. After each change of the engine.
pub(super) fn watch_loads<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if !vcpu.mmu.is_shadow() {
        let exits = vm.translation.spaces().as_ref().is_some_and(|spaces| spaces.any_shadow());
        vcpu.virt.set_cr3_exits(exits);
    }
}

/// A write to a table that is write-protected has exited: whether the guest makes it, and those after it, by itself. Where the
/// processor writes there to deliver an event, which cannot be emulated, the first one is enough.
#[cold]
pub(super) fn leave_unsync<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    gpa: Gpa,
    tsc: u64,
) -> bool {
    let (now, was_delivering) = (vm.nanos(tsc).0, vcpu.virt.was_delivering());
    let memory = vm.read_memory(&mut vcpu.work);
    let flush = {
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        let Some(shadow) = &mut *shadow else { return false };
        let flush = shadow.agile_write(&memory.p2m, gpa, now, was_delivering);
        vcpu.mmu.decisions.nest(flush.is_some().into(), gpa);
        follow_unsync(vcpu, shadow);
        flush
    };
    flush.is_some_and(|flush| {
        vcpu.perform_flush(flush);
        true
    })
}

/// Has tables above level 1 write-protected again that the guest has left unchanged for long, if it is time to look.
pub(super) fn protect_unwritten<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    tsc: u64,
) {
    if vcpu.mmu.engine != Engine::Shadow {
        return;
    }
    let now = vm.nanos(tsc).0;
    let memory = vm.read_memory(&mut vcpu.work);
    let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
    let Some(shadow) = shadow.as_mut().filter(|shadow| shadow.is_upper_due(now)) else { return };
    let before = shadow.upper_counts().protected;
    let flush = shadow.agile_time(&memory.ram(), None, 0, now, false);
    vcpu.mmu.decisions.shadow(shadow.upper_counts().protected.wrapping_sub(before));
    vcpu.perform_flush(flush);
    follow_unsync(vcpu, shadow);
}

/// Whether the engine is to be looked for again before the entry after the next: others keep the VCPU from shadow tables.
pub(super) fn is_kept_back<V: Virt>(vcpu: &Vcpu<V>) -> bool {
    vcpu.mmu.space.engine == Engine::Shadow && !vcpu.mmu.is_shadow()
}

/// The VCPU waits for an interrupt: until then it keeps no other from shadow tables.
pub(in crate::vcpu) fn halt<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    if vm.translation.is_by_space() {
        publish(vcpu, vm, Engines::ALL);
        vcpu.request(work::MMU);
    }
}

/// The VM has another mode from now on.
pub(super) fn end<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>) {
    vcpu.mmu.space = SpaceEntry::default();
    let supported = vcpu.virt.engines();
    publish(vcpu, vm, supported);
    if !vcpu.mmu.is_shadow() {
        vcpu.virt.set_cr3_exits(false);
    }
}
