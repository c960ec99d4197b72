//! What shadow paging gains in each context, and how well that is known.
//!
//! A table over quantized contexts. Each cell is a scalar Kalman filter whose uncertainty, the radius, grows by a constant with each
//! interval: a gain that was learnt may have changed by so much since. What was never learnt is estimated from what misses and page
//! faults cost elsewhere ([`Costs`](super::costs::Costs)).

use abi::policy::{Bandit as Parameters, MILLI, ONE};

use super::super::window::{Window, log2};
use crate::paging::engine::Engine;

/// Steps of the logarithm of a rate that make one bucket: a factor of four.
const WIDTH: i64 = 2 * ONE;
/// Buckets of the rate of misses: the last one is from 2^18 in a million instructions on.
const MISSES: usize = 10;
/// Buckets of the rate of page faults: the last one is from 2^14 in a million instructions on, or where they are not known.
const FAULTS: usize = 9;
/// The radius of what is not known: a factor of two either way.
const WIDEST: i64 = 4 * ONE;
/// Of what is not known: a factor of two either way.
const UNKNOWN: i64 = ONE;
/// The radius of what is known best: where the log's last bits are.
const NARROWEST: i64 = ONE / 512;
/// Gains that are farther from 0 count as this: a factor of 2^16.
pub(super) const LARGEST_GAIN: i64 = 16 * ONE;

/// Growth of a radius is halved so often at most.
const CALMEST: u8 = 4;

/// What a guest does, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    misses: u8,
    /// `None` where nested paging hides them.
    faults: Option<u8>,
}

impl Context {
    /// That of an interval.
    pub(super) fn of(window: &Window, faults_are_known: bool) -> Context {
        let bucket = |count: u64, most: usize| {
            let bucket = log2(window.per_million(count)) / WIDTH;
            bucket.min(most as i64 - 1) as u8
        };
        Context {
            misses: bucket(window.misses, MISSES),
            faults: faults_are_known.then(|| bucket(window.faults, FAULTS - 1)),
        }
    }

    /// Whether the guest may be doing the same in both: the engine changes what is seen of it.
    pub(super) fn is_near(self, other: Context) -> bool {
        let faults = self.faults.zip(other.faults).is_none_or(|(one, other)| one.abs_diff(other) <= 1);
        faults && self.misses.abs_diff(other.misses) <= 1
    }

    fn cell(self) -> usize {
        usize::from(self.misses) * FAULTS + self.faults.map_or(FAULTS - 1, usize::from)
    }
}

/// What is known of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    /// log2 of instructions per cycle with shadow paging less that with nested paging.
    pub gain: i64,
    /// What it is at least and at most.
    pub low: i64,
    pub high: i64,
}

impl Estimate {
    /// Where nothing says anything.
    const NONE: Estimate = Estimate::within(0, UNKNOWN);

    const fn within(gain: i64, radius: i64) -> Estimate {
        Estimate { gain, low: gain - radius, high: gain + radius }
    }

    /// By how much it may be wrong.
    pub(super) const fn radius(self) -> i64 {
        (self.high - self.low) / 2
    }

    /// The same of `engine`, relative to the other one.
    pub(super) fn of(self, engine: Engine) -> Estimate {
        let Estimate { gain, low, high } = self;
        if engine == Engine::Shadow { self } else { Estimate { gain: -gain, low: -high, high: -low } }
    }
}

/// A cell as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    gain: i32,
    /// The radius at `since`; 0: nothing was learnt yet.
    radius: u32,
    since: u32,
    /// How often in a row what was learnt agreed with what was known, up to [`CALMEST`]: each time halves the growth.
    calm: u8,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gains {
    cells: [Cell; MISSES * FAULTS],
    /// By how much radiuses have grown since the start.
    grown: u64,
}

impl Gains {
    /// Nothing is known.
    pub(super) const fn new() -> Gains {
        Gains { cells: [Cell { gain: 0, radius: 0, since: 0, calm: 0 }; MISSES * FAULTS], grown: 0 }
    }

    /// An interval is over: what was learnt may have changed.
    pub(super) fn widen(&mut self, parameters: Parameters) {
        // In a minute `drift_milli`; a 65536th of the logarithm's last bit is the unit, as short intervals add little.
        let drift = u64::from(parameters.drift_milli) * u64::from(parameters.interval_ms);
        self.grown = self.grown.wrapping_add((drift << 32) / (60_000 * u64::from(MILLI)));
    }

    /// What is known of a context; `guess`: what it should be, if nothing was learnt in it.
    pub(super) fn of(&self, context: Context, guess: Option<Estimate>) -> Estimate {
        let Cell { gain, radius, since, calm } = self.cells[context.cell()];
        let grown = i64::from(self.now().wrapping_sub(since) >> calm);
        if radius == 0 {
            let Estimate { gain, low, high } = guess.unwrap_or(Estimate::NONE);
            return Estimate { gain, low: low - grown.min(WIDEST), high: high + grown.min(WIDEST) };
        }
        Estimate::within(gain.into(), (i64::from(radius) + grown).min(WIDEST))
    }

    /// The speed has changed with one engine: the gain has changed by as much, or not at all if the other engine's has, too.
    pub(super) fn doubt(&mut self, context: Context, guess: Option<Estimate>, by: i64) {
        let by = by.clamp(-LARGEST_GAIN, LARGEST_GAIN) / 2;
        let known = self.of(context, guess);
        self.set(context, known.gain + by, known.radius() + by.abs(), 0);
    }

    /// A change of the engine has shown `gain`, the difference of two speeds that each have this deviation.
    pub(super) fn learn(&mut self, context: Context, guess: Option<Estimate>, gain: i64, noise: i64) {
        let known = self.of(context, guess);
        let known_radius = known.radius().clamp(NARROWEST, WIDEST);
        let noise = noise.clamp(0, WIDEST);
        let off = gain.clamp(-LARGEST_GAIN, LARGEST_GAIN) - known.gain;
        let agrees = off.abs() <= known_radius / 2 + 2 * noise;
        // The variance of what was seen, a difference of two speeds.
        let seen = 2 * i128::from(noise).pow(2) + 1;
        let before = i128::from(known_radius).pow(2);
        // The larger the radius beside the noise, the more what was seen counts (Kalman).
        let gain = known.gain + (i128::from(off) * before / (before + seen)) as i64;
        let radius = (before * seen / (before + seen)).isqrt() as i64;
        let calm = if agrees { self.cells[context.cell()].calm + 1 } else { 0 };
        self.set(context, gain, radius, calm.min(CALMEST));
    }

    fn set(&mut self, context: Context, gain: i64, radius: i64, calm: u8) {
        let gain = gain.clamp(-LARGEST_GAIN, LARGEST_GAIN) as i32;
        let radius = radius.clamp(NARROWEST, WIDEST) as u32;
        let cell = Cell { gain, radius, since: self.now(), calm };
        self.cells[context.cell()] = cell;
    }

    /// The growth of radiuses so far, in 65536ths; it wraps round after months.
    const fn now(&self) -> u32 {
        (self.grown >> 16) as u32
    }
}
