//! The fuzz targets: one program, whose target PALIMPSEST_FUZZ names. `cargo pal fuzz` builds it with libFuzzer's
//! instrumentation and runs it.
//!
//! Every `fuzz_one` in the hypervisor drives one module with arbitrary bytes, must not panic, and asserts what must hold.
//! A test in `tools/pal` checks that this list is complete.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

/// Names modules of the hypervisor that have a `fuzz_one`.
macro_rules! targets {
    ($($first:ident $(:: $rest:ident)*),* $(,)?) => {
        &[$((concat!(stringify!($first) $(, "-", stringify!($rest))*), hv::$first$(::$rest)*::fuzz_one)),*]
    };
}

const TARGETS: &[(&str, Target)] = targets![
    boot::acpi,
    boot::multiboot,
    boot::pvh,
    boot::s5,
    device::hpet,
    device::i8042,
    device::ioapic,
    device::lapic,
    device::pci,
    device::pic,
    device::pit,
    device::pm,
    device::rtc,
    device::uart,
    guest::bundle,
    guest::config,
    guest::load,
    guest::msr,
    paging::guest_walk,
    vcpu::emulate,
];

static CHOSEN: OnceLock<Target> = OnceLock::new();

/// Finds the target, or ends the program.
fn choose() {
    let name = std::env::var("PALIMPSEST_FUZZ").unwrap_or_default();
    match TARGETS.iter().find(|(target, _)| *target == name) {
        Some((_, target)) => drop(CHOSEN.set(*target)),
        None => {
            TARGETS.iter().for_each(|(target, _)| println!("{target}"));
            std::process::exit(if name == "list" { 0 } else { 2 });
        }
    }
}

fuzz_target!(
    init: choose(),
    |data: &[u8]| {
        if let Some(target) = CHOSEN.get() {
            target(data);
        }
    }
);
