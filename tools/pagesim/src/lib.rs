//! Page replacement on traces: the hypervisor's policies ([`replace`] is its source), OPT, which needs the future ([`opt`]), traces
//! ([`trace`]), memories of several sizes under several policies that one reading of a trace drives ([`simulation`]), and programs
//! whose accesses become traces ([`record`]). `cargo pal replace` and `cargo pal reproduce` call it.

extern crate alloc;

pub mod figures;
pub mod memory;
pub mod opt;
pub mod record;
#[path = "../../../hv/src/mem/replace/mod.rs"]
pub mod replace;
pub mod simulation;
pub mod trace;
