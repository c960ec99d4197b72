//! Hypervisors that leave out a step of a change of the P2m, or of the engine: the oracle must find each of them out.

use crate::paging::range::{Changed, OldFrames};

/// The step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Omits {
    /// None: the hypervisor as it is.
    #[default]
    Nothing,
    /// The engine does not learn where the memory was, and so zaps nothing.
    #[cfg_attr(not(test), expect(dead_code, reason = "fuzz targets have the hypervisor as it is"))]
    Zap,
    /// Processors do not flush.
    Flush,
    /// Leaves stay where memory is closed in a cache domain.
    #[cfg_attr(not(test), expect(dead_code, reason = "fuzz targets have the hypervisor as it is"))]
    Close,
    /// Shadow pages that are kept over a time on nested tables are not compared: not a change of the P2m, but of the engine.
    Compare,
}

impl Omits {
    /// What the engine is told of a change.
    pub fn told(self, changed: Changed) -> Changed {
        match self {
            Omits::Zap => Changed { was: OldFrames::NONE, ..changed },
            Omits::Nothing | Omits::Flush | Omits::Close | Omits::Compare => changed,
        }
    }
}
