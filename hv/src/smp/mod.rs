//! Several PCPUs: what they ask of each other, how their clocks compare, and whether the first one runs guests. Hardware-free.
//!
//! `boot::smp` starts the PCPUs and carries the interrupts; docs/design/0011-smp.md tells why things are as they are.

pub mod first;
pub mod lock;
pub mod mailbox;
pub mod modelled;
pub mod skew;
