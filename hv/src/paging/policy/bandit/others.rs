//! Bandits that were tried in the place of `bandit`, for its tests and for the figures in docs/design/0022. They compute in floating
//! point, and take page faults on nested tables at the last rate that was seen.

use alloc::vec::Vec;

use super::super::modelled::Decide;
use super::{Decision, Event, Faults, Interval, Next, Sample};
use crate::paging::engine::Engine;

/// Discounted UCB: for each context and engine the mean reward, plus a confidence bound from how often it was seen.
pub struct Ucb {
    context: Contexts,
    /// Discounted number and sum of rewards, for each cell and engine.
    seen: Vec<[(f64, f64); 2]>,
    discount: f64,
}

/// Discounted LinUCB (Li et al., 2010): for each engine a ridge regression of the reward on the context.
pub struct LinUcb {
    context: Contexts,
    matrices: [[[f64; 3]; 3]; 2],
    sums: [[f64; 3]; 2],
}

/// Contexts and rewards: log2 of rates, and log2 of instructions per cycle less its running mean over 64 intervals of 50 ms.
#[derive(Default)]
struct Contexts {
    interval: Interval,
    faults: Faults,
    mean: Option<f64>,
}

impl Contexts {
    fn end(&mut self, sample: &Sample) -> Option<([f64; 2], f64)> {
        let window = self.interval.end(sample.period.as_ref(), 50)?;
        let log = |count: u64| (count as f64 + 1.0).log2();
        let speed = (window.instructions as f64 / window.cycles as f64).log2();
        let mean = self.mean.get_or_insert(speed);
        let reward = speed - *mean;
        *mean += reward / 64.0;
        let rates = [self.faults.rate(&window, sample), window.per_million(window.misses)];
        Some((rates.map(log), reward))
    }
}

/// The engine whose value is greater.
fn best(sample: &Sample, value: impl Fn(usize) -> f64) -> Decision {
    let other = sample.engine.other();
    let engine = if value(other as usize) > value(sample.engine as usize) { other } else { sample.engine };
    Decision { engine, next: Next::Period }
}

impl Ucb {
    /// Forgets by this factor in an interval.
    pub fn new(discount: f64) -> Ucb {
        Ucb { context: Contexts::default(), seen: alloc::vec![[(0.0, 0.0); 2]; 100], discount }
    }
}

impl Decide for Ucb {
    fn decide(&mut self, _: Event, sample: &Sample) -> Decision {
        let Some((rates, reward)) = self.context.end(sample) else {
            return Decision { engine: sample.engine, next: Next::Period };
        };
        let [faults, misses] = rates.map(|rate| (rate / 2.0).min(9.0) as usize);
        for (number, sum) in self.seen.as_flattened_mut() {
            (*number, *sum) = (*number * self.discount, *sum * self.discount);
        }
        let cell = &mut self.seen[faults * 10 + misses];
        let (number, sum) = &mut cell[sample.engine as usize];
        (*number, *sum) = (*number + 1.0, *sum + reward);
        let cell = *cell;
        let all: f64 = self.seen.as_flattened().iter().map(|(number, _)| number).sum();
        best(sample, |engine| match cell[engine] {
            (number, _) if number < 1e-6 => f64::INFINITY,
            (number, sum) => sum / number + 0.1 * (all.max(2.0).ln() / number).sqrt(),
        })
    }
}

impl LinUcb {
    /// Knows nothing.
    pub fn new() -> LinUcb {
        let unit = core::array::from_fn(|i| core::array::from_fn(|j| f64::from(u8::from(i == j))));
        LinUcb { context: Contexts::default(), matrices: [unit; 2], sums: [[0.0; 3]; 2] }
    }
}

impl Decide for LinUcb {
    fn decide(&mut self, _: Event, sample: &Sample) -> Decision {
        const DISCOUNT: f64 = 0.999;
        let Some((rates, reward)) = self.context.end(sample) else {
            return Decision { engine: sample.engine, next: Next::Period };
        };
        let x = [1.0, rates[0] / 16.0, rates[1] / 16.0];
        for engine in Engine::CHOICES.map(|engine| engine as usize) {
            let seen = f64::from(u8::from(engine == sample.engine as usize));
            for i in 0..3 {
                for j in 0..3 {
                    let ridge = if i == j { 1.0 - DISCOUNT } else { 0.0 };
                    let old = &mut self.matrices[engine][i][j];
                    *old = *old * DISCOUNT + ridge + seen * x[i] * x[j];
                }
                self.sums[engine][i] = self.sums[engine][i] * DISCOUNT + seen * reward * x[i];
            }
        }
        best(sample, |engine| {
            let inverse = inverse(&self.matrices[engine]);
            let form = |left: &[f64; 3]| -> f64 {
                (0..3).map(|i| (0..3).map(|j| left[i] * inverse[i][j] * x[j]).sum::<f64>()).sum()
            };
            form(&self.sums[engine]) + 0.3 * form(&x).max(0.0).sqrt()
        })
    }
}

fn inverse(m: &[[f64; 3]; 3]) -> [[f64; 3]; 3] {
    let minor = |i: usize, j: usize| {
        let (a, b, c, d) = ((i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3);
        m[a][c] * m[b][d] - m[a][d] * m[b][c]
    };
    let determinant: f64 = (0..3).map(|j| m[0][j] * minor(0, j)).sum();
    core::array::from_fn(|i| core::array::from_fn(|j| minor(j, i) / determinant))
}
