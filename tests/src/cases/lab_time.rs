//! Modelled time: no clock runs backwards.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, lab::FROM_SESSION, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "modelled time: no clock runs backwards, VCPUs that migrate", |c| backwards(c, "3")),
    only("qemu-svm", "modelled time: no clock runs backwards, two processors", |c| backwards(c, "2"))
        .at_length(),
    only("qemu-svm", "modelled time: refused, and without a lab machine", refused),
];

const MACHINE: &str = "westmere-x5660";

/// Three VCPUs on two PCPUs, so that they migrate, or two: all compare their clocks with what the one before has seen.
fn backwards(context: &Context, vcpus: &str) -> Result<()> {
    let put = format!("{}:/clock", context.clock.display());
    let lab = ["--lab", MACHINE, "--lab-model", "tlb", "--lab-time", "--pcpus", "2", "--vcpus", vcpus];
    let lab = [&lab[..], FROM_SESSION].concat();
    let command =
        format!("/clock warp {vcpus} 1500; dmesg | grep -i -E 'unstable|skew|warp'; cat /proc/uptime");
    let report = context.path("report.json");
    let run =
        context.run(&[&lab[..], &["--put", &put, "--lab-report", &report, "--exec", &command]].concat())?;
    let said = run.stdout();
    ensure!(said.contains(" backwards=0"), "{said}");
    for suspicion in ["unstable", "skew", "warps"] {
        ensure!(!said.contains(suspicion), "{suspicion}: {said}");
    }
    passed_in_step(&said, &report)
}

/// The guest's time is what the busiest of its processors was charged, also before its session began, when the others had little to do. A
/// processor's counter that stopped would leave the host's clock, which is much faster; so would times of both that add up.
fn passed_in_step(said: &str, report: &str) -> Result<()> {
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report)?)?;
    let mhz = report["mhz"].as_f64().context("no frequency")?;
    let uptime = said.lines().last().and_then(|line| line.split(' ').next()?.parse::<f64>().ok());
    let passed = uptime.with_context(|| format!("no time: {said}"))? * mhz * 1e6;
    let pcpus = report["pcpus"].as_array().into_iter().flatten().filter(|pcpu| pcpu["pcpu"].is_u64());
    let charged = |pcpu: &Value| -> f64 {
        let sides = ["host", "guest_nested", "guest_shadow"].iter();
        sides.filter_map(|side| pcpu[side]["cycles"].as_f64()).sum()
    };
    let shares: Vec<f64> = pcpus.map(|pcpu| charged(pcpu) / passed).collect();
    let most = shares.iter().copied().fold(0.0, f64::max);
    // The guest does not know how long it was loaded for.
    let fits = shares.len() == 2 && (0.7..1.5).contains(&most) && shares.iter().all(|share| *share > 0.1);
    ensure!(fits, "charged of the guest's time: {shares:?}");
    Ok(())
}

fn refused(context: &Context) -> Result<()> {
    context.run(&["--lab-time", "--exec", "true"])?.status(2)?.says("--lab NAME")?;
    let native = ["run", "--machine", "native", "--lab", MACHINE, "--lab-time", "--exec", "true"];
    context.pal(native, None)?.status(2)?.says("it is the hypervisor that keeps modelled time")?;
    // No counters: times would be taken for modelled ones.
    let plain = ["--hv-arg", "lab-time=on", "--exec", "true"];
    context.run(&plain)?.status(2)?.says("this is no lab machine")?;
    Ok(())
}
