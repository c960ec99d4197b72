//! Memory in a region of the hypervisor Palimpsest: objects that are used together are in frames of which the hypervisor knows
//! that. `docs/sdk.md` tells how to use it; the interface below it is [`abi::kit`].
//!
//! ```
//! use palimpsest_region::Region;
//!
//! let region = Region::new();
//! if let Some(why) = region.reason() {
//!     eprintln!("plain memory: {why}");
//! }
//! let mut numbers = region.vec();
//! numbers.extend([1, 2, 3]);
//! let answer = region.alloc(42).expect("memory");
//! assert_eq!(*answer + numbers[2], 45);
//! ```
//!
//! A [`Region`] is an [`Allocator`] of the crate `allocator-api2`, whose `Box` and `Vec` work with it on stable Rust. It is a
//! handle: clones of it, and each `Box` and `Vec` that was made with one, keep the region, which ends with the last of them.
//!
//! | module | owns |
//! |---|---|
//! | `heap` | which part of the memory is free: no unsafe code |
//! | `device` | mappings of `/dev/palimpsest`, or anonymous ones |
//! | `tier` | what a program wants of the machine's fast memory |
//!
//! A child that fork makes has none of the memory, and is killed by SIGSEGV if it touches it: `exec` is all that it should do.
#![deny(unsafe_code)]

mod device;
mod heap;
mod region;
mod tier;

pub use allocator_api2::alloc::{AllocError, Allocator};
pub use heap::ALIGNMENT_MAX;
pub use region::{Region, RegionBox, RegionVec};
pub use tier::FastMemory;
