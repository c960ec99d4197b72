//! `bandit`: a contextual bandit that learns which engine is better while the guest runs, without training and without a log.
//!
//! Its arms are the two engines. Its context is the guest's page faults and misses of the TLB, as logarithms of rates ([`Context`]).
//! For each context it keeps what shadow paging gains there, and within what radius that is known ([`Gains`]). Where it has not tried
//! that, the gain follows from what a miss and a page fault cost, which it learns in all contexts together ([`Costs`]). The reward of
//! a change is the logarithm of instructions per cycle after it, relative to the running mean before it: neighbours in time are
//! compared, so that a phase of the guest with few instructions per cycle says nothing against the engine in use.
//!
//! ```text
//!             gain lost since the last change > cost of a change, or
//!             gain + radius > margin, and the budget pays for a trial
//!      Stay ───────────────────────────────────────────────────────────► Trial
//!       ▲                                                                  │
//!       └──────────────────────────────────────────────────────────────────┘
//!        speed no longer rises: learn the gain, the cost, and go back if it was a loss;
//!        or the guest does something else: learn nothing
//! ```
//!
//! A radius shrinks by what is learnt and grows with time, so that exploration dies down and comes back. Trials are paid from a budget
//! that grows by a fixed share of the guest's time. docs/design/0022 has the reasons.
//!
//! All is in integers: logarithms have 16 bits behind the point, and times are in intervals. The state has a
//! fixed size.

mod costs;
mod gains;
#[cfg(test)]
#[expect(clippy::float_arithmetic, reason = "what the policy is compared with")]
mod others;
#[cfg(test)]
#[expect(clippy::float_arithmetic, reason = "figures for people")]
mod tests;

use abi::policy::{Bandit as Parameters, MILLI, ONE};

use super::interval::{Faults, Interval};
use super::window::{Window, log2};
use super::{Decision, Event, Next, Sample};
use crate::paging::engine::Engine;
use costs::{Costs, Rates};
use gains::{Context, Estimate, Gains};

/// log2(e): what a small share of time is in logarithms.
const LOG2_E: i64 = 94_548;
/// What the budget begins with, and holds at most: eight intervals at half the speed.
const SAVINGS: i64 = 8 * ONE;
/// What a change is taken to cost before one was seen: a quarter of an interval, at half the speed.
const FIRST_COST: i64 = ONE / 4;
/// What a change may cost at most, in intervals at half the speed: no sum can overflow.
const LARGEST: i64 = 1 << 30;
/// Cycles of an interval in which a guest does enough for its speed to be compared.
const LEAST_CYCLES: u64 = 1 << 16;
/// By how much the speed must still rise for a trial to go on: a 32nd.
const RISE: i64 = ONE / 32;
/// A change of the speed that is no noise: a quarter, and four deviations.
const JUMP: i64 = ONE / 4;

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bandit {
    parameters: Parameters,
    interval: Interval,
    gains: Gains,
    costs: Costs,
    /// Where the guest is, since it last went to another context or the engine changed.
    place: Option<Place>,
    /// The mean deviation of an interval's speed from the running mean.
    noise: i64,
    /// What a change of the engine costs.
    cost: i64,
    /// What the other engine would have gained since the last change, never below 0.
    regret: i64,
    /// What trials may still lose.
    budget: i64,
    trial: Option<Trial>,
}

/// What a VM takes for it.
const _: () = assert!(size_of::<Bandit>() <= 1800);

/// Some intervals in one context, on one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    context: Context,
    rates: Rates,
    /// Running mean of log2 of instructions per cycle.
    speed: i64,
    /// How many intervals, up to 255.
    intervals: u8,
}

/// The intervals after a change of the engine, until the speed has settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trial {
    /// Where the guest was before.
    from: Place,
    /// It was made to learn, not to gain.
    explores: bool,
    /// The intervals that are over, and their speeds: added up, and the last one.
    intervals: u32,
    sum: i64,
    last: i64,
}

impl Bandit {
    /// With these parameters; nothing is known.
    pub(super) fn new(parameters: Parameters) -> Bandit {
        Bandit {
            parameters,
            interval: Interval::default(),
            gains: Gains::new(),
            costs: Costs::new(),
            place: None,
            noise: 0,
            cost: FIRST_COST,
            regret: 0,
            budget: SAVINGS,
            trial: None,
        }
    }

    /// Decides after each interval.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        let mut engine = sample.engine;
        if event == Event::Start {
            *self = Bandit::new(self.parameters);
        } else if let Some(window) = self.interval.end(sample.period.as_ref(), self.parameters.interval_ms) {
            engine = self.end_interval(&window, sample);
        }
        Decision { engine, next: Next::Period }
    }

    fn end_interval(&mut self, window: &Window, sample: &Sample) -> Engine {
        self.gains.widen(self.parameters);
        self.costs.widen(self.parameters);
        let earned = i64::from(self.parameters.explore_milli) * LOG2_E / i64::from(MILLI);
        self.budget = (self.budget + earned).min(SAVINGS);
        if window.instructions == 0 || window.cycles < LEAST_CYCLES {
            // The guest waits: what it was in the middle of is not compared with what comes.
            (self.place, self.trial) = (None, None);
            return sample.engine;
        }
        let speed = log2(window.instructions) - log2(window.cycles);
        let is_known = Faults::are_known(window, sample);
        let rates = Rates::of(window, is_known);
        let now = Place { context: Context::of(window, is_known), rates, speed, intervals: 1 };
        match self.trial.take() {
            Some(trial) if trial.from.context.is_near(now.context) => self.go_on(trial, now, sample.engine),
            _ => self.stay(now, sample.engine),
        }
    }

    /// What shadow paging gains in a place, of which `engine` has shown the rates.
    fn known(&self, place: Place, engine: Engine) -> Estimate {
        self.gains.of(place.context, self.costs.estimate(place.rates, engine))
    }

    /// After an interval on an engine that has settled.
    fn stay(&mut self, now: Place, engine: Engine) -> Engine {
        let place = match self.place.filter(|place| place.context == now.context) {
            Some(place) => self.update_place(place, now, engine),
            None => now,
        };
        self.place = Some(place);
        let margin = i64::from(self.parameters.margin_milli) * LOG2_E / i64::from(MILLI);
        // What the other engine would gain.
        let Estimate { gain, low, high } = self.known(place, engine).of(engine.other());
        let lost = if gain.abs() <= margin || gain > 0 && low <= 0 { 0 } else { gain };
        self.regret = (self.regret + lost).clamp(0, LARGEST);
        if self.regret > self.cost {
            return self.change(place, engine, false);
        }
        // There and back, and the loss meanwhile. A place that was just reached may be left at once, and has no mean.
        let price = 2 * self.cost + 2 * (-gain).max(0);
        let explores = self.parameters.explore_milli > 0 && self.budget >= price;
        let is_worth_it = explores && high > margin;
        if is_worth_it && place.intervals > 1 { self.change(place, engine, true) } else { engine }
    }

    /// One more interval in a place. A speed that has changed without the context says that gains may have changed as well.
    fn update_place(&mut self, place: Place, now: Place, engine: Engine) -> Place {
        let off = now.speed - place.speed;
        if off.abs() > JUMP.max(4 * self.noise) {
            let guess = self.costs.estimate(place.rates, engine);
            self.gains.doubt(place.context, guess, signed(engine, off));
            return now;
        }
        self.noise += (off.abs() - self.noise) / 16;
        let (rates, intervals) = (place.rates.followed_by(now.rates), place.intervals.saturating_add(1));
        Place { rates, speed: place.speed + off / 4, intervals, ..place }
    }

    /// Begins a trial of the other engine.
    fn change(&mut self, from: Place, engine: Engine, explores: bool) -> Engine {
        (self.regret, self.place) = (0, None);
        self.trial = Some(Trial { from, explores, intervals: 0, sum: 0, last: i64::MIN / 2 });
        engine.other()
    }

    /// After an interval of a trial.
    fn go_on(&mut self, mut trial: Trial, now: Place, engine: Engine) -> Engine {
        let (from, speed) = (trial.from, now.speed);
        let rises = speed > trial.last + RISE + self.noise;
        (trial.intervals, trial.sum, trial.last) = (trial.intervals + 1, trial.sum + speed, speed);
        // The first interval pays for the change, so that the second one is faster if anything is.
        if trial.intervals < 2 || rises && trial.intervals < self.parameters.settle {
            self.trial = Some(trial);
            return engine;
        }
        let length = i64::from(trial.intervals);
        let took = (length * speed - trial.sum).clamp(0, LARGEST);
        self.cost += (took - self.cost) / 4;
        // What was seen holds for what the guest looked like before, and for what it looks like now.
        let gain = signed(engine, speed - from.speed);
        self.gains.learn(from.context, self.costs.estimate(from.rates, engine.other()), gain, self.noise);
        if now.context != from.context {
            self.gains.learn(now.context, self.costs.estimate(now.rates, engine), gain, self.noise);
        }
        self.costs.learn(from.rates, now.rates, engine, self.noise);
        let back = self.known(now, engine).of(engine.other()).gain;
        if trial.explores {
            let lost = took + if back > 0 { length * back + self.cost } else { 0 };
            self.budget = (self.budget - lost).max(-LARGEST);
        }
        self.place = Some(now);
        if back > 0 { self.change(now, engine, false) } else { engine }
    }
}

/// A gain of shadow paging as one of `engine`, and the other way round.
fn signed(engine: Engine, gain: i64) -> i64 {
    if engine == Engine::Shadow { gain } else { -gain }
}
