//! `threshold`: fixed thresholds on page faults and on misses of the TLB, after Wang et al., "Selective hardware/software memory
//! virtualization" (VEE 2011): the baseline that adaptive policies are compared with.

use abi::policy::Threshold as Parameters;

use super::interval::{Faults, Interval};
use super::{Decision, Event, Next, Sample};
use crate::paging::engine::Engine;

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threshold {
    parameters: Parameters,
    interval: Interval,
    faults: Faults,
}

impl Threshold {
    /// With these parameters.
    pub(super) fn new(parameters: Parameters) -> Threshold {
        Threshold { parameters, interval: Interval::default(), faults: Faults::default() }
    }

    /// Many page faults: nested paging. Few, and many misses of the TLB: shadow paging. Otherwise the engine stays.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let mut engine = sample.engine;
        if event == Event::Start {
            *self = Threshold::new(self.parameters);
        } else if let Some(window) = self.interval.end(sample.period.as_ref(), self.parameters.interval_ms) {
            let faults = self.faults.rate(&window, sample);
            if faults > self.parameters.faults.into() {
                engine = Engine::Nested;
            } else if window.per_million(window.misses) > self.parameters.misses.into() {
                engine = Engine::Shadow;
            }
        }
        Decision { engine, next: Next::Period }
    }
}
