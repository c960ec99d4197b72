//! Regions that the hypervisor finds by itself, in unmodified guests.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Case, boot::read_stats, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "regions: those of a program are found", |c| found(c).map(drop)),
    // Whether the conditions for it hold in a round depends on how long visits take: on a busy machine in about one of three runs they
    // never do.
    only("qemu-svm", "regions: those of a program are mapped to two caches", spread).at_length(),
];

/// A policy for an emulated machine: its exits take as long as a thousand accesses, so that times are longer than on a processor. The
/// program's regions of 48 pages each fit one cache of 54 alone, and both only together.
const UNIFY: &str =
    "unify,q_us=11000,period_ms=1500,phase_ms=900,least_us=1000,most_us=1000000,cache_kib=216";

/// Two regions of a program, on a machine of two packages with a processor each, without a word about them. The program finds its
/// memory as it left it.
fn found(context: &Context) -> Result<Value> {
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
    context.run(&machine)?.status(0)?.has(", right")?;
    let regions = read_stats(&path)?["guests"][0]["paging"]["regions"].clone();
    let count = |key: &str| regions[key].as_u64().unwrap_or(0);
    ensure!(count("rounds") >= 2 && count("region_merges") >= 90, "{regions}");
    ensure!(count("access_samples") >= 10, "{regions}");
    Ok(regions)
}

/// In a round at least the regions are spread, and the VCPU goes from one to the other.
fn spread(context: &Context) -> Result<()> {
    let regions = found(context)?;
    let least = [("rounds_spread", 1), ("regions_placed", 2), ("region_moves", 2), ("moves", 2)];
    let few = least.iter().find(|(key, least)| regions[*key].as_u64().unwrap_or(0) < *least);
    ensure!(few.is_none(), "{few:?}: {regions}");
    Ok(())
}
