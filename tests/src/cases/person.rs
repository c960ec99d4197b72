//! A person at a terminal, and what happens to the machine when pal is ended from outside.

use std::{os::unix::fs::MetadataExt as _, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{Case, SHADOW, both, hypervisor, only};
use crate::{context::Context, pty::Person};

pub const CASES: &[Case] = &[
    both("a shell with job control on a terminal, which exits", shell),
    hypervisor("Ctrl-a x quits and restores the terminal", quit),
    hypervisor("a signal ends the run and restores the terminal", signal),
    hypervisor("QEMU never outlives pal", killed),
    hypervisor("a reset restarts the guest", reset).more(SHADOW),
    only("native", "there is no monitor without a hypervisor", no_monitor),
];

fn shell(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    ensure!(!person.terminal_is_sane()?, "the terminal is not in raw mode");
    // What is typed is for the job, which says that it is in the foreground. The shell's echo of the line has the quotes.
    person.types("tty; echo $TERM; sh -c 'echo \"fi\"rst; exec sleep 1000'\r")?;
    person.sees("vt100")?;
    person.sees("first")?;
    person.types("\x03")?;
    person.sees("guest:")?;
    person.types("sh -c 'echo \"sec\"ond; exec sleep 1000'\r")?;
    person.sees("second")?;
    person.types("\x1a")?;
    // With a prompt the shell has the terminal again; what is typed before may be dropped.
    person.sees("Stopped")?;
    person.sees("guest:")?;
    person.types("echo \"li\"stens; read key; echo \"$key\" | od -c\r")?;
    person.sees("listens")?;
    person.types("\x01a\r")?;
    person.sees("001")?;
    person.sees("guest:")?;
    // A shell with a stopped job refuses to exit, and `wait` does not wait for one: `fg` continues it and sees its end.
    person.types("kill -9 %1; fg; exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    ensure!(person.terminal_is_sane()?, "the terminal is still in raw mode");
    Ok(())
}

fn quit(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    person.types("\x01h")?;
    person.sees("Ctrl-a x")?;
    person.types("\x01x")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    ensure!(person.terminal_is_sane()?, "the terminal is still in raw mode");
    Ok(())
}

/// In the hypervisor's machine while pages of the guest are on a disk, which is a file of this run's.
fn signal(context: &Context) -> Result<()> {
    let has_disk = context.nested() && context.mode.is_none();
    let disk = ["--overcommit", "--mem", "128", "--resident", "40", "--host-mem", "80", "--page-disk", "128"];
    let mut person = Person::start(context, if has_disk { &disk } else { &[] })?;
    person.sees("guest:")?;
    let qemu = children(person.pid());
    let lines = qemu.iter().filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
    let lines: Vec<String> = lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect();
    let pages =
        lines.iter().find_map(|line| line.split(['\0', ',']).find_map(|word| word.strip_prefix("file=")));
    let is_used = |path: &str| std::fs::metadata(path).is_ok_and(|file| file.blocks() > 100);
    if has_disk {
        let path = pages.context("QEMU has no disk for pages")?;
        // More than the frames and what is compressed hold; it comes and goes until the end.
        person.types("dd if=/dev/urandom of=/f bs=1M count=60; while :; do md5sum /f; done\r")?;
        for _ in 0..1200 {
            if is_used(path) {
                break;
            }
            sleep(Duration::from_millis(50));
        }
        ensure!(is_used(path), "no page goes to the disk: {}", person.shown);
    }
    let pid = rustix::process::Pid::from_raw(person.pid().cast_signed()).expect("a process has an id");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    ensure!(person.ends()? == Some(143), "{}", person.shown);
    ensure!(person.terminal_is_sane()?, "the terminal is still in raw mode");
    ensure!(!qemu.is_empty() && qemu.iter().all(|&pid| is_gone(pid)), "QEMU is still there");
    ensure!(
        pages.is_none_or(|path| !std::path::Path::new(path).exists()),
        "the disk for pages is still there"
    );
    Ok(())
}

fn reset(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    person.types("touch /mark; ls /mark\r")?;
    person.sees("\n/mark\r\n")?;
    person.types("reboot -f\r")?;
    person.sees("Restarting system")?;
    person.sees("guest:")?;
    person.types("ls /mark\r")?;
    person.sees("No such file")?;
    person.types("exit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}

fn killed(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    let qemu = children(person.pid());
    ensure!(!qemu.is_empty(), "pal has no child process");
    let pid = rustix::process::Pid::from_raw(person.pid().cast_signed()).expect("a process has an id");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    person.ends()?;
    for _ in 0..1200 {
        if qemu.iter().all(|&pid| is_gone(pid)) {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    anyhow::bail!("QEMU is still there")
}

fn no_monitor(context: &Context) -> Result<()> {
    let mut person = Person::start(context, &[])?;
    person.sees("guest:")?;
    person.types("\x01p")?;
    person.sees("no monitor")?;
    Ok(())
}

/// The child processes of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The processes that a process has started, with whichever of its threads, and those that these have started.
pub fn descendants(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let words: Vec<_> =
        lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    let children = words.iter().filter_map(|word| word.parse().ok());
    children.flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

/// True if a process does not run any more; a zombie counts as gone.
pub fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}
