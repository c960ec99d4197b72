//! The file of `--json` with `--lab`. `docs/benchmarks.md` describes it; a change that breaks readers changes [`SCHEMA`].

use serde_json::{Map, Value, json};

use super::results::{Figure, Results};
use crate::{bench::json::git, project::Project};

/// The version of the file's format.
pub const SCHEMA: u64 = 1;

/// The whole document.
pub fn document(all: &[Results], project: &Project) -> Value {
    json!({
        "schema": SCHEMA,
        "kind": "lab",
        "unit": "counts of the modelled machine per operation",
        "commit": git(project, &["rev-parse", "HEAD"]),
        "modified": git(project, &["status", "--porcelain"]).map(|changes| !changes.is_empty()),
        "pal": env!("CARGO_PKG_VERSION"),
        "machines": all.iter().map(machine).collect::<Vec<_>>(),
    })
}

fn machine(results: &Results) -> Value {
    let columns = results.measured.iter().map(|measured| {
        json!({
            "name": measured.column.name(),
            "mode": measured.column.mode.map(|mode| mode.to_string()),
            "command": measured.command,
            "guest": measured.guest,
            "trouble": measured.trouble,
        })
    });
    let rows = results.rows.iter().map(|row| {
        let costs = results.measured.iter().filter_map(|measured| {
            let name = measured.column.name();
            let cost = results.figure(&row.name, &name).map(cost)?;
            Some((name, cost))
        });
        json!({
            "name": row.name,
            "operation": row.title,
            "costs": Map::from_iter(costs),
            "nested_to_shadow": results.nested_to_shadow(&row.name),
        })
    });
    json!({
        "machine": results.machine,
        "columns": columns.collect::<Vec<_>>(),
        "rows": rows.collect::<Vec<_>>(),
    })
}

fn cost(figure: &Figure) -> Value {
    json!({
        "operations": figure.operations,
        "host_cycles": figure.host_cycles,
        "counters": figure.counters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::results::tests::example;

    #[test]
    fn the_document_has_all_counters() {
        let document = document(&[example()], &Project::locate().unwrap());
        assert_eq!((&document["schema"], &document["kind"]), (&json!(SCHEMA), &json!("lab")));
        let row = &document["machines"][0]["rows"][0];
        assert_eq!(row["costs"]["nested"]["counters"]["walk_cycles"], 90.0);
        assert_eq!(
            (&row["costs"]["nested"]["host_cycles"], &row["costs"]["shadow"]["operations"]),
            (&json!(20.0), &json!(20))
        );
        assert_eq!(document["machines"][0]["rows"][1]["costs"], json!({}));
    }
}
