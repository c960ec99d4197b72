//! `oracle`: follows a schedule that knows the guest's future, because it was made from runs of the same work.
//!
//! No policy that decides while the guest runs can know so much: it shows what they could gain at most (docs/policies.md). Changes
//! are places in the guest's work, counted in its instructions, so that they do not move with the speed of an engine.

use abi::schedule::{INSTRUCTIONS, Oracle as Schedule};

use super::window::Window;
use super::{Decision, Event, Next, Sample};
use crate::arch::counters::CounterEvent;
use crate::paging::engine::Engine;

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oracle {
    schedule: Schedule,
    /// Instructions of the guest since the policy began.
    done: u64,
}

impl Oracle {
    /// At the beginning of this schedule.
    pub(super) const fn new(schedule: Schedule) -> Oracle {
        Oracle { schedule, done: 0 }
    }

    /// The engine for the next period.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        if event == Event::Start {
            self.done = 0;
            return Decision { engine: self.engine(0), next: Next::Period };
        }
        // Before a lab machine's model begins they are all that is counted.
        let instructions =
            sample.period.as_ref().and_then(|period| period.guest.get(CounterEvent::Instructions));
        let engine = match instructions.filter(|instructions| *instructions <= Window::MOST) {
            Some(instructions) => {
                self.done = self.done.saturating_add(instructions);
                // A change lies somewhere in a period: at its end or its beginning, whichever is nearer, if it is like the last one.
                self.engine(self.done.saturating_add(instructions / 2))
            }
            None => sample.engine,
        };
        Decision { engine, next: Next::Period }
    }

    /// The engine at this instruction.
    fn engine(&self, instruction: u64) -> Engine {
        let over = |change: &u32| u64::from(*change).saturating_mul(INSTRUCTIONS) <= instruction;
        let changed = self.schedule.changes().partition_point(over) % 2 != 0;
        if changed != self.schedule.shadow_first { Engine::Shadow } else { Engine::Nested }
    }
}
