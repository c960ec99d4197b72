//! Figures 29 and 38 of the thesis: several VMs run side by side, with regions and without.
//!
//! They run on a lab machine with two processors in each of two packages. The scheduler knows nothing of caches, and leaves VCPUs that
//! need not wait where they began: so it depends on the moment which VMs share a cache for as long as they run. Without regions
//! VCPUs are pinned to where the wrong ones do. With `balance` or `partition` they are free, and belong where the policy maps
//! their memory, wherever they begin. [`cast`] has the VMs of each figure. [`window`] takes what is measured from the samples, which
//! also become a page that shows why; [`verdict`] judges it.

mod cast;
mod verdict;
mod window;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::Value;

use self::{
    cast::{Cast, Part, SPREAD_MS, Scene},
    verdict::Measured,
    window::Vm,
};
use super::{
    super::{
        ReproduceArgs, check_files,
        kept::{self, Kept},
        verdict::Claim,
    },
    Figure, PAPER,
    point::Setup,
    session::{APPEND, TIMEOUT_SECONDS},
};
use crate::{
    compare::store,
    host::lock::lock,
    host::needs::Needs,
    project::Project,
    report,
    run::end_with_pal,
    samples::Run,
    ui::{Ui, shell_word},
};

pub use self::cast::{BALANCED, ISOLATED};

/// What their file of results is called.
const KIND: &str = "several";

/// A point: sizes, and what `regions` is set to.
#[derive(Clone, Debug)]
struct Point {
    cast: &'static Cast,
    scene: Scene,
    lab: String,
    mhz: u32,
    kib: u64,
    regions: String,
    inputs: String,
    /// Where samples of its runs go, and a page that compares them.
    folder: PathBuf,
}

impl kept::Run for Point {
    type Outcome = Measured;

    fn name(&self) -> String {
        format!("memlats of {} KiB on {}", self.kib, self.lab)
    }

    fn inputs(&self) -> &str {
        &self.inputs
    }

    fn document(&self, measured: &Measured) -> Value {
        measured.document(&self.lab, &self.regions)
    }

    fn outcome(&self, document: &Value) -> Option<Measured> {
        Measured::of(self.cast, self.kib, document)
    }

    fn says(&self, _measured: &Measured) -> String {
        format!("{}: what each cache held, and what that did", self.page().display())
    }
}

impl Point {
    fn page(&self) -> PathBuf {
        self.folder.join("report.html")
    }
}

/// Runs the figure, and says whether the claims hold.
///
/// # Errors
/// A file cannot be written, or a run failed.
pub fn run(figure: &Figure, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let lab = args.lab.clone().unwrap_or_else(|| figure.labs[0].to_owned());
    let cast = cast::of(figure.name).context("a figure with several VMs has them")?;
    let scene = if args.quick { cast.quick } else { cast.whole };
    let cache = project.cache("reproduce")?;
    let _lock = lock(&cache, ui)?;
    check_files([args.output.as_ref()])?;
    let mut kept = Kept::open(KIND, args, &cache, ui)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = crate::compare::scratch::Scratch::new()?;
    let setup = Setup::new(&needs, scratch.path(), &lab)?;
    let points = scene.twelfths.iter().map(|twelfths| point(&setup, cast, scene, *twelfths, &cache));
    let points: Vec<Point> = points.collect();
    let all = kept.each(cast.figure, &points, 1, ui, |point| perform(&setup, point))?;
    let measured: Vec<_> = all.iter().collect();
    let claims = verdict::claims(cast, &measured);
    print!("{}", text(figure, &lab, &measured, &claims));
    if let Some(path) = &args.output {
        let regions = points.first().map_or("", |point| &point.regions);
        store::write(path, page(figure, args, &lab, &measured, &claims, regions).as_bytes())?;
    }
    Ok(0)
}

fn point(setup: &Setup, cast: &'static Cast, scene: Scene, twelfths: u64, cache: &Path) -> Point {
    let cache_kib = setup.cache_kib();
    let kib = cache_kib * twelfths / 12;
    // As for the figure of two regions: a visit of `q` is not worth a move. A longer phase finds no more, and costs more.
    let regions = format!(
        "{},q_us=200,period_ms={},phase_ms=20,move_us=4,least_us=60,cache_kib={cache_kib}",
        cast.policy, scene.period_ms
    );
    let text = format!("{} {kib} {regions} {:?} {:?}", setup.inputs(), scene.ms, cast.roles);
    let (lab, mhz) = (setup.lab.clone(), setup.mhz());
    let folder = cache.join(format!("{}-{kib}k", cast.figure));
    Point { cast, scene, lab, mhz, kib, regions, inputs: bootimg::sha256(text.as_bytes()), folder }
}

/// Both runs of a point, and the page that compares them.
fn perform(setup: &Setup, point: &Point) -> Result<Measured> {
    let mut runs = Vec::new();
    let mut vms = Vec::new();
    for (name, regions) in [("off", "off"), (point.cast.policy, &point.regions)] {
        let run = execute(setup, point, regions, &point.folder.join(name))?;
        vms.push(of(&run, point).map_err(|why| anyhow::anyhow!("{name}: {why}; nothing is claimed"))?);
        runs.push(Run { name: name.into(), ..run });
    }
    store::write(&point.page(), report::page::page(&runs, &[])?.as_bytes())?;
    let [off, on] = vms.try_into().map_err(|_| anyhow::anyhow!("there are two runs"))?;
    Ok(Measured { cast: point.cast, kib: point.kib, mhz: point.mhz, off, on })
}

/// What a run's samples say of its VMs, in the order of the cast.
fn of(run: &Run, point: &Point) -> Result<Vec<Vm>, String> {
    let [warm, _, rest] = point.scene.ms.map(|ms| ms * 1_000_000);
    let memlats: Vec<_> =
        point.cast.roles.iter().filter(|role| role.is_memlat()).map(|role| role.name).collect();
    let names: Vec<_> = point.cast.roles.iter().map(|role| role.name).collect();
    window::measured(run, &names, &memlats, warm, rest)
}

/// The VMs, as `pal run --config` has them.
fn config(setup: &Setup, point: &Point, regions: &str) -> String {
    let [warm, measured, rest] = point.scene.ms;
    let lasts = warm + measured + rest + SPREAD_MS;
    let vm = |role: &cast::Role| {
        let beats = |kib| format!("/memlat beats {kib} {} {warm} {measured} {rest}", role.accesses);
        let exec = match role.part {
            Part::Noisy => format!("/memlat pollute {} {lasts}", setup.cache_kib() * 13 / 12),
            Part::Memlat => beats(point.kib),
            Part::Small(kib) => beats(kib),
        };
        let mut vm = toml::Table::new();
        vm.insert("name".into(), role.name.into());
        // There is a record of a region for each sixteenth frame, and each page of the noisy VM is a region at first.
        vm.insert("memory_mib".into(), 256.into());
        vm.insert("weight".into(), role.weight.into());
        vm.insert("regions".into(), regions.into());
        if regions == "off" {
            vm.insert("affinity".into(), role.pcpus.map(toml::Value::Integer).to_vec().into());
        }
        vm.insert("put".into(), vec![format!("{}:/memlat", setup.memlat().display())].into());
        vm.insert("append".into(), APPEND.into());
        vm.insert("exec".into(), exec.into());
        toml::Value::Table(vm)
    };
    let mut config = toml::Table::new();
    config.insert("version".into(), 1.into());
    config.insert("vm".into(), point.cast.roles.iter().map(vm).collect::<Vec<_>>().into());
    config.to_string()
}

fn execute(setup: &Setup, point: &Point, regions: &str, dir: &Path) -> Result<Run> {
    fs::create_dir_all(dir)?;
    let (description, samples): (PathBuf, PathBuf) = (dir.join("vms.toml"), dir.join("samples.jsonl"));
    fs::write(&description, config(setup, point, regions))?;
    let words: Vec<String> = [
        "run",
        "--config",
        &description.display().to_string(),
        "--lab",
        &setup.lab,
        "--lab-time",
        "--lab-from",
        "session",
        "--lab-check",
        "off",
        "--pcpus",
        "4,sockets=2",
        "--timeout",
        &TIMEOUT_SECONDS.to_string(),
        "--samples",
        &samples.display().to_string(),
    ]
    .map(str::to_owned)
    .into();
    let mut pal = Command::new(env::current_exe().context("cannot find my own program")?);
    pal.args(&words).env("PALIMPSEST_HV", setup.hypervisor()).stdin(Stdio::null());
    end_with_pal(&mut pal, Signal::TERM);
    let output = pal.output().context("cannot start pal")?;
    if !output.status.success() {
        let words: Vec<_> = words.iter().map(|word| shell_word(word)).collect();
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{}\n{said}{errors}pal {}", output.status, words.join(" "));
    }
    Ok(Run::open(&samples)?)
}

/// What a person reads.
fn text(figure: &Figure, lab: &str, all: &[&Measured], claims: &[Claim]) -> String {
    let rows: Vec<_> = all.iter().flat_map(|it| it.rows()).collect();
    super::text_of(figure, lab, &verdict::HEAD, &rows, claims)
}

/// The figure as a page of Markdown.
fn page(
    figure: &Figure,
    args: &ReproduceArgs,
    lab: &str,
    all: &[&Measured],
    claims: &[Claim],
    regions: &str,
) -> String {
    let quick = if args.quick { " --quick" } else { "" };
    let other = args.lab.as_ref().map_or(String::new(), |lab| format!(" --lab {lab}"));
    let rows: Vec<_> = all.iter().flat_map(|it| it.rows()).collect();
    format!(
        "# {}: {}\n\nAfter {PAPER}.\nAll figures are *modelled*: the machine is a [lab machine](../lab.md) with two processors in each \
         of\ntwo packages. Cycles are each VCPU's own, with the hypervisor's work for it. No access overlaps\nanother one there, so \
         gains are larger than on a processor. Without regions the VCPUs are pinned, so\nthat the wrong ones share a cache. \
         With regions they are free.\n\n```console\n$ cargo pal reproduce {}{quick}{other}\n```\n\nMade with Palimpsest \
         {}.\n\n## {lab}\n\n{}{}\n{}\nParameters:\n{}\n",
        figure.name,
        figure.shows,
        figure.name,
        env!("CARGO_PKG_VERSION"),
        super::claims_table(claims),
        super::rows_table(&verdict::HEAD, &rows),
        verdict::EXPLAINED,
        regions.split(',').map(|word| format!("`{word}`")).collect::<Vec<_>>().join(",\n"),
    )
}
