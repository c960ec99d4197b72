//! The file of `--json` with `--smp`. `docs/benchmarks.md` describes it; a change that breaks readers changes [`SCHEMA`].

use serde_json::{Map, Value, json};

use super::{
    apart::Comparison,
    host::Host,
    results::{Results, Series, column_name},
    rows::PROCESSORS,
};
use crate::{bench::json::git, project::Project};

/// The version of the file's format.
pub const SCHEMA: u64 = 1;

/// The whole document.
pub fn document(
    results: &Results,
    comparisons: &[Comparison],
    host: &Host,
    emulator: &str,
    project: &Project,
) -> Value {
    let guests = results.rounds.first().into_iter().flatten().map(|(guest, _)| *guest);
    let guests: Vec<Value> = guests
        .map(|guest| {
            let each = || results.rounds.iter().flatten().filter(|(other, _)| *other == guest);
            let first = each().next().map(|(_, run)| run);
            let trouble = each().map(|(_, run)| &run.trouble).filter(|text| !text.is_empty());
            json!({
                "name": guest.name(),
                "mode": guest.mode.map(|mode| mode.to_string()),
                "command": first.map(|run| &run.command),
                "guest": first.map(|run| &run.records.info),
                "trouble": trouble.collect::<Vec<_>>(),
            })
        })
        .collect();
    let rows = results.rows.iter().map(|row| {
        let columns = results.columns().map(|mode| {
            let ratio = mode.map(|mode| results.ratio(row, mode));
            let scaling = row.workers.map(|_| results.scaling(row, mode));
            let column = json!({
                "cost": series(Some(&results.cost(row, mode))),
                "ratio": series(ratio.as_ref()),
                "scaling": series(scaling.as_ref()),
                "best": results.best(row, mode),
                "best_ratio": mode.and_then(|mode| results.best_ratio(row, mode)),
                "samples": results.samples(row, mode),
                "runs": results.runs(row, mode),
            });
            (column_name(mode), column)
        });
        json!({
            "name": row.name,
            "operation": row.title,
            "threads": row.workers.map(|workers| workers.threads),
            "columns": Map::from_iter(columns),
        })
    });
    json!({
        "schema": SCHEMA,
        "kind": "smp",
        "unit": "TSC ticks per operation, in real time",
        "commit": git(project, &["rev-parse", "HEAD"]),
        "modified": git(project, &["status", "--porcelain"]).map(|changes| !changes.is_empty()),
        "pal": env!("CARGO_PKG_VERSION"),
        "emulator": emulator,
        "emulated_processors": PROCESSORS,
        "host": host,
        "rounds": results.rounds.len(),
        "guests": guests,
        "rows": rows.collect::<Vec<_>>(),
        "comparisons": comparisons.iter().map(Comparison::json).collect::<Vec<_>>(),
        "missing": results.missing(),
    })
}

/// A series, or null if it is empty.
fn series(series: Option<&Series>) -> Value {
    series.filter(|series| !series.values().is_empty()).map_or(
        Value::Null,
        |series| json!({ "median": series.median(), "spread": series.spread(), "rounds": series.values() }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::smp::results::tests::example;

    #[test]
    fn the_document_has_every_figure() {
        let host = Host { processors: 2, load: Some(0.5) };
        let document =
            document(&example(), &Comparison::all(&[]), &host, "QEMU 1", &Project::locate().unwrap());
        assert_eq!((&document["schema"], &document["kind"]), (&json!(SCHEMA), &json!("smp")));
        assert_eq!((&document["rounds"], &document["host"]["processors"]), (&json!(3), &json!(2)));
        assert_eq!(document["guests"].as_array().unwrap().len(), 5);
        assert_eq!(document["guests"][4]["name"], "nested, 2 VCPUs on one PCPU");
        let ipi = &document["rows"][0]["columns"];
        assert_eq!(
            ipi["native"]["cost"],
            json!({"median": 300.0, "spread": 4.0 / 3.0, "rounds": [100.0, 300.0, 500.0]})
        );
        assert_eq!((&ipi["native"]["ratio"], &ipi["nested"]["scaling"]), (&Value::Null, &Value::Null));
        assert_eq!((&ipi["nested"]["ratio"]["median"], &ipi["nested"]["samples"]), (&json!(2.5), &json!(30)));
        let faults = &document["rows"][12];
        assert_eq!((&faults["name"], &faults["threads"]), (&json!("faults-4"), &json!(4)));
        assert_eq!(faults["columns"]["nested"]["scaling"]["median"], 4.0);
        assert_eq!(document["missing"], json!([]));
    }
}
