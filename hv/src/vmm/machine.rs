//! From the running host to the end of the last guest.

use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt::{self, Display};
use core::slice;

use super::backend::{Amd, Backend, Intel};
use super::memory::HostMemory;
use super::pcpu::Pcpu;
use super::report::{self, DeathReport};
use super::telemetry;
use crate::boot::host::Host;
use crate::boot::log;
use crate::boot::panic::unsuitable;
use crate::boot::percpu;
use crate::boot::report as boot_report;
use crate::boot::smp;
use crate::device::message::Messages;
use crate::guest::build::{self, BuildError, HostFacts};
use crate::guest::bundle::{BootFiles, BootModule, CONFIG_NAME, Files};
use crate::guest::config::{Config, VmConfig};
use crate::guest::cpuid::{CpuidPolicy, CpuidTable};
use crate::guest::devices::{self, Switches};
use crate::guest::load::LoadError;
use crate::guest::vm::Vm;
use crate::hw::{cmos, cpu as hw_cpu, pm, random};
use crate::mem::frame::{self, Node};
use crate::mem::heap;
use crate::monitor::view::{HostReport, View};
use crate::monitor::{Monitor, Terminal as _};
use crate::paging::addr::{Hpa, PAGE_SIZE};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::probe;
use crate::trace::record::Json;
use crate::vcpu::Vcpu;
use crate::vcpu::emulate;
use crate::vcpu::host::Host as _;
use crate::vcpu::mmu;
use crate::vcpu::outcome::{Return, Stop};
use crate::vcpu::run::run;
use crate::virt::state::cr4;
use crate::virt::{Roots, Virt};

/// XCR0 bits that guests may have: x87, SSE, AVX, AVX-512.
const GUEST_XCR0: u64 = 0xe7;

/// The configuration or a file is unusable.
const STATUS_USAGE: u32 = 2;
/// A guest died.
const STATUS_DIED: u32 = 3;

/// Everything after bring-up.
pub fn main(host: &'static Host) -> ! {
    if is_intel() { run_guests::<Intel>(host) } else { run_guests::<Amd>(host) }
}

/// Whether the processor's extension is VT-x, or would be. Zhaoxin's processors have it, too.
pub(super) fn is_intel() -> bool {
    cpuid(1, 0)[2] & VMX != 0 || boot_report::vendor() == *"GenuineIntel"
}

/// CPUID leaf 0xd, subleaf 1, EAX: XSAVEC.
const XSAVEC: u32 = 1 << 1;
/// CPUID leaf 1, ECX: VT-x.
const VMX: u32 = 1 << 5;

/// Everything after the choice of the vendor.
fn run_guests<B: Backend>(host: &'static Host) -> ! {
    let backend = B::detect(host.tsc_khz).unwrap_or_else(|obstacle| unsuitable(&*obstacle));
    // SAFETY: bring-up has installed the host's tables on this PCPU.
    let mut cpu = unsafe { backend.enable() }.unwrap_or_else(|obstacle| unsuitable(&*obstacle));
    telemetry::record("host", |json| report_host(json, host, &backend));

    emulate::prepare_decoder();
    let modules = host.boot.modules.iter().enumerate();
    let modules: Vec<BootModule<'static>> = modules
        .map(|(i, module)| BootModule { cmdline: &module.command_line, bytes: host.module(i) })
        .collect();
    // Disks of guests are read from here for as long as the machine runs.
    let files: &'static _ =
        Box::leak(Box::new(BootFiles::open(modules.leak()).unwrap_or_else(|e| refuse(&e))));
    let text = files.get(CONFIG_NAME).unwrap_or_default();
    let config = Config::parse(text).unwrap_or_else(|e| refuse(&e));
    let [vm] = config.vm.as_slice() else {
        refuse(&"this version runs one guest: leave one `[[vm]]` table in palimpsest.toml")
    };
    if vm.vcpus != 1 {
        refuse(&"this version runs one virtual processor: set `vcpus = 1`");
    }
    let mut pcpu = Pcpu::new(host.cpu, host.timer, log::console());
    let status = run_vm(host, vm, files, &backend, &mut cpu, &mut pcpu);
    log::drain();
    pm::end_machine(status)
}

/// The fields of the `host` record.
fn report_host(json: &mut Json<'_>, host: &Host, backend: &impl Backend) -> fmt::Result {
    json.text("version", env!("CARGO_PKG_VERSION"))?;
    json.text("vendor", backend.vendor())?;
    json.text("model", boot_report::brand())?;
    json.number("tsc_hz", host.tsc_khz * 1000)?;
    json.number("memory_mib", (frame::stats().total * PAGE_SIZE) >> 20)?;
    json.number("pcpus", percpu::count())?;
    probe::record(json, smp::topology())?;
    json.begin_array("features")?;
    for feature in backend.features().iter().filter(|feature| feature.present) {
        json.text("", feature.id)?;
    }
    json.end()
}

pub(super) fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = hw_cpu::cpuid(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// Ends the machine because the configuration is unusable.
fn refuse(why: &dyn Display) -> ! {
    ::log::error!(target: log::RECORDED, "{why}");
    telemetry::record("end", |json| {
        json.text("vm", "")?;
        json.text("reason", "config-error")?;
        json.text("detail", why)
    });
    log::drain();
    pm::end_machine(STATUS_USAGE)
}

/// Host memory for a guest: the largest free block of at most `bytes`.
fn ram_block(bytes: u64) -> Option<(Hpa, u64)> {
    let largest = bytes.checked_ilog2()?.checked_sub(12)?.min(18) as u8;
    (0..=largest).rev().find_map(|order| Some((frame::alloc(order, Node(0))?, 4096 << order)))
}

/// Runs one guest to its end; returns the machine's status.
fn run_vm<B: Backend>(
    host: &'static Host,
    config: &VmConfig,
    files: &'static impl Files,
    backend: &B,
    cpu: &mut <B::Virt as Virt>::Cpu,
    pcpu: &mut Pcpu,
) -> u32 {
    let (paging, largest_leaf) = backend.paging();
    let facts = HostFacts {
        tsc_khz: host.tsc_khz,
        tsc: pcpu.tsc(),
        wall_seconds: cmos::unix_seconds(),
        paging,
        largest_leaf,
    };
    // SAFETY: the VM below gets frames from `ram_block` only.
    let memory = unsafe { HostMemory::new() };
    let mut vm: Vm<<B::Virt as Virt>::NestedFormat, HostMemory> =
        match build::build(config, memory, &facts, ram_block) {
            Ok(vm) => vm,
            Err(e) => return end(config, "config-error", 0, &e, STATUS_USAGE),
        };
    if let Err(e) = attach_devices(&mut vm, config, files) {
        return end(config, "load-error", 0, &e, STATUS_USAGE);
    }
    let cpuid_policy = CpuidPolicy {
        apic_id: 0,
        vcpus: config.vcpus,
        tsc_khz: host.tsc_khz as u32,
        invariant_tsc: true,
        xcr0: if hw_cpu::cr4() & cr4::OSXSAVE != 0 { GUEST_XCR0 } else { 0 },
        pv_clock: config.pv_clock,
    };
    let guest_cpuid = |leaf, subleaf| match (leaf, subleaf, cpuid(leaf, subleaf)) {
        (0xd, 1, [eax, ..]) if !host.sound_xsavec => [eax & !XSAVEC, 0, 0, 0],
        (_, _, values) => values,
    };
    let mut monitor = Monitor::default();
    let mut started = vm.start;
    loop {
        let boot = match build::fill(&vm, config, files) {
            Ok(boot) => boot,
            Err(e) => return end(config, "load-error", 0, &e, STATUS_USAGE),
        };
        let mut vcpu =
            Box::new(Vcpu::new(0, backend.vcpu(), CpuidTable::new(&cpuid_policy, guest_cpuid), host.tsc_khz));
        boot.arch.store(&mut vcpu.virt);
        vcpu.virt.set_paging(Roots::Nested(vm.memory.read().nested.root()));
        if let Err(e) = mmu::set_mode(&mut vcpu, &vm, config.mode, || pcpu.tsc()) {
            return end(config, "config-error", 0, &BuildError::Tables(e), STATUS_USAGE);
        }
        if let Some(entries) = config.paranoid {
            mmu::be_paranoid(&mut vcpu, entries);
        }
        vcpu.virt.set_tsc_offset(started.wrapping_neg());
        pcpu.reset_fpu();
        let stop = loop {
            match run(&mut vcpu, &vm, cpu, pcpu) {
                Return::Idle => {
                    pcpu.idle();
                    continue;
                }
                Return::Yield => {}
                Return::Stop(stop) => break stop,
            }
            let vcpus = slice::from_mut(&mut vcpu);
            let host = host_report(host);
            let mut view = View { vm: &vm, vcpus, started, tsc: pcpu.tsc(), host };
            if let Some(stop) = monitor.enter(pcpu, &mut view) {
                break stop;
            }
        };
        flush_console(&vm, pcpu);
        if host.options.stats {
            telemetry::record("stats", |json| report::stats(json, &vcpu, &vm, pcpu.tsc()));
        }
        let reason = report::reason(&stop);
        match stop {
            Stop::TestExit(value) => return end(config, reason, value, &"", pm::STATUS_OK),
            Stop::Died(death) => return end(config, reason, 0, &DeathReport(&death), STATUS_DIED),
            Stop::PowerOff => return end(config, reason, 0, &"", pm::STATUS_OK),
            Stop::Reset => {}
        }
        telemetry::record("reset", |json| json.text("vm", &config.name));
        ::log::info!("{}: reset", config.name);
        if build::scrub(&vm).is_err() {
            let why = "a page of the guest's memory was taken away by its test device; start it anew";
            return end(config, "load-error", 0, &why, STATUS_DIED);
        }
        vm.chipset.lock().reset();
        started = pcpu.tsc();
    }
}

/// Gives a VM its virtio devices.
fn attach_devices<F: PteFormat<Attr = NestedAttr>>(
    vm: &mut Vm<F, HostMemory>,
    config: &VmConfig,
    files: &'static impl Files,
) -> Result<(), LoadError> {
    let seed = random::seed();
    if config.devices.entropy && !seed.secure {
        ::log::warn!(
            "{}: this processor has no random numbers; those of the entropy device can be guessed",
            config.name
        );
    }
    let devices = devices::make(0, config, files, &mut Switches::default(), seed.bytes)?;
    // The configuration has checked that there is room for them.
    vm.attach(devices).expect("a bus without other functions");
    Ok(())
}

/// Sends the last of a stopped guest's console output, as far as the console takes it in time.
fn flush_console<F: PteFormat<Attr = NestedAttr>>(vm: &Vm<F, HostMemory>, pcpu: &mut Pcpu) {
    pcpu.flush_output();
    let mut chipset = vm.chipset.lock();
    chipset.set_console_ready(true);
    // The guest will not take the interrupt.
    while let Some(byte) = chipset.console_backlog(vm.nanos(pcpu.tsc()), &mut Messages::new()) {
        pcpu.write(byte);
    }
    while let Some(byte) = vm.virtio.console_output() {
        pcpu.write(byte);
    }
}

/// The host for the monitor.
fn host_report(host: &Host) -> HostReport {
    HostReport {
        tsc_khz: host.tsc_khz,
        pcpus: percpu::count() as usize,
        frames: frame::stats(),
        heap_bytes: heap::bytes(),
    }
}

/// Reports a guest's end.
fn end(config: &VmConfig, reason: &str, value: u32, detail: &dyn Display, status: u32) -> u32 {
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
    status
}
