//! Modelled time: what programs of the guest measure is what the model has counted, and no clock runs backwards.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Case, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    only("qemu-svm", "modelled time: a chase takes what the model counts, twice the same", chases),
    only("qemu-svm", "modelled time: no clock runs backwards, two processors", backwards),
    only("qemu-svm", "modelled time: refused, and without a lab machine", refused),
];

const MACHINE: &str = "westmere-x5660";
/// Its clock.
const MHZ: u64 = 2800;
/// KiB of a chase that misses all TLBs, the nested ones, too.
const LARGE: u32 = 262_144;
/// Loads of each chase.
const LOADS: &str = "60000";

/// What one run leaves, to be compared with another one's.
struct Run {
    said: String,
    samples: String,
    stats: String,
}

impl Run {
    /// The number behind `key=` on the line of the chase through `kib`.
    fn of(&self, kib: u32, key: &str) -> Result<u64> {
        let line = self.said.lines().find(|line| line.starts_with(&format!("chase kib={kib} ")));
        let word =
            line.and_then(|line| line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('=')));
        word.and_then(|word| word.parse().ok())
            .with_context(|| format!("no {key} of {kib} KiB: {}", self.said))
    }
}

fn chase(context: &Context, name: &str, mode: &str) -> Result<Run> {
    let [stats, samples] = ["stats", "samples"].map(|file| context.path(&format!("{name}.{file}")));
    let put = format!("{}:/clock", context.clock.display());
    let command = format!(
        "/clock chase 16 {LOADS}; /clock chase 2048 {LOADS}; /clock chase {LARGE} {LOADS}; \
         cat /sys/devices/system/clocksource/clocksource0/current_clocksource; \
         dmesg | grep -i -E 'unstable|skew|warp'; sleep 0.3; cat /proc/uptime"
    );
    let lab = ["--lab", MACHINE, "--lab-time", "--deterministic", "--mem", "512", "--mode", mode];
    let files = ["--stats", &stats, "--samples", &samples, "--put", &put, "--exec", &command];
    let said = context.run(&[&lab[..], &files].concat())?.status(0)?.stdout();
    let [samples, stats] = [samples, stats].map(|path| fs::read_to_string(&path).with_context(|| path));
    Ok(Run { said, samples: samples?, stats: stats? })
}

/// The latencies of the description, as a program measures them; the same by `clock_gettime` and by RDTSC; as many cycles as the
/// samples have; more with nested tables than with shadow tables, where the TLB misses; and all of it again in a second run.
fn chases(context: &Context) -> Result<()> {
    let [nested, again, shadow] = [
        chase(context, "nested", "nested")?,
        chase(context, "again", "nested")?,
        chase(context, "shadow", "shadow")?,
    ];
    for run in [&nested, &shadow] {
        ensure!(run.said.lines().any(|line| line == "tsc"), "the clock source is another: {}", run.said);
        for suspicion in ["unstable", "skew", "warp"] {
            ensure!(!run.said.contains(suspicion), "{suspicion}: {}", run.said);
        }
        // Instructions alone; a TLB's second level with 7 cycles more; the last cache with 42 and a walk.
        for (kib, least, most) in [(16, 3_000, 5_000), (2048, 11_000, 20_000), (LARGE, 40_000, 400_000)] {
            let millicycles = run.of(kib, "millicycles")?;
            ensure!((least..=most).contains(&millicycles), "{kib} KiB: {millicycles} thousandths of a cycle");
            // Both clocks are one. Reading one after the other takes an exit more, spread over all loads.
            let by_nanos = run.of(kib, "ps")? * MHZ / 1000;
            ensure!(
                by_nanos.abs_diff(millicycles) < 200,
                "{kib} KiB: {by_nanos} by clock_gettime, {millicycles}"
            );
        }
        busy(&run.samples)?;
    }
    let [two, one] = [nested.of(LARGE, "ps")?, shadow.of(LARGE, "ps")?];
    ensure!(two > one + one / 20, "nested {two} ps, shadow {one} ps: a walk in two dimensions takes longer");
    ensure!(nested.said == again.said, "two runs say {} and {}", nested.said, again.said);
    ensure!(nested.samples == again.samples, "the samples of two runs differ");
    ensure!(nested.stats == again.stats, "the statistics of two runs differ");
    Ok(())
}

/// While the one VCPU never waits, the time that passes is the cycles that are counted for it and for the hypervisor.
fn busy(samples: &str) -> Result<()> {
    let (mut cycles, mut nanos) = (0, 0);
    for line in samples.lines() {
        let line: Value = serde_json::from_str(line)?;
        let (Some(span), Some(ran)) = (line["span_ns"].as_u64(), line["vcpus"][0]["ran_ns"].as_u64()) else {
            continue;
        };
        if line["t"] == "sample" && span > 5_000_000 && ran.abs_diff(span) < span / 100 {
            let side = |side: &str| line[side]["cycles"].as_u64().unwrap_or(0);
            cycles += side("guest") + side("host");
            nanos += span;
        }
    }
    let expected = nanos * MHZ / 1000;
    ensure!(nanos > 20_000_000, "only {nanos} ns of samples in which the VCPU never waits");
    ensure!(cycles.abs_diff(expected) < expected / 50, "{cycles} cycles in {nanos} ns; {expected} are due");
    Ok(())
}

/// Three VCPUs on two PCPUs, so that they migrate, and two: all compare their clocks with what the one before has seen.
fn backwards(context: &Context) -> Result<()> {
    let put = format!("{}:/clock", context.clock.display());
    for vcpus in ["2", "3"] {
        let lab = ["--lab", MACHINE, "--lab-model", "tlb", "--lab-time", "--pcpus", "2", "--vcpus", vcpus];
        let command = format!("/clock warp {vcpus} 1500; dmesg | grep -i -E 'unstable|skew|warp'");
        let run = context.run(&[&lab[..], &["--put", &put, "--exec", &command]].concat())?;
        let said = run.stdout();
        ensure!(said.contains(" backwards=0"), "{said}");
        for suspicion in ["unstable", "skew", "warps"] {
            ensure!(!said.contains(suspicion), "{suspicion}: {said}");
        }
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
