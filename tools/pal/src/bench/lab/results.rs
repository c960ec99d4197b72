//! From the reports of lab machines to figures.

use std::collections::BTreeMap;

use serde_json::Value;

use super::rows::Row;
use crate::bench::column::{Column, Run};

/// What one operation of a row takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figure {
    /// Operations that were counted.
    pub operations: u64,
    /// Each counter of the model (`abi::lab::Counters`), per operation: of the guest, and of the hypervisor meanwhile.
    pub counters: BTreeMap<String, f64>,
    /// Of the cycles those of the hypervisor; natively all are the guest's.
    pub host_cycles: f64,
}

impl Figure {
    /// A counter per operation.
    pub fn get(&self, counter: &str) -> f64 {
        self.counters.get(counter).copied().unwrap_or(0.0)
    }

    /// Modelled cycles.
    pub fn cycles(&self) -> f64 {
        self.get("cycles")
    }

    /// Of these, cycles of page walks.
    pub fn walk_cycles(&self) -> f64 {
        self.get("walk_cycles")
    }
}

/// A column.
pub struct Measured {
    /// Where it ran.
    pub column: Column,
    /// What it took, in the order of the rows.
    pub figures: Vec<Option<Figure>>,
    /// The arguments of `pal`.
    pub command: Vec<String>,
    /// What the guest said about itself.
    pub guest: BTreeMap<String, String>,
    /// Why figures may be missing; empty if none is.
    pub trouble: String,
}

impl Measured {
    /// Takes the figures of these rows from the machine's report.
    pub fn new(column: Column, rows: &[Row], run: Run, report: &Value) -> Self {
        let native = column.mode.is_none();
        let figures: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(number, row)| {
                let batch = run.records.rows.get(&row.name)?.batch;
                figure(report, number as u64, batch, native)
            })
            .collect();
        let mut trouble = run.trouble;
        if trouble.is_empty() && figures.contains(&None) {
            trouble = "the lab machine's report lacks rows".to_owned();
        }
        Self { column, figures, command: run.command, guest: run.records.info, trouble }
    }
}

/// What the region of this number took for each operation; `None` if it was not counted.
fn figure(report: &Value, number: u64, batch: u64, native: bool) -> Option<Figure> {
    let pcpus = report["pcpus"].as_array()?.iter();
    let regions: Vec<&Value> = pcpus
        .flat_map(|pcpu| pcpu["regions"].as_array().into_iter().flatten())
        .filter(|region| region["region"] == number)
        .collect();
    let times: u64 = regions.iter().filter_map(|region| region["times"].as_u64()).sum();
    let operations = times.checked_mul(batch).filter(|operations| *operations > 0)?;
    let mut figure = Figure { operations, ..Figure::default() };
    let each = |value: &Value| value.as_u64().unwrap_or(0) as f64 / operations as f64;
    for side in abi::lab::Side::ALL.map(abi::lab::Side::name) {
        for (counter, value) in regions.iter().filter_map(|region| region[side].as_object()).flatten() {
            *figure.counters.entry(counter.clone()).or_default() += each(value);
        }
    }
    if !native {
        figure.host_cycles = regions.iter().map(|region| each(&region["host"]["cycles"])).sum();
    }
    Some(figure)
}

/// A machine.
pub struct Results {
    /// Its name, or its file.
    pub machine: String,
    /// The rows, in order.
    pub rows: Vec<Row>,
    /// The columns, in order; the first is the reference.
    pub measured: Vec<Measured>,
}

impl Results {
    /// What a row took in the column of this name.
    pub fn figure(&self, row: &str, column: &str) -> Option<&Figure> {
        let at = self.rows.iter().position(|each| each.name == row)?;
        self.measured.iter().find(|measured| measured.column.name() == column)?.figures.get(at)?.as_ref()
    }

    /// How many times the cycles of shadow tables nested tables take.
    pub fn nested_to_shadow(&self, row: &str) -> Option<f64> {
        let shadow = self.figure(row, "shadow")?.cycles();
        (shadow > 0.0).then_some(self.figure(row, "nested")?.cycles() / shadow)
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        bench::record::{Figures, Records},
        cli::{Machine, Mode},
    };

    fn row(name: &str) -> Row {
        Row { name: name.into(), title: format!("the {name}") }
    }

    fn run(rows: &[Row]) -> Run {
        let mut records = Records { done: Some(rows.len()), ..Records::default() };
        for row in rows {
            let figures =
                Figures { median: 1.0, min: 1.0, max: 1.0, mean: 1.0, samples: 2, batch: 10, operations: 50 };
            records.rows.insert(row.name.clone(), figures);
        }
        Run { records, command: vec!["run".into()], stats: Value::Null, trouble: String::new() }
    }

    /// Two batches of ten operations of the first row; a hypervisor does a tenth of the guest's work.
    fn report(native: bool, cycles: u64, walk_cycles: u64) -> Value {
        let guest = json!({ "cycles": 20 * cycles, "walk_cycles": 20 * walk_cycles });
        let host = json!({ "cycles": 2 * cycles, "walk_cycles": 0 });
        let region = match native {
            true => json!({ "region": 0, "times": 2, "host": guest }),
            false => json!({ "region": 0, "times": 2, "host": host, "guest_nested": guest }),
        };
        json!({ "pcpus": [{ "regions": [region] }] })
    }

    /// Native, nested and shadow: the first row takes 100, 200 and 160 cycles in the guest; the second was not counted.
    pub fn example() -> Results {
        let rows = vec![row("chase-4k-256m"), row("fork-wait")];
        let of = |column: Column, cycles, walk_cycles| {
            Measured::new(column, &rows, run(&rows), &report(column.mode.is_none(), cycles, walk_cycles))
        };
        let hypervisor = |mode| Column::hypervisor(Machine::QemuSvm, mode);
        let measured = vec![
            of(Column::native(Machine::QemuSvm), 100, 10),
            of(hypervisor(Mode::Nested), 200, 90),
            of(hypervisor(Mode::Shadow), 160, 20),
        ];
        Results { machine: "zen3".into(), rows, measured }
    }

    #[test]
    fn sides_and_batches_are_added() {
        let results = example();
        let nested = results.figure("chase-4k-256m", "nested").unwrap();
        assert_eq!((nested.operations, nested.walk_cycles(), nested.host_cycles), (20, 90.0, 20.0));
        assert!((nested.cycles() - 220.0).abs() < 1e-9);
        let native = results.figure("chase-4k-256m", "native").unwrap();
        assert_eq!((native.cycles(), native.host_cycles), (100.0, 0.0));
        let relative = results.nested_to_shadow("chase-4k-256m").unwrap();
        assert!((relative - 1.25).abs() < 1e-9, "{relative}");
    }

    #[test]
    fn what_was_not_counted_is_missing() {
        let results = example();
        assert_eq!(results.figure("fork-wait", "nested"), None);
        assert_eq!(results.nested_to_shadow("fork-wait"), None);
        assert!(results.measured.iter().all(|measured| measured.trouble.contains("lacks rows")));
        let rows = [row("a")];
        let nothing = Measured::new(Column::native(Machine::QemuSvm), &rows, run(&rows), &Value::Null);
        assert_eq!(nothing.figures, [None]);
        let none =
            json!({ "pcpus": [{ "regions": [{ "region": 0, "times": 0 }, { "region": 0, "times": "2" }] }] });
        assert_eq!(figure(&none, 0, 10, true), None);
        assert_eq!(
            figure(&json!({ "pcpus": [{ "regions": [{ "region": 0, "times": u64::MAX }] }] }), 0, 10, true),
            None
        );
    }
}
