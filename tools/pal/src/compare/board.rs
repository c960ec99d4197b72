//! Cells side by side: what is still to be run, what came of the rest, and what all cells depend on.

use std::{
    collections::{BTreeMap, VecDeque},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    cell::{self, Cell, Plan},
    cells::Cells,
    store::Failed,
};
use crate::{
    host::{needs::Needs, qemu::Emulator},
    ui::Ui,
    workload::{find, record::EndedBySignal, runner::Setup},
};

/// What cells are run with, and the hash of it.
pub struct Bench<'a> {
    setup: Setup<'a>,
    inputs: String,
    jobs: usize,
    cells: Option<Cells>,
}

impl<'a> Bench<'a> {
    /// Builds or finds everything; files that runs need for a moment lie in `scratch`. `description` is the lab machine's. `kit`:
    /// guests load the guest kit. `jobs`: cells side by side, as many as processors by default.
    ///
    /// # Errors
    /// Something is missing here, or does not compile.
    pub fn new(
        needs: &'a Needs<'a>,
        scratch: &Path,
        description: &str,
        kit: bool,
        jobs: Option<u32>,
    ) -> Result<Bench<'a>> {
        let setup = Setup::new(needs, true, kit, scratch).context(if kit {
            "guests load the guest kit, so that page faults are known with nested paging; --no-kit does without"
        } else {
            "workloads cannot be run"
        })?;
        let plugin = needs.lab_plugin()?;
        let qemu = Command::new(&Emulator::with_plugins(None, needs)?.program).arg("--version").output()?;
        let files = [&setup.hypervisor, &setup.kernel, &setup.initrd, &plugin].map(|path| path.as_path());
        let inputs = cell::inputs(&files, &[description, &String::from_utf8_lossy(&qemu.stdout)])?;
        let processors = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Ok(Bench { setup, inputs, jobs: jobs.map_or_else(processors, |jobs| jobs as usize), cells: None })
    }

    /// Has each cell kept in a file of its own as well.
    pub fn keeping(self, cells: Option<Cells>) -> Bench<'a> {
        Bench { cells, ..self }
    }

    /// Where cells are kept in files of their own.
    pub const fn kept_in(&self) -> Option<&Cells> {
        self.cells.as_ref()
    }

    /// Where the log of a cell is, if it is kept.
    pub fn log(&self, plan: &Plan) -> Option<PathBuf> {
        plan.log(&self.inputs_of(plan))
    }

    /// Whether two cells are the same run.
    pub fn is_alike(&self, one: &Plan, other: &Plan) -> bool {
        self.inputs_of(one) == self.inputs_of(other)
    }

    /// The hash of all that a cell depends on, also of the versions of the programs that are fetched for its workload. Where these
    /// are not to be had the cell will say so itself.
    fn inputs_of(&self, plan: &Plan) -> String {
        let packages = find(plan.workload).ok().and_then(|workload| self.setup.packages(workload).ok()?);
        cell::inputs_of(plan, &format!("{} {}", self.inputs, packages.unwrap_or_default().join(" ")))
    }

    /// Runs the cells of `plans` that `kept` lacks; after each of them everything is kept by `save`. Returns all cells of `plans`,
    /// and those that failed.
    ///
    /// # Errors
    /// `save`'s.
    pub fn perform(
        &self,
        plans: &[Plan],
        kept: &[Cell],
        ui: &Ui,
        save: impl Fn(&[Cell], &[Failed]) -> Result<()> + Sync,
    ) -> Result<(Vec<Cell>, Vec<Failed>)> {
        let board = Board::new(plans, |plan| self.inputs_of(plan), kept);
        if let Some(cells) = &self.cells {
            board.lock().cells.iter().try_for_each(|(number, cell)| cells.add(&plans[*number], cell))?;
        }
        let reused = board.lock().cells.len();
        if reused > 0 {
            ui.say(&format!("{reused} of {} cells are there already", plans.len()));
        }
        let _step = ui.step("comparing");
        thread::scope(|scope| {
            let work = || board.work(self, ui, &save);
            let workers: Vec<_> = (0..self.jobs).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no thread panics"))
        })?;
        let state = board.0.into_inner().expect("the threads have ended");
        Ok((state.cells(), state.failed))
    }
}

/// What is still to be run, and what came of the rest.
struct State {
    /// Numbers of plans, the plans, and the hashes of what they depend on.
    queue: VecDeque<(usize, Plan, String)>,
    /// By the number of the plan: the order does not depend on which of two ends first.
    cells: BTreeMap<usize, Cell>,
    failed: Vec<Failed>,
    all: usize,
}

impl State {
    fn cells(&self) -> Vec<Cell> {
        self.cells.values().cloned().collect()
    }
}

/// The state, shared by threads that run cells.
struct Board(Mutex<State>);

impl Board {
    /// Cells of the same inputs are kept, if their log is still there where one is asked for.
    fn new(plans: &[Plan], inputs_of: impl Fn(&Plan) -> String, kept: &[Cell]) -> Board {
        let (mut queue, mut cells) = (VecDeque::new(), BTreeMap::new());
        for (number, plan) in plans.iter().enumerate() {
            let inputs = inputs_of(plan);
            let known = kept.iter().find(|cell| cell.inputs == inputs);
            match known.filter(|_| plan.log(&inputs).is_none_or(|log| log.exists())) {
                // Of the same inputs, but possibly under another name.
                Some(cell) => {
                    cells.insert(number, Cell { policy: plan.policy.clone(), ..cell.clone() });
                }
                None => queue.push_back((number, plan.clone(), inputs)),
            }
        }
        Board(Mutex::new(State { queue, cells, failed: Vec::new(), all: plans.len() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics with the lock")
    }

    /// Runs cells until none is left; after each of them everything is kept by `save`.
    fn work(&self, bench: &Bench, ui: &Ui, save: impl Fn(&[Cell], &[Failed]) -> Result<()>) -> Result<()> {
        loop {
            let Some((number, plan, inputs)) = self.lock().queue.pop_front() else { return Ok(()) };
            let start = Instant::now();
            let done = find(plan.workload)
                .map_err(Into::into)
                .and_then(|workload| plan.perform(&bench.setup, workload, inputs));
            let seconds = start.elapsed().as_secs();
            if done.as_ref().is_err_and(|error| error.is::<EndedBySignal>()) {
                // Ctrl-C in a terminal goes to the run and to this process, which ends in a moment (`Scratch`): the run's end is no
                // failure then. If this process is still there after that, the run alone was ended.
                thread::sleep(Duration::from_secs(1));
            }
            let mut state = self.lock();
            let Plan { workload, policy, seed, .. } = &plan;
            let done_by_now = state.cells.len() + state.failed.len() + 1;
            let name = format!("{done_by_now} of {}: {workload}, {policy}, seed {seed}", state.all);
            match done {
                Ok(cell) => {
                    if let Some(cells) = &bench.cells {
                        cells.write(&plan, &cell)?;
                    }
                    ui.say(&format!("{name}: {:.1} Mcycles ({seconds} s)", cell.cycles() as f64 / 1e6));
                    state.cells.insert(number, cell);
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
            save(&state.cells(), &state.failed)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plan::words;

    fn plan(policy: &str) -> Plan {
        let (policy, mode) = (policy.to_owned(), policy.to_owned());
        Plan {
            name: format!("gups-{policy}"),
            workload: "gups",
            policy,
            mode,
            seed: 1,
            scale_milli: 1000,
            options: words(&["--lab"]),
            logs: None,
        }
    }

    fn cell(plan: &Plan, all: &str) -> Cell {
        Cell { policy: plan.policy.clone(), inputs: cell::inputs_of(plan, all), ..Cell::default() }
    }

    #[test]
    fn cells_of_the_same_inputs_are_kept() {
        let plans = [plan("nested"), plan("shadow")];
        let board = Board::new(
            &plans,
            |plan| cell::inputs_of(plan, "all"),
            &[cell(&plans[1], "all"), cell(&plans[0], "other")],
        );
        let state = board.lock();
        assert_eq!((state.cells.len(), state.queue.len()), (1, 1));
        assert_eq!((state.cells[&1].policy.as_str(), state.queue[0].1.policy.as_str()), ("shadow", "nested"));
    }

    #[test]
    fn cells_are_in_the_order_of_the_plans() {
        let plans = ["nested", "shadow", "random"].map(plan);
        let board = Board::new(&plans, |plan| cell::inputs_of(plan, "all"), &[cell(&plans[1], "all")]);
        let mut state = board.lock();
        // The last one ends first.
        while let Some((number, plan, _)) = state.queue.pop_back() {
            state.cells.insert(number, cell(&plan, "all"));
        }
        let names: Vec<_> = state.cells().into_iter().map(|cell| cell.policy).collect();
        assert_eq!(names, ["nested", "shadow", "random"]);
    }

    #[test]
    fn a_cell_whose_log_is_gone_is_run_again() {
        let logs = tempfile::tempdir().unwrap();
        let plan = Plan { logs: Some(logs.path().to_owned()), ..plan("nested") };
        let kept = [cell(&plan, "all")];
        let inputs = |plan: &Plan| cell::inputs_of(plan, "all");
        let is_kept = || Board::new(std::slice::from_ref(&plan), inputs, &kept).lock().cells.len() == 1;
        assert!(!is_kept());
        std::fs::write(plan.log(&kept[0].inputs).unwrap(), "").unwrap();
        assert!(is_kept());
    }
}
