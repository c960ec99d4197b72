//! `random`: either engine with the same chance for each interval.
//!
//! Useless by itself; its logs show what each engine would have done in each situation, so that other policies can be trained
//! and judged from them (`cargo pal run --samples FILE`). The sequence depends on the seed alone, not on what is counted.

use abi::policy::Random as Parameters;

use super::{Decision, Event, Next, Sample};
use crate::paging::engine::Engine;

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    parameters: Parameters,
    generator: u64,
    /// Nanoseconds of the interval that have passed.
    passed: u64,
}

impl Random {
    /// With these parameters.
    pub(super) const fn new(parameters: Parameters) -> Random {
        Random { parameters, generator: parameters.seed, passed: 0 }
    }

    /// Draws at the start and after each interval.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let engine = match event {
            Event::Start => {
                (self.generator, self.passed) = (self.parameters.seed, 0);
                self.draw()
            }
            _ => {
                self.passed = self.passed.saturating_add(sample.period.map_or(0, |period| period.nanos));
                let interval = u64::from(self.parameters.interval_ms) * 1_000_000;
                if self.passed >= interval { self.draw() } else { sample.engine }
            }
        };
        Decision { engine, next: Next::Period }
    }

    fn draw(&mut self) -> Engine {
        self.passed = 0;
        match split_mix(&mut self.generator) >> 63 {
            0 => Engine::Nested,
            _ => Engine::Shadow,
        }
    }
}

/// The next number of a SplitMix64 sequence (Steele, Lea, Flood, OOPSLA 2014), with its state.
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
