//! `pal compare`: policies on workloads, side by side on one lab machine. Each [`cell`] is one deterministic `pal run`;
//! [`results`] has medians and what they are relative to; [`table`], [`page`] and [`store`] show and keep them.

pub mod args;
mod cell;
mod page;
mod results;
mod store;
mod table;

use std::{collections::VecDeque, num::NonZeroUsize, process::Command, sync::Mutex, thread, time::Instant};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    host::{needs::Needs, qemu::Emulator},
    project::Project,
    status::{Usage, exit},
    ui::Ui,
    workload::{
        find,
        runner::{self, Setup},
    },
};
use args::CompareArgs;
use cell::{Cell, Plan};
use store::Failed;

/// The policies that need no model.
const POLICIES: [&str; 7] = ["nested", "shadow", "random", "threshold", "dsp-sample", "dav2m", "bandit"];
/// The same with windows for `--quick`: a tenth of the default, or less where that would last for most of a run.
const QUICK_POLICIES: [&str; 7] = [
    "nested",
    "shadow",
    "random,interval_ms=20",
    "threshold,interval_ms=20",
    "dsp-sample,interval_ms=10,explore=2,exploit=20",
    "dav2m,window_inst=2000000,window_vexit=2000000,window_tmiss=10000000,window_trans=100000000,window_prepaging=4000000,threshold_vexit=20,threshold_tmiss=2000",
    "bandit,interval_ms=10",
];
/// Some workloads of each kind.
const WORKLOADS: [&str; 7] = ["chase", "gups", "fork-exec", "mmap-churn", "phases", "phases-fork", "matmul"];
/// One of each kind.
const QUICK_WORKLOADS: [&str; 3] = ["chase", "mmap-churn", "phases"];
/// Scales in thousandths.
const SCALE: u32 = 4000;
const QUICK_SCALE: u32 = 1000;

/// What was asked for, checked.
struct Comparison {
    policies: Vec<String>,
    workloads: Vec<String>,
    plans: Vec<Plan>,
}

impl Comparison {
    /// # Errors
    /// [`Usage`] for names and parameters that there are not.
    fn new(args: &CompareArgs) -> Result<Comparison> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let policies = match (args.policies.is_empty(), args.quick) {
            (true, true) => words(&QUICK_POLICIES),
            (true, false) => words(&POLICIES),
            (false, _) => args::policies(&args.policies),
        };
        let mut workloads = match (args.workloads.is_empty(), args.quick) {
            (true, true) => words(&QUICK_WORKLOADS),
            (true, false) => words(&WORKLOADS),
            (false, _) => args.workloads.clone(),
        };
        let mut known = Vec::new();
        workloads.retain(|name| {
            !known.contains(name) && {
                known.push(name.clone());
                true
            }
        });
        let scale_milli = args.scale.unwrap_or(if args.quick { QUICK_SCALE } else { SCALE });
        let mut options = words(&["--lab", &args.lab]);
        if let Some(size) = args.nested_page {
            options.extend(["--nested-page".to_owned(), size.name().to_owned()]);
        }
        if args.lab_time {
            options.push("--lab-time".to_owned());
        }
        if args.yes {
            options.push("--yes".to_owned());
        }
        let mut plans = Vec::new();
        for workload in &workloads {
            let workload = find(workload)?.name;
            for policy in &policies {
                plans.extend((1..=args.seeds).map(|seed| Plan {
                    workload,
                    policy: policy.clone(),
                    seed,
                    scale_milli,
                    options: options.clone(),
                }));
            }
        }
        // Wrong parameters are found before anything is built.
        for policy in &policies {
            let wrong = |error| Usage::new(format!("--policies {policy}: {error}"));
            runner::options(&["--mode".to_owned(), policy.clone()]).map_err(wrong)?;
        }
        Ok(Comparison { policies, workloads, plans })
    }
}

/// Compares, and returns the exit status.
///
/// # Errors
/// [`Usage`] for names, and files that cannot be used; what is missing on this machine.
pub fn run(args: &CompareArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let comparison = Comparison::new(args)?;
    let (description, _) = crate::lab::find(&args.lab)?;
    let kept = args.json.as_deref().map_or_else(|| Ok(Vec::new()), store::read)?;
    for path in [&args.json, &args.csv, &args.html].into_iter().flatten() {
        let open = std::fs::OpenOptions::new().create(true).append(true).open(path);
        open.map_err(|error| Usage::new(format!("{}: {error}; choose another place", path.display())))?;
    }
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = tempfile::Builder::new().prefix("pal-").tempdir()?;
    let setup = Setup::new(&needs, true, scratch.path())?;
    let plugin = needs.lab_plugin()?;
    let qemu = Command::new(&Emulator::with_plugins(None, &needs)?.program).arg("--version").output()?;
    let files = [&setup.hypervisor, &setup.kernel, &setup.initrd, &plugin].map(|path| path.as_path());
    let inputs = cell::inputs(&files, &[&description, &String::from_utf8_lossy(&qemu.stdout)])?;

    let board = Board::new(&comparison, &inputs, kept);
    let about = json!({ "lab": args.lab, "nested_page": args.nested_page.unwrap_or_default().name(), "lab_time": args.lab_time, "seeds": args.seeds, "version": env!("CARGO_PKG_VERSION") });
    {
        let reused = board.lock().cells.len();
        if reused > 0 {
            ui.say(&format!("{reused} of {} cells are in the file already", comparison.plans.len()));
        }
        let _step = ui.step("comparing");
        let jobs = args.jobs.map_or_else(
            || thread::available_parallelism().map_or(1, NonZeroUsize::get),
            |jobs| jobs as usize,
        );
        thread::scope(|scope| {
            let work =
                || board.work(&setup, ui, |cells, failed| save(args, &comparison, &about, cells, failed));
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
        })?;
    }
    finish(args, &comparison, &about, &description, board.end(), ui)
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
    let Comparison { policies, workloads, .. } = comparison;
    save(args, comparison, about, &cells, &failed)?;
    let rows = results::rows(&cells, workloads, policies);
    let overall = results::overall(&rows, workloads, policies);
    print!("{}", table::text(&rows, &overall, &args.lab));
    if let Some(path) = &args.csv {
        store::write(path, table::csv(&cells, &rows).as_bytes())?;
    }
    if let Some(path) = &args.html {
        store::write(path, page::page(&rows, &overall, &failed, &args.lab, description)?.as_bytes())?;
    }
    let disagreements = results::disagreements(&cells, workloads);
    for workload in &disagreements {
        ui.error(&format!("{workload}: the checksums of its cells differ; --json FILE has all of them"));
    }
    if !failed.is_empty() {
        ui.error(&format!("{} of {} cells failed", failed.len(), comparison.plans.len()));
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
    let rows = results::rows(cells, &comparison.workloads, &comparison.policies);
    let overall = results::overall(&rows, &comparison.workloads, &comparison.policies);
    let document = store::document(about, cells, failed, &rows, &overall);
    store::write(path, (document.to_string() + "\n").as_bytes())
}

/// What is still to be run, and what came of the rest.
struct State {
    queue: VecDeque<(Plan, String)>,
    cells: Vec<Cell>,
    failed: Vec<Failed>,
    all: usize,
}

/// The state, shared by threads that run cells.
struct Board(Mutex<State>);

impl Board {
    /// Cells of the same inputs are kept.
    fn new(comparison: &Comparison, inputs: &str, kept: Vec<Cell>) -> Board {
        let plans = comparison.plans.iter().map(|plan| (plan.clone(), cell::inputs_of(plan, inputs)));
        let is_known = |inputs: &str| kept.iter().any(|cell| cell.inputs == inputs);
        let (known, queue): (Vec<_>, VecDeque<_>) = {
            let (known, queue): (Vec<_>, Vec<_>) = plans.partition(|(_, inputs)| is_known(inputs));
            (known, queue.into())
        };
        let cells =
            kept.into_iter().filter(|cell| known.iter().any(|(_, inputs)| *inputs == cell.inputs)).collect();
        Board(Mutex::new(State { queue, cells, failed: Vec::new(), all: comparison.plans.len() }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics with the lock")
    }

    /// Runs cells until none is left; after each of them everything is kept by `save`.
    fn work(&self, setup: &Setup, ui: &Ui, save: impl Fn(&[Cell], &[Failed]) -> Result<()>) -> Result<()> {
        loop {
            let Some((plan, inputs)) = self.lock().queue.pop_front() else { return Ok(()) };
            let start = Instant::now();
            let done = find(plan.workload)
                .map_err(Into::into)
                .and_then(|workload| plan.perform(setup, workload, inputs));
            let seconds = start.elapsed().as_secs();
            let mut state = self.lock();
            let Plan { workload, policy, seed, .. } = &plan;
            let number = state.cells.len() + state.failed.len() + 1;
            let name = format!("{number} of {}: {workload}, {policy}, seed {seed}", state.all);
            match done {
                Ok(cell) => {
                    ui.say(&format!("{name}: {:.1} Mcycles ({seconds} s)", cell.cycles() as f64 / 1e6));
                    state.cells.push(cell);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    ui.error(&format!("{name}: {why}"));
                    state.failed.push(Failed {
                        workload: (*workload).to_owned(),
                        policy: policy.clone(),
                        seed: *seed,
                        why,
                    });
                }
            }
            save(&state.cells, &state.failed)?;
        }
    }

    /// The cells and failures, in the order of workloads, policies and seeds' own.
    fn end(self) -> (Vec<Cell>, Vec<Failed>) {
        let state = self.0.into_inner().expect("the threads have ended");
        (state.cells, state.failed)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command as Subcommand};

    fn comparison(words: &[&str]) -> Result<Comparison> {
        let line = ["pal", "compare"].iter().chain(words);
        let Subcommand::Compare(args) = Cli::try_parse_from(line)?.command else { panic!("compare") };
        Comparison::new(&args)
    }

    #[test]
    fn defaults_are_policies_and_workloads_that_there_are() {
        let full = comparison(&[]).unwrap();
        assert_eq!((full.policies.len(), full.plans.len()), (7, 7 * WORKLOADS.len()));
        let quick = comparison(&["--quick"]).unwrap();
        assert_eq!(quick.plans.len(), 7 * QUICK_WORKLOADS.len());
        assert_eq!(quick.plans[0].scale_milli, QUICK_SCALE);
        let names = |policies: &[String]| {
            policies.iter().map(|policy| policy.split(',').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&full.policies), names(&quick.policies));
    }

    #[test]
    fn each_cell_is_planned_once() {
        let words = [
            "--policies",
            "nested,shadow",
            "nested",
            "--workloads",
            "gups,gups,matmul",
            "--seeds",
            "3",
            "--scale",
            "0.5",
        ];
        let plans = comparison(&words).unwrap().plans;
        assert_eq!((plans.len(), plans[0].seed, plans[11].seed, plans[5].scale_milli), (12, 1, 3, 500));
    }

    #[test]
    fn wrong_names_are_usage() {
        for (words, why) in [
            (&["--policies", "dav3m"][..], "dav3m"),
            (&["--policies", "dav2m,window=3"], "window_inst"),
            (&["--workloads", "gup"], "gups"),
        ] {
            let error = comparison(words).err().unwrap();
            assert!(error.is::<Usage>() && error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn cells_of_the_same_inputs_are_kept() {
        let comparison = comparison(&["--policies", "nested,shadow", "--workloads", "gups"]).unwrap();
        let cell = |at: usize, all: &str| Cell {
            policy: comparison.plans[at].policy.clone(),
            inputs: cell::inputs_of(&comparison.plans[at], all),
            ..Cell::default()
        };
        let board = Board::new(&comparison, "all", vec![cell(1, "all"), cell(0, "other")]);
        let state = board.lock();
        assert_eq!((state.cells.len(), state.queue.len()), (1, 1));
        assert_eq!((state.cells[0].policy.as_str(), state.queue[0].0.policy.as_str()), ("shadow", "nested"));
    }
}
