//! The JSON file: all cells, which a later comparison finds there, and the table.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    cell::Cell,
    results::{Overall, Row},
};
use crate::status::Usage;

/// Version of the schema.
const SCHEMA: u64 = 1;

/// A cell that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// Its workload.
    pub workload: String,
    /// Its policy.
    pub policy: String,
    /// Its seed.
    pub seed: u32,
    /// Why.
    pub why: String,
}

/// The cells of a file; none if there is no file or nothing in it.
///
/// # Errors
/// [`Usage`]: it cannot be read, or is something else.
pub fn read(path: &Path) -> Result<Vec<Cell>, Usage> {
    let wrong = |why: String| Usage::new(format!("{}: {why}", path.display()));
    let text = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(error.to_string())),
        Ok(text) => text,
    };
    if text.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let what = "this is no comparison of policies; choose another place, or remove it";
    let document: Value = serde_json::from_slice(&text).map_err(|_| wrong(what.into()))?;
    match document["schema"].as_u64() {
        Some(SCHEMA) if document["t"] == "compare" => {}
        Some(version) if document["t"] == "compare" => {
            return Err(wrong(format!(
                "its schema is version {version}, and this pal writes {SCHEMA}; choose another place"
            )));
        }
        _ => return Err(wrong(what.into())),
    }
    serde_json::from_value(document["cells"].clone())
        .map_err(|error| wrong(format!("a cell is damaged: {error}; remove the file")))
}

/// The document. `about`: what is the same for all cells.
pub fn document(
    about: &Value,
    cells: &[Cell],
    failed: &[Failed],
    rows: &[Row],
    overall: &[Overall],
) -> Value {
    let table = rows.iter().map(|row| {
        json!({ "workload": row.workload, "policy": row.policy, "cycles": row.median.cycles(), "relative": row.relative,
            "changes": row.median.changes, "shadow_share": row.median.shadow_share(), "seeds": row.seeds, "spread": row.spread })
    });
    let overall = overall.iter().map(|it| json!({ "policy": it.policy, "mean": it.mean, "worst": it.worst.0, "worst_workload": it.worst.1 }));
    let failed = failed
        .iter()
        .map(|it| json!({ "workload": it.workload, "policy": it.policy, "seed": it.seed, "why": it.why }));
    json!({
        "t": "compare",
        "schema": SCHEMA,
        "about": about,
        "table": table.collect::<Vec<_>>(),
        "overall": overall.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
        "cells": cells,
    })
}

/// Writes a file in one step: an interrupt leaves the old one.
///
/// # Errors
/// No space, no permission.
pub fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wrong = || format!("cannot write {}", path.display());
    let file = tempfile::NamedTempFile::new_in(parent).with_context(wrong)?;
    fs::write(file.path(), contents).with_context(wrong)?;
    // Temporary files are for one's own eyes; the result is a file as any other.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(file.path(), mode).with_context(wrong)?;
    file.persist(path).map(drop).map_err(|error| error.error).with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::results::{overall, rows, tests::example};

    #[test]
    fn cells_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        assert_eq!(read(&path).unwrap(), []);
        let (cells, workloads, policies) = example();
        let rows = rows(&cells, &workloads, &policies);
        let failed = [Failed { workload: "a".into(), policy: "b".into(), seed: 1, why: "c".into() }];
        let document = document(
            &json!({ "lab": "zen3" }),
            &cells,
            &failed,
            &rows,
            &overall(&rows, &workloads, &policies),
        );
        assert_eq!(
            (&document["failed"][0]["why"], document["table"].as_array().unwrap().len()),
            (&json!("c"), 5)
        );
        write(&path, document.to_string().as_bytes()).unwrap();
        assert_eq!(read(&path).unwrap(), cells);
        assert!(write(Path::new("/no/such/dir/x"), b"").is_err());
    }

    #[test]
    fn other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        for (text, why) in [
            ("hello", "no comparison"),
            ("{}", "no comparison"),
            ("{\"t\":\"compare\",\"schema\":2}", "version 2"),
            ("{\"t\":\"compare\",\"schema\":1,\"cells\":[{}]}", "damaged"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path).err().unwrap().to_string();
            assert!(error.contains(why) && error.contains("c.json"), "{error}");
        }
        fs::write(&path, "\n").unwrap();
        assert_eq!(read(&path).unwrap(), []);
        assert!(read(dir.path()).is_err());
    }
}
