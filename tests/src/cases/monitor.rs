//! The hypervisor's monitor, as a person at a terminal uses it.

use anyhow::{Result, bail, ensure};

use super::{Case, only};
use crate::{context::Context, pty::Person};

pub const CASES: &[Case] = &[
    only("qemu-svm", "the monitor shows a guest and sends events", look),
    only("qemu-svm", "the monitor shows a guest on shadow tables", look_at_shadow),
    only("qemu-svm", "the monitor changes the mode while a guest works", change_mode),
    only("qemu-svm", "the monitor pauses and resumes a guest, resets it and powers it off", pause_and_reset),
    only("qemu-svm", "the monitor restarts a guest with a command", restart_command),
    only("qemu-svm", "the monitor reaches a guest that does not listen", reaches_a_busy_guest),
];

/// Enters the monitor.
pub fn enter(person: &mut Person) -> Result<()> {
    person.types("\x01p")?;
    person.sees("is paused")?;
    person.sees("monitor> ")
}

/// Types a command, waits for its answer's words in their order, and for the next prompt.
pub fn ask(person: &mut Person, command: &str, answer: &[&str]) -> Result<()> {
    person.types(&format!("{command}\r"))?;
    person.sees(&format!("{command}\r\n"))?;
    answer.iter().try_for_each(|part| person.sees(part))?;
    person.sees("monitor> ")
}

/// Enters the monitor while the guest's kernel runs.
///
/// A shell that has just shown its prompt is on a CPU for a moment longer, before it waits in the kernel.
fn enter_in_kernel(person: &mut Person) -> Result<()> {
    for _ in 0..100 {
        enter(person)?;
        let before = person.shown.len();
        ask(person, "regs", &["RIP ", "local APIC"])?;
        if person.shown[before..].contains("RIP ffffffff") {
            return Ok(());
        }
        leave(person, "resumed")?;
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    bail!("the guest never waits in its kernel\n--- shown\n{}", person.shown)
}

/// Leaves the monitor and waits for these words.
pub fn leave(person: &mut Person, answer: &str) -> Result<()> {
    person.types("quit\r")?;
    person.sees(answer)
}

/// Leaves the monitor and powers the guest off from its shell.
fn finish(person: &mut Person) -> Result<()> {
    leave(person, "resumed")?;
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}

fn look(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &["--mem", "300"])?;
    person.sees("guest:")?;
    enter_in_kernel(&mut person)?;
    ask(&mut person, "help", &["vms", "press-power-button", "Commands can be"])?;
    ask(&mut person, "vms", &["* guest", "running", "300 MiB", " s ", "nested"])?;
    ask(&mut person, "vcpus", &["64-bit", "0xffffffff"])?;
    ask(&mut person, "regs", &["RIP ffffffff", "CR3 ", "EFER 0d01", "LSTAR ffffffff", "local APIC"])?;
    ask(&mut person, "stats", &["cpuid ", "all ", "100.0 %", "external interrupts"])?;
    ask(&mut person, "p2m", &["00000000000000-", "RAM at host", "of 2 MiB", "accessed"])?;
    ask(&mut person, "p2m fee00000", &["MMIO", "not mapped"])?;
    ask(&mut person, "walk rip", &["4-level paging", "level 4", "leaf", "supervisor", "RAM at host"])?;
    ask(&mut person, "x rip 16", &["ffffffff"])?;
    ask(&mut person, "xp f0000 16", &["52 53 44 20 50 54 52 20", "RSD PTR"])?;
    ask(&mut person, "host", &["TSC at", "frames free", "frames of guests' RAM"])?;
    ask(&mut person, "frobnicate", &["unknown command"])?;
    // The up key brings the line back.
    person.types("\x1b[A\x1b[A\r")?;
    person.sees("frames free")?;
    person.sees("monitor> ")?;
    ask(&mut person, "nmi", &["VCPU 0 takes it"])?;
    leave(&mut person, "NMI received")?;
    person.types("\r")?;
    person.sees("guest:")?;
    enter(&mut person)?;
    ask(&mut person, "press-power-button", &["pressed"])?;
    finish(&mut person)
}

/// What is shown of a guest's own tables and registers does not depend on the mode.
fn look_at_shadow(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &["--mode", "shadow"])?;
    person.sees("guest:")?;
    enter_in_kernel(&mut person)?;
    ask(&mut person, "vms", &["running", " shadow"])?;
    ask(&mut person, "regs", &["RIP ffffffff", "CR3 ", "EFER 0d01"])?;
    ask(&mut person, "walk rip", &["4-level paging", "level 4", "leaf", "supervisor", "RAM at host"])?;
    ask(&mut person, "x rip 16", &["ffffffff"])?;
    ask(&mut person, "stats", &["page-fault ", "all "])?;
    ask(&mut person, "shadow", &["pages ", " of 818", "filled ", "roots_found "])?;
    ask(
        &mut person,
        "mode",
        &["mode shadow: policy requests shadow tables; shadow tables in use", "to nested tables: 0 times"],
    )?;
    finish(&mut person)
}

/// A shell computes with many processes, until it is given a line, while the mode changes below it.
fn change_mode(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    // However slow this machine is, there are some.
    let work = "sum=0; i=0; until [ $i -gt 20 ] && read -t 0; do i=$((i + 1)); sum=$((sum + $(/bin/echo $i))); done; ";
    let verdict = "echo right $((sum == i * (i + 1) / 2))";
    person.types(&format!("{work}{verdict}\r"))?;
    for (mode, tables) in [
        ("shadow", "shadow"),
        ("nested", "nested"),
        ("switch=3", "nested"),
        ("shadow", ""),
        ("nested", "nested"),
    ] {
        enter(&mut person)?;
        ask(&mut person, &format!("mode {mode}"), &[&format!("mode {mode}: policy requests {tables}")])?;
        leave(&mut person, "resumed")?;
        std::thread::sleep(std::time::Duration::from_secs(1));
    }
    person.types(":\r")?;
    person.sees("right 1")?;
    enter(&mut person)?;
    ask(&mut person, "mode both", &["is no mode: use nested, shadow"])?;
    finish(&mut person)
}

fn pause_and_reset(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    enter(&mut person)?;
    ask(&mut person, "pause", &["until `resume`"])?;
    leave(&mut person, "is paused")?;
    // Not for the guest, and not for the monitor.
    person.types("echo not$((1+1))now\r")?;
    person.sees("is paused")?;
    person.types("\x01p")?;
    person.sees("monitor> ")?;
    ask(&mut person, "vms", &["paused"])?;
    person.types("resume\r")?;
    person.sees("resumed")?;
    person.types("echo and$((1+1))now\r")?;
    person.sees("and2now")?;
    ensure!(!person.shown.contains("not2now"), "{}", person.shown);
    person.sees("guest:")?;
    person.types("touch /mark; ls /mark\r")?;
    person.sees("\n/mark\r\nguest:")?;
    enter(&mut person)?;
    person.types("reset\r")?;
    person.sees("guest:")?;
    person.types("ls /mark\r")?;
    person.sees("No such file")?;
    enter(&mut person)?;
    person.types("poweroff\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}

/// What a person restarts runs its command again, and the run's status is that of the last time.
fn restart_command(context: &Context) -> Result<()> {
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"shell\"\n[[vm]]\nname = \"shell\"\nmemory_mib = 96\n\
         [[vm]]\nname = \"job\"\nmemory_mib = 96\nexec = \"echo be$((1 + 1))gins; read status; exit $status\"\n",
    )?;
    let mut person = Person::start(context, &["--config", &config])?;
    person.sees("guest:")?;
    enter(&mut person)?;
    ask(&mut person, "console job", &["job"])?;
    ask(&mut person, "restart job", &["job"])?;
    leave(&mut person, "be2gins")?;
    enter(&mut person)?;
    ask(&mut person, "stop job", &["job"])?;
    ask(&mut person, "start job", &["job"])?;
    ask(&mut person, "destroy shell", &["shell destroyed"])?;
    leave(&mut person, "be2gins")?;
    // The command's console is in raw mode.
    person.types("7\n")?;
    ensure!(person.ends()? == Some(7), "{}", person.shown);
    Ok(())
}

/// A kernel that never reads what is typed and never waits.
fn reaches_a_busy_guest(context: &Context) -> Result<()> {
    let kit = context.kit.to_string_lossy().into_owned();
    let mut person = Person::start(context, &["--kernel", &kit, "--append", "spin"])?;
    person.sees("kit: spin")?;
    person.types(&"much text that is not read ".repeat(4))?;
    enter(&mut person)?;
    ask(&mut person, "vcpus", &["running", "32-bit"])?;
    leave(&mut person, "resumed")?;
    enter(&mut person)?;
    person.types("poweroff\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}
