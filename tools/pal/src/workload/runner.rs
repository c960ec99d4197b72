//! One run of a workload: `pal run` in a process of its own, and what its record, the lab machine's report and the samples say.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use rustix::process::Signal;
use serde_json::Value;
use workloads::Workload;

use super::{
    counted::Counted,
    programs,
    record::{self, EndedBySignal, Record},
};
use crate::{
    bench::program,
    cli::{Cli, Command as Subcommand, Guest, Machine, RunArgs},
    guest::{cpio::Archive, vm::Vm},
    host::{lock::lock, needs::Needs, qemu::Emulator},
    kit,
    run::end_with_pal,
    samples::Run,
    status::Usage,
    ui::shell_word,
};

/// Guest memory in MiB: the largest workloads take 300, and Linux turns huge pages off below 512.
const MEMORY_MIB: u64 = 1024;
/// Words for the guest's kernel, after those of `pal run`: without mitigations and the kernel's own address randomization runs differ
/// less by chance. The reading of its certificates is left out: on a lab machine a boot is most of what a short run takes.
const APPEND: &str = "mitigations=off nokaslr panic=-1 initcall_blacklist=load_system_certificate_list";
const TIMEOUT_SECONDS: u64 = 3600;

/// What every run uses.
pub struct Setup<'a> {
    needs: &'a Needs<'a>,
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// Our program.
    program: PathBuf,
    /// The initial RAM disk with it.
    pub initrd: PathBuf,
    /// The hypervisor.
    pub hypervisor: PathBuf,
    /// An archive with the guest kit, which follows that of an initial RAM disk; empty: guests do without it.
    kit: Vec<u8>,
}

impl<'a> Setup<'a> {
    /// Builds or finds everything; the initial RAM disk lies in `scratch`. With `lab` also what lab machines take, so that runs
    /// side by side need not. With `kit` guests load the guest kit before their work begins.
    ///
    /// # Errors
    /// Something is missing here, or does not compile.
    pub fn new(needs: &'a Needs, lab: bool, kit: bool, scratch: &Path) -> Result<Setup<'a>> {
        let kernel = needs.kernel(Guest::DebianAmd64)?;
        let kit = if kit { kit_archive(needs, &kernel)? } else { Vec::new() };
        let initrd = scratch.join("initrd");
        let program = program::build_of(needs.project, needs.ui, "workloads", "workloads")?;
        fs::write(&initrd, [program::initramfs(&program)?, kit.clone()].concat())
            .with_context(|| format!("cannot write {}", initrd.display()))?;
        if lab {
            Emulator::with_plugins(None, needs)?;
            needs.lab_plugin()?;
        }
        let hypervisor = needs.hypervisor()?;
        Ok(Setup { needs, kernel, program, initrd, hypervisor, kit })
    }

    /// The names and versions of the packages that a workload's programs are from; they are fetched. `None`: all of it is ours.
    ///
    /// # Errors
    /// They are not to be had; the error says what to do.
    pub fn packages(&self, workload: &Workload) -> Result<Option<Vec<String>>> {
        workload.programs.as_ref().map(|programs| programs::fetch(self.needs, workload, programs)).transpose()
    }

    /// The initial RAM disk for a workload. One with programs is made when it is first asked for.
    ///
    /// # Errors
    /// Those of [`Setup::packages`]; it cannot be written.
    fn initrd_of(&self, workload: &Workload) -> Result<PathBuf> {
        let Some(programs) = &workload.programs else { return Ok(self.initrd.clone()) };
        self.packages(workload)?;
        let path = self.initrd.with_file_name(format!("initrd-{}", workload.name));
        // Runs side by side of the same workload: the first one makes it.
        let folder = self.initrd.parent().context("a file has a folder")?;
        let _lock = lock(folder, self.needs.ui)?;
        if !path.exists() {
            let contents = programs::initramfs(self.needs, workload, programs, &self.program)?;
            fs::write(&path, [&contents[..], &self.kit].concat())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(path)
    }
}

/// An archive with the guest kit for this kernel. Linux unpacks one after the other.
fn kit_archive(needs: &Needs, kernel: &Path) -> Result<Vec<u8>> {
    let vm = Vm { guest: Some(Guest::DebianAmd64), kit: true, ..Vm::named("guest") };
    let contents = fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
    let module = kit::build(&vm, needs, kernel, &contents)?;
    let contents = fs::read(&module).with_context(|| format!("cannot read {}", module.display()))?;
    let mut archive = Archive::new();
    archive.file(workloads::KIT.trim_start_matches('/'), 0o600, &contents)?;
    Ok(archive.finish())
}

/// Modelled cycles of the work, by the side that they were counted on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cycles {
    /// The hypervisor's, or all without one.
    pub host: u64,
    /// The guest's on nested tables.
    pub nested: u64,
    /// The guest's on shadow tables.
    pub shadow: u64,
}

impl Cycles {
    /// Of everything.
    pub fn all(self) -> u64 {
        self.host.saturating_add(self.nested).saturating_add(self.shadow)
    }

    /// A counter of the work's region in a lab machine's report: `cycles`, or some of them. `None`: it was not counted.
    fn of(report: &Value, counter: &str) -> Option<Cycles> {
        let [host, nested, shadow] = counted(report, counter)?;
        Some(Cycles { host, nested, shadow })
    }
}

/// Walks of agile paging in the work, by where they switch ([`abi::lab::SWITCHES`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Walks.
    pub walks: [u64; abi::lab::SWITCHES],
    /// Their references without walk caches.
    pub refs: [u64; abi::lab::SWITCHES],
}

impl Switches {
    /// Of the work's region in a lab machine's report; `None`: agile paging was not in force.
    fn of(report: &Value) -> Option<Switches> {
        let regions: Vec<&Value> =
            regions(report)?.into_iter().filter(|region| region["agile"].is_object()).collect();
        let all = |name: &str| {
            std::array::from_fn(|at| {
                let each = regions.iter().filter_map(|region| region["agile"][name][at].as_u64());
                each.fold(0, u64::saturating_add)
            })
        };
        (!regions.is_empty()).then(|| Switches { walks: all("walks"), refs: all("walk_refs_uncached") })
    }
}

/// What the processors have counted in the work's region of a lab machine's report.
pub(super) fn regions(report: &Value) -> Option<Vec<&Value>> {
    let pcpus = report["pcpus"].as_array()?;
    let regions = pcpus.iter().flat_map(|pcpu| pcpu["regions"].as_array().into_iter().flatten());
    Some(regions.filter(|region| region["region"] == workloads::REGION).collect())
}

/// A counter of the work's region in a lab machine's report, in the order of the sides; `None`: the work was not counted.
pub(super) fn counted(report: &Value, counter: &str) -> Option<[u64; 3]> {
    let regions = regions(report)?;
    let counted = regions.iter().any(|region| region["times"].as_u64() > Some(0));
    let sum = |side: abi::lab::Side| {
        let each = regions.iter().filter_map(|region| region[side.name()][counter].as_u64());
        each.fold(0, u64::saturating_add)
    };
    counted.then(|| abi::lab::Side::ALL.map(sum))
}

/// What a run has shown.
#[derive(Debug)]
pub struct Measured {
    /// What the guest's program said.
    pub record: Record,
    /// Modelled cycles, on a lab machine.
    pub cycles: Option<Cycles>,
    /// Of these, the cycles of walks.
    pub walk_cycles: Option<Cycles>,
    /// Instructions of the guest, there.
    pub instructions: Option<u64>,
    /// Walks of agile paging, if that was in force there.
    pub switches: Option<Switches>,
    /// What else was counted of the work.
    pub counted: Counted,
    /// The samples of the work, where the hypervisor takes any.
    pub samples: Option<Run>,
    /// The VM's time in nanoseconds when the work began, if it is known.
    pub begin_ns: Option<u64>,
    /// And when it ended.
    pub end_ns: Option<u64>,
    /// What `pal run` was told.
    pub command: Vec<String>,
}

impl Measured {
    /// Changes of the mode while the work was done, as exact as samples are.
    pub fn changes(&self) -> Option<u64> {
        let samples = &self.samples.as_ref()?.samples;
        Some(samples.iter().fold(0, |sum, sample| sum.saturating_add(sample.switches)))
    }
}

/// Reads options of `pal run` and refuses those that a workload leaves no room for.
///
/// # Errors
/// [`Usage`], with what is wrong.
pub fn options(words: &[String]) -> Result<RunArgs> {
    let line = ["pal".to_owned(), "run".to_owned()].into_iter().chain(words.iter().cloned());
    let parsed = Cli::try_parse_from(line).map_err(|error| Usage::new(error.render().to_string()))?;
    let Subcommand::Run(args) = parsed.command else { bail!("`run` is `pal run`") };
    let other = [
        ("--config", args.config.is_some()),
        ("--exec", args.exec.is_some()),
        ("--initrd", args.initrd.is_some()),
        ("--root", args.root.is_some()),
        ("--probe", args.probe),
        ("--module", !args.module.is_empty()),
        ("--put", !args.put.is_empty()),
        ("--get", !args.get.is_empty()),
    ];
    if let Some((option, _)) = other.iter().find(|(_, given)| *given) {
        return Err(Usage::new(format!(
            "{option}: the guest of a workload is its own program; leave it out"
        ))
        .into());
    }
    Ok(*args)
}

/// Runs a workload with these options of `pal run`.
///
/// # Errors
/// [`Usage`] for options; the run failed, with what it said and its command.
pub fn perform(setup: &Setup, workload: &Workload, scale: u32, words: &[String]) -> Result<Measured> {
    let args = options(words)?;
    // Where the caller's is, so that all is gone with that.
    let beside = setup.initrd.parent().unwrap_or(Path::new("."));
    let scratch = tempfile::Builder::new().prefix("workload-").tempdir_in(beside)?;
    let mut command: Vec<String> = ["run", "--mem"].map(str::to_owned).into();
    command.push(MEMORY_MIB.to_string());
    let mut add = |option: &str, value: &str| command.extend([option.to_owned(), value.to_owned()]);
    // What the person gives comes later, and counts.
    add("--timeout", &TIMEOUT_SECONDS.to_string());
    add("--kernel", &setup.kernel.display().to_string());
    add("--initrd", &setup.initrd_of(workload)?.display().to_string());
    let mut file = |option: &str, given: Option<&PathBuf>, wanted: bool| {
        let path = given.cloned().or_else(|| wanted.then(|| scratch.path().join(&option[2..])));
        if let (Some(path), None) = (&path, given) {
            add(option, &path.display().to_string());
        }
        path
    };
    let sampled = args.machine == Machine::QemuSvm;
    let report = file("--lab-report", args.lab.lab_report.as_ref(), args.lab.lab.is_some());
    let samples = file("--samples", args.records.samples.as_ref(), sampled);
    let stats = file("--stats", args.stats.as_ref(), sampled);
    if args.lab.lab.is_none() && !args.has_icount() && args.pcpus == crate::run::pcpus::Pcpus::ONE {
        command.push("--icount".to_owned());
    }
    command.extend(words.iter().cloned());
    // What follows two dashes is for the first process.
    command.extend(["--append".to_owned(), format!("{APPEND} -- {} {scale}", workload.name)]);
    let record = execute(setup, &command)?;
    let read = |path: &Option<PathBuf>| -> Result<Value> {
        let Some(path) = path else { return Ok(Value::Null) };
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not whole", path.display()))
    };
    let (report, stats) = (read(&report)?, read(&stats)?);
    let (cycles, walk_cycles) = (Cycles::of(&report, "cycles"), Cycles::of(&report, "walk_cycles"));
    if cycles.is_none() && args.lab.lab.is_some() {
        bail!("the lab machine's report lacks the work: it was not marked, or the guest was reset meanwhile");
    }
    let all = samples.map(|path| Run::open(&path)).transpose()?;
    let last_ns = all.as_ref().and_then(|run| run.samples.last()).map(|last| last.time_ns);
    let time = |tsc| vm_time(&stats, last_ns?, tsc);
    let (begin_ns, end_ns) = (time(record.tsc_begin), time(record.tsc_end));
    let samples = all.map(|run| within(run, begin_ns, end_ns));
    let instructions =
        counted(&report, "instructions").map(|[_, nested, shadow]| nested.saturating_add(shadow));
    let switches = Switches::of(&report);
    let counted = Counted::of(&report, samples.as_ref());
    Ok(Measured {
        record,
        cycles,
        walk_cycles,
        instructions,
        switches,
        counted,
        samples,
        begin_ns,
        end_ns,
        command,
    })
}

/// The VM's time in nanoseconds at a value of the guest's time-stamp counter, which starts later: when the guest has been loaded.
/// The last sample and the statistics are of one moment, the guest's end, and say how much later.
fn vm_time(stats: &Value, last_ns: u64, tsc: u64) -> Option<u64> {
    let hz = stats["host"]["tsc_hz"].as_u64().filter(|hz| *hz > 0)?;
    let ended = stats["guests"][0]["tsc"].as_u64()?.checked_sub(tsc)?;
    let before_end = u128::from(ended) * 1_000_000_000 / u128::from(hz);
    last_ns.checked_sub(u64::try_from(before_end).ok()?)
}

/// The samples that were taken of the work: those that ended after its begin, and began before its end.
fn within(mut run: Run, begin: Option<u64>, end: Option<u64>) -> Run {
    if let (Some(begin), Some(end)) = (begin, end) {
        run.samples.retain(|sample| {
            sample.time_ns > begin && sample.time_ns - sample.span_ns.min(sample.time_ns) < end
        });
    }
    run
}

/// Runs `pal`, and finds the record in what the guest printed.
fn execute(setup: &Setup, command: &[String]) -> Result<Record> {
    let program = env::current_exe().context("cannot find my own program")?;
    let mut pal = Command::new(program);
    pal.args(command).env("PALIMPSEST_HV", &setup.hypervisor).stdin(Stdio::null());
    // The end of a comparison is the end of its runs, which remove their files.
    end_with_pal(&mut pal, Signal::TERM);
    let output = pal.output().context("cannot start pal")?;
    let record = record::read(&String::from_utf8_lossy(&output.stdout));
    if let (Err(_), Some(ended)) = (&record, EndedBySignal::of(output.status)) {
        return Err(ended.into());
    }
    let trouble = match record {
        Ok(record) if output.status.success() => return Ok(record),
        Ok(_) => format!("pal run: {}", output.status),
        Err(_) if output.status.code() == Some(crate::status::exit::USAGE.into()) => {
            "pal run refused it".to_owned()
        }
        Err(trouble) => trouble,
    };
    let words: Vec<_> = command.iter().map(|word| shell_word(word)).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    bail!("{trouble}\n{}\nthe command was: pal {}", said.trim_end(), words.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::Sample;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn options_that_choose_another_guest_are_refused() {
        assert!(options(&words(&["--lab", "zen3", "--policy", "dav2m", "--deterministic"])).is_ok());
        for wrong in [
            &["--exec", "true"][..],
            &["--initrd", "x"],
            &["--probe"],
            &["--put", "a"],
            &["--no-such"],
            &["--mode", "x"],
        ] {
            let error = options(&words(wrong)).err().unwrap();
            assert!(error.is::<Usage>() && error.to_string().contains(wrong[0]), "{error}");
        }
    }

    #[test]
    fn cycles_are_those_of_the_region() {
        let region = |number, times| {
            json!({ "region": number, "times": times, "host": { "cycles": 5 },
            "guest_nested": { "cycles": 7 }, "guest_shadow": {} })
        };
        let report =
            json!({ "pcpus": [{ "regions": [region(0, 1), region(3, 1)] }, { "regions": [region(0, 0)] }] });
        let cycles = Cycles::of(&report, "cycles").unwrap();
        assert_eq!((cycles, cycles.all()), (Cycles { host: 10, nested: 14, shadow: 0 }, 24));
        assert_eq!(Cycles::of(&json!({ "pcpus": [{ "regions": [region(0, 0)] }] }), "cycles"), None);
        assert_eq!(Cycles::of(&Value::Null, "cycles"), None);
    }

    #[test]
    fn walks_of_agile_paging_are_those_of_the_region() {
        let agile = json!({ "walks": [9, 1, 0, 0, 0, 2], "walk_refs_uncached": [36, 8, 0, 0, 0, 48] });
        let region = |number| json!({ "region": number, "times": 1, "agile": agile });
        let report =
            json!({ "pcpus": [{ "regions": [region(0), region(3)] }, { "regions": [region(0)] }, {}] });
        let expected = Switches { walks: [18, 2, 0, 0, 0, 4], refs: [72, 16, 0, 0, 0, 96] };
        assert_eq!(Switches::of(&report), Some(expected));
        assert_eq!(Switches::of(&json!({ "pcpus": [{ "regions": [{ "region": 0, "times": 1 }] }] })), None);
    }

    #[test]
    fn times_of_the_vm_are_counted_back_from_its_end() {
        // The guest's counter began 300 ns after the VM's time.
        let stats = json!({ "host": { "tsc_hz": 2_000_000_000u64 }, "guests": [{ "tsc": 2_000 }] });
        assert_eq!(vm_time(&stats, 1_300, 2_000), Some(1_300));
        assert_eq!(vm_time(&stats, 1_300, 0), Some(300));
        for (stats, last, tsc) in [(&Value::Null, 9, 0), (&stats, 9, 0), (&stats, 1_300, 2_001)] {
            assert_eq!(vm_time(stats, last, tsc), None);
        }
    }

    #[test]
    fn samples_of_the_work_are_kept() {
        let sample = |time_ns| Sample { time_ns, span_ns: 10, switches: 1, ..Sample::default() };
        let run = || Run { samples: (1..=9).map(|n| sample(10 * n)).collect(), ..Run::default() };
        let times = |run: Run| run.samples.iter().map(|sample| sample.time_ns).collect::<Vec<_>>();
        assert_eq!(times(within(run(), Some(35), Some(61))), [40, 50, 60, 70]);
        assert_eq!(times(within(run(), None, None)).len(), 9);
        assert_eq!(times(within(run(), Some(900), Some(u64::MAX))).len(), 0);
    }
}
