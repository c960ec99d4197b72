//! Short forms of figures of the papers that have no other case.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case,
    boot::read_stats,
    only,
    regions::{QUICK_BOOT, small_caches},
};
use crate::context::Context;

pub const CASES: &[Case] =
    &[only("qemu-svm", "figures: a VM beside a noisy one, and one that is isolated, figure 38", isolated)];

/// A VM that pollutes caches of 256 KiB is pinned to the first of two. Of two programs of 192 KiB in VMs of their own one is pinned beside it,
/// without regions: nearly all of its accesses miss. To the other one `partition` gives the second cache: hardly one misses. The noisy VM
/// runs from before they do until after them.
fn isolated(context: &Context) -> Result<()> {
    let partition =
        "partition,q_us=100,period_ms=50,phase_ms=8,move_us=4,least_us=20,cache_kib=256,spaces=vm";
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
        let said = std::fs::read_to_string(format!("{logs}/{name}.log"))?;
        ensure!(said.contains(" right"), "{name}: {said}");
        let number = |key: &str| {
            let word = said.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            word.and_then(|word| word.parse::<u64>().ok()).with_context(|| format!("{key}: {said}"))
        };
        Ok(number("ns")? * 1000 / number("measured")?)
    };
    let (beside, apart) = (picoseconds("beside")?, picoseconds("apart")?);
    let text = std::fs::read_to_string(&samples)?;
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
