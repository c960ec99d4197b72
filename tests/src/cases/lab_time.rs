//! Modelled time: no clock runs backwards.

use anyhow::{Result, ensure};

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
    let command = format!("/clock warp {vcpus} 1500; dmesg | grep -i -E 'unstable|skew|warp'");
    let run = context.run(&[&lab[..], &["--put", &put, "--exec", &command]].concat())?;
    let said = run.stdout();
    ensure!(said.contains(" backwards=0"), "{said}");
    for suspicion in ["unstable", "skew", "warps"] {
        ensure!(!said.contains(suspicion), "{suspicion}: {said}");
    }
    Ok(())
}

fn refused(context: &Context) -> Result<()> {
    context.run(&["--lab-time", "--exec", "true"])?.status(2)?.says("--lab NAME")?;
    let native = ["run", "--machine", "native", "--lab", MACHINE, "--lab-time", "--exec", "true"];
    context.pal(native, None)?.status(2)?.says("it is the hypervisor that keeps modelled time")?;
    // No counters: the plain clock, and the log says so once.
    let plain = ["--hv-arg", "lab-time=on", "--exec", "sleep 0.2; echo it runs"];
    let run = context.run(&plain)?.status(0)?.prints("it runs\n")?;
    let told = run.stderr.matches("time follows the processor's clock").count();
    ensure!(told == 1, "told {told} times: {}", run.stderr);
    Ok(())
}
