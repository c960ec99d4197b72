//! From the boot loader to a running PCPU: entry code, memory map, modules, command line.
//!
//! `entry.s` reaches long mode and calls `bringup`, which starts memory, processor, interrupts and clocks in that order,
//! reports the machine and calls `start::main`. What is not marked `baremetal` is pure: parsers, descriptor layouts,
//! memory maps. docs/design/0003-host-bring-up.md tells what holds afterwards.

#[cfg(feature = "baremetal")]
pub mod bringup;
pub mod cmdline;
#[cfg(feature = "baremetal")]
pub mod console;
pub mod fast_memory;
pub mod gdt;
#[cfg(feature = "baremetal")]
pub mod host;
pub mod idt;
#[cfg(feature = "baremetal")]
pub mod image;
#[cfg(feature = "baremetal")]
pub mod log;
pub mod memory;
#[cfg(feature = "baremetal")]
pub mod paging;
#[cfg(feature = "baremetal")]
pub mod panic;
#[cfg(feature = "baremetal")]
pub mod percpu;
#[cfg(feature = "baremetal")]
mod processor;
#[cfg(feature = "baremetal")]
pub mod report;
#[cfg(feature = "baremetal")]
mod rt;
#[cfg(feature = "baremetal")]
pub mod screen;
#[cfg(feature = "baremetal")]
mod selftest;
#[cfg(feature = "baremetal")]
mod selftest_smp;
#[cfg(feature = "baremetal")]
pub mod smp;
#[cfg(feature = "baremetal")]
pub mod start;
#[cfg(feature = "baremetal")]
pub mod trap;
