//! The freestanding binary: everything is in the library, from `boot/entry.s` on.
#![no_std]
#![no_main]

#[cfg(target_feature = "sse2")]
compile_error!(
    "build the hypervisor with `cargo hv`: it needs the flags in .cargo/config.toml (is RUSTFLAGS set?)"
);

use hv as _;

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    hv::boot::panic::panic(info)
}
