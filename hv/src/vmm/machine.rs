//! The machine with all its guests.
//!
//! Made once and never dropped. Every PCPU has a worker ([`super::worker`]) that asks the scheduler what to run; what concerns a
//! VM as a whole (start, standing still, end) is here, and any PCPU may do it.
//!
//! Locks: `vcpus` and those of [`Entry`] are held for a moment, and none is taken while one is held.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Display;
use core::sync::atomic::{AtomicU32, Ordering};

use spin::{Mutex, RwLock};

use super::backend::Backend;
use super::console::Console;
use super::guest::{Guest, cpuid_policy};
use super::memory::HostMemory;
use super::others::VcpusOf;
use super::pcpu::ConsolePort;
use super::report::{self, DeathReport};
use super::telemetry;
use crate::boot::host::Host;
use crate::boot::{log, percpu, smp};
use crate::device::message::Messages;
use crate::guest::build::{self, BuildError, HostFacts};
use crate::guest::bundle::BootFiles;
use crate::guest::config::{Config, VmConfig};
use crate::guest::cpuid::CpuidTable;
use crate::guest::devices::{self, Switches};
use crate::hw::{cmos, cpu, pm, random};
use crate::sched::topology::PcpuSet;
use crate::sched::{Config as SchedConfig, Credit, Kick, Scheduler, VcpuId};
use crate::vcpu::outcome::Stop;
use crate::virt::state::cr4;

/// XCR0 bits that guests may have: x87, SSE, AVX, AVX-512.
const GUEST_XCR0: u64 = 0xe7;

/// The configuration or a file is unusable.
pub const STATUS_USAGE: u32 = 2;
/// A guest died.
const STATUS_DIED: u32 = 3;

/// A VM of the configuration, and the guest while there is one.
struct Entry<B: Backend> {
    config: VmConfig,
    guest: Mutex<Option<Arc<Guest<B>>>>,
}

/// A VCPU of a guest.
pub type VcpuOf<B> = (Arc<Guest<B>>, u32);

/// Everything.
pub struct Machine<B: Backend> {
    /// The host.
    pub host: &'static Host,
    /// The processor's virtualization.
    pub backend: B,
    /// Who runs where.
    pub sched: Scheduler<Credit>,
    /// The serial console.
    pub console: Console<ConsolePort>,
    files: BootFiles<'static>,
    entries: Vec<Entry<B>>,
    /// By their numbers in the scheduler.
    vcpus: RwLock<Vec<Option<VcpuOf<B>>>>,
    /// The networks between guests.
    switches: Mutex<Switches>,
    /// Guests that have not ended, and one more while the machine starts.
    left: AtomicU32,
    /// The worst status of those that have.
    status: AtomicU32,
}

/// CPUID as the processor answers it.
pub(super) fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = cpu::cpuid(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

impl<B: Backend> Machine<B> {
    /// The machine, before its first guest.
    pub fn new(
        host: &'static Host,
        backend: B,
        files: BootFiles<'static>,
        config: &Config,
        port: ConsolePort,
    ) -> Machine<B> {
        let vcpus: u32 = config.vm.iter().map(|vm| vm.vcpus).sum();
        let (vms, vcpus) = (config.vm.len(), vcpus as usize);
        let sched_config = SchedConfig { vms, vcpus, ..SchedConfig::new(host.tsc_khz) };
        let entry = |config: &VmConfig| Entry { config: config.clone(), guest: Mutex::new(None) };
        Machine {
            host,
            backend,
            sched: Scheduler::new(smp::topology().clone(), sched_config, sched_config.credit()),
            console: Console::new(port, vms, 0, vms > 1),
            files,
            entries: config.vm.iter().map(entry).collect(),
            vcpus: RwLock::new((0..vcpus).map(|_| None).collect()),
            switches: Mutex::new(Switches::default()),
            left: AtomicU32::new(1),
            status: AtomicU32::new(pm::STATUS_OK),
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

    /// Tells a PCPU to ask the scheduler.
    pub fn send(&self, kick: Kick) {
        if let Some(pcpu) = kick.0.and_then(|id| percpu::get(id.0.into())) {
            smp::kick(pcpu);
        }
    }

    /// Makes the VM `number`, and lets it run. Its failure is reported like its end.
    pub fn start(&'static self, number: usize) {
        let config = &self.entries[number].config;
        self.left.fetch_add(1, Ordering::SeqCst);
        let guest = match self.make(number as u32, config) {
            Ok(guest) => guest,
            Err(e) => return self.report_end(config, "config-error", 0, &e, STATUS_USAGE),
        };
        *self.entries[number].guest.lock() = Some(guest.clone());
        if let Err(e) = self.begin(&guest) {
            let reason = if matches!(e, BuildError::Tables(_)) { "config-error" } else { "load-error" };
            self.forget(&guest);
            self.report_end(config, reason, 0, &e, STATUS_USAGE);
        }
    }

    fn make(&'static self, number: u32, config: &VmConfig) -> Result<Arc<Guest<B>>, BuildError> {
        let (paging, largest_leaf) = self.backend.paging();
        let facts = HostFacts {
            tsc_khz: self.host.tsc_khz,
            tsc: cpu::rdtsc(),
            wall_seconds: cmos::unix_seconds(),
            paging,
            largest_leaf,
        };
        // SAFETY: guests get RAM from `Ram` only, which takes it from the frame allocator.
        let memory = unsafe { HostMemory::new() };
        let mut guest = Guest::new(config, number, memory, &facts)?;
        self.attach_devices(&mut guest)?;
        let now = cpu::rdtsc();
        let full = "the scheduler has room for all of the configuration";
        guest.sched_vm = self.sched.add_vm(config.share.weight, config.share.cap).expect(full);
        let affinity = PcpuSet::from_bits(config.share.affinity);
        let handles = (0..config.vcpus).map(|_| self.sched.add_vcpu(guest.sched_vm, affinity, now));
        guest.handles = handles.collect::<Result<_, _>>().expect(full);
        let guest = Arc::new(guest);
        if config.vcpus > 1 {
            guest.vm.others.call_once(|| Arc::new(VcpusOf::new(self, &guest)));
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
        let mut switches = self.switches.lock();
        let number = guest.number;
        let devices = devices::make(number, config, &self.files, &mut switches, seed.bytes)?;
        // The configuration has checked that there is room for them.
        guest.vm.attach(devices).expect("a bus without other functions");
        Ok(())
    }

    /// Loads a guest whose VCPUs stand still, and lets them run.
    fn begin(&self, guest: &Guest<B>) -> Result<(), BuildError> {
        let xcr0 = if cpu::cr4() & cr4::OSXSAVE != 0 { GUEST_XCR0 } else { 0 };
        let answers = |leaf, subleaf| match (leaf, subleaf, cpuid(leaf, subleaf)) {
            (0xd, 1, [eax, ..]) if !self.host.sound_xsavec => [eax & !XSAVEC, 0, 0, 0],
            (_, _, values) => values,
        };
        let table = |id| CpuidTable::new(&cpuid_policy(&guest.config, id, self.host.tsc_khz, xcr0), answers);
        guest.begin(&self.backend, &self.files, cpu::rdtsc(), table)?;
        self.let_run(guest);
        Ok(())
    }

    /// Makes the VCPUs of a guest leave their PCPUs, some time soon.
    pub fn hold(&self, guest: &Guest<B>) {
        for handle in &guest.handles {
            // One that is paused already stays so.
            if let Ok(kick) = self.sched.pause(*handle, cpu::rdtsc()) {
                self.send(kick);
            }
        }
    }

    /// Whether no PCPU has a VCPU of the guest.
    pub fn is_off(&self, guest: &Guest<B>) -> bool {
        guest.handles.iter().all(|handle| self.sched.runs_on(*handle).is_none())
    }

    /// Lets the VCPUs of a guest run that were held.
    pub fn let_run(&self, guest: &Guest<B>) {
        for handle in &guest.handles {
            let now = cpu::rdtsc();
            if let Ok(kick) = self.sched.resume(*handle, now) {
                self.send(kick);
            }
            // Each looks whether there is anything to do.
            self.send(self.sched.wake(*handle, now));
        }
    }

    /// A guest stops.
    pub fn stop(&self, guest: &Arc<Guest<B>>, stop: Stop) {
        guest.stop(stop);
        self.hold(guest);
        self.look_after(guest);
    }

    /// Sees to the end or new start of a guest that has stopped, once it stands still. To be called whenever one of its VCPUs
    /// has left a PCPU.
    pub fn look_after(&self, guest: &Arc<Guest<B>>) {
        if !guest.has_stopped() || !self.is_off(guest) {
            return;
        }
        let Some(stop) = guest.take_stop() else { return };
        self.flush_console(guest);
        if self.host.options.stats {
            let now = cpu::rdtsc();
            let all = guest.take_all();
            for parked in &all {
                telemetry::record("stats", |json| report::stats(json, &parked.vcpu, &guest.vm, now));
            }
            guest.park_all(all);
        }
        let end = |value, detail: &dyn Display, status| {
            self.forget(guest);
            self.report_end(&guest.config, report::reason(&stop), value, detail, status);
        };
        match &stop {
            Stop::TestExit(value) => end(*value, &"", pm::STATUS_OK),
            Stop::Died(death) => end(0, &DeathReport(death), STATUS_DIED),
            Stop::PowerOff => end(0, &"", pm::STATUS_OK),
            Stop::Reset => self.reset(guest),
        }
    }

    /// Starts a guest anew that has reset its machine.
    fn reset(&self, guest: &Arc<Guest<B>>) {
        let config = &guest.config;
        telemetry::record("reset", |json| json.text("vm", &config.name));
        ::log::info!("{}: reset", config.name);
        let failed = |why: &dyn Display, status| {
            self.forget(guest);
            self.report_end(config, "load-error", 0, why, status);
        };
        if build::scrub(&guest.vm).is_err() {
            let why = "a page of the guest's memory was taken away by its test device; start it anew";
            return failed(&why, STATUS_DIED);
        }
        guest.vm.chipset.lock().reset();
        if let Err(e) = self.begin(guest) {
            failed(&e, STATUS_USAGE);
        }
    }

    /// Sends the last of a stopped guest's console output, as far as the console takes it in time.
    fn flush_console(&self, guest: &Guest<B>) {
        self.console.finish(guest.number, None);
        let mut chipset = guest.vm.chipset.lock();
        chipset.set_console_ready(true);
        // The guest will not take the interrupt.
        while let Some(byte) = chipset.console_backlog(guest.vm.nanos(cpu::rdtsc()), &mut Messages::new()) {
            self.console.finish(guest.number, Some(byte));
        }
        while let Some(byte) = guest.vm.virtio.console_output() {
            self.console.finish(guest.number, Some(byte));
        }
    }

    /// A guest has ended: nothing leads to it any more but what the caller holds. Its memory goes when that goes.
    fn forget(&self, guest: &Arc<Guest<B>>) {
        for handle in &guest.handles {
            self.vcpus.write()[usize::from(handle.0)] = None;
            let gone = self.sched.remove_vcpu(*handle, cpu::rdtsc());
            debug_assert!(gone.is_ok(), "{gone:?}");
        }
        let gone = self.sched.remove_vm(guest.sched_vm);
        debug_assert!(gone.is_ok(), "{gone:?}");
        *self.entries[guest.number as usize].guest.lock() = None;
        if self.console.focus() == guest.number {
            self.pass_console();
        }
    }

    /// The guest that had the console has ended: the first of those that live gets it.
    fn pass_console(&self) {
        let next = (0..self.entries.len()).find_map(|number| self.guest(number));
        if let Some(next) = next {
            self.console.set_focus(next.number);
            ::log::info!("the console is that of {} now", next.config.name);
        }
    }

    /// Reports a guest's end, and ends the machine if it was the last.
    fn report_end(&self, config: &VmConfig, reason: &str, value: u32, detail: &dyn Display, status: u32) {
        if status == pm::STATUS_OK {
            ::log::info!("{}: {reason}", config.name);
        } else {
            ::log::error!(target: log::RECORDED, "{}: {}", config.name, detail.to_string());
        }
        telemetry::record("end", |json| {
            json.text("vm", &config.name)?;
            json.text("reason", reason)?;
            json.number("value", value)?;
            json.text("detail", detail)
        });
        self.status.fetch_max(status, Ordering::SeqCst);
        self.one_less();
    }

    /// All guests have been started. If all have ended by now, so does the machine.
    pub fn all_started(&self) {
        self.one_less();
    }

    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            log::drain();
            pm::end_machine(self.status.load(Ordering::SeqCst))
        }
    }
}

/// CPUID leaf 0xd, subleaf 1, EAX: XSAVEC.
const XSAVEC: u32 = 1 << 1;
