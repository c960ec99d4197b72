//! `pal compare`: policies on workloads, side by side on one lab machine. Each [`cell`] is one deterministic `pal run`, and
//! [`board`] runs them; [`plan`] says which there are, [`perform`] runs them in order and trains what
//! learns from others ([`learn`]); [`results`] has medians and
//! what they are relative to; [`table`], [`page`], [`store`] and [`cells`] show and keep them. `pal reproduce` has its figures from here.

pub mod args;
pub mod board;
pub mod cell;
mod cells;
pub mod learn;
mod page;
mod perform;
pub mod plan;
pub mod results;
pub mod scratch;
pub mod store;
pub mod table;

use anyhow::Result;
use serde_json::Value;

use crate::{
    host::needs::Needs,
    project::Project,
    status::{Usage, exit},
    ui::Ui,
};
use args::CompareArgs;
use board::Bench;
use cell::Cell;
use cells::Cells;
use plan::{Comparison, Request};
use scratch::Scratch;
use store::Failed;

/// Compares, and returns the exit status.
///
/// # Errors
/// [`Usage`] for names, and files that cannot be used; what is missing on this machine.
pub fn run(args: &CompareArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let comparison = Comparison::new(Request::of(args))?;
    let (description, _) = crate::lab::find(&args.lab)?;
    let cells = args.cells.as_deref().map(Cells::new).transpose()?;
    if let Some(cells) = cells.as_ref().filter(|_| args.plan) {
        cells.lines(&comparison).iter().for_each(|line| println!("{line}"));
        return Ok(0);
    }
    let mut kept = args.json.as_deref().map_or_else(|| Ok(Vec::new()), store::read)?;
    if let Some(cells) = &cells {
        kept.extend(cells.read(&comparison)?);
    }
    for path in [&args.json, &args.csv, &args.html].into_iter().flatten() {
        let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
        open.map_err(|error| Usage::new(format!("{}: {error}; choose another place", path.display())))?;
    }
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let bench = Bench::new(&needs, scratch.path(), &description, !args.no_kit, args.jobs)?.keeping(cells);
    let about = comparison.about();
    let save = |cells: &[Cell], failed: &[Failed]| save(args, &comparison, &about, cells, failed);
    let end = comparison.perform(&bench, &needs, &kept, save)?;
    if args.cell.is_some() {
        // There is nothing to compare it with, and what failed has been said.
        return Ok(if end.1.is_empty() { 0 } else { exit::TOOL });
    }
    finish(args, &comparison, &about, &description, end, ui)
}

/// Shows and writes everything; the exit status.
fn finish(
    args: &CompareArgs,
    comparison: &Comparison,
    about: &Value,
    description: &str,
    (cells, failed): (Vec<Cell>, Vec<Failed>),
    ui: &Ui,
) -> Result<u8> {
    let (policies, workloads) = (comparison.policies(), comparison.workloads());
    save(args, comparison, about, &cells, &failed)?;
    let rows = results::rows(&cells, workloads, policies);
    let overall = results::overall(&rows, workloads, policies);
    print!("{}", table::text(&rows, &overall, policies, &args.lab));
    if let Some(path) = &args.csv {
        store::write(path, table::csv(&cells, &rows).as_bytes())?;
    }
    if let Some(path) = &args.html {
        store::write(
            path,
            page::page(&rows, &overall, policies, &failed, (&args.lab, description))?.as_bytes(),
        )?;
    }
    let disagreements = results::disagreements(&cells, workloads);
    for workload in &disagreements {
        ui.error(&format!("{workload}: the checksums of its cells differ; --json FILE has all of them"));
    }
    if !failed.is_empty() {
        ui.error(&format!("{} of {} cells failed", failed.len(), cells.len() + failed.len()));
    }
    Ok(if failed.is_empty() && disagreements.is_empty() { 0 } else { exit::TOOL })
}

/// Keeps what there is so far.
fn save(
    args: &CompareArgs,
    comparison: &Comparison,
    about: &Value,
    cells: &[Cell],
    failed: &[Failed],
) -> Result<()> {
    let Some(path) = &args.json else { return Ok(()) };
    let rows = results::rows(cells, comparison.workloads(), comparison.policies());
    let overall = results::overall(&rows, comparison.workloads(), comparison.policies());
    let document = store::document(about, cells, failed, &rows, &overall);
    store::write(path, (document.to_string() + "\n").as_bytes())
}
