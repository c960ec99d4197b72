//! The fuzz targets: every `fuzz_one` of the crates that read bytes from guests or files. The build script finds them all.
//!
//! A target drives one module with arbitrary bytes, must not panic, and asserts what must hold. `tests/random.rs` gives
//! each some random inputs; the program `fuzz`, which `cargo pal fuzz` builds and runs, searches for more with libFuzzer.

/// Takes an input.
pub type Target = fn(&[u8]);

// TARGETS: the name and function of every module with a `fuzz_one`.
include!(concat!(env!("OUT_DIR"), "/targets.rs"));
