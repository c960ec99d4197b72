//! Page replacement on traces.

extern crate alloc;

#[path = "../../../hv/src/mem/replace/mod.rs"]
pub mod replace;
