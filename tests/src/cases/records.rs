//! Samples and traces: they agree with the statistics, and their files can be read whatever happened.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, only, report};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "samples: agree with the statistics, two processors", agree),
    only("qemu-svm", "samples: refused and full files", files),
    only("bochs-vtx", "samples: by the serial port", serial).at_length(),
];

/// The lines of a file of samples.
pub fn lines(path: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("no {path}"))?;
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// The sum of a number over the samples of a VM.
pub fn sum(lines: &[Value], vm: &str, value: impl Fn(&Value) -> &Value) -> u64 {
    let samples = lines.iter().filter(|line| line["t"] == "sample" && line["vm"] == vm);
    samples.filter_map(|line| value(line).as_u64()).sum()
}

/// What the samples add up to is what the statistics say at the end.
fn compare(path: &str, stats: &str) -> Result<Vec<Value>> {
    let lines = lines(path)?;
    let stats: Value = serde_json::from_str(&std::fs::read_to_string(stats)?)?;
    ensure!(
        lines[0]["t"] == "run" && lines.last().is_some_and(|line| line["t"] == "end"),
        "no begin or no end"
    );
    for reason in ["cpuid", "io", "page_fault", "nested_fault", "wrmsr", "hlt"] {
        let sampled = sum(&lines, "guest", |line| &line["exits"][reason]);
        let vcpus = stats["guests"].as_array().into_iter().flatten();
        let exits = vcpus.flat_map(|vcpu| vcpu["exits"].as_array().into_iter().flatten());
        let counted = exits.filter(|exit| exit["reason"] == reason.replace('_', "-").as_str());
        let counted: u64 = counted.filter_map(|exit| exit["count"].as_u64()).sum();
        ensure!(sampled == counted, "{reason}: {sampled} in samples, {counted} in statistics");
    }
    Ok(lines)
}

fn agree(context: &Context) -> Result<()> {
    let [samples, stats, trace] = ["s.jsonl", "stats.json", "t.json"].map(|name| context.path(name));
    let machine = ["--pcpus", "2", "--vcpus", "2", "--mode", "switch=300"];
    let files = ["--samples", &samples, "--stats", &stats, "--trace", &trace];
    let command = ["--exec", "(seq 40000 | md5sum) & seq 40000 | md5sum; wait"];
    context.run(&[&machine[..], &files, &command].concat())?.status(0)?;
    let lines = compare(&samples, &stats)?;
    let end = lines.last().context("empty")?;
    ensure!(end["dropped"] == 0 && end["dropped_events"] == 0, "dropped: {end}");
    for engine in ["nested", "shadow"] {
        ensure!(lines.iter().any(|line| line["engine"] == engine), "the mode was never {engine}");
    }
    let ran = |vcpu: usize| sum(&lines, "guest", |line| &line["vcpus"][vcpu]["ran_ns"]);
    let time =
        lines.iter().filter(|line| line["t"] == "sample").filter_map(|line| line["time_ns"].as_u64()).max();
    ensure!(ran(0) > 0 && ran(1) > 0 && Some(ran(0)) < time, "times: {} and {} of {time:?}", ran(0), ran(1));
    let times: Vec<_> = lines.iter().filter_map(|line| line["machine_ns"].as_u64()).collect();
    ensure!(times.len() > 20, "{} samples only", times.len());
    // Each exit is an event.
    let events: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&trace)?)?;
    let of = |cat: &str| events.iter().filter(|event| event["cat"] == cat).count() as u64;
    let exits: u64 = lines
        .iter()
        .flat_map(|line| line["exits"].as_object().into_iter().flatten())
        .filter_map(|(_, count)| count.as_u64())
        .sum();
    ensure!(of("exit") == exits, "{} events for {exits} exits", of("exit"));
    // PCPUs have the same numbers in both, which are the scheduler's: the machine's first one runs no guests here.
    let pcpus = |of: &mut dyn Iterator<Item = &Value>| of.filter_map(Value::as_u64).collect::<BTreeSet<_>>();
    let traced = pcpus(&mut events.iter().filter(|event| event["cat"] == "run").map(|event| &event["tid"]));
    let sampled = lines.iter().flat_map(|line| line["pcpus"].as_array().into_iter().flatten());
    let sampled = pcpus(&mut sampled.map(|pcpu| &pcpu["pcpu"]));
    ensure!(
        traced == sampled && sampled == [0, 1].into(),
        "PCPUs {traced:?} in the trace, {sampled:?} in samples"
    );
    let exits_on =
        pcpus(&mut events.iter().filter(|event| event["cat"] == "exit").map(|event| &event["args"]["pcpu"]));
    ensure!(exits_on == sampled, "exits on PCPUs {exits_on:?}");
    ensure!(of("mode") > 0 && of("run") > 0, "{} changes of the mode, {} runs", of("mode"), of("run"));
    report::check(context, &samples)
}

fn files(context: &Context) -> Result<()> {
    let killed = context.path("killed.jsonl");
    let nowhere = ["--samples", "/no/such/directory/s", "--exec", "true"];
    context.run(&nowhere)?.status(2)?.says("/no/such/directory/s")?;
    context
        .pal(["run", "--machine", "native", "--samples", &killed, "--exec", "true"], None)?
        .status(2)?
        .says("hypervisor")?;
    // A device that is always full: the run goes on, and says so.
    context
        .run(&["--samples", "/dev/full", "--exec", "echo on"])?
        .status(0)?
        .prints("on\n")?
        .says("/dev/full: No space")?;
    // QEMU is killed in the middle: what came before is whole.
    let samples = killed;
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *pal-records*) ;; *) exec qemu-system-x86_64 \"$@\" ;; esac\n\
         qemu-system-x86_64 \"$@\" & qemu=$!\n\
         for _ in $(seq 3000); do [ \"$(wc -l < {samples})\" -gt 20 ] && break; sleep 0.1; done\nkill -9 $qemu; wait $qemu\n"
    );
    let qemu = context.file("qemu", script)?;
    std::fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let ended = context.run(&["--qemu", &qemu, "--samples", &samples, "--exec", "while :; do :; done"])?;
    ended.status(4)?.says("QEMU")?;
    let lines = lines(&samples)?;
    ensure!(lines.len() > 20 && lines.last().is_some_and(|line| line["t"] == "end"), "{} lines", lines.len());
    Ok(())
}

fn serial(context: &Context) -> Result<()> {
    let [samples, stats] = ["s.jsonl", "stats.json"].map(|name| context.path(name));
    let options = ["--sample-ms", "500", "--samples", &samples, "--stats", &stats, "--exec", "sleep 2"];
    context.run(&options)?.status(0)?;
    let lines = compare(&samples, &stats)?;
    ensure!(lines.len() > 5, "{} lines only", lines.len());
    Ok(())
}
