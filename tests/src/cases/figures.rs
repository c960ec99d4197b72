//! Short forms of figures of the papers that have no other case.

use std::{
    env,
    fs::{self, File},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{
    Case,
    boot::read_stats,
    only,
    regions::{QUICK_BOOT, SMALL_CACHE, memlat_ps, small_caches},
};
use crate::context::{Context, dies_with_this};

pub const CASES: &[Case] = &[
    only("native", "figures: the decay factor of APR, figure 43, its quick form", decays),
    only("qemu-svm", "figures: a VM beside a noisy one, and one that is isolated, figure 38", isolated),
    only("qemu-svm", "figures: working sets and histograms, figures 67 and 68, their quick forms", sizes)
        .at_length(),
    only("qemu-svm", "figures: what E-states save, figure 73, its quick form", saves).at_length(),
    only("qemu-svm", "figures: throughput by E-states, figure 72, its quick form", grows).at_length(),
    only(
        "qemu-svm",
        "figures: a server of Debian's with regions of the kernel's, two runs of figure 55",
        serves,
    )
    .at_length(),
];

/// A figure takes minutes on two processors that have nothing else to do, and several times as long on a busy machine.
const LONG: Duration = Duration::from_secs(3600);

/// What the quick form of a figure says, with these options, and how many of its claims hold and do not.
fn quick(context: &Context, name: &str, options: &[&str]) -> Result<(String, [usize; 2])> {
    let mut pal = Command::new(&context.pal);
    pal.args(["reproduce", name, "--quick"]).args(options);
    let said = context.wait_for(pal, LONG)?.status(0)?.stdout();
    let count = |what: &str| said.lines().filter(|line| *line == format!("shape  {what}")).count();
    let claims = [count("holds"), count("does not hold")];
    Ok((said, claims))
}

/// Simulated, with the sizes of memory of the quick form: the same in each run.
fn decays(context: &Context) -> Result<()> {
    let (said, claims) = quick(context, "apr-fig43", &["--scale", "1"])?;
    ensure!(claims == [3, 0] && said.contains("(simulated)"), "{said}");
    Ok(())
}

/// One run is both.
fn sizes(context: &Context) -> Result<()> {
    let json = context.path("memory.json");
    for name in ["memory-fig67", "memory-fig68"] {
        let (said, claims) = quick(context, name, &["--json", &json])?;
        ensure!(claims == [1, 0] && said.contains("(modelled)"), "{name}: {said}");
    }
    let kept: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    ensure!(kept["points"].as_array().map(Vec::len) == Some(1), "{kept}");
    Ok(())
}

fn saves(context: &Context) -> Result<()> {
    let (said, claims) = quick(context, "memory-fig73", &["--json", &context.path("memory.json")])?;
    ensure!(claims == [1, 0] && said.contains("(modelled)"), "{said}");
    Ok(())
}

/// 4.3 times the throughput and 5.25 are missed here (docs/results/memory-fig72.md); three times are not, and on nested tables no state
/// has less than the one with less memory.
fn grows(context: &Context) -> Result<()> {
    let (said, claims) = quick(context, "memory-fig72", &["--json", &context.path("memory.json")])?;
    ensure!(claims[0] + claims[1] == 4 && said.contains("(modelled)"), "{said}");
    let of_states: Vec<&str> =
        said.lines().filter(|line| line.contains(" cycles of a lookup at E7, ")).collect();
    let times = |line: &&str| {
        let (_, rest) = line.split_once(" at E0, ")?;
        rest.split_once(" times the throughput")?.0.parse::<f64>().ok()
    };
    let times: Vec<f64> = of_states.iter().filter_map(times).collect();
    ensure!(times.len() == 2 && times.iter().all(|times| *times >= 3.0), "{times:?}: {said}");
    ensure!(of_states[0].contains("nested, ") && of_states[0].contains("no step takes more"), "{said}");
    Ok(())
}

/// Redis without regions, and with one for the slab caches of file systems and networks: the first two of the quick form's runs, after which
/// it is ended. They are kept.
fn serves(context: &Context) -> Result<()> {
    let json = context.path("web.json");
    let mut pal = Command::new(&context.pal);
    pal.args(["reproduce", "region-web", "--quick", "--workloads", "redis", "--yes", "--json", &json]);
    let errors = context.path("errors");
    dies_with_this(&mut pal);
    let mut run = pal.stdout(Stdio::null()).stderr(File::create(&errors)?).spawn()?;
    let said = || fs::read_to_string(&errors).unwrap_or_default();
    let deadline = Instant::now() + LONG;
    while !said().contains("pal: 2 of 12: ") && run.try_wait()?.is_none() && Instant::now() < deadline {
        sleep(Duration::from_millis(200));
    }
    let _it_may_have_ended = kill_process(Pid::from_child(&run), Signal::TERM);
    let status = run.wait()?.code();
    if said().contains("cannot fetch the programs of ") && env::var_os("CI").is_none() {
        println!("note   no server was run: packages of Debian's cannot be fetched (no network, or no apt)");
        return Ok(());
    }
    ensure!(status == Some(128 + 15), "{status:?}: {}", said());
    let kept: Value = serde_json::from_str(&fs::read_to_string(&json)?)?;
    let points = kept["points"].as_array().context("no points")?;
    let [off, set] = &points[..] else { bail!("not two runs: {kept}") };
    let count = |point: &Value, key: &str| point[key].as_u64().unwrap_or(0);
    ensure!(off["regions"] == "off" && set["regions"] == "fs-net-core" && off["frames"] == 0, "{kept}");
    // The kernel's objects are in the region, each slab by a call, most of them before the part that is measured.
    ensure!(count(set, "frames") > 500 && count(set, "all_calls") > 200 + 10 * count(set, "calls"), "{kept}");
    // What is goal and what is missed: docs/results/region-web.md. One run each differs by more than the medians there.
    let [base, gain] = [off, set].map(|point| count(point, "requests") as f64 / count(point, "ns") as f64);
    ensure!(count(off, "requests") > 2000 && gain > 0.85 * base, "{kept}");
    Ok(())
}

/// A VM that pollutes caches of 256 KiB is pinned to the first of two. Of two programs of 192 KiB in VMs of their own one is pinned beside it,
/// without regions: nearly all of its accesses miss. To the other one `partition` gives the second cache: hardly one misses. The noisy VM
/// runs from before they do until after them.
fn isolated(context: &Context) -> Result<()> {
    let partition = &format!("partition,{SMALL_CACHE},spaces=vm");
    let vm = |name: &str, regions: &str, pinned: &str, exec: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nmemory_mib = 96\nregions = \"{regions}\"\n{pinned}put = [\"{}:/memlat\"]\n\
             append = \"{QUICK_BOOT}\"\nexec = \"{exec}\"\n",
            context.memlat.display()
        )
    };
    let (pinned, quiet) = ("affinity = [0, 1]\n", "sleep 0.1; /memlat chase 96 16384 120 20");
    let vms = [
        vm("noisy", partition, pinned, "/memlat pollute 280 400"),
        vm("beside", "off", pinned, quiet),
        vm("apart", partition, "", quiet),
    ];
    let config = context.file("vms.toml", format!("version = 1\n{}", vms.concat()))?;
    let [stats, samples, logs] = ["stats.json", "samples.jsonl", "logs"].map(|name| context.path(name));
    let lab = small_caches(context)?;
    let machine = ["--lab", &lab, "--lab-from", "session", "--lab-time", "--lab-check", "off"];
    let records = ["--samples", &samples, "--stats", &stats, "--log-dir", &logs];
    let guests = ["--config", &config, "--pcpus", "4,sockets=2"];
    context.run(&[&machine[..], &guests, &records].concat())?.status(0)?;
    // Those that ended first come first.
    let stats = read_stats(&stats)?;
    ensure!(stats["guests"][2]["vm"] == "noisy", "the noisy VM has not ended last: {stats}");
    let picoseconds = |name: &str| {
        let said = fs::read_to_string(format!("{logs}/{name}.log"))?;
        ensure!(said.contains(" right"), "{name}: {said}");
        memlat_ps(&said)
    };
    let (beside, apart) = (picoseconds("beside")?, picoseconds("apart")?);
    let text = fs::read_to_string(&samples)?;
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_it: Vec<_> = lines.filter(|line| line["t"] == "regions" && line["vm"] == "apart").collect();
    let frames = [0, 1].map(|cache| -> u64 {
        of_it.iter().filter_map(|line| line["caches"][cache]["frames"].as_u64()).sum()
    });
    ensure!(frames[0] < frames[1], "samples have seen {frames:?} frames of `apart` mapped to the caches");
    ensure!(
        2 * apart < beside,
        "an access takes {beside} ps beside a noisy VM, and {apart} on a cache of its own"
    );
    Ok(())
}
