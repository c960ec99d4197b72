//! Page replacement on traces: one is made, simulated, cut and refused.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::{Case, disks::kill_a_run, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("native", "replace: a trace is made, simulated, and refused when cut", simulates),
    only("qemu-svm", "replace: the pages of a guest, from a lab machine", recorded),
    only("qemu-svm", "replace: a trace whose run was killed is refused, and a disk of pages goes", killed),
];

/// Pages of the buffer that a guest fills, and how often.
const LOOP: (u64, u64) = (1024, 8);

/// A guest that fills one buffer several times: with less memory than that takes, LRU misses each of its pages each time.
fn recorded(context: &Context) -> Result<()> {
    let (trace, report, json) =
        (context.path("pages"), context.path("report.json"), context.path("pages.json"));
    let lab = ["--lab", "zen3", "--lab-model", "tlb", "--lab-from", "session"];
    let refused = ["--page-trace", &trace, "--lab", "zen3", "--lab-model", "count", "--exec", "true"];
    context.run(&refused)?.status(2)?.says("--lab-model count")?;
    let (pages, times) = LOOP;
    let command = format!("dd if=/dev/zero of=/dev/null bs={} count={times}", pages << 12);
    let samples = context.path("samples.jsonl");
    let files = ["--page-trace", &trace, "--lab-report", &report, "--samples", &samples, "--exec", &command];
    context.run(&[&lab[..], &files].concat())?.status(0)?.says(" accesses in ")?;
    let counted: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
    let references = counted["page_trace"]["references"].as_u64().context("no references")?;
    let accesses = counted["pcpus"][0]["guest_nested"]["accesses"].as_u64().context("no accesses")?;
    // Code is in the trace as well; accesses of devices are not.
    ensure!(references > accesses / 10 * 9, "{references} references, {accesses} accesses");
    let few = (pages * 3 / 4).to_string();
    let words = [
        "replace",
        "--trace",
        &trace,
        "--memory",
        &format!("{few},100%"),
        "--policy",
        "lru,opt",
        "--json",
        &json,
    ];
    context.pal(words, None)?.status(0)?.has("simulated")?;
    let document: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let results = document["results"].as_array().context("no results")?;
    let faults: Vec<u64> = results.iter().filter_map(|result| result["faults"].as_u64()).collect();
    let &[lru, lru_all, opt, opt_all] = &faults[..] else { bail!("{document}") };
    ensure!(lru > pages * times && opt < lru / 3 * 2, "{document}");
    ensure!(lru_all == opt_all && lru_all < pages * 8, "{document}");
    let page = context.path("page.html");
    context.pal(["report", &samples, "--miss-ratios", &json, "-o", &page], None)?.status(0)?;
    let html = fs::read_to_string(&page)?;
    ensure!(html.contains("id=\"misses\"") && html.contains("<th>opt</th>"), "no miss ratios in the report");
    context
        .pal(["report", &samples, "--miss-ratios", &report, "-o", &page], None)?
        .status(2)?
        .says("pal replace")?;
    Ok(())
}

fn killed(context: &Context) -> Result<()> {
    let trace = context.path("cut.trace");
    let busy = "echo begins; while :; do dd if=/dev/zero of=/dev/null bs=1M count=1; done 2> /dev/null";
    let lab = ["--lab", "zen3", "--lab-model", "tlb", "--lab-from", "session", "--page-trace", &trace];
    kill_a_run(context, &lab, busy, "begins")?;
    ensure!(fs::metadata(&trace)?.len() > 1000, "the trace has not begun");
    context.pal(["replace", "--trace", &trace], None)?.status(2)?.says("cut off after ")?;
    // A file of each run's own, which no later run takes for its own.
    let fill =
        "echo begins; n=0; while :; do n=$((n + 1)); head -c 60000000 /dev/urandom > /f$((n % 2)); done";
    let disk = ["--mem", "192", "--overcommit", "--resident", "48", "--page-disk", "64"];
    kill_a_run(context, &disk, fill, "begins")?;
    context.run(&[&disk[..], &["--exec", "echo again"]].concat())?.status(0)?.prints("again\n")?;
    Ok(())
}

fn simulates(context: &Context) -> Result<()> {
    let pal = |words: &[&str]| context.pal([&["replace"], words].concat(), None);
    pal(&[])?.status(0)?.has("water-nsquared")?.has("s3-fifo")?;
    let (trace, json, svg) = (context.path("lu.trace"), context.path("lu.json"), context.path("lu.svg"));
    let make = ["--generate", "lu-cb", "--scale", "0.25", "-o", &trace];
    pal(&make)?.status(0)?.says("checksum")?;
    let words = ["--trace", &trace, "--memory", "16,75%", "--json", &json, "--plot", &svg];
    pal(&words)?.status(0)?.has("simulated")?.has("apr")?;
    let document: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let results = document["results"].as_array().context("no results")?;
    ensure!(results.len() == 16, "{} results of 8 policies with 2 memories", results.len());
    let faults = |policy: &str| {
        let found = results.iter().find(|result| result["policy"] == policy && result["frames"] == 16);
        found.and_then(|result| result["faults"].as_u64()).with_context(|| format!("no {policy}"))
    };
    // A loop: OPT is the least, and APR is ahead of CLOCK.
    ensure!(faults("opt")? < faults("apr")? && faults("apr")? < faults("clock")?, "{document}");
    ensure!(fs::read_to_string(&svg)?.contains("</svg>"), "no drawing");
    let whole = fs::read(&trace)?;
    let cut = context.file("cut.trace", &whole[..whole.len() / 2])?;
    pal(&["--trace", &cut])?.status(2)?.says("cut off")?;
    let mut newer = whole;
    newer[8] = 9;
    let newer = context.file("newer.trace", &newer)?;
    pal(&["--trace", &newer])?.status(2)?.says("version 9")?;
    let text = context.file("pages.txt", "1\n2\nthree\n")?;
    pal(&["--trace", &text])?.status(2)?.says("line 3")?;
    pal(&["--trace", &trace, "--policy", "fifo"])?.status(2)?.says("s3-fifo")?;
    pal(&["--generate", "lu", "-o", &cut])?.status(2)?.says("lu-cb")?;
    context.pal(["reproduce", "apr-fig41", "--seeds", "2"], None)?.status(2)?.says("simulated")?;
    context.pal(["reproduce"], None)?.status(0)?.has("apr-fig43")?;
    Ok(())
}
