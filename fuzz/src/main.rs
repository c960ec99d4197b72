//! The fuzz targets: one program, whose target PALIMPSEST_FUZZ names. `cargo pal fuzz` builds it with libFuzzer's
//! instrumentation and runs it.
//!
//! Every `fuzz_one` drives one module with arbitrary bytes, must not panic, and asserts what must hold.
//! The build script finds them all.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

type Target = fn(&[u8]);

// TARGETS: the name and function of every module with a `fuzz_one`.
include!(concat!(env!("OUT_DIR"), "/targets.rs"));

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
