//! What a miss of the TLB and a page fault cost, and so what shadow paging gains where it was not tried yet.
//!
//! Nested paging takes some cycles more for a miss, shadow paging some more for a page fault of the guest:
//!
//! ```text
//! cycles per instruction, nested less shadow = miss · misses per instruction − fault · page faults per instruction
//! ```
//!
//! The two costs are a Kalman filter of two dimensions. They begin with what processors with a walk of four levels take, with half
//! of it as the deviation, and each change of the engine is an observation. Cycles per instruction are in millionths, rates in events in a
//! million instructions, costs in 256ths of a cycle.

use abi::policy::{Bandit as Parameters, MILLI};

use super::super::window::{Window, log2};
use super::gains::{Estimate, LARGEST_GAIN};
use crate::paging::engine::Engine;

/// 256ths of a cycle.
const CYCLE: i64 = 256;
/// A walk with nested tables makes up to 24 references, one with shadow tables four; most hit a cache.
const FIRST_MISS: i64 = 50 * CYCLE;
/// Two or three exits: the fault, the entry that is filled, the write to the guest's table.
const FIRST_FAULT: i64 = 5000 * CYCLE;
/// Variances at first: half of the costs is a deviation.
const FIRST_VARIANCE: [i64; 2] = [(FIRST_MISS / 2) * (FIRST_MISS / 2), (FIRST_FAULT / 2) * (FIRST_FAULT / 2)];
/// Costs farther from 0 count as this: a million cycles.
const LARGEST: i64 = 1_000_000 * CYCLE;
/// An engine is taken to be this much faster than the other one at most.
const LARGEST_FACTOR: i64 = 16;
/// Cycles per instruction, and rates, count as this at most.
const MOST: u64 = 1 << 32;
/// What of a difference is not as the two costs say: an eighth.
const MISFIT: i128 = 8;

/// What a guest does, as rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    /// Cycles in a million instructions.
    pub cycles: i64,
    /// Misses of the TLB in a million instructions.
    misses: i64,
    /// Page faults of the guest in a million instructions; `None` where nested paging hides them.
    faults: Option<i64>,
}

impl Rates {
    /// Those of an interval.
    pub(super) fn of(window: &Window, faults_are_known: bool) -> Rates {
        let rate = |count| window.per_million(count).min(MOST) as i64;
        let faults = faults_are_known.then(|| rate(window.faults));
        Rates { cycles: rate(window.cycles).max(1), misses: rate(window.misses), faults }
    }

    /// One interval more of the same: a running mean of the cycles, the newest rates.
    #[must_use]
    pub(super) fn followed_by(self, newest: Rates) -> Rates {
        Rates { cycles: self.cycles + (newest.cycles - self.cycles) / 4, ..newest }
    }
}

/// The costs, and how well they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Costs {
    /// Of a miss with nested paging, and of a page fault with shadow paging.
    means: [i64; 2],
    /// Variances of both, and their covariance.
    variances: [i64; 2],
    covariance: i64,
}

impl Costs {
    /// Before anything was tried.
    pub(super) const fn new() -> Costs {
        Costs { means: [FIRST_MISS, FIRST_FAULT], variances: FIRST_VARIANCE, covariance: 0 }
    }

    /// An interval is over: the costs may have changed; after a minute they are known as at first, or as `drift_milli` says.
    pub(super) fn widen(&mut self, parameters: Parameters) {
        let drift = i128::from(parameters.drift_milli) * i128::from(parameters.interval_ms);
        for (variance, first) in self.variances.iter_mut().zip(FIRST_VARIANCE) {
            let grown = (i128::from(first) * drift / (60_000 * i128::from(MILLI))) as i64;
            *variance = variance.saturating_add(grown).min(first);
        }
    }

    /// The difference of the cycles, nested less shadow, and its variance; in 256ths.
    fn difference(&self, misses: i64, faults: i64) -> (i128, i128) {
        let [miss, fault] = self.means.map(i128::from);
        let [for_miss, for_fault] = self.spread(misses, faults);
        let (misses, faults) = (i128::from(misses), i128::from(faults));
        (miss * misses - fault * faults, for_miss * misses - for_fault * faults)
    }

    /// The covariance of the difference with each of the costs.
    fn spread(&self, misses: i64, faults: i64) -> [i128; 2] {
        let ([miss, fault], both) = (self.variances.map(i128::from), i128::from(self.covariance));
        let (misses, faults) = (i128::from(misses), i128::from(faults));
        [miss * misses - both * faults, both * misses - fault * faults]
    }

    /// What shadow paging should gain where the guest has these rates with `engine`. `None`: page faults are not known.
    pub(super) fn estimate(&self, rates: Rates, engine: Engine) -> Option<Estimate> {
        let faults = rates.faults?;
        let (difference, variance) = self.difference(rates.misses, faults);
        let deviation = variance.max(0).isqrt();
        let gain = |difference: i128| {
            let own = i128::from(rates.cycles);
            let difference = difference / i128::from(CYCLE);
            let other = if engine == Engine::Shadow { own + difference } else { own - difference };
            let factor = i128::from(LARGEST_FACTOR);
            let other = other.clamp((own / factor).max(1), own * factor);
            let faster = log2(other as u64) - log2(own as u64);
            let gain = if engine == Engine::Shadow { faster } else { -faster };
            gain.clamp(-LARGEST_GAIN, LARGEST_GAIN)
        };
        Some(Estimate {
            gain: gain(difference),
            low: gain(difference - deviation),
            high: gain(difference + deviation),
        })
    }

    /// A change to `engine` has shown these rates before and after it. `noise` is the deviation of the speed's logarithm in
    /// 65536ths.
    pub(super) fn learn(&mut self, before: Rates, after: Rates, engine: Engine, noise: i64) {
        let Some(faults) = mean(before.faults, after.faults) else { return };
        let misses = (before.misses + after.misses) / 2;
        let slower = before.cycles - after.cycles;
        let seen = i128::from(if engine == Engine::Shadow { slower } else { -slower }) * i128::from(CYCLE);
        let (expected, variance) = self.difference(misses, faults);
        let [for_miss, for_fault] = self.spread(misses, faults);
        // Of two speeds; and of what else differs.
        let cycles = i128::from(before.cycles.max(after.cycles)) * i128::from(CYCLE);
        let noise = 2 * ((cycles * i128::from(noise.clamp(0, 1 << 16))) >> 16).pow(2);
        let all = variance.max(0) + noise + (seen / MISFIT).pow(2) + (cycles / 64).pow(2) + 1;
        let off = seen - expected;
        for (mean, share) in self.means.iter_mut().zip([for_miss, for_fault]) {
            *mean =
                (i128::from(*mean) + scaled(off, share, all)).clamp((-LARGEST).into(), LARGEST.into()) as i64;
        }
        let [miss, fault] = &mut self.variances;
        let less = |from: i64, by: i128, least: i64| {
            i128::from(from).saturating_sub(by).clamp(least.into(), i64::MAX.into()) as i64
        };
        *miss = less(*miss, scaled(for_miss, for_miss, all), 1);
        *fault = less(*fault, scaled(for_fault, for_fault, all), 1);
        self.covariance = less(self.covariance, scaled(for_miss, for_fault, all), i64::MIN);
    }
}

/// `one · other / all`. Both factors have some 80 bits at most.
fn scaled(one: i128, other: i128, all: i128) -> i128 {
    match one.checked_mul(other) {
        Some(product) => product / all,
        None => (one / all).saturating_mul(other),
    }
}

/// Of what is known.
fn mean(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    match (one, other) {
        (Some(one), Some(other)) => Some((one + other) / 2),
        (one, other) => one.or(other),
    }
}
