//! Measuring: an operation is performed in batches, a batch is timed with the time-stamp counter, and the figures are
//! those of the batches divided by their size. Medians leave out the batches that a timer tick fell into; means keep them.

use std::arch::x86_64::{_mm_lfence, _rdtsc};

/// Batches that are performed but not counted: they fill caches, page tables and allocators.
const WARM_UP: usize = 3;

/// The time-stamp counter after everything before it has happened. Where QEMU counts instructions (`-icount shift=0`),
/// a tick is an instruction.
pub fn now() -> u64 {
    // SAFETY: LFENCE is part of SSE2, which every x86-64 processor has; RDTSC is allowed in user space by default.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

/// The batches of one row.
#[derive(Default)]
pub struct Samples {
    /// Operations in a batch.
    batch: u64,
    /// Ticks of each counted batch.
    ticks: Vec<u64>,
    /// Operations performed in all, warm-up included.
    operations: u64,
    /// Twice the batches.
    twice: bool,
}

impl Samples {
    /// None yet. `twice`: each row takes two times its batches, so that what a batch causes can be told from what precedes it.
    pub fn new(twice: bool) -> Self {
        Self { twice, ..Self::default() }
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
        let count = if self.twice { 2 * count } else { count };
        self.batch = batch;
        self.ticks.reserve(count);
        for index in 0..WARM_UP + count {
            let prepared = prepare();
            let start = now();
            let result = operation(prepared);
            let ticks = now() - start;
            drop(result);
            self.operations += batch;
            if index >= WARM_UP {
                self.ticks.push(ticks);
            }
        }
    }

    /// The figures of a value that is known without measuring.
    pub fn known(value: u64) -> Self {
        Self { batch: 1, ticks: vec![value], operations: 1, twice: false }
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
            mean: each(sorted.iter().sum()) / sorted.len().max(1) as f64,
            samples: sorted.len(),
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
    /// Operations performed in all, warm-up included.
    pub operations: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_operation() {
        let summary = Samples { batch: 10, ticks: vec![30, 10, 20], operations: 60, twice: false }.summary();
        let expected = Summary { median: 2.0, min: 1.0, max: 3.0, mean: 2.0, samples: 3, operations: 60 };
        assert_eq!(summary, expected);
        assert_eq!(
            Samples { batch: 1, ticks: vec![4, 1], operations: 2, twice: false }.summary().median,
            2.5
        );
        assert_eq!(Samples::default().summary().median, 0.0);
    }

    #[test]
    fn warm_up_is_performed_but_not_counted() {
        let mut samples = Samples::default();
        let (mut prepared, mut performed) = (0, 0);
        samples.take_prepared(5, 7, || prepared += 1, |()| performed += 1);
        assert_eq!((prepared, performed), (5 + WARM_UP, 5 + WARM_UP));
        assert_eq!(samples.ticks.len(), 5);
        assert_eq!(samples.operations, 7 * (5 + WARM_UP as u64));
    }
}
