//! Policies that choose the engine while a guest runs: they change it, and say what they lack.

use std::env;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, lab::FROM_SESSION, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "policies: engines by turns on a lab machine", explores).at_length(),
    only("qemu-svm", "policies: wrong parameters, and no counters", refused),
    only("qemu-svm", "policies: a guest under a model that was trained from its log", trained),
    only("qemu-svm", "policies: a schedule from a file", scheduled),
    only("qemu-svm", "policies: a builder beside one that computes, each on its engine", neighbours),
    only("qemu-svm", "policies: a builder beside one that computes, and the static modes", faster)
        .at_length(),
];

/// `dsp-sample` tries both engines all the time, on two VCPUs.
fn explores(context: &Context) -> Result<()> {
    let samples = context.path("samples.jsonl");
    let lab = [
        "--lab",
        "zen3",
        "--policy",
        "dsp-sample,interval_ms=20,explore=2,exploit=3",
        "--samples",
        &samples,
        "--lab-model",
        "tlb",
    ];
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
    Ok(())
}

/// A log of random choices becomes a model and is judged; the model's file is what the hypervisor runs by.
fn trained(context: &Context) -> Result<()> {
    let (log, model, stats) =
        (context.path("log.jsonl"), context.path("model.toml"), context.path("stats.json"));
    let lab = ["--lab", "zen3", "--lab-model", "tlb", "--deterministic", "--exec", "seq 999 | md5sum"];
    let sum = "1b115938ca4b46b4411a2d8ef8b95e0e  -\n";
    let chance = ["--policy", "random,interval_ms=2", "--sample-ms", "2", "--samples", &log];
    context.run(&[&lab[..], &chance, &["--stats", &stats]].concat())?.status(0)?.prints(sum)?;
    let drawn: Value = serde_json::from_str(&std::fs::read_to_string(&stats)?)?;
    let paging = &drawn["guests"][0]["paging"];
    ensure!(paging["mode"] == "random,interval_ms=2", "{paging}");
    let count = paging["switches"]["to_shadow"].as_u64().with_context(|| paging.to_string())?;
    ensure!(count > 0, "never shadow tables: {paging}");
    let train = context.pal(["train", "dsp-offset", &log, "-o", &model], None)?;
    if env::var_os("CI").is_none() && train.stderr.contains("the trainer needs") {
        println!("note   nothing was trained: {}", train.stderr.trim());
        return Ok(());
    }
    train.status(0)?.has("phase 1: ")?.has("cross-validated gain")?;
    let policy = format!("dsp-offset,model={model}");
    let judged = context.pal(["evaluate", "--log", &log, "--policy", "nested", "--policy", &policy], None)?;
    judged.status(0)?.has("over shadow")?.has(&policy)?;
    let counted = ["--lab", "zen3", "--lab-model", "tlb", "--exec", "seq 999 | md5sum"];
    context
        .run(&[&counted[..], FROM_SESSION, &["--policy", &policy, "--stats", &stats]].concat())?
        .status(0)?
        .prints(sum)?;
    let stats: Value = serde_json::from_str(&std::fs::read_to_string(&stats)?)?;
    // The parameters of the file, which are integers and not the defaults.
    let text = std::fs::read_to_string(&model)?;
    let mode = stats["guests"][0]["paging"]["mode"].as_str().context("no mode")?;
    for key in ["faults", "misses", "bias"] {
        let line = text.lines().find(|line| line.starts_with(&format!("{key} = "))).context("a key")?;
        ensure!(
            mode.contains(&format!(",{}", line.replace(" = ", "="))) || line == "bias = 0",
            "{mode}, not {line}"
        );
    }
    ensure!(mode.starts_with("dsp-offset,") && mode.ends_with(",interval_ms=2"), "{mode}");

    // A file that was cut off is no model.
    let cut = context.file("cut.toml", &text[..text.find("bias = ").context("bias")?])?;
    let cut = format!("dsp-offset,model={cut}");
    context
        .run(&["--policy", &cut, "--exec", "true"])?
        .status(2)?
        .says("`bias` is missing: the file was cut off")?;
    Ok(())
}

/// `oracle` changes where its schedule says: at places in the guest's instructions, each within a period of samples. They are counted from
/// the guest's start; what is modelled from its session on is absent before.
fn scheduled(context: &Context) -> Result<()> {
    let (samples, changes) = (context.path("samples.jsonl"), [100_000_000, 200_000_000, 300_000_000]);
    let text = "version = 1\npolicy = \"oracle\"\nfirst = \"nested\"\nchanges = [100000, 200000, 300000]\n";
    let policy = format!("oracle,schedule={}", context.file("schedule.toml", text)?);
    let lab = ["--lab", "zen3", "--lab-model", "tlb", "--deterministic", "--policy", &policy];
    let run = ["--sample-ms", "2", "--samples", &samples, "--exec", "seq 999 | md5sum"];
    let sum = "1b115938ca4b46b4411a2d8ef8b95e0e  -\n";
    context.run(&[&lab[..], FROM_SESSION, &run].concat())?.status(0)?.prints(sum)?;
    let (mut done, mut found, mut before) = (0, Vec::new(), "nested".to_owned());
    let (mut counted, mut modelled) = (0, 0);
    // The first sample has no period before it: a policy sees what comes after.
    for line in
        std::fs::read_to_string(&samples)?.lines().skip_while(|line| !line.contains("\"sample\"")).skip(1)
    {
        let line: Value = serde_json::from_str(line)?;
        let Some(engine) = line["engine"].as_str() else { continue };
        let instructions = line["guest"]["instructions"].as_u64().with_context(|| line.to_string())?;
        if engine != before {
            found.push((done, instructions));
            engine.clone_into(&mut before);
        }
        done += instructions;
        let has = ["cycles", "dtlb_misses", "walks"].map(|key| line["guest"][key].is_u64());
        ensure!(has == [has[0]; 3] && (has[0] || modelled == 0), "{line}");
        if has[0] { modelled += 1 } else { counted += 1 }
    }
    ensure!(counted > 100 && modelled > 0, "{counted} samples before the session, {modelled} of it");
    ensure!(found.len() == changes.len(), "{found:?} of {done}");
    for ((place, period), due) in found.into_iter().zip(changes) {
        // Half a period early or late, and the engine of a sample is the one at its end.
        ensure!(place.abs_diff(due) <= 2 * period.max(4_000_000), "at {place}, not {due}");
    }
    let cut = context.file("cut.toml", &text[..text.len() - 9])?;
    context
        .run(&["--policy", &format!("oracle,schedule={cut}"), "--exec", "true"])?
        .status(2)?
        .says("not a model")?;
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

/// Agile paging's machine `commodity`, with times that fit short runs.
const BY_SPACE: &str = "agile,machine=commodity,start_ms=10,window_ms=5,retry_ms=20";

/// Two processes in one guest. One forks and executes others: all their address spaces are tried on shadow tables, and are nested
/// again. The one that reads at random stays shadow. Each decision for shadow tables changes the engine once; all other changes
/// are loads of CR3 that lead from one of the processes to the other.
fn neighbours(context: &Context) -> Result<()> {
    let stats = context.path("stats.json");
    let mode = "agile,machine=commodity,start_ms=5,window_ms=2,cost_milli=20,retry_ms=50";
    let run = [
        "workload",
        "run",
        "neighbours",
        "--scale",
        "0.1",
        "--mem",
        "384",
        "--deterministic",
        "--stats",
        &stats,
    ];
    context.pal([&run[..], &["--mode", mode]].concat(), None)?.status(0)?.has("checksum")?;
    let text: Value = serde_json::from_str(&std::fs::read_to_string(&stats)?)?;
    let paging = &text["guests"][0]["paging"];
    let count = |of: &str, name: &str| paging[of][name].as_u64().with_context(|| format!("{name}: {paging}"));
    let (known, shadow) = (count("spaces", "known_spaces")?, count("spaces", "shadow_spaces")?);
    ensure!(shadow >= 1 && known >= shadow + 3, "{shadow} of {known} address spaces are shadow: {paging}");
    ensure!(count("spaces", "spaces_to_nested")? >= 3, "those of the builder were not tried: {paging}");
    let (changes, decisions) = (count("switches", "to_shadow")?, count("spaces", "spaces_to_shadow")?);
    ensure!(changes >= decisions + 4, "{changes} changes to shadow tables, {decisions} decisions: {paging}");
    Ok(())
}

/// The same on a lab machine, where walks cost something: at most 1 % behind the better static mode.
fn faster(context: &Context) -> Result<()> {
    let json = context.path("cells.json");
    let policies = format!("nested,shadow,{BY_SPACE}");
    let what = ["compare", "--no-kit", "--workloads", "neighbours", "--scale", "0.5", "--json", &json];
    context.pal([&what[..], &["--policies", &policies]].concat(), None)?.status(0)?.has("neighbours")?;
    let document: Value = serde_json::from_str(&std::fs::read_to_string(&json)?)?;
    let table = document["table"].as_array().context("no table")?;
    let time = |policy: &str| {
        let row = table.iter().find(|row| row["policy"] == policy);
        row.and_then(|row| row["relative"].as_f64()).with_context(|| format!("no {policy}: {document:#}"))
    };
    let (worse, ours) = (time("nested")?.max(time("shadow")?), time(BY_SPACE)?);
    ensure!(worse > 1.2, "the worse static mode takes {worse} times the better one's time");
    ensure!(ours <= 1.01, "{ours} times the better static mode; the worse one takes {worse}");
    Ok(())
}
