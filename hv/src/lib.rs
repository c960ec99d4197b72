//! Palimpsest, a type-I research hypervisor: everything but the entry point.
//!
//! One rule explains the tree: privileged instructions and assembly live in [`hw`], [`boot`] and [`virt`];
//! everything else is hardware-free and runs under `cargo test` on any host.
//!
//! Modules import only modules of lower layers; `tests/tree.rs` has the table.
//!
//! Flow of an exit: [`virt`] decodes the vendor's exit into an [`virt::Exit`], [`vcpu::dispatch`] turns it into
//! an effect with the help of [`device`], [`paging`] and [`guest`], and [`vcpu::run`] applies the effect and enters
//! the guest again.
#![cfg_attr(not(any(test, feature = "testing")), no_std)]
#![deny(clippy::float_arithmetic)]
// Links to private items work in the documentation of internals (--document-private-items).
#![allow(rustdoc::private_intra_doc_links)]

extern crate alloc;

pub mod arch;
pub mod boot;
pub mod device;
pub mod emulate;
pub mod firmware;
pub mod guest;
pub mod hw;
pub mod mem;
pub mod monitor;
pub mod paging;
pub mod probe;
pub mod region;
pub mod sched;
pub mod screen;
pub mod smp;
pub mod trace;
pub mod vcpu;
pub mod virt;
pub mod vm;
pub mod vmm;
