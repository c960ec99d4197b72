//! The structures of a processor, plain and apart from any emulator.
//!
//! ```text
//!  access ─► filter ─► L1 TLB ─► L2 TLB ─► walker ── nested TLB, walk caches
//!     │                                      │ references
//!     └──────────► L1 cache ─► L2 ─► last level ─► memory by tier
//! ```
//!
//! [`processor`] ties them together and is what an emulator's plugin drives. Times are modelled cycles of the processor;
//! addresses are plain `u64`, named `va` (linear), `gpa` (guest-physical) and `pa` (of the machine).

pub mod bank;
pub mod cache;
pub mod channel;
pub mod context;
pub mod decode;
pub mod dirty;
pub mod filter;
pub mod hierarchy;
pub mod index;
pub mod memory;
pub mod pace;
pub mod policy;
pub mod prefetch;
pub mod processor;
pub mod regions;
pub mod search;
pub mod space;
pub mod tlb;
pub mod walk;
pub mod witness;

pub use processor::Processor;
