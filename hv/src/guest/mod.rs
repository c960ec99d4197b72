//! A guest: its memory, configuration, loaders, ACPI tables, CPUID and MSR policy.

pub mod acpi;
pub mod build;
pub mod bundle;
pub mod clock;
pub mod config;
pub mod cpuid;
pub mod devices;
pub mod layout;
pub mod load;
pub mod mem;
pub mod msr;
pub mod options;
pub mod pvclock;
pub mod ram;
pub mod vm;
