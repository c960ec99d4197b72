//! What is known of all cells: medians over seeds, times relative to the better static mode, and what does not fit together.

use super::{cell::Cell, plan::NATIVE};
use crate::report::chart::Bar;

/// The policies that never change.
const STATIC: [&str; 2] = ["nested", "shadow"];

/// A policy on a workload: the median over its seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Row<'a> {
    /// The workload.
    pub workload: &'a str,
    /// The policy.
    pub policy: &'a str,
    /// The run in the middle, by cycles; of an even number the upper one.
    pub median: &'a Cell,
    /// Runs.
    pub seeds: usize,
    /// How far the runs are apart: the slowest to the fastest.
    pub spread: f64,
    /// Its cycles to those of the better of nested and shadow, or of one of them if that alone was asked for; `None`: neither was.
    pub relative: Option<f64>,
}

/// A row for each workload and policy that has a cell, in these orders.
pub fn rows<'a>(cells: &'a [Cell], workloads: &'a [String], policies: &'a [String]) -> Vec<Row<'a>> {
    let mut all = Vec::new();
    for workload in workloads {
        let median = |policy: &str| {
            let mut runs: Vec<&Cell> =
                cells.iter().filter(|cell| cell.workload == *workload && cell.policy == policy).collect();
            runs.sort_by_key(|cell| cell.cycles());
            let (least, most) = (runs.first()?.cycles(), runs.last()?.cycles());
            Some((runs[runs.len() / 2], runs.len(), most as f64 / least.max(1) as f64))
        };
        let statics: Vec<_> =
            STATIC.iter().filter_map(|policy| Some((policy, median(policy)?.0.cycles()))).collect();
        // One that was run to learn from it need not be the better one.
        let is_told = |policy: &str| statics.len() > 1 || policies.iter().any(|asked| asked == policy);
        let better = statics.iter().filter(|(policy, _)| is_told(policy)).map(|(_, cycles)| *cycles).min();
        all.extend(policies.iter().filter_map(|policy| {
            let (cell, seeds, spread) = median(policy)?;
            let relative =
                better.filter(|cycles| *cycles > 0).map(|cycles| cell.cycles() as f64 / cycles as f64);
            Some(Row { workload, policy, median: cell, seeds, spread, relative })
        }));
    }
    all
}

/// What the parts of [`overheads`] are called.
pub const OVERHEADS: [&str; 2] = ["page walks", "hypervisor"];

/// What walks and the hypervisor take in hundredths of the time without a hypervisor: a bar for each row whose workload was run so.
pub fn overheads<'a>(rows: &[Row<'a>], policies: &'a [String]) -> Vec<Bar<'a>> {
    let bar = |row: &Row<'a>| {
        let native = rows.iter().find(|other| other.workload == row.workload && other.policy == NATIVE)?;
        let share = |cycles: u64| 100.0 * cycles as f64 / native.median.cycles().max(1) as f64;
        let parts = [row.median.walk_cycles, row.median.hypervisor_cycles()].map(share);
        Some(Bar { group: row.workload, name: short(row.policy, policies), parts })
    };
    rows.iter().filter_map(bar).collect()
}

/// A policy over all workloads.
#[derive(Clone, Debug, PartialEq)]
pub struct Overall<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The geometric mean of its times relative to the better static mode.
    pub mean: f64,
    /// The worst of them, and its workload.
    pub worst: (f64, &'a str),
}

/// The policies that have been on all workloads: others cannot be compared.
pub fn overall<'a>(rows: &[Row<'a>], workloads: &[String], policies: &'a [String]) -> Vec<Overall<'a>> {
    let of = |policy: &'a String| {
        let mine = rows.iter().filter(|row| row.policy == policy);
        let mine: Vec<_> = mine.filter_map(|row| Some((row.relative?, row.workload))).collect();
        if mine.is_empty() || mine.len() < workloads.len() {
            return None;
        }
        let mean = (mine.iter().map(|(relative, _)| relative.ln()).sum::<f64>() / mine.len() as f64).exp();
        let worst = mine.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Overall { policy, mean, worst })
    };
    policies.iter().filter_map(of).collect()
}

/// A policy as tables name it: without its parameters, unless another one of these has the same name.
pub fn short<'a>(policy: &'a str, policies: &[String]) -> &'a str {
    let name = |policy: &'a str| policy.split(',').next().unwrap_or(policy);
    let of_that_name = |other: &&String| other.split(',').next() == Some(name(policy));
    if policies.iter().filter(of_that_name).count() > 1 { policy } else { name(policy) }
}

/// The policies whose parameters a table leaves out.
pub fn shortened(policies: &[String]) -> Vec<&str> {
    policies.iter().map(String::as_str).filter(|policy| short(policy, policies) != *policy).collect()
}

/// Workloads whose cells do not all have one checksum: something was computed wrongly.
pub fn disagreements(cells: &[Cell], workloads: &[String]) -> Vec<String> {
    let of = |workload: &&String| {
        let mut sums: Vec<_> = cells
            .iter()
            .filter(|cell| cell.workload == **workload)
            .map(|cell| (cell.scale_milli, &cell.checksum))
            .collect();
        sums.sort_unstable();
        sums.dedup();
        sums.windows(2).any(|pair| pair[0].0 == pair[1].0)
    };
    workloads.iter().filter(of).cloned().collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    pub fn cell(workload: &str, policy: &str, seed: u32, cycles: u64) -> Cell {
        Cell {
            workload: workload.into(),
            policy: policy.into(),
            seed,
            host_cycles: cycles / 10,
            nested_cycles: cycles - cycles / 10,
            checksum: "ab".into(),
            ..Cell::default()
        }
    }

    /// Two workloads; nested tables are better for one, shadow tables for the other.
    pub fn example() -> (Vec<Cell>, Vec<String>, Vec<String>) {
        let mut cells =
            vec![cell("a", "nested", 1, 110), cell("a", "nested", 2, 120), cell("a", "nested", 3, 90)];
        cells.extend([cell("a", "shadow", 1, 100), cell("a", "dav2m,window_inst=1000", 1, 101)]);
        cells.extend([cell("b", "nested", 1, 50), cell("b", "shadow", 1, 200)]);
        (cells, words(&["a", "b"]), words(&["nested", "shadow", "dav2m,window_inst=1000"]))
    }

    #[test]
    fn one_static_mode_that_was_not_asked_for_is_no_measure() {
        let (cells, workloads) =
            ([cell("a", "nested", 1, 100), cell("a", "dsp-offset", 1, 60)], words(&["a"]));
        let relative = |cells: &[Cell], policies: &[&str]| {
            rows(cells, &workloads, &words(policies)).last().and_then(|row| row.relative)
        };
        assert_eq!(relative(&cells, &["dsp-offset"]), None);
        assert_eq!(relative(&cells, &["nested", "dsp-offset"]), Some(0.6));
        let both = [&cells[..], &[cell("a", "shadow", 1, 120)]].concat();
        assert_eq!(relative(&both, &["dsp-offset"]), Some(0.6));
    }

    #[test]
    fn medians_are_compared_with_the_better_static_mode() {
        let (cells, workloads, policies) = example();
        let rows = rows(&cells, &workloads, &policies);
        let of = |row: &Row| {
            (
                row.workload.to_owned(),
                row.median.cycles(),
                row.seeds,
                row.relative.map(|it| (it * 1000.0) as u64),
            )
        };
        let of: Vec<_> = rows.iter().map(of).collect();
        let row =
            |workload: &str, cycles, seeds, relative| (workload.to_owned(), cycles, seeds, Some(relative));
        let expected = [
            row("a", 110, 3, 1100),
            row("a", 100, 1, 1000),
            row("a", 101, 1, 1010),
            row("b", 50, 1, 1000),
            row("b", 200, 1, 4000),
        ];
        assert_eq!(of, expected);
        assert!((rows[0].spread - 120.0 / 90.0).abs() < 1e-9);
        let overall = overall(&rows, &workloads, &policies);
        assert_eq!(overall.len(), 2, "a policy that lacks a workload has no mean");
        assert!((overall[1].mean - 2.0).abs() < 1e-9 && overall[1].worst == (4.0, "b"), "{overall:?}");
    }

    #[test]
    fn overheads_are_shares_of_native_time() {
        let walks = |cell: Cell, walk_cycles| Cell { walk_cycles, ..cell };
        let cells = [
            walks(cell("a", "native", 1, 200), 10),
            walks(cell("a", "dav2m,steps=3", 1, 300), 40),
            walks(cell("b", "nested", 1, 100), 20),
        ];
        let (workloads, policies) = (words(&["a", "b"]), words(&["native", "nested", "dav2m,steps=3"]));
        let rows = rows(&cells, &workloads, &policies);
        // `b` was not run without a hypervisor. Of native time a tenth is the host's in these cells.
        let expected = [("a", "native", [5.0, 0.0]), ("a", "dav2m", [20.0, 15.0])]
            .map(|(group, name, parts)| Bar { group, name, parts });
        assert_eq!(overheads(&rows, &policies), expected);
    }

    #[test]
    fn without_static_modes_nothing_is_relative() {
        let cells = [cell("a", "dav2m", 1, 100)];
        let (workloads, policies) = (words(&["a"]), words(&["dav2m"]));
        let rows = rows(&cells, &workloads, &policies);
        assert_eq!((rows.len(), rows[0].relative), (1, None));
        assert!(overall(&rows, &workloads, &policies).is_empty());
    }

    #[test]
    fn names_are_short_unless_two_are_the_same() {
        let policies =
            words(&["nested", "dav2m,steps=3", "dsp-offset,train=pooled", "dsp-offset,train=specific"]);
        let names: Vec<_> = policies.iter().map(|policy| short(policy, &policies)).collect();
        assert_eq!(names, ["nested", "dav2m", "dsp-offset,train=pooled", "dsp-offset,train=specific"]);
        assert_eq!(shortened(&policies), ["dav2m,steps=3"]);
    }

    #[test]
    fn checksums_of_one_scale_agree() {
        let (mut cells, workloads, _) = example();
        assert!(disagreements(&cells, &workloads).is_empty());
        cells[1].checksum = "cd".into();
        assert_eq!(disagreements(&cells, &workloads), ["a"]);
        cells[1].scale_milli = 5;
        assert!(disagreements(&cells, &workloads).is_empty());
    }
}
