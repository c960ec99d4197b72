//! Paging torture: page tables checked from inside the guest, in every mode of the hypervisor.
//!
//! The kit's cases are in `tests/kits/long-mode/src/torture`; here all of them are one run for each mode.

use anyhow::Result;
use serde_json::Value;

use super::{
    Case, SHADOW,
    boot::{at_least, read_stats},
    only,
    tiers::rotate,
};
use crate::context::Context;

/// Agile paging that changes tables often.
const AGILE: &str = "agile,window_ms=20,timeout_ms=20,start_ms=5";
/// Phases as often as can be, for regions of any size that are used for any time.
const REGIONS: &str = "q_us=1000,period_ms=10,phase_ms=3,least_us=0,cache_kib=64";

/// Cases for each mode: what follows the comma are more words for the kit.
macro_rules! cases {
    ($($mode:literal, $words:literal;)*) => {
        pub const CASES: &[Case] = &[
            only("native", "torture: page tables", |c| torture(c, "", &[])),
            only("native", "torture: CR3 outside of memory", |c| dies(c, &[])),
            $(
                only("qemu-svm", concat!("torture: page tables, ", $mode), |c| torture(c, $words, &["--mode", $mode])),
                only("qemu-svm", concat!("torture: CR3 outside of memory, ", $mode), |c| dies(c, &["--mode", $mode])),
            )*
            only("qemu-svm", "torture: page tables in regions on two packages", regions)
                .also(SHADOW)
                .more(&["switch=7", "switch=100"]),
            only("qemu-svm", "torture: page tables while pages move to fast memory", tiers)
                .also(SHADOW)
                .more(&["switch=7", AGILE]),
        ];
    };
}

cases! {
    "nested", "";
    "shadow", "";
    "switch=1", "exits thin=4";
    "switch=7", "exits thin=4";
    "switch=100", "exits thin=4";
    "agile,window_ms=20,timeout_ms=20,start_ms=5", "thin=2";
    "agile,machine=commodity,start_ms=2,window_ms=1,cost_milli=1,retry_ms=3", "exits thin=4";
    "switch=7,engines=all", "exits thin=4";
}

fn torture(context: &Context, words: &str, options: &[&str]) -> Result<()> {
    let words = format!("torture {words}");
    context.long_mode(&words, options)?.has(", 0 failed")?.lacks("FAIL")?.status(0)?;
    Ok(())
}

/// A part of it, with exits and so with timers of the hypervisor's; what the statistics then say of the guest's memory. On shadow tables
/// the same takes longer.
fn paging(context: &Context, options: &[&str]) -> Result<Value> {
    let words = if context.mode.is_none() { "exits thin=2" } else { "exits thin=8" };
    let path = context.path("stats.json");
    torture(context, words, &[options, &["--stats", &path]].concat())?;
    Ok(read_stats(&path)?["guests"][0]["paging"].clone())
}

/// Memory is closed in phases, and mostly in what the balancer maps to the other cache. The kit takes two seconds or more, and a phase is
/// due every 10 ms: in ten runs there were 15 to 74 rounds, with 735 to 2200 touches of closed memory. How many regions are found among
/// accesses at random depends on the machine's speed: once one, and that is right, too.
fn regions(context: &Context) -> Result<()> {
    // A policy for each kind of tables.
    let policy = if context.mode == Some("shadow") { "partition" } else { "balance" };
    let policy = format!("{policy},{REGIONS}");
    let paging = paging(context, &["--pcpus", "2,sockets=2", "--regions", &policy])?;
    at_least(&paging["regions"], &[("rounds", 3), ("touches", 100)])
}

/// All pages that are accessed move, at the highest rate, for the second or two that this runs for.
fn tiers(context: &Context) -> Result<()> {
    let fast = ["--nested-page", "4K", "--fast-mem", "1", "--fast-policy", "rotate"];
    let tiers = &paging(context, &fast)?["tiers"];
    // Here it is 80 or more.
    rotate(tiers, 40)
}

/// Guests without page tables end, and nothing else does.
fn dies(context: &Context, options: &[&str]) -> Result<()> {
    for case in ["dies.cr3-in-hole", "dies.cr3-on-apic"] {
        let finished = context.long_mode(case, options)?.status(3)?.has("kit: CR3\n")?.lacks("kit: lives")?;
        finished.says("the guest died")?.says("RIP")?;
    }
    Ok(())
}
