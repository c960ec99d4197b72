//! The options of `pal bench`.

use std::path::PathBuf;

use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};

use crate::cli::{Machine, Mode, NestedPage, nested_page};

const BENCH_EXAMPLES: &str = "\
Examples:
  cargo pal bench                          the table: native, ours, KVM's and Xen's figures, our goals
  cargo pal bench --runs 3 --json out.json  the same three times, with everything in a file
  cargo pal bench --only cpuid --exits     one row, and what leaves the guest in it
  cargo pal bench --only scheduler         what decisions and switches between VCPUs take
  cargo pal bench --only policies          what a sample and the decision of each policy take, on a lab machine
  cargo pal bench --machine bochs-vtx      the same on an Intel processor with VT-x
  cargo pal bench --smp                    guests with several processors, beside native; takes some minutes
  cargo pal bench --smp --runs 9 --only ipi wake --json out.json
  cargo pal bench --smp --quick            one sample of everything: does it work?
  cargo pal bench --smp --lab westmere-x5660 --only spaces
                                           the same with modelled cycles: also on a development machine with few processors
  cargo pal bench --lab westmere-x5660     modelled cycles, those of page walks apart; takes some minutes
  cargo pal bench --lab all --nested-page 4K --only chase-4k-256m fork-wait populate
                                           nested against shadow tables on every machine that there is a model of

The emulator counts instructions as time, so figures repeat and do not depend on this machine's speed (docs/benchmarks.md).
With --smp time is real: leave the machine alone meanwhile, and trust the ratios to native rather than the ticks.

Rows of --smp: ipi, ipi-x2apic, call, wake, switch, compute-1 to compute-4, faults-1 to faults-4; compute and faults mean all four;
spaces: one VM of several VCPUs beside several VMs of one.

Exit status: 0, also if goals are missed; with --check 1 if one is; 1 if something could not be measured; 2 usage.";

/// The machines that the hypervisor runs on; what is native there is measured beside it.
fn hypervisors() -> impl TypedValueParser<Value = Machine> {
    let machines = Machine::value_variants().iter().filter(|machine| machine.has_hypervisor());
    PossibleValuesParser::new(machines.filter_map(ValueEnum::to_possible_value))
        .map(|name| Machine::from_str(&name, false).expect("one of these"))
}

/// Options of `pal bench`.
#[derive(Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// The hypervisor's machine: on bochs-vtx a run takes many minutes
    #[arg(long, value_parser = hypervisors(), default_value = "qemu-svm")]
    pub machine: Machine,
    /// Measure only these rows: cpuid, pci-read, fork-wait, …, scheduler, policies; with --smp ipi, call, …; with --lab also chase, gups, …
    #[arg(long, value_name = "ROW", num_args = 1..)]
    pub only: Vec<String>,
    /// Measure only these modes: nested, shadow, or switch=N, which also shows what a change of the mode costs. Default:
    /// nested shadow switch=50 switch=2000, on bochs-vtx and with --smp nested shadow
    #[arg(long, value_name = "MODE", num_args = 1..)]
    pub mode: Vec<Mode>,
    /// Measure this often; the table shows the median run and how far the runs are apart. Default: 1, with --smp 5
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: Option<u32>,
    /// Measure what several processors of a guest need to reach each other and get done together, on four processors that
    /// QEMU emulates, in real time
    #[arg(long, conflicts_with_all = ["exits", "check"])]
    pub smp: bool,
    /// Measure in modelled cycles of these lab machines, with those of page walks apart: names, files that describe one, or `all`
    /// (docs/lab.md). Adds the rows chase, gups, stream and populate. With --smp: only the row `spaces`, on one machine
    #[arg(long, value_name = "NAME|FILE", num_args = 1.., conflicts_with_all = ["exits", "check", "bochs"])]
    pub lab: Vec<String>,
    /// With --lab: the largest pages that nested tables map guest memory with, as `pal run --nested-page`: with 4K walks cost
    /// more
    #[arg(long, value_name = "SIZE", value_parser = nested_page(), requires = "lab")]
    pub nested_page: Option<NestedPage>,
    /// Take one sample of each row, once
    #[arg(long, requires = "smp", conflicts_with = "runs")]
    pub quick: bool,
    /// Also run each row alone and show its exits: how many, and their cost
    #[arg(long)]
    pub exits: bool,
    /// Write everything to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exit with 1 if a goal is missed
    #[arg(long)]
    pub check: bool,
    /// The guest's kernel. Default: Debian's cloud kernel
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// The QEMU to use instead of qemu-system-x86_64 in PATH
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    /// The Bochs to use instead of bochs in PATH
    #[arg(long, value_name = "PATH")]
    pub bochs: Option<PathBuf>,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}
