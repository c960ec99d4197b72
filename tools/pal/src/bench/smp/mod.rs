//! `pal bench --smp`: what the processors of a guest need to reach each other, and what they get done together.
//!
//! Instructions cannot tell: processors wait for each other while they run at the same time. So QEMU emulates four, each with a
//! thread of its own and real time, and a guest's program measures in ticks of the time-stamp counter. Those depend on this
//! machine and on what else it does; therefore the guest runs alone and on the hypervisor in turns, round by round, and
//! what counts is the ratio within a round ([`results`]). [`rows`] says what is measured, [`guests`] where. What [`apart`] compares
//! can be measured in modelled time as well, on a lab machine.

mod apart;
mod guests;
mod host;
mod json;
mod results;
mod rows;
mod table;

use std::time::Instant;

use anyhow::Result;

use super::{args::BenchArgs, check_json, program, setup, version, write_json};
use crate::{
    cli::{Machine, Mode},
    host::needs::Needs,
    project::Project,
    status::{Usage, exit},
    ui::Ui,
};
use apart::{Comparison, LAB_STEP, Where};
use guests::{Files, Guest};
use host::Host;
use results::Results;

/// Rounds by default.
const ROUNDS: u32 = 5;

/// Measures, prints the tables, and returns the exit status.
///
/// # Errors
/// [`Usage`] for options that cannot work; others for what is missing on this machine.
pub fn run(args: &BenchArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (with_apart, names) = apart::take(&args.only);
    let rows = if names.is_empty() && !args.only.is_empty() { Vec::new() } else { rows::select(&names)? };
    if args.machine != Machine::QemuSvm {
        let text = "--smp: only QEMU's processors run at the same time; leave out --machine";
        return Err(Usage::new(text).into());
    }
    let on = match &args.lab[..] {
        [] => Where::Emulator,
        [machine] if with_apart && rows.is_empty() => Where::Lab(machine, args.qemu.as_deref()),
        _ => {
            let text = "--smp --lab: only `spaces` is measured, on one lab machine; add --only spaces, or leave out --lab";
            return Err(Usage::new(text).into());
        }
    };
    check_json(args)?;
    let host = Host::look();
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let files = Files {
        setup: setup(args, &Needs { project, ui, yes: args.yes }, program::SEVERAL, scratch.path())?,
        kit: program::kit(project, ui, scratch.path())?,
    };

    let emulator = version(&files.setup.emulator);
    let modes = if args.mode.is_empty() { vec![Mode::Nested, Mode::Shadow] } else { args.mode.clone() };
    let guests = Guest::all(&rows, &modes);
    let rounds = if args.quick { 1 } else { args.runs.unwrap_or(ROUNDS) };
    let mut comparisons = match &args.mode[..] {
        _ if !with_apart => Vec::new(),
        // With nested tables the hypervisor has hardly a part in it: that ratio is what the guest's kernel, the emulator and
        // this machine make of it.
        [] => Comparison::all(&[Mode::Nested, Mode::Shadow]),
        modes => Comparison::all(modes),
    };
    let mut results = Results { rows, modes, rounds: Vec::new() };
    let runs = guests.len() + 2 * comparisons.len();
    ui.say(&format!("{rounds} rounds of {runs} runs, one after the other"));
    let start = Instant::now();
    let mut complete = true;
    for number in 1..=rounds {
        let mut round = Vec::new();
        for &guest in &guests {
            let _step = ui.step(&format!("round {number} of {rounds}: {}", guest.name()));
            let run = guest.run(&files, &results.rows, args.quick)?;
            if !run.trouble.is_empty() {
                complete = false;
                ui.error(&format!("{}: {}", guest.name(), run.trouble));
            }
            round.push((guest, run));
        }
        results.rounds.push(round);
        for comparison in &mut comparisons {
            let _step = ui.step(&format!("round {number} of {rounds}: {}", comparison.name()));
            comparison.measure(&files, &on, scratch.path(), number, args.quick)?;
            if !comparison.trouble.is_empty() {
                complete = false;
                ui.error(&format!("{}: {}", comparison.name(), comparison.trouble));
            }
        }
        let took = start.elapsed().as_secs();
        let left = took / u64::from(number) * u64::from(rounds - number);
        ui.say(&format!("round {number} of {rounds} done after {took} s, about {left} s to go"));
        if let Some(path) = &args.json {
            // After each round: what there is stays if this is stopped.
            let document = json::document(&results, &comparisons, &host, &emulator, project);
            write_json(path, &document)?;
        }
        if !complete {
            // It would go wrong again, and cost as much time.
            break;
        }
    }

    if !results.rows.is_empty() {
        print!("{}", table::costs(&results));
    }
    let scaling = table::scaling(&results);
    if !scaling.is_empty() {
        print!("\n{scaling}");
    }
    if !comparisons.is_empty() {
        let gap = if results.rows.is_empty() { "" } else { "\n" };
        print!("{gap}{}", apart::table(&comparisons));
    }
    if let Where::Lab(machine, _) = on {
        println!(
            "\nTicks are modelled cycles of {machine}, with processors that keep within {LAB_STEP} cycles of each other."
        );
    } else {
        table::notes(&host).iter().for_each(|note| println!("\nnote: {note}"));
    }
    let missing = results.missing();
    if !missing.is_empty() {
        ui.error(&format!("not measured: {}", missing.join(", ")));
    }
    Ok(if complete && missing.is_empty() { 0 } else { exit::TOOL })
}
