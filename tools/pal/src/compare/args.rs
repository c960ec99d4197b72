//! Options of `pal compare`.

use std::path::PathBuf;

use clap::Args;

use crate::{
    cli::{NestedPage, nested_page},
    workload::args::scale,
};

const EXAMPLES: &str = "\
Examples:
  cargo pal compare --quick                all policies on a few workloads; some minutes
  cargo pal compare --policies nested,shadow,dav2m --workloads chase,phases
  cargo pal compare --policies dsp-sample,interval_ms=20,exploit=9,nested,shadow
                                           a part with `=` belongs to the policy before it
  cargo pal compare --workloads chase,gups --nested-page 2M
  cargo pal compare --policies nested,shadow,dsp-offset,train=specific
  cargo pal compare --seeds 5 --lab zen3 --json zen3.json --html zen3.html
                                           type it again, and it goes on where it was
  cargo pal compare --quick --cells cells --plan
                                           what `cargo pal sweep` runs on many machines

Each cell is one deterministic `pal run` on a lab machine; of it the marked work alone counts, with what the hypervisor did for it. \
Times are modelled cycles, relative to the better of nested and shadow (docs/policies.md).

Exit status: 0; 1 if a cell failed, or checksums differ; 2 usage.";

/// Options of `pal compare`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArgs {
    /// The policies, as `pal run --policy` takes them; with train=pooled or train=specific dsp-offset and asp-svm learn from this
    /// comparison's own runs, with train=enumerated asp-svm learns from further ones, as it was published, and with train=specific
    /// oracle has its schedule from them. Default: all
    #[arg(long, value_name = "A,B,…", num_args = 1..)]
    pub policies: Vec<String>,
    /// The workloads, by their names in `cargo pal workload list`. Default: some of each kind
    #[arg(long, value_name = "X,Y,…", num_args = 1.., value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Runs of each cell, with the seeds 1 to N; the table has the medians
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub seeds: u32,
    /// Short runs of fewer workloads
    #[arg(long)]
    pub quick: bool,
    /// How much work, as a multiple of what the list of workloads says. Default: 2, and with --quick
    /// 0.5; some times that for chase, gups, mmap-churn and spmv, whose work is short
    #[arg(long, value_name = "FACTOR", value_parser = scale)]
    pub scale: Option<u32>,
    /// The lab machine: a name of `cargo pal lab list`, or the file that describes one
    #[arg(long, value_name = "NAME|FILE", default_value = "opteron-2350")]
    pub lab: String,
    /// The largest pages that nested tables map guest memory with, as `pal run --nested-page`: with larger ones walks cost less
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = nested_page())]
    pub nested_page: NestedPage,
    /// Let time in the machine follow the modelled cycles, as `pal run --lab-time` does
    #[arg(long)]
    pub lab_time: bool,
    /// Guests without the guest kit: page faults are then not known while nested paging is used
    #[arg(long)]
    pub no_kit: bool,
    /// Cells that run side by side; it changes no result. Default: as many as this machine has processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: Option<u32>,
    /// Write all cells to FILE as JSON, after each of them. Those that it has already, of the same inputs, are not run again
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a line for each cell to FILE
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with tables and timelines to FILE, which needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Keep each cell in a file of its own in DIR too. Those that are there already, of the same inputs, are not run again
    #[arg(long, value_name = "DIR")]
    pub cells: Option<PathBuf>,
    /// Run nothing: print a line of JSON for each cell, with its file in DIR, the cells that it learns from, and the command that
    /// runs it alone
    #[arg(long, requires = "cells")]
    pub plan: bool,
    /// Run this cell alone, and what it learns from where that is missing; --plan has the names
    #[arg(long, value_name = "NAME", requires = "cells", conflicts_with_all = ["plan", "json", "csv", "html"])]
    pub cell: Option<String>,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// The policies of `--policies`: a part with `=` is a parameter of the policy before it, but for `switch=N`.
pub fn policies(words: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in words {
        let first = all.len();
        for part in word.split(',') {
            let is_parameter = part.contains('=') && !part.starts_with("switch=");
            match all[first..].last_mut() {
                Some(policy) if is_parameter => *policy += &format!(",{part}"),
                _ => all.push(part.to_owned()),
            }
        }
    }
    let mut known = Vec::new();
    all.retain(|policy| {
        !known.contains(policy) && {
            known.push(policy.clone());
            true
        }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_belong_to_the_policy_before_them() {
        let read =
            |words: &[&str]| policies(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            read(&[
                "nested,dsp-sample,interval_ms=20,exploit=9,switch=50",
                "dsp-offset,model=a.toml",
                "nested"
            ]),
            ["nested", "dsp-sample,interval_ms=20,exploit=9", "switch=50", "dsp-offset,model=a.toml"]
        );
        assert_eq!(read(&["seed=3"]), ["seed=3"], "refused as a policy later");
        assert_eq!(read(&[""]), [""]);
    }
}
