//! From runs to figures, and from figures to judgements.

use super::{
    column::{Column, Run},
    record::Figures,
    rows::{Comparison, Row, first_instruction},
    switches::Switches,
};

/// All that was measured.
pub struct Results {
    /// The rows, in order.
    pub rows: Vec<&'static Row>,
    /// Each column with its runs; the first column is the reference.
    pub columns: Vec<(Column, Vec<Run>)>,
}

/// A row's cost in one column, over all runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The median of the runs' medians: the figure of the table.
    pub median: f64,
    /// The medians of the runs, in order.
    pub medians: Vec<f64>,
    /// The figures of each run.
    pub runs: Vec<Figures>,
}

impl Cost {
    fn new(runs: Vec<Figures>) -> Option<Self> {
        let medians: Vec<f64> = runs.iter().map(|run| run.median).collect();
        let mut sorted = medians.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(Self { median: *sorted.get(sorted.len() / 2)?, medians, runs })
    }

    /// How far the runs' medians are apart, as a share of the figure.
    pub fn spread(&self) -> f64 {
        let low = self.medians.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.median > 0.0 { (high - low) / self.median } else { 0.0 }
    }
}

/// A row's cost on the hypervisor beside the native one and the goal.
pub struct Judgement<'a> {
    /// The row.
    pub row: &'static Row,
    /// Native.
    pub native: Option<Cost>,
    /// On the hypervisor.
    pub ours: Option<Cost>,
    /// The mean over a second natively and on the hypervisor, with all that happens periodically.
    pub seconds: [Option<f64>; 2],
    /// What it is compared with.
    pub comparison: &'a Comparison,
}

impl Judgement<'_> {
    /// The cost as a multiple of the native one.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.ours.as_ref()?.median / self.native.as_ref()?.median)
    }

    /// The hypervisor's mean over a second as a multiple of the native one.
    pub fn ratio_over_second(&self) -> Option<f64> {
        let [native, ours] = self.seconds;
        Some(ours? / native.filter(|native| *native > 0.0)?)
    }

    /// How much of the goal is left, as a share of it; below 0 if it is missed.
    pub fn left(&self) -> Option<f64> {
        let limit = self.comparison.goal?.ticks(self.native.as_ref()?.median);
        Some(1.0 - self.ours.as_ref()?.median / limit)
    }

    /// True if the goal is met; a row that was not measured misses it. `None` if there is no goal.
    pub fn met(&self) -> Option<bool> {
        let goal = self.comparison.goal?;
        Some(match (&self.native, &self.ours) {
            (Some(native), Some(ours)) => ours.median <= goal.ticks(native.median),
            _ => false,
        })
    }
}

impl Results {
    /// A row's cost in a column.
    pub fn cost(&self, row: &Row, column: Column) -> Option<Cost> {
        let (_, runs) = self.columns.iter().find(|(each, _)| *each == column)?;
        Cost::new(runs.iter().filter_map(|run| run.records.rows.get(row.name).cloned()).collect())
    }

    /// A row's mean over a second in a column: the median of the runs'.
    pub fn second(&self, row: &Row, column: Column) -> Option<f64> {
        let (_, runs) = self.columns.iter().find(|(each, _)| *each == column)?;
        let mut means: Vec<f64> =
            runs.iter().filter_map(|run| Some(run.records.seconds.get(row.name)?.mean)).collect();
        means.sort_unstable_by(f64::total_cmp);
        means.get(means.len() / 2).copied()
    }

    /// Ticks from power-on to the guest's first user instruction: what the row counts, and on the hypervisor what its own start
    /// and the loading of the guest took before. The median of the runs.
    pub fn power_on(&self, column: Column) -> Option<f64> {
        let (_, runs) = self.columns.iter().find(|(each, _)| *each == column)?;
        let ticks = |run: &Run| {
            let first = run.records.rows.get(first_instruction().name)?.median;
            if column.mode.is_none() {
                return Some(first);
            }
            // The guest's counter begins with the guest, the host's at power-on.
            let tsc = |path: &str| run.stats.pointer(path)?.as_u64();
            Some(first + tsc("/guests/0/host/tsc")?.wrapping_sub(tsc("/guests/0/tsc")?) as f64)
        };
        let mut all: Vec<f64> = runs.iter().filter_map(ticks).collect();
        all.sort_unstable_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    }

    /// The judgements of one column; none for the reference.
    pub fn judge(&self, column: Column) -> Vec<Judgement<'static>> {
        let (Some(mode), Some((reference, _))) = (column.mode, self.columns.first()) else {
            return Vec::new();
        };
        let judge = |row: &&'static Row| Judgement {
            row,
            native: self.cost(row, *reference),
            ours: self.cost(row, column),
            seconds: [*reference, column].map(|column| self.second(row, column)),
            comparison: row.comparison(column.machine, mode),
        };
        self.rows.iter().map(judge).collect()
    }

    /// The goals that are missed, as `column: row`.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for (column, runs) in &self.columns {
            let name = column.name();
            let rows = self.judge(*column).into_iter().filter(|judgement| judgement.met() == Some(false));
            missed.extend(rows.map(|judgement| format!("{name}: {}", judgement.row.name)));
            let switches = Switches::of(*column, runs).into_iter().flat_map(|switches| switches.directions);
            let switches = switches.filter(|direction| !direction.met());
            missed.extend(switches.map(|direction| format!("{name}: a change {}", direction.name)));
        }
        missed
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        bench::{
            record::{Records, Second},
            rows,
        },
        cli::{Machine, Mode},
    };

    pub const NESTED: Column = Column::hypervisor(Machine::QemuSvm, Mode::Nested);

    fn run(figures: &[(&str, f64)]) -> Run {
        let mut records = Records { done: Some(figures.len()), ..Records::default() };
        for &(name, median) in figures {
            let figures = Figures {
                median,
                min: median,
                max: median,
                mean: median,
                samples: 1,
                batch: 5,
                operations: 10,
            };
            records.rows.insert(name.to_owned(), figures);
            // A timer's interrupts, which the medians leave out, take a tenth.
            let second = Second { mean: median * 1.1, samples: 1, operations: 10 };
            records.seconds.insert(name.to_owned(), second);
        }
        Run { records, command: vec!["run".into()], stats: Value::Null, trouble: String::new() }
    }

    /// CPUID meets its goal in three runs, fork-wait misses it, ping-pong has no nested figure.
    pub fn example() -> Results {
        let names = ["cpuid", "fork-wait", "ping-pong"].map(String::from);
        let native = [("cpuid", 6.0), ("fork-wait", 1000.0), ("ping-pong", 5.0)];
        let nested = |cpuid| run(&[("cpuid", cpuid), ("fork-wait", 1020.0)]);
        Results {
            rows: rows::select(&names).unwrap(),
            columns: vec![
                (Column::native(Machine::QemuSvm), vec![run(&native); 3]),
                (NESTED, vec![nested(100.0), nested(130.0), nested(110.0)]),
            ],
        }
    }

    #[test]
    fn the_hypervisors_own_start_counts_from_power_on() {
        let mut results = example();
        assert_eq!(results.power_on(NESTED), None, "the row was not measured");
        let native = Column::native(Machine::QemuSvm);
        results.columns = vec![(native, vec![run(&[("first-instruction", 1000.0)])]), (NESTED, vec![])];
        let mut nested = run(&[("first-instruction", 900.0)]);
        nested.stats = serde_json::json!({"guests": [{"tsc": 5_000, "host": {"tsc": 5_300}}]});
        results.columns[1].1.push(nested);
        assert_eq!((results.power_on(native), results.power_on(NESTED)), (Some(1000.0), Some(1200.0)));
        results.columns[1].1[0].stats = Value::Null;
        assert_eq!(results.power_on(NESTED), None);
    }

    #[test]
    fn goals_are_judged_by_the_median_run() {
        let results = example();
        let judgements = results.judge(NESTED);
        assert_eq!(
            judgements.iter().map(Judgement::met).collect::<Vec<_>>(),
            [Some(true), Some(false), Some(false)]
        );
        assert_eq!(judgements[1].ratio(), Some(1.02));
        assert_eq!(judgements[2].ratio(), None);
        let left = |row: usize| judgements[row].left().map(|left| (left * 1e4).round());
        assert_eq!([left(0), left(1), left(2)], [Some(833.0), Some(-99.0), None]);
        let over_second = |row: usize| judgements[row].ratio_over_second().map(|ratio| (ratio * 1e3).round());
        assert_eq!([over_second(0), over_second(1), over_second(2)], [Some(18_333.0), Some(1020.0), None]);
        let cpuid = judgements[0].ours.as_ref().unwrap();
        assert_eq!((cpuid.median, cpuid.spread()), (110.0, 30.0 / 110.0));
        assert_eq!(results.missed(), ["nested: fork-wait", "nested: ping-pong"]);
        assert!(results.judge(Column::native(Machine::QemuSvm)).is_empty());
    }
}
