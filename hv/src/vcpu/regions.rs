//! What a VCPU does for regions that the hypervisor finds by itself: samples of accesses, and phases of regioning.
//!
//! The run loop's timers call [`tick`], which takes the VM's samples and begins this VCPU's phases when they are due. In a phase the VCPU
//! runs on nested tables of its own ([`PHASE`]), in which nothing is open at first: `memory_fault` calls [`touched`] for each page that
//! it touches there, and [`work::PHASE`] has [`before_entry`] look before each entry whether an interrupt has come in between or the
//! time is over. [`region::rounds`](crate::region::rounds) decides; what it decides is performed here and in `vm::regions`. Phases need nested tables: on
//! others nothing is done, and a VCPU that changes to others ends its phase.
//!
//! Where nobody wants regions, [`tick`] is not called, and no exit has an instruction more.

use alloc::vec::Vec;

use super::Vcpu;
use super::exit_context::ExitContext;
use super::host::Host;
use super::micro::registers;
use super::mmu::{follow_changes, set_tree};
use super::outcome::Outcome;
use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Gva, PAGE_SIZE, is_canonical};
use crate::arch::state::Gpr;
use crate::device::Tsc;
use crate::paging::MapError;
use crate::paging::engine::Engine;
use crate::paging::guest_walk::{PagingState, peek};
use crate::paging::tree_key::TreeKey;
use crate::region::history::Histories;
use crate::region::regioning::{Answer, Change, Event, Touch, Turn};
use crate::region::{Kind, Owner, Rid, Space};
use crate::virt::{FlushScope, Virt};
use crate::vm::regions::{PHASE, Records, Regions};
use crate::vm::{HostMemory, Vm, work};

/// Pages of a region that are opened at a touch, in the order in which the region got them: the next ones are likely to follow.
const AHEAD: usize = 256;
/// Pages of the current region that are open at most before pages are opened one by one.
const MOST_AHEAD: usize = 16_384;
/// Virtual time until the rest of a sample that was taken in part, and after which a VCPU looks again that could not begin its phase, in nanoseconds.
const SOON_NS: u64 = 1_000_000;
/// The same where a VCPU has no use of regions now.
const LATER_NS: u64 = 100_000_000;
/// Bytes around the stack pointer in which an access is one of the stack's.
const STACK: core::ops::Range<i64> = -0x1000..0x1_1000;

/// What a VCPU keeps of regioning.
#[derive(Debug, Default)]
pub struct OwnPhase {
    /// When it begins.
    turn: Option<Turn>,
    /// Run time at which [`tick`] has something to do, in nanoseconds.
    look_ns: u64,
    /// It is in one, which ends at this time of its own.
    end_ns: Option<u64>,
    /// Ticks since the phase began that were the hypervisor's.
    overhead: u64,
    /// Pages that are open until the current region is closed.
    open: Vec<Gfn>,
    /// Registers at the last touch that has changed the region.
    last: u64,
    /// Interrupts that the guest has taken, and whether one stood ready, when that was last looked at.
    interrupts: (u64, bool),
}

impl OwnPhase {
    /// Whether the VCPU is in a phase.
    pub fn is_on(&self) -> bool {
        self.end_ns.is_some()
    }
}

impl<V: Virt> Vcpu<V> {
    /// Nanoseconds of its phase's clock: run time without the hypervisor's own.
    fn phase_ns<M: HostMemory>(&self, vm: &Vm<V::NestedFormat, M>, tsc: u64) -> u64 {
        vm.clock.nanos(Tsc(self.ran_until(tsc).saturating_sub(self.phase.overhead))).0
    }
}

/// Does what is due at host TSC `tsc`, and returns when it wants to be called again.
#[cold]
#[inline(never)]
pub(super) fn tick<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    tsc: u64,
) -> u64 {
    let ran_ns = vm.clock.nanos(Tsc(vcpu.ran_until(tsc))).0;
    if ran_ns >= vcpu.phase.look_ns {
        vcpu.phase.look_ns = look(vcpu, vm, host, tsc, ran_ns).unwrap_or(ran_ns + LATER_NS);
    }
    let left_us = vcpu.phase.look_ns.saturating_sub(ran_ns).div_ceil(1000);
    tsc.saturating_add(left_us.saturating_mul(vm.clock.tsc_khz()) / 1000)
}

/// The same; the next time is run time in nanoseconds. `None`: there is nothing to do on these tables, or no memory for it.
fn look<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    tsc: u64,
    ran_ns: u64,
) -> Option<u64> {
    let abi::regions::Regions::On(wanted) = vm.regions.wanted() else { return None };
    if vcpu.mmu.engine() != Engine::Nested {
        return None;
    }
    let vm_ns = vm.regions.virtual_ns(ran_ns);
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    let records = Regions::records(&mut slot, vm.layout).ok()?;
    if let Err(_no_memory) = records.rounds(wanted) {
        log::warn!("{}: no host memory to look for regions", vm.name);
        return None;
    }
    let mut next_ns = u64::MAX;
    // Processors without such bits tell of no accesses: sizes stand for working sets, and nothing ages.
    if vcpu.virt.sets_dirty_bits() {
        next_ns = ran_ns + (sample(vcpu, vm, host, records, vm_ns, tsc) - vm_ns);
    }
    let params = *records.rounds.as_ref()?.params();
    let count = u16::try_from(vm.mailboxes.len()).unwrap_or(u16::MAX);
    let turn =
        vcpu.phase.turn.get_or_insert_with(|| Turn::new(vcpu.id as u16, count, ran_ns, params.period_ns));
    if turn.take(ran_ns) && !vcpu.phase.is_on() {
        begin(vcpu, vm, records, ran_ns);
    }
    if let Some(turn) = &vcpu.phase.turn {
        next_ns = next_ns.min(turn.next_ns());
    }
    if vcpu.phase.is_on() {
        // The end is looked for before each entry; the timer only has to bring one about.
        next_ns = next_ns.min(ran_ns + u64::from(params.phase_ns) / 4);
    }
    Some(next_ns)
}

/// Takes a sample of the VM if it is due, or a part of it. The VM's virtual time at which there is more to do.
fn sample<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    records: &mut Records,
    vm_ns: u64,
    tsc: u64,
) -> u64 {
    let due_ns = |histories: &Histories| histories.due_ns(Space::VM);
    let due = records.guest.partition().histories().map_or(u64::MAX, due_ns);
    if vm_ns < due {
        return due;
    }
    let (scan, changes) = vm.sample(&mut vcpu.work, records, vm_ns);
    follow_changes(vcpu, changes);
    if scan.is_complete
        && let Some(rounds) = &mut records.rounds
    {
        rounds.sampled();
    }
    records.scans.took(host.tsc().wrapping_sub(tsc));
    let due = records.guest.partition().histories().map_or(u64::MAX, due_ns);
    due.max(vm_ns + SOON_NS)
}

/// The VCPU's turn has come.
fn begin<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &mut Records,
    ran_ns: u64,
) {
    let Records { guest, rounds, .. } = records;
    let Some(rounds) = rounds else { return };
    let phase_ns = u64::from(rounds.params().phase_ns);
    if rounds.in_phase().is_some() {
        if let Some(turn) = &mut vcpu.phase.turn {
            turn.postpone(ran_ns, 2 * phase_ns);
        }
        return;
    }
    let aged = rounds.age(guest.partition_mut());
    let answer = rounds.due(guest.partition_mut(), vcpu.id, ran_ns);
    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &aged);
    follow_changes(vcpu, changes);
    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &answer.effects);
    follow_changes(vcpu, changes);
    if answer.change != Change::CloseAll {
        return;
    }
    if vm.begin_phase(&mut vcpu.work).is_err() {
        let Records { guest, rounds, .. } = records;
        rounds.iter_mut().for_each(|rounds| rounds.abandon(guest.partition_mut()));
        return;
    }
    vcpu.phase.overhead = 0;
    vcpu.phase.end_ns = Some(ran_ns + phase_ns);
    vcpu.phase.last = 0;
    vcpu.phase.interrupts = (vcpu.interrupts.counts.interrupts, false);
    vcpu.phase.open.clear();
    set_tree(vcpu, vm, PHASE);
    vcpu.request(work::PHASE);
}

/// Ends the VCPU's phase: it is back on its ordinary tables.
fn end<V: Virt, M: HostMemory, H: Host>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, host: &mut H) {
    vcpu.work &= !work::PHASE;
    vcpu.phase.end_ns = None;
    vcpu.phase.open = Vec::new();
    let domain = if vm.regions.is_divided() { host.cache_domain() } else { 0 };
    set_tree(vcpu, vm, TreeKey::new(domain, 0).unwrap_or(TreeKey::FIRST));
    vm.end_phase(&mut vcpu.work);
}

/// In a phase, before an entry: whether an interrupt has come, or the time is over.
#[cold]
#[inline(never)]
pub(super) fn before_entry<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) {
    let Some(end_ns) = vcpu.phase.end_ns else {
        vcpu.work &= !work::PHASE;
        return;
    };
    let tsc = host.tsc();
    let now_ns = vcpu.phase_ns(vm, tsc);
    let is_offered = vcpu.has_offer() && vcpu.virt.can_take_interrupt();
    let before = vcpu.phase.interrupts;
    vcpu.phase.interrupts = (vcpu.interrupts.counts.interrupts, is_offered);
    let event = match () {
        () if now_ns >= end_ns || vcpu.mmu.engine() != Engine::Nested || !vm.regions.is_wanted() => {
            Event::End
        }
        () if vcpu.phase.interrupts.0 != before.0 || is_offered && !before.1 => Event::Interrupt,
        () => return,
    };
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    match &mut *slot {
        Some(records) => perform(vcpu, vm, host, records, now_ns, event),
        None => end(vcpu, vm, host),
    }
    vcpu.phase.overhead += host.tsc().wrapping_sub(tsc);
}

/// The VCPU, in its phase, has touched a page that is not open there.
#[cold]
#[inline(never)]
pub(super) fn touched<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    gpa: Gpa,
    access: Access,
    walk: bool,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    let now_ns = vcpu.phase_ns(vm, tsc);
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    match &mut *slot {
        Some(records) if vcpu.phase.is_on() => {
            let touch = touch(vcpu, vm, records, gpa, access, walk);
            perform(vcpu, vm, host, records, now_ns, Event::Touch(touch));
        }
        // Its tables are those of a phase, and it has none.
        _ => end(vcpu, vm, host),
    }
    drop(slot);
    vcpu.phase.overhead += host.tsc().wrapping_sub(tsc);
    Outcome::Resume
}

/// What regioning is told of a touch.
fn touch<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &Records,
    gpa: Gpa,
    access: Access,
    walk: bool,
) -> Touch {
    let gfn = gpa.frame();
    let (rip, rsp) = (Gva(vcpu.virt.rip()), Gva(vcpu.virt.gpr(Gpr::Rsp)));
    let by_kernel = walk || vcpu.virt.cpl() != 3;
    let partition = records.guest.partition();
    let is_new = partition
        .region_of(gfn)
        .ok()
        .and_then(|rid| partition.info(rid))
        .is_some_and(|info| info.owner == Owner::Vm || info.kind == Kind::Seed);
    // Only of what is new it matters what it is. A page table is the kernel's, wherever its program's stack lies.
    let address = if is_new && !walk { address_near(vcpu, vm, gfn, rip, rsp) } else { None };
    Touch { gfn, address, is_user_address: false, rip, rsp, is_fetch: access.execute && !walk, by_kernel }
}

/// An address near the stack pointer, or in the page of the instruction, that leads to a frame: nested faults do not tell addresses.
fn address_near<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    gfn: Gfn,
    rip: Gva,
    rsp: Gva,
) -> Option<Gva> {
    let state = PagingState::of(&vcpu.virt, vm.paging_features);
    let access = Access { user: vcpu.virt.cpl() == 3, ..Access::READ };
    let memory = vm.read_memory(&mut vcpu.work);
    let ram = memory.ram();
    let pages = STACK.step_by(PAGE_SIZE as usize).map(|offset| Gva(rsp.0.wrapping_add_signed(offset)));
    let leads_there = |gva: &Gva| {
        is_canonical(*gva) && peek(&state, &ram, *gva, access).is_ok_and(|found| found.gpa.frame() == gfn)
    };
    core::iter::once(rip).chain(pages).find(leads_there)
}

/// Tells regioning of an event, and performs the answer.
fn perform<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    records: &mut Records,
    now_ns: u64,
    event: Event,
) {
    let Records { guest, rounds, .. } = records;
    let Some(rounds) = rounds.as_mut().filter(|rounds| rounds.in_phase() == Some(vcpu.id)) else {
        return end(vcpu, vm, host);
    };
    let Answer { change, effects } = rounds.on(guest.partition_mut(), now_ns, event);
    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &effects);
    follow_changes(vcpu, changes);
    let done = match (change, event) {
        (Change::Open(gfn), _) => open_page(vcpu, vm, records, gfn),
        (Change::Switch { close, .. }, Event::Touch(touch)) => {
            enter_region(vcpu, vm, records, touch.gfn, close.is_some())
        }
        (Change::CloseAll, _) => close_all(vcpu, vm),
        (Change::Finish(_), _) => {
            end(vcpu, vm, host);
            let vm_ns = vm.regions.virtual_ns(0);
            let changes = vm.end_round(vcpu.id, &mut vcpu.work, records, vm_ns);
            follow_changes(vcpu, changes);
            Ok(())
        }
        (Change::None | Change::Switch { .. }, _) => {
            end(vcpu, vm, host);
            Ok(())
        }
    };
    if done.is_err() && vcpu.phase.is_on() {
        log::debug!("{}: no memory for the tables of a phase", vm.name);
        let Records { guest, rounds, .. } = records;
        rounds.iter_mut().for_each(|rounds| rounds.abandon(guest.partition_mut()));
        end(vcpu, vm, host);
    }
}

/// A page is open, until everything is closed if that makes a difference.
fn open_page<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &Records,
    gfn: Gfn,
) -> Result<(), MapError> {
    let is_for_all =
        |rid: Rid| records.guest.partition().info(rid).is_some_and(|info| info.owner == Owner::Vm);
    if !records.guest.partition().region_of(gfn).is_ok_and(is_for_all)
        && vcpu.phase.open.try_reserve(1).is_ok()
    {
        vcpu.phase.open.push(gfn);
    }
    vm.change_phase(&mut vcpu.work, &[], core::iter::once(gfn))
}

/// The region of this page is the current one. The page is opened, and what is likely to follow.
fn enter_region<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &Records,
    gfn: Gfn,
    closes: bool,
) -> Result<(), MapError> {
    // An instruction that needs both regions completes: it comes again with the same registers.
    let now = registers(vcpu);
    let was_same = core::mem::replace(&mut vcpu.phase.last, now) == now;
    if closes && !was_same {
        close_all(vcpu, vm)?;
    }
    vm.keep_frame_small(&mut vcpu.work, gfn);
    let open = &mut vcpu.phase.open;
    let ahead = if open.len() < MOST_AHEAD { AHEAD } else { 1 };
    let partition = records.guest.partition();
    let from = open.len();
    if open.try_reserve(ahead).is_ok() {
        open.extend(partition.frames_from(gfn).take(ahead));
    }
    let frames: &[Gfn] = &open[from..];
    // Without memory for the list the page is open until the phase ends.
    let only = [gfn];
    vm.change_phase(&mut vcpu.work, &[], if frames.is_empty() { &only } else { frames }.iter().copied())
}

/// Closes what is open but for what is open everywhere.
fn close_all<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Result<(), MapError> {
    let open = core::mem::take(&mut vcpu.phase.open);
    let done = vm.change_phase(&mut vcpu.work, &open, core::iter::empty());
    vcpu.virt.flush(FlushScope::All);
    vcpu.phase.open = open;
    vcpu.phase.open.clear();
    done
}
