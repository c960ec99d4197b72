//! A cell of the comparison: one policy, one workload, one seed; what is run for it, and what came of it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use workloads::Workload;

use super::plan::NATIVE;
use crate::{
    cli::Mode,
    report::{
        chart::Stretch,
        figures::{FIGURES, Step},
        page::stretches,
    },
    samples::{Run, Sample},
    workload::{
        counted::Counted,
        runner::{self, Measured, Setup, Switches},
    },
};

/// What is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its name, which nothing that is built here or learnt has a part in: what a file of its own is called.
    pub name: String,
    /// The workload.
    pub workload: &'static str,
    /// The policy, as tables name it.
    pub policy: String,
    /// What `pal run --mode` gets: the policy with its parameters, also those that were learnt.
    pub mode: String,
    /// The seed of the deterministic run.
    pub seed: u32,
    /// Thousandths of the workload's scale.
    pub scale_milli: u32,
    /// Options of `pal run` that all cells share.
    pub options: Vec<String>,
    /// Where the log of its samples is kept, if something is to be learnt from it.
    pub logs: Option<PathBuf>,
}

impl Plan {
    /// All options of `pal run`. `random` takes the cell's seed, unless it has one.
    pub fn options(&self) -> Vec<String> {
        let mode = match self.mode.parse::<Mode>() {
            Ok(Mode::Random(_)) if !self.mode.contains("seed=") => {
                format!("{},seed={}", self.mode, self.seed)
            }
            _ => self.mode.clone(),
        };
        let (option, value) = if mode == NATIVE { ("--machine", mode) } else { ("--mode", mode) };
        let mut options = vec![format!("--deterministic={}", self.seed), option.to_owned(), value];
        options.extend(self.options.iter().cloned());
        options
    }

    /// The log of its samples, if it is kept. `inputs`: the cell's hash.
    pub fn log(&self, inputs: &str) -> Option<PathBuf> {
        let name = format!("{}-{}.jsonl", self.workload, &inputs[..inputs.len().min(16)]);
        self.logs.as_ref().map(|logs| logs.join(name))
    }

    /// Runs it.
    ///
    /// # Errors
    /// The run failed, or lacks what a comparison needs.
    pub fn perform(&self, setup: &Setup, workload: &Workload, inputs: String) -> Result<Cell> {
        let mut options = self.options();
        if let Some(log) = self.log(&inputs) {
            options.extend(["--samples".to_owned(), log.display().to_string()]);
        }
        let measured = runner::perform(setup, workload, self.scale_milli, &options)?;
        let (Some(cycles), Some(walk_cycles)) = (measured.cycles, measured.walk_cycles) else {
            bail!("no modelled cycles: a comparison takes a lab machine");
        };
        let timeline = match &measured.samples {
            // Without a hypervisor there are no samples.
            None if self.mode == NATIVE => Timeline::default(),
            None => bail!("no samples: a comparison takes a lab machine"),
            Some(samples) if samples.end.is_none() || samples.broken > 0 => {
                bail!("the samples are damaged: {}", samples.ending())
            }
            Some(samples) => Timeline::of(samples, measured.begin_ns),
        };
        let guest_walks = walk_cycles.nested.saturating_add(walk_cycles.shadow);
        let changes = measured.changes().unwrap_or(0);
        let work_ns = measured.begin_ns.zip(measured.end_ns);
        let Measured { record, command, switches, counted, .. } = measured;
        let Switches { walks, refs } = switches.unwrap_or_default();
        Ok(Cell {
            workload: self.workload.to_owned(),
            policy: self.policy.clone(),
            seed: self.seed,
            scale_milli: self.scale_milli,
            inputs,
            host_cycles: cycles.host,
            nested_cycles: cycles.nested,
            shadow_cycles: cycles.shadow,
            changes,
            walk_cycles: if self.mode == NATIVE { walk_cycles.host } else { guest_walks },
            agile_walks: if switches.is_some() { walks.into() } else { vec![] },
            agile_refs: if switches.is_some() { refs.into() } else { vec![] },
            counted,
            checksum: record.checksum,
            work_ns,
            command,
            timeline,
        })
    }
}

/// What came of a cell, as the JSON file keeps it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Cell {
    /// The workload.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// The seed.
    pub seed: u32,
    /// Thousandths of the workload's scale.
    pub scale_milli: u32,
    /// The hash of all that the result depends on.
    pub inputs: String,
    /// Modelled cycles of the hypervisor for the work.
    pub host_cycles: u64,
    /// Those of the guest on nested tables.
    pub nested_cycles: u64,
    /// Those of the guest on shadow tables.
    pub shadow_cycles: u64,
    /// Changes of the mode meanwhile.
    pub changes: u64,
    /// Of the guest's cycles, or of all without a hypervisor, those of walks.
    #[serde(default)]
    pub walk_cycles: u64,
    /// Walks of agile paging by where they switch ([`abi::lab::SWITCHES`]); empty: it was not in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agile_walks: Vec<u64>,
    /// Their references without walk caches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agile_refs: Vec<u64>,
    /// What else was counted of the work; nothing in cells of earlier versions.
    #[serde(default)]
    pub counted: Counted,
    /// What the work came to.
    pub checksum: String,
    /// The VM's time in nanoseconds when the work began and ended, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_ns: Option<(u64, u64)>,
    /// The arguments of `pal`.
    pub command: Vec<String>,
    /// What happened when.
    pub timeline: Timeline,
}

impl Cell {
    /// Modelled cycles of the work, the hypervisor's included.
    pub fn cycles(&self) -> u64 {
        self.host_cycles.saturating_add(self.nested_cycles).saturating_add(self.shadow_cycles)
    }

    /// Modelled cycles of the hypervisor; none without one, where all cycles are the host's.
    pub fn hypervisor_cycles(&self) -> u64 {
        if self.policy == NATIVE { 0 } else { self.host_cycles }
    }

    /// References of a walk of agile paging on average, without walk caches. `None`: it was not in force.
    pub fn refs_per_walk(&self) -> Option<f64> {
        let walks: u64 = self.agile_walks.iter().sum();
        (walks > 0).then(|| self.agile_refs.iter().sum::<u64>() as f64 / walks as f64)
    }

    /// The part of the guest's cycles that it spent on shadow tables.
    pub fn shadow_share(&self) -> f64 {
        let guest = self.nested_cycles.saturating_add(self.shadow_cycles);
        self.shadow_cycles as f64 / guest.max(1) as f64
    }
}

/// What happened when, in seconds of the VM's time since the work began.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Timeline {
    /// Which engine was in force.
    pub modes: Vec<Stretch>,
    /// Each metric of [`METRICS`].
    pub metrics: Vec<Vec<Step>>,
}

/// The metrics of a timeline: places in the report's [`FIGURES`]. Both modes show them.
pub const METRICS: [usize; 2] = [3, 0];

impl Timeline {
    fn of(run: &Run, begin_ns: Option<u64>) -> Timeline {
        let begin = begin_ns.unwrap_or_else(|| run.samples.first().map_or(0, |first| first.time_ns));
        // Times of the VM in the place of the machine's.
        let moved: Vec<Sample> = run
            .samples
            .iter()
            .map(|sample| Sample { machine_ns: sample.time_ns.saturating_sub(begin), ..sample.clone() })
            .collect();
        let samples: Vec<&Sample> = moved.iter().collect();
        let short = |value: f64| (value * 1e6).round() / 1e6;
        let metric = |figure: usize| {
            let steps = FIGURES[figure].steps(&samples).into_iter();
            steps.map(|(from, to, value)| (short(from), short(to), short(value))).collect()
        };
        Timeline {
            modes: stretches(&samples)
                .into_iter()
                .map(|(from, to, engine)| (short(from), short(to), engine))
                .collect(),
            metrics: METRICS.map(metric).into(),
        }
    }
}

/// The hash of everything that cells depend on, but for their own options.
///
/// # Errors
/// A file cannot be read.
pub fn inputs(files: &[&Path], texts: &[&str]) -> Result<String> {
    let mut all = String::new();
    for path in files {
        let contents = std::fs::read(path).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        all += &bootimg::sha256(&contents);
    }
    texts.iter().for_each(|text| all += &format!(" {}", bootimg::sha256(text.as_bytes())));
    Ok(bootimg::sha256(all.as_bytes()))
}

/// The hash for one cell: that of all, its options, and the files that its policy names.
pub fn inputs_of(plan: &Plan, all: &str) -> String {
    let mut text = format!("{all} {} {} {:?}", plan.workload, plan.scale_milli, plan.options());
    let values = plan.mode.split(',').filter_map(|part| part.split_once('='));
    for contents in values.filter_map(|(_, value)| std::fs::read(value).ok()) {
        text += &bootimg::sha256(&contents);
    }
    bootimg::sha256(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(policy: &str) -> Plan {
        Plan {
            name: "gups-1".into(),
            workload: "gups",
            policy: policy.into(),
            mode: policy.into(),
            seed: 7,
            scale_milli: 1000,
            options: vec!["--lab".into(), "zen3".into()],
            logs: None,
        }
    }

    #[test]
    fn options_have_the_seed() {
        let options = |policy: &str| plan(policy).options().join(" ");
        assert_eq!(options("shadow"), "--deterministic=7 --mode shadow --lab zen3");
        assert_eq!(
            options("random,interval_ms=5"),
            "--deterministic=7 --mode random,interval_ms=5,seed=7 --lab zen3"
        );
        assert_eq!(options("random,seed=3"), "--deterministic=7 --mode random,seed=3 --lab zen3");
    }

    #[test]
    fn other_inputs_have_other_hashes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model");
        let model = plan(&format!("dsp-offset,model={}", file.display()));
        let hash = |plan: &Plan| inputs_of(plan, "all");
        let absent = hash(&model);
        std::fs::write(&file, "a").unwrap();
        let one = hash(&model);
        std::fs::write(&file, "b").unwrap();
        let mut hashes = vec![absent, one, hash(&model), hash(&plan("nested")), hash(&plan("shadow"))];
        hashes.push(hash(&Plan { scale_milli: 1, ..plan("nested") }));
        hashes.push(inputs_of(&plan("nested"), "other"));
        let before = hashes.len();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), before);
        assert_eq!(hash(&plan("nested")), hash(&plan("nested")));
        assert!(inputs(&[Path::new("/no/such/file")], &[]).is_err());
        assert_ne!(inputs(&[&file], &["x"]).unwrap(), inputs(&[&file], &["y"]).unwrap());
    }

    #[test]
    fn a_timeline_begins_with_the_work() {
        let sample = |time_ns, engine| Sample {
            time_ns,
            span_ns: 1_000_000_000,
            engine,
            exits: vec![(0, 5)],
            ..Sample::default()
        };
        let samples = vec![sample(11_000_000_000, 0), sample(12_000_000_000, 1), sample(13_000_000_000, 1)];
        let timeline = Timeline::of(&Run { samples, ..Run::default() }, Some(10_000_000_000));
        assert_eq!(timeline.modes, [(0.0, 1.0, 0), (1.0, 3.0, 1)]);
        assert_eq!(timeline.metrics, [vec![], vec![(0.0, 1.0, 5.0), (1.0, 2.0, 5.0), (2.0, 3.0, 5.0)]]);
    }

    #[test]
    fn shares_of_cells() {
        let cell = Cell { host_cycles: 10, nested_cycles: 60, shadow_cycles: 30, ..Cell::default() };
        assert_eq!(cell.cycles(), 100);
        assert!((cell.shadow_share() - 1.0 / 3.0).abs() < 1e-9 && Cell::default().shadow_share() == 0.0);
        assert_eq!(cell.refs_per_walk(), None);
        let agile = Cell { agile_walks: vec![3, 1], agile_refs: vec![12, 8], ..cell };
        assert_eq!(agile.refs_per_walk(), Some(5.0));
    }
}
