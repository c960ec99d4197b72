//! What is compared: policies, workloads and seeds, as the cells that are run for them. Cells of policies that are trained here come
//! last, because others are what they learn from.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    args::{self, CompareArgs},
    cell::Plan,
    learn::{RANDOM, Training},
};
use crate::{
    cli::NestedPage,
    status::Usage,
    workload::{find, runner},
};

/// Milliseconds of a period of samples: a million instructions. A policy decides at its end.
pub const SAMPLE_MS: u32 = 1;
/// Agile paging with windows of a hundredth of a second in the place of the paper's second, as runs are that much shorter, and
/// a timeout that is shorter still: to nest a table again costs two exits, while each walk through it costs four references.
pub const AGILE: &str = "agile,window_ms=10,timeout_ms=3,start_ms=10";
/// DAV²M with the windows of the paper divided by a thousand, as runs are some thousand times shorter, but for what does not shrink
/// with them. To fill shadow tables again after a change takes thousands of exits in any run: exits are counted for longer, with a
/// higher threshold. A sample is a step already, so that the moving averages have three steps: of ten, most would be of what was
/// before the phase.
pub const DAV2M: &str = "dav2m,window_inst=1000000,steps=3,window_vexit=9000000,window_tmiss=10000000,window_trans=50000000,\
    window_prepaging=2000000,threshold_vexit=2500,threshold_tmiss=100000,raise_milli=1500";
/// In the place of a policy: the workload without a hypervisor.
pub const NATIVE: &str = "native";
/// All policies, with intervals that fit the length of the runs.
pub const POLICIES: [&str; 10] = [
    "nested",
    "shadow",
    AGILE,
    RANDOM,
    "threshold,interval_ms=5",
    "dsp-sample,interval_ms=5,exploit=20",
    DAV2M,
    "bandit,interval_ms=10",
    "dsp-offset,train=pooled",
    "asp-svm,train=pooled",
];
/// Some workloads of each kind.
pub const WORKLOADS: [&str; 7] =
    ["chase", "gups", "fork-exec", "mmap-churn", "phases", "phases-fork", "matmul"];
/// One of each kind.
pub const QUICK_WORKLOADS: [&str; 3] = ["chase", "mmap-churn", "phases"];
/// Scales in thousandths.
const SCALE: u32 = 2000;
const QUICK_SCALE: u32 = 500;
/// What has some times the work of the others, because at the same scale it has 24 to 121 million instructions, and they have more. What
/// a policy loses until it knows what the guest does, and what the first change of the engine costs, does not grow with the work.
const LONGER: [(&str, u32); 4] = [("chase", 3), ("gups", 4), ("mmap-churn", 2), ("spmv", 8)];

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The policies, as `--policies` names them.
    pub policies: Vec<String>,
    /// The workloads.
    pub workloads: Vec<String>,
    /// Runs of each.
    pub seeds: u32,
    /// Thousandths of the workloads' scale; `None`: each has its own.
    pub scale_milli: Option<u32>,
    /// Short runs.
    pub is_quick: bool,
    /// Milliseconds of a period of samples.
    pub sample_ms: u32,
    /// The lab machine.
    pub lab: String,
    /// The largest pages of nested tables.
    pub nested_page: NestedPage,
    /// The guest's own workloads use huge pages of their kernel's.
    pub huge_pages: bool,
    /// Time follows the modelled cycles.
    pub lab_time: bool,
    /// Guests do without the guest kit.
    pub no_kit: bool,
    /// Install missing packages without asking.
    pub yes: bool,
    /// The name of the only cell that is wanted.
    pub cell: Option<String>,
}

impl Request {
    /// What `pal compare` was told, with the defaults.
    pub fn of(args: &CompareArgs) -> Request {
        let policies =
            if args.policies.is_empty() { words(&POLICIES) } else { args::policies(&args.policies) };
        let workloads = match (args.workloads.is_empty(), args.quick) {
            (true, true) => words(&QUICK_WORKLOADS),
            (true, false) => words(&WORKLOADS),
            (false, _) => args.workloads.clone(),
        };
        Request {
            policies,
            workloads,
            seeds: args.seeds,
            scale_milli: args.scale,
            is_quick: args.quick,
            sample_ms: SAMPLE_MS,
            lab: args.lab.clone(),
            nested_page: args.nested_page,
            huge_pages: false,
            lab_time: args.lab_time,
            no_kit: args.no_kit,
            yes: args.yes,
            cell: args.cell.clone(),
        }
    }

    /// How much work of a workload, in thousandths of its scale.
    fn scale(&self, workload: &str) -> u32 {
        let times = LONGER.iter().find(|(longer, _)| *longer == workload).map_or(1, |(_, times)| *times);
        self.scale_milli.unwrap_or(if self.is_quick { QUICK_SCALE } else { SCALE } * times)
    }
}

/// The word of the guest's kernel's command line by which the workloads' program uses huge pages.
const HUGE_PAGES: &str = "pages=2M";

/// Words of their own.
pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A policy that is trained here, with the workloads that one model learns from and is for.
pub(super) struct Class<'a> {
    pub(super) policy: &'a str,
    pub(super) training: Training,
    pub(super) workloads: Vec<&'static str>,
}

impl Class<'_> {
    /// Whether it comes after this run of the comparison.
    pub(super) fn comes_after(&self, plan: &Plan) -> bool {
        plan.logs.is_some()
            && self.workloads.contains(&plan.workload)
            && self.training.comes_after().contains(&plan.policy.as_str())
    }

    /// Whether it learns from this run of the comparison, or from this `further` one.
    pub(super) fn learns_from(&self, plan: &Plan, further: bool) -> bool {
        if further {
            self.workloads.contains(&plan.workload) && self.training.learns_from(&plan.policy)
        } else {
            self.comes_after(plan) && self.training.learns_from_them()
        }
    }
}

/// What was asked for, checked.
pub struct Comparison {
    request: Request,
    /// The policies that are trained here.
    trainings: Vec<(String, Training)>,
}

impl Comparison {
    /// # Errors
    /// [`Usage`] for names and parameters that there are not.
    pub fn new(mut request: Request) -> Result<Comparison> {
        let mut known = Vec::new();
        request.workloads.retain(|name| {
            !known.contains(name) && {
                known.push(name.clone());
                true
            }
        });
        for workload in &request.workloads {
            find(workload)?;
        }
        let mut trainings = Vec::new();
        // Wrong parameters are found before anything is built.
        for policy in &request.policies {
            let wrong = |error: anyhow::Error| Usage::new(format!("--policies {policy}: {error}"));
            match Training::of(policy).map_err(|error| wrong(error.into()))? {
                Some(training) => trainings.push((policy.clone(), training)),
                None if policy == NATIVE => {}
                None => {
                    runner::options(&["--mode".to_owned(), policy.clone()]).map_err(wrong)?;
                }
            }
        }
        let comparison = Comparison { request, trainings };
        if let Some(name) = comparison.request.cell.as_ref().filter(|_| comparison.cells().is_empty()) {
            let why = "this comparison has no such cell; the same options with --plan list its cells";
            return Err(Usage::new(format!("--cell {name}: {why}")).into());
        }
        Ok(comparison)
    }

    /// What was asked for.
    pub const fn request(&self) -> &Request {
        &self.request
    }

    /// The policies.
    pub fn policies(&self) -> &[String] {
        &self.request.policies
    }

    /// The workloads.
    pub fn workloads(&self) -> &[String] {
        &self.request.workloads
    }

    /// How much work there is, as multiples of the workloads' scale: one for all, or with their names.
    pub fn scales(&self) -> String {
        let scale = |name: &String| f64::from(self.request.scale(name)) / 1000.0;
        let named = |name: &String| format!("{} of {name}", scale(name));
        match self.workloads() {
            [first, others @ ..] if others.iter().all(|other| scale(other) == scale(first)) => {
                scale(first).to_string()
            }
            all => all.iter().map(named).collect::<Vec<_>>().join(", "),
        }
    }

    /// What is the same for all cells, and how much work there is.
    pub fn about(&self) -> Value {
        let Request { lab, nested_page, lab_time, seeds, sample_ms, .. } = &self.request;
        let scales = self.workloads().iter().map(|name| (name.clone(), self.request.scale(name).into()));
        let scales: serde_json::Map<String, Value> = scales.collect();
        json!({ "lab": lab, "nested_page": nested_page.name(), "lab_time": lab_time, "seeds": seeds, "scale_milli": scales,
            "sample_ms": sample_ms, "version": env!("CARGO_PKG_VERSION") })
    }

    /// The cell of a workload and a policy, of which `mode` is what runs.
    pub(super) fn plan(&self, workload: &'static str, policy: &str, mode: &str, seed: u32) -> Plan {
        let Request { lab, nested_page, lab_time, yes, .. } = &self.request;
        let sample_ms = self.request.sample_ms.to_string();
        // The boot is none of the work, and would take longer than it.
        let mut options = words(&["--lab", lab, "--lab-from", "session"]);
        if policy != NATIVE {
            options.extend(words(&["--nested-page", nested_page.name(), "--sample-ms", &sample_ms]));
            options.extend(lab_time.then(|| "--lab-time".to_owned()));
        }
        if self.request.huge_pages {
            options.extend(words(&["--append", HUGE_PAGES]));
        }
        options.extend(yes.then(|| "--yes".to_owned()));
        let name = self.name(workload, policy, seed);
        let (policy, mode) = (policy.to_owned(), mode.to_owned());
        Plan {
            name,
            workload,
            policy,
            mode,
            seed,
            scale_milli: self.request.scale(workload),
            options,
            logs: None,
        }
    }

    /// The name of a cell. It follows from what was asked for alone, so that it is known before anything is built or learnt; a hash
    /// tells apart what the words before it do not.
    fn name(&self, workload: &str, policy: &str, seed: u32) -> String {
        let Request { lab, nested_page, lab_time, no_kit, sample_ms, .. } = &self.request;
        let class =
            self.classes().into_iter().find(|it| it.policy == policy && it.workloads.contains(&workload));
        let learnt_from = class.map(|class| class.workloads.join(",")).unwrap_or_default();
        let (page, scale_milli) = (nested_page.name(), self.request.scale(workload));
        let mut all =
            format!("{policy} {lab} {page} {lab_time} {no_kit} {scale_milli} {sample_ms} {learnt_from}");
        if self.request.huge_pages {
            all += HUGE_PAGES;
        }
        let short = policy.split(',').next().unwrap_or(policy);
        format!("{workload}-{short}-{seed}-{}", &bootimg::sha256(all.as_bytes())[..8])
    }

    /// What is trained here, model by model.
    fn classes(&self) -> Vec<Class<'_>> {
        let workloads: Vec<_> = self.known_workloads().collect();
        let mut classes = Vec::new();
        for (policy, training) in &self.trainings {
            let size = if training.is_specific { 1 } else { workloads.len().max(1) };
            let groups = workloads.chunks(size).map(<[_]>::to_vec);
            classes.extend(groups.map(|workloads| Class { policy, training: *training, workloads }));
        }
        classes
    }

    /// The cells that need no training, with those that others learn from; logs of the latter are kept in `logs`.
    pub fn first(&self, logs: &Path) -> Vec<Plan> {
        let learnt_from: Vec<&str> =
            self.trainings.iter().flat_map(|(_, training)| training.comes_after()).copied().collect();
        let mut policies: Vec<(&str, u32)> = self
            .request
            .policies
            .iter()
            .filter(|policy| self.trainings.iter().all(|(name, _)| name != *policy))
            .map(|policy| (policy.as_str(), self.request.seeds))
            .collect();
        for source in &learnt_from {
            if policies.iter().all(|(policy, _)| policy != source) {
                policies.push((source, 1));
            }
        }
        let mut plans = Vec::new();
        for workload in self.known_workloads() {
            for (policy, seeds) in &policies {
                plans.extend((1..=*seeds).map(|seed| {
                    let plan = self.plan(workload, policy, policy, seed);
                    if seed == 1 && learnt_from.contains(policy) {
                        // Another name: where that cell was run without its log, it is to be run again.
                        let name = format!("{}-log", plan.name);
                        return Plan { name, logs: Some(logs.to_owned()), ..plan };
                    }
                    plan
                }));
            }
        }
        plans
    }

    /// The cells of a model that is in `mode`, but for those that are not wanted.
    pub(super) fn trained(&self, class: &Class, mode: &str) -> Vec<Plan> {
        let seeds = 1..=self.request.seeds;
        let all = class
            .workloads
            .iter()
            .flat_map(|workload| seeds.clone().map(|seed| self.plan(workload, class.policy, mode, seed)));
        all.filter(|plan| self.request.cell.as_ref().is_none_or(|name| plan.name == *name)).collect()
    }

    /// What is run: the cells that need no training, and the models whose cells follow. Where one cell alone is wanted, these are
    /// that cell, or what it learns from and its model.
    pub(super) fn wanted(&self, logs: &Path) -> (Vec<Plan>, Vec<Class<'_>>) {
        let (mut first, mut classes) = (self.first(logs), self.classes());
        if let Some(name) = &self.request.cell {
            classes.retain(|class| !self.trained(class, "").is_empty());
            first.retain(|plan| plan.name == *name || classes.iter().any(|class| class.comes_after(plan)));
        }
        (first, classes)
    }

    /// All cells that are run, in an order in which none comes before what it learns from. What will be learnt is not in them.
    pub fn cells(&self) -> Vec<Plan> {
        let (mut cells, classes) = self.wanted(Path::new(""));
        for class in &classes {
            cells.extend(self.trained(class, class.policy));
        }
        cells
    }

    /// The names of the cells that come before a cell, because it learns from them or from further runs that are planned by them.
    pub fn comes_after(&self, cell: &Plan) -> Vec<String> {
        let (first, classes) = self.wanted(Path::new(""));
        let class =
            classes.iter().find(|it| it.policy == cell.policy && it.workloads.contains(&cell.workload));
        let sources = first.iter().filter(|plan| class.is_some_and(|class| class.comes_after(plan)));
        sources.map(|plan| plan.name.clone()).collect()
    }

    fn known_workloads(&self) -> impl Iterator<Item = &'static str> {
        self.request.workloads.iter().filter_map(|name| find(name).ok()).map(|workload| workload.name)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command as Subcommand};

    fn comparison(words: &[&str]) -> Result<Comparison> {
        let line = ["pal", "compare"].iter().chain(words);
        let Subcommand::Compare(args) = Cli::try_parse_from(line)?.command else { panic!("compare") };
        Comparison::new(Request::of(&args))
    }

    #[test]
    fn defaults_are_policies_and_workloads_that_there_are() {
        let full = comparison(&[]).unwrap();
        // Two policies are trained first.
        assert_eq!((full.policies().len(), full.trainings.len()), (POLICIES.len(), 2));
        assert_eq!(full.first(Path::new("")).len(), (POLICIES.len() - 2) * WORKLOADS.len());
        let quick = comparison(&["--quick"]).unwrap().first(Path::new("logs"));
        assert_eq!(quick.len(), (POLICIES.len() - 2) * QUICK_WORKLOADS.len());
        let scale = |workload: &str| quick.iter().find(|plan| plan.workload == workload).unwrap().scale_milli;
        assert_eq!((scale("chase"), scale("phases")), (LONGER[0].1 * QUICK_SCALE, QUICK_SCALE));
        assert!(LONGER.iter().all(|(workload, _)| find(workload).is_ok()));
        assert_eq!(
            comparison(&["--quick"]).unwrap().scales(),
            "1.5 of chase, 1 of mmap-churn, 0.5 of phases"
        );
        assert!(full.scales().starts_with("6 of chase, 8 of gups, 2 of fork-exec, "), "{}", full.scales());
        assert!(quick[0].options().join(" ").contains("--nested-page 4K --sample-ms 1"));
    }

    #[test]
    fn without_a_hypervisor_there_is_nothing_to_choose() {
        let plans =
            comparison(&["--policies", "native", "--workloads", "gups"]).unwrap().first(Path::new(""));
        assert_eq!(
            plans[0].options().join(" "),
            "--deterministic=1 --machine native --lab opteron-2350 --lab-from session"
        );
    }

    #[test]
    fn huge_pages_are_asked_for_by_the_kernels_command_line_and_are_other_cells() {
        let small = comparison(&["--policies", "native,agile", "--workloads", "bfs"]).unwrap();
        let huge = Request { huge_pages: true, ..small.request().clone() };
        let plans = |comparison: &Comparison| comparison.first(Path::new(""));
        let (small, huge) = (plans(&small), plans(&Comparison::new(huge).unwrap()));
        for (small, huge) in small.iter().zip(&huge) {
            assert!(huge.options().join(" ").ends_with(" --append pages=2M"), "{:?}", huge.options());
            assert!(!small.options().contains(&"--append".to_owned()));
            assert_ne!(small.name, huge.name);
        }
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
        let plans = comparison(&words).unwrap().first(Path::new(""));
        assert_eq!((plans.len(), plans[0].seed, plans[11].seed, plans[5].scale_milli), (12, 1, 3, 500));
        assert!(plans.iter().all(|plan| plan.logs.is_none()));
    }

    #[test]
    fn what_others_learn_from_is_run_and_its_log_kept() {
        let plans = |policies: &str| {
            let comparison =
                comparison(&["--policies", policies, "--workloads", "gups", "--seeds", "2"]).unwrap();
            let plans = comparison.first(Path::new("logs"));
            plans.into_iter().map(|plan| (plan.policy, plan.seed, plan.logs.is_some())).collect::<Vec<_>>()
        };
        let plan = |policy: &str, seed, keeps| (policy.to_owned(), seed, keeps);
        let nested = [plan("nested", 1, true), plan("nested", 2, false), plan("shadow", 1, true)];
        assert_eq!(plans("nested,asp-svm,train=specific"), nested);
        // It tells how long the work is, of which the profile is a multiple.
        assert_eq!(plans("dsp-offset,train=pooled"), [plan("nested", 1, true)]);
    }

    #[test]
    fn wrong_names_are_usage() {
        for (words, why) in [
            (&["--policies", "dav3m"][..], "dav3m"),
            (&["--policies", "dav2m,window=3"], "window_inst"),
            (&["--policies", "dav2m,train=pooled"], "dsp-offset, asp-svm and oracle"),
            (&["--workloads", "gup"], "gups"),
        ] {
            let error = comparison(words).err().unwrap();
            assert!(error.is::<Usage>() && error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_log_is_named_after_its_cell() {
        let comparison = comparison(&["--policies", "asp-svm,train=pooled", "--workloads", "gups"]).unwrap();
        let plans = comparison.first(Path::new("logs"));
        assert_eq!(
            plans[0].log("0123456789abcdefgh"),
            Some(PathBuf::from("logs/gups-0123456789abcdef.jsonl"))
        );
    }
}
