//! `pal run`: prepares guests, runs them on a machine, reports how they ended.

mod advice;
mod bochs;
mod boot;
pub mod children;
mod console;
mod consoles;
mod devices;
pub mod fast;
mod fetch;
mod input;
mod keys;
mod machine;
mod medium;
mod output;
mod page_disk;
pub mod pcpus;
mod prepare;
mod qemu;
mod qmp;
pub mod records;
pub mod remote;
mod session;
mod stats;
mod telemetry;
mod terminal;
mod verdict;
pub mod watch;

use std::io::{IsTerminal, stdin, stdout};

use anyhow::Result;

pub use machine::end_with_pal;
pub use qemu::escape_commas;

use crate::{
    cli::RunArgs,
    host::needs::Needs,
    project::Project,
    status::{Usage, exit},
    ui::Ui,
};
use consoles::Consoles;
use prepare::Prepared;
use records::Recorder;
use remote::Remote;
use session::{Plan, PlannedGuest};

/// Seconds after which a run without a person at a terminal is ended.
const DEFAULT_TIMEOUT: u64 = 300;
/// The same on Bochs, which is some twenty times slower.
const BOCHS_TIMEOUT: u64 = 3600;
/// Runs guests and returns the exit status.
///
/// # Errors
/// [`crate::status::Usage`] for options and files that cannot work, found before anything is started; others for
/// what is missing on this machine.
pub fn run(args: &RunArgs, project: &Project, ui: &Ui) -> Result<u8> {
    Ok(measured(args, project, ui)?.0)
}

/// The same; with the milliseconds that the emulator's process ran as a user program.
///
/// # Errors
/// As for [`run`].
pub fn measured(args: &RunArgs, project: &Project, ui: &Ui) -> Result<(u8, u64)> {
    prepare::check(args)?;
    stats::check(args.stats.as_deref())?;
    Remote::check(args, project)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let prepared = if args.probe { None } else { Some(Prepared::new(args, &needs)?) };
    let bochs = args.machine.is_bochs();
    let mut plan = Plan {
        guests: prepared.as_ref().map_or_else(|| vec![PlannedGuest::default()], planned),
        console: prepared.as_ref().map_or(0, |prepared| prepared.console),
        records: args.has_records(),
        hypervisor: args.machine.has_hypervisor(),
        test_device: args.test_device,
        timeout: None,
        top: args.records.top,
        starting: if bochs {
            "the guest starts; on Bochs that takes a minute or two"
        } else {
            "the guest starts"
        },
        running: bochs.then_some("Bochs is at work"),
    };
    if args.records.top && !(stdin().is_terminal() && stdout().is_terminal()) {
        let text = "--top draws on a terminal, and there is none here: take --watch, and `cargo pal top -b` in another shell";
        return Err(Usage::new(text).into());
    }
    let interactive = !plan.console().exec && !args.probe && stdin().is_terminal();
    plan.timeout = match args.timeout {
        Some(0) => None,
        None if interactive => None,
        given => given.or(Some(if bochs { BOCHS_TIMEOUT } else { DEFAULT_TIMEOUT })),
    };
    let guests = prepared.iter().flat_map(|prepared| &prepared.guests);
    let spare = pcpus::has_spare(args, prepared.as_ref().map_or("", |prepared| &prepared.words));
    advice::advice(args, spare, guests.map(|guest| &guest.vm)).iter().for_each(|text| ui.say(text));
    let consoles = Consoles::new(&plan, args.log_dir.as_deref())?;
    let mut recorder = Recorder::new(args, &plan, || boot::about_emulator(args, &needs))?;
    let traced = if args.records.trace.is_some() { args.pcpus.count } else { 0 };
    let in_memory = recorder.is_some() && !bochs;
    let memory = in_memory.then(|| records::Memory::new(traced)).transpose()?;
    let words = memory.as_ref().map(records::Memory::words);
    let mut machine = boot::start(args, &needs, prepared.as_ref(), memory, scratch.path())?;
    // Builds, which are children as well, are done by now.
    let before = children::user_milliseconds();
    if let (Some(recorder), Some(words)) = (&mut recorder, words) {
        recorder.watch(words)?;
    }
    let feed = recorder.as_ref().map(Recorder::feed);
    let remote = Remote::open(args, &plan, project, ui)?;
    feed.iter().for_each(|feed| remote.hub.set_feed(feed.clone()));
    let _disks = prepared.map(Prepared::into_mapped);
    if interactive {
        ui.say("Ctrl-a x quits, Ctrl-a h helps");
    }
    let outcome = session::run(&mut machine, &plan, consoles, &remote, feed, ui);
    if let Some(recorder) = recorder {
        // Also after an error: the files end well.
        machine.stop();
        recorder.finish(ui);
    }
    let outcome = outcome?;
    let verdict = verdict::judge(&outcome.seen);
    verdict::others(&outcome.seen, &verdict).iter().for_each(|message| ui.error(message));
    let tail = verdict.guest.and_then(|guest| outcome.tails.get(guest)).unwrap_or(&outcome.tail);
    if verdict.show_tail && !tail.is_empty() {
        ui.say(&format!("the console's last lines:\n{tail}"));
    }
    if let Some(message) = &verdict.message {
        ui.error(message);
    }
    if let Some(doubt) = verdict::doubt(&outcome.seen, &verdict, if spare { 1 } else { args.pcpus.count }) {
        ui.say(doubt);
    }
    outcome.missing.iter().for_each(|message| ui.error(message));
    let mut status = match verdict.status {
        0 if !outcome.missing.is_empty() => exit::TOOL,
        status => status,
    };
    if let Some(path) = &args.stats {
        stats::write(path, args, &outcome, status)?;
    }
    if let Some(lab) = machine.lab.take() {
        machine.stop();
        if let Err(error) = lab.finish(&args.lab, ui) {
            // What the guest came to counts for more.
            ui.error(&format!("{error:#}"));
            status = if status == 0 { exit::TOOL } else { status };
        }
    }
    remote.end(status);
    // Waits for its end, which its time is known from.
    drop(machine);
    Ok((status, children::user_milliseconds().saturating_sub(before)))
}

/// What the session has to know of the guests.
fn planned(prepared: &Prepared) -> Vec<PlannedGuest> {
    let guest = |guest: &prepare::Guest| PlannedGuest {
        name: guest.vm.name.clone(),
        exec: guest.vm.exec.is_some(),
        nonce: guest.nonce.clone(),
        gets: guest.files.gets.clone(),
    };
    prepared.guests.iter().map(guest).collect()
}
