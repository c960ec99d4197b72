//! `pal bench --smp` in its short form: every figure is there and is one; and what the scheduler may cost.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "benchmark of several processors: one sample of some rows", |c| {
        smp(c, &["wake", "faults-1"])
    }),
    only("qemu-svm", "benchmark of several processors: one sample of each row", |c| smp(c, &[])).at_length(),
    only("qemu-svm", "benchmark of several processors: what it refuses", refused),
    only("qemu-svm", "benchmark of the scheduler: decisions and switches keep their goals", scheduler),
];

/// What has to be measured, natively and in both modes.
const ROWS: [&str; 13] = [
    "ipi",
    "ipi-x2apic",
    "call",
    "wake",
    "switch",
    "compute-1",
    "compute-2",
    "compute-3",
    "compute-4",
    "faults-1",
    "faults-2",
    "faults-3",
    "faults-4",
];

/// All rows, or only some.
fn smp(context: &Context, rows: &[&str]) -> Result<()> {
    let file = context.path("smp.json");
    let only = rows.iter().flat_map(|row| ["--only", row]);
    context
        .pal(["bench", "--smp", "--quick", "--json", &file].into_iter().chain(only), None)?
        .status(0)?
        .has("samples\n")?
        .has("a page fault, 1 thread")?;
    let expected = if rows.is_empty() { &ROWS[..] } else { rows };
    let document: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let rows = document["rows"].as_array().context("no rows")?;
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    ensure!(names == expected, "rows {names:?}");
    for row in rows {
        let name = &row["name"];
        let figure = |column: &str, path: &str| {
            let figure = row.pointer(&format!("/columns/{column}/{path}")).and_then(Value::as_f64);
            figure.with_context(|| format!("{name}: no {path} in {column}: {row:#}"))
        };
        for column in ["native", "nested", "shadow"] {
            // Nothing here takes less than some ten instructions or more than half a minute.
            let cost = figure(column, "cost/median")?;
            ensure!((10.0..1e11).contains(&cost), "{name}, {column}: {cost} ticks");
            ensure!(figure(column, "samples")? >= 1.0, "{name}, {column}: {row:#}");
            if row["threads"].is_u64() {
                ensure!(figure(column, "scaling/median")? > 0.0, "{name}, {column}: {row:#}");
            }
        }
        for column in ["nested", "shadow"] {
            let expected = figure(column, "cost/median")? / figure("native", "cost/median")?;
            let ratio = figure(column, "ratio/median")?;
            ensure!((ratio / expected - 1.0).abs() < 1e-9, "{name}, {column}: {ratio}, not {expected}");
        }
    }
    ensure!(document["missing"].as_array().is_some_and(Vec::is_empty), "missing: {}", document["missing"]);
    Ok(())
}

fn scheduler(context: &Context) -> Result<()> {
    let finished = context.pal(["bench", "--only", "scheduler", "--check"], None)?;
    finished.status(0)?.has("≤ 300  met")?.has("≤ 1 550  met")?;
    Ok(())
}

/// Options that make no sense together end before anything is built, with a word on what to do.
fn refused(context: &Context) -> Result<()> {
    let bench = |options: &[&str]| context.pal([&["bench"], options].concat(), None)?.status(2);
    bench(&["--smp", "--only", "cpuid"])?.says("ipi, ipi-x2apic, call")?;
    bench(&["--smp", "--machine", "bochs-vtx"])?.says("leave out --machine")?;
    bench(&["--smp", "--check"])?.says("--check")?;
    bench(&["--quick"])?.says("--smp")?;
    Ok(())
}
