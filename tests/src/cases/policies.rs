//! Policies that choose the engine while a guest runs: they change it, and say what they lack.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "policies: engines by turns on a lab machine", explores),
    only("qemu-svm", "policies: wrong parameters, and no counters", refused),
];

/// `dsp-sample` tries both engines all the time, on two VCPUs; `random` needs no counters, and changes
/// nothing but the engine.
fn explores(context: &Context) -> Result<()> {
    let samples = context.path("samples.jsonl");
    let lab =
        ["--lab", "zen3", "--policy", "dsp-sample,interval_ms=20,explore=2,exploit=3", "--samples", &samples];
    let several = ["--pcpus", "2", "--vcpus", "2", "--exec", "seq 9999 | md5sum"];
    let sum = "05fda6bec6aabc94d0fc54380ace8412";
    context.run(&[&lab[..], &several].concat())?.status(0)?.prints(&format!("{sum}  -\n"))?;
    let text = std::fs::read_to_string(&samples)?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let engines: Vec<&str> = lines.iter().filter_map(|line| line["engine"].as_str()).collect();
    let changes = engines.windows(2).filter(|pair| pair[0] != pair[1]).count();
    ensure!(changes >= 4, "{changes} changes of the engine in {} samples", engines.len());
    // Two changes in 40 ms would be too many for intervals of 20 ms.
    ensure!(changes < engines.len(), "{changes} changes of the engine in {} samples", engines.len());

    let stats = context.path("stats.json");
    let random =
        ["--policy", "random,interval_ms=10,seed=3", "--stats", &stats, "--exec", "seq 9999 | md5sum"];
    context.run(&random)?.status(0)?.prints(&format!("{sum}  -\n"))?;
    let stats: Value = serde_json::from_str(&std::fs::read_to_string(&stats)?)?;
    let paging = &stats["guests"][0]["paging"];
    ensure!(paging["mode"] == "random,seed=3,interval_ms=10", "{paging}");
    let count = paging["switches"]["to_shadow"].as_u64().with_context(|| paging.to_string())?;
    ensure!(count > 0, "never shadow tables: {paging}");
    Ok(())
}

fn refused(context: &Context) -> Result<()> {
    let mode = |mode: &'static str| ["--mode", mode, "--exec", "true"];
    context.run(&mode("dav2m,window=3"))?.status(2)?.says("the keys are factor_milli, window_inst")?;
    context.run(&mode("dav2m,window_inst=1"))?.status(2)?.says("a number from 1000 to")?;
    context.run(&mode("dav2m,window_trans=1000"))?.status(2)?.says("window_tmiss < window_trans")?;
    context.run(&mode("dav3m"))?.status(2)?.says("or a policy: random, threshold")?;
    context
        .run(&mode("dav2m"))?
        .status(0)?
        .says("dav2m compares instructions, cycles and misses of the TLB")?;
    Ok(())
}
