//! Figures 46 to 58 of the thesis in the form that fits here: a web server, whose kernel's caches have regions of their own.
//!
//! The guest is nginx of Debian's with files, or with a page of Python's behind it, or Redis, and a load over loopback
//! (`tests/kits/webload`). [`kit`] puts these together. Each set of slab caches of the guest kit's gets a region, which the monitor maps
//! to the second cache, as the thesis declares cores for it; or the page's two tables get one each. `unify` has the hypervisor find
//! regions instead. [`runs`] has what was measured, [`verdict`] judges it beside runs without, [`page`] has the table.

mod kit;
mod page;
mod runs;
mod verdict;

use anyhow::Result;
use serde_json::Value;

use self::{
    kit::Kit,
    runs::{Kind, Measured, OFF, OPEN, PROGRAM, UNIFY},
};
use super::{
    super::{
        ReproduceArgs, check_files,
        kept::{self, Kept},
    },
    Figure,
    point::Setup,
};
use crate::{
    compare::{scratch::Scratch, store},
    host::{lock::lock, needs::Needs},
    project::Project,
    status::Usage,
    ui::Ui,
};

/// The figures.
pub const NAME: &str = "region-web";
/// What their file of results is called.
const KIND: &str = "web";
/// The sets of slab caches of the guest kit's.
const SETS: [&str; 4] = ["kernel-core", "fs-core", "net-core", "fs-net-core"];

/// A run.
#[derive(Clone, Debug)]
struct Point {
    kind: Kind,
    vcpus: u32,
    /// What has regions: nothing, a set, the page's tables, or what the hypervisor finds.
    regions: &'static str,
    /// Which of the runs of the same it is.
    run: u32,
    /// Modelled milliseconds before the part that is measured, and of it.
    ms: [u32; 2],
}

/// A run on a lab machine.
struct Planned {
    point: Point,
    lab: String,
    inputs: String,
}

impl kept::Run for Planned {
    type Outcome = Measured;

    fn name(&self) -> String {
        let Point { kind, vcpus, regions, run, .. } = self.point;
        format!("{} pages, {vcpus} VCPUs, {regions}, run {}", kind.name(), run + 1)
    }

    fn inputs(&self) -> &str {
        &self.inputs
    }

    fn document(&self, measured: &Measured) -> Value {
        measured.document(&self.lab)
    }

    fn outcome(&self, document: &Value) -> Option<Measured> {
        let Point { kind, vcpus, regions, .. } = self.point;
        Measured::of(kind, vcpus, regions, document)
    }

    fn says(&self, measured: &Measured) -> String {
        format!("{:.0} requests in a second", measured.per_second())
    }
}

/// Runs of the same: their median counts, with regions and without. There are more of the search, whose runs differ most: its tables have
/// other frames in each boot, and so other conflicts in the cache.
fn runs(quick: bool, kind: Kind) -> u32 {
    if quick && kind != Kind::Dynamic { 3 } else { 5 }
}

/// The servers of these names, or all.
///
/// # Errors
/// [`Usage`]: there is none of such a name.
fn kinds(names: &[String]) -> Result<Vec<Kind>, Usage> {
    let unknown = names.iter().find(|name| Kind::ALL.iter().all(|kind| kind.name() != *name));
    if let Some(name) = unknown {
        let known = Kind::ALL.map(Kind::name).join(", ");
        return Err(Usage::new(format!("{NAME}: there is no server `{name}`; there are {known}")));
    }
    let is_wanted = |kind: &Kind| names.is_empty() || names.iter().any(|name| name == kind.name());
    Ok(Kind::ALL.into_iter().filter(is_wanted).collect())
}

/// The runs. Those of the same are not one after the other.
fn points(quick: bool, kinds: &[Kind]) -> Vec<Point> {
    let mut points = Vec::new();
    for vcpus in [2, 4] {
        for kind in kinds.iter().copied() {
            // The thesis has no Redis.
            let sets = if quick && kind == Kind::Redis { &SETS[3..] } else { &SETS[..] };
            let regions = match (kind, quick) {
                (Kind::Static | Kind::Redis, _) => [&[OFF], sets].concat(),
                (Kind::Dynamic, true) => [&[OFF], sets, &[OPEN, PROGRAM]].concat(),
                (Kind::Dynamic, false) => [&[OFF], sets, &[OPEN, PROGRAM, UNIFY]].concat(),
            };
            let ms = |regions| match (regions, quick, kind) {
                // Regions are found after the first phase or the second.
                (UNIFY, ..) => [1000, 900],
                (_, true, Kind::Static | Kind::Redis) => [100, 300],
                // A page takes some milliseconds.
                (_, true, Kind::Dynamic) => [100, 400],
                (_, false, _) => [200, 1000],
            };
            let point = |run, regions| Point { kind, vcpus, regions, run, ms: ms(regions) };
            points.extend(
                (0..runs(quick, kind))
                    .flat_map(|run| regions.iter().map(move |regions| point(run, *regions))),
            );
        }
    }
    points
}

/// Runs the figures, and says whether the claims hold.
///
/// # Errors
/// A file cannot be written, a package cannot be fetched, or a run failed.
pub fn run(figure: &Figure, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let lab = args.lab.clone().unwrap_or_else(|| figure.labs[0].to_owned());
    let kinds = kinds(&args.workloads)?;
    let cache = project.cache("reproduce")?;
    let _lock = lock(&cache, ui)?;
    check_files([args.output.as_ref()])?;
    let mut kept = Kept::open(KIND, args, &cache, ui)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let setup = Setup::new(&needs, scratch.path(), &lab)?;
    let kit = Kit::new(&needs, &setup)?;
    let planned = |point: Point| {
        let inputs = format!("{} {} {point:?}", setup.inputs(), kit.inputs());
        Planned { inputs: bootimg::sha256(inputs.as_bytes()), lab: lab.clone(), point }
    };
    let planned: Vec<_> = points(args.quick, &kinds).into_iter().map(planned).collect();
    let all = kept.each(NAME, &planned, 1, ui, |planned| kit.perform(&setup, &planned.point))?;
    let (claims, rows) = (verdict::claims(&all, setup.memory_cycles()), page::rows(&all));
    print!("{}", super::text_of(figure, &lab, &page::HEAD, &rows, &claims));
    if let Some(path) = &args.output {
        let text = format!(
            "{}\n## {lab}\n\n{}{}\n{}\nPackages: {}.\n",
            super::head(figure, args, "two processors in each", page::SERVER),
            super::claims_table(&claims),
            super::rows_table(&page::HEAD, &rows),
            page::EXPLAINED,
            kit.packages().join(",\n"),
        );
        store::write(path, text.as_bytes())?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_runs_with_regions_as_without() {
        for quick in [true, false] {
            let points = points(quick, &Kind::ALL);
            for point in &points {
                let same = |regions| {
                    let of =
                        |it: &&Point| (it.kind, it.vcpus, it.regions) == (point.kind, point.vcpus, regions);
                    points.iter().filter(of).map(|it| it.run).collect::<Vec<_>>()
                };
                assert_eq!(same(point.regions), same(OFF), "{point:?}");
                assert!(same(OFF).len() % 2 == 1, "a median");
            }
            assert!(points.iter().any(|point| point.regions == SETS[3]));
        }
        let points = points(false, &Kind::ALL);
        assert!(SETS.iter().all(|set| points.iter().any(|point| point.regions == *set)));
        let module = include_str!("../../../../../guest-kits/linux/regions.c");
        assert!(SETS.iter().all(|set| module.contains(&format!("{{ \"{set}\", {{"))));
    }

    #[test]
    fn servers_are_chosen_by_name() {
        let of = |names: &[&str]| kinds(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[]).unwrap(), Kind::ALL);
        assert_eq!(of(&["redis", "static"]).unwrap(), [Kind::Static, Kind::Redis]);
        assert!(of(&["redis", "apache"]).is_err_and(|error| error.to_string().contains("`apache`")));
        assert!(points(true, &[Kind::Redis]).iter().all(|point| point.kind == Kind::Redis));
    }
}
