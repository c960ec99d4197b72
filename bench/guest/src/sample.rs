//! Measuring: an operation is performed in batches, a batch is timed with the time-stamp counter, and the figures are
//! those of the batches divided by their size. Medians leave out the batches that a timer tick fell into; means keep them, and
//! those over a second hold all that happens periodically.

use std::time::{Duration, Instant};

use crate::clock::mark;
pub use crate::clock::now;

/// Batches that are performed but not counted: they fill caches, page tables and allocators.
const WARM_UP: usize = 3;

/// For how long batches are performed to see what happens periodically: some hundred ticks of a guest's timer.
const SECOND: Duration = Duration::from_secs(1);

/// How many batches a row takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// As many as the row asks for.
    #[default]
    Usual,
    /// Eight times as many, so that what a batch causes can be told from what precedes it.
    Eightfold,
    /// As many as fit in a second by the system's clock. Only their sum is kept: they may be a million.
    Second,
}

/// The batches of one row.
#[derive(Default)]
pub struct Samples {
    /// Operations in a batch.
    batch: u64,
    /// Ticks of each counted batch; of none that is counted over a second.
    ticks: Vec<u64>,
    /// Their sum, and their number.
    total: u64,
    taken: usize,
    /// Operations performed in all, warm-up included.
    operations: u64,
    length: Length,
    /// The number under which a lab machine counts the batches.
    region: Option<u64>,
}

impl Samples {
    /// None yet. `region`: the number under which a lab machine counts what the batches take.
    pub fn new(length: Length, region: Option<u64>) -> Self {
        Self { length, region, ..Self::default() }
    }

    /// Times `count` batches of `batch` operations each; `operation` performs a batch.
    pub fn take(&mut self, count: usize, batch: u64, mut operation: impl FnMut()) {
        self.take_prepared(count, batch, || (), |()| operation());
    }

    /// The same with preparation before each batch, which is not timed; nor is dropping what `operation` returns.
    pub fn take_prepared<P, R>(
        &mut self,
        count: usize,
        batch: u64,
        mut prepare: impl FnMut() -> P,
        mut operation: impl FnMut(P) -> R,
    ) {
        let mut perform = |region: Option<u64>| {
            let prepared = prepare();
            if let Some(region) = region {
                mark::<{ abi::lab::MARK_BEGIN }>(region);
            }
            let start = now();
            let result = operation(prepared);
            let ticks = now() - start;
            if let Some(region) = region {
                mark::<{ abi::lab::MARK_END }>(region);
            }
            drop(result);
            ticks
        };
        self.batch = batch;
        for _ in 0..WARM_UP {
            perform(None);
        }
        let region = self.region;
        let mut perform = || perform(region);
        match self.length {
            Length::Usual => self.keep(count, &mut perform),
            Length::Eightfold => self.keep(8 * count, &mut perform),
            Length::Second => {
                let start = Instant::now();
                while start.elapsed() < SECOND {
                    self.total += perform();
                    self.taken += 1;
                }
            }
        }
        self.operations += batch * (WARM_UP + self.taken) as u64;
    }

    /// Keeps the ticks of `count` batches.
    fn keep(&mut self, count: usize, perform: &mut impl FnMut() -> u64) {
        self.ticks.reserve(count);
        for _ in 0..count {
            let ticks = perform();
            self.ticks.push(ticks);
            self.total += ticks;
        }
        self.taken += count;
    }

    /// The figures of a value that is known without measuring.
    pub fn known(value: u64) -> Self {
        Self { batch: 1, ticks: vec![value], total: value, taken: 1, operations: 1, ..Self::default() }
    }

    /// Ticks per operation.
    pub fn summary(&self) -> Summary {
        let mut sorted = self.ticks.clone();
        sorted.sort_unstable();
        let each = |ticks: u64| ticks as f64 / self.batch.max(1) as f64;
        let at = |index: usize| each(sorted.get(index).copied().unwrap_or(0));
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            at(middle)
        } else {
            (at(middle.saturating_sub(1)) + at(middle)) / 2.0
        };
        Summary {
            median,
            min: at(0),
            max: at(sorted.len().saturating_sub(1)),
            mean: each(self.total) / self.taken.max(1) as f64,
            samples: self.taken,
            batch: self.batch,
            operations: self.operations,
        }
    }
}

/// Figures of one row, in ticks per operation.
#[derive(Debug, PartialEq)]
pub struct Summary {
    /// The middle batch.
    pub median: f64,
    /// The fastest batch.
    pub min: f64,
    /// The slowest batch.
    pub max: f64,
    /// All counted batches.
    pub mean: f64,
    /// Counted batches.
    pub samples: usize,
    /// Operations in one of them.
    pub batch: u64,
    /// Operations performed in all, warm-up included.
    pub operations: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(batch: u64, ticks: Vec<u64>, operations: u64) -> Samples {
        let (total, taken) = (ticks.iter().sum(), ticks.len());
        Samples { batch, ticks, total, taken, operations, ..Samples::default() }
    }

    #[test]
    fn figures_are_per_operation() {
        let summary = samples(10, vec![30, 10, 20], 60).summary();
        let expected =
            Summary { median: 2.0, min: 1.0, max: 3.0, mean: 2.0, samples: 3, batch: 10, operations: 60 };
        assert_eq!(summary, expected);
        assert_eq!(samples(1, vec![4, 1], 2).summary().median, 2.5);
        assert_eq!(Samples::default().summary().median, 0.0);
    }

    #[test]
    fn warm_up_is_performed_but_not_counted() {
        for (length, count) in [(Length::Usual, 5), (Length::Eightfold, 40)] {
            let mut samples = Samples::new(length, None);
            let (mut prepared, mut performed) = (0, 0);
            samples.take_prepared(5, 7, || prepared += 1, |()| performed += 1);
            assert_eq!((prepared, performed), (count + WARM_UP, count + WARM_UP));
            assert_eq!((samples.ticks.len(), samples.taken), (count, count));
            assert_eq!(samples.operations, 7 * (count + WARM_UP) as u64);
        }
    }

    #[test]
    fn a_second_is_filled_with_batches() {
        let mut samples = Samples::new(Length::Second, None);
        let start = Instant::now();
        let mut performed = 0;
        samples.take(1, 3, || {
            performed += 1;
            std::thread::sleep(Duration::from_millis(100));
        });
        assert!(start.elapsed() >= SECOND && performed > WARM_UP && samples.ticks.is_empty());
        let summary = samples.summary();
        assert_eq!((summary.samples, summary.operations), (performed - WARM_UP, 3 * performed as u64));
        assert!(summary.mean > 0.0);
    }
}
