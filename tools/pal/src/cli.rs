//! The command line.

pub mod help;

use std::{
    io::{IsTerminal, stdin},
    path::PathBuf,
};

pub use abi::{
    config::{NestedPage, Protocol, Replacement},
    mode::Mode,
    regions::Regions,
    tiers::{Eviction, HotPolicy, Sharing},
};
use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};

pub use crate::host::guests::Guest;
use crate::{
    bench::args::BenchArgs,
    compare::args::CompareArgs,
    image::args::ImageArgs,
    kit::KitArgs,
    lab::args::{LabArgs, LabRunArgs},
    replace::ReplaceArgs,
    report::ReportArgs,
    reproduce::{ReproduceArgs, region::calibrate::CalibrateArgs},
    run::{fast::FastMem, pcpus::Pcpus, records::args::RecordArgs, remote::place},
    sweep::SweepArgs,
    top::args::TopArgs,
    train::{EvaluateArgs, TrainArgs},
    workload::args::WorkloadArgs,
};

/// Palimpsest's tool: build the hypervisor, run guests on it, test it.
#[derive(Parser)]
#[command(name = "pal", bin_name = "cargo pal", version, max_term_width = 110, args_override_self = true, after_help = help::PAL)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a guest on the hypervisor, on an emulated machine
    Run(Box<RunArgs>),
    /// Run everything that CI runs
    Test(TestArgs),
    /// Run a fuzz target, or list them
    Fuzz(FuzzArgs),
    /// Measure what the hypervisor costs a guest, beside native execution and other hypervisors
    Bench(BenchArgs),
    /// Make media that boot real machines: ISO, USB, network; or show what one holds
    Image(ImageArgs),
    /// List, show or check descriptions of lab machines, which `run --lab` models; measure what that costs
    Lab(LabArgs),
    /// List workloads of a fixed amount of work, or run one and say what it took
    Workload(WorkloadArgs),
    /// Compare policies on workloads: time relative to the better engine, changes, and when which engine was in force
    Compare(CompareArgs),
    /// Compare policies on several machines as a workflow of Snakemake, here or on a cluster
    Sweep(SweepArgs),
    /// Run what figures of the papers show, and say whether their claims hold here
    Reproduce(ReproduceArgs),
    /// Measure what `run --regions` needs to know of a machine
    Calibrate(CalibrateArgs),
    /// Simulate page replacement on a trace, or make the trace of a program
    Replace(Box<ReplaceArgs>),
    /// Print the path of a guest's kernel, downloading it if needed
    Kernel(KernelArgs),
    /// Build the guest kit, a module that counts a guest's page faults, and print its path; `run --kit` does so and loads it
    #[command(after_help = help::KIT)]
    Kit(KitArgs),
    /// Make the root file system of a distribution, for `run --root`
    Root(RootArgs),
    /// List the machines that are running
    #[command(after_help = help::PS)]
    Ps,
    /// Show what the guests of a running machine do, as top does of processes
    Top(TopArgs),
    /// Make a page of HTML of the samples of one run or several
    Report(ReportArgs),
    /// Train a policy that chooses between nested and shadow paging, from samples of runs
    Train(TrainArgs),
    /// Estimate from one log of random choices what other policies would have gained
    Evaluate(EvaluateArgs),
    /// Attach this terminal to the console of a running machine
    Console(ConsoleArgs),
    /// Talk to the monitor of a running machine, or have it perform one command
    Monitor(MonitorArgs),
    /// Show what the guests of a running machine have of its fast memory, or set the share of one
    Tier(TierArgs),
    /// End the run of a machine, and return its exit status
    Stop(StopArgs),
    /// Show what is installed on this machine, what is missing, and what to type
    #[command(after_help = help::DOCTOR)]
    Doctor,
}

/// What makes no sense without a guest.
const GUEST_OPTIONS: [&str; 28] = [
    "append",
    "audit_shadow",
    "balloon",
    "disk",
    "entropy",
    "exec",
    "get",
    "guest",
    "initrd",
    "kernel",
    "kit",
    "mode",
    "module",
    "modules",
    "nested_page",
    "net",
    "overcommit",
    "permissive_msr",
    "protocol",
    "put",
    "regions",
    "replacement",
    "resident",
    "root",
    "stats",
    "test_device",
    "virtio_console",
    "without",
];

/// What a description says in their place.
const DESCRIBED: [&str; 31] = [
    "append",
    "audit_shadow",
    "balloon",
    "disk",
    "entropy",
    "exec",
    "get",
    "guest",
    "initrd",
    "kernel",
    "kit",
    "mem",
    "mode",
    "module",
    "modules",
    "nested_page",
    "net",
    "overcommit",
    "permissive_msr",
    "probe",
    "protocol",
    "put",
    "regions",
    "replacement",
    "resident",
    "root",
    "shadow_pages",
    "test_device",
    "vcpus",
    "virtio_console",
    "without",
];

/// Options of `pal run`.
#[derive(Args)]
#[command(after_help = help::RUN)]
pub struct RunArgs {
    /// The machine: `qemu-svm` runs the guest on the hypervisor on an AMD processor that QEMU emulates, `native` runs it
    /// straight on the same emulated processor; `bochs-vtx` and `bochs-native` do so on an Intel processor that Bochs emulates
    #[arg(long, value_enum, default_value_t = Machine::QemuSvm, help_heading = "Machine")]
    pub machine: Machine,
    /// How the hypervisor virtualizes guest memory; [`help::mode`] says it to the person.
    #[arg(long, help = help::mode(), visible_alias = "policy", value_name = "MODE[,key=value]", default_value_t = Mode::Nested, value_parser = crate::train::model::mode, help_heading = "Machine")]
    pub mode: Mode,
    /// The largest pages that nested tables map guest memory with: 4K, 2M, or 1G where the processor has them. With small ones
    /// walks cost more, as where host memory is fragmented
    #[arg(long, value_name = "SIZE", value_parser = nested_page(), help_heading = "Machine")]
    pub nested_page: Option<NestedPage>,
    /// Find out which memory of the guest is used together, and map it to last-level caches: `balance`, `unify` or `partition`, with
    /// parameters such as `unify,q_us=50` (docs/configuration.md)
    #[arg(long, value_name = "off|POLICY[,key=value]", default_value_t = Regions::Off, help_heading = "Machine")]
    pub regions: Regions,
    /// Pages of shadow tables at most. Default: what fits a fiftieth of guest memory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(16..=1 << 20), help_heading = "Machine")]
    pub shadow_pages: Option<u32>,
    /// Check all shadow tables against the guest's own before every entry into the guest, or every Nth, and end it at the
    /// first difference: slow, for finding mistakes
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Machine")]
    pub audit_shadow: Option<u32>,
    /// Guest memory in MiB
    #[arg(long, value_name = "MiB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 30), help_heading = "Machine")]
    pub mem: u64,
    /// Let the guest's memory be more than the machine has for it: pages that it does not use are kept compressed
    #[arg(long, help_heading = "Machine")]
    pub overcommit: bool,
    /// MiB of an overcommitted guest's memory that are in frames of the machine at a time. Default: what its share of the
    /// machine's memory allows
    #[arg(long, value_name = "MiB", requires = "overcommit", help_heading = "Machine")]
    pub resident: Option<u64>,
    /// The policy by which its pages are evicted: clock, clock-pro, seq, apr, lru, s3-fifo or sieve. Default: clock
    #[arg(long, value_name = "POLICY", requires = "overcommit", value_parser = replacement(), help_heading = "Machine")]
    pub replacement: Option<Replacement>,
    /// A disk of the machine, of this many MiB, for pages of overcommitted guests for which there is no room in memory
    #[arg(long, value_name = "MiB", value_parser = clap::value_parser!(u64).range(1..=1 << 20), help_heading = "Machine")]
    pub page_disk: Option<u64>,
    /// Give an overcommitted guest a balloon (virtio): it gives free memory back, and more when the monitor's `balloon` asks
    #[arg(long, requires = "overcommit", help_heading = "Machine")]
    pub balloon: bool,
    /// Fast memory beside the machine's other memory, which hot pages of guests are moved to: MIB more, or MIB@MIB for a
    /// part of the machine's memory (how much, and where it begins). On a lab machine all other memory is its slow tier. Default:
    /// what is not slow by the description of a lab machine that has memory of the slow tier
    #[arg(long, value_name = "MIB[@MIB]", help_heading = "Machine")]
    pub fast_mem: Option<FastMem>,
    /// How guests share the fast memory: static (`fast_mib` of a description), shares (weights), wss (working sets), estate-qos or
    /// estate-resource (steps of an eighth). Default: shares
    #[arg(long, value_name = "HOW", value_parser = sharing(), help_heading = "Machine")]
    pub fast_sharing: Option<Sharing>,
    /// Which pages are hot: `threshold`, accessed in 22 of 32 samples; `histogram`, as many as there is room for; `rotate`, all that are accessed, for tests. Default: threshold
    #[arg(long, value_name = "POLICY", value_parser = hot_policy(), help_heading = "Machine")]
    pub fast_policy: Option<HotPolicy>,
    /// Which pages leave fast memory when others are to come: `lazy`, those without an access in 30 samples; or those that a policy of
    /// page replacement evicts: clock, clock-pro, seq, apr, lru, s3-fifo or sieve. Default: lazy
    #[arg(long, value_name = "POLICY", value_parser = eviction(), help_heading = "Machine")]
    pub fast_evict: Option<Eviction>,
    /// Memory of the machine in MiB. Default: what the hypervisor and all memory of the guests need; with --overcommit it can be
    /// less
    #[arg(long, value_name = "MiB", value_parser = clap::value_parser!(u64).range(64..=1 << 30), help_heading = "Machine")]
    pub host_mem: Option<u64>,
    /// Virtual processors of the guest, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), help_heading = "Machine")]
    pub vcpus: u32,
    /// The Intel processor of Bochs' machines by Bochs' name, such as corei7_sandy_bridge_2600k, corei5_lynnfield_750 or
    /// core2_penryn_t9600, which have fewer and fewer features
    #[arg(long, value_name = "NAME", default_value = MODEL, help_heading = "Machine")]
    pub model: String,
    /// Processors of the machine that the hypervisor runs on, and how many packages, dies, cores and threads they are. Those of a die share
    /// the last-level cache; a lab machine has as many dies as its description has such caches
    #[arg(long, value_name = "N[,sockets=N][,dies=N][,cores=N][,threads=N]", default_value_t = Pcpus::ONE, conflicts_with = "icount", help_heading = "Machine")]
    pub pcpus: Pcpus,
    /// Deterministic time: one instruction is one nanosecond, runs repeat. On Bochs always: one instruction is 10 ns. With one
    /// processor only
    #[arg(long, help_heading = "Machine")]
    pub icount: bool,
    /// Repeat a run exactly: deterministic time, and random numbers from SEED, processor and clock of a fixed date. What is
    /// typed into a guest comes when it comes. QEMU only, with one processor
    #[arg(
        long,
        value_name = "SEED",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        conflicts_with = "pcpus",
        help_heading = "Machine"
    )]
    pub deterministic: Option<u64>,
    /// Give the guest the test device: a byte, word or long written to port 0xf4 ends the run
    #[arg(long, help_heading = "Machine")]
    pub test_device: bool,
    /// Let the guest read unknown MSRs as 0 and write them without effect, instead of #GP
    #[arg(long, help_heading = "Machine")]
    pub permissive_msr: bool,
    /// Hide CPUID features from the guest, by their names in /proc/cpuinfo, with those that depend on them, such as
    /// `x2apic` or `avx,pcid`; may be repeated
    #[arg(long, value_name = "FEATURE[,FEATURE]", value_delimiter = ',', help_heading = "Machine")]
    pub without: Vec<String>,

    /// Print a report on the machine as the hypervisor finds it, and end, without a guest
    #[arg(long, conflicts_with_all = GUEST_OPTIONS, help_heading = "Machine")]
    pub probe: bool,

    /// Run the guests that FILE describes, a TOML file with a [[vm]] table for each (docs/configuration.md); its files are found
    /// beside it. Takes the place of all options for one guest
    #[arg(long, value_name = "FILE", conflicts_with_all = DESCRIBED, help_heading = "Several guests")]
    pub config: Option<PathBuf>,
    /// The guest of --config that has the terminal: its output is shown, and what is typed goes there. Default: the first
    #[arg(long, value_name = "NAME", requires = "config", help_heading = "Several guests")]
    pub console: Option<String>,
    /// Write the whole console output of each guest to DIR/NAME.log, and the hypervisor's log to DIR/hypervisor.log
    #[arg(long, value_name = "DIR", conflicts_with = "probe", help_heading = "Several guests")]
    pub log_dir: Option<PathBuf>,

    /// The lab machine
    #[command(flatten)]
    pub lab: LabRunArgs,

    /// Samples and traces
    #[command(flatten)]
    pub records: RecordArgs,

    /// The guest to fetch, a kernel of Debian's and a busybox for it: debian-amd64, debian-amd64-generic, debian-amd64-rt,
    /// debian-amd64-backports, debian-686, debian-686-pae, debian-686-rt, or the name of any package linux-image-…
    #[arg(long, value_name = "NAME", default_value_t = Guest::DebianAmd64, help_heading = "Guest")]
    pub guest: Guest,
    /// Another kernel for it: a Linux bzImage, a PVH ELF file or a multiboot1 ELF32 file
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub kernel: Option<PathBuf>,
    /// Where the modules of that kernel are, for drivers that are not built in: what `make modules_install` made, or a folder
    /// lib/modules/RELEASE. Default: lib/modules/RELEASE beside the `boot` that the kernel lies in
    #[arg(long, value_name = "DIR", help_heading = "Guest")]
    pub modules: Option<PathBuf>,
    /// The initial RAM disk. Default for Linux kernels: a generated one with a busybox shell
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub initrd: Option<PathBuf>,
    /// A module for a multiboot or PVH kernel, optionally with words for its command line; may be repeated
    #[arg(long, value_name = "FILE[ WORDS]", help_heading = "Guest")]
    pub module: Vec<String>,
    /// Boot this root file system with its own init: a directory, of which an image is made, or an image. With `:rw` an image
    /// keeps what the guest writes, `:ro` forbids writing; `--append init=PATH` takes another init. --exec, --put and --get
    /// work in it
    #[arg(long, value_name = "DIR|IMAGE[:ro|:rw]", help_heading = "Guest")]
    pub root: Option<String>,
    /// Give the guest a disk (virtio): it starts with the contents of FILE, which stays as it is; with `:rw` FILE keeps what the
    /// guest writes, `:ro` forbids writing. May be repeated; the word root=/dev/vda on the kernel's command line takes the first for the root file system
    #[arg(long, value_name = "FILE[:ro|:rw]", help_heading = "Guest")]
    pub disk: Vec<String>,
    /// Give the guest a network card (virtio) at the switch of this name; may be repeated
    #[arg(long, value_name = "SWITCH", help_heading = "Guest")]
    pub net: Vec<String>,
    /// Use a virtio console, /dev/hvc0, as the guest's console
    #[arg(long, help_heading = "Guest")]
    pub virtio_console: bool,
    /// Give the guest a source of random numbers (virtio)
    #[arg(long, help_heading = "Guest")]
    pub entropy: bool,
    /// Words for the kernel's command line, after the default ones; may be repeated
    #[arg(long, value_name = "STR", allow_hyphen_values = true, help_heading = "Guest")]
    pub append: Vec<String>,
    /// How the hypervisor starts the kernel; `auto` takes the best that the file offers
    #[arg(long, value_parser = protocol(), default_value_t = Protocol::Auto, help_heading = "Guest")]
    pub protocol: Protocol,
    /// Add a file or directory to the default guest, by default in its root directory; may be repeated
    #[arg(long, value_name = "FILE[:GUESTPATH]", help_heading = "Guest")]
    pub put: Vec<String>,
    /// Take a file out of the default guest when CMD or the shell has ended, by default into this folder under its own name; a
    /// directory comes as a tar archive. May be repeated
    #[arg(long, value_name = "GUESTPATH[:FILE]", help_heading = "Guest")]
    pub get: Vec<String>,
    /// Load the guest kit in the default guest: a kernel module that counts its page faults, for policies and samples with
    /// nested paging (docs/guide.md). It is built once, by make and gcc, against headers that are fetched
    #[arg(long, help_heading = "Guest")]
    pub kit: bool,
    /// Run one shell command in the default guest, print its output, power off
    #[arg(long, value_name = "CMD", allow_hyphen_values = true, help_heading = "Guest")]
    pub exec: Option<String>,

    /// End the run after this time; 0 means never. Default: 300, on Bochs 3600, but never for a console on a terminal
    #[arg(long, value_name = "SECONDS", help_heading = "Run")]
    pub timeout: Option<u64>,
    /// The machine's name for `cargo pal ps`, `top`, `console`, `monitor` and `stop` in other shells. Default: run- and the process
    /// id
    #[arg(long, value_name = "NAME", value_parser = place::parse_name, help_heading = "Run")]
    pub name: Option<String>,
    /// Write statistics to FILE as JSON: exits, injections, paging events, time (docs/telemetry.md)
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub stats: Option<PathBuf>,
    /// A word for the hypervisor's command line, such as loglevel=debug or mitigations=off (docs/configuration.md); may be
    /// repeated
    #[arg(long, value_name = "STR", allow_hyphen_values = true, help_heading = "Run")]
    pub hv_arg: Vec<String>,
    /// The QEMU to use instead of qemu-system-x86_64 in PATH
    #[arg(long, value_name = "PATH", help_heading = "Run")]
    pub qemu: Option<PathBuf>,
    /// One more argument for QEMU; may be repeated
    #[arg(long, value_name = "STR", allow_hyphen_values = true, help_heading = "Run")]
    pub qemu_arg: Vec<String>,
    /// The Bochs to use instead of bochs in PATH
    #[arg(long, value_name = "PATH", help_heading = "Run")]
    pub bochs: Option<PathBuf>,
    /// One more line for Bochs' configuration; may be repeated
    #[arg(long, value_name = "STR", help_heading = "Run")]
    pub bochs_line: Vec<String>,
    /// Install missing packages without asking
    #[arg(short, long, help_heading = "Run")]
    pub yes: bool,
    /// Show boot messages and the hypervisor's log; twice for its debug log
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Run")]
    pub verbose: u8,
}

/// Options of `pal console`.
#[derive(Args)]
#[command(after_help = help::CONSOLE)]
pub struct ConsoleArgs {
    /// The machine, by its name in `cargo pal ps`. Default: the only one
    pub name: Option<String>,
}

/// Options of `pal monitor`.
#[derive(Args)]
#[command(after_help = help::MONITOR)]
pub struct MonitorArgs {
    /// The machine, by its name in `cargo pal ps`. Default: the only one
    #[arg(short, long, value_name = "NAME")]
    pub name: Option<String>,
    /// What the monitor shall do; `help` lists its commands. Without one, this terminal talks with it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// Options of `pal tier`.
#[derive(Args)]
#[command(after_help = help::TIER)]
pub struct TierArgs {
    /// The machine, by its name in `cargo pal ps`. Default: the only one
    pub name: Option<String>,
    /// The guest whose E-state is to be set, by its name in `cargo pal ps`
    #[arg(requires = "state")]
    pub vm: Option<String>,
    /// Its share of the fast memory, an E-state in eighths: E0 is all of it, E7 an eighth. `auto` lets the machine's policy decide again
    #[arg(value_name = "E0…E7|auto", value_parser = e_state())]
    pub state: Option<String>,
}

/// Options of `pal stop`.
#[derive(Args)]
#[command(after_help = help::STOP)]
pub struct StopArgs {
    /// The machine, by its name in `cargo pal ps`. Default: the only one
    pub name: Option<String>,
}

/// Options of `pal kernel`.
#[derive(Args)]
#[command(after_help = help::KERNEL)]
pub struct KernelArgs {
    /// The guest, by a name as of `pal run --guest`
    #[arg(long, value_name = "NAME", default_value_t = Guest::DebianAmd64)]
    pub guest: Guest,
}

/// The distributions of `pal root`.
#[derive(Clone, Copy, ValueEnum)]
pub enum Distribution {
    /// By mmdebstrap
    Debian,
}

/// Options of `pal root`.
#[derive(Args)]
#[command(after_help = help::ROOT)]
pub struct RootArgs {
    /// The distribution
    #[arg(value_enum)]
    pub distribution: Distribution,
    /// Its release, such as bookworm
    pub name: String,
    /// Packages besides the smallest system with systemd and network commands
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub packages: Vec<String>,
    /// The image
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Free space for what the guest writes; it takes none on this machine until then
    #[arg(long, value_name = "MiB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub free: u64,
    /// Where packages come from, as a URL or a line of sources.list. Default: mmdebstrap's
    #[arg(long, value_name = "MIRROR")]
    pub mirror: Option<String>,
    /// Install missing programs without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// Options of `pal test`.
#[derive(Args)]
#[command(after_help = help::TEST)]
pub struct TestArgs {
    /// Run only these steps: format, lint, image, unit, fuzz, train, replace, bochs-vtx, native, qemu-svm. Without any: all but
    /// fuzz, which --full has
    pub step: Vec<String>,
    /// Run also the tests that take long
    #[arg(long)]
    pub full: bool,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// Options of `pal fuzz`.
#[derive(Args)]
#[command(after_help = help::FUZZ)]
pub struct FuzzArgs {
    /// The target; without one, pal lists them
    pub target: Option<String>,
    /// How long; 0 means until it finds something
    #[arg(long, default_value_t = 60)]
    pub seconds: u32,
}

/// The machines that a guest can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Machine {
    /// The hypervisor on QEMU's emulated AMD-V machine.
    QemuSvm,
    /// The guest alone on the same machine.
    Native,
    /// The hypervisor on Bochs' emulated VT-x machine.
    BochsVtx,
    /// The guest alone on the same machine.
    BochsNative,
}

impl RunArgs {
    /// Whether the guest gets virtio devices.
    pub fn has_devices(&self) -> bool {
        !self.disk.is_empty() || !self.net.is_empty() || self.virtio_console || self.entropy || self.balloon
    }

    /// Whether one instruction is one nanosecond.
    pub fn has_icount(&self) -> bool {
        self.icount || self.deterministic.is_some()
    }

    /// Whether the hypervisor tells the guests' consoles apart, in records.
    pub fn has_records(&self) -> bool {
        self.config.is_some() || self.log_dir.is_some()
    }

    /// Whether the hypervisor takes samples: where that was asked for, and where a person may want to watch the machine from
    /// another shell. A deterministic run is the same whether a person is there or not.
    pub fn takes_samples(&self) -> bool {
        let can =
            self.machine == Machine::QemuSvm && !self.probe && !self.icount && self.deterministic.is_none();
        let is_at_console = self.exec.is_none() && stdin().is_terminal();
        self.records.is_on() || can && (self.name.is_some() || is_at_console)
    }
}

impl Machine {
    /// True if the guest runs on the hypervisor.
    pub fn has_hypervisor(self) -> bool {
        matches!(self, Machine::QemuSvm | Machine::BochsVtx)
    }

    /// True if Bochs emulates it.
    pub const fn is_bochs(self) -> bool {
        matches!(self, Machine::BochsVtx | Machine::BochsNative)
    }
}

/// The processor of Bochs' machine unless another is asked for: the one with the most features of VT-x.
pub const MODEL: &str = "corei7_skylake_x";

/// Reads a boot protocol.
pub fn protocol() -> impl TypedValueParser<Value = Protocol> {
    let values = Protocol::ALL.iter().map(|protocol| {
        let help = match protocol {
            Protocol::Auto => "The best that the kernel file offers",
            Protocol::Linux64 => "Linux bzImage, entered in 64-bit mode",
            Protocol::Linux32 => "Linux bzImage, entered in 32-bit mode",
            Protocol::Pvh => "The PVH entry of an ELF file",
            Protocol::Multiboot1 => "Multiboot 1",
        };
        PossibleValue::new(protocol.name()).help(help)
    });
    PossibleValuesParser::new(values).try_map(|word| word.parse())
}

/// The policies of `--replacement`.
pub fn replacement() -> impl TypedValueParser<Value = Replacement> {
    PossibleValuesParser::new(Replacement::WORDS).try_map(|word| word.parse())
}

/// The words of `--fast-sharing`.
fn sharing() -> impl TypedValueParser<Value = Sharing> {
    PossibleValuesParser::new(Sharing::WORDS).try_map(|word| word.parse())
}

/// The words of `--fast-policy`.
fn hot_policy() -> impl TypedValueParser<Value = HotPolicy> {
    PossibleValuesParser::new(HotPolicy::WORDS).try_map(|word| word.parse())
}

/// The words of `--fast-evict`.
fn eviction() -> impl TypedValueParser<Value = Eviction> {
    PossibleValuesParser::new(Eviction::WORDS).try_map(|word| word.parse())
}

/// The states of `pal tier`.
fn e_state() -> impl TypedValueParser<Value = String> {
    PossibleValuesParser::new(["E0", "E1", "E2", "E3", "E4", "E5", "E6", "E7", "auto"])
}

/// The sizes of `--nested-page`.
pub fn nested_page() -> impl TypedValueParser<Value = NestedPage> {
    PossibleValuesParser::new(NestedPage::WORDS).try_map(|word| word.parse())
}

/// The name of a value on the command line, which is also its name in palimpsest.toml.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests;
