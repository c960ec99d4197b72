//! The machine with all its guests.
//!
//! Made once and never dropped. Every PCPU has a worker ([`super::worker`]) that asks the scheduler what to run. How VMs are made
//! is here, their lifecycle in [`super::lifecycle`]; any PCPU may do it.
//!
//! Locks: `vcpus` and those of [`Entry`] are held for a moment, and none of the machine's is taken while one is held (docs/architecture.md).

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use ::records::pcpus::{self, Pcpu};
use abi::config::NestedPage;
use abi::telemetry::{EndReason, Kind, key};
use spin::{Mutex, RwLock};

use super::backend::Backend;
use super::console::Console;
use super::console_port::ConsolePort;
use super::guest::{Guest, cpuid_policy};
use super::lab_time::LabTime;
use super::memory::{DiskPages, Frames, HostMemory, UnmappedMemory};
use super::overcommit;
use super::page_disk::PageDisks;
use super::records::Records;
use super::shootdown::VcpusOf;
use super::state::MemoryRef;
use super::{domains, telemetry, tiers};
use crate::arch::addr::{PAGE_SIZE, PageSize};
use crate::arch::state::cr4;
use crate::boot::host::Host;
use crate::boot::{percpu, report, smp};
use crate::guest::build::{BuildError, HostFacts};
use crate::guest::bundle::BootFiles;
use crate::guest::config::{Config, VmConfig};
use crate::guest::cpuid::CpuidTable;
use crate::guest::devices::{self, Switches};
use crate::hw::{cmos, cpu, pm, random};
use crate::mem::frame_record::Owner;
use crate::mem::tier::pool::FastPool;
use crate::mem::vm_ram::VmRam;
use crate::mem::{frame, heap};
use crate::region::caches::Caches;
use crate::region::rounds::At;
use crate::sched::topology::{PcpuSet, Topology};
use crate::sched::{Config as SchedConfig, Credit, Kick, Scheduler, VcpuId};
use crate::virt::speculation::Plan;

/// XCR0 bits that guests may have: x87, SSE, AVX, AVX-512.
const GUEST_XCR0: u64 = 0xe7;

/// The configuration or a file is unusable.
pub const STATUS_USAGE: u32 = 2;

/// A VM of the configuration, and the guest while there is one.
pub(super) struct Entry<B: Backend> {
    pub(super) config: VmConfig,
    pub(super) guest: Mutex<Option<Arc<Guest<B>>>>,
    /// Guests whose memory is not freed yet.
    pub(super) memory_refs: AtomicU32,
}

/// A VCPU of a guest.
pub type VcpuOf<B> = (Arc<Guest<B>>, u32);

/// Everything.
pub struct Machine<B: Backend> {
    /// The host.
    pub host: &'static Host,
    /// What is done about speculation.
    pub plan: Plan,
    /// What the processor says in ARCH_CAPABILITIES; 0 without it.
    arch_capabilities: u64,
    /// The processor's virtualization.
    pub backend: &'static B,
    /// The scheduler.
    pub sched: Scheduler<Credit>,
    /// The serial console.
    pub console: Console<ConsolePort>,
    /// Modelled time, if the machine follows it.
    pub lab_time: Option<LabTime>,
    /// Frequency of [`Machine::now`], which guests see as their TSC's.
    pub khz: u64,
    /// Samples and traces, if they are wanted.
    pub records: Option<Records>,
    files: BootFiles<'static>,
    pub(super) entries: Vec<Entry<B>>,
    /// By their numbers in the scheduler.
    pub(super) vcpus: RwLock<Vec<Option<VcpuOf<B>>>>,
    /// The networks between guests.
    switches: Mutex<Switches>,
    /// Its fast memory, if it has two kinds.
    pub(super) fast: Option<Arc<FastPool>>,
    /// Its disk for evicted pages.
    pub(super) page_disks: Option<PageDisks>,
    /// The last-level caches, and what the guests' regions load them with.
    caches: Arc<Caches>,
    /// References that keep the machine running: one per guest that has not ended, one during the start of the machine, one during
    /// a monitor session.
    pub(super) running_refs: AtomicU32,
    /// The worst status of those that have.
    pub(super) status: AtomicU32,
}

/// CPUID as the processor answers it.
pub(super) fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = cpu::cpuid(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

impl<B: Backend> Machine<B> {
    /// The machine, before its first guest. Guests run on the PCPUs of `topology`. `lab_time`: modelled time, if it follows that.
    pub fn new(
        host: &'static Host,
        backend: &'static B,
        topology: Topology,
        files: BootFiles<'static>,
        config: &Config,
        port: ConsolePort,
        lab_time: Option<LabTime>,
    ) -> Machine<B> {
        let khz = lab_time.as_ref().map_or(host.tsc_khz, LabTime::khz);
        let vcpus: u32 = config.vm.iter().map(|vm| vm.vcpus).sum();
        let (vms, vcpus) = (config.vm.len(), vcpus as usize);
        let sched_config = SchedConfig { vms, vcpus, ..SchedConfig::new(khz) };
        let entry = |config: &VmConfig| Entry {
            config: config.clone(),
            guest: Mutex::new(None),
            memory_refs: AtomicU32::new(0),
        };
        let (plan, arch_capabilities) = report::speculation(host.options.mitigations);
        let console_records = vms > 1 || host.options.consoles;
        let records = Records::start(host, topology.len(), khz);
        let caches = domains::caches(&topology, &cpuid);
        Machine {
            fast: tiers::pool(host),
            host,
            plan,
            arch_capabilities,
            backend,
            sched: Scheduler::new(topology, sched_config, sched_config.credit()),
            console: Console::new(port, vms, config.console as u32, console_records),
            records,
            lab_time,
            khz,
            files,
            entries: config.vm.iter().map(entry).collect(),
            vcpus: RwLock::new((0..vcpus).map(|_| None).collect()),
            switches: Mutex::new(Switches::default()),
            page_disks: PageDisks::find(config, host.tsc_khz),
            caches: Arc::new(caches),
            // Held by the start of the machine: a first VM that ends at once must not end it before the others have
            // started.
            running_refs: AtomicU32::new(1),
            status: AtomicU32::new(pm::STATUS_OK),
        }
    }

    /// The time: the host's TSC, or modelled cycles. All of the hypervisor that concerns VMs goes by it.
    pub fn now(&self) -> u64 {
        match &self.lab_time {
            None => cpu::rdtsc(),
            Some(time) => time.now(percpu::current_index().unwrap_or(self.host.cpu.index)),
        }
    }

    /// The VCPU with this number in the scheduler.
    pub fn vcpu(&self, handle: VcpuId) -> Option<VcpuOf<B>> {
        self.vcpus.read().get(usize::from(handle.0))?.clone()
    }

    /// The guest with this number in the configuration, if it has been started and has not ended.
    pub fn guest(&self, number: usize) -> Option<Arc<Guest<B>>> {
        self.entries.get(number)?.guest.lock().clone()
    }

    /// The name of the VM with this number in the configuration.
    pub fn name(&self, number: u32) -> &str {
        self.entries.get(number as usize).map_or("", |entry| &entry.config.name)
    }

    /// Where samples go, if they were asked for: a policy has samples taken that leave for nowhere.
    pub fn sample_records(&self) -> Option<&Records> {
        self.records.as_ref().filter(|_| self.host.options.samples.is_some())
    }

    /// Adds what the PCPUs have done up to now to the samples.
    pub fn record_pcpus(&self, records: &Records, now: u64) {
        let pcpus = self.sched.topology().all().into_iter().map(|pcpu| {
            let stats = self.sched.pcpu_stats(pcpu, now);
            Pcpu { pcpu: pcpu.0.into(), busy: stats.busy, idle: stats.idle }
        });
        let mut record = [0; pcpus::MOST];
        let free = frame::stats().free * PAGE_SIZE;
        let words = pcpus::write(now, free, heap::bytes(), pcpus, &mut record);
        records.push_sample(&record[..words]);
    }

    /// Tells a PCPU to ask the scheduler.
    pub fn send(&self, kick: Kick) {
        if let Some(pcpu) = kick.0.and_then(smp::pcpu) {
            if let Some(time) = &self.lab_time {
                time.wake(pcpu.index);
            }
            smp::kick(pcpu);
        }
    }

    /// Makes the VM `number`, and lets it run. Its failure is reported like its end, and returned for
    /// people.
    pub fn start(&'static self, number: usize) -> Result<(), String> {
        let config = &self.entries[number].config;
        self.running_refs.fetch_add(1, Ordering::SeqCst);
        telemetry::record(Kind::Start, |json| json.text(key::VM, &config.name));
        let guest = match self.make(number as u32, config) {
            Ok(guest) => guest,
            Err(e) => {
                self.report_end(config, EndReason::ConfigError, 0, &e, STATUS_USAGE);
                return Err(e.to_string());
            }
        };
        *self.entries[number].guest.lock() = Some(guest.clone());
        if let Err(e) = self.begin(&guest) {
            let reason = if matches!(e, BuildError::Load(_) | BuildError::Firmware(_)) {
                EndReason::LoadError
            } else {
                EndReason::ConfigError
            };
            self.remove(&guest);
            self.report_end(config, reason, 0, &e, STATUS_USAGE);
            return Err(e.to_string());
        }
        Ok(())
    }

    fn make(&'static self, number: u32, config: &VmConfig) -> Result<Arc<Guest<B>>, BuildError> {
        let (paging, largest_leaf) = self.backend.paging();
        let measures = self.plan.measures.for_guest(config.mitigations);
        let largest_leaf = match config.nested_page {
            // Against machine checks by large executable leaves (ITLB_MULTIHIT): see `virt::speculation`.
            _ if measures.small_leaves => PageSize::Size4K,
            NestedPage::Small => PageSize::Size4K,
            NestedPage::Large => largest_leaf.min(PageSize::Size2M),
            NestedPage::Huge => largest_leaf,
        };
        let facts = HostFacts {
            tsc_khz: self.khz,
            tsc: self.now(),
            wall_seconds: cmos::unix_seconds(),
            paging,
            largest_leaf,
            is_modelled: self.host.options.lab.is_some(),
        };
        let owner = Owner::Vm(u16::try_from(number).unwrap_or(u16::MAX - 1));
        // SAFETY: guests get RAM from `Ram`, which takes it from the frame allocator, and from `Tiers`, which gives frames of the pool back
        // when no table leads there any more.
        let memory = unsafe { HostMemory::new(owner, tiers::used_by(self.fast.as_ref(), config).cloned()) };
        let affinity = PcpuSet::from_bits(config.share.affinity);
        let topology = self.sched.topology();
        if affinity.and(topology.all()).is_empty() {
            return Err(BuildError::Affinity { pcpus: topology.len(), fit: topology.all() });
        }
        let memory_ref = MemoryRef::new(&self.entries[number as usize].memory_refs);
        // SAFETY: a guest drops its RAM after its tables.
        let ram = VmRam::from(unsafe { Frames::new(owner) });
        let pager = overcommit::pager(self, number as usize, owner)?;
        let mut guest = Guest::new(config, number, memory, &facts, ram, memory_ref, measures, pager)?;
        tiers::attach(self.fast.as_ref(), self.host, &mut guest, owner)?;
        let objects = match (&guest.vm.pager, &guest.vm.tiers) {
            (Some(pager), _) => pager.objects(),
            (None, tiers) => tiers.as_ref().and_then(|tiers| tiers.objects()),
        };
        objects.into_iter().for_each(|objects| guest.vm.regions.tell(objects));
        self.attach_devices(&mut guest)?;
        guest.vm.regions.set_domains(topology.llcs().len());
        guest.vm.regions.set_place(At {
            caches: self.caches.clone(),
            vm: u16::try_from(number).unwrap_or(u16::MAX),
            weight: u16::try_from(config.share.weight).unwrap_or(u16::MAX),
        });
        if let (Some(ms), Some(_)) = (self.host.options.samples, &self.records) {
            guest.vm.sampling.start(u64::from(ms) * self.khz, facts.tsc);
        }
        let now = self.now();
        let full = "the scheduler has room for all of the configuration";
        guest.sched_vm = self.sched.add_vm(config.share.weight, config.share.cap).expect(full);
        let handles = (0..config.vcpus).map(|_| self.sched.add_vcpu(guest.sched_vm, affinity, now));
        guest.handles = handles.collect::<Result<_, _>>().expect(full);
        for (mailbox, handle) in guest.vm.mailboxes.iter().zip(&guest.handles) {
            mailbox.set_handle(handle.0.into());
        }
        let guest = Arc::new(guest);
        if config.vcpus > 1 {
            // A VM of one VCPU has no others, and its shootdowns cost nothing.
            guest.vm.shootdown.call_once(|| Arc::new(VcpusOf::new(self, &guest)));
        }
        let mut vcpus = self.vcpus.write();
        for (id, handle) in (0..).zip(&guest.handles) {
            vcpus[usize::from(handle.0)] = Some((guest.clone(), id));
        }
        Ok(guest)
    }

    /// Gives a guest its virtio devices.
    fn attach_devices(&'static self, guest: &mut Guest<B>) -> Result<(), BuildError> {
        let seed = random::seed();
        let config = &guest.config;
        if config.devices.entropy && !seed.secure {
            ::log::warn!(
                "{}: this processor has no random numbers; those of the entropy device can be guessed",
                config.name
            );
        }
        let number = guest.number;
        let media = UnmappedMemory(&self.host.boot);
        let devices = devices::make(
            number,
            config,
            &self.files,
            &DiskPages,
            &media,
            &mut self.switches.lock(),
            seed.bytes,
        )?;
        // The configuration has checked that there is room for them.
        guest.vm.attach(devices).expect("a bus without other functions");
        Ok(())
    }

    /// Loads a guest whose VCPUs are descheduled, and resumes them.
    pub(super) fn begin(&self, guest: &Guest<B>) -> Result<(), BuildError> {
        let xcr0 = if cpu::cr4() & cr4::OSXSAVE != 0 { GUEST_XCR0 } else { 0 };
        let answers = |leaf, subleaf| match (leaf, subleaf, cpuid(leaf, subleaf)) {
            // Bochs' XSAVEC stores AVX state at the wrong place (docs/design/0010-emulated-vtx.md).
            (0xd, 1, [eax, ..]) if !self.host.sound_xsavec => [eax & !XSAVEC, 0, 0, 0],
            (_, _, values) => self.backend.executable(leaf, subleaf, values),
        };
        let caps = guest.measures.arch_capabilities(self.arch_capabilities);
        let policy = |id| cpuid_policy(&guest.config, id, self.khz, xcr0, caps);
        let table = |id| CpuidTable::new(&policy(id), answers);
        let action = guest.begin(self.backend, &self.files, self.now(), self.lab_time.is_some(), table)?;
        let now = self.now();
        guest.vm.sampling.begin(now, guest.vm.nanos(now).0);
        self.perform(guest, action);
        Ok(())
    }
}

/// CPUID leaf 0xd, subleaf 1, EAX: XSAVEC.
const XSAVEC: u32 = 1 << 1;
