//! Host memory: frame allocator and heap.
//!
//! The algorithms ([`index_set`], [`buddy`], [`ranges`], [`lent`]) are pure. [`frame`] holds the machine's frames and `heap`
//! grows from them; [`tables`] and [`host_ram`] reach frames for the mappers and for guest memory. These four touch
//! memory and are the only ones here with unsafe code.

pub mod buddy;
pub mod frame;
#[cfg(any(test, feature = "baremetal"))]
pub mod heap;
pub mod host_ram;
pub mod index_set;
pub mod lent;
pub mod ranges;
pub mod tables;
