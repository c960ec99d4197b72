//! `switch=N`: all engines by turns, each for N exits of the VM.
//!
//! It has no use but to try what a change does: to its correctness (with N = 1 each exit is a change) and to its cost.

use core::num::NonZeroU32;

use super::{Decision, Event, Next, Sample};

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    exits: NonZeroU32,
}

impl Switch {
    /// Changes every `exits` exits.
    pub(super) const fn new(exits: NonZeroU32) -> Switch {
        Switch { exits }
    }

    /// Goes on with the engine in use at first, then to the next one each time.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let engine = match event {
            Event::Start => sample.engine,
            Event::Exits | Event::Period => sample.engine.next(),
        };
        Decision { engine, next: Next::Exits(self.exits) }
    }
}
