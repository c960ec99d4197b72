//! The fuzz targets as one program for libFuzzer, whose target PALIMPSEST_FUZZ names.
#![no_main]

use std::sync::OnceLock;

use fuzz_targets::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

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
