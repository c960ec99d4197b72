//! From rounds to figures. A round is one run of each guest, one after the other; a ratio is that of a round, so that what
//! else the machine does meanwhile weighs on both sides of it, and the figure is the median of the rounds.

use super::{guests::Guest, rows::Row};
use crate::{
    bench::{column::Run, record::Figures},
    cli::Mode,
};

/// Everything that was measured.
pub struct Results {
    /// The rows, in order.
    pub rows: Vec<&'static Row>,
    /// The modes, in order.
    pub modes: Vec<Mode>,
    /// For each round, its guests and their results.
    pub rounds: Vec<Vec<(Guest, Run)>>,
}

/// One figure of every round that has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series(Vec<f64>);

impl FromIterator<f64> for Series {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Series {
    /// The middle one, or the mean of the two in the middle.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = sorted[(sorted.len() - 1) / 2];
        Some((lower + upper) / 2.0)
    }

    /// How far they are apart, as a share of the median.
    pub fn spread(&self) -> Option<f64> {
        let low = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.median().map(|median| (high - low) / median)
    }

    /// All, in order.
    pub fn values(&self) -> &[f64] {
        &self.0
    }
}

impl Results {
    /// A row's figures in one round; without a mode, the native ones. A figure that is not a time does not count.
    fn figures(&self, round: usize, row: &Row, mode: Option<Mode>) -> Option<&Figures> {
        let guest = Guest::of(row, mode);
        let (_, run) = self.rounds.get(round)?.iter().find(|(each, _)| *each == guest)?;
        let figures = run.records.rows.get(row.record(mode.is_none()))?;
        (figures.median > 0.0 && figures.samples > 0).then_some(figures)
    }

    fn series(&self, of: impl Fn(usize) -> Option<f64>) -> Series {
        Series((0..self.rounds.len()).filter_map(of).collect())
    }

    /// Ticks of an operation.
    pub fn cost(&self, row: &Row, mode: Option<Mode>) -> Series {
        self.series(|round| self.figures(round, row, mode).map(|figures| figures.median))
    }

    /// The cost in a mode as a multiple of the native one of the same round.
    pub fn ratio(&self, row: &Row, mode: Mode) -> Series {
        self.series(|round| {
            let ours = self.figures(round, row, Some(mode))?;
            Some(ours.median / self.figures(round, row, None)?.median)
        })
    }

    /// The fastest sample of all rounds, in ticks of an operation.
    pub fn best(&self, row: &Row, mode: Option<Mode>) -> Option<f64> {
        self.runs(row, mode).iter().map(|figures| figures.min).min_by(f64::total_cmp)
    }

    /// The fastest sample in a mode as a multiple of the fastest native one: the cost when no processor has to wait for another.
    pub fn best_ratio(&self, row: &Row, mode: Mode) -> Option<f64> {
        Some(self.best(row, Some(mode))? / self.best(row, None)?)
    }

    /// How much more a row's threads get done in the same time than one thread does; nothing for rows without threads, or if
    /// one thread was not measured.
    pub fn scaling(&self, row: &Row, mode: Option<Mode>) -> Series {
        let work = row.workers.map(|workers| workers.work);
        let alone = |each: &&&Row| {
            each.workers.is_some_and(|workers| workers.threads == 1 && work == Some(workers.work))
        };
        let Some(alone) = self.rows.iter().find(alone) else { return Series::default() };
        self.series(|round| {
            let alone = self.figures(round, alone, mode)?;
            Some(alone.median / self.figures(round, row, mode)?.median)
        })
    }

    /// Samples over all rounds.
    pub fn samples(&self, row: &Row, mode: Option<Mode>) -> u64 {
        let figures = (0..self.rounds.len()).filter_map(|round| self.figures(round, row, mode));
        figures.map(|figures| figures.samples).sum()
    }

    /// All figures of a row, as they came.
    pub fn runs(&self, row: &Row, mode: Option<Mode>) -> Vec<&Figures> {
        (0..self.rounds.len()).filter_map(|round| self.figures(round, row, mode)).collect()
    }

    /// Native, and the modes.
    pub fn columns(&self) -> impl Iterator<Item = Option<Mode>> {
        std::iter::once(None).chain(self.modes.iter().copied().map(Some))
    }

    /// Figures that a round lacks, as `column: row`.
    pub fn missing(&self) -> Vec<String> {
        let all = self.columns().flat_map(|mode| self.rows.iter().map(move |row| (mode, row)));
        let lacks = |(mode, row): &(Option<Mode>, &&Row)| {
            self.rounds.is_empty() || self.runs(row, *mode).len() < self.rounds.len()
        };
        all.filter(lacks).map(|(mode, row)| format!("{}: {}", column_name(mode), row.name)).collect()
    }
}

/// A column's name in headings and in JSON.
pub fn column_name(mode: Option<Mode>) -> String {
    mode.map_or_else(|| "native".to_owned(), |mode| mode.to_string())
}

#[cfg(test)]
pub mod tests {
    use serde_json::Value;

    use super::*;
    use crate::bench::{record::Records, smp::rows};

    fn figures(median: f64) -> Figures {
        Figures { median, min: median, max: median, mean: median, samples: 10, batch: 10, operations: 130 }
    }

    /// A round in which one thread natively needs `native` ticks for everything, N threads an Nth of it, and the hypervisor
    /// `times` as many.
    fn round(rows: &[&'static Row], native: f64, times: f64) -> Vec<(Guest, Run)> {
        let run = |guest: Guest| {
            let mut records = Records { done: Some(rows.len()), ..Records::default() };
            for row in rows.iter().filter(|row| Guest::of(row, guest.mode) == guest) {
                let threads = row.workers.map_or(1, |workers| workers.threads) as f64;
                let times = if guest.mode.is_some() { times } else { 1.0 };
                let name = row.record(guest.mode.is_none()).to_owned();
                records.rows.insert(name, figures(native * times / threads));
            }
            let command = vec!["run".to_owned()];
            (guest, Run { records, command, stats: Value::Null, trouble: String::new() })
        };
        Guest::all(rows, &[Mode::Nested]).into_iter().map(run).collect()
    }

    /// Three rounds of all rows with nested tables: the machine was busy in the second and in the third.
    pub fn example() -> Results {
        let rows = rows::select(&[]).unwrap();
        let rounds = vec![round(&rows, 100.0, 2.0), round(&rows, 300.0, 2.5), round(&rows, 500.0, 3.0)];
        Results { rows, modes: vec![Mode::Nested], rounds }
    }

    #[test]
    fn a_ratio_is_that_of_a_round() {
        let results = example();
        for row in &results.rows {
            assert_eq!(results.ratio(row, Mode::Nested).values(), [2.0, 2.5, 3.0], "{}", row.name);
            assert_eq!(results.samples(row, Some(Mode::Nested)), 30);
        }
        let ratio = results.ratio(results.rows[0], Mode::Nested);
        assert_eq!((ratio.median(), ratio.spread()), (Some(2.5), Some(0.4)));
        assert_eq!(results.cost(results.rows[0], None).median(), Some(300.0));
        assert_eq!(results.best(results.rows[0], None), Some(100.0));
        assert_eq!(results.best_ratio(results.rows[0], Mode::Nested), Some(2.0));
        assert!(results.missing().is_empty());
    }

    #[test]
    fn threads_are_compared_with_one_thread() {
        let results = example();
        let row = |name: &str| *results.rows.iter().find(|row| row.name == name).unwrap();
        let scaling = |name: &str| results.scaling(row(name), Some(Mode::Nested)).median();
        assert_eq!((scaling("compute-1"), scaling("compute-3")), (Some(1.0), Some(3.0)));
        assert_eq!((scaling("faults-4"), scaling("call")), (Some(4.0), None));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut results = example();
        // The packed guest of the last round did not get far; a figure of the first one is no time.
        results.rounds[2][4].1.records = Records::default();
        results.rounds[0][1].1.records.rows.insert("call".to_owned(), figures(0.0));
        assert_eq!(results.missing(), ["native: call", "nested: switch"]);
        assert_eq!(results.ratio(results.rows[2], Mode::Nested).values(), [2.5, 3.0]);
        results.rounds.clear();
        assert_eq!(results.missing().len(), 26);
        assert_eq!(results.ratio(results.rows[0], Mode::Nested).median(), None);
        assert_eq!(results.best_ratio(results.rows[0], Mode::Nested), None);
    }

    #[test]
    fn medians() {
        assert_eq!(Series(vec![]).median(), None);
        assert_eq!(Series(vec![]).spread(), None);
        assert_eq!(Series(vec![3.0]).median(), Some(3.0));
        assert_eq!(Series(vec![4.0, 1.0]).median(), Some(2.5));
        assert_eq!(Series(vec![9.0, 1.0, 2.0]).median(), Some(2.0));
    }
}
