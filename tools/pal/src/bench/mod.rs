//! `pal bench`: what the hypervisor costs a guest, beside native execution and other hypervisors.
//!
//! A guest program performs the operations of [`rows`], once on the emulated machine alone and once on the hypervisor on
//! the same machine ([`column`]), with QEMU or Bochs counting instructions as time. So every figure is the guest's work plus the
//! hypervisor's, and repeats. [`smp`] measures guests with several processors, in real time. `docs/benchmarks.md` explains
//! how to read both. [`lab`] counts modelled cycles.
//! [`scheduler`] reads what decisions and switches between VCPUs take in the hypervisor's statistics, [`policies`] what samples and
//! policies take.

pub mod args;
mod column;
mod exits;
mod json;
mod lab;
mod policies;
pub mod program;
mod record;
mod results;
mod rows;
mod scheduler;
mod smp;
mod switches;
mod table;

use std::{
    fs::{self, OpenOptions},
    iter,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    cli::Guest,
    host::needs::Needs,
    project::Project,
    status::{Usage, exit},
    ui::Ui,
};
use args::BenchArgs;
use column::{Column, Run, Setup};
use results::Results;
use switches::Switches;

/// The modes that are measured unless others are asked for: many changes of the mode, and few between which the shadow
/// tables fill up.
const MODES: [&str; 4] = ["nested", "shadow", "switch=50", "switch=2000"];
/// The same on Bochs, which is slow.
const BOCHS_MODES: [&str; 2] = ["nested", "shadow"];

/// Measures, prints the table, and returns the exit status.
///
/// # Errors
/// [`Usage`] for options that cannot work; others for what is missing on this machine.
pub fn run(args: &BenchArgs, project: &Project, ui: &Ui) -> Result<u8> {
    if args.smp {
        return smp::run(args, project, ui);
    }
    if !args.lab.is_empty() {
        return lab::run(args, project, ui);
    }
    let (rows, scheduler, policies) = select(args)?;
    check_json(args)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let setup = setup(args, &needs, program::ONE, scratch.path())?;

    let default: &[&str] = if args.machine.is_bochs() { &BOCHS_MODES } else { &MODES };
    let modes = if args.mode.is_empty() {
        default.iter().map(|mode| mode.parse().expect("a mode")).collect()
    } else {
        args.mode.clone()
    };
    let columns = modes.into_iter().map(|mode| Column::hypervisor(args.machine, mode));
    let columns = iter::once(Column::native(args.machine)).chain(columns).map(|column| (column, Vec::new()));
    // Without rows no guest need run.
    let columns = columns.filter(|_| !rows.is_empty()).collect();
    let mut results = Results { rows, columns };
    let runs = if results.rows.is_empty() { 0 } else { args.runs.unwrap_or(1) };
    for number in 1..=runs {
        let _step = ui.step(&format!("measuring, run {number} of {runs}"));
        let round = side_by_side(&setup, &results, scratch.path())?;
        for ((_, runs), run) in results.columns.iter_mut().zip(round) {
            runs.push(run);
        }
    }
    let mut complete = true;
    for (column, runs) in &results.columns {
        for run in runs.iter().filter(|run| !run.trouble.is_empty()) {
            complete = false;
            ui.error(&format!("{}: {}", column.name(), run.trouble));
        }
    }
    let exits = count_exits(&setup, &results, args, scratch.path(), ui)?;
    if !results.rows.is_empty() {
        print!("{}", table::render(&results, &exits));
    }
    for (column, runs) in &results.columns {
        if let Some(switches) = Switches::of(*column, runs) {
            print!("\n{}", table::switches(*column, &switches));
        }
    }
    let scheduler = if scheduler { scheduler::measure(&setup, &needs, scratch.path())? } else { Vec::new() };
    if !scheduler.is_empty() {
        let gap = if results.rows.is_empty() { "" } else { "\n" };
        print!("{gap}{}", scheduler::table(&scheduler));
    }
    for measured in scheduler.iter().filter(|measured| !measured.trouble.is_empty()) {
        complete = false;
        ui.error(&format!("scheduler: {}", measured.trouble));
    }

    let policies = if policies { policies::measure(&setup, &needs, scratch.path())? } else { Vec::new() };
    if !policies.is_empty() {
        let gap = if results.rows.is_empty() && scheduler.is_empty() { "" } else { "\n" };
        print!("{gap}{}", policies::table(&policies));
    }
    for measured in policies.iter().filter(|measured| !measured.trouble.is_empty()) {
        complete = false;
        ui.error(&format!("policies: {}", measured.trouble));
    }

    for (column, exits) in exits.iter().filter(|_| args.exits) {
        print!("\n{}", table::exits(*column, exits));
    }
    let missed =
        [results.missed(), exits::missed(&exits), scheduler::missed(&scheduler), policies::missed(&policies)]
            .concat();
    if let Some(path) = &args.json {
        let mut document = json::document(&results, &exits, &missed, &version(&setup.emulator), project);
        document[scheduler::NAME] = scheduler::json(&scheduler);
        document[policies::NAME] = policies::json(&policies);
        write_json(path, &document)?;
    }
    let missed = if args.check { missed } else { Vec::new() };
    if !missed.is_empty() {
        ui.error(&format!("goals missed: {}", missed.join(", ")));
    }
    let failed = !complete || !missed.is_empty();
    Ok(if failed { exit::TOOL } else { 0 })
}

/// The rows that were asked for, and whether the scheduler and policies are measured: the scheduler also unless others were asked
/// for; both on QEMU alone.
fn select(args: &BenchArgs) -> Result<(Vec<&'static rows::Row>, bool, bool), Usage> {
    let tables = [scheduler::NAME, policies::NAME];
    let only: Vec<_> = args.only.iter().filter(|name| !tables.contains(&name.as_str())).cloned().collect();
    let named = tables.map(|table| args.only.iter().any(|name| name == table));
    if let Some((table, _)) = tables.iter().zip(named).find(|(_, named)| *named && args.machine.is_bochs()) {
        let why = format!("--only {table}: it is measured on QEMU only; leave out --machine");
        return Err(Usage::new(why));
    }
    let rows = if named.contains(&true) && only.is_empty() { Vec::new() } else { rows::select(&only)? };
    let everything = args.only.is_empty() && args.mode.is_empty() && !args.machine.is_bochs();
    Ok((rows, named[0] || everything, named[1]))
}

/// Finds out early whether the file of `--json` can be written.
fn check_json(args: &BenchArgs) -> Result<()> {
    let Some(path) = &args.json else { return Ok(()) };
    let open = OpenOptions::new().create(true).append(true).open(path);
    open.map(drop).map_err(|error| Usage::new(format!("--json {}: {error}", path.display())).into())
}

fn write_json(path: &Path, document: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(document)? + "\n";
    fs::write(path, text).with_context(|| format!("--json {}", path.display()))
}

/// Builds or finds what every run uses.
fn setup(args: &BenchArgs, needs: &Needs, name: &str, scratch: &Path) -> Result<Setup> {
    let initrd = scratch.join("initrd");
    fs::write(&initrd, program::initramfs(&program::build(needs.project, needs.ui, name)?)?)
        .with_context(|| format!("cannot write {}", initrd.display()))?;
    Ok(Setup {
        emulator: if args.machine.is_bochs() {
            needs.bochs(args.bochs.as_deref())?
        } else {
            needs.qemu(args.qemu.as_deref())?
        },
        kernel: args.kernel.clone().map_or_else(|| needs.kernel(Guest::DebianAmd64), Ok)?,
        initrd,
        hypervisor: needs.hypervisor()?,
    })
}

/// One run of every column, at the same time: an instruction takes the same virtual time however busy this machine is.
fn side_by_side(setup: &Setup, results: &Results, scratch: &Path) -> Result<Vec<Run>> {
    thread::scope(|scope| {
        let start = |column: Column| {
            let stats = column.mode.map(|_| scratch.join(format!("stats.{}.json", column.name())));
            scope.spawn(move || setup.run(column, &results.rows, stats.as_deref()))
        };
        let threads: Vec<_> = results.columns.iter().map(|(column, _)| start(*column)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

/// The exits of each row in the columns that stay in one mode, if they were asked for; otherwise, on QEMU, of the rows that
/// have a goal for them. Bochs is too slow for that.
fn count_exits(
    setup: &Setup,
    results: &Results,
    args: &BenchArgs,
    scratch: &Path,
    ui: &Ui,
) -> Result<Vec<(Column, Vec<exits::Exits>)>> {
    let mut all = Vec::new();
    for (column, _) in &results.columns {
        if column.mode.is_none() || column.switches() {
            continue;
        }
        let mut step = None;
        let progress = |row: &str| {
            // The old spinner ends before the next one begins.
            step.take();
            step = Some(ui.step(&format!("counting exits, {}: {row}", column.name())));
        };
        let is_counted = |row: &&&rows::Row| {
            let has_goal = column.mode.is_some_and(|mode| row.exits(column.machine, mode).is_some());
            args.exits || has_goal && !args.machine.is_bochs()
        };
        let rows: Vec<_> = results.rows.iter().filter(is_counted).copied().collect();
        if !rows.is_empty() {
            all.push((*column, exits::count(setup, *column, &rows, scratch, progress)?));
        }
    }
    Ok(all)
}

/// The first line of `--version` that is more than decoration.
fn version(program: &Path) -> String {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with(char::is_alphabetic)).unwrap_or_default().to_owned()
}
