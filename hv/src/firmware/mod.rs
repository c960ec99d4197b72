//! What firmware and boot loaders hand over: boot information, ACPI tables, SMBIOS.
//!
//! Pure parsers, used by [`crate::boot`] and the hardware report ([`crate::probe`]). They read through
//! [`info::LoaderMemory`], believe nothing that they read, and run under `cargo test` and the fuzzer.

pub mod acpi;
pub mod info;
pub mod iommu;
pub mod multiboot;
pub mod numa;
pub mod pvh;
pub mod s5;
pub mod smbios;
