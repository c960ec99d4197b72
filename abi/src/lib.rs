//! What programs that are built apart from each other must agree on, each item once.
//!
//! | module | agreed between |
//! |---|---|
//! | [`config`], [`mode`], [`policy`], [`schedule`], [`feature`] | who writes `palimpsest.toml` (people, `pal`) and the hypervisor, which reads it |
//! | [`telemetry`] | the hypervisor, which sends records, and `pal`, which reads them |
//! | [`hypercall`], [`testdev`] | the hypervisor and the kernels that run in its VMs |
//! | [`kit`] | the guest kit's module and the programs of a guest |
//! | [`lab`] | the lab machine's plugin, which counts, and the readers of its counters |
//! | [`disk`] | the hypervisor, which keeps evicted pages on a disk, and who gives it one |
//! | [`agile`] | a hypervisor with agile paging and a machine that models the processor for it |
//!
//! Kernels and programs in C include `abi/include/palimpsest.h`. It is generated: a test of this crate fails when it differs from
//! what the constants here say, and `PALIMPSEST_UPDATE=1 cargo test -p abi` writes it.
//!
//! The crate allocates nothing and depends on nothing, so that it can be linked everywhere. A change that an older partner would
//! misunderstand raises the version of its module ([`config::VERSION`], [`telemetry::VERSION`], [`lab::VERSION`]).
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod macros;

pub mod agile;
pub mod config;
pub mod disk;
pub mod feature;
pub mod hypercall;
pub mod kit;
pub mod lab;
pub mod mode;
pub mod policy;
pub mod regions;
pub mod schedule;
pub mod telemetry;
pub mod testdev;
pub mod tiers;

pub use macros::{Constant, UnknownWord};
