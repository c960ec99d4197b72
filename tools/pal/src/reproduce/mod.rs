//! `pal reproduce`: figures of the papers, from cells as `pal compare` runs them. [`figures`] says what is run, [`verdict`] whether the
//! claim's shape holds, [`page`] writes it down. [`apr`] has the figures that are simulated, [`memory`] the table and the figures of memory in
//! tiers, [`region`] the figures of memory regions; [`kept`] keeps what their runs have brought.

mod apr;
mod figures;
mod kept;
mod memory;
mod page;
pub mod region;
mod verdict;

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{
    cli::NestedPage,
    compare::{
        board::Bench,
        cell::Cell,
        plan::{Comparison, Request, words},
        results::{self, Row},
        scratch::Scratch,
        store::{self, Failed},
    },
    host::{lock::lock, needs::Needs},
    project::Project,
    status::Usage,
    ui::Ui,
    workload::args::scale,
};
use figures::Figure;
use verdict::Claim;

const EXAMPLES: &str = "\
Examples:
  cargo pal reproduce                      list the figures
  cargo pal reproduce dav2m-fig10 --quick  short runs of three workloads
  cargo pal reproduce dsp-fig5 --seeds 3 -o docs/results/dsp-fig5.md
  cargo pal reproduce dav2m-fig11 --workloads phases --scale 4
  cargo pal reproduce dsp-fig7 --quick --lab opteron-2350
  cargo pal reproduce apr-fig41 --quick -o docs/results/apr-fig41.md
  cargo pal reproduce apr-guest --quick
  cargo pal reproduce agile-fig-2m --quick  walks with pages of 2 MiB
  cargo pal reproduce memory-table9 --quick
  cargo pal reproduce memory-fig72 --quick
  cargo pal reproduce memory-fig70 --quick --workloads gups,matmul
  cargo pal reproduce memory-evict --quick
  cargo pal reproduce region-fig18 --quick --seeds 3
  cargo pal reproduce region-fig28 --quick
  cargo pal reproduce region-fig33 --quick
  cargo pal reproduce region-fig38 --quick
  cargo pal reproduce region-web --quick --workloads redis

The workloads stand in for those of the papers (cargo pal workload list). All figures are modelled: the machine is a lab machine; those of APR are simulated. \
Cells and runs are kept as soon as each has ended: the same command goes on where it was stopped, and what another figure or a comparison \
with the same --json has run is not run again. What is simulated is not kept.

Exit status: 0, also if a claim's shape does not hold; 1 if something could not be run, and then nothing is claimed; 2 usage.";

/// Options of `pal reproduce`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReproduceArgs {
    /// The figure; without it they are listed
    pub name: Option<String>,
    /// Short runs of fewer workloads
    #[arg(long)]
    pub quick: bool,
    /// Other workloads than the figure's
    #[arg(long, value_name = "X,Y,…", num_args = 1.., value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// How much work, as a multiple of what the list of workloads says. Default: 2, and with --quick
    /// 0.5; some times that for chase, gups, mmap-churn and spmv, whose work is short
    #[arg(long, value_name = "FACTOR", value_parser = scale)]
    pub scale: Option<u32>,
    /// Runs of each cell; medians are compared
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub seeds: u32,
    /// Another lab machine than the figure's
    #[arg(long, value_name = "NAME")]
    pub lab: Option<String>,
    /// Guests without the guest kit: page faults are then not known while nested paging is used
    #[arg(long)]
    pub no_kit: bool,
    /// Cells that run side by side. Default: as many as this machine has processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub jobs: Option<u32>,
    /// Where cells are kept, as by `pal compare --json`. Default: target/pal/reproduce/cells.json. Figures of memory
    /// and of regions keep their runs there, by default in other files of that folder
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run again what is kept
    #[arg(long)]
    pub again: bool,
    /// Write the figure as a page of Markdown to FILE, and a chart, if it has one, beside it
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

#[cfg(test)]
impl ReproduceArgs {
    /// With `--quick` alone.
    pub fn quick() -> ReproduceArgs {
        ReproduceArgs {
            name: None,
            quick: true,
            workloads: Vec::new(),
            scale: None,
            seeds: 1,
            lab: None,
            no_kit: false,
            jobs: None,
            json: None,
            output: None,
            again: false,
            yes: false,
        }
    }
}

/// A figure on one machine.
struct Part {
    lab: String,
    comparison: Comparison,
    cells: Vec<Cell>,
}

impl Part {
    fn rows(&self) -> Vec<Row<'_>> {
        results::rows(&self.cells, self.comparison.workloads(), self.comparison.policies())
    }
}

/// Runs what a figure needs, and says whether its claims hold.
///
/// # Errors
/// [`Usage`] for names and files; a cell failed.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let Some(name) = &args.name else {
        print!("{}{}{}{}", figures::list(), apr::list(), memory::list(), region::list());
        return Ok(0);
    };
    if let Some(figure) = apr::find(name) {
        return apr::run(figure, args, ui);
    }
    if name == apr::guest::NAME {
        return apr::guest::run(args, project, ui);
    }
    if let Some(figure) = memory::find(name) {
        return figure(args, project, ui);
    }
    if let Some(figure) = region::find(name) {
        return region::run(figure, args, project, ui);
    }
    let figure = figures::find(name)?;
    let parts = plan(args, figure)?;
    let parts = perform(args, parts, project, ui)?;
    let mut judged = Vec::new();
    for part in &parts {
        let claims = verdict::claims(figure.subject, &part.rows(), &part.cells)
            .map_err(|missing| anyhow::anyhow!("{missing} on {}: nothing is claimed of {name}", part.lab))?;
        judged.push((part, claims));
    }
    for (part, claims) in &judged {
        print!("{}", text(figure, part, claims));
    }
    if let Some(path) = &args.output {
        let page = page::page(figure, args, &judged)?;
        store::write(path, page.text.as_bytes())?;
        for (name, chart) in &page.charts {
            store::write(&path.with_file_name(name), chart.as_bytes())?;
        }
    }
    Ok(0)
}

/// What is run on each machine.
fn plan(args: &ReproduceArgs, figure: &Figure) -> Result<Vec<(String, String, Comparison)>> {
    let labs = match &args.lab {
        Some(lab) => vec![lab.clone()],
        None => words(figure.labs),
    };
    let workloads = match (args.workloads.is_empty(), args.quick) {
        (true, true) => words(figure.quick),
        (true, false) => words(figure.workloads),
        (false, _) => args.workloads.clone(),
    };
    let part = |lab: String| {
        let (description, _) = crate::lab::find(&lab)?;
        let request = Request {
            policies: words(figure.policies),
            workloads: workloads.clone(),
            seeds: args.seeds,
            scale_milli: args.scale,
            is_quick: args.quick,
            sample_ms: figure.sample_ms,
            lab: lab.clone(),
            nested_page: figure.pages,
            huge_pages: figure.pages != NestedPage::Small,
            lab_time: false,
            no_kit: false,
            yes: args.yes,
            cell: None,
        };
        Ok((lab, description, Comparison::new(request)?))
    };
    labs.into_iter().map(part).collect()
}

/// Runs what is not there yet.
fn perform(
    args: &ReproduceArgs,
    parts: Vec<(String, String, Comparison)>,
    project: &Project,
    ui: &Ui,
) -> Result<Vec<Part>> {
    let cache = project.cache("reproduce")?;
    let path = args.json.clone().unwrap_or_else(|| cache.join("cells.json"));
    let _lock = lock(&cache, ui)?;
    check_files([Some(&path), args.output.as_ref()])?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let mut done = Vec::new();
    for (lab, description, comparison) in parts {
        let kept = match store::read(&path) {
            Err(error) if args.json.is_none() => {
                ui.warn(&format!("{error}; all cells are run again"));
                Vec::new()
            }
            kept => kept?,
        };
        let bench = Bench::new(&needs, scratch.path(), &description, !args.no_kit, args.jobs)?;
        // What others have put there stays there.
        let save = |cells: &[Cell], failed: &[Failed]| {
            let others = kept.iter().filter(|old| cells.iter().all(|new| new.inputs != old.inputs));
            let all: Vec<Cell> = others.chain(cells).cloned().collect();
            let document = store::document(&comparison.about(), &all, failed, &[], &[]);
            store::write(&path, (document.to_string() + "\n").as_bytes())
        };
        let known = if args.again { &[][..] } else { &kept };
        let (cells, failed) = comparison.perform(&bench, &needs, known, save)?;
        if let Some(Failed { workload, policy, why, .. }) = failed.first() {
            bail!("{workload} with {policy} on {lab} failed, and nothing is claimed: {why}");
        }
        let disagreements = results::disagreements(&cells, comparison.workloads());
        if let Some(workload) = disagreements.first() {
            bail!(
                "{workload}: the checksums of its cells differ on {lab}, and nothing is claimed; {} has them",
                path.display()
            );
        }
        store::read(&path).context("the cells were not kept")?;
        done.push(Part { lab, comparison, cells });
    }
    Ok(done)
}

/// What a person reads of a part.
fn text(figure: &Figure, part: &Part, claims: &[Claim]) -> String {
    let rows = part.rows();
    let policies = part.comparison.policies();
    let head = format!("{}: {} ({})\n", figure.name, figure.shows, figure.paper);
    let table = crate::compare::table::text(&rows, &[], policies, &part.lab);
    let reasons = verdict::reasons(figure.subject, &rows).unwrap_or_default();
    let reasons = reasons.iter().map(|reason| format!("\nmissed {reason}\n"));
    head + &table + &verdict::claims_text(claims, "modelled") + &reasons.collect::<String>()
}

/// Has each of these files, before anything runs for long.
///
/// # Errors
/// [`Usage`]: one cannot be written.
fn check_files<const N: usize>(files: [Option<&PathBuf>; N]) -> Result<(), Usage> {
    for file in files.into_iter().flatten() {
        let open = File::options().create(true).append(true).open(file);
        open.map_err(|error| Usage::new(format!("{}: {error}; choose another place", file.display())))?;
    }
    Ok(())
}

/// Compiles a program of the thesis' figures, of `tests/kits`, into `folder`, linked statically: it runs in any guest.
///
/// # Errors
/// There is no compiler, or no static C library.
fn compile(project: &Project, ui: &Ui, folder: &Path, name: &str) -> Result<PathBuf> {
    let program = folder.join(name);
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O2", "-static", "-o"]).arg(&program);
    compile.arg(project.root.join(format!("tests/kits/{name}/{name}.c")));
    ui.run(&format!("compiling {name}"), &mut compile).context("it takes gcc and libc6-dev")?;
    Ok(program)
}
