//! One function per privileged instruction, and the few host devices that the hypervisor drives itself.
//!
//! Functions that can break the machine are unsafe and say what callers owe; reads that cannot are safe.
//! The virtualization instructions live in `virt`, beside the structures that they work on.

pub mod bytes;
pub mod cmos;
pub mod context;
pub mod cpu;
pub mod fpu;
pub mod ioapic;
pub mod lapic;
pub mod msr;
pub mod mtrr;
pub mod pci;
pub mod pic;
pub mod pm;
pub mod pmu;
pub mod port;
pub mod random;
pub mod speculation;
pub mod timer;
pub mod tsc;
pub mod uart;
pub mod video;
pub mod virtio_blk;
