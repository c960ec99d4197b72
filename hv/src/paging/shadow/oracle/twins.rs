//! Hypervisors that leave out a step of a change of the P2m, or of the engine: the oracle must find each of them out.

use super::super::left_out::Step;
#[cfg(test)]
use crate::paging::guest_walk::PagingKind;
use crate::paging::random::Random;
use crate::paging::range::{Changed, OldFrames};

/// What happens to a guest's memory beside its own doing: a pager takes pages, or pages migrate, or neither.
pub fn happens_to_memory(random: &mut Random) -> (bool, bool) {
    let is_paged = random.once_in(2);
    (is_paged, !is_paged && random.once_in(2))
}

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
    /// Processors do not flush what a guest's balloon gives back.
    DiscardFlush,
    /// Processors do not flush pages that move to another tier.
    MoveFlush,
    /// Processors do not flush after a sample of accesses, which has cleared bits.
    SampleFlush,
    /// What moves to another tier is not copied.
    LoseCopy,
    /// What goes home from fast memory is discarded, written or not.
    DiscardDirty,
    /// A piece that was written while it was copied in parts is taken for what was copied.
    StaleCopy,
    /// The pager forgets what it holds.
    LosePages,
    /// Leaves stay where memory is closed in a cache domain.
    Close,
    /// Leaves stay where memory is closed in a phase.
    PhaseClose,
    /// The VCPU's processor does not flush what is closed in its phase.
    PhaseFlush,
    /// The tables of a phase stay when it ends.
    PhaseEnd,
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
        matches!(
            self,
            Omits::Engine(_) | Omits::Invlpg | Omits::PhaseClose | Omits::PhaseFlush | Omits::PhaseEnd
        )
    }

    /// Whether the step is one of a trace with this seed: not where there is no pager, or no page migrates.
    #[cfg(test)]
    pub fn concerns(self, seed: u64) -> bool {
        let (is_paged, migrates) = happens_to_memory(&mut Random(seed));
        match self {
            Omits::EvictFlush | Omits::DiscardFlush | Omits::LosePages => is_paged,
            Omits::MoveFlush | Omits::LoseCopy | Omits::DiscardDirty | Omits::StaleCopy => migrates,
            _ => true,
        }
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

/// Fails unless a random trace of this many operations finds out that the step is left out, for each of these kinds of paging.
/// Some steps take dozens of traces, so each kind comes with the number of a trace that finds them. It is tried first. If it
/// finds nothing any more, because the traces or the engine are other ones, all are tried, and what is printed says its successor.
#[cfg(test)]
pub fn assert_found_out(
    omits: Omits,
    operations: usize,
    kinds: &[(PagingKind, u64)],
    run: impl Fn(PagingKind, u64, &[u64]) -> bool,
) {
    for &(kind, known) in kinds {
        let is_wrong = |number: u64| {
            let mut random = Random(number);
            let seed =
                std::iter::repeat_with(|| random.draw()).find(|seed| omits.concerns(*seed)).unwrap_or(0);
            let ops: Vec<u64> = (0..operations).map(|_| random.draw()).collect();
            // The engine's own assertions find something, too.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(kind, seed, &ops))).unwrap_or(true)
        };
        if !is_wrong(known) {
            let found = (0..300).find(|number| is_wrong(*number));
            let found = found.unwrap_or_else(|| panic!("{omits:?}, {kind:?}: no trace finds it out"));
            println!(
                "{omits:?}, {kind:?}: trace {found} finds it out, {known} does not: correct it in the test"
            );
        }
    }
}
