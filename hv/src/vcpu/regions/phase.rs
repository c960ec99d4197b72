//! A VCPU in a phase of regioning: what it touches, and the tables that follow.

mod ahead;

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::OwnPhase;
use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Gva, PAGE_SIZE, is_canonical};
use crate::arch::state::{Gpr, efer};
use crate::device::Tsc;
use crate::paging::MapError;
use crate::paging::guest_walk::{PagingState, peek};
use crate::paging::tree_key::TreeKey;
use crate::region::partition::Info;
use crate::region::regioning::{Answer, Change, Event, Touch};
use crate::region::rounds::Arrival;
use crate::region::{Kind, Owner};
use crate::vcpu::Vcpu;
use crate::vcpu::exit_context::ExitContext;
use crate::vcpu::host::Host;
use crate::vcpu::micro::registers;
use crate::vcpu::mmu::{follow_changes, set_tree, spaces};
use crate::vcpu::outcome::Outcome;
use crate::virt::{FlushScope, Virt};
use crate::vm::regions::{PHASE, Records};
use crate::vm::{HostMemory, Vm, work};

/// Pages of the current region that are open at most before pages are opened one by one.
const MOST_AHEAD: usize = 16_384;
/// Bytes around the stack pointer in which an access is one of the stack's.
const STACK: core::ops::Range<i64> = -0x1000..0x1_1000;

impl<V: Virt> Vcpu<V> {
    /// Nanoseconds of its phase's clock: run time without the hypervisor's own.
    fn phase_ns<M: HostMemory>(&self, vm: &Vm<V::NestedFormat, M>, tsc: u64) -> u64 {
        vm.clock.nanos(Tsc(self.ran_until(tsc).saturating_sub(self.phase.overhead))).0
    }
}

/// Ends the VCPU's phase: it is back on its ordinary tables.
fn end<V: Virt, M: HostMemory, H: Host>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, host: &mut H) {
    vcpu.work &= !work::PHASE;
    vcpu.phase.end_ns = None;
    (vcpu.phase.open, vcpu.phase.closed) = Default::default();
    let domain = if vm.regions.is_divided() { host.cache_domain() } else { 0 };
    set_tree(vcpu, vm, TreeKey::new(domain, 0).unwrap_or(TreeKey::FIRST));
    vm.end_phase(vcpu.id, &mut vcpu.work);
    // Also where the tables have changed before, with the engine: the shadow tables count on it.
    vcpu.virt.flush(FlushScope::All);
}

/// In a phase, before an entry: whether an interrupt has come, or the time is over.
#[cold]
#[inline(never)]
pub(in crate::vcpu) fn before_entry<V: Virt, M: HostMemory, H: Host>(
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
    // One that stood ready at the last look has been told of.
    let was_taken = vcpu.phase.interrupts.0 != before.0;
    let is_over = now_ns >= end_ns || vcpu.phase.overhead >= vcpu.phase.most_overhead;
    let event = match () {
        () if is_over || vcpu.mmu.tree() != PHASE || !vm.regions.is_wanted() => Event::End,
        () if was_taken && !before.1 || is_offered && (was_taken || !before.1) => Event::Interrupt,
        () => return,
    };
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    match &mut *slot {
        Some(records) => perform(vcpu, vm, host, records, now_ns, event),
        None => end(vcpu, vm, host),
    }
    vcpu.phase.leave_out(host.tsc().wrapping_sub(tsc));
}

/// A page of RAM that is not open in the phase's tables, and the access to it.
#[derive(Clone, Copy, Debug)]
pub(in crate::vcpu) struct TouchedPage {
    pub gpa: Gpa,
    pub access: Access,
    /// By the processor, on its way through the guest's tables.
    pub walk: bool,
    /// The address, and whether programs may use it. Nested faults do not tell.
    pub address: Option<(Gva, bool)>,
}

impl TouchedPage {
    /// Whether it is at an address of a program's.
    fn is_user_address(&self) -> bool {
        self.address.is_some_and(|(_, is_user)| is_user)
    }

    /// Whether the guest's kernel touches it. Page tables are its own, and what the delivery of an event reads and writes while the program's
    /// registers are still there.
    fn is_by_kernel<V: Virt>(&self, vcpu: &Vcpu<V>) -> bool {
        let is_supervisor = self.address.is_some() && !self.access.user;
        self.walk || is_supervisor || vcpu.virt.cpl() != 3 || vcpu.virt.was_delivering()
    }
}

/// The VCPU, in its phase, has touched a page that is not open there.
#[cold]
#[inline(never)]
pub(in crate::vcpu) fn touched<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    page: TouchedPage,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    // The guest's kernel serves its program, or it has got a frame that was a program's: without an address it is not known which. It is
    // no change of the program's region in either case.
    let is_no_use = page.is_by_kernel(vcpu) && !page.is_user_address();
    let now_ns = vcpu.phase_ns(vm, tsc);
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    match &mut *slot {
        Some(records) if vcpu.phase.is_on() && is_no_use && is_found(records, page.gpa) => {
            let done = open_page(vcpu, vm, records, page.gpa.frame());
            give_up_without_memory(vcpu, vm, host, records, done);
        }
        Some(records) if vcpu.phase.is_on() => {
            let is_programs = !page.is_by_kernel(vcpu);
            let done = if is_programs { arrive(vcpu, vm, records, page.gpa.frame(), now_ns) } else { Ok(()) };
            give_up_without_memory(vcpu, vm, host, records, done);
            if done.is_ok() {
                let touch = touch(vcpu, vm, records, page);
                perform(vcpu, vm, host, records, now_ns, Event::Touch(touch));
            }
        }
        // Its tables are those of a phase, and it has none.
        _ => end(vcpu, vm, host),
    }
    drop(slot);
    vcpu.phase.leave_out(host.tsc().wrapping_sub(tsc));
    Outcome::Resume
}

/// The VCPU's program touches a frame: its address space maps it, and is the one that the phase is about from now on.
fn arrive<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &mut Records,
    gfn: Gfn,
    now_ns: u64,
) -> Result<(), MapError> {
    let Records { guest, rounds, .. } = &mut *records;
    let Some(rounds) = rounds.as_mut().filter(|rounds| rounds.in_phase() == Some(vcpu.id)) else {
        return Ok(());
    };
    let (root, is_long) = (spaces::root(vcpu), vcpu.virt.efer() & efer::LMA != 0);
    let work = &mut vcpu.work;
    let has_programs = |root| vm.has_programs(work, root, is_long);
    let Arrival { is_switch, effects } =
        rounds.arrive(guest.partition_mut(), now_ns, root, gfn, has_programs);
    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &effects);
    follow_changes(vcpu, changes);
    if is_switch {
        vcpu.phase.ahead = 0;
        close_all(vcpu, vm)?;
    }
    Ok(())
}

/// Whether a page is in a region that was found.
fn is_found(records: &Records, gpa: Gpa) -> bool {
    let info = records.guest.partition().info_of(gpa.frame());
    info.is_some_and(|info| matches!(info.owner, Owner::Space(_)) && info.kind != Kind::Seed)
}

/// What regioning is told of a touch.
fn touch<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &Records,
    page: TouchedPage,
) -> Touch {
    let gfn = page.gpa.frame();
    let (rip, rsp) = (Gva(vcpu.virt.rip()), Gva(vcpu.virt.gpr(Gpr::Rsp)));
    let (by_kernel, is_user_address) = (page.is_by_kernel(vcpu), page.is_user_address());
    let info = records.guest.partition().info_of(gfn);
    let is_new = info.is_some_and(|info| info.owner == Owner::Vm || info.kind == Kind::Seed);
    // Only of what is new it matters what it is. A page table is the kernel's, wherever its program's stack lies.
    let address = match page.address {
        Some((address, _)) => Some(address),
        None if is_new && !page.walk => address_near(vcpu, vm, gfn, rip, rsp),
        None => None,
    };
    Touch { gfn, address, is_user_address, rip, rsp, is_fetch: page.access.execute && !page.walk, by_kernel }
}

/// An address near the stack pointer, or in the page of the instruction, that leads to a frame: nested faults do not tell addresses.
fn address_near<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    gfn: Gfn,
    rip: Gva,
    rsp: Gva,
) -> Option<Gva> {
    let pages = STACK.step_by(PAGE_SIZE as usize).map(|offset| Gva(rsp.0.wrapping_add_signed(offset)));
    let pages = core::iter::once(rip).chain(pages);
    let state = PagingState::of(&vcpu.virt, vm.paging_features);
    let now = [state.cr3, rip.0 / PAGE_SIZE, rsp.0 / PAGE_SIZE];
    if vcpu.phase.near.of != Some(now) {
        let access = Access { user: vcpu.virt.cpl() == 3, ..Access::READ };
        let memory = vm.read_memory(&mut vcpu.work);
        let ram = memory.ram();
        let frame = |gva: Gva| {
            let found = if is_canonical(gva) { peek(&state, &ram, gva, access).ok() } else { None };
            found.map(|found| found.gpa.frame())
        };
        let frames = pages.clone().map(frame).collect();
        drop(memory);
        vcpu.phase.near = Near { of: Some(now), frames };
    }
    let frames = vcpu.phase.near.frames.iter();
    pages.zip(frames).find(|(_, found)| **found == Some(gfn)).map(|(gva, _)| gva)
}

/// The frames of the pages around the stack pointer and of that of the instruction, until one of these changes or an interrupt comes.
#[derive(Debug, Default)]
pub struct Near {
    /// CR3, and the pages of RIP and RSP.
    of: Option<[u64; 3]>,
    frames: ArrayVec<Option<Gfn>, NEAR>,
}

/// Pages of [`STACK`], which may begin within one, and that of the instruction.
const NEAR: usize = 1 + ((STACK.end - STACK.start) as usize).div_ceil(PAGE_SIZE as usize);

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
            enter_region(vcpu, vm, records, touch.gfn, close.is_some(), !effects.is_empty())
        }
        (Change::CloseAll, _) => {
            vcpu.phase.near = Near::default();
            close_all(vcpu, vm)
        }
        (Change::Finish(round), _) => {
            log::debug!("{}: VCPU {} was in a phase: {round:?}", vm.name, vcpu.id);
            records.rounds.iter_mut().for_each(|rounds| rounds.took(vcpu.phase.overhead));
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
    give_up_without_memory(vcpu, vm, host, records, done);
}

/// Ends the phase if there was no memory for its tables.
fn give_up_without_memory<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    records: &mut Records,
    done: Result<(), MapError>,
) {
    if done.is_ok() || !vcpu.phase.is_on() {
        return;
    }
    log::debug!("{}: no memory for the tables of a phase", vm.name);
    let Records { guest, rounds, .. } = records;
    rounds.iter_mut().for_each(|rounds| rounds.abandon(guest.partition_mut()));
    end(vcpu, vm, host);
}

/// A page is open, until everything is closed if that makes a difference.
fn open_page<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &Records,
    gfn: Gfn,
) -> Result<(), MapError> {
    let is_open_everywhere =
        |info: Info| info.owner == Owner::Vm || matches!(info.kind, Kind::Global | Kind::Shared);
    let is_for_all = records.guest.partition().info_of(gfn).is_some_and(is_open_everywhere);
    let once = core::iter::once(gfn);
    if is_for_all {
        return vm.change_phase(vcpu.id, &mut vcpu.work, &[], once, &mut Vec::new());
    }
    // Without memory for the list the page is open until the phase ends.
    let _room = vcpu.phase.open.try_reserve(1);
    vm.change_phase(vcpu.id, &mut vcpu.work, &[], once, &mut vcpu.phase.open)
}

/// The region of this page is the current one. The page is opened, and what is likely to follow.
fn enter_region<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    records: &Records,
    gfn: Gfn,
    closes: bool,
    has_grown: bool,
) -> Result<(), MapError> {
    // An instruction that needs both regions completes: it comes again with the same registers.
    let now = registers(vcpu);
    let was_same = core::mem::replace(&mut vcpu.phase.last, now) == now;
    let closes = closes && !was_same;
    if closes {
        vcpu.phase.ahead = 0;
    }
    // While a region grows by merges, nearly all of it is open: to look at what follows would find nothing.
    vcpu.phase.ahead = if has_grown { 0 } else { ahead::more(vcpu.phase.ahead) };
    // Also at each visit: sets of tables that are newer than the region have large leaves there, as where there was no memory to split one.
    if has_grown || closes {
        vm.keep_small(&mut vcpu.work, core::iter::once(gfn));
    }
    let OwnPhase { open, closed, ahead: next, .. } = &mut vcpu.phase;
    if closes {
        core::mem::swap(open, closed);
    }
    let ahead = if open.len() >= MOST_AHEAD { 1 } else { (*next).max(1) };
    // Without memory for the list pages are open until the phase ends.
    let _room = open.try_reserve(ahead);
    let frames = core::iter::once(gfn).chain(records.guest.partition().frames_from(gfn).take(ahead));
    let before = open.len();
    let done = vm.change_phase(vcpu.id, &mut vcpu.work, closed, frames, open);
    *next = ahead::after(ahead, open.len() - before);
    if closes {
        closed.clear();
        vcpu.virt.flush(FlushScope::All);
    }
    done
}

/// Closes what is open but for what is open everywhere.
fn close_all<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
) -> Result<(), MapError> {
    let OwnPhase { open, .. } = &mut vcpu.phase;
    let done = vm.change_phase(vcpu.id, &mut vcpu.work, open, core::iter::empty(), &mut Vec::new());
    open.clear();
    vcpu.virt.flush(FlushScope::All);
    done
}
