//! The source of the scheduler, and of the word that says which VCPUs sleep, as it is, with loom's locks and atomics: see
//! `hv/src/sched/sync.rs`.

extern crate alloc;

#[path = "../../../hv/src/sched/mod.rs"]
pub mod sched;

#[path = "../../../hv/src/vm/hlt_tracker.rs"]
pub mod hlt_tracker;
