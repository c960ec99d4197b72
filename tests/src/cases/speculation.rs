//! Mitigations of speculative execution: what the hardware report says about a processor, and what guests get.
//!
//! QEMU's emulation does not speculate, and the hypervisor knows it by its signature. With the signature hidden
//! (`tcg-cpuid=off`) it looks like the processor that it imitates, and with `x-force-features=on` QEMU's CPUID has what its
//! description of a processor has and its emulation lacks: the MSRs in question are accepted, and do nothing. No guest runs
//! without the signature, because the hypervisor needs to know the emulation for that.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::boot::read_stats;
use super::{Case, only};
use crate::context::{BOCHS_TIMEOUT, Context, Finished};

pub const CASES: &[Case] = &[
    only("qemu-svm", "speculation: the report says what is needed, what is on, and why", reports),
    only("qemu-svm", "speculation: a guest has the MSRs that CPUID offers", offered),
    only("qemu-svm", "speculation: what mitigations=off saves where nothing is needed", cost),
    only("bochs-vtx", "speculation: mitigations by command line and description", described),
];

/// The weaknesses in the report's order, and the lines of it that follow.
const BRANCHES: &str = "\n  branch target injection (Spectre v2): ";
const L1TF: &str = "\n  L1 terminal fault: ";
const MDS: &str = "\n  data sampling (MDS, TAA): ";
const MULTIHIT: &str = "\n  iTLB multihit: ";

const OFF: &str = "needed, but off (mitigations=off)\n";
const OTHER_PROCESSOR: &str = "nothing needed (not this processor)\n";

fn probe(context: &Context, processor: &str, words: &[&str]) -> Result<Finished> {
    let processor = format!("--qemu-arg={processor}");
    context.run(&[&["--probe", "--qemu-arg=-cpu", &processor], words].concat())?.status(0)
}

fn says(report: Finished, lines: [(&str, &str); 4]) -> Result<()> {
    let all: String = lines.iter().map(|(name, state)| format!("{name}{}", state.trim_end())).collect();
    report.has(&format!("\nspeculation:{all}\n"))?;
    Ok(())
}

fn reports(context: &Context) -> Result<()> {
    const NO_SPECULATION: &str = "nothing needed (an emulation that does not speculate)\n";
    const BARRIER: &str = "on: IBPB when a processor changes VMs\n";
    const NO_BARRIER: &str = "needed, but there is no IBPB; update the firmware or the microcode\n";
    const HIDDEN: &str = "EPYC,+svm,+npt,tcg-cpuid=off";
    const HIDDEN_IBPB: &str = "EPYC-IBPB,+svm,+npt,-xsavec,-xsaves,tcg-cpuid=off,x-force-features=on";
    let off = ["--hv-arg", "mitigations=off"];
    let amd = |branches| {
        [(BRANCHES, branches), (L1TF, OTHER_PROCESSOR), (MDS, OTHER_PROCESSOR), (MULTIHIT, OTHER_PROCESSOR)]
    };
    says(
        probe(context, "EPYC,+svm,+npt", &[])?,
        [BRANCHES, L1TF, MDS, MULTIHIT].map(|it| (it, NO_SPECULATION)),
    )?;
    says(probe(context, HIDDEN, &[])?, amd(NO_BARRIER))?;
    says(probe(context, HIDDEN, &off)?, amd(OFF))?;
    says(probe(context, HIDDEN_IBPB, &[])?, amd(BARRIER))?;
    says(probe(context, HIDDEN_IBPB, &off)?, amd(OFF))?;
    // The last word counts.
    says(probe(context, HIDDEN_IBPB, &[&off[..], &["--hv-arg", "mitigations=auto"]].concat())?, amd(BARRIER))
}

/// What CPUID has, a guest can use, whether the processor needs it or not; what it has not, raises #GP.
fn offered(context: &Context) -> Result<()> {
    const NONE: &str = "EPYC,+svm,+npt";
    // The emulation does not do what these promise to the hypervisor.
    const SOME: &str = "EPYC-IBPB,+svm,+npt,-nrip-save,-xsavec,-xsaves,x-force-features=on";
    let all = format!("{SOME},+amd-stibp,+amd-ssbd,+spec-ctrl");
    for (processor, options, found) in [
        (NONE, &[][..], "spec_ctrl=0x0 pred_cmd=false flush_cmd=false arch=false virt=false\n"),
        (SOME, &[], "spec_ctrl=0x0 pred_cmd=true flush_cmd=false arch=false virt=false\n"),
        (&all, &[], "spec_ctrl=0x7 pred_cmd=true flush_cmd=false arch=false virt=true\n"),
        // The guest protects itself as it likes.
        (
            &all,
            &["--hv-arg", "mitigations=off"],
            "spec_ctrl=0x7 pred_cmd=true flush_cmd=false arch=false virt=true\n",
        ),
        (
            &all,
            &["--without", "amd_ssbd,spec_ctrl"],
            "spec_ctrl=0x2 pred_cmd=true flush_cmd=false arch=false virt=false\n",
        ),
    ] {
        let processor = format!("--qemu-arg={processor}");
        let finished = context
            .long_mode("msr.speculation", &[&["--qemu-arg=-cpu", &processor], options].concat())
            .and_then(|finished| finished.status(0)?.has(", 0 failed")?.has(&format!("speculation {found}")));
        finished.with_context(|| processor)?;
    }
    Ok(())
}

/// A CPUID exit takes the same instructions, wherever the mitigations are turned off.
fn cost(context: &Context) -> Result<()> {
    fs::copy(&context.long_mode, context.path("kit"))?;
    let description = |mitigations: &str| {
        let vm = "name = \"kit\"\nkernel = \"kit\"\nmemory_mib = 32\ntest_device = true\ncmdline = \"tcg measure.cpuid\"";
        context.file(
            &format!("{mitigations}.toml"),
            format!("version = 1\n[[vm]]\n{vm}\nmitigations = \"{mitigations}\"\n"),
        )
    };
    let (auto, off) = (description("auto")?, description("off")?);
    let mut costs = Vec::new();
    for (config, word) in
        [(&auto, "mitigations=auto"), (&auto, "mitigations=off"), (&off, "mitigations=auto")]
    {
        let finished = context.run(&["--config", config, "--icount", "--hv-arg", word])?.status(0)?;
        let cost = finished
            .stdout()
            .lines()
            .find_map(|line| line.strip_prefix("cpuid ")?.trim().parse::<u64>().ok());
        costs.push(cost.context("no figure")?);
    }
    ensure!(
        costs[0] <= 140 && costs.iter().all(|cost| *cost == costs[0]),
        "instructions of an exit: {costs:?}"
    );
    Ok(())
}

/// Bochs' processor does not speculate either, but the hypervisor cannot know that: it looks like one that leaks by everything.
/// What is off for a guest alone is seen in its tables, whose leaves are large then.
fn described(context: &Context) -> Result<()> {
    let auto = ["--probe", "--hv-arg", "mitigations=auto"];
    let missing = |what: &str| format!("needed, but {what}; update the firmware or the microcode\n");
    let (branches, cache, buffers) = (
        missing("there is no IBPB"),
        missing("there is no FLUSH_CMD"),
        missing("VERW does not clear buffers (no MD_CLEAR)"),
    );
    let on =
        [(BRANCHES, &*branches), (L1TF, &cache), (MDS, &buffers), (MULTIHIT, "on: nested leaves of 4 KiB\n")];
    says(context.run(&auto)?.status(0)?, on)?;
    says(context.run(&["--probe"])?.status(0)?, [BRANCHES, L1TF, MDS, MULTIHIT].map(|it| (it, OFF)))?;

    fs::copy(&context.kit, context.path("kit"))?;
    let vm = |name: &str, more: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nkernel = \"kit\"\nmemory_mib = 32\ncmdline = \"read=0x1000000\"\n{more}\n"
        )
    };
    let guests = vm("stranger", "") + &vm("trusted", "mitigations = \"off\"");
    let config = context.file("lab.toml", format!("version = 1\n{guests}"))?;
    let path = context.path("stats.json");
    let options = ["--config", &config, "--stats", &path, "--hv-arg", "mitigations=auto"];
    context.run(&[&options[..], &["--timeout", BOCHS_TIMEOUT]].concat())?.status(0)?;
    let stats = read_stats(&path)?;
    let guests = stats["guests"].as_array().context("no guests")?;
    let frames = |name: &str| {
        let guest = guests.iter().find(|guest| guest["vm"] == name)?;
        guest["paging"]["nested_table_frames"].as_u64()
    };
    let (small, large) = (frames("stranger").context("no figure")?, frames("trusted").context("no figure")?);
    // A table for each 2 MiB.
    ensure!(small > large, "frames of tables with small leaves and with large ones: {small}, {large}");
    Ok(())
}
