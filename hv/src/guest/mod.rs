//! How a guest is made: configuration, loaders, ACPI tables, CPUID and MSR policy.

pub mod acpi;
pub mod build;
pub mod bundle;
pub mod config;
pub mod cpuid;
pub mod devices;
pub mod load;
pub mod msr;
