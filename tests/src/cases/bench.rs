//! `pal bench`: what it refuses. At length: every figure of `--smp` is there and is one; what the scheduler may cost; modelled cycles
//! of a lab machine; all goals.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "benchmark of several processors: one sample of each row", smp).at_length(),
    only("qemu-svm", "benchmark of several processors: what it refuses", refused),
    only("qemu-svm", "benchmark of the scheduler: decisions and switches keep their goals", scheduler)
        .at_length(),
    only("qemu-svm", "benchmark on a lab machine: walks of nested and of shadow tables", lab).at_length(),
    only("qemu-svm", "benchmark: all goals are met", goals).at_length(),
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

fn smp(context: &Context) -> Result<()> {
    let file = context.path("smp.json");
    context
        .pal(["bench", "--smp", "--quick", "--json", &file], None)?
        .status(0)?
        .has("samples\n")?
        .has("a page fault, 1 thread")?;
    let document: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let rows = document["rows"].as_array().context("no rows")?;
    let names: Vec<_> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    ensure!(names == ROWS, "rows {names:?}");
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

/// Everything is measured, and no goal is missed.
fn goals(context: &Context) -> Result<()> {
    let file = context.path("bench.json");
    let finished = context.pal(["bench", "--check", "--json", &file], None)?;
    let document: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let missed: Vec<_> =
        document["missed"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    ensure!(missed.is_empty(), "goals missed: {missed:?}");
    finished.status(0)?;
    let rows = document["rows"].as_array().context("no rows")?;
    // The first instruction is executed once, and a second of CPUID takes the emulator a minute.
    for row in rows.iter().filter(|row| row["name"] != "first-instruction" && row["name"] != "cpuid") {
        for column in ["native", "nested", "shadow"] {
            let mean = row["costs"][column]["over_second"].as_f64();
            ensure!(mean.is_some_and(|mean| mean > 0.0), "{column}: no mean over a second: {row:#}");
        }
    }
    Ok(())
}

/// A walk of nested tables has two dimensions, one of shadow tables has one: a chase beyond all TLBs shows it, on a machine whose
/// nested TLB holds less than the chase. A fork is the other way round, because shadow tables are written for each.
fn lab(context: &Context) -> Result<()> {
    let file = context.path("lab.json");
    let rows = ["chase-4k-64m", "fork-wait"];
    let options = ["--lab", "westmere-x5660", "--json", &file, "--only", rows[0], rows[1]];
    let finished = context.pal([&["bench"], &options[..]].concat(), None)?.status(0)?;
    finished.has("load, chased through 64 MiB, 4 KiB pages")?.has("nested/shadow\n")?;
    let document: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let count = |row: &str, column: &str, counter: &str| -> Result<f64> {
        let all = document["machines"][0]["rows"].as_array().into_iter().flatten();
        let row = all.clone().find(|each| each["name"] == row).with_context(|| format!("no {row}"))?;
        let count = row["costs"][column]["counters"][counter].as_f64();
        count.with_context(|| format!("no {counter} in {column}: {row:#}"))
    };
    let chase = |column, counter| count(rows[0], column, counter);
    let [native, nested, shadow] = ["native", "nested", "shadow"].map(|column| chase(column, "walk_cycles"));
    let (native, nested, shadow) = (native?, nested?, shadow?);
    ensure!(
        shadow > 1.0 && nested > 1.05 * shadow,
        "walk cycles of a load: nested {nested}, shadow {shadow}"
    );
    ensure!((shadow / native - 1.0).abs() < 0.2, "walk cycles of a load: shadow {shadow}, native {native}");
    // 16 384 pages, of which the TLBs hold 512: nearly each load walks.
    for column in ["native", "nested", "shadow"] {
        let walks = chase(column, "dtlb_misses")?;
        ensure!((0.8..1.1).contains(&walks), "{column}: {walks} walks for each load");
    }
    let [nested, shadow] = ["nested", "shadow"].map(|column| count(rows[1], column, "cycles"));
    let (nested, shadow) = (nested?, shadow?);
    ensure!(shadow > 1.05 * nested, "cycles of a fork: nested {nested}, shadow {shadow}");
    Ok(())
}

/// Options that make no sense together end before anything is built, with a word on what to do.
fn refused(context: &Context) -> Result<()> {
    let bench = |options: &[&str]| context.pal([&["bench"], options].concat(), None)?.status(2);
    bench(&["--smp", "--only", "cpuid"])?.says("ipi, ipi-x2apic, call")?;
    bench(&["--smp", "--machine", "bochs-vtx"])?.says("leave out --machine")?;
    bench(&["--smp", "--check"])?.says("--check")?;
    bench(&["--quick"])?.says("--smp")?;
    bench(&["--lab", "zen33"])?.says("cargo pal lab list")?;
    bench(&["--lab", "zen3", "--only", "chase-4k-3m"])?.says("such as chase-4k-256m")?;
    bench(&["--lab", "zen3", "--check"])?.says("--check")?;
    bench(&["--lab", "zen3", "--machine", "bochs-vtx"])?.says("leave out --machine")?;
    bench(&["--only", "chase-4k-256m"])?.says("no such row")?;
    Ok(())
}
