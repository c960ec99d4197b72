//! `pal train` and `pal evaluate`: linear policies and schedules from files of samples, and what policies would have gained in one.
//!
//! What is typed is checked here; the work is done by `tools/train`, a Python package in an environment of its own ([`python`]).
//! Decisions of policies come from the hypervisor's own code (`tools/policy-replay`), models are read by [`model`].

pub mod model;
pub mod python;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::{
    cli::{Mode, value_name},
    host::needs::Needs,
    project::Project,
    status::{Usage, exit},
    ui::Ui,
};

/// The policies that are trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Trainable {
    /// From logs of `random`: one run of each workload is enough
    DspOffset,
    /// From runs of the same workloads with `nested` and with `shadow`, and of --enumerate
    AspSvm,
    /// From runs of one workload with `nested` and with `shadow`: a schedule, for upper bounds
    Oracle,
}

/// Options of `pal train`.
#[derive(Args)]
#[command(after_help = crate::cli::help::TRAIN)]
pub struct TrainArgs {
    /// The policy
    #[arg(value_enum)]
    pub policy: Trainable,
    /// Files of samples (`cargo pal run --samples FILE`)
    #[arg(required = true, value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// The model
    #[arg(short, long, value_name = "FILE", default_value = "model.toml")]
    pub output: PathBuf,
    /// A model for each workload, named after its log, instead of one for all
    #[arg(long)]
    pub specific: bool,
    /// Milliseconds of the model's intervals, for asp-svm; dsp-offset takes those of its logs. Default: 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub interval_ms: Option<u32>,
    /// What a change of the engine costs, for oracle: a schedule has none that gains less. Default: 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32))]
    pub change_cycles: Option<u32>,
    /// For asp-svm, in the place of a model: write to DIR the schedules of runs with the other engine in one phase alone, for each
    /// phase and engine; their logs, with those of `nested` and `shadow`, are what it was published to learn from
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output", "specific"])]
    pub enumerate: Option<PathBuf>,
    /// When the work of each log began, in milliseconds of its VM, in the order of the logs: nothing is learnt from what was before,
    /// the guest's boot. With --enumerate that of the first log is enough
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=LAST_MS))]
    pub begin_ms: Vec<u64>,
    /// When it ended
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(..=LAST_MS))]
    pub end_ms: Vec<u64>,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

impl TrainArgs {
    /// A model of these logs, with the defaults.
    pub fn of(policy: Trainable, logs: Vec<PathBuf>, output: PathBuf) -> TrainArgs {
        TrainArgs {
            policy,
            logs,
            output,
            specific: false,
            interval_ms: None,
            change_cycles: None,
            enumerate: None,
            begin_ms: vec![],
            end_ms: vec![],
            yes: false,
        }
    }

    /// Has it learn from the work of each log alone, as far as it is known when that began and ended.
    pub fn of_work(self, work_ns: &[Option<(u64, u64)>]) -> TrainArgs {
        const NANOS_PER_MS: u64 = 1_000_000;
        // Where it is not known, all of the log is work.
        let begin = work_ns.iter().map(|work| work.map_or(0, |(begin, _)| begin / NANOS_PER_MS));
        let end = work_ns.iter().map(|work| work.map_or(LAST_MS, |(_, end)| end.div_ceil(NANOS_PER_MS)));
        TrainArgs { begin_ms: begin.collect(), end_ms: end.collect(), ..self }
    }
}

/// Beyond the end of any log.
const LAST_MS: u64 = u32::MAX as u64;

/// Options of `pal evaluate`.
#[derive(Args)]
#[command(after_help = crate::cli::help::EVALUATE)]
pub struct EvaluateArgs {
    /// A file of samples of a run with `--policy random`
    #[arg(long, value_name = "LOG")]
    pub log: PathBuf,
    /// A policy: nested, shadow, threshold, dsp-offset or asp-svm, with its parameters; may be repeated
    #[arg(long, required = true, value_name = "NAME[,key=value]")]
    pub policy: Vec<String>,
    /// A file of samples of the same work under one of these policies: what it gained there is shown beside the estimates; may be
    /// repeated, and takes runs of `nested` and `shadow` to compare with
    #[arg(long, value_name = "LOG")]
    pub run: Vec<PathBuf>,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// Trains a model, and prints what was learnt.
///
/// # Errors
/// As [`learn`]'s.
pub fn train(args: &TrainArgs, project: &Project, ui: &Ui) -> Result<u8> {
    print!("{}", learn(args, project, ui)?);
    Ok(0)
}

/// Trains a model; what was learnt.
///
/// # Errors
/// The environment cannot be made; [`Usage`] for options that do not fit together, and logs that nothing can be learnt from.
pub fn learn(args: &TrainArgs, project: &Project, ui: &Ui) -> Result<String> {
    if args.interval_ms.is_some() && args.policy != Trainable::AspSvm {
        let why = "--interval-ms is for asp-svm: dsp-offset takes the intervals that its logs were made with \
                   (`--policy random,interval_ms=N`)";
        return Err(Usage::new(why).into());
    }
    if args.change_cycles.is_some() && args.policy != Trainable::Oracle {
        return Err(Usage::new(
            "--change-cycles is for oracle: the others learn from logs what changes cost",
        )
        .into());
    }
    if args.policy == Trainable::Oracle && !(args.begin_ms.is_empty() && args.end_ms.is_empty()) {
        let why =
            "--begin-ms and --end-ms are for dsp-offset and asp-svm: a schedule is of a run from its start";
        return Err(Usage::new(why).into());
    }
    if args.enumerate.is_some() && args.policy != Trainable::AspSvm {
        return Err(Usage::new("--enumerate is for asp-svm: the others learn from one run or two").into());
    }
    let python = Needs { project, ui, yes: args.yes }.trainer()?;
    let mut command = python::command(project, &python);
    command.args(["palimpsest_train", "train", &value_name(args.policy)]);
    if let Some(folder) = &args.enumerate {
        command.arg("--enumerate").arg(folder);
    }
    command.args(args.begin_ms.iter().map(|ms| format!("--begin-ms={ms}")));
    command.args(args.end_ms.iter().map(|ms| format!("--end-ms={ms}")));
    command.arg("--output").arg(&args.output).args(args.specific.then_some("--specific"));
    command.args(args.interval_ms.map(|ms| format!("--interval-ms={ms}")));
    command.args(args.change_cycles.map(|cycles| format!("--change-cycles={cycles}")));
    // Behind `--` a name that begins with a hyphen is a name.
    perform(command.arg("--").args(&args.logs), ui)
}

/// Judges policies by a log.
///
/// # Errors
/// The environment cannot be made; [`Usage`] for what is no policy.
pub fn evaluate(args: &EvaluateArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let read = |word: &String| -> Result<(String, Mode), Usage> {
        let mode = model::mode(word).map_err(|why| Usage::new(format!("--policy {word}: {why}")))?;
        Ok((word.clone(), mode))
    };
    let policies = args.policy.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let needs = Needs { project, ui, yes: args.yes };
    let python = needs.trainer()?;
    let mut command = python::command(project, &python);
    command.args(["palimpsest_train", "evaluate", "--replay"]).arg(needs.policy_replay()?);
    command.arg("--log").arg(&args.log);
    for run in &args.run {
        command.arg("--run").arg(run);
    }
    for (word, mode) in &policies {
        command.args(["--policy", word, &mode.to_string()]);
    }
    print!("{}", perform(&mut command, ui)?);
    Ok(0)
}

impl Needs<'_> {
    /// The hypervisor's policies as a program, built from this checkout.
    ///
    /// # Errors
    /// The build fails.
    pub fn policy_replay(&self) -> Result<PathBuf> {
        let mut command = self.project.cargo();
        // With the features of all packages: what other builds of this checkout have left fits.
        command.args(["build", "--quiet", "--bin", "policy-replay"]);
        self.ui.run("building the policies", &mut command)?;
        Ok(self.project.target.join("debug/policy-replay"))
    }
}

/// Runs the trainer, and returns what it printed; what it refuses is this command's error.
fn perform(command: &mut Command, ui: &Ui) -> Result<String> {
    let done = command
        .output()
        .with_context(|| format!("cannot start {}", Path::new(command.get_program()).display()))?;
    let said = String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => {
            if !said.trim().is_empty() {
                ui.warn(&said);
            }
            Ok(String::from_utf8_lossy(&done.stdout).into_owned())
        }
        Some(code) if code == i32::from(exit::USAGE) => Err(Usage::new(said.trim()).into()),
        _ => anyhow::bail!("the trainer failed ({}): {}", done.status, said.trim()),
    }
}
