//! What leaves the guest in each row: the exits of a run with that row alone, less those of a run with the one row that
//! performs nothing, for each operation. Time being counted in instructions, both runs do the same until the row begins,
//! and both print one record.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    column::{Column, Setup},
    rows::{self, Row},
};

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
}

impl Exits {
    /// The reasons, the costliest first.
    pub fn by_cost(&self) -> impl Iterator<Item = (&str, &Exit)> {
        let mut each: Vec<_> = self.each.iter().map(|(reason, exit)| (reason.as_str(), exit)).collect();
        each.sort_unstable_by(|one, other| other.1.ticks.total_cmp(&one.1.ticks));
        each.into_iter()
    }
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
    let path = scratch.join("stats.json");
    let mut run = |rows: &[&Row], name: &str| {
        progress(name);
        let run = setup.run(column, rows, Some(&path))?;
        if !run.trouble.is_empty() {
            bail!("counting exits: {}", run.trouble);
        }
        Ok((totals(&run.stats)?, run.records))
    };
    let nothing = rows::first_instruction();
    let (empty, _) = run(&[nothing], nothing.title)?;
    let mut all = Vec::new();
    for &row in rows.iter().filter(|row| row.name != nothing.name) {
        let (totals, records) = run(&[row], row.title)?;
        let Some(figures) = records.rows.get(row.name) else {
            bail!("counting exits: no figures of {}", row.name)
        };
        all.push(Exits { row, each: difference(&totals, &empty, figures.operations) });
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

    #[test]
    fn exits_of_an_operation() {
        let document = |count: u64| {
            json!({"guests": [{"exits": [
                {"reason": "cpuid", "count": count, "ticks": 100 * count},
                {"reason": "io", "count": 7, "ticks": 70},
            ]}]})
        };
        let (empty, full) = (totals(&document(50)).unwrap(), totals(&document(250)).unwrap());
        let exits = Exits { row: &crate::bench::rows::ROWS[0], each: difference(&full, &empty, 100) };
        assert_eq!(exits.by_cost().collect::<Vec<_>>(), [("cpuid", &Exit { count: 2.0, ticks: 200.0 })]);
        assert!(totals(&json!({"guests": []})).is_err());
        assert!(totals(&Value::Null).is_err());
    }
}
