//! The scheduler's source as it is, with loom's locks and atomics: see `hv/src/sched/sync.rs`.

extern crate alloc;

#[path = "../../../hv/src/sched/mod.rs"]
pub mod sched;
