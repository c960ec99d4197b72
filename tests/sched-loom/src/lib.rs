//! The source of the scheduler, of the word that says which VCPUs sleep, and of what VCPUs that fill shadow entries agree on, as it
//! is, with loom's locks and atomics: see `hv/src/sched/sync.rs`.

extern crate alloc;

#[path = "../../../hv/src/sched/mod.rs"]
pub mod sched;

#[path = "../../../hv/src/vm/hlt_tracker.rs"]
pub mod hlt_tracker;

#[path = "../../../hv/src/paging/shadow/pool/claims.rs"]
pub mod claims;
