//! The only door to AMD-V and Intel VT-x.

pub mod exit;
pub mod state;
pub mod svm;

pub use exit::{Access, Exception, Exit, IoExit, RegMove};
pub use state::{ArchState, Gpr, SegReg, Segment, VcpuState};
