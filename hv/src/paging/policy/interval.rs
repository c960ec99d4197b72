//! Intervals of a policy: some periods of samples each, as many as its parameters ask for.

use super::window::Window;
use super::{Period, Sample};
use crate::paging::engine::Engine;

/// The interval that is going on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    so_far: Window,
    /// A period brought no counters.
    is_blind: bool,
}

impl Interval {
    /// Adds the period that is over. The interval's sums if it has lasted for `ms` milliseconds: the next one begins then. `None`
    /// also where the machine counted nothing in it.
    pub(super) fn end(&mut self, period: Option<&Period>, ms: u32) -> Option<Window> {
        let period = period?;
        match Window::of(period) {
            Some(window) => self.so_far.add(&window),
            None => {
                self.is_blind = true;
                self.so_far.add(&Window { nanos: period.nanos, ..Window::default() });
            }
        }
        if self.so_far.nanos < u64::from(ms) * 1_000_000 {
            return None;
        }
        let ended = core::mem::take(self);
        (!ended.is_blind).then_some(ended.so_far)
    }
}

/// What is known of the guest's page faults. Its kernel may count them ([`CounterEvent::PageFaults`](crate::arch::counters)).
/// Without that, shadow paging sees them; with nested paging the hypervisor sees none, so that the last rate that was seen
/// stands for the present one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// In a million instructions, when they were last seen.
    last: u64,
}

impl Faults {
    /// Page faults of the guest in a million of its instructions.
    pub(super) fn rate(&mut self, window: &Window, sample: &Sample) -> u64 {
        if Faults::are_known(window, sample) {
            self.last = window.per_million(window.faults);
        }
        self.last
    }

    /// Whether those of this interval are known.
    pub(super) fn are_known(window: &Window, sample: &Sample) -> bool {
        !window.not_counted || sample.engine == Engine::Shadow
    }
}
