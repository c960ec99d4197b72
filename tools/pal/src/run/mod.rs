//! `pal run`: prepares a guest, runs it on a machine, reports how it ended.

mod bochs;
mod boot;
mod console;
mod input;
mod keys;
mod machine;
mod medium;
mod output;
pub mod pcpus;
mod prepare;
mod qemu;
mod qmp;
mod session;
mod stats;
mod telemetry;
mod terminal;
mod verdict;

use std::io::{IsTerminal, stdin};

use anyhow::Result;

use crate::{cli::RunArgs, host::needs::Needs, project::Project, ui::Ui};
use prepare::Prepared;
use session::Plan;

/// Seconds after which a run without a person at a terminal is ended.
const DEFAULT_TIMEOUT: u64 = 300;
/// The same on Bochs, which is some twenty times slower.
const BOCHS_TIMEOUT: u64 = 3600;
/// Runs a guest and returns the exit status.
///
/// # Errors
/// [`crate::status::Usage`] for options and files that cannot work, found before anything is started; others for
/// what is missing on this machine.
pub fn run(args: &RunArgs, project: &Project, ui: &Ui) -> Result<u8> {
    prepare::check(args)?;
    stats::check(args.stats.as_deref())?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let prepared = if args.probe { None } else { Some(Prepared::new(args, &needs)?) };
    let mut machine = boot::start(args, &needs, prepared.as_ref(), scratch.path())?;
    let interactive = args.exec.is_none() && !args.probe && stdin().is_terminal();
    let bochs = args.machine.is_bochs();
    let plan = Plan {
        exec: args.exec.is_some(),
        hypervisor: args.machine.has_hypervisor(),
        test_device: args.test_device,
        nonce: prepared.and_then(|guest| guest.nonce),
        timeout: match args.timeout {
            Some(0) => None,
            None if interactive => None,
            given => given.or(Some(if bochs { BOCHS_TIMEOUT } else { DEFAULT_TIMEOUT })),
        },
        starting: if bochs {
            "the guest starts; on Bochs that takes a minute or two"
        } else {
            "the guest starts"
        },
    };
    if interactive {
        ui.say("Ctrl-a x quits, Ctrl-a h helps");
    }
    let outcome = session::run(&mut machine, &plan, ui)?;
    let verdict = verdict::judge(&outcome.seen);
    if verdict.show_tail && !outcome.tail.is_empty() {
        ui.say(&format!("the console's last lines:\n{}", outcome.tail));
    }
    if let Some(message) = &verdict.message {
        ui.error(message);
    }
    if let Some(path) = &args.stats {
        stats::write(path, args, &outcome, verdict.status)?;
    }
    Ok(verdict.status)
}
