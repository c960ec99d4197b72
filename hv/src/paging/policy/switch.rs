//! `switch=N`: nested and shadow tables by turns, each for N exits of the VM; with `engines=all` all engines.
//!
//! It has no use but to try what a change does: to its correctness (with N = 1 each exit is a change) and to its cost.

use core::num::NonZeroU32;

use super::{Decision, Event, Next, Sample};

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    exits: NonZeroU32,
    all: bool,
}

impl Switch {
    /// Changes every `exits` exits, between two engines or `all`.
    pub(super) const fn new(exits: NonZeroU32, all: bool) -> Switch {
        Switch { exits, all }
    }

    /// Goes on with the engine in use at first, then to the next one each time.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let engine = match event {
            Event::Start => sample.engine,
            Event::Exits | Event::Period if self.all => sample.engine.next(),
            Event::Exits | Event::Period => sample.engine.other(),
        };
        Decision { engine, next: Next::Exits(self.exits) }
    }
}
