//! Memory in tiers: hot pages of a guest move to fast memory, and the guest does not see it.

use anyhow::{Result, ensure};

use super::{Case, boot::read_stats, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "tiers: hot pages move, nested", |c| moves(c, "nested")),
    only("qemu-svm", "tiers: hot pages move, shadow", |c| moves(c, "shadow")),
    only("qemu-svm", "tiers: what cannot be is named", mistakes),
];

/// A program that writes all over its memory finds all of it as it left it, while half of that moves. Small leaves, because the pages of a
/// large one are known apart only after two seconds more.
fn moves(context: &Context, mode: &str) -> Result<()> {
    let path = context.path("stats.json");
    let put = format!("{}:/memlat", context.memlat.display());
    let machine = [
        "--mode",
        mode,
        "--nested-page",
        "4K",
        "--fast-mem",
        "4",
        "--stats",
        &path,
        "--put",
        &put,
        "--exec",
        "/memlat latency 8 3200",
    ];
    context.run(&machine)?.status(0)?.has(", right")?;
    let tiers = read_stats(&path)?["guests"][0]["paging"]["tiers"].clone();
    let count = |key: &str| tiers[key].as_u64().unwrap_or(0);
    ensure!(count("moved_in") >= 500 && count("fast_frames") >= 500, "{tiers}");
    ensure!(count("fast_frames") <= count("fast_share") && count("fast_share") == 1024, "{tiers}");
    ensure!(count("moved_in") == count("moved_out") + count("fast_frames"), "{tiers}");
    Ok(())
}

/// Ranges that overlap or are no memory end the machine before a guest starts; so does a guest that asks for more than there is.
fn mistakes(context: &Context) -> Result<()> {
    let refused = |arguments: &[&str], why: &str| {
        let more = ["--exec", "true"];
        context.run(&[arguments, &more].concat())?.status(2)?.says(why)?;
        anyhow::Ok(())
    };
    refused(&["--fast-mem", "64@100000"], "memory")?;
    refused(&["--fast-mem", "16", "--hv-arg", "fast-mem=8@40"], "overlap")?;
    refused(&["--fast-mem", "16", "--overcommit"], "--overcommit")
}
