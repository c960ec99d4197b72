//! Policies that are trained on the comparison's own runs: `dsp-offset,train=pooled`, `asp-svm,train=specific`.
//!
//! The trainer is `pal train`'s. What it learns from is the work alone, without the guest's boot. `dsp-offset` learns from runs of
//! `random` with the seed 1, which have more work than what is compared, `asp-svm` from the runs of `nested` and `shadow`; pooled: one model from all workloads, specific: one for each workload, from its own runs. Enumerated, `asp-svm` has a pooled
//! model as it was published: from further runs with the other engine in one phase alone, for each phase. `oracle` has its schedule from
//! the runs of `nested` and `shadow`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};

use crate::{
    host::needs::Needs,
    status::Usage,
    train::{self, TrainArgs, Trainable, model},
};

/// Milliseconds of the intervals of `asp-svm`: more than the first filling of shadow tables takes, during
/// which the guest hardly runs and shows neither misses nor page faults.
pub const INTERVAL_MS: u32 = 10;
/// Milliseconds of the intervals of `dsp-offset`, and of what it learns from. The filling of shadow tables takes up to two of them, but
/// only once: what else is learnt from knows the tables as they are later.
const OFFSET_MS: u32 = 5;
/// `random` as it is compared: like what `dsp-offset` learns from, so that where the work is long enough one run is both.
pub const RANDOM: &str = "random,interval_ms=5";
/// What `dsp-offset` learns from: [`RANDOM`] with the seed 1. Tables and files have another name for it, because it may have more work.
pub const PROFILE: &str = "random,seed=1,interval_ms=5";
/// Intervals of that run's work: the trainer takes 40 at least, and a quick run's work is over after as few as two.
const PROFILE_INTERVALS: u64 = 48;
/// What a change costs in the schedules of `oracle`: about what the first one does. More of them gain little.
const CHANGE_CYCLES: u32 = 10_000_000;

/// A policy that is to be trained here, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training {
    /// Which.
    pub policy: Trainable,
    /// A model for each workload, instead of one for all.
    pub is_specific: bool,
    /// Further runs are made to learn from, with one phase on the other engine.
    pub is_enumerated: bool,
}

impl Training {
    /// The training that a policy of `--policies` asks for; `None`: it is trained already, or needs no training.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of(policy: &str) -> Result<Option<Training>, Usage> {
        let Some((name, parameters)) = policy.split_once(',') else { return Ok(None) };
        let Some(how) = parameters.split(',').find_map(|parameter| parameter.strip_prefix("train=")) else {
            return Ok(None);
        };
        let trainable = match name {
            "dsp-offset" => Trainable::DspOffset,
            "asp-svm" => Trainable::AspSvm,
            "oracle" if how == "specific" => Trainable::Oracle,
            "oracle" => return Err(Usage::new("a schedule is for one workload: oracle,train=specific")),
            _ => return Err(Usage::new("train= is for dsp-offset, asp-svm and oracle")),
        };
        let is_enumerated = how == "enumerated";
        if is_enumerated && trainable != Trainable::AspSvm {
            return Err(Usage::new("train=enumerated is for asp-svm"));
        }
        match (how, parameters.contains(',')) {
            ("pooled" | "specific" | "enumerated", false) => {
                Ok(Some(Training { policy: trainable, is_specific: how == "specific", is_enumerated }))
            }
            _ => Err(Usage::new(
                "train= is pooled, specific or enumerated, and stands alone: a model has all parameters",
            )),
        }
    }

    /// The policies of the comparison whose runs come before it.
    pub const fn comes_after(self) -> &'static [&'static str] {
        match self.policy {
            // That tells how long the work is.
            Trainable::DspOffset => &["nested"],
            Trainable::AspSvm | Trainable::Oracle => &["nested", "shadow"],
        }
    }

    /// Whether it learns from these runs themselves, and not only from further ones that are planned by them.
    pub fn learns_from_them(self) -> bool {
        self.policy != Trainable::DspOffset
    }

    /// Whether it learns from a further run of this policy.
    pub fn learns_from(self, further: &str) -> bool {
        if further == PROFILE { self.policy == Trainable::DspOffset } else { self.is_enumerated }
    }

    /// Learns from these runs: the policy with its parameters.
    ///
    /// # Errors
    /// The trainer's.
    pub fn learn(self, needs: &Needs, sources: Vec<Source>, models: &Path) -> Result<String> {
        let output = tempfile::Builder::new().prefix("model-").suffix(".toml").tempfile_in(models)?;
        let args = TrainArgs {
            interval_ms: (self.policy == Trainable::AspSvm).then_some(INTERVAL_MS),
            change_cycles: (self.policy == Trainable::Oracle).then_some(CHANGE_CYCLES),
            yes: needs.yes,
            ..train_args(self.policy, sources, output.path().to_owned())
        };
        let said = train::learn(&args, needs.project, needs.ui)?;
        needs.ui.detail(said.trim_end());
        let name = crate::cli::value_name(self.policy);
        let what = if self.policy == Trainable::Oracle { "schedule" } else { "model" };
        let mode = model::mode(&format!("{name},{what}={}", output.path().display()));
        mode.map(|mode| mode.to_string()).map_err(|why| anyhow!(why))
    }
}

/// A run that is learnt from.
#[derive(Debug)]
pub struct Source {
    /// The log of its samples.
    pub log: PathBuf,
    /// When its work began and ended, if it is known.
    pub work_ns: Option<(u64, u64)>,
}

/// Training from these runs, of their work alone; a schedule is of a run from its start.
fn train_args(policy: Trainable, sources: Vec<Source>, output: PathBuf) -> TrainArgs {
    let (logs, work_ns): (Vec<_>, Vec<_>) = sources.into_iter().map(|it| (it.log, it.work_ns)).unzip();
    let args = TrainArgs::of(policy, logs, output);
    if policy == Trainable::Oracle { args } else { args.of_work(&work_ns) }
}

/// The scale of the run of [`PROFILE`], in thousandths: that of a run whose work took so long, or as much more as its intervals take.
pub fn profile_scale(scale_milli: u32, work_ns: Option<(u64, u64)>) -> u32 {
    let wanted = PROFILE_INTERVALS * u64::from(OFFSET_MS) * 1_000_000;
    let work = work_ns.map_or(wanted, |(begin, end)| end.saturating_sub(begin).max(1));
    let scale = u64::from(scale_milli).saturating_mul(wanted).div_ceil(work);
    u32::try_from(scale).unwrap_or(u32::MAX).min(*workloads::SCALES.end()).max(scale_milli)
}

/// The further runs that enumerated training takes of a workload: their policies, from the runs of `nested` and `shadow`.
///
/// # Errors
/// The trainer's.
pub fn enumerate(needs: &Needs, sources: Vec<Source>) -> Result<Vec<String>> {
    let folder = tempfile::tempdir().context("no place for schedules")?;
    let args = TrainArgs {
        interval_ms: Some(INTERVAL_MS),
        enumerate: Some(folder.path().to_owned()),
        yes: needs.yes,
        ..train_args(Trainable::AspSvm, sources, PathBuf::new())
    };
    let said = train::learn(&args, needs.project, needs.ui)?;
    needs.ui.detail(said.trim_end());
    let files = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<Result<Vec<PathBuf>>>()?;
    files.sort();
    let mode = |file: &PathBuf| model::mode(&format!("oracle,schedule={}", file.display()));
    files.iter().map(|file| Ok(mode(file).map_err(|why| anyhow!(why))?.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_is_not_learnt_from() {
        let sources = || {
            let source = |log: &str, work_ns| Source { log: log.into(), work_ns };
            vec![source("a", Some((2_000_001, 7_000_001))), source("b", None)]
        };
        let args = train_args(Trainable::DspOffset, sources(), PathBuf::new());
        // A time for each log, also where it is not known.
        assert_eq!((args.begin_ms, args.end_ms[0], args.end_ms.len()), (vec![2, 0], 8, 2));
        assert!(args.end_ms[1] > 1_000_000_000);
        let args = train_args(Trainable::Oracle, sources(), PathBuf::new());
        assert!(args.begin_ms.is_empty() && args.end_ms.is_empty() && args.logs.len() == 2);
    }

    #[test]
    fn a_profile_has_some_tens_of_intervals() {
        let wanted = PROFILE_INTERVALS * u64::from(OFFSET_MS) * 1_000_000;
        let scale = |work| profile_scale(500, Some((7, 7 + work)));
        assert_eq!(
            [
                scale(wanted / 3),
                scale(wanted / 3 - 1),
                scale(wanted * 4 / 5),
                scale(wanted),
                scale(u64::MAX - 7)
            ],
            [1500, 1501, 625, 500, 500]
        );
        assert_eq!((profile_scale(500, None), scale(0)), (500, *workloads::SCALES.end()));
    }

    #[test]
    fn policies_say_how_they_learn() {
        let of = |policy: &str| Training::of(policy);
        assert!(of("nested").unwrap().is_none() && of("dsp-offset,bias=3").unwrap().is_none());
        let training = of("dsp-offset,train=specific").unwrap().unwrap();
        assert!(training.is_specific && training.comes_after() == ["nested"]);
        assert!(
            training.learns_from(PROFILE) && !training.learns_from("oracle") && !training.learns_from_them()
        );
        let training = of("asp-svm,train=pooled").unwrap().unwrap();
        assert!(!training.is_specific && training.comes_after() == ["nested", "shadow"]);
        assert!(training.learns_from_them() && !training.learns_from("oracle"));
        let training = of("oracle,train=specific").unwrap().unwrap();
        assert!(training.is_specific && training.comes_after() == ["nested", "shadow"]);
        let training = of("asp-svm,train=enumerated").unwrap().unwrap();
        assert!(training.is_enumerated && !training.is_specific);
        assert!(training.learns_from("oracle,changes=5:9") && !training.learns_from(PROFILE));
        for wrong in [
            "oracle,train=pooled",
            "dsp-offset,train=enumerated",
            "oracle,train=enumerated",
            "dav2m,train=pooled",
            "dsp-offset,train=x",
            "dsp-offset,train=pooled,bias=1",
            "asp-svm,train=",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!([PROFILE, RANDOM].iter().all(|policy| policy.ends_with(&format!("={OFFSET_MS}"))));
    }
}
