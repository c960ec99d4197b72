//! What firmware and boot loaders hand over: boot information, ACPI tables, SMBIOS.
//!
//! Pure parsers, used by [`crate::boot`] and the hardware report ([`crate::probe`]). They read through
//! [`info::LoaderMemory`], believe nothing that they read, and run under `cargo test` and the fuzzer.

pub mod acpi;
pub mod hmat;
pub mod info;
pub mod iommu;
pub mod multiboot;
pub mod numa;
pub mod pvh;
pub mod s5;
pub mod smbios;

/// The little-endian number of `size` bytes, eight at most, at an offset; 0 if it is not there.
fn le(bytes: &[u8], at: usize, size: usize) -> u64 {
    let bytes = at.checked_add(size).and_then(|end| bytes.get(at..end)).unwrap_or(&[]);
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
