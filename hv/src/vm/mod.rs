//! A virtual machine: its memory, its chipset and its time. Shared by its VCPUs.
//!
//! Made by `guest::build`, used by `vcpu::run` and the monitor. Lock order: `chipset`, then `memory`, then that of a virtio
//! device, then `shadow`, then the pager's; none is held while a guest runs. The holder of `shadow` may wait for other PCPUs
//! in a [`Shootdown`]. So a PCPU that waits for it, or for a lock whose holder may wait for it, answers shootdowns meanwhile:
//! [`Vm::lock_shadow`], [`Vm::share_shadow`], [`Vm::lock_memory`], [`Vm::read_memory`]. A PCPU that waits for `memory` must not hold
//! a lock for which others wait without answering, such as the chipset.

pub mod clock;
pub mod counter_page;
pub mod covered;
pub mod hlt_tracker;
pub mod layout;
pub mod mailbox;
pub mod memory_records;
pub mod overcommit;
pub mod pvclock;
pub mod regions;
pub mod sampling;
pub mod tiers;
pub mod translation;
pub mod work;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use spin::{Mutex, Once, RwLock, RwLockReadGuard, RwLockWriteGuard};

use self::clock::{Clock, Start};
use crate::arch::addr::{Gva, Hpa};
use crate::device::chipset::Chipset;
use crate::device::pci::PlugError;
use crate::device::virtio::Virtio;
use crate::device::{Nanos, Tsc};
use crate::mem::host_access::HostAccess;
use crate::mem::pager::Pager;
use crate::mem::table_memory::TableMemory;
use crate::mem::tier::Tiers;
use crate::paging::MapError;
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::guest_walk::PagingFeatures;
use crate::paging::nested_trees::NestedTrees;
use crate::paging::p2m::P2m;
use crate::paging::range::{Changed, Flush};
use crate::paging::shadow::{Limit, Shadow, Shootdown, TlbFlush};
use crate::paging::vm_memory::VmMemory;
use crate::smp::lock::{self, Writers};
use crate::vm::covered::Covered;
use crate::vm::hlt_tracker::HltTracker;
use crate::vm::layout::MemoryLayout;
use crate::vm::mailbox::Mailbox;
use crate::vm::regions::Regions;
use crate::vm::sampling::Sampling;
use crate::vm::translation::Translation;

/// Host memory as VMs use it: tables and bytes by physical address.
pub trait HostMemory: TableMemory + HostAccess + Clone {}

impl<T: TableMemory + HostAccess + Clone> HostMemory for T {}

/// What a VM's guest-physical addresses lead to.
pub struct Memory<F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    /// The one truth.
    pub p2m: P2m<M>,
    /// The processor's view of it.
    pub nested: NestedTrees<F, M>,
    /// Access to the bytes.
    pub host: M,
    /// What registers of local APICs lie over.
    pub covered: Covered,
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Memory<F, M> {
    /// The RAM as the guest sees it.
    pub fn ram(&self) -> VmMemory<'_, M, M> {
        VmMemory::new(&self.p2m, &self.host)
    }
}

/// One VM.
pub struct Vm<F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    /// Its name in messages.
    pub name: String,
    /// All devices but the local APICs.
    pub chipset: Mutex<Chipset>,
    /// The virtio devices, which the chipset finds too.
    pub virtio: Virtio,
    /// Its memory. For VCPUs: [`Vm::read_memory`], [`Vm::lock_memory`].
    pub memory: RwLock<Memory<F, M>>,
    /// Writers that wait for it.
    pub writers: Writers,
    /// The shadow tables, once they have been used.
    /// For VCPUs: [`Vm::lock_shadow`], [`Vm::share_shadow`].
    pub shadow: RwLock<Option<Shadow<M, F>>>,
    /// VCPUs that wait to have them exclusively.
    pub shadow_writers: Writers,
    /// How many pages they may have, and how much memory.
    pub shadow_limit: Limit,
    /// What others leave for its VCPUs, by number.
    pub mailboxes: Vec<Mailbox>,
    /// Its VCPUs that no device's interrupt will wake.
    pub hlt: HltTracker,
    /// What its guest has divided its memory into. Its lock is taken with no other one held, and before that of the memory.
    pub regions: Regions,
    /// Which engine translates the addresses of all its VCPUs.
    pub translation: Translation,
    /// Its samples.
    pub sampling: Sampling,
    /// How one VCPU has the others forget translations, if there are others.
    pub shootdown: Once<Arc<dyn Shootdown>>,
    /// Where its RAM is.
    pub layout: MemoryLayout,
    /// From ticks to nanoseconds.
    pub clock: Clock,
    /// Where machine time begins.
    pub start: Start,
    /// The machine models the processor that agile paging is for, and does not charge what exits do in its place: machine time
    /// is stopped meanwhile ([`Vm::exclude_time`]). For VMs of one VCPU.
    pub stops_at_stand_ins: bool,
    /// The guest has the paravirtual clock.
    pub pv_clock: bool,
    /// Seconds and nanoseconds since 1970 at machine time 0.
    pub wall_at_zero: (u64, u32),
    /// What guest page tables may contain.
    pub paging_features: PagingFeatures,
    /// Unknown MSRs read as zero instead of raising #GP.
    pub permissive_msr: bool,
    /// Whether [`Memory::covered`] has any page; readable without the memory's lock.
    pub covers: AtomicBool,
    /// Has all memory of an overcommitted VM. Behind the tables: it gives frames back, to which they lead.
    pub pager: Option<Arc<Pager>>,
    /// Its part of the machine's fast memory; the same holds.
    pub tiers: Option<Arc<Tiers>>,
    /// When samples had records of these two.
    pub memory_records: memory_records::Pace,
}

/// What a change of the guest-physical address space leaves to do for the VCPU that asked for it.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapChanges {
    /// Translations must go.
    pub flush: bool,
    /// Shadow tables were dropped: the root must be loaded again.
    pub root: bool,
}

impl MapChanges {
    /// Takes in what another change leaves.
    pub fn add(&mut self, other: MapChanges) {
        self.flush |= other.flush;
        self.root |= other.root;
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Puts virtio devices on the machine's PCI bus; once, before it runs.
    pub fn attach(&mut self, devices: Virtio) -> Result<(), PlugError> {
        self.virtio = devices.clone();
        self.chipset.get_mut().attach(devices)
    }

    /// Locks the shadow tables for work on behalf of this VCPU. Their holder may wait for this PCPU in a shootdown: so this
    /// answers shootdowns while it waits, and then adds [`work::MAIL`] to `work`.
    #[inline(always)]
    pub fn lock_shadow(&self, vcpu: u32, work: &mut u32) -> RwLockWriteGuard<'_, Option<Shadow<M, F>>> {
        let mut guard = match self.shadow.try_write() {
            Some(guard) => guard,
            None => self.wait_for_shadow(work),
        };
        if let Some(shadow) = &mut *guard {
            shadow.switch_vcpu(vcpu);
        }
        guard
    }

    #[cold]
    #[inline(never)]
    fn wait_for_shadow(&self, work: &mut u32) -> RwLockWriteGuard<'_, Option<Shadow<M, F>>> {
        self.shadow_writers.write(&self.shadow, || self.answer(work))
    }

    /// Locks the shadow tables together with other VCPUs, behind those that wait to have them exclusively; waits like
    /// [`Vm::lock_shadow`].
    #[inline(always)]
    pub fn share_shadow(&self, work: &mut u32) -> RwLockReadGuard<'_, Option<Shadow<M, F>>> {
        lock::take(|| self.shadow.try_read(), || self.shadow_writers.let_pass(|| self.answer(work)))
    }

    /// Whether it has several VCPUs.
    #[inline(always)]
    pub fn is_smp(&self) -> bool {
        self.mailboxes.len() > 1
    }

    /// Takes the memory, to change it; waits like [`Vm::lock_shadow`].
    #[cold]
    pub fn lock_memory(&self, work: &mut u32) -> RwLockWriteGuard<'_, Memory<F, M>> {
        self.writers.write(&self.memory, || self.answer(work))
    }

    /// Locks the memory for reading, behind waiting writers; waits like [`Vm::lock_shadow`]. Readers must not re-enter: a waiting
    /// writer would deadlock them.
    #[inline(always)]
    pub fn read_memory(&self, work: &mut u32) -> RwLockReadGuard<'_, Memory<F, M>> {
        lock::take(|| self.memory.try_read(), || self.let_writers_pass(work))
    }

    #[cold]
    #[inline(never)]
    fn let_writers_pass(&self, work: &mut u32) {
        self.writers.let_pass(|| self.answer(work));
    }

    /// What this processor does between two attempts to take a lock.
    #[cold]
    #[inline(never)]
    pub fn answer(&self, work: &mut u32) {
        if let Some(others) = self.shootdown.get() {
            *work |= work::MAIL;
            others.service();
        }
        core::hint::spin_loop();
    }

    /// Changes the guest-physical address space on behalf of this VCPU, and all that is derived from it; other VCPUs have
    /// forgotten it on return. Waits like [`Vm::lock_shadow`].
    ///
    /// # Errors
    /// Those of `edit`, which then has changed nothing.
    #[cold]
    pub fn change_map(
        &self,
        vcpu: u32,
        work: &mut u32,
        edit: impl FnOnce(&mut P2m<M>, &mut Covered) -> Result<Vec<Changed>, MapError>,
    ) -> Result<MapChanges, MapError> {
        let (changed, flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, covered, host } = &mut *memory;
            let changed = edit(p2m, covered)?;
            self.covers.store(!covered.is_empty(), Ordering::Release);
            let mut flush = Flush::None;
            for &change in &changed {
                // On an error the nested tables hold part of the change, which takes the page away all the same; what is
                // missing follows at the next fault.
                flush = flush.and(nested.apply(p2m, change).unwrap_or(Flush::All));
            }
            (changed, flush, nested.take_retired(), host.clone())
        };
        let changes = self.translations_changed(vcpu, work, &changed, flush);
        retired.free(&host);
        Ok(changes)
    }

    /// Nested tables have changed, and owe `flush`: shadow tables and the other VCPUs follow, before this returns.
    #[cold]
    pub fn translations_changed(
        &self,
        vcpu: u32,
        work: &mut u32,
        changed: &[Changed],
        flush: Flush,
    ) -> MapChanges {
        let mut changes = MapChanges::default();
        let nested = {
            let mut shadow = self.lock_shadow(vcpu, work);
            if let Some(shadow) = &mut *shadow {
                let (reload, owed) = shadow.apply(changed);
                changes = MapChanges { flush: owed != TlbFlush::None, root: reload.is_some() };
            }
            // The engine in force changes under this lock alone, and a VCPU that changes to nested tables flushes everything.
            self.translation.in_force() == Engine::Nested
        };
        if nested && !flush.is_none() {
            changes.flush = true;
            self.tell_others(work);
        }
        changes
    }

    /// Takes registers of local APICs off the guest's memory, for a reset. No VCPU runs.
    pub fn uncover(&self) {
        if self.covers.swap(false, Ordering::Relaxed) {
            let all = |p2m: &mut P2m<M>, covered: &mut Covered| Ok(covered.uncover_all(p2m));
            // New VCPUs hold no translations, and load their roots.
            let _new_vcpus_follow = self.change_map(0, &mut 0, all);
        }
    }

    /// Where the shadow tables of a VM with one VCPU say that code is: a short way to it. See [`Shadow::code`].
    #[inline]
    pub fn code(&self, gva: Gva, user: bool) -> Option<Hpa> {
        if self.shootdown.get().is_some() {
            return None;
        }
        self.shadow.read().as_ref()?.code(gva, user)
    }

    /// Has the other VCPUs forget what they remember of tables that have changed. This one answers meanwhile, as in
    /// [`Vm::lock_shadow`].
    pub fn tell_others(&self, work: &mut u32) {
        if let Some(others) = self.shootdown.get() {
            *work |= work::MAIL;
            others.request(false);
        }
    }

    /// Machine time in ticks at host TSC `tsc`. Unlike the guest's TSC it cannot be set by the guest.
    #[inline(always)]
    pub fn ticks(&self, tsc: u64) -> Tsc {
        Tsc(tsc.wrapping_sub(self.start.tsc()))
    }

    /// The last `ticks` of the host's TSC were no machine time, nor the guest's: its only VCPU takes them off its TSC, too, and no
    /// machine time in them has been read.
    pub fn exclude_time(&self, ticks: u64) {
        self.start.delay(ticks);
        self.sampling.delay(ticks);
    }

    /// Machine time in nanoseconds at host TSC `tsc`.
    #[inline(always)]
    pub fn nanos(&self, tsc: u64) -> Nanos {
        self.clock.nanos(self.ticks(tsc))
    }
}
