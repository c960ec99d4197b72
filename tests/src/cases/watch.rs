//! A machine that is watched: `pal top` on it and inside it.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::{Case, only, remote::Background};
use crate::{
    context::Context,
    pty::Person,
    screen::{HEIGHT, WIDTH},
};

pub const CASES: &[Case] = &[
    only("qemu-svm", "top: on a running machine", top),
    only("qemu-svm", "top: inside a run, then the console", inside),
];

const SCREEN: Option<(usize, usize)> = Some((WIDTH, HEIGHT));

/// The columns of the guest's line in a screen.
fn guest(lines: &[String]) -> Option<Vec<&str>> {
    lines.iter().find(|line| line.starts_with("guest ")).map(|line| line.split_whitespace().collect())
}

/// Whether a screen shows a guest that computes, on a machine without counters.
fn is_plausible(lines: &[String]) -> bool {
    let Some(columns) = guest(lines) else { return false };
    let number = |at: usize| columns.get(at).and_then(|word| word.parse::<f64>().ok());
    // Two VCPUs: some rounding at most above 200 %.
    let computes = number(1).is_some_and(|cpu| (5.0..210.0).contains(&cpu));
    let exits = number(4).is_some_and(|rate| rate > 0.0);
    computes && exits && matches!(columns[2], "nested" | "shadow") && columns[5..8] == ["–", "–", "–"]
}

/// Whether it shows fast memory that has some of the guest's pages, and regions, of which nothing is found at once.
fn shows_memory(lines: &[String]) -> bool {
    let words = |of: &str| -> Option<Vec<&str>> {
        lines.iter().find_map(|line| Some(line.trim_start().strip_prefix(of)?.split_whitespace().collect()))
    };
    let is_some = |bytes: &&str| bytes.starts_with(|digit: char| digit.is_ascii_digit()) && *bytes != "0";
    let fast = words("fast memory").is_some_and(|words| {
        // Page tables of a VM alone have a 32nd of the 4 MiB.
        words.first().is_some_and(is_some) && words[1..] == ["of", "3.9M"]
    });
    let lists =
        words("hot list").is_some_and(|words| words.join(" ").contains("in slow memory; pages/s in "));
    let regions = words("regions found").is_some_and(|words| words.join(" ").contains("guest's 0; moves/s "));
    fast && lists && regions && words("caches (working set) 0:").is_some()
}

fn top(context: &Context) -> Result<()> {
    let name = format!("top-{}", std::process::id());
    let command = "echo one; while :; do seq 3000 | md5sum > /dev/null; done & while :; do :; done";
    let machine = ["--pcpus", "2", "--vcpus", "2", "--mode", "switch=300"];
    let memory = ["--nested-page", "4K", "--fast-mem", "4", "--regions", "balance,spaces=vm"];
    let words =
        [&["run", "--name", &name, "--exec", command][..], &machine, &memory, &context.place()].concat();
    let mut run = Background::start(context, &words, Stdio::null(), "run.out")?;
    run.shows("one\n")?;

    let once = context.pal(["top", &name, "--once"], None)?.status(0)?.stdout();
    let lines: Vec<_> = once.lines().map(str::to_owned).collect();
    ensure!(is_plausible(&lines), "{once}");
    ensure!(lines[0].starts_with(&format!("pal top: {name}, qemu-svm, mode switch=300")), "{once}");
    ensure!(once.contains("VCPUs %CPU  0: ") && once.contains("exits/s "), "{once}");
    let busy = lines.iter().find(|line| line.starts_with("PCPUs %busy")).context("no PCPUs")?;
    let busy = busy.split("  ").filter_map(|word| word.split_once(": ")?.1.parse::<f64>().ok());
    let busy: Vec<_> = busy.collect();
    ensure!(busy.len() == 2 && busy.iter().all(|busy| (0.0..=100.0).contains(busy)), "{once}");
    ensure!(!once.contains('\x1b') && lines.iter().all(|line| line.chars().count() <= WIDTH), "{once}");
    let twice = context.pal(["top", &name, "-b", "-n", "2", "-d", "0.3"], None)?.status(0)?.stdout();
    ensure!(twice.matches("pal top: ").count() == 2, "{twice}");

    let mut person = Person::types_pal_on(context, SCREEN, &["top", &name])?;
    person.draws("plausible figures", is_plausible)?;
    person.draws("fast memory and regions", shows_memory)?;
    person.types("h")?;
    person.draws("help", |lines| lines.iter().any(|line| line.starts_with("q, Ctrl-c     leave")))?;
    person.types("hd0.4\n")?;
    person.draws("the delay", |lines| lines.iter().any(|line| line.contains("every 0.4 s")))?;
    person.types("Ep")?;
    person.draws("a pause", |lines| {
        lines.iter().any(|line| line.contains("PAUSED")) && lines.iter().any(|line| line.contains("EXITS/S*"))
    })?;
    person.types("pq")?;
    ensure!(person.ends()? == Some(0) && person.terminal_is_sane()?, "the terminal is not as before");
    // The ordinary screen and the cursor are back.
    person.sees("\x1b[?1049l")?;
    person.sees("\x1b[?25h")?;

    // A signal leaves a clean terminal, too.
    let mut person = Person::types_pal_on(context, SCREEN, &["top", &name])?;
    person.draws("plausible figures", is_plausible)?;
    let pid = rustix::process::Pid::from_raw(person.pid() as i32).context("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    ensure!(person.ends()? == Some(0) && person.terminal_is_sane()?, "the terminal is not as before");

    // A top that is there when the run ends says how.
    let mut person = Person::types_pal_on(context, SCREEN, &["top", &name])?;
    person.draws("plausible figures", is_plausible)?;
    context.pal(["stop", &name], None)?.status(3)?;
    run.ends(3)?;
    person.sees("has ended with status 3")?;
    ensure!(person.ends()? == Some(0) && person.terminal_is_sane()?, "the terminal is not as before");
    context.pal(["top", &name], None)?.status(2)?.says("is running")?;
    Ok(())
}

fn inside(context: &Context) -> Result<()> {
    context.run(&["--top", "--exec", "true"])?.status(2)?.says("cargo pal top -b")?;
    let mut person =
        Person::types_pal_on(context, SCREEN, &[&["run", "--top"][..], &context.place()].concat())?;
    person.draws("the guest", |lines| guest(lines).is_some_and(|columns| columns[2] == "nested"))?;
    ensure!(!person.shown.contains("~ # "), "the console is not held back");
    person.types("q")?;
    person.sees("\x1b[?1049l")?;
    // What the guest printed meanwhile, and its console.
    person.sees("# ")?;
    person.types("echo a$((1 + 1))b; exit\n")?;
    person.sees("a2b")?;
    ensure!(person.ends()? == Some(0) && person.terminal_is_sane()?, "the terminal is not as before");
    Ok(())
}
