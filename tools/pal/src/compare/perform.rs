//! How a comparison is run: first the cells that training begins with, then the others that need none and what training takes besides,
//! then the models, and the cells of what was trained. Where cells run side by side, a processor waits at the end of each of these.

use std::{cmp::Reverse, path::Path};

use anyhow::Result;

use super::{
    board::Bench,
    cell::{Cell, Plan},
    learn::{self, PROFILE, RANDOM, Source, profile_scale},
    plan::{Class, Comparison},
    store::Failed,
};
use crate::host::{lock::lock, needs::Needs};

impl Comparison {
    /// Runs what `kept` lacks: all cells, and those that failed. After each cell everything is kept by `save`.
    ///
    /// # Errors
    /// `save`'s; a folder for logs cannot be made.
    pub fn perform(
        &self,
        bench: &Bench,
        needs: &Needs,
        kept: &[Cell],
        save: impl Fn(&[Cell], &[Failed]) -> Result<()> + Sync,
    ) -> Result<(Vec<Cell>, Vec<Failed>)> {
        let folder = match bench.kept_in() {
            Some(cells) => cells.logs()?,
            None => needs.project.cache("compare")?,
        };
        let (first, classes) = self.wanted(&folder);
        let mut done =
            Done { bench, needs, kept: kept.to_vec(), save, cells: Vec::new(), failed: Vec::new() };
        // Others may be at what this cell learns from, too: the next one finds it done.
        let lock = match bench.kept_in() {
            Some(files) if self.request().cell.is_some() && !classes.is_empty() => {
                let lock = lock(&folder, needs.ui)?;
                done.kept = files.read(self)?;
                Some(lock)
            }
            _ => None,
        };
        let is_needed = |plan: &&Plan| classes.iter().any(|class| class.comes_after(plan));
        let (needed, others): (Vec<&Plan>, Vec<&Plan>) = first.iter().partition(is_needed);
        done.perform(needed.into_iter().cloned().collect())?;
        let further = self.further(&first, &classes, &mut done, &folder)?;
        // Of the same inputs as one that is learnt from: that one's figures are its own.
        let (alike, others): (Vec<&Plan>, Vec<&Plan>) =
            others.into_iter().partition(|plan| further.iter().any(|it| done.bench.is_alike(it, plan)));
        done.perform(others.into_iter().chain(&further).cloned().collect())?;
        done.kept.extend_from_slice(&done.cells);
        done.perform(alike.into_iter().cloned().collect())?;
        drop(lock);
        let mut plans = Vec::new();
        for class in &classes {
            let Class { policy, training, workloads } = class;
            let of_these = first.iter().filter(|plan| class.learns_from(plan, false));
            let of_further = further.iter().filter(|plan| class.learns_from(plan, true));
            let sources = of_these.chain(of_further).filter_map(|plan| done.source(plan)).collect();
            if done.failed.iter().any(|it| it.policy == *policy && workloads.contains(&it.workload.as_str()))
            {
                continue;
            }
            match training.learn(needs, sources, &folder) {
                Ok(mode) => {
                    needs.ui.say(&format!("{policy} for {}: {mode}", workloads.join(", ")));
                    plans.extend(self.trained(class, &mode));
                }
                Err(error) => done.untrained(policy, workloads, &error),
            }
        }
        done.perform(plans)?;
        Ok((done.cells, done.failed))
    }

    /// What training takes besides the `first` cells: of each workload a profile by chance, which has work enough to learn from,
    /// and where the choices are enumerated, each phase on the other engine alone.
    ///
    /// # Errors
    /// A file of a cell is damaged.
    fn further<S: Fn(&[Cell], &[Failed]) -> Result<()> + Sync>(
        &self,
        first: &[Plan],
        classes: &[Class],
        done: &mut Done<S>,
        folder: &Path,
    ) -> Result<Vec<Plan>> {
        let mut all: Vec<Plan> = Vec::new();
        let logged =
            |plan: Plan| Plan { name: format!("{}-log", plan.name), logs: Some(folder.to_owned()), ..plan };
        for class in classes {
            let wanted = class.training.learns_from(PROFILE);
            let before = first.iter().filter(|plan| wanted && class.comes_after(plan));
            for plan in before {
                let work_ns = done.source(plan).and_then(|source| source.work_ns);
                let profile = self.plan(plan.workload, PROFILE, RANDOM, 1);
                let scale_milli = profile_scale(plan.scale_milli, work_ns);
                let profile = logged(Plan { scale_milli, ..profile });
                // One serves all classes.
                if !all.contains(&profile) {
                    all.push(profile);
                }
            }
        }
        for class in classes.iter().filter(|class| class.training.is_enumerated) {
            for workload in &class.workloads {
                let plans = first.iter().filter(|it| it.workload == *workload && class.comes_after(it));
                let sources = plans.filter_map(|plan| done.source(plan)).collect();
                let modes = learn::enumerate(done.needs, sources);
                let modes = match modes {
                    Ok(modes) => modes,
                    Err(error) => {
                        done.untrained(class.policy, &class.workloads, &error);
                        break;
                    }
                };
                all.extend(modes.iter().map(|mode| logged(self.plan(workload, mode, mode, 1))));
            }
        }
        if let Some(files) = done.bench.kept_in() {
            done.kept.extend(files.of(&all)?);
        }
        Ok(all)
    }
}

/// What came of a comparison so far, and what the rest is run with.
struct Done<'a, S> {
    bench: &'a Bench<'a>,
    needs: &'a Needs<'a>,
    /// Cells of earlier comparisons.
    kept: Vec<Cell>,
    save: S,
    cells: Vec<Cell>,
    failed: Vec<Failed>,
}

impl<S: Fn(&[Cell], &[Failed]) -> Result<()> + Sync> Done<'_, S> {
    /// Runs more cells: those that take long first, so that no processor is left with one of them at the end.
    fn perform(&mut self, mut plans: Vec<Plan>) -> Result<()> {
        if plans.is_empty() {
            return Ok(());
        }
        plans.sort_by_cached_key(|plan| Reverse(self.expected(plan)));
        let save = |more: &[Cell], wrong: &[Failed]| {
            (self.save)(&[&self.cells, more].concat(), &[&self.failed, wrong].concat())
        };
        let (more, wrong) = self.bench.perform(&plans, &self.kept, self.needs.ui, save)?;
        self.cells.extend(more);
        self.failed.extend(wrong);
        Ok(())
    }

    /// How long a cell will take, compared with others: by what other policies have taken for the same work. The processor of agile
    /// paging is modelled with twice the effort.
    fn expected(&self, plan: &Plan) -> u64 {
        let per_scale = |cell: &Cell| {
            let (begin, end) = cell.work_ns?;
            Some(end.saturating_sub(begin) / u64::from(cell.scale_milli.max(1)))
        };
        let nanos =
            self.cells.iter().filter(|cell| cell.workload == plan.workload).filter_map(per_scale).max();
        let times = if plan.mode.starts_with("agile") { 2 } else { 1 };
        nanos.unwrap_or(0).saturating_mul(u64::from(plan.scale_milli)).saturating_mul(times)
    }

    /// A cell that is learnt from; `None`: no log of it is kept.
    fn source(&self, plan: &Plan) -> Option<Source> {
        let of = |cell: &&Cell| {
            (cell.workload.as_str(), &cell.policy, cell.seed, cell.scale_milli)
                == (plan.workload, &plan.policy, plan.seed, plan.scale_milli)
        };
        let work_ns = self.cells.iter().find(of).and_then(|cell| cell.work_ns);
        Some(Source { log: self.bench.log(plan)?, work_ns })
    }

    /// A policy could not be trained.
    fn untrained(&mut self, policy: &str, workloads: &[&str], error: &anyhow::Error) {
        let why = format!("it could not be trained: {error:#}");
        self.needs.ui.error(&format!("{policy}: {why}"));
        self.failed.extend(workloads.iter().map(|workload| Failed {
            workload: (*workload).to_owned(),
            policy: policy.to_owned(),
            seed: 1,
            why: why.clone(),
        }));
    }
}
