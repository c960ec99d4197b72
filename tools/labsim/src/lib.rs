//! The lab machine: a model of translation caches, page walks, caches and memory, and the machines that it can be.
//!
//! Nothing here knows an emulator: `tools/labsim/plugin` feeds a running QEMU machine into a [`model::Processor`] for each
//! of its processors, and [`machine`] reads the files that say which machine it is. docs/lab.md tells how to use it.

#![forbid(unsafe_code)]

pub mod machine;
pub mod model;
pub mod report;
