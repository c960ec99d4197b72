//! Figures 46 to 58 of the thesis in the form that fits here: a web server, whose kernel's caches have regions of their own.
//!
//! The guest is nginx of Debian's with files, or with a page of Python's behind it, and a load over loopback (`tests/kits/webload`).
//! [`kit`] puts these together. Each set of slab caches of the guest kit's gets a region, which the monitor maps to the second cache,
//! as the thesis declares cores for it; or the page's two tables get one each. `unify` has the hypervisor find regions instead. [`verdict`]
//! judges them beside a run without.

mod kit;
mod verdict;

use anyhow::Result;

use self::{
    kit::Kit,
    verdict::{AGAIN, Kind, Measured, OFF, OPEN, PROGRAM, UNIFY},
};
use super::{super::ReproduceArgs, Figure, point::Setup};
use crate::{
    compare::{scratch::Scratch, store},
    host::{lock::lock, needs::Needs},
    project::Project,
    ui::Ui,
};

/// The figures.
pub const NAME: &str = "region-web";
/// What the file of points says that it is.
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
    /// Modelled milliseconds before the part that is measured, and of it.
    ms: [u32; 2],
}

/// The runs, in the order of the table.
fn points(quick: bool) -> Vec<Point> {
    let mut points = Vec::new();
    for vcpus in [2, 4] {
        for kind in [Kind::Static, Kind::Dynamic] {
            let point = |regions| {
                let ms = match (regions, quick, kind) {
                    // Regions are found after the first phase or the second.
                    (UNIFY, ..) => [1000, 900],
                    (_, true, Kind::Static) => [30, 120],
                    (_, true, Kind::Dynamic) => [60, 200],
                    (_, false, _) => [200, 500],
                };
                Point { kind, vcpus, regions, ms }
            };
            // With four VCPUs each run takes twice as long.
            let sets = match (quick, kind, vcpus) {
                (false, ..) | (true, Kind::Static, 2) => &SETS[..],
                (true, Kind::Dynamic, 4) => &[],
                _ => &SETS[3..],
            };
            points.push(point(OFF));
            // Where Linux puts processes matters more to files than to pages, which one process makes.
            let again = match (quick, kind, vcpus) {
                (false, ..) | (true, Kind::Static, 2) => &AGAIN[..],
                (true, Kind::Dynamic, 2) => &AGAIN[..1],
                _ => &[],
            };
            points.extend(again.iter().map(|again| point(again)));
            points.extend(sets.iter().map(|set| point(set)));
            if kind == Kind::Dynamic {
                points.extend([OPEN, PROGRAM].map(point));
            }
            if kind == Kind::Dynamic && !quick {
                points.push(point(UNIFY));
            }
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
    let cache = project.cache("reproduce")?;
    let path = args.json.clone().unwrap_or_else(|| cache.join("web.json"));
    let _lock = lock(&cache, ui)?;
    super::check_files([Some(&path), args.output.as_ref()])?;
    let mut kept = super::read(&path, KIND, "the figures of a web server")?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let setup = Setup::new(&needs, scratch.path(), &lab)?;
    let kit = Kit::new(&needs, &setup)?;
    let mut all = Vec::new();
    for point in points(args.quick) {
        let inputs = bootimg::sha256(format!("{} {} {point:?}", setup.inputs(), kit.inputs()).as_bytes());
        let known = kept.iter().find(|old| old["inputs"] == inputs.as_str());
        let Point { kind, vcpus, regions, .. } = point;
        let measured = match known.and_then(|old| Measured::of(kind, vcpus, regions, old)) {
            Some(measured) => measured,
            None => {
                let name = format!("{} pages, {vcpus} VCPUs, {regions}", kind.name());
                let _step = ui.step(&format!("{NAME} on {lab}: {name}"));
                let measured = kit.perform(&setup, &point)?;
                ui.say(&format!("{name}: {:.0} requests in a second", measured.per_second()));
                measured
            }
        };
        kept.retain(|old| old["inputs"] != inputs.as_str());
        kept.push(measured.document(&lab, &inputs));
        super::write(&path, KIND, &kept)?;
        all.push(measured);
    }
    let (claims, rows) = (verdict::claims(&all), verdict::rows(&all));
    print!("{}", super::text_of(figure, &lab, &verdict::HEAD, &rows, &claims));
    if let Some(path) = &args.output {
        let page = format!(
            "{}\n## {lab}\n\n{}{}\n{}\nPackages: {}.\n",
            super::head(figure, args, "two processors in each", verdict::SERVER),
            super::claims_table(&claims),
            super::rows_table(&verdict::HEAD, &rows),
            verdict::EXPLAINED,
            kit.packages().join(",\n"),
        );
        store::write(path, page.as_bytes())?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_one_without_regions_to_compare_with() {
        for quick in [true, false] {
            let points = points(quick);
            for vcpus in [2, 4] {
                for kind in [Kind::Static, Kind::Dynamic] {
                    let own = points.iter().filter(|point| (point.kind, point.vcpus) == (kind, vcpus));
                    let regions: Vec<_> = own.map(|point| point.regions).collect();
                    assert!(regions[0] == OFF && regions.len() > 1, "{regions:?}");
                    assert_eq!(regions.iter().filter(|it| **it == OFF).count(), 1);
                }
            }
            assert!(SETS.iter().all(|set| points.iter().any(|point| point.regions == *set)));
        }
        let module = include_str!("../../../../../guest-kits/linux/regions.c");
        assert!(SETS.iter().all(|set| module.contains(&format!("{{ \"{set}\", {{"))));
    }
}
