//! Guests that reset themselves, or die and have `restart`, again and again: neither others nor a person at the monitor suffer.

use std::{fs, time::Duration};

use anyhow::{Context as _, Error, Result, ensure};

use super::{
    Case,
    monitor::{ask, enter, leave},
    only, vms,
};
use crate::{context::Context, pty::Person};

pub const CASES: &[Case] = &[
    only("qemu-svm", "a guest that resets itself for ever, beside another one and a person", beside),
    only("qemu-svm", "guests that end at once begin ten times a second", brake),
    only("qemu-svm", "a person and a guest that ends at once", person),
];

/// Clearing and loading a guest's memory takes longer than many turns, again and again: the other one neither pays for that nor waits for
/// all of it, nor may the person meet a guest that begins to run while they look at it. The person is on one PCPU, the guests are
/// on the other.
fn beside(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"again\"\n\
         [[vm]]\nname = \"again\"\nkernel = \"kit\"\nmemory_mib = 1024\ncmdline = \"reset\"\naffinity = [1]\n\
         [[vm]]\nname = \"shell\"\nmemory_mib = 96\naffinity = [1]\n",
    )?;
    let mut person = Person::start(context, &["--config", &config, "--pcpus", "2"])?;
    person.sees("kit: reset")?;
    // The shell boots in peace.
    enter(&mut person)?;
    ask(&mut person, "pause again", &["again is paused"])?;
    ask(&mut person, "console shell", &["shell gets the console"])?;
    leave(&mut person, "shell resumed")?;
    person.sees("guest:")?;
    // How often it looks at the clock in four seconds, how often others ran between two looks, and for how long in all, in hundredths.
    person.types("up() { read up rest < /proc/uptime; up=${up%.*}${up#*.}; }\r")?;
    person.sees("guest:")?;
    person.types(
        "w() { n=0; gaps=0; waited=0; up; last=$up; end=$((last + 400)); while up; [ $up -lt $end ]; do \
         n=$((n + 1)); d=$((up - last)); last=$up; \
         [ $d -gt 2 ] && gaps=$((gaps + 1)) && waited=$((waited + d)); done; echo \"co\"unt $n $gaps $waited is; }\r",
    )?;
    // This machine may be busy with something else at either time, and is rarely so each time.
    let mut missed = Vec::new();
    while let Some(miss) = share(&mut person)? {
        missed.push(miss);
        ensure!(missed.len() < 4, "{missed:#?}\n{}", person.shown);
    }
    person.types("\x01x")?;
    person.ends()?;
    Ok(())
}

/// Compares what the shell gets done beside the other, which rests before and afterwards, with what it does alone. `None` if that is
/// its due.
fn share(person: &mut Person) -> Result<Option<String>> {
    enter(person)?;
    ask(person, "resume again", &["again resumed"])?;
    leave(person, "shell resumed")?;
    let [beside, gaps, waited] = counted(person)?;
    enter(person)?;
    for _ in 0..15 {
        ask(person, "vms", &["again", "running", "* shell"])?;
        ask(person, "select again", &["again is paused"])?;
        ask(person, "regs", &["RIP"])?;
        ask(person, "select shell", &["shell is paused"])?;
    }
    ask(person, "restart again", &["again restarts"])?;
    ask(person, "pause again", &["again is paused"])?;
    ask(person, "select shell", &["shell is paused"])?;
    leave(person, "shell resumed")?;
    let [alone, gaps_alone, waited_alone] = counted(person)?;
    let mean = |waited: u64, gaps: u64| Duration::from_millis(waited * 10 / gaps.max(1));
    let (each, busy) = (mean(waited, gaps), mean(waited_alone, gaps_alone));
    // Half of the time is due to it. It waits for one turn of the other each time, and would for some hundred if a reset were
    // done in one piece.
    let due = alone > 0 && beside * 5 >= alone && each < Duration::from_millis(200) + busy * 2;
    Ok((!due).then(|| {
        format!("{beside} beside the other, {alone} alone; {gaps} times it waited, for {each:?} each")
    }))
}

/// What the shell's function says.
fn counted(person: &mut Person) -> Result<[u64; 3]> {
    person.types("w\r")?;
    person.sees("count ")?;
    person.sees(" is")?;
    let (_, figures) = person.shown.rsplit_once("count ").context("no count")?;
    let figures = figures.split(' ').take(3).map(str::parse).collect::<Result<Vec<_>, _>>()?;
    <[u64; 3]>::try_from(figures).ok().context("too few figures")
}

/// Without a limit it would be some hundred times.
fn brake(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let config = context.file(
        "lab.toml",
        "version = 1\n\
         [[vm]]\nname = \"resets\"\nkernel = \"kit\"\nmemory_mib = 20\ncmdline = \"reset\"\n\
         [[vm]]\nname = \"dies\"\nkernel = \"kit\"\nmemory_mib = 20\ncmdline = \"print=dies triple\"\nvcpus = 2\nrestart = true\nmode = \"shadow\"\n",
    )?;
    let logs = context.path("logs");
    let options = ["--config", &config, "--pcpus", "2", "--log-dir", &logs];
    let guests = [("resets", "kit: reset\n"), ("dies", "kit: dies\n")];
    let begun = |(name, line): (&str, &str)| Ok::<_, Error>(vms::log(context, name)?.matches(line).count());
    let run = |limit: &[&str]| context.run(&[&options, limit].concat());
    let again = |_: &str| guests.iter().all(|guest| begun(*guest).is_ok_and(|begun| begun >= 2));
    let seconds = context.until_limit(6, run, again)?.took.as_secs() as usize + 1;
    for guest in guests {
        let begun = begun(guest)?;
        ensure!(begun <= 10 * seconds, "{} began {begun} times within {seconds} s", guest.0);
    }
    Ok(())
}

/// Nearly all of the time the guest waits until it may restart.
fn person(context: &Context) -> Result<()> {
    fs::copy(&context.kit, context.path("kit"))?;
    let config = context.file(
        "lab.toml",
        "version = 1\nconsole = \"idle\"\n\
         [[vm]]\nname = \"again\"\nkernel = \"kit\"\nmemory_mib = 20\nvcpus = 2\ncmdline = \"reset\"\n\
         [[vm]]\nname = \"idle\"\nkernel = \"kit\"\nmemory_mib = 20\ncmdline = \"print=idle echo\"\n",
    )?;
    let mut person = Person::start(context, &["--config", &config, "--pcpus", "2"])?;
    person.sees("kit: idle")?;
    enter(&mut person)?;
    for _ in 0..5 {
        ask(&mut person, "pause again", &["again is paused"])?;
        ask(&mut person, "vms", &["again", "paused", "* idle"])?;
        ask(&mut person, "resume again", &["again resumed"])?;
        ask(&mut person, "restart again", &["again restarts"])?;
        ask(&mut person, "stop again", &["again is off"])?;
        ask(&mut person, "vms", &["again", "stopped", "* idle"])?;
        ask(&mut person, "start again", &["again starts"])?;
        ask(&mut person, "select again", &["again is paused"])?;
        ask(&mut person, "restart again", &["again restarts"])?;
        ask(&mut person, "regs", &["RIP"])?;
        ask(&mut person, "select idle", &["idle is paused"])?;
        ask(&mut person, "destroy again", &["again destroyed"])?;
        ask(&mut person, "start again", &["again starts"])?;
    }
    ask(&mut person, "destroy again", &["again destroyed"])?;
    person.types("destroy idle\r")?;
    person.sees("idle destroyed")?;
    person.types("quit\r")?;
    ensure!(person.ends()? == Some(0), "{}", person.shown);
    Ok(())
}
