//! A virtual machine: its memory, its chipset and its time. Shared by its VCPUs.
//!
//! Made by `guest::build`, used by `vcpu::run` and the monitor. Lock order: `chipset`, then `memory`, then that of a virtio
//! device, then `shadow`; none is held while a guest runs.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use spin::{Mutex, RwLock};

use crate::device::chipset::Chipset;
use crate::device::pci::PlugError;
use crate::device::virtio::Virtio;
use crate::device::{Nanos, Tsc};
use crate::guest::clock::Clock;
use crate::guest::layout::MemoryLayout;
use crate::guest::ram::{HostAccess, VmMemory};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::guest_walk::PagingFeatures;
use crate::paging::nested::Nested;
use crate::paging::p2m::P2m;
use crate::paging::shadow::Shadow;
use crate::paging::table::TableMemory;
use crate::vcpu::mailbox::Mailbox;

/// Host memory as VMs use it: tables and bytes by physical address.
pub trait HostMemory: TableMemory + HostAccess + Clone {}

impl<T: TableMemory + HostAccess + Clone> HostMemory for T {}

/// What a VM's guest-physical addresses lead to.
pub struct Memory<F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    /// The one truth.
    pub p2m: P2m<M>,
    /// The processor's view of it.
    pub nested: Nested<F, M>,
    /// Access to the bytes.
    pub host: M,
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
    /// Its memory.
    pub memory: RwLock<Memory<F, M>>,
    /// The shadow tables, once they have been used.
    pub shadow: Mutex<Option<Shadow<M, F>>>,
    /// How many pages they may have.
    pub shadow_pages: usize,
    /// What others leave for its VCPUs, by number.
    pub mailboxes: Vec<Mailbox>,
    /// Its VCPUs that no device's interrupt will wake, a bit for each.
    pub deaf: AtomicU64,
    /// Where its RAM is.
    pub layout: MemoryLayout,
    /// From ticks to nanoseconds.
    pub clock: Clock,
    /// Host TSC at the VM's start: machine time 0, which a reset of the guest does not change.
    pub start: u64,
    /// The guest has the paravirtual clock.
    pub pv_clock: bool,
    /// Seconds and nanoseconds since 1970 at machine time 0.
    pub wall_at_zero: (u64, u32),
    /// What guest page tables may contain.
    pub paging_features: PagingFeatures,
    /// Unknown MSRs read as zero instead of raising #GP.
    pub permissive_msr: bool,
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Puts virtio devices on the machine's PCI bus; once, before it runs.
    pub fn attach(&mut self, devices: Virtio) -> Result<(), PlugError> {
        self.virtio = devices.clone();
        self.chipset.get_mut().attach(devices)
    }

    /// Machine time in ticks at host TSC `tsc`. Unlike the guest's TSC it cannot be set by the guest.
    #[inline(always)]
    pub fn ticks(&self, tsc: u64) -> Tsc {
        Tsc(tsc.wrapping_sub(self.start))
    }

    /// Machine time in nanoseconds at host TSC `tsc`.
    #[inline(always)]
    pub fn nanos(&self, tsc: u64) -> Nanos {
        self.clock.nanos(self.ticks(tsc))
    }
}
