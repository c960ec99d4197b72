//! Host memory: frame allocator and heap.
//!
//! The algorithms ([`index_set`], [`buddy`], [`ranges`], [`vm_ram`]) are pure. [`frame`] holds the machine's frames and `heap`
//! grows from them, and [`frame_record`] says whose each is; [`guest_memory`], [`host_access`] and [`table_memory`] are the traits by which everything else reaches
//! memory; [`tables`], [`pieces`] and [`host_ram`] reach frames for the mappers, for long arrays, and for guest memory. These five touch
//! memory and are the only ones here with unsafe code.
//!
//! Which pages of guests are in which memory: [`pager`] for overcommitted guests, [`tier`] for fast and slow memory. Both ask a policy of
//! [`replace`], by the name that [`replacement`] knows, with the objects of pages in [`objects`].

pub mod buddy;
pub mod frame;
pub mod frame_record;
pub mod guest_memory;
#[cfg(any(test, feature = "baremetal"))]
pub mod heap;
pub mod host_access;
pub mod host_ram;
pub mod index_set;
pub mod objects;
pub mod pager;
pub mod pieces;
pub mod ranges;
pub mod replace;
pub mod replacement;
pub mod table_memory;
pub mod tables;
pub mod tier;
pub mod vm_ram;
