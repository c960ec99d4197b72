//! What leaves the guest in each row: the exits of a run with that row alone and eight times its batches, less those of a run
//! with that row alone, for each operation more. Time being counted in instructions, both runs do the same until the first one is done,
//! its preparation and the output included; what their boots differ by is spread over seven times the operations of the usual row.

use std::{collections::BTreeMap, path::Path, thread};

use abi::telemetry::key;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    column::{Column, Setup},
    rows::{self, ExitFigures, Row},
};

/// The guest's words for the batches as they are (one that it does not know) and for eight times as many, as they follow the rows. They are of
/// one length, as the kernels' command lines are then, so that both boots differ by some nanoseconds on QEMU. On Bochs it is some thousand
/// cycles, and with them what a boot does until a clock says something.
const ONCE: &str = " usual";
const EIGHTFOLD: &str = " eight";

/// Exits for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Exit {
    /// Exits.
    pub count: f64,
    /// Ticks from the exit to the next entry.
    pub ticks: f64,
}

/// The exits of one operation of a row.
#[derive(Debug)]
pub struct Exits {
    /// The row.
    pub row: &'static Row,
    /// By reason.
    pub each: BTreeMap<String, Exit>,
    /// What the shadow tables counted of their page faults for one operation, by the statistics' names; empty without such tables.
    pub faults: BTreeMap<String, f64>,
}

/// What the shadow tables count of page faults, with what a table says of it.
pub const FAULTS: [(&str, &str); 4] = [
    (key::GUEST_FAULTS, "the guest's own"),
    (key::FILLED, "filled"),
    (key::EMULATED_WRITES, "emulated writes"),
    (key::UNSYNCED, "tables left to the guest"),
];

impl Exits {
    /// Exits for all reasons but port I/O, unless that is what the row does. The operations of the other rows make none; what there
    /// is of it belongs to the kernel's console, and the two runs may differ by some hundreds.
    pub fn total(&self) -> f64 {
        let counts = |reason: &str| reason != "io" || self.row.name == rows::PCI_READ;
        self.each.iter().filter(|(reason, _)| counts(reason)).map(|(_, exit)| exit.count).sum()
    }

    /// What they are compared with in a column.
    pub fn figures(&self, column: Column) -> Option<ExitFigures> {
        self.row.exits(column.machine, column.mode?)
    }

    /// Whether the goal is met, if there is one.
    pub fn met(&self, column: Column) -> Option<bool> {
        Some(self.total() <= self.figures(column)?.goal)
    }

    /// The reasons, the most expensive first.
    pub fn by_cost(&self) -> impl Iterator<Item = (&str, &Exit)> {
        let mut each: Vec<_> = self.each.iter().map(|(reason, exit)| (reason.as_str(), exit)).collect();
        each.sort_unstable_by(|one, other| other.1.ticks.total_cmp(&one.1.ticks));
        each.into_iter()
    }
}

/// The goals that are missed, as `column: row (exits)`.
pub fn missed(exits: &[(Column, Vec<Exits>)]) -> Vec<String> {
    let rows = exits.iter().flat_map(|(column, rows)| rows.iter().map(move |row| (*column, row)));
    rows.filter(|(column, row)| row.met(*column) == Some(false))
        .map(|(column, row)| format!("{}: {} (exits)", column.name(), row.row.name))
        .collect()
}

/// Counts the exits of each row in a column.
///
/// # Errors
/// A run that does not measure its row; a hypervisor that counts nothing.
pub fn count(
    setup: &Setup,
    column: Column,
    rows: &[&'static Row],
    scratch: &Path,
    mut progress: impl FnMut(&str),
) -> Result<Vec<Exits>> {
    let run = |row: &Row, words: &str| {
        let path = scratch.join(format!("stats{}.json", words.trim()));
        let run = setup.run_alone(column, row, &path, words)?;
        if !run.trouble.is_empty() {
            bail!("counting exits: {}", run.trouble);
        }
        let Some(figures) = run.records.rows.get(row.name) else {
            bail!("counting exits: no figures of {}", row.name)
        };
        Ok((totals(&run.stats)?, faults(&run.stats), figures.operations))
    };
    let mut all = Vec::new();
    for &row in rows.iter().filter(|row| row.name != rows::first_instruction().name) {
        progress(row.title);
        let (once, more) = thread::scope(|scope| {
            let once = scope.spawn(|| run(row, ONCE));
            let more = run(row, EIGHTFOLD);
            (once.join().expect("no thread panics"), more)
        });
        let ((once, faults_once, few), (more, faults_more, many)) = (once?, more?);
        let operations = many.saturating_sub(few);
        let faults = difference(&faults_more, &faults_once, operations);
        let faults = faults.into_iter().map(|(name, exit)| (name, exit.count)).collect();
        all.push(Exits { row, each: difference(&more, &once, operations), faults });
    }
    Ok(all)
}

/// Sums by reason.
type Totals = BTreeMap<String, (u64, u64)>;

/// The exits in a document of `pal run --stats`.
fn totals(stats: &Value) -> Result<Totals> {
    #[derive(Deserialize)]
    struct Entry {
        reason: String,
        count: u64,
        ticks: u64,
    }
    let entries = stats.pointer("/guests/0/exits").cloned().unwrap_or_default();
    let Ok(entries) = serde_json::from_value::<Vec<Entry>>(entries) else {
        bail!("counting exits: the hypervisor reported none")
    };
    let mut totals = Totals::new();
    for Entry { reason, count, ticks } in entries {
        let total = totals.entry(reason).or_default();
        *total = (total.0 + count, total.1 + ticks);
    }
    Ok(totals)
}

/// What the shadow tables have counted in the same document; no ticks.
fn faults(stats: &Value) -> Totals {
    let count = |name: &str| stats.pointer(&format!("/guests/0/paging/shadow/{name}"))?.as_u64();
    FAULTS.iter().filter_map(|(name, _)| Some(((*name).to_owned(), (count(name)?, 0)))).collect()
}

/// What `totals` has more than `empty`, divided by the number of operations.
fn difference(totals: &Totals, empty: &Totals, operations: u64) -> BTreeMap<String, Exit> {
    let each = |all: u64, less: u64| (all as f64 - less as f64) / operations.max(1) as f64;
    let mut exits = BTreeMap::new();
    for (reason, &(count, ticks)) in totals {
        let less = empty.get(reason).copied().unwrap_or_default();
        if (count, ticks) != less {
            exits.insert(reason.clone(), Exit { count: each(count, less.0), ticks: each(ticks, less.1) });
        }
    }
    exits
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::{Machine, Mode};

    #[test]
    fn exits_of_an_operation() {
        let document = |count: u64| {
            json!({"guests": [{"exits": [
                {"reason": "cpuid", "count": count, "ticks": 100 * count},
                {"reason": "io", "count": 7, "ticks": 70},
            ]}]})
        };
        let (empty, full) = (totals(&document(50)).unwrap(), totals(&document(250)).unwrap());
        let exits = Exits {
            row: &crate::bench::rows::ROWS[0],
            each: difference(&full, &empty, 100),
            faults: BTreeMap::new(),
        };
        assert_eq!(exits.by_cost().collect::<Vec<_>>(), [("cpuid", &Exit { count: 2.0, ticks: 200.0 })]);
        assert_eq!(
            (exits.total(), exits.met(Column::hypervisor(Machine::QemuSvm, Mode::Shadow))),
            (2.0, None)
        );
        assert!(totals(&json!({"guests": []})).is_err());
        assert!(totals(&Value::Null).is_err());
    }

    #[test]
    fn goals_are_those_of_the_machine_and_of_shadow_tables() {
        let row = &crate::bench::rows::select(&["first-touch".into()]).unwrap()[0];
        let exit = |count| Exit { count, ticks: 900.0 };
        // Port I/O is not the row's.
        let each = BTreeMap::from([("page-fault".to_owned(), exit(2.0)), ("io".to_owned(), exit(0.5))]);
        let exits = || vec![Exits { row, each: each.clone(), faults: BTreeMap::new() }];
        let counted = [
            (Column::hypervisor(Machine::QemuSvm, Mode::Shadow), exits()),
            (Column::hypervisor(Machine::BochsVtx, Mode::Shadow), exits()),
            (Column::hypervisor(Machine::QemuSvm, Mode::Nested), exits()),
        ];
        let met = counted.each_ref().map(|(column, exits)| exits[0].met(*column));
        assert_eq!(met, [Some(true), Some(false), None]);
        assert_eq!(missed(&counted), ["shadow: first-touch (exits)"]);
    }
}
