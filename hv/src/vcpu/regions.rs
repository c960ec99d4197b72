//! What a VCPU does for regions that the hypervisor finds by itself: samples of accesses, and phases of regioning. The samples also
//! say which pages are worth fast memory, and those are moved here, too.
//!
//! The run loop's timers call [`tick`], which takes the VM's samples and begins this VCPU's phases when they are due. In a phase the VCPU
//! runs on tables of its own ([`PHASE`]), in which nothing is open at first: `memory_fault` and `mmu` call [`touched`] for each page that
//! it touches there, and [`work::PHASE`] has [`before_entry`] look before each entry whether an interrupt has come in between or the
//! time is over. [`region::rounds`](crate::region::rounds) decides; what it decides is performed here and in `vm::regions`. A VM with agile
//! paging is on nested tables while one of its VCPUs is in a phase (`mmu::choose`); one that changes to agile paging all the same ends its phase.
//!
//! Where no regions are wanted, [`tick`] is not called, and no exit has an instruction more.

use alloc::vec::Vec;

use abi::regions::{Regioning, Spaces};
use abi::tiers::HotPolicy;

use super::Vcpu;
use super::host::Host;
use super::mmu::{follow_changes, set_tree, spaces};
use crate::arch::addr::Gfn;
use crate::arch::state::efer;
use crate::device::{Nanos, Tsc};
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::region::Space;
use crate::region::history::{Histories, SAMPLE_NS};
use crate::region::regioning::{Change, Turn};
use crate::virt::Virt;
use crate::vm::regions::{PHASE, Records};
use crate::vm::{HostMemory, Vm, work};

mod phase;

pub(super) use phase::{TouchedPage, before_entry, touched};

/// Moves of pages have one part of this many of a VCPU's time, if they are not longer than a part of [`SOON_NS`].
const MOVE_SHARE: u64 = 8;
/// The same of [`HotPolicy::Rotate`]: half.
const ROTATION_SHARE: u64 = 1;
/// The hypervisor's own time in a phase at most, in lengths of the phase: virtual time does not show it, and what faults take depends on
/// the VM's other VCPUs. With the usual phases 3 % of the time, which is what the thesis has regions cost at most.
const MOST_OVERHEAD: u64 = 3;
/// Virtual time until the rest of a sample that was taken in part, after which a VCPU looks again that could not begin its phase, and
/// until the next page moves at the latest, in nanoseconds.
const SOON_NS: u64 = 1_000_000;
/// The same where a VCPU has no use of regions now.
const LATER_NS: u64 = 100_000_000;

/// What a VCPU keeps of regioning.
#[derive(Debug, Default)]
pub struct OwnPhase {
    /// When it begins.
    turn: Option<Turn>,
    /// Run time until which it was charged to address spaces, in nanoseconds.
    charged_ns: Option<u64>,
    /// Run time at which [`tick`] has something to do, in nanoseconds.
    look_ns: u64,
    /// It is in one, which ends at this time of its own.
    end_ns: Option<u64>,
    /// Ticks since the phase began that were the hypervisor's.
    overhead: u64,
    /// Of these at which it ends before its time.
    most_overhead: u64,
    /// Pages that are open until the current region is closed.
    open: Vec<Gfn>,
    /// Room for those that a change of the region closes; empty in between.
    closed: Vec<Gfn>,
    /// Where its stack and its code are.
    near: phase::Near,
    /// Pages that the last touch has opened.
    ahead: usize,
    /// Registers at the last touch that has changed the region.
    last: u64,
    /// Interrupts that the guest has taken, and whether one stood ready, when that was last looked at.
    interrupts: (u64, bool),
}

impl OwnPhase {
    /// The hypervisor has worked for this many ticks: they are no time of the program's.
    pub fn leave_out(&mut self, ticks: u64) {
        self.overhead = self.overhead.wrapping_add(ticks);
    }

    /// Whether the VCPU is in a phase.
    pub fn is_on(&self) -> bool {
        self.end_ns.is_some()
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
        host.does_other_work();
        vcpu.phase.look_ns = look(vcpu, vm, host, ran_ns).unwrap_or(ran_ns + LATER_NS);
    }
    let left_us = vcpu.phase.look_ns.saturating_sub(ran_ns).div_ceil(1000);
    tsc.saturating_add(left_us.saturating_mul(vm.clock.tsc_khz()) / 1000)
}

/// The same; the next time is run time in nanoseconds. `None`: there is nothing to do on these tables, or no memory for it.
fn look<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    ran_ns: u64,
) -> Option<u64> {
    let wanted = match vm.regions.wanted() {
        // Pages of fast memory are chosen by the VM's samples, so that all histories are as old as another.
        abi::regions::Regions::On(wanted) if vm.tiers.is_some() => {
            Some(Regioning { spaces: Spaces::Vm, ..wanted })
        }
        abi::regions::Regions::On(wanted) => Some(wanted),
        abi::regions::Regions::Off if vm.tiers.is_some() => None,
        abi::regions::Regions::Off => return None,
    };
    let vm_ns = vm.regions.virtual_ns(ran_ns);
    let Some(mut slot) = vm.regions.try_lock() else { return Some(ran_ns + SOON_NS) };
    let records = vm.regions.records(&mut slot, vm.layout).ok()?;
    let begun = match wanted {
        Some(wanted) => records.rounds(wanted).map(drop),
        None => records.guest.partition_mut().start_histories(),
    };
    if let Err(_no_memory) = begun {
        log::warn!("{}: no host memory to take samples of accesses", vm.name);
        return None;
    }
    let mut next_ns = u64::MAX;
    // Processors without such bits tell of no accesses: sizes stand for working sets, and nothing ages.
    let engine = vcpu.mmu.engine();
    let charged_ns = vcpu.phase.charged_ns.replace(ran_ns).unwrap_or(ran_ns);
    let (root, ns) = (spaces::root(vcpu), ran_ns.saturating_sub(charged_ns));
    let own = records.rounds.as_mut().and_then(|rounds| rounds.ran(vcpu.id, vm_ns, root, ns));
    if engine != Engine::Nested || vcpu.virt.sets_dirty_bits() {
        let due_ns = sample(vcpu, vm, host, records, (Space::VM, vm_ns));
        next_ns = ran_ns.saturating_add(due_ns - vm_ns);
        if let Some(own) = own {
            let due_ns = sample(vcpu, vm, host, records, own);
            next_ns = next_ns.min(ran_ns.saturating_add(due_ns - own.1));
        }
    } else if wanted.is_some_and(|wanted| wanted.spaces == Spaces::Cr3) {
        // To charge time as often as with samples.
        next_ns = ran_ns + SAMPLE_NS;
    }
    let is_long = vcpu.virt.efer() & efer::LMA != 0;
    let changes = vm.end_spaces(vcpu.id, &mut vcpu.work, records, is_long);
    follow_changes(vcpu, changes);
    let moving = vm.tiers.as_ref().filter(|tiers| tiers.has_moves());
    if moving.is_some() || records.scans.is_joining() {
        let began = host.tsc();
        let changes = match moving {
            Some(_) => vm.tier_batch(vcpu.id, &mut vcpu.work),
            None => vm.join_part(&mut vcpu.work, records),
        };
        let ticks = host.tsc().wrapping_sub(began);
        match moving {
            Some(tiers) => tiers.took(ticks),
            None => records.scans.took(ticks),
        }
        follow_changes(vcpu, changes);
        next_ns = next_ns.min(ran_ns + wait_ns(vm, ticks));
    }
    if wanted.is_none() {
        return Some(next_ns).filter(|next_ns| *next_ns != u64::MAX);
    }
    let params = *records.rounds.as_ref()?.params();
    let count = u16::try_from(vm.mailboxes.len()).unwrap_or(u16::MAX);
    let turn = match &mut vcpu.phase.turn {
        Some(turn) if turn.period_ns() == params.period_ns => turn,
        turn => turn.insert(Turn::new(vcpu.id as u16, count, ran_ns, params.period_ns)),
    };
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

/// How long a VCPU runs after a move or a join that has taken this many ticks. On a busy development machine what waits does not wait seven
/// times as long.
fn wait_ns<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(vm: &Vm<F, M>, ticks: u64) -> u64 {
    let rotates = vm.tiers.as_ref().is_some_and(|tiers| tiers.policy() == HotPolicy::Rotate);
    let share = if rotates { ROTATION_SHARE } else { MOVE_SHARE };
    vm.clock.nanos(Tsc(ticks)).0.saturating_mul(share).min(SOON_NS)
}

/// Takes a sample of an address space if it is due at this virtual time of its, or a part of it. The time at which there is more to
/// do.
fn sample<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
    records: &mut Records,
    (space, now_ns): (Space, u64),
) -> u64 {
    let due_ns = |histories: &Histories| histories.due_ns(space);
    let due = records.guest.partition().histories().map_or(u64::MAX, due_ns);
    if now_ns < due {
        return due;
    }
    let began = host.tsc();
    let (scan, changes) = vm.sample(vcpu.id, &mut vcpu.work, records, space, now_ns);
    follow_changes(vcpu, changes);
    if records.rounds.as_mut().is_some_and(|rounds| rounds.sampled(space, scan)) {
        vm.join_leaves(&mut records.scans);
    }
    if scan.is_complete && space == Space::VM {
        let changes = vm.tier_pass(vcpu.id, &mut vcpu.work, records);
        follow_changes(vcpu, changes);
    }
    let ticks = host.tsc().wrapping_sub(began);
    records.scans.took(ticks);
    if records.guest.partition_mut().sample_took(space, vm.clock.nanos(Tsc(ticks)).0) {
        records.scans.put_off += 1;
    }
    let due = records.guest.partition().histories().map_or(u64::MAX, due_ns);
    due.max(now_ns + SOON_NS)
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
    let root = spaces::root(vcpu);
    let wait_ns = if rounds.in_phase().is_some() || vm.has_phase_tables(&mut vcpu.work) {
        // With other settings a phase is over before its VCPU leaves the tables.
        2 * phase_ns
    } else if rounds.is_unknown(root) && vcpu.virt.cpl() != 3 {
        // The guest's kernel, on tables of which nothing is known, is no program whose memory would be found.
        phase_ns
    } else {
        0
    };
    if wait_ns > 0 {
        if let Some(turn) = &mut vcpu.phase.turn {
            turn.postpone(ran_ns, wait_ns);
        }
        return;
    }
    let aged = rounds.age(guest.partition_mut());
    let answer = rounds.due(guest.partition_mut(), vcpu.id, root, ran_ns);
    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &aged);
    follow_changes(vcpu, changes);
    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &answer.effects);
    follow_changes(vcpu, changes);
    if answer.change != Change::CloseAll {
        // Working sets have changed since, and other VMs' loads.
        let changes = vm.balance_regions(vcpu.id, &mut vcpu.work, records, vm.regions.virtual_ns(ran_ns));
        return follow_changes(vcpu, changes);
    }
    if vm.begin_phase(&mut vcpu.work).is_err() {
        let Records { guest, rounds, .. } = records;
        rounds.iter_mut().for_each(|rounds| rounds.abandon(guest.partition_mut()));
        return;
    }
    vcpu.phase.overhead = 0;
    vcpu.phase.most_overhead = vm.clock.tsc_at(Nanos(MOST_OVERHEAD * phase_ns)).0;
    vcpu.phase.end_ns = Some(ran_ns + phase_ns);
    vcpu.phase.last = 0;
    vcpu.phase.ahead = 0;
    vcpu.phase.near = phase::Near::default();
    vcpu.phase.interrupts = (vcpu.interrupts.counts.interrupts, false);
    vcpu.phase.open.clear();
    set_tree(vcpu, vm, PHASE);
    // With agile paging the engine is to be chosen again.
    vcpu.request(work::PHASE | work::MMU);
}
