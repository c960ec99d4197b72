//! The host report: what a person wants to know about the machine, in a few lines of the log.

use arrayvec::ArrayString;
use log::info;

use super::host::Host;
use crate::hw::cpu;
use crate::mem::frame;
use crate::paging::addr::PAGE_SIZE;

/// ASCII text from CPUID registers, blanks trimmed.
fn text<const N: usize>(registers: impl Iterator<Item = u32>) -> ArrayString<N> {
    let mut text = ArrayString::new();
    for byte in registers.flat_map(u32::to_le_bytes).filter(|b| b.is_ascii_graphic() || *b == b' ') {
        if !(text.is_empty() && byte == b' ') {
            let _ = text.try_push(char::from(byte));
        }
    }
    let len = text.trim_end().len();
    text.truncate(len);
    text
}

/// The processor's vendor, as CPUID spells it.
pub fn vendor() -> ArrayString<12> {
    let leaf = cpu::cpuid(0, 0);
    text([leaf.ebx, leaf.edx, leaf.ecx].into_iter())
}

/// The processor's name; empty if it does not say.
pub fn brand() -> ArrayString<48> {
    if cpu::cpuid(0x8000_0000, 0).eax < 0x8000_0004 {
        return ArrayString::new();
    }
    text((0x8000_0002..=0x8000_0004).flat_map(|leaf| {
        let r = cpu::cpuid(leaf, 0);
        [r.eax, r.ebx, r.ecx, r.edx]
    }))
}

/// Logs the report.
pub fn print(host: &Host) {
    let boot = &host.boot;
    let signature = cpu::cpuid(1, 0).eax;
    let memory = frame::stats();
    let mib = |frames: u64| (frames * PAGE_SIZE) >> 20;
    info!("Palimpsest {}, started by {}", env!("CARGO_PKG_VERSION"), boot.loader);
    info!("processor: {} ({}, {signature:#x}), {} PCPUs", brand(), vendor(), host.acpi.cpus.len().max(1));
    info!("memory: {} MiB for guests and tables, {} MiB free", mib(memory.total), mib(memory.free));
    info!("time: TSC at {} kHz (from {})", host.tsc_khz, host.tsc_source);
    info!(
        "interrupts: {}{}, {} I/O APICs",
        if host.lapic.x2apic { "x2APIC" } else { "xAPIC" },
        if host.lapic.tsc_deadline { " with TSC deadline" } else { "" },
        host.acpi.io_apics.len()
    );
    for module in &boot.modules {
        let bytes = module.range.end - module.range.start;
        info!("module: {} KiB at {:#x} {}", bytes.div_ceil(1024), module.range.start, module.command_line);
    }
    if boot.dropped_regions > 0 {
        log::warn!("{} entries of the memory map are empty or too many", boot.dropped_regions);
    }
}
