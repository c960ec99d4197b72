//! Regions that the hypervisor finds by itself: whether it is to, and what follows for the VM's tables.
//!
//! [`region::rounds`](crate::region::rounds) decides; `vcpu::regions` calls both, on behalf of a VCPU and under the lock of the VM's regions.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::{NotPlaced, PHASE, Records, Regions};
use crate::arch::addr::{Gfn, Gpa, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::pieces::OutOfMemory;
use crate::paging::MapError;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::region::balance::Move;
use crate::region::partition::Info;
use crate::region::rounds::{At, Rounds};
use crate::region::spaces::MOST_CHANGES;
use crate::region::{Effect, Effects, Kind, Owner, Rid, Target};
use crate::vm::{HostMemory, MapChanges, Memory, Vm};

/// Bytes of a root's entries for the half of addresses that programs have.
const USER_BYTES: u64 = PAGE_SIZE / 2;

impl Regions {
    /// For a VM in which the hypervisor looks for regions in this way, or not at all.
    pub fn wanted_from_start(wanted: abi::regions::Regions) -> Regions {
        let regions = Regions::default();
        regions.want(wanted);
        regions
    }

    /// Whether the hypervisor looks for regions, or takes samples of accesses for the VM's tiers.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// How it does.
    pub fn wanted(&self) -> abi::regions::Regions {
        *self.wanted.lock()
    }

    /// Whether it is to, and how, from now on. Regions that were found before stay ([`Vm::give_up_regions`]).
    pub fn want(&self, wanted: abi::regions::Regions) {
        *self.wanted.lock() = wanted;
        let is_sampled = self.is_sampled.load(Ordering::SeqCst);
        self.is_wanted.store(is_sampled || wanted != abi::regions::Regions::Off, Ordering::SeqCst);
    }

    /// Samples of accesses are taken from now on, also if no regions are looked for.
    pub fn sample_always(&self) {
        self.is_sampled.store(true, Ordering::SeqCst);
        self.is_wanted.store(true, Ordering::SeqCst);
    }

    /// The VM's place in the machine; once, before it runs.
    pub fn set_place(&self, at: At) {
        self.at.call_once(|| at);
    }

    /// Where regions go.
    pub fn place(&self) -> Option<&At> {
        self.at.get()
    }

    /// The VM loads no cache any more.
    pub(super) fn withdraw(&self) {
        if let Some(at) = self.at.get() {
            at.caches.withdraw(at.vm);
        }
    }

    /// The VM's virtual time in nanoseconds, of which a VCPU has run `ran_ns`.
    pub fn virtual_ns(&self, ran_ns: u64) -> u64 {
        self.ran_ns.fetch_max(ran_ns, Ordering::Relaxed).max(ran_ns)
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Records {
    /// The regions that were found, those that no cache has, too.
    pub fn found(&self) -> impl Iterator<Item = (Rid, Info)> + '_ {
        let is_found = |info: &Info| {
            matches!(info.owner, Owner::Space(_)) && !matches!(info.kind, Kind::Seed | Kind::Shared)
        };
        self.guest.partition().regions().filter(move |(_, info)| is_found(info))
    }

    /// What finds regions in this way; made if there is nothing yet, or if another way is wanted now.
    ///
    /// # Errors
    /// No memory.
    pub fn rounds(&mut self, wanted: abi::regions::Regioning) -> Result<&mut Rounds, OutOfMemory> {
        match &mut self.rounds {
            Some(rounds) if *rounds.settings() == wanted => {}
            Some(rounds) => rounds.change(wanted, self.guest.partition_mut())?,
            None => self.rounds = Some(Box::new(Rounds::new(wanted, self.guest.partition_mut())?)),
        }
        self.rounds.as_deref_mut().ok_or(OutOfMemory)
    }
}

/// Puts what has become of a region on a list. Regions that are torn down only open: a frame that there is no memory to open is
/// opened by the next fault on it.
fn keep(all: &mut Vec<Effects>, effects: Effects) {
    if effects.iter().next().is_some() && all.try_reserve(1).is_ok() {
        all.push(effects);
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Has records and tables follow what has become of regions.
    pub fn follow_effects(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        effects: &[Effects],
    ) -> MapChanges {
        let mut changes = MapChanges::default();
        let frame = |effect| match effect {
            Effect::Close(Target::Frame(gfn), _) | Effect::Open(Target::Frame(gfn), _) => Some(gfn),
            _ => None,
        };
        let all = || effects.iter().flat_map(Effects::iter);
        // All at once: each call has the other VCPUs flush. A frame without memory for tables is opened by the next fault there.
        if all().any(|effect| frame(effect).is_some()) {
            let partition = records.guest.partition();
            let done = self.set_homes(vcpu, work, partition, all().filter_map(frame));
            changes.add(done.unwrap_or(MapChanges { flush: true, root: true }));
        }
        for effect in all() {
            match effect {
                Effect::Died(rid) => records.forget(rid),
                Effect::Close(Target::Region(rid), _) | Effect::Open(Target::Region(rid), _) => {
                    let partition = records.guest.partition();
                    let done = self.set_homes(vcpu, work, partition, partition.frames_of(rid));
                    changes.add(done.unwrap_or_else(|_| self.open_instead(vcpu, work, records, rid)));
                }
                Effect::Close(Target::From(gfn), _) | Effect::Open(Target::From(gfn), _) => {
                    let partition = records.guest.partition();
                    let done = self.set_homes(vcpu, work, partition, partition.frames_from(gfn));
                    let rid = partition.region_of(gfn).unwrap_or(Rid::POOL);
                    changes.add(done.unwrap_or_else(|_| self.open_instead(vcpu, work, records, rid)));
                }
                Effect::Born(_) | Effect::Close(..) | Effect::Open(..) => {}
            }
        }
        changes
    }

    /// There is no memory to have tables follow a region: it becomes global, which closes nothing.
    #[cold]
    fn open_instead(&self, vcpu: u32, work: &mut u32, records: &mut Records, rid: Rid) -> MapChanges {
        // Some entries have changed in any case.
        self.globalise(vcpu, work, records, rid).unwrap_or(MapChanges { flush: true, root: true })
    }

    /// What follows a phase: regions that bring nothing are given up, or the balancer's moves are made.
    pub fn end_round(&self, vcpu: u32, work: &mut u32, records: &mut Records, vm_ns: u64) -> MapChanges {
        let Records { guest, rounds: Some(rounds), micro, scans, .. } = &mut *records else {
            return MapChanges::default();
        };
        let Some(at) = self.regions.place() else { return MapChanges::default() };
        self.tell_of_pages(work, scans);
        let mut effects = Vec::new();
        let rests = |rid| micro.rests(rid, vm_ns);
        let follow = |effect| keep(&mut effects, effect);
        let moves = rounds.end(guest.partition_mut(), vm_ns, at, rests, follow);
        log::debug!("{}: {moves:x?}, {} regions given up", self.name, effects.len());
        let mut changes = self.follow_effects(vcpu, work, records, &effects);
        changes.add(self.move_regions(vcpu, work, records, moves.unwrap_or_default()));
        changes
    }

    /// Evens the loads of caches as they are now, at a turn that is left out and this virtual time of the VM.
    pub fn balance_regions(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        vm_ns: u64,
    ) -> MapChanges {
        let Records { guest, rounds: Some(rounds), micro, .. } = &mut *records else {
            return MapChanges::default();
        };
        let Some(at) = self.regions.place() else { return MapChanges::default() };
        let moves = rounds.balance(guest.partition(), at, |rid| micro.rests(rid, vm_ns));
        self.move_regions(vcpu, work, records, moves.unwrap_or_default())
    }

    /// Makes the balancer's moves.
    fn move_regions(&self, vcpu: u32, work: &mut u32, records: &mut Records, moves: Vec<Move>) -> MapChanges {
        let mut changes = MapChanges::default();
        for step in moves {
            match self.localise(vcpu, work, records, step.rid, step.to) {
                Ok(more) => {
                    changes.add(more);
                    self.keep_small(work, records.guest.partition().frames_of(step.rid));
                }
                Err(NotPlaced::NoMemory) => {
                    log::warn!(
                        "{}: no host memory to map region {} to a cache",
                        self.name,
                        step.rid.number()
                    );
                    changes.add(MapChanges { flush: true, root: true });
                }
                Err(why) => log::debug!("{}: region {}: {why:?}", self.name, step.rid.number()),
            }
        }
        changes
    }

    /// Unmaps some frames of address spaces that are gone. `is_long`: the guest's page tables have four levels.
    pub fn end_spaces(&self, vcpu: u32, work: &mut u32, records: &mut Records, is_long: bool) -> MapChanges {
        let Some(rounds) = &mut records.rounds else { return MapChanges::default() };
        let has_programs = |root| self.has_programs(work, root, is_long);
        let effects = rounds.sweep(records.guest.partition_mut(), has_programs);
        self.follow_effects(vcpu, work, records, &effects)
    }

    /// Whether the page tables with this root lead to memory of a program's: an entry of the half that programs have is present. Only of
    /// tables of four levels it is known that they do not.
    pub fn has_programs(&self, work: &mut u32, root: u64, is_long: bool) -> bool {
        if !is_long {
            return true;
        }
        let memory = self.read_memory(work);
        let mut entries = [0; 512];
        (0..USER_BYTES).step_by(entries.len()).any(|offset| {
            let read = memory.ram().read(Gpa(root).wrapping_add(offset), &mut entries);
            read.is_err() || entries.iter().step_by(8).any(|first| first & 1 != 0)
        })
    }

    /// Has nested leaves tell of each of these frames by itself, so that samples do.
    pub fn keep_small(&self, work: &mut u32, frames: impl Iterator<Item = Gfn>) {
        let mut memory = self.lock_memory(work);
        frames.for_each(|gfn| memory.nested.keep_small(gfn));
    }

    /// Whether there are tables of a phase. A VCPU may use them still, also where its phase is over and it has not learned of that.
    pub fn has_phase_tables(&self, work: &mut u32) -> bool {
        self.read_memory(work).nested.get(PHASE).is_some()
    }

    /// Makes the tables of a phase, of which there are none, in which nothing is open.
    ///
    /// # Errors
    /// No memory.
    pub fn begin_phase(&self, work: &mut u32) -> Result<(), MapError> {
        let mut memory = self.lock_memory(work);
        let host = memory.host.clone();
        memory.nested.add_for_phase(PHASE, host)
    }

    /// Frees the tables of a phase. Its VCPU uses others, has a root of theirs found, and flushes before it enters the guest.
    pub fn end_phase(&self, vcpu: u32, work: &mut u32) {
        self.lock_memory(work).nested.remove(PHASE);
        if let Some(shadow) = &mut *self.lock_shadow(vcpu, work) {
            let _flushed_by_the_caller = shadow.end_phase(PHASE);
        }
    }

    /// Opens pages in the tables of the phase, and closes others there, in shadow tables too. Translations of those are gone when the
    /// VCPU has flushed; no other one uses the tables. `opened` gets the pages that were not open, as far as it has room.
    ///
    /// # Errors
    /// No memory for tables: some pages are not open.
    pub fn change_phase(
        &self,
        vcpu: u32,
        work: &mut u32,
        close: &[Gfn],
        open: impl Iterator<Item = Gfn>,
        opened: &mut Vec<Gfn>,
    ) -> Result<(), MapError> {
        let mut memory = self.lock_memory(work);
        let Memory { p2m, nested, .. } = &mut *memory;
        let Some(mut pages) = nested.tree_mut(PHASE).phase_pages(p2m) else { return Ok(()) };
        close.iter().for_each(|gfn| pages.close(*gfn));
        let mut result = Ok(());
        for gfn in open {
            match pages.open(gfn) {
                Ok(true) if opened.len() < opened.capacity() => opened.push(gfn),
                Ok(_) => {}
                Err(error) => result = Err(error),
            }
        }
        if !close.is_empty()
            && let Some(shadow) = &mut *self.lock_shadow(vcpu, work)
        {
            let frames = close.iter().filter_map(|gfn| pages.place(*gfn));
            let _flushed_by_the_caller = shadow.close_in_phase(PHASE, frames.map(Hpa::frame));
        }
        result
    }

    /// Ends the search for regions, and opens those that it has found. No VCPU runs.
    pub fn give_up_regions(&self, vcpu: u32, work: &mut u32, records: &mut Records) -> MapChanges {
        let Some(rounds) = &mut records.rounds else { return MapChanges::default() };
        let mut effects = Vec::new();
        rounds.give_up(records.guest.partition_mut(), |effect| keep(&mut effects, effect));
        let mut changes = self.follow_effects(vcpu, work, records, &effects);
        // Two passes over all frames: one may be running that has left some behind.
        for _ in 0..2 * (records.guest.partition().frames() / MOST_CHANGES + 1) {
            let rounds = records.rounds.as_mut();
            let left = rounds.and_then(|rounds| rounds.leave(records.guest.partition_mut()));
            let Some(effects) = left else { break };
            changes.add(self.follow_effects(vcpu, work, records, &effects));
        }
        records.rounds = None;
        self.regions.withdraw();
        changes
    }
}
