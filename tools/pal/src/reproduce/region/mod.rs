//! The figures of the thesis on memory regions: memlat runs on a lab machine of two packages, with `--regions` and without.
//! [`point`] runs one point of a figure, [`verdict`] has the claims; [`calibrate`] is made of points, too. [`several`] has the figures
//! with several VMs, [`loads`] what caches have, [`standins`] other programs than memlat, and
//! [`web`] a server.

pub mod calibrate;
mod loads;
mod point;
mod session;
mod several;
mod standins;
mod surface;
mod verdict;
mod web;

use std::{fmt::Write, path::Path, thread};

use anyhow::Result;

use self::point::{Measured, Pace, Point, Setup};
use super::{
    ReproduceArgs, check_files,
    kept::Kept,
    verdict::{Claim, claims_text},
};
use crate::{
    compare::{scratch::Scratch, store, table::percent},
    host::{lock::lock, needs::Needs},
    project::Project,
    status::Usage,
    ui::Ui,
};

/// What their file of results is called.
const KIND: &str = "regions";

/// The figure of what two regions gain.
const SURFACE: &str = "region-fig18";

/// The figure of what regions cost.
const COST: &str = "region-fig28";

/// The figure of servers.
pub const WEB: &str = web::NAME;

const PAPER: &str = "Lee, Ph.D. thesis, Georgia Tech 2013";

/// A figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on command lines.
    pub name: &'static str,
    /// What it shows.
    pub shows: &'static str,
    labs: &'static [&'static str],
}

/// All of them.
pub const FIGURES: [Figure; 7] = [
    Figure {
        name: SURFACE,
        shows: "memlat with two regions that are mapped to two caches, beside one cache",
        labs: &["clovertown-x5365", "westmere-x5660"],
    },
    Figure {
        name: COST,
        shows: "what it costs to look for regions where one cache is enough, at the hypervisor's own period",
        labs: &["clovertown-x5365", "westmere-x5660"],
    },
    Figure {
        name: several::BALANCED,
        shows: "two programs that each want a cache, which `balance` pairs with small ones",
        labs: &["clovertown-x5365"],
    },
    Figure {
        name: loads::NAME,
        shows: "what two caches have of a program with two regions, before unification and with it",
        labs: &["clovertown-x5365"],
    },
    Figure {
        name: standins::NAME,
        shows: "stand-ins of SPEC CPU2006 with unification, and where Conditions 1 to 3 forbid it",
        labs: &["clovertown-x5365"],
    },
    Figure {
        name: several::ISOLATED,
        shows: "two memlats beside a VM that pollutes caches, which `partition` isolates",
        labs: &["westmere-x5660"],
    },
    Figure {
        name: web::NAME,
        shows: "a web server whose kernel's caches have regions (figures 46 to 58)",
        labs: &["clovertown-x5365"],
    },
];

/// The figure of this name, if it is one of these.
pub fn find(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

/// Whether a figure has points of sizes and visits, each of which may have several runs.
fn is_grid(figure: &Figure) -> bool {
    figure.name == COST || figure.name == SURFACE
}

/// How often regions are looked for in a figure, on a machine with last-level caches of this size.
fn pace(figure: &Figure, quick: bool, cache_kib: u64) -> Pace {
    match (figure.name, quick) {
        // One phase is in it.
        (COST, true) => Pace { warm: 1100, measured: 1000, ..Pace::USUAL },
        (COST, false) => Pace::USUAL,
        _ => Pace::dense(cache_kib),
    }
}

/// The list of figures.
pub fn list() -> String {
    FIGURES.iter().map(|figure| format!("{:<12} {} ({PAPER})\n", figure.name, figure.shows)).collect()
}

/// Sizes of each of the two regions, in eighths of a cache, and accesses of a visit as powers of two. Not all pairs: a size that
/// forbids a gain is tried with visits that allow it, and the other way round.
fn grid(figure: &Figure, quick: bool) -> Vec<(u32, u32)> {
    if figure.name == COST {
        // Both regions fit into one cache. Visits below, in, and above the range in which a move pays.
        let sizes: &[u32] = if quick { &[1] } else { &[1, 2, 3] };
        return sizes.iter().flat_map(|size| [9, 14, 19].map(|visit| (*size, visit))).collect();
    }
    let (sizes, visits): (&[u32], &[u32]) = if quick {
        (&[3, 6, 12], &[9, 14, 19])
    } else {
        (&[2, 3, 5, 6, 7, 10, 12], &[9, 11, 13, 14, 15, 19])
    };
    let middle = |visit: &u32| (13..=15).contains(visit);
    let pairs = sizes.iter().flat_map(|size| visits.iter().map(move |visit| (*size, *visit)));
    pairs.filter(|(size, visit)| verdict::fits(*size) || *visit == 14 || !quick && middle(visit)).collect()
}

/// Runs the points, and says whether the claims hold.
///
/// # Errors
/// [`Usage`] for options that these figures do not have; a point could not be run.
pub fn run(figure: &Figure, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    // The servers of a web figure are its workloads.
    let has_own = !args.workloads.is_empty() && figure.name != web::NAME;
    let has_runs = is_grid(figure);
    if has_own || args.scale.is_some() || args.seeds != 1 && !has_runs || args.no_kit {
        return Err(Usage::new(format!(
            "{}: its programs are its own; only --quick, --lab, {}--jobs, --json, --again and --output change it",
            figure.name,
            if has_runs { "--seeds, " } else { "" }
        ))
        .into());
    }
    match figure.name {
        several::BALANCED | several::ISOLATED => return several::run(figure, args, project, ui),
        loads::NAME => return loads::run(figure, args, project, ui),
        standins::NAME => return standins::run(figure, args, project, ui),
        web::NAME => return web::run(figure, args, project, ui),
        _ => {}
    }
    let labs: Vec<String> = match &args.lab {
        Some(lab) => vec![lab.clone()],
        // The larger caches take more than twice as long.
        None if args.quick => vec![figure.labs[0].to_owned()],
        None => figure.labs.iter().map(|lab| (*lab).to_owned()).collect(),
    };
    let cache = project.cache("reproduce")?;
    let _lock = lock(&cache, ui)?;
    check_files([args.output.as_ref()])?;
    let mut kept = Kept::open(KIND, args, &cache, ui)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let mut all = Vec::new();
    // A machine of two processors runs one of them at a time, mostly.
    let processors = || thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.map_or_else(processors, |jobs| jobs as usize);
    for lab in labs {
        let setup = Setup::new(&needs, scratch.path(), &lab)?;
        let pace = pace(figure, args.quick, setup.cache_kib());
        let grid = grid(figure, args.quick);
        let of_run = |run| grid.iter().map(move |(size, visit)| (run, *size, *visit));
        let points: Vec<Point> = (0..args.seeds)
            .flat_map(of_run)
            .map(|(run, size, visit)| setup.point(pace, size, visit).again(run))
            .collect();
        let measured = kept.each(figure.name, &points, jobs, ui, |point| setup.perform(point))?;
        let measured = Measured::medians(measured);
        let claims =
            if figure.name == COST { verdict::cost(&measured) } else { verdict::claims(&lab, &measured) };
        print!("{}", text(figure, &lab, &measured, &claims));
        all.push((lab, measured, claims));
    }
    if let Some(path) = &args.output {
        let (text, charts) = page(figure, args, &all)?;
        store::write(path, text.as_bytes())?;
        for (name, chart) in &charts {
            store::write(&path.with_file_name(name), chart.as_bytes())?;
        }
    }
    Ok(0)
}

const HEAD: [&str; 8] =
    ["each region", "accesses", "conditions", "off", "unify", "gain", "moves/s", "cycles/move"];

/// The cells of a row.
fn cells(measured: &Measured) -> [String; 8] {
    let Measured { point, off, unify, .. } = measured;
    let number = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.0}"));
    [
        format!("{} KiB", point.kib),
        format!("2^{}", point.visit),
        verdict::conditions(point),
        format!("{:.1} ns", off.ns_per_access),
        format!("{:.1} ns", unify.ns_per_access),
        measured.gains.map_or(percent(Some(measured.gain())), |gains| {
            let [least, most] = gains.map(|gain| percent(Some(gain)));
            format!("{} ({least} to {most})", percent(Some(measured.gain())))
        }),
        number(unify.moves_per_second()),
        number(unify.move_cycles.map(|cycles| cycles as f64)),
    ]
}

/// What a person reads.
fn text(figure: &Figure, lab: &str, all: &[Measured], claims: &[Claim]) -> String {
    text_of(figure, lab, &HEAD, &all.iter().map(cells).collect::<Vec<_>>(), claims)
}

/// The same of rows of cells.
fn text_of<const N: usize>(
    figure: &Figure,
    lab: &str,
    head: &[&str; N],
    rows: &[[String; N]],
    claims: &[Claim],
) -> String {
    let heads = head.map(str::to_owned);
    let width = |n: usize| rows.iter().chain([&heads]).map(|row| row[n].chars().count()).max().unwrap_or(0);
    let mut text = format!("{}: {} ({PAPER})\n{lab}, modelled\n\n", figure.name, figure.shows);
    for row in [&heads].into_iter().chain(rows) {
        let row: Vec<_> = row.iter().enumerate().map(|(n, cell)| format!("{cell:>0$}", width(n))).collect();
        let _ = writeln!(text, "{}", row.join("  "));
    }
    text + &claims_text(claims, "modelled")
}

/// Claims as a table of Markdown.
fn claims_table(claims: &[Claim]) -> String {
    let rows = claims.iter().map(|Claim { paper, ours, holds }| {
        let holds = if *holds { "holds" } else { "**does not hold**" };
        format!("| {paper} | {ours} | {holds} |\n")
    });
    "| claim | here | shape |\n|---|---|---|\n".to_owned() + &rows.collect::<String>()
}

/// Rows of cells as a table of Markdown, after an empty line.
fn rows_table<const N: usize>(head: &[&str; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter().map(|row| format!("| {} |\n", row.join(" | ")));
    format!("\n| {} |\n|{}\n{}", head.join(" | "), "---|".repeat(N), rows.collect::<String>())
}

/// How a page begins: what the figure is, on which machine, and the command. `more` follows what is said of the machine.
fn head(figure: &Figure, args: &ReproduceArgs, processors: &str, more: &str) -> String {
    let quick = if args.quick { " --quick" } else { "" };
    let mut more_words = args.lab.as_ref().map_or(String::new(), |lab| format!(" --lab {lab}"));
    if !args.workloads.is_empty() {
        more_words += &format!(" --workloads {}", args.workloads.join(","));
    }
    if args.seeds != 1 {
        more_words += &format!(" --seeds {}", args.seeds);
    }
    format!(
        "# {}: {}\n\nAfter {PAPER}.\nAll figures are *modelled*: the machine is a [lab machine](../lab.md) with {processors} \
         of\ntwo packages, and time follows its cycles. No access overlaps another one there, so gains are\nlarger than on \
         a processor.\n{more}\n```console\n$ cargo pal reproduce {}{quick}{more_words}\n```\n\nMade with Palimpsest {}.\n",
        figure.name,
        figure.shows,
        figure.name,
        env!("CARGO_PKG_VERSION"),
    )
}

/// Parameters as words of code, a line for each.
fn words(parameters: &str) -> String {
    parameters.split(',').map(|word| format!("`{word}`")).collect::<Vec<_>>().join(",\n")
}

/// What `--regions` is told behind the policy. A move takes some 10 000 cycles; `q` is the time of a visit that is not worth one.
fn parameters(setup: &Setup, pace: Pace) -> String {
    format!(
        "q_us=200,period_ms={},phase_ms={},move_us=4,least_us=60,cache_kib={}",
        pace.period,
        pace.phase,
        setup.cache_kib()
    )
}

/// The figure as a page of Markdown, and the names of its charts with the charts as SVG.
fn page(
    figure: &Figure,
    args: &ReproduceArgs,
    all: &[(String, Vec<Measured>, Vec<Claim>)],
) -> Result<(String, Vec<(String, String)>)> {
    let stem = args.output.as_ref().and_then(|path| path.file_stem());
    let stem = stem.map_or_else(|| figure.name.into(), |stem| stem.to_string_lossy());
    let (mut text, mut charts) = (head(figure, args, "a processor in each", ""), Vec::new());
    for (lab, measured, claims) in all {
        let _ = write!(text, "\n## {lab}\n\n{}", claims_table(claims));
        if figure.name != COST {
            // A machine may be a file.
            let name = Path::new(lab).file_stem().unwrap_or_default().to_string_lossy();
            let file = format!("{stem}-{name}.svg");
            let _ = write!(text, "\n![Gain by a second cache]({file})\n");
            charts.push((file, surface::chart(&name, measured)?));
            text += &surface::table(measured);
        }
        text += &rows_table(&HEAD, &measured.iter().map(cells).collect::<Vec<_>>());
        if args.seeds != 1 {
            let _ = writeln!(
                text,
                "\nEach row is the run with the median gain of {} (least to greatest).",
                args.seeds
            );
        }
        if let Some(measured) = measured.first() {
            let _ = writeln!(text, "\nParameters:\n{}", words(&measured.point.regions));
        }
    }
    Ok((text, charts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_the_charts_beside_it() {
        let args = ReproduceArgs { output: Some("pages/two.md".into()), ..ReproduceArgs::quick() };
        let of = |lab: &str| (lab.to_owned(), vec![Measured::made_up(6, 14, 4.0)], Vec::new());
        let all = [of("zen3"), of("machines/own.toml")];
        let (text, charts) = page(find(SURFACE).unwrap(), &args, &all).unwrap();
        assert_eq!(
            charts.iter().map(|chart| chart.0.as_str()).collect::<Vec<_>>(),
            ["two-zen3.svg", "two-own.svg"]
        );
        for (lab, (name, chart)) in ["zen3: ", "own: "].iter().zip(&charts) {
            assert!(text.contains(&format!("]({name})\n")) && chart.contains(lab), "{name}: {text}");
        }
        // What a figure costs is no surface.
        let (text, charts) = page(find(COST).unwrap(), &args, &all).unwrap();
        assert!(charts.is_empty() && !text.contains("!["));
    }
}
