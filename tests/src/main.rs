//! End-to-end tests: a plain list of cases, each of which runs `pal` and looks at its output and status.
//!
//! `cargo pal test` runs them all; `cargo run -p e2e -- FILTER` runs those whose name contains FILTER.

mod cases;
mod context;
mod kit;
mod pty;
mod screen;

use std::{
    collections::VecDeque,
    iter,
    path::PathBuf,
    process::ExitCode,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
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
    /// Runs at the same time
    #[arg(long, default_value_t = thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Only list the cases
    #[arg(long)]
    list: bool,
    /// Only build the kernels and programs that the cases run, into this directory
    #[arg(long, value_name = "DIR")]
    kits: Option<PathBuf>,
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

struct Report {
    name: String,
    took: Duration,
    result: Result<()>,
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
        runs.iter().for_each(|run| println!("{}", run.name));
        return Ok(0);
    }
    if let Some(dir) = &options.kits {
        std::fs::create_dir_all(dir)?;
        Kits::build(&std::path::absolute(dir)?)?;
        return Ok(0);
    }
    let pal = match &options.pal {
        Some(pal) => std::path::absolute(pal)?,
        None => std::env::current_exe()?.with_file_name("pal"),
    };
    anyhow::ensure!(pal.is_file(), "{}: no such program; `cargo build -p pal` builds it", pal.display());
    let shared = tempfile::tempdir()?;
    let kits = Kits::build(shared.path())?;

    let start = Instant::now();
    let queue = Mutex::new(runs.into_iter().collect::<VecDeque<_>>());
    let reports = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(run) = { queue.lock().expect("no thread panics with the lock").pop_front() } {
                    let report = perform_one(&run, &pal, &kits);
                    print(&report);
                    reports.lock().expect("no thread panics with the lock").push(report);
                }
            });
        }
    });
    let reports = reports.into_inner().expect("the threads have ended");
    let failed: Vec<_> = reports.iter().filter(|report| report.result.is_err()).collect();
    for report in &failed {
        println!("FAILED {}", report.name);
    }
    let seconds = start.elapsed().as_secs();
    println!("e2e: {} passed, {} failed in {seconds} s", reports.len() - failed.len(), failed.len());
    Ok(failed.len())
}

fn select(options: &Options) -> Vec<Run> {
    let wanted = |machine: &&&'static str| {
        options.machine.is_empty() || options.machine.iter().any(|name| name == **machine)
    };
    let mut runs = Vec::new();
    for machine in MACHINES.iter().filter(wanted) {
        for case in cases::all() {
            let applies = match case.on {
                On::Both => !machine.starts_with("bochs"),
                On::Only(name) => name == *machine,
            };
            if !applies || case.full && !options.full {
                continue;
            }
            let (modes, more): (&[_], &[_]) = match *machine {
                "native" => (&[], &[]),
                _ if options.full => (case.modes, case.more_modes),
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

fn perform_one(run: &Run, pal: &std::path::Path, kits: &Kits) -> Report {
    let start = Instant::now();
    let result =
        Context::new(pal, kits, run.machine, run.mode).and_then(|context| (run.case.check)(&context));
    Report { name: run.name.clone(), took: start.elapsed(), result }
}

fn print(report: &Report) {
    let seconds = report.took.as_secs_f32();
    match &report.result {
        Ok(()) => println!("ok     {} ({seconds:.1} s)", report.name),
        Err(error) => println!("FAILED {} ({seconds:.1} s)\n{}", report.name, indent(&format!("{error:#}"))),
    }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
