//! The figures: what is run for each, and of which paper it is. [`verdict`](super::verdict) has the claims.

use crate::{
    cli::NestedPage,
    compare::{
        learn::RANDOM,
        plan::{DAV2M, NATIVE, SAMPLE_MS},
    },
    status::Usage,
};

pub use crate::compare::plan::AGILE;

pub const NESTED: &str = "nested";
pub const SHADOW: &str = "shadow";
pub const SAMPLE: &str = "dsp-sample,interval_ms=5,exploit=20";
pub const SPECIFIC: &str = "dsp-offset,train=specific";
pub const POOLED: &str = "dsp-offset,train=pooled";
pub const ASP: &str = "asp-svm,train=enumerated";

/// What a figure is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The time of DAV²M beside that of the static modes.
    Dav2mTime,
    /// How often it changes the mode.
    Dav2mChanges,
    /// The share of time in each mode.
    Dav2mShares,
    /// The time of the DSP paper's policies beside that of nested paging.
    DspTime,
    /// The modes that the pooled model chose.
    DspShares,
    /// What is run to train.
    DspCost,
    /// References of a walk of agile paging.
    AgileRefs,
    /// What walks and the hypervisor take beside a machine without one.
    AgileTime,
    /// The same with pages of 2 MiB.
    AgileTimeHuge,
}

/// A figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on command lines.
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    /// The paper.
    pub paper: &'static str,
    /// What it is about.
    pub subject: Subject,
    /// The lab machines: as far as there are descriptions, those of the paper.
    pub labs: &'static [&'static str],
    /// The policies.
    pub policies: &'static [&'static str],
    /// The workloads.
    pub workloads: &'static [&'static str],
    /// The workloads with `--quick`.
    pub quick: &'static [&'static str],
    /// Milliseconds of a period of samples.
    pub sample_ms: u32,
    /// The largest pages of the nested tables. With other ones than small ones the workloads use huge pages, too.
    pub pages: NestedPage,
}

const DAV2M_PAPER: &str = "Bae, Lange, Dinda, ICAC 2011";
const AGILE_PAPER: &str = "Gandhi, Hill, Swift, ISCA 2016";
const DSP_PAPER: &str = "Hiebel, Brown, Wang, ICPP 2018";
const ALL: &[&str] = &["chase", "gups", "fork-exec", "mmap-churn", "phases", "phases-fork", "matmul"];
const THREE: &[&str] = &["chase", "mmap-churn", "phases"];
const DSP_POLICIES: &[&str] = &[NESTED, SHADOW, SAMPLE, SPECIFIC, POOLED, ASP];
const NEHALEM: &[&str] = &["nehalem-i5"];

/// With the compiler, on whose counterpart, 403.gcc, DAV²M changed most often.
const ALL_AND_GCC: &[&str] =
    &["chase", "gups", "fork-exec", "mmap-churn", "gcc", "phases", "phases-fork", "matmul"];
const THREE_AND_GCC: &[&str] = &["chase", "mmap-churn", "gcc", "phases"];

/// A figure of the DAV²M paper, by default on its first machine alone.
const fn dav2m(name: &'static str, shows: &'static str, subject: Subject) -> Figure {
    let labs = &["opteron-2350"];
    Figure {
        name,
        shows,
        paper: DAV2M_PAPER,
        subject,
        labs,
        policies: &[DAV2M],
        workloads: ALL_AND_GCC,
        quick: THREE_AND_GCC,
        sample_ms: SAMPLE_MS,
        pages: NestedPage::Small,
    }
}

/// A figure of the DSP paper.
const fn dsp(name: &'static str, shows: &'static str, subject: Subject) -> Figure {
    Figure {
        name,
        shows,
        paper: DSP_PAPER,
        subject,
        labs: NEHALEM,
        policies: DSP_POLICIES,
        workloads: ALL,
        quick: THREE,
        sample_ms: SAMPLE_MS,
        pages: NestedPage::Small,
    }
}

/// A figure of the paper on agile paging, by default of that alone.
const fn agile(name: &'static str, shows: &'static str, subject: Subject) -> Figure {
    // Stand-ins of graph500, memcached, canneal and dedup; then what a policy may go wrong with.
    Figure {
        name,
        shows,
        paper: AGILE_PAPER,
        subject,
        labs: &["sandybridge-ep"],
        policies: &[AGILE],
        workloads: &[
            "bfs",
            "store",
            "anneal",
            "dedup",
            "dedup-maps",
            "gups",
            "chase",
            "fork-server",
            "mmap-churn",
            "phases",
        ],
        quick: &["bfs", "store", "anneal", "dedup"],
        // Nothing decides at their end, and with agile paging they are more: the guest's time goes on while exits stand in for
        // the processor.
        sample_ms: 20,
        pages: NestedPage::Small,
    }
}

/// All of them, in the order of the list.
pub const FIGURES: &[Figure] = &[
    Figure {
        labs: &["opteron-2350", "phenom-x2-550"],
        policies: &[NESTED, SHADOW, DAV2M],
        ..dav2m("dav2m-fig10", "the time of nested paging, shadow paging and DAV²M", Subject::Dav2mTime)
    },
    dav2m("dav2m-fig11", "how often DAV²M changes the mode", Subject::Dav2mChanges),
    dav2m("dav2m-fig12", "the share of time that DAV²M spends in each mode", Subject::Dav2mShares),
    // Integer programs: gcc, mcf, perlbench and others like them.
    Figure {
        workloads: &["chase", "bfs", "fork-exec", "mmap-churn", "phases", "phases-fork", "sha256"],
        ..dsp(
            "dsp-fig5",
            "the time of all policies, relative to nested paging, on integer programs",
            Subject::DspTime,
        )
    },
    // cactusADM and soplex, gamess and namd.
    Figure {
        workloads: &["gups", "spmv", "matmul"],
        quick: &["spmv", "matmul"],
        ..dsp("dsp-fig6", "the same on numerical programs", Subject::DspTime)
    },
    Figure {
        policies: &[POOLED],
        ..dsp("dsp-fig7", "the share of time that the pooled model spends in each mode", Subject::DspShares)
    },
    Figure {
        // The pooled model for what it learns from.
        policies: &[NESTED, SHADOW, RANDOM, POOLED, ASP],
        ..dsp("dsp-cost", "how long what is run to train takes", Subject::DspCost)
    },
    agile(
        "agile-refs",
        "references of a walk of agile paging, by where it leaves the shadow tables",
        Subject::AgileRefs,
    ),
    Figure {
        policies: &[NATIVE, NESTED, SHADOW, AGILE],
        ..agile(
            "agile-fig",
            "what walks and the hypervisor take beside native, with pages of 4 KiB",
            Subject::AgileTime,
        )
    },
    Figure {
        policies: &[NATIVE, NESTED, SHADOW, AGILE],
        pages: NestedPage::Large,
        ..agile("agile-fig-2m", "the same with pages of 2 MiB", Subject::AgileTimeHuge)
    },
];

/// The figure of this name.
///
/// # Errors
/// [`Usage`]: there is none; it names those that were meant, or all.
pub fn find(name: &str) -> Result<&'static Figure, Usage> {
    FIGURES.iter().find(|figure| figure.name == name).ok_or_else(|| {
        let web = super::region::WEB;
        if is_of_web(name) {
            return Usage::new(format!("{name}: no such figure; {web} stands for figures 46 to 58"));
        }
        let all = names();
        let meant: Vec<_> = all.iter().copied().filter(|known| known.contains(name)).collect();
        let listed = if meant.is_empty() { all } else { meant };
        Usage::new(format!("{name}: no such figure; there are {}", listed.join(", ")))
    })
}

/// The names of all figures, also of those that other modules run.
fn names() -> Vec<&'static str> {
    let own = FIGURES.iter().map(|figure| figure.name);
    let simulated = super::apr::FIGURES.iter().map(|figure| figure.name).chain([super::apr::guest::NAME]);
    let regions = super::region::FIGURES.iter().map(|figure| figure.name);
    own.chain(simulated).chain(super::memory::names()).chain(regions).collect()
}

/// Whether this is a figure of the thesis on memory regions that the one of servers stands for: `fig46`, `region-fig58`.
fn is_of_web(name: &str) -> bool {
    let number = name.strip_prefix("region-").unwrap_or(name).strip_prefix("fig");
    number.and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| (46..=58).contains(&number))
}

/// The list of figures.
pub fn list() -> String {
    let line = |figure: &Figure| format!("{:<12} {} ({})\n", figure.name, figure.shows, figure.paper);
    FIGURES.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::plan::POLICIES;

    #[test]
    fn figures_are_of_things_that_there_are() {
        for figure in FIGURES {
            let names = figure.workloads.iter().chain(figure.quick);
            assert!(names.clone().all(|name| workloads::find(name).is_some()), "{}", figure.name);
            // What is run for a comparison serves the figures, too.
            let known =
                |policy: &&&str| [SPECIFIC, ASP, NATIVE].contains(*policy) || POLICIES.contains(policy);
            assert!(figure.policies.iter().all(|policy| known(&policy)), "{}", figure.name);
            assert!(figure.labs.iter().all(|lab| crate::lab::find(lab).is_ok()), "{}", figure.name);
            assert!(list().contains(figure.name) && find(figure.name).unwrap().name == figure.name);
        }
    }

    #[test]
    fn the_beginning_of_a_name_gives_the_figures_that_are_meant() {
        let said = |name: &str| find(name).err().unwrap().to_string();
        let listed = [list(), crate::reproduce::apr::list()].concat();
        let listed = listed + &crate::reproduce::memory::list() + &crate::reproduce::region::list();
        let figures: Vec<_> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names(), figures);
        for name in &figures {
            let answer = said(&name[..name.len() - 1]);
            assert!(answer.contains(name), "{answer}");
            assert!(said("nothing").contains(name));
        }
        assert!(said("dav2m-fig1").ends_with("there are dav2m-fig10, dav2m-fig11, dav2m-fig12"));
        assert!(said("memory-fig7").ends_with("memory-fig71, memory-fig70, memory-fig72, memory-fig73"));
        for name in ["fig46", "region-fig46", "region-fig58"] {
            assert!(said(name).ends_with("region-web stands for figures 46 to 58"));
        }
        assert!(!said("region-fig45").contains("stands for") && !said("region-fig59").contains("stands for"));
    }
}
