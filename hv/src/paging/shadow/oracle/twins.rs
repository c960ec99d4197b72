//! Hypervisors that leave out a step of a change of the P2m, or of the engine: the oracle must find each of them out.

use super::super::left_out::Step;
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
    /// Processors do not flush what a pager takes away.
    EvictFlush,
    /// Processors do not flush pages that move to another tier.
    MoveFlush,
    /// What moves to another tier is not copied.
    LoseCopy,
    /// The pager forgets what it holds.
    LosePages,
    /// Leaves stay where memory is closed in a cache domain.
    Close,
    /// Shadow pages that are kept over a time on nested tables are not compared: not a change of the P2m, but of the engine.
    Compare,
    /// The engine leaves this out at all times. The accesses alone must tell: its own check is left out, too.
    #[cfg_attr(not(test), expect(dead_code, reason = "fuzz targets have the engine as it is"))]
    Engine(Step),
    /// INVLPG never exits where processors filter faults, whatever is unsync.
    Invlpg,
}

impl Omits {
    /// Whether the accesses alone must tell.
    pub fn is_unchecked(self) -> bool {
        matches!(self, Omits::Engine(_) | Omits::Invlpg)
    }

    /// What the engine leaves out.
    pub fn step(self) -> Option<Step> {
        if let Omits::Engine(step) = self { Some(step) } else { None }
    }

    /// What the engine is told of a change.
    pub fn told(self, changed: Changed) -> Changed {
        match self {
            Omits::Zap => Changed { was: OldFrames::NONE, ..changed },
            _ => changed,
        }
    }
}
