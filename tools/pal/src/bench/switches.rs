//! What it costs to change from one mode to the other: the hypervisor's statistics of columns that do so.

use serde::{Deserialize, Serialize};

use super::column::{Column, Run};

/// Ticks that the hypervisor may take for one change to nested tables, and to shadow tables before they are filled again.
const GOALS: [(&str, f64); 2] = [("to nested tables", 20_000.0), ("to shadow tables", 200_000.0)];

/// The object in a `stats` record.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct Counts {
    to_nested: u64,
    to_nested_ticks: u64,
    to_nested_longest: u64,
    to_shadow: u64,
    to_shadow_ticks: u64,
    to_shadow_longest: u64,
    nested_steps: u64,
    refilled: u64,
    refill_ticks: u64,
    refill_faults: u64,
}

/// Changes in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Direction {
    /// What a person reads.
    pub name: &'static str,
    /// Changes.
    pub count: u64,
    /// Mean ticks of the hypervisor's work.
    pub mean: f64,
    /// Ticks of the longest.
    pub longest: f64,
    /// The most that the longest may take.
    pub goal: f64,
}

impl Direction {
    /// True if there was a change and none took too long.
    pub fn met(&self) -> bool {
        self.count > 0 && self.longest <= self.goal
    }
}

/// The changes of one column, over all runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Switches {
    /// To nested tables, to shadow tables.
    pub directions: [Direction; 2],
    /// Changes for one instruction, counted in `directions` too.
    pub nested_steps: u64,
    /// Changes to shadow tables that faults had filled again before the next change.
    pub refilled: u64,
    /// Mean ticks until then.
    pub refill_ticks: f64,
    /// Mean faults until then.
    pub refill_faults: f64,
}

impl Switches {
    /// The changes in a column's runs; `None` if it does not change its mode.
    pub fn of(column: Column, runs: &[Run]) -> Option<Self> {
        if !column.switches() {
            return None;
        }
        let mut sum = Counts::default();
        for counts in runs.iter().filter_map(counts) {
            sum.to_nested += counts.to_nested;
            sum.to_nested_ticks += counts.to_nested_ticks;
            sum.to_nested_longest = sum.to_nested_longest.max(counts.to_nested_longest);
            sum.to_shadow += counts.to_shadow;
            sum.to_shadow_ticks += counts.to_shadow_ticks;
            sum.to_shadow_longest = sum.to_shadow_longest.max(counts.to_shadow_longest);
            sum.nested_steps += counts.nested_steps;
            sum.refilled += counts.refilled;
            sum.refill_ticks += counts.refill_ticks;
            sum.refill_faults += counts.refill_faults;
        }
        let mean = |ticks: u64, count: u64| ticks as f64 / count.max(1) as f64;
        let direction = |(name, goal), count, ticks, longest: u64| Direction {
            name,
            count,
            mean: mean(ticks, count),
            longest: longest as f64,
            goal,
        };
        let Counts { refilled, refill_ticks, refill_faults, nested_steps, .. } = sum;
        Some(Self {
            directions: [
                direction(GOALS[0], sum.to_nested, sum.to_nested_ticks, sum.to_nested_longest),
                direction(GOALS[1], sum.to_shadow, sum.to_shadow_ticks, sum.to_shadow_longest),
            ],
            nested_steps,
            refilled,
            refill_ticks: mean(refill_ticks, refilled),
            refill_faults: mean(refill_faults, refilled),
        })
    }
}

/// A run's counts, if its statistics have them.
fn counts(run: &Run) -> Option<Counts> {
    serde_json::from_value(run.stats.pointer("/guests/0/paging/switches")?.clone()).ok()
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        bench::record::Records,
        cli::{Machine, Mode},
    };

    pub fn column() -> Column {
        Column::hypervisor(Machine::QemuSvm, "switch=50".parse().unwrap())
    }

    /// A run that changed the mode `count` times in each direction.
    pub fn run(count: u64, longest: u64) -> Run {
        let stats = json!({"guests": [{"paging": {"switches": {
            "to_nested": count, "to_nested_ticks": 40 * count, "to_nested_longest": 45,
            "to_shadow": count, "to_shadow_ticks": 1000 * count, "to_shadow_longest": longest,
            "nested_steps": 3, "refilled": 2, "refill_ticks": 500, "refill_faults": 30,
        }}}]});
        Run { records: Records::default(), command: vec![], stats, trouble: String::new() }
    }

    #[test]
    fn runs_are_summed_and_the_longest_counts() {
        let switches = Switches::of(column(), &[run(10, 199_000), run(30, 200_001)]).unwrap();
        let [nested, shadow] = &switches.directions;
        assert_eq!((nested.count, nested.mean, nested.longest, nested.met()), (40, 40.0, 45.0, true));
        assert_eq!((shadow.count, shadow.mean, shadow.longest, shadow.met()), (40, 1000.0, 200_001.0, false));
        assert_eq!((switches.nested_steps, switches.refilled, switches.refill_ticks), (6, 4, 250.0));
    }

    #[test]
    fn nothing_measured_is_a_miss() {
        assert_eq!(Switches::of(Column::hypervisor(Machine::QemuSvm, Mode::Shadow), &[run(1, 1)]), None);
        let lost = Run { stats: Value::Null, ..run(1, 1) };
        assert!(Switches::of(column(), &[lost]).unwrap().directions.iter().all(|direction| !direction.met()));
    }
}
