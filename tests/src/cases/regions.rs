//! Regions that the hypervisor finds by itself, in unmodified guests.

use anyhow::{Result, ensure};

use super::{Case, boot::read_stats, only};
use crate::context::Context;

pub const CASES: &[Case] =
    &[only("qemu-svm", "regions: those of a program are found and mapped to two caches", found)];

/// A policy for an emulated machine: its exits take as long as a thousand accesses, so that times are longer than on a processor. The
/// program's regions of 48 pages each fit one cache of 54 alone, and both only together.
const UNIFY: &str =
    "unify,q_us=11000,period_ms=1500,phase_ms=900,least_us=1000,most_us=1000000,cache_kib=216";

/// Two regions of a program, on a machine of two packages with a processor each, without a word about them. The program finds its
/// memory as it left it.
fn found(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    let put = format!("{}:/memlat", context.memlat.display());
    let machine = [
        "--pcpus",
        "2,sockets=2",
        "--regions",
        UNIFY,
        "--stats",
        &path,
        "--put",
        &put,
        "--exec",
        "/memlat 48 15000 300",
    ];
    let run = context.run(&machine)?.status(0)?;
    run.says(", right")?;
    let stats = read_stats(&path)?;
    let regions = &stats["guests"][0]["paging"]["regions"];
    let count = |key: &str| regions[key].as_u64().unwrap_or(0);
    ensure!(count("rounds") >= 2 && count("region_merges") >= 90, "{regions}");
    ensure!(count("rounds_spread") >= 1 && count("regions_placed") >= 2, "{regions}");
    // Where the machine is shared, visits are long, and rounds are few in which the conditions hold.
    ensure!(count("region_moves") >= 2 && count("moves") >= 2, "{regions}");
    ensure!(count("access_samples") >= 10, "{regions}");
    Ok(())
}
