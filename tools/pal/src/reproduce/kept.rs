//! Results of runs, which are kept in a file as soon as each run has ended: a figure that was stopped goes on where it was. A result is
//! used again only for a run of the same inputs.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::ReproduceArgs;
use crate::{
    cli::Guest,
    compare::{cell, store},
    guest::initramfs::{self, Contents},
    host::{
        needs::Needs,
        qemu::{Emulator, about},
    },
    status::Usage,
    ui::Ui,
};

/// A run.
pub trait Run: Sync {
    /// What it brings.
    type Outcome: Send;
    /// What it is called in messages.
    fn name(&self) -> String;
    /// The hash of all that the outcome depends on.
    fn inputs(&self) -> &str;
    /// What is kept of an outcome: an object.
    fn document(&self, outcome: &Self::Outcome) -> Value;
    /// The outcome that this was kept of; `None`: it is not whole.
    fn outcome(&self, document: &Value) -> Option<Self::Outcome>;
    /// What is said of an outcome.
    fn says(&self, outcome: &Self::Outcome) -> String;
}

/// What a file keeps.
pub struct Kept {
    path: PathBuf,
    kind: &'static str,
    results: Vec<Value>,
    again: bool,
}

impl Kept {
    /// The results of a kind of figures, in the file of `--json` or in `cache`. With `--again` none of them is used. In `cache` a file
    /// that cannot be read is replaced.
    ///
    /// # Errors
    /// [`Usage`]: the file of `--json` is something else, or cannot be written.
    pub fn open(kind: &'static str, args: &ReproduceArgs, cache: &Path, ui: &Ui) -> Result<Kept> {
        let path = args.json.clone().unwrap_or_else(|| cache.join(format!("{kind}.json")));
        super::check_files([Some(&path)])?;
        let results = match read(&path, kind) {
            Ok(results) => results,
            Err(error) if args.json.is_none() => {
                ui.warn(&format!("{error}; all runs are performed again"));
                Vec::new()
            }
            Err(error) => {
                return Err(Usage::new(format!("{error}; choose another place, or remove it")).into());
            }
        };
        Ok(Kept { path, kind, results, again: args.again })
    }

    /// What all of these runs have brought, in their order: of those that are kept, and of the others by `perform`, up to `jobs` side by
    /// side. Each outcome is kept as soon as its run has ended.
    ///
    /// # Errors
    /// A run failed, or its result cannot be kept; no further run begins then.
    pub fn each<R: Run>(
        &mut self,
        figure: &str,
        runs: &[R],
        jobs: usize,
        ui: &Ui,
        perform: impl Fn(&R) -> Result<R::Outcome> + Sync,
    ) -> Result<Vec<R::Outcome>> {
        let outcomes: Vec<_> = runs.iter().map(|run| self.find(run)).collect();
        let missing: Vec<usize> = (0..runs.len()).filter(|n| outcomes[*n].is_none()).collect();
        let (all, there) = (runs.len(), runs.len() - missing.len());
        if there > 0 {
            ui.say(&format!("{there} of {all} runs are there already; --again performs them again"));
        }
        let left = Mutex::new(missing.iter());
        let state = Mutex::new((self, outcomes, there));
        let work = || -> Result<()> {
            loop {
                let Some(n) = locked(&left).next() else { return Ok(()) };
                let run = &runs[*n];
                let _step = (jobs <= 1).then(|| ui.step(&format!("{figure}: {}", run.name())));
                let done = perform(run).with_context(|| format!("{}: nothing is claimed", run.name()));
                let mut state = locked(&state);
                let (kept, outcomes, ended) = &mut *state;
                let kept = done.and_then(|outcome| kept.keep(run, &outcome).map(|()| outcome));
                let outcome = kept.inspect_err(|_| *locked(&left) = [].iter())?;
                *ended += 1;
                ui.say(&format!("{ended} of {all}: {}: {}", run.name(), run.says(&outcome)));
                outcomes[*n] = Some(outcome);
            }
        };
        let _step = (jobs > 1 && !missing.is_empty()).then(|| ui.step(figure));
        thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs.clamp(1, all.max(1))).map(|_| scope.spawn(work)).collect();
            let ended: Vec<Result<()>> =
                workers.into_iter().map(|worker| worker.join().expect("no thread panics")).collect();
            ended.into_iter().collect::<Result<()>>()
        })?;
        let (_, outcomes, _) = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcomes.into_iter().map(|outcome| outcome.context("a run was not performed")).collect()
    }

    fn find<R: Run>(&self, run: &R) -> Option<R::Outcome> {
        let known = self.results.iter().find(|result| result["inputs"] == run.inputs());
        known.filter(|_| !self.again).and_then(|result| run.outcome(result))
    }

    fn keep<R: Run>(&mut self, run: &R, outcome: &R::Outcome) -> Result<()> {
        let mut result = run.document(outcome);
        result["inputs"] = run.inputs().into();
        self.results.retain(|old| old["inputs"] != run.inputs());
        self.results.push(result);
        let document = json!({ "t": self.kind, "schema": 1, "points": self.results });
        store::write(&self.path, (document.to_string() + "\n").as_bytes())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The results in a file of this kind. None: it is empty, or not there.
fn read(path: &Path, kind: &str) -> Result<Vec<Value>, String> {
    let text = fs::read(path).unwrap_or_default();
    if text.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let document: Value = serde_json::from_slice(&text).unwrap_or_default();
    match document["points"].as_array() {
        Some(results) if document["t"] == kind && document["schema"] == 1 => Ok(results.clone()),
        _ => Err(format!("{}: it has no results of such figures", path.display())),
    }
}

/// The hash of what runs of a program in a guest depend on, but for their own words: the hypervisor, the lab machine and the emulator,
/// the guest's kernel and what it begins with, and the program.
///
/// # Errors
/// Something is missing here, or a file cannot be read.
pub fn inputs(needs: &Needs, hypervisor: &Path, program: &Path, description: &str) -> Result<String> {
    let (plugin, guest) = (needs.lab_plugin()?, Guest::DebianAmd64);
    let (kernel, busybox) = (needs.kernel(guest)?, needs.busybox(guest)?);
    let nothing =
        Contents { busybox: &busybox, puts: &[], modules: &[], command: None, gets: &[], root: None };
    let begin = bootimg::sha256(&initramfs::build(&nothing)?);
    let emulator = about(&Emulator::with_plugins(None, needs)?.program).unwrap_or_default();
    cell::inputs(&[hypervisor, &plugin, program, &kernel], &[description, &emulator, &begin])
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;

    use super::*;

    struct Square {
        of: u64,
        inputs: String,
    }

    impl Run for Square {
        type Outcome = u64;

        fn name(&self) -> String {
            format!("square of {}", self.of)
        }

        fn inputs(&self) -> &str {
            &self.inputs
        }

        fn document(&self, outcome: &u64) -> Value {
            json!({ "square": outcome })
        }

        fn outcome(&self, document: &Value) -> Option<u64> {
            document["square"].as_u64()
        }

        fn says(&self, outcome: &u64) -> String {
            outcome.to_string()
        }
    }

    fn squares(build: &str) -> Vec<Square> {
        (1..=4).map(|of| Square { of, inputs: format!("{build} {of}") }).collect()
    }

    /// A figure that may be stopped at one of its runs: what came out, and how many runs were performed.
    struct Figure {
        cache: tempfile::TempDir,
        args: ReproduceArgs,
    }

    impl Figure {
        fn new() -> Figure {
            Figure { cache: tempfile::tempdir().unwrap(), args: ReproduceArgs::quick() }
        }

        fn run(&self, build: &str, jobs: usize, fails_at: u64) -> (Result<Vec<u64>>, usize) {
            let performed = AtomicUsize::new(0);
            let perform = |run: &Square| {
                performed.fetch_add(1, Ordering::Relaxed);
                if run.of == fails_at { bail!("it was stopped") } else { Ok(run.of * run.of) }
            };
            let kept = Kept::open("squares", &self.args, self.cache.path(), &Ui::quiet());
            let result =
                kept.and_then(|mut kept| kept.each("squares", &squares(build), jobs, &Ui::quiet(), perform));
            (result, performed.into_inner())
        }

        fn file(&self) -> PathBuf {
            self.cache.path().join("squares.json")
        }
    }

    #[test]
    fn a_figure_that_was_stopped_goes_on() {
        let figure = Figure::new();
        let (stopped, performed) = figure.run("a", 1, 3);
        assert!(format!("{:#}", stopped.unwrap_err()).contains("square of 3") && performed == 3);
        let (all, performed) = figure.run("a", 1, 0);
        assert_eq!((all.unwrap(), performed), (vec![1, 4, 9, 16], 2));
        assert_eq!(figure.run("a", 2, 0).1, 0, "all are kept");
        let (all, performed) = figure.run("b", 3, 0);
        assert_eq!((all.unwrap(), performed), (vec![1, 4, 9, 16], 4), "of another build none is");
        assert_eq!(figure.run("a", 1, 0).1, 0, "and those of the first one stay");
    }

    #[test]
    fn on_request_all_runs_are_performed_again() {
        let mut figure = Figure::new();
        assert_eq!(figure.run("a", 1, 0).1, 4);
        figure.args.again = true;
        assert_eq!(figure.run("a", 1, 0).1, 4);
        assert_eq!(read(&figure.file(), "squares").unwrap().len(), 4, "in the place of the old ones");
        figure.args.again = false;
        assert_eq!(figure.run("a", 1, 0).1, 0);
    }

    #[test]
    fn what_is_damaged_is_performed_again() {
        let mut figure = Figure::new();
        for text in ["{\"t\":\"squ", "{\"t\":\"compare\",\"schema\":1,\"points\":[]}", "\0"] {
            fs::write(figure.file(), text).unwrap();
            let (all, performed) = figure.run("a", 1, 0);
            assert_eq!((all.unwrap(), performed), (vec![1, 4, 9, 16], 4), "{text}");
        }
        let text = fs::read_to_string(figure.file()).unwrap().replacen("\"square\":4", "\"square\":\"\"", 1);
        fs::write(figure.file(), text).unwrap();
        assert_eq!(figure.run("a", 1, 0).1, 1, "a result that is not whole");
        // A person's file stays.
        figure.args.json = Some(figure.file());
        fs::write(figure.file(), "mine").unwrap();
        let (refused, performed) = figure.run("a", 1, 0);
        assert!(refused.unwrap_err().is::<Usage>() && performed == 0);
        assert_eq!(fs::read_to_string(figure.file()).unwrap(), "mine");
    }
}
