//! Figure 38 of the thesis: a VM that uses up the last-level cache runs beside two others, with and without `partition`.
//!
//! Three VMs run on a lab machine with two processors in each of two packages. Two are memlat with a region of a third of a cache each;
//! the third one reads more memory than a cache holds, line by line. The scheduler knows nothing of caches, and leaves VCPUs that need
//! not wait where they began: so one memlat may share its cache with the third VM for as long as they run, or not. Without regions
//! VCPUs are pinned to where it does. With `partition`, and the weights that the VMs have, both memlats belong on one cache,
//! wherever they begin. [`window`] takes what is measured from the samples; the samples also become a page that shows why.

mod verdict;
mod window;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use self::{
    verdict::{Measured, VMS},
    window::Vm,
};
use super::{
    super::{ReproduceArgs, verdict::Claim},
    Figure, PAPER,
    point::{APPEND, Setup, TIMEOUT_SECONDS},
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

/// The figure's name.
pub const NAME: &str = "region-fig38";

/// What the file of points says that it is.
const KIND: &str = "isolation";

/// Loads from one exit that samples count to the next.
const ACCESSES: u64 = 5000;
/// VMs begin at different moments: the noisy one lasts so much longer than the others, in milliseconds.
const SPREAD_MS: u64 = 200;

/// How a run goes.
#[derive(Clone, Copy, Debug)]
struct Scene {
    /// Modelled milliseconds before the part that is measured, of it, and after it.
    ms: [u64; 3],
    /// Milliseconds from a phase of regioning to the next.
    period_ms: u32,
    /// Size of a memlat's region, in twelfths of a cache.
    twelfths: &'static [u64],
}

const QUICK: Scene = Scene { ms: [700, 500, 300], period_ms: 300, twelfths: &[4] };
/// With the hypervisor's own period.
const WHOLE: Scene = Scene { ms: [1500, 2000, 300], period_ms: 1000, twelfths: &[2, 4, 5] };

/// A point: sizes, and what `regions` is set to.
#[derive(Clone, Debug)]
struct Point {
    kib: u64,
    noisy_kib: u64,
    regions: String,
    inputs: String,
}

/// Runs the figure, and says whether the claims hold.
///
/// # Errors
/// A file cannot be written, or a run failed.
pub fn run(figure: &Figure, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let lab = args.lab.clone().unwrap_or_else(|| figure.labs[0].to_owned());
    let scene = if args.quick { QUICK } else { WHOLE };
    let cache = project.cache("reproduce")?;
    let path = args.json.clone().unwrap_or_else(|| cache.join("isolation.json"));
    let _lock = lock(&cache, ui)?;
    super::check_files([Some(&path), args.output.as_ref()])?;
    let mut kept = super::read(&path, KIND, NAME)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = crate::compare::scratch::Scratch::new()?;
    let setup = Setup::new(&needs, scratch.path(), &lab)?;
    let mut all = Vec::new();
    for twelfths in scene.twelfths {
        let point = point(&setup, scene, *twelfths);
        let known = kept.iter().find(|old| old["inputs"] == point.inputs.as_str());
        let measured = match known.and_then(|old| Measured::of(point.kib, old)) {
            Some(measured) => measured,
            None => {
                let _step = ui.step(&format!("{NAME} on {lab}: memlats of {} KiB", point.kib));
                let folder = cache.join(format!("{NAME}-{}k", point.kib));
                let page = folder.join("report.html");
                let measured = perform(&setup, scene, &point, &folder, &page)?;
                ui.say(&format!("{}: what each cache held, and what that did", page.display()));
                measured
            }
        };
        kept.retain(|old| old["inputs"] != point.inputs.as_str());
        kept.push(measured.document(&lab, &point.regions, &point.inputs));
        super::write(&path, KIND, &kept)?;
        all.push((point, measured));
    }
    let measured: Vec<_> = all.iter().map(|(_, measured)| measured).collect();
    let claims = verdict::claims(&measured);
    print!("{}", text(figure, &lab, &measured, &claims));
    if let Some(path) = &args.output {
        let regions = all.first().map_or("", |(point, _)| &point.regions);
        store::write(path, page(figure, args, &lab, &measured, &claims, regions).as_bytes())?;
    }
    Ok(0)
}

fn point(setup: &Setup, scene: Scene, twelfths: u64) -> Point {
    let cache = setup.cache_kib();
    let (kib, noisy_kib) = (cache * twelfths / 12, cache * 13 / 12);
    // As for the figure of two regions: a visit of `q` is not worth a move. A longer phase finds no more, and costs more.
    let regions = format!(
        "partition,q_us=200,period_ms={},phase_ms=20,move_us=4,least_us=60,cache_kib={cache}",
        scene.period_ms
    );
    let text = format!("{} isolation {kib} {noisy_kib} {regions} {:?} {ACCESSES}", setup.inputs(), scene.ms);
    Point { kib, noisy_kib, regions, inputs: bootimg::sha256(text.as_bytes()) }
}

/// Both runs of a point, with their samples in `folder`, and the page that compares them.
fn perform(setup: &Setup, scene: Scene, point: &Point, folder: &Path, page: &Path) -> Result<Measured> {
    let mut runs = Vec::new();
    let mut vms = Vec::new();
    for (name, regions) in [("off", "off"), ("partition", &point.regions)] {
        let run = execute(setup, scene, point, regions, &folder.join(name))?;
        vms.push(of(&run, scene).map_err(|why| anyhow::anyhow!("{name}: {why}; nothing is claimed"))?);
        runs.push(Run { name: name.into(), ..run });
    }
    store::write(page, report::page::page(&runs)?.as_bytes())?;
    let [off, partition] = vms.try_into().map_err(|_| anyhow::anyhow!("there are two runs"))?;
    Ok(Measured { kib: point.kib, mhz: setup.mhz(), off, partition })
}

/// What a run's samples say of its VMs, in the order of [`VMS`].
fn of(run: &Run, scene: Scene) -> Result<[Vm; VMS.len()], String> {
    let [warm, _, rest] = scene.ms.map(|ms| ms * 1_000_000);
    let vms = window::measured(run, &VMS, &VMS[1..], warm, rest)?;
    vms.try_into().map_err(|_| "a VM is missing".into())
}

/// The VMs, as `pal run --config` has them. The weight of the noisy one is that of the others together, which makes a cache.
fn config(setup: &Setup, scene: Scene, point: &Point, regions: &str) -> String {
    let [warm, measured, rest] = scene.ms;
    let lasts = warm + measured + rest + SPREAD_MS;
    let vm = |name: &str| {
        let is_noisy = name == VMS[0];
        let exec = match is_noisy {
            true => format!("/memlat pollute {} {lasts}", point.noisy_kib),
            false => format!("/memlat beats {} {ACCESSES} {warm} {measured} {rest}", point.kib),
        };
        let mut vm = toml::Table::new();
        vm.insert("name".into(), name.into());
        // There is a record of a region for each sixteenth frame, and each page of the noisy VM is a region at first.
        vm.insert("memory_mib".into(), 256.into());
        vm.insert("weight".into(), if is_noisy { 512 } else { 256 }.into());
        vm.insert("regions".into(), regions.into());
        if regions == "off" {
            // Two processors of a package each.
            let pcpus = if name == VMS[2] { [2, 3] } else { [0, 1] };
            vm.insert("affinity".into(), pcpus.map(toml::Value::Integer).to_vec().into());
        }
        vm.insert("put".into(), vec![format!("{}:/memlat", setup.memlat().display())].into());
        vm.insert("append".into(), APPEND.into());
        vm.insert("exec".into(), exec.into());
        toml::Value::Table(vm)
    };
    let mut config = toml::Table::new();
    config.insert("version".into(), 1.into());
    config.insert("vm".into(), VMS.iter().map(|name| vm(name)).collect::<Vec<_>>().into());
    config.to_string()
}

fn execute(setup: &Setup, scene: Scene, point: &Point, regions: &str, dir: &Path) -> Result<Run> {
    fs::create_dir_all(dir)?;
    let (description, samples): (PathBuf, PathBuf) = (dir.join("vms.toml"), dir.join("samples.jsonl"));
    fs::write(&description, config(setup, scene, point, regions))?;
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
        "# {NAME}: {}\n\nAfter {PAPER}.\nAll figures are *modelled*: the machine is a [lab machine](../lab.md) with two processors in each \
         of\ntwo packages. Cycles are each VCPU's own, with the hypervisor's work for it. No access overlaps\nanother one there, so \
         gains are larger than on a processor. Without regions the VCPUs are pinned, so\nthat one memlat shares its cache with the \
         noisy VM. With `partition` they are free.\n\n```console\n$ cargo pal reproduce {NAME}{quick}{other}\n```\n\nMade with Palimpsest \
         {}.\n\n## {lab}\n\n{}{}\n{}\nParameters:\n{}\n",
        figure.shows,
        env!("CARGO_PKG_VERSION"),
        super::claims_table(claims),
        super::rows_table(&verdict::HEAD, &rows),
        verdict::EXPLAINED,
        regions.split(',').map(|word| format!("`{word}`")).collect::<Vec<_>>().join(",\n"),
    )
}
