//! What bring-up calls of the layers above it.
//!
//! [`crate::vmm`] defines these functions under the names that they have here, so that `boot` imports nothing of what stands
//! on it; the linker ties the two together, as it does the entry point.

use super::host::Host;

unsafe extern "Rust" {
    /// Everything after bring-up: makes the guests and runs them.
    pub safe fn hypervisor_main(host: &'static Host) -> !;

    /// Tries the virtualization of every PCPU for `selftest=smp`; returns how many failed.
    pub safe fn selftest_virtualization(host: &'static Host) -> u32;
}
