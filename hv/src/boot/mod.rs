//! From the boot loader to a running PCPU: entry code, memory map, modules, command line.
//!
//! `entry.s` reaches long mode and calls `bringup`, which starts memory, processor, interrupts and clocks in that order,
//! reports the machine and calls `start::main`. What is not marked `baremetal` is pure: parsers, descriptor layouts,
//! memory maps. docs/design/0003-host-bring-up.md tells what holds afterwards.

pub mod acpi;
#[cfg(feature = "baremetal")]
pub mod bringup;
#[cfg(feature = "baremetal")]
pub mod console;
pub mod gdt;
#[cfg(feature = "baremetal")]
pub mod host;
pub mod idt;
#[cfg(feature = "baremetal")]
pub mod image;
pub mod info;
pub mod iommu;
#[cfg(feature = "baremetal")]
pub mod log;
pub mod memory;
pub mod multiboot;
pub mod numa;
#[cfg(feature = "baremetal")]
pub mod paging;
#[cfg(feature = "baremetal")]
pub mod panic;
#[cfg(feature = "baremetal")]
pub mod percpu;
#[cfg(feature = "baremetal")]
mod processor;
pub mod pvh;
#[cfg(feature = "baremetal")]
pub mod report;
#[cfg(feature = "baremetal")]
mod rt;
pub mod s5;
#[cfg(feature = "baremetal")]
pub mod screen;
#[cfg(feature = "baremetal")]
mod selftest;
#[cfg(feature = "baremetal")]
mod selftest_smp;
pub mod smbios;
#[cfg(feature = "baremetal")]
pub mod smp;
#[cfg(feature = "baremetal")]
pub mod start;
#[cfg(feature = "baremetal")]
pub mod trap;
