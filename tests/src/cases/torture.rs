//! Paging torture: page tables checked from inside the guest, in every mode of the hypervisor.
//!
//! The kit's cases are in `tests/kits/long-mode/src/torture`; here all of them are one run for each mode.

use anyhow::Result;

use super::{Case, only};
use crate::context::Context;

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

/// Guests without page tables end, and nothing else does.
fn dies(context: &Context, options: &[&str]) -> Result<()> {
    for case in ["dies.cr3-in-hole", "dies.cr3-on-apic"] {
        let finished = context.long_mode(case, options)?.status(3)?.has("kit: CR3\n")?.lacks("kit: lives")?;
        finished.says("the guest died")?.says("RIP")?;
    }
    Ok(())
}
