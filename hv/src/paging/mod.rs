//! Address translation: address kinds, table formats, the guest walker, the P2m, the paging engines.
//!
//! Hardware-free: tables are reached through traits, so that every algorithm here runs under `cargo test`.

pub mod addr;
pub mod format;
