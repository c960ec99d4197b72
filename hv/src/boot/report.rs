//! Gathers what the hardware report tells (`probe`): asked of processor, ports and tables.
//!
//! A few lines of it are logged at each start. With the word `probe` on the command line the whole report goes to the
//! console and to the screen, and the machine ends before anything touches the virtualization extension but to read
//! what it offers.

use core::fmt::Write;

use abi::telemetry::{EndReason, Kind, VERSION};
use arrayvec::{ArrayString, ArrayVec};
use log::info;

use super::host::Host;
use super::{console, log as hv_log, paging, percpu, screen, smp};
use crate::arch::msr::ARCH_CAPABILITIES;
use crate::firmware::smbios;
use crate::hw::pm::ExitAction;
use crate::hw::uart::SerialPort;
use crate::hw::{cpu, msr, pm};
use crate::mem::frame;
use crate::probe::{self, Extension, Facts, Processor, Virtualization};
use crate::virt::feature::Feature;
use crate::virt::speculation::{self, Mitigations, Model, Offers, Plan};
use crate::virt::{svm, vmx};

fn cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = cpu::cpuid(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// The processor's vendor, as CPUID spells it.
pub fn vendor() -> ArrayString<12> {
    probe::vendor(&cpuid)
}

/// The processor's name; empty if it does not say.
pub fn brand() -> ArrayString<48> {
    probe::brand(&cpuid)
}

/// What is done about speculation, and what the processor says in ARCH_CAPABILITIES (0 without it).
pub fn speculation(wanted: Mitigations) -> (Plan, u64) {
    let offers = Offers::read(cpuid);
    // SAFETY: it is read where CPUID says that it exists.
    let says = if offers.arch_capabilities { unsafe { msr::read(ARCH_CAPABILITIES) } } else { 0 };
    (speculation::needs(offers, says, Model::read(cpuid), wanted), says)
}

/// Whether this machine is a virtual one whose processor says so.
pub fn is_virtual() -> bool {
    cpuid(1, 0)[2] >> 31 != 0
}

fn facts(host: &Host) -> Facts<'_> {
    Facts {
        version: env!("CARGO_PKG_VERSION"),
        boot: &host.boot,
        acpi: &host.acpi,
        identity: None,
        pcpus: percpu::count() as usize,
        topology: smp::topology(),
        processor: Processor::new(&cpuid),
        sound_xsavec: host.sound_xsavec,
        caches: probe::caches(&cpuid),
        virtualization: None,
        speculation: speculation(host.options.mitigations).0,
        frames: frame::stats(),
        tsc_khz: host.tsc_khz,
        tsc_source: host.tsc_source,
        ports: ArrayVec::new(),
        screen: screen::in_use(),
    }
}

/// Logs the report in a few lines.
pub fn print(host: &Host) {
    let boot = &host.boot;
    facts(host).brief(|line| info!("{line}"));
    for module in &boot.modules {
        let bytes = module.range.end - module.range.start;
        info!("module: {} KiB at {:#x} {}", bytes.div_ceil(1024), module.range.start, module.command_line);
    }
    if boot.dropped_regions > 0 {
        log::warn!("{} entries of the memory map are dropped: empty, or too many", boot.dropped_regions);
    }
}

/// Prints all of the report and ends the machine, by default so that what is on a real one's screen stays there.
pub fn probe(host: &Host) -> ! {
    let mut facts = facts(host);
    facts.virtualization = Some(virtualization());
    facts.identity = smbios::read(&paging::HostMemory, host.boot.firmware);
    let ports = [SerialPort::Com1, SerialPort::Com2, SerialPort::Com3, SerialPort::Com4];
    facts.ports = ports.into_iter().map(|port| (port, console::is_there(port))).collect();
    let end = match host.options.ending(is_virtual()) {
        ExitAction::Halt => "this machine can be switched off",
        ExitAction::PowerOff => "it is switched off now",
        ExitAction::Reset => "it is reset now",
        ExitAction::IsaDebug(_) => "the emulated machine ends",
    };
    // An error of a port cannot be reported anywhere else.
    let _ = write!(hv_log::console(), "{}end of the report; {end}\n", facts.full());
    hv_log::record(format_args!(
        r#"{{"v":{VERSION},"t":"{}","vm":"","reason":"{}"}}"#,
        Kind::End,
        EndReason::Probe
    ));
    hv_log::drain();
    pm::end_machine(pm::STATUS_OK)
}

/// What the virtualization extension offers; it is not switched on.
fn virtualization() -> Virtualization {
    const VMX: u32 = 1 << 5;
    let shortened = |obstacle: &dyn core::fmt::Display| {
        let mut text = ArrayString::new();
        // A longer text is cut.
        let _ = write!(text, "{obstacle}");
        text
    };
    let extension = |name, features: &[Feature]| {
        let (detail, features) = (ArrayString::new(), features.iter().copied().collect());
        Extension { name, detail, features }
    };
    if cpuid(1, 0)[2] & VMX != 0 || vendor() == *"GenuineIntel" {
        // SAFETY: only those MSRs are read that processors with VT-x have.
        let found = vmx::Features::detect(cpuid, |index| unsafe { msr::read(index) });
        let (features, _) = found.map_err(|obstacle| shortened(&obstacle))?;
        let mut extension = extension("VT-x", &features.list());
        let _ = write!(extension.detail, "VMCS revision {:#x}", features.revision);
        return Ok(extension);
    }
    // SAFETY: it is read on processors with SVM only, which have it.
    let found = svm::Features::detect(cpuid, || unsafe { msr::read(msr::VM_CR) });
    let features = found.map_err(|obstacle| shortened(&obstacle))?;
    let mut extension = extension("AMD-V", &features.list());
    let _ = write!(extension.detail, "{} ASIDs", features.asids);
    Ok(extension)
}
