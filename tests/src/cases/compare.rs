//! Workloads, and policies compared on them.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case, only,
    person::{descendants, is_gone},
    remote::{Background, wait_until},
};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "compare: two static modes by a sweep, and again from the files", compares),
    only("qemu-svm", "compare: wrong names and files", refused),
    only("qemu-svm", "reproduce: a figure says what its cells say", reproduces),
    only("qemu-svm", "workload: a program of Debian's", program).at_length(),
    only("qemu-svm", "workload: programs of science", science).at_length(),
];

/// A workload that changes page tables takes shadow paging longer, and comes to the same. One cell is run alone, the other one and
/// the tables by a sweep, which goes on where the first ended. The last comparison finds both cells, and runs nothing.
fn compares(context: &Context) -> Result<()> {
    // No policy here looks at page faults.
    let what = ["compare", "--no-kit", "--workloads", "mmap-churn", "--scale", "0.005", "--policies"];
    let cells = ["--cells", &context.path("sweep/opteron-2350")];
    context
        .pal([&what[..], &["nested"], &cells].concat(), None)?
        .status(0)?
        .has("mmap-churn")?
        .has("+0.0 %")?;
    let made = |kind: &str| context.path(&format!("sweep/opteron-2350.{kind}"));
    let (json, html, csv) = (made("json"), made("html"), made("csv"));
    let files = ["--json", &json, "--html", &html, "--csv", &csv];
    let both = [&what[..], &["nested,shadow"], &cells, &files].concat();
    let kept = context.path("interrupted.json");
    let once_more = [&what[..], &["nested,shadow"], &cells, &["--json", &kept]].concat();
    interrupted(context, &once_more)?;
    if !sweeps(context)? {
        context.pal(both, None)?.status(0)?;
    }
    let text = std::fs::read_to_string(&json)?;
    let document: Value = serde_json::from_str(&text)?;
    let cell = |policy: &str| {
        let cells = document["cells"].as_array().into_iter().flatten();
        cells
            .clone()
            .find(|cell| cell["policy"] == policy)
            .with_context(|| format!("no {policy}: {document:#}"))
    };
    let (nested, shadow) = (cell("nested")?, cell("shadow")?);
    ensure!(nested["checksum"] == shadow["checksum"], "{} and {}", nested["checksum"], shadow["checksum"]);
    let table = document["table"].as_array().context("no table")?;
    let relative =
        table.iter().find(|row| row["policy"] == "shadow").and_then(|row| row["relative"].as_f64());
    ensure!(relative > Some(1.2), "shadow paging takes {relative:?} times as long");
    for (cell, idle) in [(nested, "shadow_cycles"), (shadow, "nested_cycles")] {
        ensure!(cell[idle] == 0 && cell["changes"] == 0, "the other engine was in force: {cell:#}");
        let modes = cell["timeline"]["modes"].as_array().map(Vec::len);
        ensure!(modes == Some(1), "{modes:?} stretches of one mode");
    }
    // The samples are of the work itself: each of its 256 pages faults on shadow tables, several times.
    let exits = |cell: &Value| -> f64 {
        let steps = cell["timeline"]["metrics"][1].as_array().into_iter().flatten();
        steps.filter_map(|step| Some((step[1].as_f64()? - step[0].as_f64()?) * step[2].as_f64()?)).sum()
    };
    let (nested, shadow) = (exits(nested), exits(shadow));
    ensure!(shadow > 1000.0 && nested < 500.0, "exits in the timelines: nested {nested}, shadow {shadow}");
    let page = std::fs::read_to_string(&html)?;
    ensure!(page.contains("<svg") && page.contains("mmap-churn"), "{page}");
    ensure!(std::fs::read_to_string(&csv)?.lines().count() == 3);

    let again = context.pal(once_more, None)?.status(0)?;
    again.says("2 of 2 cells are there already")?.has("+0.0 %")?.has("all workloads")?;
    let now: Value = serde_json::from_str(&std::fs::read_to_string(&kept)?)?;
    ensure!(now["cells"] == document["cells"], "the cells have changed");
    Ok(())
}

/// A comparison that is ended has none of its machines running; that its file can still be read, the next one shows.
fn interrupted(context: &Context, words: &[&str]) -> Result<()> {
    let mut run = Background::start(context, words, Stdio::null(), "interrupted.out")?;
    let is_machine = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        // Not one that is asked for its version.
        line.contains("qemu-system") && line.contains("-machine")
    };
    let mut started = Vec::new();
    let machine_runs = || {
        started = descendants(run.child.id());
        Ok(started.iter().any(is_machine))
    };
    wait_until(machine_runs, "a machine of the comparison")?;
    let pid = rustix::process::Pid::from_child(&run.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    run.ends(128 + 15)?;
    wait_until(|| Ok(started.iter().all(|pid| is_gone(*pid))), "the end of its machines")
}

/// The sweep says what it will run, runs it, and has nothing to do then. False: there is no Snakemake here, and no network.
fn sweeps(context: &Context) -> Result<bool> {
    let refused = |text: &str, why: &str| -> Result<()> {
        let file = context.file("wrong.yaml", text)?;
        context.pal(["sweep", &file, "-n"], None)?.status(1)?.has(why)?;
        Ok(())
    };
    let text = "machines: [opteron-2350]\nworkloads: [mmap-churn]\npolicies: [nested, shadow]\nscale: 0.005\n\
                no_kit: true\n";
    let file = context.file("sweep.yaml", text)?;
    let dry = || context.pal(["sweep", &file, "--dry-run"], None);
    let plan = dry()?;
    if plan.stderr.contains("fetching the sweep's packages") && std::env::var_os("CI").is_none() {
        println!("note   no sweep was run: Snakemake cannot be fetched (no network)");
        return Ok(false);
    }
    // The other one is there.
    plan.status(0)?.has("This was a dry-run")?.has("mmap-churn-shadow-1-")?.has("total        3")?;
    context.pal(["sweep", &file, "--jobs", "1"], None)?.status(0)?.says("3 of 3 steps (100%) done")?;
    dry()?.status(0)?.has("Nothing to be done")?;
    refused("workload: [gups]\n", "there is no key workload")?;
    Ok(true)
}

/// gzip comes to the same in both modes, and says of which package it is. With the guest kit its page faults are counted while
/// nested paging is used.
fn program(context: &Context) -> Result<()> {
    let samples = context.path("samples.jsonl");
    let run = |mode: &str| {
        let words = ["workload", "run", "gzip", "--scale", "0.005", "--deterministic", "--mode", mode];
        context.pal([&words[..], &["--kit", "--samples", &samples]].concat(), None)
    };
    let nested = run("nested")?;
    if nested.stderr.contains("cannot fetch the programs of workload gzip")
        && std::env::var_os("CI").is_none()
    {
        println!(
            "note   no program was run: Debian's package gzip cannot be fetched (no network, or no apt)"
        );
        return Ok(());
    }
    let nested = nested.status(0)?;
    let text = std::fs::read_to_string(&samples)?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let faults: u64 = lines.filter_map(|line| line["guest"]["page_faults"].as_u64()).sum();
    ensure!(faults > 100, "{faults} page faults of a guest that starts gzip");
    let shadow = run("shadow")?.status(0)?;
    let (one, other) = (checksum(&nested.stdout()), checksum(&shadow.stdout()));
    ensure!(one.is_some() && one == other, "{one:?} and {other:?}");
    // The program and the C library, by their versions.
    nested.has("workload  gzip, scale 0.005")?.has("gzip 1.")?.has("libc6 2.")?;
    Ok(())
}

/// The line of a run's output with its checksum.
fn checksum(text: &str) -> Option<String> {
    text.lines().find(|line| line.starts_with("checksum")).map(str::to_owned)
}

/// Scripts and programs with many libraries come to the same in both modes.
fn science(context: &Context) -> Result<()> {
    for (name, scale) in [("numpy", "0.125"), ("fftw", "0.25"), ("lammps", "0.1")] {
        let run = |mode| {
            let words = ["workload", "run", name, "--scale", scale, "--deterministic", "--mode", mode];
            context.pal(words.to_vec(), None)
        };
        let nested = run("nested")?;
        if nested.stderr.contains("cannot fetch the programs") && std::env::var_os("CI").is_none() {
            println!("note   {name} was not run: its packages cannot be fetched (no network, or no apt)");
            continue;
        }
        let nested = nested.status(0)?.stdout();
        let shadow = run("shadow")?.status(0)?.stdout();
        let (one, other) = (checksum(&nested), checksum(&shadow));
        ensure!(one.is_some() && one == other, "{name}: {one:?} and {other:?}");
    }
    Ok(())
}

fn refused(context: &Context) -> Result<()> {
    let pal = |words: &[&str]| context.pal(words.to_vec(), None);
    pal(&["compare", "--policies", "dav3m"])?.status(2)?.says("dav3m")?;
    pal(&["compare", "--workloads", "gup"])?.status(2)?.says("gups, chase")?;
    let other = context.file("other.json", "{}")?;
    pal(&["compare", "--json", &other])?.status(2)?.says("no comparison of policies")?;
    pal(&["reproduce", "dav2m-fig1"])?.status(2)?.says("dav2m-fig10, dav2m-fig11")?;
    pal(&["reproduce", "nothing"])?.status(2)?.says("dsp-cost")?.says("memory-table9")?;
    pal(&["reproduce"])?.status(0)?.has("dsp-fig7")?;
    pal(&["workload", "run", "gup"])?.status(2)?.says("no such workload")?;
    pal(&["workload", "run", "gups", "--exec", "true"])?.status(2)?.says("--exec")?;
    pal(&["workload", "list"])?.status(0)?.has("SPEC CPU")?.has("phases-fork")?;
    Ok(())
}

/// A figure of one small cell. Its words and its page have the numbers of the file, and another figure finds the cell there. Its
/// guest loads the guest kit.
fn reproduces(context: &Context) -> Result<()> {
    let (json, page) = (context.path("cells.json"), context.path("figure.md"));
    let small = ["--workloads", "mmap-churn", "--scale", "0.005", "--json", &json, "--output", &page];
    let words = |name: &'static str| [&["reproduce", name][..], &small].concat();
    let first = context.pal(words("dav2m-fig11"), None)?.status(0)?;
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    let cell = &document["cells"][0];
    let number = |key: &str| cell[key].as_u64().with_context(|| format!("no {key}: {cell:#}"));
    let (changes, nested, shadow) = (number("changes")?, number("nested_cycles")?, number("shadow_cycles")?);
    ensure!(nested + shadow > 1_000_000, "the guest took {nested} and {shadow} cycles");
    let shape = |holds| if holds { "holds" } else { "does not hold" };
    let ours = format!("mmap-churn {changes}");
    first.has(&format!("ours   {ours} (modelled)"))?.has(&format!("shape  {}", shape(changes <= 13)))?;
    let text = std::fs::read_to_string(&page)?;
    ensure!(
        text.contains(&format!("| {ours} | ")) && text.contains("cargo pal reproduce dav2m-fig11"),
        "{text}"
    );

    let second = context.pal(words("dav2m-fig12"), None)?.status(0)?;
    let second = second.says("1 of 1 cells are there already")?;
    let share = 100.0 * nested as f64 / (nested + shadow) as f64;
    second
        .has(&format!("nested: mmap-churn {share:.0} %"))?
        .has(&format!("shape  {}", shape(share >= 50.0)))?;
    Ok(())
}
