//! `pal sweep`: comparisons on several machines as a Snakemake workflow (`tools/sweep`), with as many jobs as cells: here, or on a
//! cluster. `pal compare` knows what the cells are; this makes Snakemake's environment and starts it.

use std::{env, os::unix::process::CommandExt, path::PathBuf, process::Command, thread};

use anyhow::{Context, Result};
use clap::Args;

use crate::{
    host::{needs::Needs, python::Environment},
    project::Project,
    status::Usage,
    ui::Ui,
};

const EXAMPLES: &str = "\
Examples:
  cargo pal sweep sweep.yaml -n       what would be run
  cargo pal sweep sweep.yaml -o out   run it; typed again, it goes on where it was
  cargo pal sweep sweep.yaml -o out -j 200 -- --executor slurm

FILE has lists of machines, workloads and policies (docs/policies.md, Sweeps). \
DIR gets a table for each machine, as `cargo pal compare` makes it (JSON, CSV, HTML), and a folder with its cells. \
The first sweep fetches Snakemake into target/pal, once.

Exit status: 0; 1 if a cell failed, or Snakemake refused; 2 usage.";

const ENVIRONMENT: Environment = Environment {
    cache: "sweep",
    of: "the sweep",
    lists: &["tools/sweep/build-requirements.txt", "tools/sweep/requirements.txt"],
};

/// Options of `pal sweep`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SweepArgs {
    /// What is compared, in YAML
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where tables and cells are kept
    #[arg(short, long, value_name = "DIR", default_value = "sweep")]
    pub output: PathBuf,
    /// Cells that run side by side. Default: as many as this machine has processors
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub jobs: Option<u32>,
    /// Say what would be run, and run nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Options of Snakemake, which come last and count
    #[arg(last = true, value_name = "OPTIONS")]
    pub snakemake: Vec<String>,
}

/// Has Snakemake run the workflow, and does not come back.
///
/// # Errors
/// [`Usage`] for a file or folder that cannot be used; the environment cannot be made.
pub fn run(args: &SweepArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let SweepArgs { file, output, jobs, dry_run, yes, snakemake } = args;
    let file = file.canonicalize().map_err(|error| {
        Usage::new(format!("{}: {error}; tools/sweep/example.yaml shows what it has", file.display()))
    })?;
    std::fs::create_dir_all(output).map_err(|error| {
        Usage::new(format!("--output {}: {error}; choose another place", output.display()))
    })?;
    let python = Needs { project, ui, yes: *yes }.python_of(&ENVIRONMENT)?;
    let processors = thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let jobs = jobs.map_or(processors, |jobs| jobs as usize);
    let mut command = Command::new(python);
    command.args(["-m", "snakemake", "--snakefile"]).arg(project.root.join("tools/sweep/Snakefile"));
    command.arg("--configfile").arg(file).args(["--config", &config("pal", env::current_exe()?)?]);
    command.arg(config("here", env::current_dir()?)?).arg("--directory").arg(output);
    // What runs is then on the terminal, and the log of what failed.
    command.args(["--jobs", &jobs.to_string(), "--show-failed-logs", "--keep-going", "--rerun-incomplete"]);
    command.args(dry_run.then_some("--dry-run")).args(snakemake);
    // In the place of this program: signals mean what Snakemake's manual says, and the status is its own.
    Err(command.exec()).context("cannot start Snakemake")
}

/// A word for Snakemake's configuration: text, whatever is in it.
fn config(key: &str, path: PathBuf) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))?;
    Ok(format!("{key}={}", serde_json::Value::from(text)))
}
