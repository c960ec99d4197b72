//! The long-mode kit: what the architecture manuals say about the machine, seen from inside a guest; and guests that die.
//!
//! The kit's own cases are in `tests/kits/long-mode/src/cases`; here each group of them is one run.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    thread::sleep,
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::boot::{read_stats, start_unread};
use super::{Case, SHADOW, both, hypervisor, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("manuals: CPUID", |c| group(c, "cpuid", &[])).also(SHADOW),
    both("manuals: MSRs", |c| group(c, "msr", &[])).also(SHADOW),
    only("qemu-svm", "manuals: MSRs, permissive", permissive),
    only("qemu-svm", "manuals: without x2APIC", without_x2apic).also(SHADOW),
    only("qemu-svm", "manuals: without SYSENTER", |c| group(c, "msr.hidden", &["--without", "sep"]))
        .also(SHADOW),
    both("manuals: control registers", |c| group(c, "control", &[])).also(SHADOW),
    both("manuals: debugging", |c| group(c, "debug", &[])).also(SHADOW),
    both("manuals: interrupts", |c| group(c, "interrupts", &[])).also(SHADOW),
    both("manuals: IPIs and NMIs", |c| group(c, "ipi", &[])).also(SHADOW),
    both("manuals: timers", timers).also(SHADOW),
    both("manuals: I/O APIC", |c| group(c, "ioapic", &[])).also(SHADOW),
    both("manuals: PIC", |c| group(c, "pic", &[])).also(SHADOW),
    both("manuals: test device", |c| group(c, "testdev", &[])).also(SHADOW),
    only("qemu-svm", "cost of control registers", cost_of_control_registers).also(SHADOW),
    both("manuals: INS and OUTS", |c| group(c, "strings", &[])).also(SHADOW),
    both("manuals: instructions on devices", |c| group(c, "mmio", &[])).also(SHADOW),
    both("manuals: delivery of exceptions", |c| group(c, "delivery", &[])).also(SHADOW),
    both("manuals: task switches", |c| group(c, "tasks", &[])).also(SHADOW),
    both("manuals: instructions of absent features", |c| group(c, "svm", &[])).also(SHADOW),
    only("qemu-svm", "no guest writes back the host's caches", write_back).also(SHADOW),
    both("manuals: memory beyond RAM", |c| group(c, "memory", &[])).also(SHADOW),
    both("manuals: timers and interrupts in deterministic time", deterministic).more(SHADOW),
    both("a double fault that cannot be delivered", triple_fault).also(SHADOW),
    only("qemu-svm", "an injected exception that cannot be delivered", injected_triple_fault).also(SHADOW),
    only("qemu-svm", "HLT with interrupts disabled", halted).also(SHADOW),
    only("qemu-svm", "a jump to a device", jump_to_device).also(SHADOW),
    only("qemu-svm", "a stack where there is no memory", stack_in_hole).also(SHADOW),
    only("qemu-svm", "an instruction on a device that is not emulated", unknown_instruction).also(SHADOW),
    hypervisor("a slow reader gets a quarter of a megabyte of output", slow_reader).more(SHADOW),
    both("megabytes to a port", flood_port),
    only("qemu-svm", "an interrupt storm ends with the time limit", storm),
];

/// How many mistakes of QEMU's emulation a case may meet (docs/qemu.md): as many as are known. Torture meets
/// some at each of many steps, and judges each.
const KNOWN: &[(&str, u32)] = &[
    ("msr.canonical", 7),
    ("control.cr0", 3),
    ("control.cr8", 1),
    ("debug.step-sti", 1),
    ("debug.general-detect", 3),
    ("debug.int1", 1),
    ("delivery.int-n", 1),
    ("delivery.gate-absent", 2),
    ("delivery.gate-wrong", 2),
    ("delivery.double-fault", 1),
    ("delivery.injected-double-fault", 1),
    ("delivery.interrupt-gate-absent", 1),
    ("delivery.resume-flag", 2),
    ("delivery.alignment", 1),
    ("delivery.page-faults", 2),
    ("tasks.gates", 1),
    ("tasks.trap", 3),
];

/// Looks at the line of a case that has met such mistakes.
fn is_known(line: &str) -> bool {
    let Some((name, met)) = line.strip_prefix("known ").and_then(|line| line.split_once(": ")) else {
        return true;
    };
    let met = met.split(' ').next().and_then(|met| met.parse::<u32>().ok());
    let known = KNOWN.iter().find(|(known, _)| *known == name).map(|(_, known)| *known);
    name.starts_with("torture.") || met.zip(known).is_some_and(|(met, known)| met <= known)
}

/// Runs the cases of a group; none may fail, nor be skipped on the hypervisor without a reason that is known here.
pub fn group(context: &Context, cases: &str, options: &[&str]) -> Result<()> {
    let finished = context.long_mode(cases, options)?.has(", 0 failed")?.lacks("FAIL")?.status(0)?;
    let known = "skip control.cr3-reserved";
    let output = finished.stdout();
    let skipped = output.lines().find(|line| line.starts_with("skip") && !line.starts_with(known));
    ensure!(!context.nested() || skipped.is_none(), "not for this machine? {skipped:?}");
    let more = output.lines().find(|line| !context.on_bochs() && !is_known(line));
    ensure!(more.is_none(), "more mistakes of the emulation than are known: {more:?}");
    Ok(())
}

/// WBINVD and WBNOINVD exit: what follows them on the host's processor would be every guest's delay.
pub fn write_back(context: &Context) -> Result<()> {
    let path = context.path("stats.json");
    group(context, "svm.write-back", &["--stats", &path])?;
    let stats = read_stats(&path)?;
    ensure!(exits(&stats, "other") >= 1000, "WBINVD did not exit: {stats}");
    Ok(())
}

/// How many exits of a kind the first guest had.
pub fn exits(stats: &Value, kind: &str) -> u64 {
    let all = stats["guests"][0]["exits"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter().filter(|exit| exit["reason"] == kind).filter_map(|exit| exit["count"].as_u64()).sum()
}

/// A processor with the older local APIC only, and other features hidden: what the kit finds is what it goes by.
fn without_x2apic(context: &Context) -> Result<()> {
    let words =
        "msr.apic msr.x2apic ipi.nmi interrupts.priority timers.one cpuid.features cpuid.follows-state";
    let finished =
        context.long_mode(words, &["--without", "x2apic,tsc_deadline_timer", "--without", "avx"])?;
    finished.has(", 0 failed")?.lacks("FAIL")?.has("skip msr.x2apic-registers")?.status(0)?;
    Ok(())
}

/// The most instructions that an access to a control register may take, the hypervisor's included. A toggle is two writes.
/// The second figure is that on shadow tables.
const CONTROL_COSTS: &[(&str, u64, u64)] = &[
    ("toggle-ts", 10, 10),
    ("clts", 10, 10),
    ("read-cr0", 10, 150),
    ("smsw", 10, 160),
    ("toggle-em", 10, 330),
    ("toggle-wp", 10, 600),
    ("toggle-pge", 380, 400),
    ("smsw-without-wp", 10, 160),
    ("clts-without-wp", 10, 165),
    ("toggle-ts-without-wp", 10, 330),
];

fn cost_of_control_registers(context: &Context) -> Result<()> {
    let finished = context.long_mode("measure.control", &["--icount"])?.status(0)?;
    for (name, nested, shadow) in CONTROL_COSTS {
        let most = if context.mode == Some("shadow") { shadow } else { nested };
        let line = finished.stdout().lines().find_map(|line| {
            line.strip_prefix("control ")?.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok()
        });
        ensure!(line.is_some_and(|took| took <= *most), "{name} took {line:?}, of {most} at most");
    }
    Ok(())
}

fn permissive(context: &Context) -> Result<()> {
    group(context, "msr.unknown permissive", &["--permissive-msr"])
}

/// In real time a busy machine brings interrupts late, so that a time may not lie within its tolerance; then the group runs
/// again, six times at most. Whatever else fails is no matter of time and fails at once. That times are right is
/// for [`deterministic`] to show.
fn timers(context: &Context) -> Result<()> {
    for _ in 0..5 {
        let finished = context.long_mode("timers", &[])?.has("kit: 12 cases, ")?;
        let output = finished.stdout();
        let failures: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("FAIL ")).collect();
        if failures.is_empty() {
            break;
        }
        let other = failures.iter().flat_map(|line| line.split("; ")).find(|text| !text.contains(" within "));
        ensure!(other.is_none(), "no matter of time: {failures:?}");
    }
    group(context, "timers", &[])
}

/// Nothing is late here: each time is measured once, and must be right. The RTC is left out, because QEMU's own follows
/// the wall clock.
fn deterministic(context: &Context) -> Result<()> {
    group(
        context,
        "exact timers.one timers.periodic timers.masked timers.deadline timers.divide timers.pit timers.hpet timers.pm interrupts.sti interrupts.priority ipi.nmi",
        &["--icount"],
    )
}

fn triple_fault(context: &Context) -> Result<()> {
    let finished = context.long_mode("dies.triple-fault", &[])?.status(3)?.says("triple fault")?;
    finished.says("RIP")?.says("1122334455667788")?;
    Ok(())
}

fn injected_triple_fault(context: &Context) -> Result<()> {
    context.long_mode("dies.triple-fault-injected", &[])?.status(3)?.says("triple fault")?;
    Ok(())
}

fn halted(context: &Context) -> Result<()> {
    let finished = context.long_mode("dies.halted", &[])?.status(3)?.has("kit: halt\n")?;
    finished.says("HLT with interrupts disabled")?.soon()?;
    Ok(())
}

fn jump_to_device(context: &Context) -> Result<()> {
    context.long_mode("dies.jump-to-device", &[])?.status(3)?.says("jumped to guest-physical 0xfee00000")?;
    Ok(())
}

fn stack_in_hole(context: &Context) -> Result<()> {
    context.long_mode("dies.stack-in-hole", &[])?.status(3)?.says("0xd0000ff8, which is not RAM")?;
    Ok(())
}

fn unknown_instruction(context: &Context) -> Result<()> {
    context.long_mode("dies.unknown-instruction", &[])?.status(3)?.says("cannot emulate the instruction")?;
    Ok(())
}

/// All that the kit writes comes, although nothing reads for a while, in which everything between here and the guest fills up.
fn slow_reader(context: &Context) -> Result<()> {
    let (mut child, reader) = start_unread(context, context.long_mode_options("dies.flood", &[]))?;
    let mut reader = BufReader::new(reader);
    let mut output = String::new();
    reader.read_line(&mut output)?;
    sleep(Duration::from_secs(4));
    reader.read_to_string(&mut output)?;
    let status = child.wait()?;
    let whole =
        output.lines().filter(|line| line.len() == 63 && line.bytes().all(|b| b == line.as_bytes()[0]));
    let whole = whole.count();
    ensure!(status.success() && whole == 4096, "{status}, {whole} whole lines of 4096");
    ensure!(output.contains("kit: flooded"), "it does not say that it is done");
    Ok(())
}

fn flood_port(context: &Context) -> Result<()> {
    context.long_mode("dies.port-flood", &[])?.status(0)?.has("kit: flooded")?;
    Ok(())
}

fn storm(context: &Context) -> Result<()> {
    let run = |limit: &[&str]| context.long_mode("dies.interrupt-storm", limit);
    context.until_limit(6, run, |said| said.contains("kit: storm"))?;
    Ok(())
}
