//! `dsp-offset` and `asp-svm`: a linear model of the logarithms of page faults and of misses of the TLB in the interval that is over
//! (DSP-OFFSET; Bae, Dinda et al., ICPP 2018, sections 3.2 and 4; ASP-SVM; Kuang et al.). They differ in how the model is trained, and
//! in the margin.
//!
//! All is in integers: logarithms, weights and sums have 16 bits behind the point. A weight is at most 1000 and a logarithm at
//! most 64, so no sum can overflow.

use abi::policy::{AspSvm, DspOffset, LARGEST_WEIGHT, ONE};

use super::interval::{Faults, Interval};
use super::window::log2;
use super::{Decision, Event, Next, Sample};
use crate::paging::engine::Engine;

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear {
    model: DspOffset,
    interval: Interval,
    faults: Faults,
}

impl From<AspSvm> for Linear {
    fn from(model: AspSvm) -> Linear {
        Linear::from(DspOffset::from(model))
    }
}

impl From<DspOffset> for Linear {
    fn from(model: DspOffset) -> Linear {
        Linear { model, interval: Interval::default(), faults: Faults::default() }
    }
}

impl Linear {
    /// Decides after each interval.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let mut engine = sample.engine;
        if event == Event::Start {
            *self = Linear::from(self.model);
        } else if let Some(window) = self.interval.end(sample.period.as_ref(), self.model.interval_ms) {
            // Where nested paging hides the page faults, as many as the last known rate gives.
            let rate = u128::from(self.faults.rate(&window, sample));
            let hidden = rate * u128::from(window.instructions) / 1_000_000;
            let faults = if Faults::are_known(&window, sample) { window.faults } else { hidden as u64 };
            engine = decide(&self.model, faults, window.misses).unwrap_or(engine);
        }
        Decision { engine, next: Next::Period }
    }
}

/// What the model wants after an interval with this many page faults and misses of the TLB; `None` within the margin.
pub fn decide(model: &DspOffset, faults: u64, misses: u64) -> Option<Engine> {
    let weighted = |weight: i64, count: u64| weight.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT) * log2(count);
    let weighted = weighted(model.faults, faults) + weighted(model.misses, misses);
    let sum = weighted.div_euclid(ONE) + model.bias;
    match sum {
        _ if sum > model.margin => Some(Engine::Shadow),
        _ if sum < -model.margin => Some(Engine::Nested),
        _ => None,
    }
}
