//! The file of `--json`. `docs/benchmarks.md` describes it; a change that breaks readers changes [`SCHEMA`].

use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use super::{
    column::Column,
    exits::Exits,
    results::{Cost, Judgement, Results},
    switches::Switches,
};
use crate::{cli::value_name, project::Project};

/// The version of the file's format.
pub const SCHEMA: u64 = 1;

/// The whole document, but for what the scheduler costs.
pub fn document(
    results: &Results,
    exits: &[(Column, Vec<Exits>)],
    missed: &[String],
    emulator: &str,
    project: &Project,
) -> Value {
    let columns: Vec<Value> = results
        .columns
        .iter()
        .map(|(column, runs)| {
            let first = runs.first();
            json!({
                "name": column.name(),
                "machine": value_name(column.machine),
                "mode": column.mode.map(|mode| mode.to_string()),
                "command": first.map(|run| &run.command),
                "switches": Switches::of(*column, runs),
                "power_on": results.power_on(*column),
                "guest": first.map(|run| &run.records.info),
                "trouble": runs.iter().map(|run| &run.trouble).filter(|text| !text.is_empty()).collect::<Vec<_>>(),
            })
        })
        .collect();
    let runs = results.columns.iter().map(|(_, runs)| runs.len()).max();
    json!({
        "schema": SCHEMA,
        "unit": "TSC ticks per operation; a tick is an instruction",
        "commit": git(project, &["rev-parse", "HEAD"]),
        "modified": git(project, &["status", "--porcelain"]).map(|changes| !changes.is_empty()),
        "pal": env!("CARGO_PKG_VERSION"),
        "emulator": emulator,
        "runs": runs,
        "columns": columns,
        "rows": results.rows.iter().map(|row| json!({
            "name": row.name,
            "operation": row.title,
            "costs": costs(results, row),
        })).collect::<Vec<_>>(),
        "comparisons": results.columns.iter().flat_map(|(column, _)| {
            let name = column.name();
            results.judge(*column).iter().map(|judgement| comparison(&name, judgement)).collect::<Vec<_>>()
        }).collect::<Vec<_>>(),
        "exits": exits.iter().flat_map(|(column, rows)| {
            let (of, column) = (*column, column.name());
            let row = move |exits: &Exits| json!({
                "column": column,
                "row": exits.row.name,
                "per_operation": exits.each,
                "page_faults": exits.faults,
                "total": exits.total(),
                "compared_with": exits.figures(of),
                "met": exits.met(of),
            });
            rows.iter().map(row)
        }).collect::<Vec<_>>(),
        "missed": missed,
        "all_met": missed.is_empty(),
    })
}

/// Column name → cost.
fn costs(results: &Results, row: &super::rows::Row) -> Value {
    let cost = |column: Column| {
        let Cost { median, runs, .. } = results.cost(row, column)?;
        Some(json!({ "median": median, "runs": runs, "over_second": results.second(row, column) }))
    };
    let columns = results.columns.iter();
    Value::Object(Map::from_iter(columns.filter_map(|(column, _)| Some((column.name(), cost(*column)?)))))
}

fn comparison(column: &str, judgement: &Judgement) -> Value {
    json!({
        "column": column,
        "row": judgement.row.name,
        "ratio": judgement.ratio(),
        "ratio_over_second": judgement.ratio_over_second(),
        "spread": judgement.ours.as_ref().map(Cost::spread),
        "kvm": judgement.comparison.kvm,
        "xen": judgement.comparison.xen,
        "peers_native": judgement.row.peers_native,
        "goal": judgement.comparison.goal,
        "met": judgement.met(),
        "left": judgement.left(),
    })
}

/// What git says about the source tree; `None` outside a repository.
pub fn git(project: &Project, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(&project.root)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::example;

    #[test]
    fn the_document_says_what_was_met() {
        let document = document(&example(), &[], &example().missed(), "QEMU 1", &Project::locate().unwrap());
        assert_eq!(document["schema"], SCHEMA);
        assert_eq!(document["runs"], 3);
        assert_eq!(document["rows"][0]["costs"]["nested"]["median"], 110.0);
        let over_second = document["rows"][0]["costs"]["nested"]["over_second"].as_f64();
        assert!(over_second.is_some_and(|mean| (mean - 121.0).abs() < 1e-9), "{over_second:?}");
        assert_eq!(document["rows"][0]["costs"]["nested"]["runs"].as_array().unwrap().len(), 3);
        assert!(document["rows"][2]["costs"].get("nested").is_none());
        let comparison = &document["comparisons"][1];
        assert_eq!((&comparison["row"], &comparison["met"]), (&json!("fork-wait"), &json!(false)));
        assert_eq!(comparison["goal"], json!({"times": 1.01}));
        assert_eq!(document["all_met"], false);
    }
}
