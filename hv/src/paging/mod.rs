//! Address translation: table formats, the guest walker, the P2m, the paging engines.
//!
//! Hardware-free: tables are reached through traits, so that every algorithm here runs under `cargo test`.
//!
//! [`p2m`] says where guest-physical memory is; [`nested`] keeps the processor's tables in step with it; both
//! are [`table`] trees over a [`format`](mod@format). [`guest_walk`] walks the guest's own tables as the
//! processor would.

#[cfg(any(test, feature = "testing"))]
pub mod arena;
mod directory;
pub mod engine;
pub mod format;
pub mod guest_walk;
#[cfg(any(test, feature = "testing"))]
pub mod model;
pub mod nested;
pub mod nested_trees;
#[cfg(test)]
mod oracle;
pub mod p2m;
pub mod policy;
#[cfg(any(test, feature = "testing"))]
pub mod random;
pub mod range;
pub mod shadow;
pub mod table;
pub mod tree_key;
pub mod vm_memory;

pub use nested::{Nested, NestedOutcome};
pub use p2m::{P2m, P2mEntry};
pub use range::{Changed, Flush, GpaRange};
pub use table::MapError;
