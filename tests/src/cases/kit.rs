//! The multiboot1 kit: the loader, the test device, devices at their ports, and guests that die.

use anyhow::Result;

use super::{Case, SHADOW, both, hypervisor, only};
use crate::context::Context;

pub const CASES: &[Case] = &[
    both("multiboot1 kernel with modules and a command line", modules).also(SHADOW),
    both("power-off by ACPI", power_off).also(SHADOW),
    both("test device: exit values", exit_values).also(SHADOW),
    both("test device: latch", latch),
    both("test device: interrupt lines", interrupts).also(SHADOW),
    only("qemu-svm", "test device: unmapped page", unmap).also(SHADOW),
    both("port 0xf4 without the test device", no_test_device),
    both("what a BIOS leaves", firmware).also(SHADOW),
    both("timer ticks", ticks).also(SHADOW),
    both("exceptions stay in the guest", exceptions).also(SHADOW),
    both("ROM keeps its contents", rom).also(SHADOW),
    both("real mode and back", real_mode).also(SHADOW),
    both("console input to a kernel that polls", echo).also(SHADOW),
    both("triple fault", triple_fault).also(SHADOW),
    hypervisor("reset by the keyboard controller", reset),
    hypervisor("reset by port 0xcf9", reset_cf9).also(SHADOW),
    both("a kernel that halts for good", halt).also(SHADOW),
    hypervisor("a spinning kernel ends with the time limit", spin),
    hypervisor("a kernel that floods the console ends with the time limit", flood).more(SHADOW),
    only("qemu-svm", "holes in memory read as ones", open_bus).also(SHADOW),
    only("qemu-svm", "a jump to a hole", hole).also(SHADOW),
    only("qemu-svm", "unknown MSRs fault unless permitted", msr).also(SHADOW),
    only("qemu-svm", "the smallest memory", least_memory).also(SHADOW),
];

fn modules(context: &Context) -> Result<()> {
    let first = context.file("first", "12345\n")?;
    let second = context.file("second", "")?;
    let with_words = format!("{first} some words");
    let finished = context.kit("print=hello", &["--module", &with_words, "--module", &second])?.status(0)?;
    finished
        .has("kit: magic 2badb002")?
        .has("kit: modules 2\n")?
        .has("kit: module 0 size 6 aligned 1 sum 56760637 line ")?
        .has(" some words\n")?
        .has("kit: module 1 size 0 ")?
        .has("kit: hello\n")?
        .has("kit: done\n")?;
    Ok(())
}

/// An interrupt, an exception, CPUID, a port and segments in real mode.
fn real_mode(context: &Context) -> Result<()> {
    context.kit("real ud", &[])?.status(0)?.has("kit: real mode 1111\n")?.has("kit: ud2 1\n")?;
    Ok(())
}

fn power_off(context: &Context) -> Result<()> {
    context.kit("", &[])?.status(0)?.has("kit: done\n")?.lacks("cannot power off")?;
    Ok(())
}

fn exit_values(context: &Context) -> Result<()> {
    for (word, status) in [("exit=0", 0), ("exit=42", 42), ("exit16=33", 33), ("exit32=127", 127)] {
        context.kit(word, &["--test-device"])?.status(status)?.lacks("kit: done")?;
    }
    Ok(())
}

fn latch(context: &Context) -> Result<()> {
    context.kit("latch", &["--test-device"])?.status(0)?.has("kit: latch 5a 1234 deadbeef\n")?;
    Ok(())
}

fn interrupts(context: &Context) -> Result<()> {
    let finished = context.kit("irq=5 irq=11 irq=12 irq=5", &["--test-device"])?.status(0)?;
    finished.has("irq 5 came 1\nkit: irq 11 came 1\nkit: irq 12 came 1\nkit: irq 5 came 1\n")?;
    Ok(())
}

fn unmap(context: &Context) -> Result<()> {
    let finished = context.kit("unmap=0x800000 read=0x800000", &["--test-device"])?;
    finished.has("kit: [800000] = ffffffff\n")?.status(0)?;
    Ok(())
}

/// QEMU's BIOS and boot loader are the example.
fn firmware(context: &Context) -> Result<()> {
    let finished = context.kit("firmware real", &[])?.status(0)?;
    finished
        .has("kit: firmware leaves masks 8eb8 timer 34 and counts 3 ticks\n")?
        .has("kit: real mode 1111\n")?;
    Ok(())
}

fn no_test_device(context: &Context) -> Result<()> {
    context.kit("exit=42", &[])?.status(0)?.has("kit: done\n")?;
    Ok(())
}

fn ticks(context: &Context) -> Result<()> {
    context.kit("ticks=50", &[])?.status(0)?.has("kit: ticks 50\n")?;
    Ok(())
}

fn exceptions(context: &Context) -> Result<()> {
    context.kit("ud ud", &[])?.status(0)?.has("kit: ud2 1\nkit: ud2 1\n")?;
    Ok(())
}

fn rom(context: &Context) -> Result<()> {
    context.kit("rom", &[])?.status(0)?.has("kit: rom kept\n")?;
    Ok(())
}

fn echo(context: &Context) -> Result<()> {
    let kit = context.kit.to_string_lossy().into_owned();
    let options = ["--kernel", &kit, "--append", "echo", "--timeout", "500"];
    context.run_with(&options, Some(b"ab\x01q"))?.status(0)?.has("<a><b><\x01><q>")?;
    Ok(())
}

fn triple_fault(context: &Context) -> Result<()> {
    context.kit("triple", &[])?.status(3)?.says("triple fault")?.says("IP")?;
    Ok(())
}

fn reset(context: &Context) -> Result<()> {
    restarts(context, "reset")
}

fn reset_cf9(context: &Context) -> Result<()> {
    restarts(context, "cf9")
}

/// A guest that resets itself starts again, for ever.
fn restarts(context: &Context, word: &str) -> Result<()> {
    let line = format!("kit: {word}\n");
    context.until_limit(4, |limit| context.kit(word, limit), |said| said.matches(&line).count() > 1)?;
    Ok(())
}

fn halt(context: &Context) -> Result<()> {
    // The hypervisor sees that nothing can wake it; QEMU waits.
    if context.nested() {
        let finished = context.kit("halt", &[])?.status(3)?.has("kit: halt\n")?.soon()?;
        finished.says("HLT with interrupts disabled")?;
    } else {
        context.until_limit(2, |limit| context.kit("halt", limit), |said| said.contains("kit: halt\n"))?;
    }
    Ok(())
}

fn spin(context: &Context) -> Result<()> {
    context.until_limit(4, |limit| context.kit("spin", limit), |said| said.contains("kit: spin\n"))?;
    Ok(())
}

fn flood(context: &Context) -> Result<()> {
    context.until_limit(4, |limit| context.kit("flood", limit), |said| said.contains("kit: flood 100\n"))?;
    Ok(())
}

fn open_bus(context: &Context) -> Result<()> {
    context.kit("read=0xd0000000", &[])?.status(0)?.has("kit: [d0000000] = ffffffff\n")?;
    Ok(())
}

fn hole(context: &Context) -> Result<()> {
    context.kit("jump=0xd0000000", &[])?.status(3)?.says("d0000000")?.soon()?;
    Ok(())
}

fn msr(context: &Context) -> Result<()> {
    context.kit("msr=0x12345", &[])?.status(0)?.has("kit: msr 12345 = 0:0 faults 1\n")?;
    context.kit("msr=0x12345", &["--permissive-msr"])?.status(0)?.has("kit: msr 12345 = 0:0 faults 0\n")?;
    Ok(())
}

fn least_memory(context: &Context) -> Result<()> {
    context.kit("", &["--mem", "20"])?.status(0)?.has("kit: done\n")?;
    Ok(())
}
