//! `pal bench --lab`: the rows in modelled cycles of a lab machine (docs/lab.md), natively and on the hypervisor, with the cycles
//! of page walks apart.
//!
//! The guest's program marks its batches, and the machine's report has what was counted meanwhile: in the guest, and in
//! the hypervisor on its behalf. Runs are deterministic, so that one is enough. [`rows`] says what is measured besides the
//! usual rows, [`results`] takes it from the reports.

mod json;
mod results;
mod rows;
mod table;

use std::{fs, path::Path, thread};

use anyhow::{Context, Result};
use labsim::machine::PRESETS;

use super::{
    args::BenchArgs,
    check_json,
    column::{Column, Setup, TIMEOUT_SECONDS},
    program, setup, write_json,
};
use crate::{
    cli::{Machine, Mode, NestedPage, value_name},
    host::{needs::Needs, qemu::Emulator},
    project::Project,
    status::{Usage, exit},
    ui::Ui,
};
use results::{Measured, Results};
use rows::Row;

/// The word for all machines that come with Palimpsest.
const ALL: &str = "all";

/// Measures on each machine, prints the tables, and returns the exit status.
///
/// # Errors
/// [`Usage`] for options that cannot work; others for what is missing on this machine.
pub fn run(args: &BenchArgs, project: &Project, ui: &Ui) -> Result<u8> {
    if args.machine != Machine::QemuSvm {
        return Err(Usage::new("--lab models machines that QEMU emulates; leave out --machine").into());
    }
    let machines = machines(&args.lab)?;
    // Wrong names are found before anything is built.
    let chosen: Vec<_> =
        machines.iter().map(|(_, machine)| rows::select(&args.only, machine)).collect::<Result<_, _>>()?;
    check_json(args)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let setup = setup(args, &needs, program::ONE, scratch.path())?;
    // Fetched and built once, not by each of the runs that follow.
    Emulator::with_plugins(args.qemu.as_deref(), &needs)?;
    needs.lab_plugin()?;

    let modes = if args.mode.is_empty() { vec![Mode::Nested, Mode::Shadow] } else { args.mode.clone() };
    let mut columns = vec![Column::native(Machine::QemuSvm)];
    columns.extend(modes.into_iter().map(|mode| Column::hypervisor(Machine::QemuSvm, mode)));
    if let Some(size) = args.nested_page {
        println!("Nested tables map guest memory with pages of at most {}.\n", size.name());
    }
    let mut all = Vec::new();
    let mut complete = true;
    for ((name, _), rows) in machines.into_iter().zip(chosen) {
        let _step = ui.step(&format!("measuring on {name}"));
        let bench = Bench {
            setup: &setup,
            qemu: args.qemu.as_deref(),
            machine: &name,
            rows: &rows,
            nested_page: args.nested_page,
        };
        let measured = bench.side_by_side(&columns, scratch.path())?;
        for each in measured.iter().filter(|measured| !measured.trouble.is_empty()) {
            complete = false;
            ui.error(&format!("{name}, {}: {}", each.column.name(), each.trouble));
        }
        let results = Results { machine: name, rows, measured };
        let gap = if all.is_empty() { "" } else { "\n" };
        print!("{gap}{}", table::render(&results));
        all.push(results);
    }
    if let Some(table) = table::against(&all) {
        print!("\n{table}");
    }
    if let Some(path) = &args.json {
        write_json(path, &json::document(&all, project))?;
    }
    Ok(if complete { 0 } else { exit::TOOL })
}

/// The machines of these names and files, each once; `all` stands for those that come with Palimpsest.
fn machines(names: &[String]) -> Result<Vec<(String, labsim::machine::Machine)>> {
    let presets = || PRESETS.iter().map(|(name, _)| (*name).to_owned());
    let mut machines: Vec<(String, _)> = Vec::new();
    for name in
        names.iter().flat_map(|name| if name == ALL { presets().collect() } else { vec![name.clone()] })
    {
        if machines.iter().all(|(known, _)| *known != name) {
            let (_, machine) = crate::lab::find(&name)?;
            machines.push((name, machine));
        }
    }
    Ok(machines)
}

/// What all columns of one machine have in common.
struct Bench<'a> {
    setup: &'a Setup,
    qemu: Option<&'a Path>,
    machine: &'a str,
    rows: &'a [Row],
    nested_page: Option<NestedPage>,
}

impl Bench<'_> {
    /// All columns at the same time: modelled time does not depend on this machine.
    fn side_by_side(&self, columns: &[Column], scratch: &Path) -> Result<Vec<Measured>> {
        thread::scope(|scope| {
            let start = |column: Column| scope.spawn(move || self.run(column, scratch));
            let threads: Vec<_> = columns.iter().map(|column| start(*column)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        })
    }

    fn run(&self, column: Column, scratch: &Path) -> Result<Measured> {
        let path = scratch.join(format!("report.{}.json", column.name()));
        let command = self.command(column, &path);
        let (run, _) = self.setup.perform(command, Some(self.rows.len()))?;
        // Without a report there is trouble already, and nothing was measured.
        let report = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).context("the lab machine's report is not whole")?,
            Err(_) => serde_json::Value::Null,
        };
        let _ = fs::remove_file(&path);
        Ok(Measured::new(column, self.rows, run, &report))
    }

    fn command(&self, column: Column, report: &Path) -> Vec<String> {
        let mut command = vec!["run".to_owned(), "--deterministic".to_owned()];
        let mut add = |option: &str, value: String| command.extend([option.to_owned(), value]);
        add("--lab", self.machine.to_owned());
        // The rows alone are marked, and the boot takes longer than they.
        add("--lab-from", "session".to_owned());
        add("--lab-report", report.display().to_string());
        add("--machine", value_name(column.machine));
        if let Some(mode) = column.mode {
            add("--mode", mode.to_string());
            if let Some(size) = self.nested_page {
                add("--nested-page", size.name().to_owned());
            }
        }
        add("--timeout", TIMEOUT_SECONDS.to_string());
        if let Some(qemu) = self.qemu {
            add("--qemu", qemu.display().to_string());
        }
        let names: Vec<_> = self.rows.iter().map(|row| row.name.as_str()).collect();
        command.extend(self.setup.guest(column, &names, ""));
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_named_once() {
        let names = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            machines(&words).map(|found| found.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["zen3", "nehalem-i5", "zen3"]).unwrap(), ["zen3", "nehalem-i5"]);
        assert_eq!(names(&["zen3", ALL]).unwrap().len(), PRESETS.len());
        assert!(names(&["zen33"]).unwrap_err().to_string().contains("zen33"));
    }
}
