//! Micro-scheduling as a VCPU performs it (thesis 2.2.3): what a touch of memory does that is mapped to the cache of another domain.
//!
//! `memory_fault` and `mmu` call [`closed`] for such a fault. The policy ([`crate::region::micro`]) answers: the VCPU leaves its PCPU
//! with [`Return::Move`](super::outcome::Return::Move) and goes on at one of the region's domain, in constant time and without a
//! touch of the region's entries; or the region is made global. At the begin of each turn on a PCPU [`follow`] brings the VCPU
//! to the tables of that PCPU's domain, which differ in what they leave closed. A VM without a region that is mapped to a cache
//! never gets here.

use alloc::format;

use super::Vcpu;
use super::dispatch::died;
use super::exit_context::ExitContext;
use super::host::Host;
use super::mmu::{follow_changes, set_tree};
use super::outcome::{Cause, Outcome};
use crate::arch::addr::Gpa;
use crate::arch::counters::{Spent, SpentOn};
use crate::arch::state::Gpr;
use crate::device::Tsc;
use crate::paging::tree_key::TreeKey;
use crate::region::micro::{LastTouches, MOST_MOVES, Touch, Verdict, most_moves};
use crate::region::{Kind, Owner, Rid};
use crate::trace::cost::Cost;
use crate::virt::Virt;
use crate::vm::mailbox::Mailbox;
use crate::vm::regions::Records;
use crate::vm::{HostMemory, Vm, work};

/// What a VCPU keeps of its moves.
#[derive(Debug, Default)]
pub struct Moves {
    last: LastTouches,
    /// Its turn ended with a move, and the next one has not begun.
    arrives: bool,
    /// The domain that it goes to.
    home: u8,
    /// The region that moved it last.
    region: Option<Rid>,
    /// Host TSC at the fault, while it is on its way.
    began: Option<u64>,
    /// The same of the move that has brought it to where it runs, until that is added up.
    arrived: Option<u64>,
    /// Moves, from the fault to the next entry.
    pub cost: Cost,
    /// What the hypervisor executes for these on the PCPU that the VCPU leaves, and on the one where it goes on; where PCPUs count.
    pub spent: [SpentOn; 2],
    /// What the PCPU of the fault had counted then.
    began_at: Option<Spent>,
    /// It is counted.
    is_counted: bool,
}

impl Moves {
    /// A move to this domain begins, at this host TSC. `counted`: what the hypervisor has executed on this PCPU so far.
    fn begin(&mut self, home: u8, tsc: u64, counted: Option<Spent>) {
        (self.arrives, self.home) = (true, home);
        self.arrived = self.began.replace(tsc);
        (self.began_at, self.is_counted) = (counted, counted.is_some());
    }

    /// A turn begins that is not the first one after a move.
    #[inline(always)]
    pub(super) fn forget_arrival(&mut self) {
        self.arrives = false;
    }

    /// Whether the VCPU is on its way to another PCPU, and the move is counted.
    pub fn is_counted(&self) -> bool {
        self.is_counted && self.began.is_some()
    }

    /// The VCPU was entered at this host TSC, for the first time in the turn that ends now. It may have ended with another move.
    /// `took`: what the hypervisor has executed for that on this PCPU, if it was counted.
    pub fn entered(&mut self, tsc: u64, took: Option<Spent>) {
        let before = |began: &mut u64| *began <= tsc;
        let began = self.arrived.take().or_else(|| self.began.take_if(before));
        began.into_iter().for_each(|began| self.cost.add(tsc.saturating_sub(began)));
        took.into_iter().for_each(|spent| self.spent[1].add(spent));
    }

    /// The VCPU leaves its PCPU, on which the hypervisor has executed so much.
    pub fn left(&mut self, counted: Option<Spent>) {
        if let (Some(from), Some(to)) = (self.began_at.take(), counted) {
            self.spent[0].add(to.since(from));
        }
    }
}

/// Handles a touch of `gpa`, which is mapped to the cache of domain `home` and closed in the tables in use.
#[cold]
#[inline(never)]
pub(super) fn closed<V: Virt, M: HostMemory, H: Host>(
    cx: ExitContext<'_, V, M, H>,
    gpa: Gpa,
    home: u8,
) -> Outcome {
    let ExitContext { vcpu, vm, host, tsc } = cx;
    if host.cache_domain() == home {
        // The region was mapped to this cache a moment ago.
        vcpu.request(work::TREE);
        return Outcome::Resume;
    }
    let target = vm.mailboxes.get(vcpu.id as usize).and_then(|mailbox| host.place_in(mailbox, home));
    let nanos = |ticks: u64| vm.clock.nanos(Tsc(ticks)).0;
    let (ran, now, registers) = (nanos(vcpu.ran_until(tsc)), vm.nanos(tsc).0, registers(vcpu));
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    let records = match vm.regions.records(&mut slot, vm.layout) {
        Ok(records) => records,
        Err(_) => return no_memory(vcpu, gpa),
    };
    let frame = gpa.frame();
    let partition = records.guest.partition();
    let rid = partition.region_of(frame).unwrap_or(Rid::POOL);
    let info = partition.info(rid);
    let owner = info.map_or(Owner::Vm, |info| info.owner);
    let is_open = match info.map(|info| info.kind) {
        Some(Kind::Local(home)) => home.number() == host.cache_domain(),
        _ => true,
    };
    let opened = if is_open {
        // Opened since the fault; or there was no memory to open it with.
        vm.set_homes(vcpu.id, &mut vcpu.work, partition, core::iter::once(frame)).ok()
    } else {
        let move_ns = records.rounds.as_ref().map(|rounds| rounds.params().move_ns);
        let most = move_ns.map_or(MOST_MOVES, most_moves);
        let touch = Touch { rid, registers, ran, now, can_move: target.is_some(), most };
        match records.micro.touch(&mut vcpu.moves.last, &touch) {
            Verdict::Move => {
                let Records { guest, rounds, .. } = &mut *records;
                let excluded =
                    rounds.as_mut().and_then(|all| all.moved(guest.partition_mut(), owner, frame, now));
                if let Some(effects) = excluded {
                    log::debug!("{}: frame {:#x} becomes global: it moves VCPUs too often", vm.name, frame.0);
                    let changes = vm.follow_effects(vcpu.id, &mut vcpu.work, records, &[effects]);
                    follow_changes(vcpu, changes);
                    return Outcome::Resume;
                }
                vcpu.moves.region = Some(rid);
                // What timers do that are due is done before the entry, and no part of the move.
                let is_counted = vcpu.work & work::TIMERS == 0;
                let counted = if is_counted { host.spent_at_exit() } else { None };
                vcpu.moves.begin(home, tsc, counted);
                return target.map_or(Outcome::Resume, Outcome::Move);
            }
            Verdict::Globalise(reason) => {
                log::debug!("{}: region {} becomes global: {reason:?}", vm.name, rid.number());
                vm.globalise(vcpu.id, &mut vcpu.work, records, rid).ok()
            }
        }
    };
    match opened {
        Some(changes) => {
            follow_changes(vcpu, changes);
            Outcome::Resume
        }
        None => no_memory(vcpu, gpa),
    }
}

/// The VCPU begins to run where a move has brought it. It neither slept nor missed anything meanwhile but its mail: its timers are
/// due when they were, and what is offered to the guest is in its control block still. What its PCPU is wanted for interrupts it.
#[cold]
#[inline(never)]
pub(super) fn arrive<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) {
    vcpu.moves.arrives = false;
    // If that is past, it interrupts at once.
    vcpu.armed = host.arm_timer(vcpu.due);
    let has_mail = vm.mailboxes.get(vcpu.id as usize).is_none_or(Mailbox::has_mail);
    if has_mail || host.console_ready() || vm.virtio.wants_service() {
        vcpu.request(work::MAIL);
    }
    if vcpu.work == 0 {
        // Nothing is to be served before the entry.
        host.entering();
    }
}

/// A turn of a divided VM's VCPU begins. Whether it is the first one after a move.
pub(super) fn begin<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) -> bool {
    follow(vcpu, vm, host);
    vcpu.moves.arrives
}

/// Has the VCPU use the tables of its PCPU's cache domain. At the begin of each turn of a divided VM's VCPU, and when its VM has just
/// been divided.
#[cold]
#[inline(never)]
pub(super) fn follow<V: Virt, M: HostMemory, H: Host>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    host: &mut H,
) {
    let Some(tree) = TreeKey::new(host.cache_domain(), 0) else { return };
    // In a phase a VCPU has tables of its own, whatever the domain.
    if tree == vcpu.mmu.tree() || vcpu.phase.is_on() {
        return;
    }
    set_tree(vcpu, vm, tree);
    if vcpu.moves.arrives && tree.domain() == vcpu.moves.home {
        return;
    }
    let was_taken = vm.mailboxes.get(vcpu.id as usize).is_some_and(|mailbox| host.was_taken(mailbox));
    if was_taken && let Some(rid) = vcpu.moves.region.take() {
        open_for_idle(vcpu, vm, rid, vm.clock.nanos(Tsc(vcpu.ran_until(host.tsc()))).0);
    }
}

/// A PCPU that had nothing to run has taken the VCPU, which has run for `ran_ns`, from the domain to which this region had moved it: it
/// would move back at once. The region is open in all domains until the balancer maps it to one again, not before it has rested.
fn open_for_idle<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    rid: Rid,
    ran_ns: u64,
) {
    let mut slot = vm.regions.lock(|| vm.answer(&mut vcpu.work));
    let Some(records) = &mut *slot else { return };
    let is_local = records.guest.partition().info(rid).is_some_and(|info| info.kind.is_local());
    if !is_local {
        return;
    }
    records.micro.opened_for_idle(rid, vm.regions.virtual_ns(ran_ns));
    log::debug!("{}: region {} is opened for an idle PCPU", vm.name, rid.number());
    // Without memory the rest is opened by faults.
    if let Ok(changes) = vm.open_region(vcpu.id, &mut vcpu.work, records, rid) {
        follow_changes(vcpu, changes);
    }
}

/// A number that changes when an instruction completes, but for one that changes no general register and leads to itself.
pub(super) fn registers<V: Virt>(vcpu: &Vcpu<V>) -> u64 {
    // The golden ratio, as an odd number: a polynomial, and each step is a bijection of the sum.
    let mix = |sum: u64, value: u64| sum.wrapping_add(value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Gpr::ALL.iter().fold(mix(0, vcpu.virt.rip()), |sum, gpr| mix(sum, vcpu.virt.gpr(*gpr)))
}

fn no_memory<V: Virt>(vcpu: &Vcpu<V>, gpa: Gpa) -> Outcome {
    let what = format!("no memory to open the region at {gpa}; give the host more memory");
    Outcome::Stop(died(vcpu, Cause::OutOfMemory, what))
}
