//! Agile paging as a VCPU performs it: page faults, time, and what is told to a machine that models the proposed processor.
//!
//! No processor goes on from a shadow table in the guest's, so exits stand in for what the proposed one does by itself. Each exit is
//! judged before the next entry: a stand-in is not to be charged to agile paging. Stand-ins are page faults whose walk comes to a
//! nested table by links that were there, INVLPG and INVPCID, reads of control registers, and loads of CR3 that hit the
//! [`RootCache`]. All others are charged: those that any guest makes, and those by which the policy moves tables.

use super::Vcpu;
use crate::arch::addr::Hfn;
use crate::paging::guest_walk::PagingState;
use crate::paging::shadow::{AddressSpace, PageFault, ShadowOutcome};
use crate::trace::exits::ExitCount;
use crate::virt::Virt;
use crate::virt::exit::Exit;
use crate::vm::{HostMemory, Vm};
use abi::agile::Words;
use abi::telemetry::key;

/// Nanoseconds after which an address space is charged for its time, if it goes on running.
const CHARGE_EVERY: u64 = 1_000_000;

/// The cache of the proposed processor from the guest's CR3 to the shadow root and back: the least recently used of
/// eight goes first.
#[derive(Clone, Copy, Debug, Default)]
struct RootCache {
    /// The most recently used first.
    roots: [u64; RootCache::ENTRIES],
    len: usize,
}

impl RootCache {
    const ENTRIES: usize = 8;

    /// The guest loads this CR3; whether it is in the cache. It is afterwards.
    fn load(&mut self, cr3: u64) -> bool {
        let found = self.roots[..self.len].iter().position(|&root| root == cr3);
        if found.is_none() {
            self.len = (self.len + 1).min(RootCache::ENTRIES);
        }
        let end = found.unwrap_or(self.len - 1);
        self.roots[..=end].rotate_right(1);
        self.roots[0] = cr3;
        found.is_some()
    }
}

/// Exits on agile paging.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgileExits {
    /// Those that stood in for what the proposed processor does by itself.
    pub stand_ins: u64,
    /// All others.
    pub charged: u64,
    /// Loads of CR3 that hit the cache of roots.
    pub root_hits: u64,
    /// And that missed it.
    pub root_misses: u64,
}

impl AgileExits {
    /// These and another VCPU's.
    #[must_use]
    pub fn and(self, other: AgileExits) -> AgileExits {
        AgileExits {
            stand_ins: self.stand_ins + other.stand_ins,
            charged: self.charged + other.charged,
            root_hits: self.root_hits + other.root_hits,
            root_misses: self.root_misses + other.root_misses,
        }
    }

    /// All counters with their names in statistics and telemetry.
    pub fn named(&self) -> [(&'static str, u64); 4] {
        [
            (key::ROOT_HITS, self.root_hits),
            (key::ROOT_MISSES, self.root_misses),
            (key::STAND_INS, self.stand_ins),
            (key::CHARGED_EXITS, self.charged),
        ]
    }
}

/// What agile paging keeps for a VCPU.
#[derive(Debug, Default)]
pub struct AgileEntry {
    /// What has been counted.
    pub exits: AgileExits,
    cache: RootCache,
    /// The page fault that is being handled was a stand-in.
    fault_stands_in: bool,
    /// The timer's last interrupt was too early, because machine time had stood still.
    pub timer_was_early: bool,
    /// The exits up to the last one that was judged, and the judgement.
    judged: (ExitCount, bool),
    /// Since when, in nanoseconds, this root table has been in use without being charged.
    since: u64,
    root: Option<Hfn>,
    /// Roots that the VM had made at the last load of CR3.
    roots_made: u64,
}

/// Handles a page fault on the tables. `None`: the guest tries again.
pub(super) fn fault<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    state: &PagingState,
    fault: PageFault,
    tsc: u64,
) -> Option<ShadowOutcome> {
    let now = vm.nanos(tsc).0;
    let was_delivering = vcpu.virt.was_delivering();
    let memory = vm.read_memory(&mut vcpu.work);
    let (outcome, is_nested, flush) = {
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        let shadow = shadow.as_mut()?;
        let is_nested = shadow.is_in_nested_part(fault.gva);
        let (outcome, flush) = shadow.fault(AddressSpace::new(&memory.p2m, &memory.ram(), state), fault);
        match outcome {
            // The delivery of an event is no instruction that could be emulated.
            ShadowOutcome::EmulateWrite(gpa) => {
                let before = shadow.agile_moves();
                let moved = shadow.agile_write(&memory.p2m, gpa, now, was_delivering);
                vcpu.mmu.decisions.nest(shadow.agile_moves().to_nested.wrapping_sub(before.to_nested), gpa);
                match moved {
                    Some(more) => (None, false, flush.and(more)),
                    None => (Some(outcome), false, flush),
                }
            }
            ShadowOutcome::Filled { .. } | ShadowOutcome::Retry | ShadowOutcome::GuestFault(_) => {
                (Some(outcome), is_nested, flush)
            }
            _ => (Some(outcome), false, flush),
        }
    };
    vcpu.perform_flush(flush);
    vcpu.mmu.agile.fault_stands_in = is_nested;
    outcome
}

/// Before an entry: judges the exit, charges time to the address space, has tables moved for which it is time, and tells what
/// the machine may want to know. `begun`: host TSC when the preparations for this entry began.
pub(super) fn prepare_entry<V: Virt, M: HostMemory>(
    vcpu: &mut Vcpu<V>,
    vm: &Vm<V::NestedFormat, M>,
    begun: u64,
    tsc: impl Fn() -> u64,
) {
    let exits = vcpu.exits.total();
    let before = core::mem::replace(&mut vcpu.mmu.agile.judged.0, exits);
    let is_new = before.count != exits.count;
    // When the exit came; where machine time was read since, machine time has passed.
    let took = if exits.count == before.count + 1 { exits.ticks.wrapping_sub(before.ticks) } else { 0 };
    let came = begun.saturating_sub(took).max(vcpu.timers_ran);
    let memory = vm.read_memory(&mut vcpu.work);
    let nested_root = memory.nested.root(vcpu.mmu.tree);
    let (root_nested, is_stopped, flush) = {
        let mut shadow = vm.lock_shadow(vcpu.id, &mut vcpu.work);
        let Some(shadow) = &mut *shadow else { return };
        if is_new {
            judge(vcpu, shadow.statistics().roots_made);
        }
        let entry = &mut vcpu.mmu.agile;
        let root = shadow.root_table();
        let stands_in = entry.judged.1;
        let is_stopped = vm.stops_at_stand_ins && is_new && stands_in;
        let now = vm.nanos(if is_stopped { came } else { begun }).0;
        let ran = now.saturating_sub(entry.since);
        let flush = if entry.root != root || ran >= CHARGE_EVERY || shadow.is_agile_due(now, stands_in) {
            let charged = core::mem::replace(&mut entry.root, root);
            entry.since = now;
            let before = shadow.agile_moves();
            let flush = shadow.agile_time(&memory.ram(), charged, ran, now, stands_in);
            vcpu.mmu.decisions.shadow(shadow.agile_moves().to_shadow.wrapping_sub(before.to_shadow));
            Some(flush)
        } else {
            None
        };
        (shadow.is_root_nested(), is_stopped, flush)
    };
    drop(memory);
    if let Some(flush) = flush {
        vcpu.perform_flush(flush);
    }
    let words = Words::new(vcpu.mmu.agile.judged.1, root_nested, vcpu.virt.cr3(), nested_root.0);
    vcpu.virt.set_agile(Some(words));
    if is_stopped {
        exclude_time(vcpu, vm, tsc().saturating_sub(came));
    }
}

/// The last `ticks` of the host's TSC were a stand-in, of which the guest is to see nothing: its timers come as much later.
fn exclude_time<V: Virt, M: HostMemory>(vcpu: &mut Vcpu<V>, vm: &Vm<V::NestedFormat, M>, ticks: u64) {
    vm.exclude_time(ticks);
    let offset = vcpu.virt.tsc_offset();
    vcpu.virt.set_tsc_offset(offset.wrapping_sub(ticks));
    vcpu.due = vcpu.due.saturating_add(ticks);
    vcpu.publish_at = vcpu.publish_at.saturating_add(ticks);
}

/// Whether the last exit was a stand-in, and counts it.
fn judge<V: Virt>(vcpu: &mut Vcpu<V>, roots_made: u64) {
    let exit = vcpu.virt.exit();
    let cr3 = vcpu.virt.cr3();
    let entry = &mut vcpu.mmu.agile;
    let fault = core::mem::take(&mut entry.fault_stands_in);
    let was_early = core::mem::take(&mut entry.timer_was_early);
    let stands_in = stands_in(&exit, fault, was_early, || {
        // A root that had to be made is in no cache.
        let made = core::mem::replace(&mut entry.roots_made, roots_made) != roots_made;
        let hit = entry.cache.load(cr3) && !made;
        *(if hit { &mut entry.exits.root_hits } else { &mut entry.exits.root_misses }) += 1;
        hit
    });
    *(if stands_in { &mut entry.exits.stand_ins } else { &mut entry.exits.charged }) += 1;
    entry.judged.1 = stands_in;
}

/// Whether the proposed processor does by itself what led to this exit. `fault`: whether it does if that was a page fault;
/// `was_early`: an interrupt was the timer's, which would come later there; `is_cached`: notes a load of CR3, and says
/// whether its root is in the cache.
fn stands_in(exit: &Exit, fault: bool, was_early: bool, is_cached: impl FnOnce() -> bool) -> bool {
    match exit {
        Exit::Interrupt => was_early,
        Exit::Invlpg(_) | Exit::Invpcid => true,
        // The guest's CR3 is a register of its own; and where reads of CR3 exit, those of others may (`takes_reads_for_cr0`).
        Exit::ControlReg(access) if !access.write => true,
        Exit::ControlReg(access) if access.index == 3 => is_cached(),
        _ => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::RegMove;

    #[test]
    fn what_the_guest_does_with_its_registers_is_charged_where_the_proposed_processor_exits() {
        let access = |index, write| Exit::ControlReg(RegMove { index, write, gpr: None });
        let judge = |exit: Exit, is_cached| stands_in(&exit, false, false, || is_cached);
        for index in [0, 2, 3, 4] {
            assert!(judge(access(index, false), false), "a read of CR{index}");
        }
        assert!(!judge(access(0, true), true) && !judge(access(4, true), true));
        assert!(judge(access(3, true), true) && !judge(access(3, true), false));
    }

    #[test]
    fn the_least_recently_used_root_goes() {
        let mut cache = RootCache::default();
        let misses = (1..=8).filter(|&cr3| !cache.load(cr3)).count();
        assert_eq!(misses, 8);
        assert!((1..=8).all(|cr3| cache.load(cr3)));
        assert!(!cache.load(9), "in place of 1");
        assert!(cache.load(2) && !cache.load(1));
        assert!(!cache.load(3), "in whose place 1 came");
        assert!(cache.load(9) && cache.load(2));
    }
}
