//! From the running host to running guests: configuration, backend, VMs, workers.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Display};

use abi::config::FILE_NAME;
use abi::telemetry::{EndReason, Kind, key};
use spin::Mutex;

use super::backend::{Amd, Backend, Intel};
use super::console_port::ConsolePort;
use super::lab_time::LabTime;
use super::machine::{Machine, STATUS_USAGE};
use super::telemetry;
use super::worker::Worker;
use crate::arch::addr::PAGE_SIZE;
use crate::boot::host::Host;
use crate::boot::panic::unsuitable;
use crate::boot::percpu::{self, PerCpu};
use crate::boot::{log, report as boot_report, smp};
use crate::emulate;
use crate::guest::bundle::{BootFiles, BootModule, Files};
use crate::guest::config::Config;
use crate::hw::{cpu, pm};
use crate::mem::frame;
use crate::probe;
use crate::sched::topology::Topology;
use crate::trace::record::Json;
use crate::virt::Virt;

/// Whether the processor's virtualization is Intel's. Zhaoxin's processors have VT-x too.
pub(super) fn is_intel() -> bool {
    /// CPUID leaf 1, ECX.
    const VMX: u32 = 1 << 5;
    cpu::cpuid(1, 0).ecx & VMX != 0 || boot_report::vendor() == *"GenuineIntel"
}

/// Everything after bring-up: see [`crate::boot::start`].
// SAFETY: declared with the same signature in `boot::start`, and nothing else has this name.
#[unsafe(no_mangle)]
fn hypervisor_main(host: &'static Host) -> ! {
    if is_intel() { run_guests::<Intel>(host) } else { run_guests::<Amd>(host) }
}

/// Everything after the choice of the vendor.
fn run_guests<B: Backend>(host: &'static Host) -> ! {
    let backend =
        B::detect(host.tsc_khz, host.options.counters).unwrap_or_else(|obstacle| unsuitable(&*obstacle));
    let backend: &'static B = Box::leak(Box::new(backend));
    let cpus = enable_everywhere(host, backend);
    let can_run = |index: u32| matches!(*cpus[index as usize].lock(), Some(Ok(_)));
    let numbering = smp::set_first_apart(&host.options, can_run);
    let unfit = percpu::all().map(|pcpu| pcpu.index).filter(|index| !can_run(*index));
    let unfit = unfit.map(|index| numbering.id(index)).collect();
    for pcpu in percpu::all() {
        if let Some(Err(obstacle)) = &*cpus[pcpu.index as usize].lock() {
            // The machine goes on without it: the scheduler's set of PCPUs may have holes.
            ::log::error!("PCPU {} runs no guests: {obstacle}", numbering.id(pcpu.index));
        }
    }
    let topology = smp::guest_topology().without(unfit);
    if numbering.first_is_apart {
        ::log::info!(
            "the first PCPU runs no guests (first-pcpu=guests: it does); the other {}, numbered from 0: {}",
            numbering.numbered(),
            probe::shape(&topology)
        );
    }
    let lab_time = LabTime::start::<B>(host).unwrap_or_else(|why| refuse(&why));
    let khz = lab_time.as_ref().map_or(host.tsc_khz, LabTime::khz);
    telemetry::record(Kind::Host, |json| report_host(json, khz, backend, &topology));
    // Now: its tables are made at the first use, which would otherwise be in a guest's exit.
    emulate::prepare_decoder();
    let modules = host.boot.modules.iter().enumerate();
    let modules: Vec<BootModule<'static>> = modules
        .map(|(i, module)| BootModule { cmdline: &module.command_line, bytes: host.module(i) })
        .collect();
    let modules: &'static [BootModule<'static>] = Box::leak(modules.into_boxed_slice());
    if let Err(why) = &host.fast {
        refuse(why);
    }
    let files = BootFiles::open(modules).unwrap_or_else(|e| refuse(&e));
    let text = files.get(FILE_NAME).unwrap_or_default();
    let config = Config::parse(text).unwrap_or_else(|e| refuse(&e));
    let machine: &'static Machine<B> = Box::leak(Box::new(Machine::new(
        host,
        backend,
        topology,
        files,
        &config,
        ConsolePort(log::console()),
        lab_time,
    )));
    for number in 0..config.vm.len() {
        // A failure is reported already.
        let _reported = machine.start(number);
    }
    // From here on only the guests keep the machine running.
    machine.put();
    let work = move |pcpu: &'static PerCpu| {
        // A PCPU without virtualization stays halted.
        let cpu = cpus[pcpu.index as usize].lock().take();
        if let Some(Ok(cpu)) = cpu {
            // Compiled apart, so that no exit asks which clock there is.
            if B::MODELLED_TIME && machine.lab_time.is_some() {
                Worker::<B, true>::new(machine, pcpu, cpu).run()
            } else {
                Worker::<B, false>::new(machine, pcpu, cpu).run()
            }
        }
    };
    let job: &'static (dyn Fn(&'static PerCpu) + Sync) = Box::leak(Box::new(work));
    percpu::all().filter(|pcpu| pcpu.index != host.cpu.index).for_each(|pcpu| smp::run(pcpu, job));
    job(host.cpu);
    unreachable!("workers do not return, and the first PCPU has one")
}

/// What each PCPU runs guests with, by its index, until its worker takes it; or why it cannot.
type Cpus<B> = [Mutex<Option<Result<<<B as Backend>::Virt as Virt>::Cpu, String>>>];

/// Switches virtualization on, on every PCPU. Without it on the first one nothing runs; others may refuse.
fn enable_everywhere<B: Backend>(host: &'static Host, backend: &'static B) -> &'static Cpus<B> {
    let cpus: Vec<_> = percpu::all().map(|_| Mutex::new(None)).collect();
    let cpus: &'static Cpus<B> = Box::leak(cpus.into_boxed_slice());
    // SAFETY: bring-up has installed the host's tables on this PCPU.
    let first = unsafe { backend.enable() }.unwrap_or_else(|obstacle| unsuitable(&*obstacle));
    *cpus[host.cpu.index as usize].lock() = Some(Ok(first));
    let enable = move |pcpu: &'static PerCpu| {
        if pcpu.index == host.cpu.index {
            return;
        }
        // SAFETY: this PCPU's own tables are in place, too.
        let enabled = unsafe { backend.enable() }.map_err(|obstacle| obstacle.to_string());
        *cpus[pcpu.index as usize].lock() = Some(enabled);
    };
    smp::run_everywhere(host.cpu, Box::leak(Box::new(enable)));
    cpus
}

/// The fields of the `host` record.
fn report_host(json: &mut Json<'_>, khz: u64, backend: &impl Backend, topology: &Topology) -> fmt::Result {
    json.text(key::VERSION, env!("CARGO_PKG_VERSION"))?;
    json.text(key::VENDOR, backend.vendor())?;
    json.text(key::MODEL, boot_report::brand())?;
    json.number(key::TSC_HZ, khz * 1000)?;
    json.number(key::MEMORY_MIB, (frame::stats().total * PAGE_SIZE) >> 20)?;
    json.number(key::PCPUS, topology.all().len())?;
    probe::record(json, topology)?;
    json.begin_array(key::FEATURES)?;
    for feature in backend.features().iter().filter(|feature| feature.present) {
        json.text("", feature.id)?;
    }
    json.end()
}

/// Ends the machine because the configuration is unusable.
fn refuse(why: &dyn Display) -> ! {
    ::log::error!(target: log::RECORDED, "{why}");
    telemetry::record(Kind::End, |json| {
        json.text(key::VM, "")?;
        json.text(key::REASON, EndReason::ConfigError)?;
        json.text(key::DETAIL, why)
    });
    log::drain();
    pm::end_machine(STATUS_USAGE)
}
