//! The freestanding binary: entry code, panic handler, and the memory functions that the compiler expects.
#![no_std]
#![no_main]

#[cfg(target_feature = "sse2")]
compile_error!(
    "build the hypervisor with `cargo hv`: it needs the flags in .cargo/config.toml (is RUSTFLAGS set?)"
);
