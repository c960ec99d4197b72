//! Options of `pal lab`, and of `pal run` for the lab machine.

use std::path::PathBuf;

use abi::lab::PACE_WINDOW;
use clap::{Args, Subcommand, ValueEnum};

use crate::cli::Mode;

const EXAMPLES: &str = "\
Examples:
  cargo pal lab list
  cargo pal lab show zen3
  cargo pal lab check mine.toml
  cargo pal lab speed zen3                what the model costs in time
  cargo pal run --lab zen3 --exec true    a run on one (docs/lab.md)";

/// Options of `pal lab`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LabArgs {
    /// What to do
    #[command(subcommand)]
    pub command: LabCommand,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  cargo pal lab show westmere-x5660             structures, reach of each TLB, latencies, and where figures come from
  cargo pal lab show --toml zen3 > mine.toml    a description to change
  cargo pal run --lab mine.toml --exec true     a run on it";

/// What `pal lab` does.
#[derive(Subcommand)]
pub enum LabCommand {
    /// List the machines that come with Palimpsest
    List,
    /// Show a machine: its structures, and what follows from them
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// A machine's name, or the file that describes one
        #[arg(value_name = "NAME|FILE")]
        machine: String,
        /// Print the description itself
        #[arg(long)]
        toml: bool,
    },
    /// Check the file that describes a machine
    Check {
        /// The file (docs/lab.md)
        file: PathBuf,
    },
    /// Measure the processor time that the model takes: QEMU with TLBs only, with everything, and without, in turn
    #[command(after_help = SPEED_EXAMPLES)]
    Speed(SpeedArgs),
}

const SPEED_EXAMPLES: &str = "\
Examples:
  cargo pal lab speed                           takes some minutes
  cargo pal lab speed zen3 --rounds 9           the more often, the better, on a machine with other work
  cargo pal lab speed zen3 --mode shadow --deterministic";

/// Options of `pal lab speed`.
#[derive(Args)]
pub struct SpeedArgs {
    /// A machine's name, or the file that describes one
    #[arg(value_name = "NAME|FILE", default_value = "westmere-x5660")]
    pub machine: String,
    /// How often everything is run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How the hypervisor virtualizes guest memory
    #[arg(long, value_name = "nested|shadow|switch=N", default_value_t = Mode::Nested)]
    pub mode: Mode,
    /// Count time in instructions, with the model and without, so that all runs execute the same
    #[arg(long)]
    pub deterministic: bool,
    /// The QEMU program, 9.2 or newer
    #[arg(long, value_name = "PATH")]
    pub qemu: Option<PathBuf>,
    /// Download what is missing without asking
    #[arg(long)]
    pub yes: bool,
}

/// The least window for `--lab-step`: processors look where the others are every 512 instructions.
const MIN_STEP: u64 = 1000;

/// Options of `pal run`.
#[derive(Args)]
pub struct LabRunArgs {
    /// Model the translation caches, page walks, caches and memory of a machine while QEMU runs: one that comes with
    /// Palimpsest (`cargo pal lab list`), or the one that FILE describes (docs/lab.md). Takes QEMU 9.2 or newer, which is
    /// fetched if it is not installed
    #[arg(long, value_name = "NAME|FILE", help_heading = "Lab machine")]
    pub lab: Option<String>,
    /// How much is modelled: `full`; `tlb`, without caches; `count`, instructions only
    #[arg(long, value_enum, default_value_t = Model::Full, requires = "lab", help_heading = "Lab machine")]
    pub lab_model: Model,
    /// From when on: the machine's `boot`; or the guest's `session`, when the command of --exec or its shell begins. Before it
    /// instructions and world switches are counted, at a fraction of the time
    #[arg(long, value_enum, default_value_t = ModelFrom::Boot, requires = "lab", help_heading = "Lab machine")]
    pub lab_from: ModelFrom,
    /// Compare the model's translations with QEMU's own: at each TLB `miss`, or at `all` accesses; a difference is an error
    #[arg(long, value_enum, default_value_t = Check::Off, requires = "lab", help_heading = "Lab machine")]
    pub lab_check: Check,
    /// Let time in the machine follow the model's cycles: guests' clocks and timers, the scheduler, the statistics
    #[arg(long, help_heading = "Lab machine")]
    pub lab_time: bool,
    /// Keep processors that execute within this many modelled cycles of each other. With fewer, what they wait for each other
    /// (locks, interrupts) is closer to the model, and a run takes longer
    #[arg(long, value_name = "CYCLES", default_value_t = PACE_WINDOW, value_parser = clap::value_parser!(u64).range(MIN_STEP..=PACE_WINDOW),
        requires = "lab", help_heading = "Lab machine")]
    pub lab_step: u64,
    /// Let the model overlook something: a comparison then has to find differences
    #[arg(long, value_enum, requires = "lab", hide = true)]
    pub lab_broken: Option<Broken>,
    /// Write the pages that guests access to FILE, in their order, for `cargo pal replace` (docs/replacement.md)
    #[arg(long, value_name = "FILE", requires = "lab", help_heading = "Lab machine")]
    pub page_trace: Option<PathBuf>,
    /// Write all counters to FILE as JSON at the end
    #[arg(long, value_name = "FILE", requires = "lab", help_heading = "Lab machine")]
    pub lab_report: Option<PathBuf>,
}

/// What a model overlooks, to see that a comparison finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Broken {
    /// INVLPG.
    Invlpg,
    /// Writes of CR3.
    Cr3,
}

/// How much is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// Instructions are counted.
    Count,
    /// TLBs and walks.
    Tlb,
    /// Caches and memory, too.
    Full,
}

/// From when on it is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModelFrom {
    /// The machine's start.
    Boot,
    /// The guest's session.
    Session,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// Nothing.
    Off,
    /// What misses the TLBs.
    Miss,
    /// Every access.
    All,
}
