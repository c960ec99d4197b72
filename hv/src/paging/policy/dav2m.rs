//! `dav2m`: dynamic thresholds and probes (DAV²M; Bae, Lange, Dinda, "Enhancing virtualized application performance through dynamic
//! adaptive paging mode selection", ICAC 2011, section 6).
//!
//! While shadow paging is used, its exits are counted in windows of instructions; while nested paging is used, misses of the TLB.
//! Beyond a threshold the other engine is tried, and its cycles per instruction are compared with those before. A probe that
//! fails raises the threshold that led to it, one that succeeds lowers it, and changes in quick succession raise both.
//!
//! ```text
//!            exits > threshold                    nested is not slower
//!  Shadow ───────────────────────► PreNested ──────────────────────────► Prepaging
//!     ▲ ▲                              │                                     │ the TLB is quiet
//!     │ └──────────────────────────────┘ nested is slower                    ▼
//!     └──────────── PreShadow ◄─────────────────────────────────────────── Nested
//!  shadow is not slower │               misses > threshold                   ▲
//!                       └────────────────────────────────────────────────────┘ shadow is slower
//! ```
//!
//! Where the paper leaves something open, docs/design/0019 says what is done here and why. The paper decides at each
//! exit and at each overflow of a counter; here all is decided at the end of a period of samples, in which several units of
//! `window_inst` instructions may have ended.

use abi::policy::{Dav2m as Parameters, MILLI};

use super::window::{Speed, Window};
use super::{Decision, Event, Next, Sample};
use crate::paging::engine::Engine;

/// Steps of the moving averages, at most.
const STEPS: usize = 10;
/// Thresholds stay between what they began with divided and multiplied by this: however often probes failed, a behaviour that lasts
/// is found in the end.
const SPAN: u64 = 1 << 10;

/// The states, by the paper's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Shadow paging; its exits are counted.
    Shadow,
    /// Nested paging is tried.
    PreNested,
    /// Nested paging was better; the TLB fills.
    Prepaging,
    /// Nested paging; misses of the TLB are counted.
    Nested,
    /// Shadow paging is tried.
    PreShadow,
}

impl State {
    /// The engine that is used in it.
    const fn engine(self) -> Engine {
        match self {
            State::Shadow | State::PreShadow => Engine::Shadow,
            State::PreNested | State::Prepaging | State::Nested => Engine::Nested,
        }
    }
}

/// The policy's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dav2m {
    parameters: Parameters,
    state: State,
    /// The window of the state: since it was entered, or since its counts were last reset.
    window: Window,
    /// The last steps of `window_inst` instructions with the engine in use, for the moving average; the newest last.
    steps: [Speed; STEPS],
    /// The step that is going on.
    step: Speed,
    /// Cycles per instruction when the engine was last left: nested, shadow.
    before: [Speed; 2],
    /// Exits above which nested paging is tried, and misses above which shadow paging is.
    threshold_vexit: u64,
    threshold_tmiss: u64,
    /// Instructions since the last change to shadow paging, and since the last to nested paging.
    since: [u64; 2],
}

impl Dav2m {
    /// With these parameters; begins with nested paging, as a VM does.
    pub(super) fn new(parameters: Parameters) -> Dav2m {
        Dav2m {
            parameters,
            state: State::Nested,
            window: Window::default(),
            steps: [Speed::default(); STEPS],
            step: Speed::default(),
            before: [Speed::default(); 2],
            threshold_vexit: parameters.threshold_vexit,
            threshold_tmiss: parameters.threshold_tmiss,
            since: [u64::MAX; 2],
        }
    }

    /// Which state it is in.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Decides after each period of samples.
    pub(super) fn on(&mut self, event: Event, sample: &Sample) -> Decision {
        match (event, sample.period.as_ref().and_then(Window::of)) {
            (Event::Start, _) => {
                *self = Dav2m::new(self.parameters);
                // The engine in use is where it begins: a person may ask for the policy while shadow paging is used.
                if sample.engine == Engine::Shadow {
                    self.state = State::Shadow;
                }
            }
            (_, Some(period)) => self.end_period(&period),
            (_, None) => {}
        }
        Decision { engine: self.state.engine(), next: Next::Period }
    }

    fn end_period(&mut self, period: &Window) {
        self.window.add(period);
        self.step = self.step.plus(period.speed());
        self.since = self.since.map(|instructions| instructions.saturating_add(period.instructions));
        if self.step.instructions >= self.parameters.window_inst {
            self.steps.rotate_left(1);
            self.steps[STEPS - 1] = core::mem::take(&mut self.step);
        }
        let next = self.next();
        if next != self.state {
            self.enter(next);
        }
    }

    /// Determines the next state (`determineState`), and resets the window where it stays in its state.
    fn next(&mut self) -> State {
        let parameters = &self.parameters;
        let over = |window: u64| self.window.instructions >= window;
        match self.state {
            State::Shadow | State::PreShadow if self.window.paging_exits > self.threshold_vexit => {
                State::PreNested
            }
            State::Shadow => {
                if over(parameters.window_vexit) {
                    self.window = Window::default();
                }
                State::Shadow
            }
            State::PreShadow if !over(parameters.window_tmiss) => State::PreShadow,
            State::PreShadow => {
                let [nested, _] = self.before;
                let failed = self.average().is_slower(nested, parameters.factor_milli);
                self.threshold_tmiss =
                    self.adjusted(self.threshold_tmiss, parameters.threshold_tmiss, failed);
                if failed { State::Nested } else { State::Shadow }
            }
            State::PreNested if !over(parameters.window_vexit) => State::PreNested,
            State::PreNested => {
                let [_, shadow] = self.before;
                let failed = self.average().is_slower(shadow, parameters.factor_milli);
                self.threshold_vexit =
                    self.adjusted(self.threshold_vexit, parameters.threshold_vexit, failed);
                if failed { State::Shadow } else { State::Prepaging }
            }
            State::Prepaging if over(parameters.window_prepaging) => State::Nested,
            State::Prepaging => State::Prepaging,
            State::Nested if !over(parameters.window_tmiss) => State::Nested,
            State::Nested if self.window.misses > self.threshold_tmiss => State::PreShadow,
            State::Nested => {
                self.window = Window::default();
                State::Nested
            }
        }
    }

    /// Goes to another state (`transState`).
    fn enter(&mut self, next: State) {
        let (from, to) = (self.state.engine(), next.engine());
        if from != to {
            self.before[usize::from(from == Engine::Shadow)] = self.average();
            let since = &mut self.since[usize::from(to == Engine::Nested)];
            if core::mem::replace(since, 0) < self.parameters.window_trans {
                let parameters = &self.parameters;
                self.threshold_vexit = self.adjusted(self.threshold_vexit, parameters.threshold_vexit, true);
                self.threshold_tmiss = self.adjusted(self.threshold_tmiss, parameters.threshold_tmiss, true);
            }
            (self.steps, self.step) = ([Speed::default(); STEPS], Speed::default());
        }
        self.window = Window::default();
        self.state = next;
    }

    /// The moving average: the last steps together, or what there is of the first one.
    fn average(&self) -> Speed {
        let newest = self.steps.iter().rev().take(self.parameters.steps as usize);
        let sum = newest.fold(Speed::default(), |sum, step| sum.plus(*step));
        if sum.instructions == 0 { self.step } else { sum }
    }

    /// `threshold`, which began as `first`, raised after a probe that failed and lowered after one that succeeded; within [`SPAN`]
    /// of `first`, and never 0.
    fn adjusted(&self, threshold: u64, first: u64, failed: bool) -> u64 {
        let Parameters { raise_milli, lower_milli, .. } = self.parameters;
        let (times, by) = if failed { (raise_milli, MILLI) } else { (MILLI, lower_milli) };
        let scaled = u128::from(threshold) * u128::from(times) / u128::from(by.max(1));
        let scaled = u64::try_from(scaled).unwrap_or(u64::MAX);
        scaled.clamp((first / SPAN).max(1), first.saturating_mul(SPAN))
    }
}
