//! `dsp-sample`: tries both engines by turns and uses the better one for a while (DSP-SAMPLE; Bae, Dinda et al., ICPP 2018, sections
//! 3.1 and 4.2). By default six intervals of 100 ms, then fifty.
//!
//! The better one has more instructions for a cycle, the cycles of the hypervisor included: what a change of the engine costs counts
//! against the interval after it.

use abi::policy::{DspSample as Parameters, MILLI};

use super::interval::Interval;
use super::window::{Speed, Window};
use super::{Decision, Event, Next, Sample};
use crate::paging::engine::Engine;

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DspSample {
    parameters: Parameters,
    interval: Interval,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Both engines are tried: how many intervals are over, and their sums for each engine.
    Explore { over: u32, sums: [Speed; 2] },
    /// The better one is used for this many intervals more.
    Exploit { left: u32 },
}

impl Phase {
    const FIRST: Phase = Phase::Explore { over: 0, sums: [Speed { instructions: 0, cycles: 0 }; 2] };
}

impl DspSample {
    /// With these parameters.
    pub(super) fn new(parameters: Parameters) -> DspSample {
        DspSample { parameters, interval: Interval::default(), phase: Phase::FIRST }
    }

    /// Begins with nested paging.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let mut engine = sample.engine;
        if event == Event::Start {
            *self = DspSample::new(self.parameters);
            engine = Engine::Nested;
        } else if let Some(window) = self.interval.end(sample.period.as_ref(), self.parameters.interval_ms) {
            engine = self.end_interval(&window, sample.engine);
        }
        Decision { engine, next: Next::Period }
    }

    fn end_interval(&mut self, window: &Window, engine: Engine) -> Engine {
        match &mut self.phase {
            Phase::Explore { over, sums } => {
                let sum = &mut sums[usize::from(engine == Engine::Shadow)];
                *sum = sum.plus(window.speed());
                *over += 1;
                if *over < 2 * self.parameters.explore {
                    return other(engine);
                }
                let [nested, shadow] = *sums;
                let better = if nested.is_slower(shadow, MILLI) { Engine::Shadow } else { Engine::Nested };
                self.phase = Phase::Exploit { left: self.parameters.exploit };
                better
            }
            Phase::Exploit { left: 0 | 1 } => {
                self.phase = Phase::FIRST;
                engine
            }
            Phase::Exploit { left } => {
                *left -= 1;
                engine
            }
        }
    }
}

/// Nested for shadow paging, and the other way round.
fn other(engine: Engine) -> Engine {
    if engine == Engine::Shadow { Engine::Nested } else { Engine::Shadow }
}
