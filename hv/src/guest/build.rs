//! Makes a VM: memory, tables, devices, the loaded kernel. Called at the start of a VM and, for the contents alone, at each
//! reset of the guest.

use alloc::string::ToString;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::AtomicBool;

use abi::config::Replacement;
use spin::{Mutex, Once, RwLock};

use crate::arch::addr::{Gpa, Hpa, PageSize};
use crate::device::Nanos;
use crate::device::chipset::{Chipset, Options};
use crate::device::layout as devices;
use crate::device::virtio::Virtio;
use crate::guest::acpi::{self, AcpiConfig, AcpiError};
use crate::guest::bundle::Files;
use crate::guest::config::{Protocol, VmConfig};
use crate::guest::load::{self, BootState, LoadError, Request};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::pager::Pager;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::guest_walk::PagingFeatures;
use crate::paging::nested_trees::NestedTrees;
use crate::paging::shadow::Limit;
use crate::paging::{GpaRange, MapError, P2m};
use crate::probe;
use crate::sched::topology::PcpuSet;
use crate::smp::lock::Writers;
use crate::vm::clock::{Clock, Start};
use crate::vm::covered::Covered;
use crate::vm::hlt_tracker::HltTracker;
use crate::vm::layout::{HIGH_RAM_BASE, MemoryLayout, PIECE};
use crate::vm::mailbox::Mailbox;
use crate::vm::memory_records::Pace;
use crate::vm::regions::Regions;
use crate::vm::sampling::Sampling;
use crate::vm::translation::Translation;
use crate::vm::{HostMemory, Memory, Vm};

/// Why a VM could not be made.
#[derive(Debug)]
pub enum BuildError {
    /// Not enough host memory for the guest's RAM: wanted and found, in MiB.
    Memory {
        /// MiB that the configuration asks for.
        wanted: u64,
        /// MiB that could be had.
        found: u64,
    },
    /// The share of an overcommitted guest is too small.
    Overcommit {
        /// MiB of memory that the configuration asks for.
        wanted: u64,
        /// MiB of the host's that it may have.
        share: u64,
        /// MiB that it asks to have resident.
        resident: Option<u64>,
    },
    /// The guest is to have more fast memory than the machine has.
    Fast {
        /// MiB that the configuration asks for.
        wanted: u64,
        /// MiB of the machine.
        there: u64,
    },
    /// There is no host memory for the tables by which pages leave fast memory.
    Evict {
        /// `fast-evict`.
        policy: Replacement,
        /// KiB that they take.
        kib: u64,
    },
    /// The policy does not order that much fast memory.
    EvictMost {
        /// `fast-evict`.
        policy: Replacement,
        /// MiB that it orders.
        most: u64,
        /// MiB of the machine.
        there: u64,
    },
    /// Not enough host memory for this, of which the guest wants several.
    Room(&'static str),
    /// No host memory for the tables that map the guest's memory.
    Tables(MapError),
    /// No host memory for that many shadow pages.
    Shadow,
    /// The affinity names no processor of this machine that runs guests.
    Affinity {
        /// PCPUs of the machine.
        pcpus: usize,
        /// Those of them that run guests.
        fit: PcpuSet,
    },
    /// The machine memory that a disk shall be in cannot be its.
    Disk {
        /// Where it begins.
        address: u64,
        /// Why not.
        why: &'static str,
    },
    /// A file cannot be loaded.
    Load(LoadError),
    /// The guest's tables do not fit where firmware puts them.
    Firmware(AcpiError),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::Memory { wanted, found } => write!(
                f,
                "the guest's {wanted} MiB of memory are more than the {found} MiB that the host has free; \
                 lower `memory_mib` (pal: --mem) or give the host more"
            ),
            BuildError::Overcommit { wanted, share, resident: None } => write!(
                f,
                "the guest's share of the host's memory is {share} MiB, less than an eighth of its {wanted} MiB with what its tables \
                 take; lower `memory_mib` (pal: --mem) or give the host more"
            ),
            BuildError::Fast { wanted, there: 0 } => write!(
                f,
                "`fast_mib` is {wanted}, and the machine has no fast memory; name some with `fast-mem` (pal: --fast-mem) or leave \
                 `fast_mib` out"
            ),
            BuildError::Fast { wanted, there } => write!(
                f,
                "`fast_mib` is {wanted}, and the machine has {there} MiB of fast memory; lower it or leave it out"
            ),
            BuildError::Overcommit { share, resident: Some(resident), .. } => write!(
                f,
                "`resident_mib` is {resident}, and the guest's share of the host's memory is {share} MiB, for its tables and \
                 evicted pages, too; lower it or give the host more"
            ),
            BuildError::Evict { policy, kib } => write!(
                f,
                "the host has no memory left for the {kib} KiB of tables of `fast-evict={policy}`; take `fast-evict=clock`, whose tables \
                 are small, or `lazy`, which needs none (pal: --fast-evict), lower `memory_mib`, or give the host more"
            ),
            BuildError::EvictMost { policy, most, there } => write!(
                f,
                "`fast-evict={policy}` orders up to {most} MiB of fast memory, and the machine has {there}; take `fast-evict=lazy` \
                 (pal: --fast-evict) or less `fast-mem`"
            ),
            BuildError::Room(what) => write!(
                f,
                "the host has no memory left for the guest's {what}; lower `memory_mib` (pal: --mem), ask for fewer of \
                 them, or give the host more"
            ),
            BuildError::Tables(_) => f.write_str(
                "the host has no memory left for the tables that map the guest's; lower `memory_mib` (pal: --mem) or give the host more",
            ),
            BuildError::Shadow => f.write_str(
                "the host has no memory left for the guest's shadow tables; lower `shadow_pages` (pal: --shadow-pages) or give the host more",
            ),
            BuildError::Affinity { pcpus, fit } if fit.len() < *pcpus => write!(
                f,
                "`affinity` names no processor that runs guests, as {} of {pcpus} do; change it or leave it out",
                probe::runs(*fit)
            ),
            BuildError::Affinity { pcpus, .. } => write!(
                f,
                "`affinity` names no processor of this machine, which has {pcpus}, counted from 0; change it or leave it out"
            ),
            BuildError::Disk { address, why } => {
                write!(f, "there can be no disk in machine memory at {address:#x} (`disks.address`): {why}")
            }
            BuildError::Load(e) => e.fmt(f),
            BuildError::Firmware(e) => e.fmt(f),
        }
    }
}

impl From<MapError> for BuildError {
    fn from(e: MapError) -> Self {
        BuildError::Tables(e)
    }
}

impl From<LoadError> for BuildError {
    fn from(e: LoadError) -> Self {
        BuildError::Load(e)
    }
}

/// The host as the builder needs it.
pub struct HostFacts {
    /// TSC frequency.
    pub tsc_khz: u64,
    /// Host TSC now: the VM's time starts.
    pub tsc: u64,
    /// Seconds since 1970 now, for the guest's real-time clock.
    pub wall_seconds: u64,
    /// What guest page tables may contain.
    pub paging: PagingFeatures,
    /// The largest leaf that the processor's nested tables can have.
    pub largest_leaf: PageSize,
    /// It is a lab machine.
    pub is_modelled: bool,
}

/// Makes a VM with RAM from `ram(bytes)`, which returns a block of host memory of at most that size, the largest it has.
/// With a `pager` it has all its memory from that. Its contents are not loaded yet: see [`fill`].
pub fn build<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    config: &VmConfig,
    host: M,
    facts: &HostFacts,
    mut ram: impl FnMut(u64) -> Option<(Hpa, u64)>,
    pager: Option<Arc<Pager>>,
) -> Result<Vm<F, M>, BuildError> {
    let layout = MemoryLayout::new(config.memory_mib);
    let mut p2m = P2m::new(host.clone())?;
    let mut found = 0;
    for range in layout.ram() {
        if let Some(pager) = &pager {
            p2m.map_absent(GpaRange { start: range.start, end: range.end }, pager)?;
            continue;
        }
        let mut at = range.start;
        while at < range.end {
            let block = ram(range.end.0 - at.0);
            let (hpa, bytes) =
                block.ok_or(BuildError::Memory { wanted: config.memory_mib, found: found >> 20 })?;
            let part = GpaRange::new(at, bytes).ok_or(MapError::Address)?;
            let _the_engine_is_built_below = p2m.map_ram(part, hpa, true)?;
            // What was there is another VM's or the host's.
            host.fill(hpa, bytes, 0);
            at = at.wrapping_add(bytes);
            found += bytes;
        }
    }
    let test_memory = config.test_device.then_some(devices::TEST_MEMORY);
    let windows = MMIO.into_iter().chain(layout.pci_window_64(facts.paging.physical_bits)).chain(test_memory);
    for mmio in windows {
        let range = GpaRange::new(Gpa(mmio.start), (mmio.end - mmio.start).next_multiple_of(4096));
        let _the_engine_is_built_below = p2m.map_mmio(range.ok_or(MapError::Address)?)?;
    }
    let nested = NestedTrees::new(host.clone(), facts.largest_leaf, &p2m)?;
    Ok(Vm {
        name: config.name.to_string(),
        chipset: Mutex::new(Chipset::new(&Options {
            epoch_s: facts.wall_seconds as i64,
            low_bytes: layout.low_end().0,
            high_bytes: layout.high_end().0 - HIGH_RAM_BASE,
            test_device: config.test_device,
        })),
        virtio: Virtio::default(),
        memory: RwLock::new(Memory { p2m, nested, host, covered: Covered::default() }),
        writers: Writers::default(),
        pager,
        tiers: None,
        memory_records: Pace::default(),
        shadow: RwLock::new(None),
        shadow_writers: Writers::default(),
        shadow_limit: config
            .shadow_pages
            .map_or_else(|| Limit::default_for(layout.ram_bytes()), Limit::pages)
            .for_vcpus(config.vcpus as usize),
        mailboxes: (0..config.vcpus).map(Mailbox::new).collect(),
        hlt: HltTracker::default(),
        regions: Regions::wanted_from_start(config.regions),
        translation: Translation::default(),
        sampling: Sampling::new(config.vcpus),
        shootdown: Once::new(),
        layout,
        clock: Clock::new(facts.tsc_khz),
        start: Start::new(facts.tsc),
        stops_at_stand_ins: facts.is_modelled && config.vcpus == 1,
        pv_clock: config.pv_clock,
        wall_at_zero: (facts.wall_seconds, 0),
        paging_features: facts.paging,
        permissive_msr: config.permissive_msr,
        covers: AtomicBool::new(false),
    })
}

/// What the device bus or the local APICs serve. Nearly all of the PCI windows is empty; the bus decides which
/// device answers there, because guests move functions.
const MMIO: [Range<u64>; 5] =
    [devices::PCI_WINDOW_32, devices::ECAM, devices::IOAPIC, devices::HPET, devices::LOCAL_APIC];

/// Puts the guest's files and firmware tables into its memory, and its devices into the state that its kernel expects;
/// returns the registers to start with. `now` is the machine's time.
pub fn fill<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    vm: &Vm<F, M>,
    config: &VmConfig,
    files: &impl Files,
    now: Nanos,
) -> Result<BootState, BuildError> {
    let memory = vm.memory.read();
    let ram = memory.ram();
    let tables = AcpiConfig {
        apic_ids: (0..config.vcpus).collect(),
        pci_window_64: vm.layout.pci_window_64(vm.paging_features.physical_bits),
    };
    acpi::write_tables(&ram, &tables).map_err(BuildError::Firmware)?;
    let request = Request::from_config(config, files, vm.layout, acpi::RSDP)?;
    let boot = load::load(&ram, &request)?;
    // The chipset's lock comes before the memory's.
    drop(memory);
    if boot.protocol == Protocol::Multiboot1 {
        vm.chipset.lock().set_up_as_bios(now);
    }
    Ok(boot)
}

/// Fills a piece of the guest's RAM ([`MemoryLayout::piece`]) with zeroes, for a reset. False: there are no more, as at once where
/// memory comes from a pager.
pub fn scrub<F: PteFormat<Attr = NestedAttr>, M: HostMemory>(
    vm: &Vm<F, M>,
    piece: u64,
) -> Result<bool, NotRam> {
    let Some(at) = vm.layout.piece(piece) else { return Ok(false) };
    // A page that an APIC's registers cover is RAM again before it is cleared.
    vm.uncover();
    if piece == 0 {
        // Before the first piece: the regions describe contents that are about to go.
        vm.forget_regions();
        if let Some(tiers) = &vm.tiers {
            tiers.reset();
        }
        if vm.forget_memory().map_err(|hole| NotRam { gpa: hole.start })? {
            return Ok(false);
        }
    }
    vm.memory.read().ram().fill(at, PIECE, 0)?;
    Ok(true)
}
