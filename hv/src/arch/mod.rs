//! The words of the architecture: addresses, registers, exceptions, MSR numbers.
//!
//! Plain data and constants of the manuals, without hardware access and without policy. It is the lowest layer: it imports
//! no other module of the hypervisor, and every other module may import it.

pub mod access;
pub mod addr;
pub mod counters;
pub mod dump;
pub mod emulator;
pub mod exception;
pub mod msr;
pub mod register_move;
pub mod state;
pub mod task;

pub use access::Access;
pub use exception::{Exception, vector};
pub use register_move::RegMove;
pub use state::{ArchState, Gpr, SegReg, Segment, VcpuState};
