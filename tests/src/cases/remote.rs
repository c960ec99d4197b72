//! A running machine from other shells.

use std::{
    fs::{self, File},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Case, only};
use crate::{context::Context, pty::Person};

pub const CASES: &[Case] = &[only("qemu-svm", "other shells reach a running machine", reach)];

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A program in the background, with its output in a file.
pub(super) struct Background {
    pub child: Child,
    pub output: String,
}

impl Background {
    pub fn start(context: &Context, words: &[&str], input: Stdio, name: &str) -> Result<Self> {
        let output = context.path(name);
        let mut command = Command::new(&context.pal);
        command.args(words).stdin(input).stdout(File::create(&output)?).stderr(Stdio::null());
        Ok(Self { child: command.spawn()?, output })
    }

    pub fn shows(&self, text: &str) -> Result<()> {
        wait_until(|| Ok(fs::read_to_string(&self.output)?.contains(text)), text)
    }

    pub fn ends(&mut self, expected: i32) -> Result<()> {
        wait_until(|| Ok(self.child.try_wait()?.is_some()), "the end")?;
        let status = self.child.wait()?.code();
        ensure!(status == Some(expected), "{status:?}, not {expected}: {}", self.output);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again until it has happened.
pub(super) fn wait_until(mut happened: impl FnMut() -> Result<bool>, what: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if happened()? {
            return Ok(());
        }
        sleep(Duration::from_millis(50));
    }
    bail!("never saw {what:?}")
}

/// Where the row of the guest begins, of what `tier` shows.
fn row(shown: &str) -> Result<usize> {
    shown.find("\nguest ").with_context(|| shown.to_owned())
}

/// The number before the first `unit`.
fn kib_before(shown: &str, unit: &str) -> Result<u64> {
    let (before, _) = shown.split_once(unit).with_context(|| shown.to_owned())?;
    Ok(before.rsplit(' ').next().unwrap_or_default().parse()?)
}

fn reach(context: &Context) -> Result<()> {
    let name = format!("e2e-{}", std::process::id());
    let on = |words: &[&str], input: Option<&[u8]>| context.pal(words, input);
    let command = "stty -echo; echo one; read word; echo got $word; read word; echo then $word; while :; do echo -; sleep 0.05; done";
    let words =
        [&["run", "--name", &name, "--fast-mem", "4", "--exec", command][..], &context.place()].concat();
    let mut run = Background::start(context, &words, Stdio::null(), "run.out")?;
    run.shows("one\n")?;
    let pid = run.child.id().to_string();
    on(&["ps"], None)?.status(0)?.has(&name)?.has(&pid)?.has("qemu-svm")?.has("nested")?;
    on(&["monitor", "--name", "missing", "vms"], None)?
        .status(2)?
        .says("no machine named missing")?
        .says(&name)?;
    let other = context.pal([&words[..], &["--timeout", "9"]].concat(), None)?;
    other.status(2)?.says("is running; choose another --name")?;

    let monitor = |words: &[&str]| on(&[&["monitor", "--name", &name][..], words].concat(), None)?.status(0);
    let vms = monitor(&["vms"])?.has("* guest")?.has("running")?.lacks("monitor")?;
    ensure!(!vms.stdout().contains('\r') && vms.stdout().ends_with('\n'), "{:?}", vms.stdout());

    let tier = |words: &[&str]| on(&[&["tier", &name][..], words].concat(), None);
    tier(&[])?.status(0)?.has("fast memory: 4 MiB")?.has("guest            -")?;
    let set = tier(&["guest", "E2"])?.status(0)?.has("guest            E2 set")?.stdout();
    let [tables, share] = [kib_before(&set, " KiB page tables")?, kib_before(&set[row(&set)?..], " KiB")?];
    // Six eighths of what page tables leave of 4 MiB, in whole frames of 4 KiB.
    ensure!(tables > 0 && share == (4096 - tables) / 4 * 6 / 8 * 4, "{set}");
    let auto = tier(&["guest", "auto"])?.status(0)?.has("guest            -")?.stdout();
    ensure!((share + 1..4096).contains(&kib_before(&auto[row(&auto)?..], " KiB")?), "{auto}");
    tier(&["other", "E2"])?.status(2)?.says("no guest named other; its guests: guest")?;
    tier(&["guest", "E8"])?.status(2)?.says("E8")?;

    // Its input waits for the guest.
    let input = context.file("input", "hello\n")?;
    let mut console =
        Background::start(context, &["console", &name], Stdio::from(File::open(input)?), "console.out")?;
    run.shows("got hello\n")?;
    console.shows("got hello")?;
    at_the_console(context, &name)?;
    run.shows("then there\n-\n")?;
    console.shows("then there")?;
    at_the_monitor(context, &name)?;

    // A paused guest stays with the monitor, which says less when it is called again.
    monitor(&["pause"])?;
    monitor(&["vms"])?.has("paused")?;
    monitor(&["resume"])?.has("monitor: guest")?;
    // A conversation by lines; input after `quit` is dropped.
    let talk = on(&["monitor", "--name", &name], Some(b"vms\nloglevel\nquit\nlost\n"))?.status(0)?;
    talk.has("monitor> vms\n")?.has("running")?.has("log level")?.has("monitor> quit\nmonitor: guest")?;

    // A client that dies at the monitor: the guest goes on.
    let (reader, writer) = std::io::pipe()?;
    let talk = Background::start(context, &["monitor", "--name", &name], Stdio::from(reader), "talk.out")?;
    talk.shows("monitor> ")?;
    on(&["monitor", "--name", &name, "vms"], None)?.status(1)?.says("busy")?;
    let size = || Ok::<_, anyhow::Error>(fs::metadata(&run.output)?.len());
    let paused = size()?;
    drop(talk);
    wait_until(|| Ok(size()? > paused), "output after the client's death")?;
    drop(writer);

    on(&["stop", &name], None)?.status(3)?;
    run.ends(3)?;
    console.ends(3)?;
    let output = fs::read_to_string(&run.output)?;
    let rest = output.strip_prefix("one\ngot hello\nthen there\n").unwrap_or("?");
    let rest = rest.trim_end_matches('-').replace("-\n", "");
    ensure!(rest.is_empty(), "the command's output is not alone: {output:?}");
    on(&["stop", &name], None)?.status(2)?;
    Ok(())
}

/// A person at `pal console`, who reads, types, and leaves. In raw mode nothing echoes what is typed, and bytes come as they are.
fn at_the_console(context: &Context, name: &str) -> Result<()> {
    let mut person = Person::types_pal(context, &["console", name])?;
    person.sees("Ctrl-a x detaches")?;
    person.types("there\n")?;
    person.sees("then there\n-\n")?;
    ensure!(person.shown.matches("there").count() == 1, "an echo: {}", person.shown);
    ensure!(!person.terminal_is_sane()?, "the terminal is not in raw mode");
    person.types("\x01x")?;
    person.sees("detached")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    ensure!(person.terminal_is_sane()?, "the terminal is still in raw mode");
    Ok(())
}

/// A person at `pal monitor`, who leaves by `quit` and, the second time, by the escape key in the middle of a line.
fn at_the_monitor(context: &Context, name: &str) -> Result<()> {
    for end in ["quit\r", "stat\x01x"] {
        let mut person = Person::types_pal(context, &["monitor", "--name", name])?;
        person.sees("monitor> ")?;
        ensure!(!person.terminal_is_sane()?, "the terminal is not in raw mode");
        // Its line editor: the wrong letter goes.
        person.types("vmz\x7fs\r")?;
        person.sees("running")?;
        person.sees("monitor> ")?;
        person.types(end)?;
        ensure!(person.ends()? == Some(0), "{}", person.shown);
        ensure!(person.terminal_is_sane()?, "the terminal is still in raw mode");
    }
    Ok(())
}
