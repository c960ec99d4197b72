//! End-to-end tests: a plain list of cases, each of which runs `pal` and looks at its output and status.
//!
//! `cargo pal test` runs them all; `cargo run -p e2e -- FILTER` runs those whose name contains FILTER.

mod cases;
mod context;
mod kit;
mod pty;
mod runner;
mod screen;

use std::{io::Write as _, iter, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;

use cases::{Case, On};
use context::{Context, MACHINES};
use kit::Kits;

/// Run the end-to-end tests.
#[derive(Parser)]
struct Options {
    /// Run only cases whose name contains this
    filter: Option<String>,
    /// Run only on this machine; may be repeated
    #[arg(long, value_parser = MACHINES)]
    machine: Vec<String>,
    /// Run also the cases that take long
    #[arg(long)]
    full: bool,
    /// Runs at the same time; default: half as many again as there are processors, because guests often wait
    #[arg(long, default_value_t = runner::jobs())]
    jobs: usize,
    /// Only list the cases
    #[arg(long)]
    list: bool,
    /// Only build the kernels and programs that the cases run, into this directory
    #[arg(long, value_name = "DIR")]
    kits: Option<PathBuf>,
    /// Run the one case of this whole name in this process, with the kits of --kits
    #[arg(long, value_name = "NAME", requires = "kits", hide = true)]
    only: Option<String>,
    /// The pal program; default: the one next to this program
    #[arg(long, env = "PAL")]
    pal: Option<PathBuf>,
}

/// One case on one machine, in one mode of the hypervisor if it is not the default.
struct Run {
    name: String,
    case: &'static Case,
    machine: &'static str,
    mode: Option<&'static str>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match perform(&options) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what was asked for and returns the number of failures.
fn perform(options: &Options) -> Result<usize> {
    let runs = select(options);
    if options.list {
        let mut out = std::io::stdout().lock();
        // The reader may have seen enough.
        let _the_pipe_is_closed = runs.iter().try_for_each(|run| writeln!(out, "{}", run.name));
        return Ok(0);
    }
    if let (Some(dir), None) = (&options.kits, &options.only) {
        std::fs::create_dir_all(dir)?;
        Kits::build(&std::path::absolute(dir)?)?;
        return Ok(0);
    }
    let pal = match &options.pal {
        Some(pal) => std::path::absolute(pal)?,
        None => std::env::current_exe()?.with_file_name("pal"),
    };
    anyhow::ensure!(pal.is_file(), "{}: no such program; `cargo build -p pal` builds it", pal.display());
    if let (Some(name), Some(kits)) = (&options.only, &options.kits) {
        let run = runs.iter().find(|run| run.name == *name).context("no such case")?;
        return Ok(usize::from(!runner::perform(run, &pal, &Kits::built(kits))));
    }
    let kits = tempfile::tempdir()?;
    Kits::build(kits.path())?;
    let names = runs.into_iter().map(|run| run.name).collect();
    runner::run_all(names, &runner::Places { pal: &pal, kits: kits.path() }, options.jobs)
}

fn select(options: &Options) -> Vec<Run> {
    let wanted = |machine: &&&'static str| {
        options.machine.is_empty() || options.machine.iter().any(|name| name == **machine)
    };
    let full = options.full || options.only.is_some();
    let mut runs = Vec::new();
    for machine in MACHINES.iter().filter(wanted) {
        for case in cases::all() {
            let applies = match case.on {
                On::Both => !machine.starts_with("bochs"),
                On::Hypervisor => *machine == "qemu-svm" || full && *machine == "native",
                On::Only(name) => name == *machine,
            };
            if !applies || case.full && !full {
                continue;
            }
            let (modes, more): (&[_], &[_]) = match *machine {
                "native" => (&[], &[]),
                _ if full => (case.modes, case.more_modes),
                _ => (case.modes, &[]),
            };
            for mode in iter::once(None).chain(modes.iter().chain(more).map(|mode| Some(*mode))) {
                let suffix = mode.map_or_else(String::new, |mode| format!(", {mode}"));
                let name = format!("{machine}/{}{suffix}", case.name);
                if options.filter.as_deref().is_none_or(|filter| name.contains(filter)) {
                    runs.push(Run { name, case, machine, mode });
                }
            }
        }
    }
    runs
}
