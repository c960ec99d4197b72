//! The regions of a VM's memory, and what follows from them for its tables.
//!
//! The records exist from the guest's first call on, until a reset. What must hold while the lock is free: the P2m says of each frame
//! what the partition says, mapped to a cache or open in all ([`P2m::set_home`](crate::paging::p2m::P2m::set_home)). So a
//! fault on closed memory, which has seen the P2m, finds its region under the lock, or that it has been opened meanwhile.
//!
//! A VM is *divided* from the moment on when a first region is mapped to a cache, until a reset: each of its VCPUs then runs on the
//! tables of the cache domain of its PCPU. They are made here, and `vcpu::micro` has VCPUs use them. A VM that is not divided has
//! one set of tables, and no code of an exit asks whether it is.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use spin::{Mutex, MutexGuard, Once};

use super::{HostMemory, MapChanges, Memory, Vm};
use crate::arch::addr::{Gfn, Gpa, PAGE_SHIFT, PAGE_SIZE};
use crate::arch::counters::{Spent, SpentOn};
use crate::mem::objects::Objects;
use crate::mem::pieces::OutOfMemory;
use crate::paging::MapError;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::range::{Changed, Flush, GpaRange};
use crate::paging::tree_key::TreeKey;
use crate::region::guest::GuestRegions;
use crate::region::micro::Micro;
use crate::region::partition::Partition;
use crate::region::rounds::{At, Rounds};
use crate::region::{Domain, Kind, Refused, Rid};
use crate::smp::lock;
use crate::vm::layout::MemoryLayout;
use crate::vm::work;

mod automatic;
mod scans;
mod snapshot;
#[cfg(test)]
mod tests;

pub use scans::Scans;

/// What is known of a VM's regions.
#[derive(Debug)]
pub struct Records {
    /// The partition of its memory, with the guest's own regions.
    pub guest: GuestRegions,
    /// What regions that are mapped to caches have done to VCPUs.
    pub micro: Micro,
    /// What finds regions and maps them to caches, if that is wanted.
    pub rounds: Option<Box<Rounds>>,
    /// Samples of the guest's accesses.
    pub scans: Scans,
    /// Time of the VM from which on there is to be a [`Regions::snapshot`] again, in nanoseconds.
    snapshot_due_ns: u64,
}

impl Records {
    /// A region has died: its number may come again.
    pub fn forget(&mut self, rid: Rid) {
        self.micro.end(rid);
        if let Some(rounds) = &mut self.rounds {
            rounds.forget(rid);
        }
    }
}

/// The tables of the VCPU that is in a phase of regioning. Which memory they lead to does not depend on the cache domain.
pub const PHASE: TreeKey = match TreeKey::new(0, 1) {
    Some(key) => key,
    None => unreachable!(),
};

/// See the module.
#[derive(Debug, Default)]
pub struct Regions {
    records: Mutex<Option<Box<Records>>>,
    divided: AtomicBool,
    /// Cache domains of the machine's PCPUs, less one.
    more_domains: AtomicU8,
    /// Whether regions are looked for, and how.
    is_wanted: AtomicBool,
    /// Samples are wanted for other reasons.
    is_sampled: AtomicBool,
    wanted: Mutex<abi::regions::Regions>,
    /// What a policy of page replacement looks at: pages in the guest's regions are noted there.
    objects: Once<Arc<Objects>>,
    /// Where they go; missing in a machine without guests.
    at: Once<At>,
    /// Virtual time of the VM in nanoseconds: what its VCPU that has run most has run.
    ran_ns: AtomicU64,
    /// What the hypervisor executes from where a VCPU's registers are saved that moves to another cache to the interrupt for the PCPU where
    /// it goes on: moves that are counted, instructions, cycles.
    leaving: [AtomicU64; 3],
}

/// Why a region is not mapped to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPlaced {
    /// The machine has no such cache domain.
    Domain,
    /// The partition refuses it.
    Refused(Refused),
    /// The host has no memory for tables or records. The region is global now.
    NoMemory,
}

impl From<Refused> for NotPlaced {
    fn from(refused: Refused) -> NotPlaced {
        NotPlaced::Refused(refused)
    }
}

impl Regions {
    /// Counts what the hypervisor executes for a move from where the VCPU's registers are saved to the interrupt for the other PCPU.
    pub fn count_leaving(&self, spent: Spent) {
        let [count, instructions, cycles] = &self.leaving;
        count.fetch_add(1, Ordering::Relaxed);
        instructions.fetch_add(spent.instructions, Ordering::Relaxed);
        cycles.fetch_add(spent.cycles, Ordering::Relaxed);
    }

    /// What [`Regions::count_leaving`] was told so far.
    pub fn leaving(&self) -> SpentOn {
        let [count, instructions, cycles] = self.leaving.each_ref().map(|all| all.load(Ordering::Relaxed));
        SpentOn { count, all: Spent { instructions, cycles } }
    }

    /// Locks them on behalf of a VCPU; between two attempts its PCPU does what `wait` says. No other lock of the VM is held. A request of the guest's takes no
    /// longer than [`MAX_FRAMES`](crate::region::guest::MAX_FRAMES) frames, the first one as long as the VM's memory is large; to
    /// map a region to a cache or to open it as long as the region is large.
    pub fn lock(&self, wait: impl FnMut()) -> MutexGuard<'_, Option<Box<Records>>> {
        lock::take(|| self.records.try_lock(), wait)
    }

    /// The same without waiting: another VCPU has them, perhaps to move 2 MiB of memory.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Option<Box<Records>>>> {
        self.records.try_lock()
    }

    /// The records, which are made if there are none.
    ///
    /// # Errors
    /// The host has no memory for them.
    #[inline]
    pub fn records<'a>(
        &self,
        slot: &'a mut Option<Box<Records>>,
        layout: MemoryLayout,
    ) -> Result<&'a mut Records, OutOfMemory> {
        if slot.is_none() {
            *slot = Some(self.make_records(layout)?);
        }
        slot.as_deref_mut().ok_or(OutOfMemory)
    }

    #[cold]
    #[inline(never)]
    fn make_records(&self, layout: MemoryLayout) -> Result<Box<Records>, OutOfMemory> {
        let frames =
            layout.ram().into_iter().map(|ram| Gfn(ram.start.0 >> PAGE_SHIFT)..Gfn(ram.end.0 >> PAGE_SHIFT));
        let mut guest = GuestRegions::new(frames)?;
        guest.tell(self.objects.get().cloned());
        Ok(Box::new(Records {
            guest,
            micro: Micro::default(),
            rounds: None,
            scans: Scans::default(),
            snapshot_due_ns: 0,
        }))
    }

    /// Whether VCPUs run on the tables of their cache domains.
    #[inline(always)]
    pub fn is_divided(&self) -> bool {
        self.divided.load(Ordering::Relaxed)
    }

    /// The cache domains of the machine: 1 to 16.
    pub fn domains(&self) -> u8 {
        self.more_domains.load(Ordering::Relaxed) + 1
    }

    /// Pages that the guest puts into regions of its own are objects there, for a policy of page replacement; once, before the VM runs.
    pub fn tell(&self, objects: Arc<Objects>) {
        self.objects.call_once(|| objects);
    }

    /// The machine has this many cache domains; once, before the VM runs. From the sixteenth on they count as one.
    pub fn set_domains(&self, domains: usize) {
        let domains = domains.clamp(1, TreeKey::DOMAINS.into()) as u8;
        self.more_domains.store(domains - 1, Ordering::Relaxed);
    }
}

/// The runs of neighbouring frames with one home among `frames`, with the cache domain of each.
fn runs(
    partition: &Partition,
    frames: impl Iterator<Item = Gfn>,
) -> impl Iterator<Item = (GpaRange, Option<u8>)> {
    let home = |gfn: Gfn| match partition.info_of(gfn).map(|info| info.kind) {
        Some(Kind::Local(domain)) => Some(domain.number()),
        _ => None,
    };
    let mut frames = frames.peekable();
    core::iter::from_fn(move || {
        let first = frames.next()?;
        let to = home(first);
        let mut count = 1;
        while frames.next_if(|next| next.0 == first.0 + count && home(*next) == to).is_some() {
            count += 1;
        }
        Some((GpaRange::new(Gpa(first.0 << PAGE_SHIFT), count * PAGE_SIZE)?, to))
    })
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Maps a region to a cache, on behalf of a VCPU. Its frames are closed in all other domains on return, but for the translations
    /// that the caller's processor has: see [`MapChanges`].
    ///
    /// # Errors
    /// Nothing has changed, or the region is global.
    pub fn localise(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        rid: Rid,
        domain: Domain,
    ) -> Result<MapChanges, NotPlaced> {
        if domain.number() >= self.regions.domains() {
            return Err(NotPlaced::Domain);
        }
        records.micro.begin(rid).map_err(|_| NotPlaced::NoMemory)?;
        self.divide(work).map_err(|_| NotPlaced::NoMemory)?;
        let _performed_as_a_whole = records.guest.partition_mut().localise(rid, domain)?;
        self.follow_region(vcpu, work, records, rid).inspect_err(|_| {
            let _global_regions_close_nothing = self.globalise(vcpu, work, records, rid);
        })
    }

    /// Makes a region global: its frames are open in all domains on return.
    ///
    /// # Errors
    /// The partition refuses it. Without memory for tables some frames stay closed until the next fault there, which tries again.
    pub fn globalise(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        rid: Rid,
    ) -> Result<MapChanges, NotPlaced> {
        let _performed_as_a_whole = records.guest.partition_mut().globalise(rid)?;
        self.follow_region(vcpu, work, records, rid)
    }

    /// Opens a region that is mapped to a cache, until it is mapped to one again.
    ///
    /// # Errors
    /// As [`Vm::globalise`].
    pub fn open_region(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        rid: Rid,
    ) -> Result<MapChanges, NotPlaced> {
        let _performed_as_a_whole = records.guest.partition_mut().open(rid)?;
        self.follow_region(vcpu, work, records, rid)
    }

    /// Has the tables follow where the frames of a region may be used now.
    fn follow_region(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &Records,
        rid: Rid,
    ) -> Result<MapChanges, NotPlaced> {
        let partition = records.guest.partition();
        self.set_homes(vcpu, work, partition, partition.frames_of(rid)).map_err(|_| NotPlaced::NoMemory)
    }

    /// Has the tables follow what a request of the guest's has done to these frames. If memory for that is missing, the region is
    /// made global, which needs none.
    pub fn follow_request(
        &self,
        vcpu: u32,
        work: &mut u32,
        records: &mut Records,
        frames: &[Gfn],
        rid: Option<Rid>,
    ) -> MapChanges {
        let partition = records.guest.partition();
        if let Ok(changes) = self.set_homes(vcpu, work, partition, frames.iter().copied()) {
            return changes;
        }
        let opened = rid.and_then(|rid| self.globalise(vcpu, work, records, rid).ok());
        // Some entries have changed all the same.
        opened.unwrap_or(MapChanges { flush: true, root: true })
    }

    /// Has P2m and tables say of these frames what the partition says.
    ///
    /// # Errors
    /// No memory: what was to be closed may be open still.
    pub fn set_homes(
        &self,
        vcpu: u32,
        work: &mut u32,
        partition: &Partition,
        frames: impl Iterator<Item = Gfn>,
    ) -> Result<MapChanges, MapError> {
        let mut all: Option<Changed> = None;
        let mut result = Ok(());
        let (flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, covered, host } = &mut *memory;
            let mut flush = Flush::None;
            for (range, home) in runs(partition, frames) {
                covered.set_home(range, home);
                let changed = p2m.set_home(range, home).unwrap_or_else(|error| {
                    result = Err(error);
                    // A part of it.
                    p2m.changed_at(range)
                });
                flush = flush.and(nested.close(p2m, changed));
                all = Some(all.map_or(changed, |all| all.and(changed)));
                if result.is_err() {
                    break;
                }
            }
            (flush, nested.take_retired(), host.clone())
        };
        let changes = self.translations_changed(vcpu, work, all.as_slice(), flush);
        retired.free(&host);
        result.map(|()| changes)
    }

    /// Each VCPU runs on the tables of its cache domain from its next entry on.
    fn divide(&self, work: &mut u32) -> Result<(), MapError> {
        if self.regions.is_divided() {
            return Ok(());
        }
        {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            for key in (0..self.regions.domains()).filter_map(|domain| TreeKey::new(domain, 0)) {
                nested.add(key, host.clone(), p2m)?;
            }
        }
        self.regions.divided.store(true, Ordering::SeqCst);
        self.mailboxes.iter().for_each(|mailbox| mailbox.request(work::TREE));
        // All look into their mailboxes, this one too.
        *work |= work::MAIL;
        self.tell_others(work);
        Ok(())
    }

    /// Ends all regions, for a reset. No VCPU runs, and new ones begin on the first set of tables.
    pub fn forget_regions(&self) {
        let Some(mut records) = self.regions.records.lock().take() else { return };
        self.regions.ran_ns.store(0, Ordering::Relaxed);
        self.regions.withdraw();
        self.regions.objects.get().into_iter().for_each(|objects| objects.clear());
        // No VCPU is in a phase any more.
        self.memory.write().nested.remove(PHASE);
        if let Some(shadow) = &mut *self.shadow.write() {
            shadow.select_first();
            // What is kept over a time on nested tables would be open in the next phase.
            let _no_vcpu_runs = shadow.end_phase(PHASE);
        }
        if !self.regions.divided.swap(false, Ordering::SeqCst) {
            return;
        }
        let regions = records.guest.partition().regions();
        let locals: Vec<Rid> =
            regions.filter(|(_, info)| matches!(info.kind, Kind::Local(_))).map(|(rid, _)| rid).collect();
        for rid in locals {
            // What stays closed for want of memory is opened by the first fault there.
            let _new_vcpus_hold_no_translations = self.globalise(0, &mut 0, &mut records, rid);
        }
    }
}
