//! `pal replace`: page replacement simulated on a trace, under several policies and with memories of several sizes; and traces of
//! stand-in programs. `tools/pagesim` does the work; this reads options and shows results ([`show`]).

pub mod show;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    str::FromStr,
    time::Instant,
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use pagesim::{
    record,
    simulation::{self, About, Choice, KINDS},
    trace::{Source, TraceError, files, format::MAGIC},
};
use workloads::science;

use crate::{compare::store, host::python::Environment, status::Usage, ui::Ui, workload::args::scale};

const EXAMPLES: &str = "\
Examples:
  cargo pal replace                         list programs and policies
  cargo pal replace --generate lu-cb -o lu.trace
  cargo pal replace --trace lu.trace        all policies, memories of 10 to 90 % of its pages
  cargo pal replace --trace lu.trace --memory 64,128,50% --policy clock,apr
  cargo pal replace --trace lu.trace --policy apr:decay=0.5 --json lu.json --plot lu.svg
  cargo pal replace --trace web.csv --format csv --column 2 --memory 1000

Traces are Palimpsest's own or libCacheSim's (docs/replacement.md). A fault is counted at each access to a page that is not there. \
The hypervisor evicts by the same policies (pal run --replacement, --fast-evict), without objects.

Exit status: 0; 2 for wrong options, and for a file that is no whole trace.";

/// The Python of the external oracle, for tests alone: nothing of the product uses it.
pub const ORACLE: Environment = Environment {
    cache: "replace",
    of: "the oracle of page replacement",
    lists: &["tools/pagesim/oracle/requirements.txt"],
};

/// Formats of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// By the file's first bytes, or the end of its name
    Auto,
    /// Palimpsest's own
    Pal,
    /// A page number in each line
    Txt,
    /// Columns; --column has the page number
    Csv,
    /// libCacheSim's binary records of 24 bytes
    OracleGeneral,
}

/// A size of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// In page frames.
    Frames(u32),
    /// In percent of the trace's pages.
    Percent(u32),
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || {
            format!(
                "{text}: a number of page frames, such as 1000, or of percent of the trace's pages, such as 50%"
            )
        };
        let (digits, size): (_, fn(u32) -> Size) = match text.strip_suffix('%') {
            Some(digits) => (digits, Size::Percent),
            None => (text, Size::Frames),
        };
        let number: u32 = digits.parse().map_err(|_| wrong())?;
        let most = if text.ends_with('%') { 100_000 } else { pagesim::replace::MOST_FRAMES };
        if number == 0 || number > most { Err(wrong()) } else { Ok(size(number)) }
    }
}

impl Size {
    /// In frames, for a trace of this many pages.
    pub fn frames(self, pages: u64) -> u32 {
        match self {
            Size::Frames(frames) => frames,
            Size::Percent(percent) => {
                let frames = (pages * u64::from(percent) / 100).max(1);
                u32::try_from(frames).unwrap_or(u32::MAX).min(pagesim::replace::MOST_FRAMES)
            }
        }
    }
}

/// Options of `pal replace`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplaceArgs {
    /// The trace
    #[arg(long, value_name = "FILE", conflicts_with = "generate")]
    pub trace: Option<PathBuf>,
    /// The trace's format
    #[arg(long, value_enum, default_value_t = Format::Auto, requires = "trace")]
    pub format: Format,
    /// The column of the page number with --format csv, from 1
    #[arg(long, value_name = "N", default_value_t = 2, requires = "trace", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub column: u32,
    /// What separates columns with --format csv: one character
    #[arg(long, value_name = "CHARACTER", default_value = ",", requires = "trace")]
    pub delimiter: String,
    /// Sizes of memory: page frames, or with % of the trace's pages. Default: 10%, 20% and so on to 90%
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', requires = "trace")]
    pub memory: Vec<Size>,
    /// Policies: opt, clock, clock-pro, seq, apr[:decay=D], lru, s3-fifo, sieve. Default: all
    #[arg(long, value_name = "NAME[,NAME…]", value_delimiter = ',', requires = "trace")]
    pub policy: Vec<Choice>,
    /// Write what was counted to FILE
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub json: Option<PathBuf>,
    /// Draw the curves of miss ratios to FILE, as SVG
    #[arg(long, value_name = "FILE.svg", requires = "trace")]
    pub plot: Option<PathBuf>,
    /// Run a stand-in program of SPLASH-2x's, and write its accesses to pages as a trace
    #[arg(long, value_name = "NAME", requires = "output")]
    pub generate: Option<String>,
    /// The extent of the program's data in each direction, as a multiple of the list's
    #[arg(long, value_name = "FACTOR", value_parser = scale, requires = "generate")]
    pub scale: Option<u32>,
    /// The trace that --generate writes
    #[arg(short, long, value_name = "FILE", requires = "generate")]
    pub output: Option<PathBuf>,
}

/// Simulates, generates, or lists.
///
/// # Errors
/// [`Usage`] for files and names.
pub fn run(args: &ReplaceArgs, ui: &Ui) -> Result<u8> {
    match (&args.trace, &args.generate, &args.output) {
        (Some(trace), ..) => simulate(args, trace, ui),
        (None, Some(name), Some(output)) => generate(name, args.scale.unwrap_or(1000), output, ui),
        _ => {
            print!("{}", list());
            Ok(0)
        }
    }
}

/// Programs and policies.
fn list() -> String {
    let program = |program: &science::Program| format!("{:<15} {}\n", program.name, program.work);
    let programs: String = science::all().map(program).collect();
    let policies: Vec<_> = KINDS.iter().map(|(_, name)| *name).collect();
    format!("programs for --generate:\n{programs}\npolicies: {}\n", policies.join(", "))
}

/// The program of this name.
///
/// # Errors
/// [`Usage`]: there is none.
fn program(name: &str) -> Result<&'static science::Program, Usage> {
    science::find(name).ok_or_else(|| {
        let names: Vec<_> = science::all().map(|program| program.name).collect();
        Usage::new(format!("--generate {name}: no such program; there are {}", names.join(", ")))
    })
}

fn generate(name: &str, scale_milli: u32, output: &Path, ui: &Ui) -> Result<u8> {
    let program = program(name)?;
    let wrong = |error| Usage::new(format!("--output {}: {error}; choose another place", output.display()));
    let file = File::create(output).map_err(wrong)?;
    let _step = ui.step(&format!("running {name}"));
    let recorded = record::record_to(program, scale_milli, file).map_err(wrong)?;
    ui.say(&format!(
        "{}: {} references, checksum {:016x}",
        output.display(),
        recorded.references,
        recorded.checksum
    ));
    Ok(0)
}

/// What an error of a trace means for a person.
fn of_trace(path: &Path, error: &TraceError) -> Usage {
    Usage::new(format!("--trace {}: {error}", path.display()))
}

/// Opens a trace.
///
/// # Errors
/// [`Usage`]: it cannot be read, or not as this format.
fn open(args: &ReplaceArgs, path: &Path) -> Result<Box<dyn Source>, Usage> {
    let file = File::open(path).map_err(|error| of_trace(path, &TraceError::Io(error)))?;
    let mut input = BufReader::with_capacity(1 << 16, file);
    let begin = input.fill_buf().map_err(|error| of_trace(path, &TraceError::Io(error)))?;
    let ours = begin.starts_with(&MAGIC);
    let name = path.to_string_lossy().to_lowercase();
    let format = match args.format {
        Format::Auto if ours => Format::Pal,
        Format::Auto if name.ends_with(".txt") => Format::Txt,
        Format::Auto if name.ends_with(".csv") => Format::Csv,
        Format::Auto if name.contains("oraclegeneral") => Format::OracleGeneral,
        Format::Auto => Format::Pal,
        format => format,
    };
    Ok(match format {
        Format::Auto | Format::Pal => files::ours(input).map_err(|error| of_trace(path, &error))?,
        Format::Txt => files::lines(input),
        Format::Csv => match args.delimiter.as_bytes() {
            [delimiter] => files::columns(input, args.column as usize, *delimiter),
            _ => {
                return Err(Usage::new(format!(
                    "--delimiter {:?}: one character, such as ';'",
                    args.delimiter
                )));
            }
        },
        Format::OracleGeneral => files::oracle_general(input),
    })
}

fn simulate(args: &ReplaceArgs, path: &Path, ui: &Ui) -> Result<u8> {
    let wrong = |error: TraceError| of_trace(path, &error);
    for (option, file) in [("--json", &args.json), ("--plot", &args.plot)] {
        if let Some(file) = file {
            let created = File::options().create(true).append(true).open(file);
            created.map_err(|error| {
                Usage::new(format!("{option} {}: {error}; choose another place", file.display()))
            })?;
        }
    }
    let step = ui.step("reading the trace");
    let about: About = simulation::about(&mut *open(args, path)?).map_err(wrong)?;
    if about.references == 0 {
        return Err(Usage::new(format!("--trace {}: it has no reference", path.display())).into());
    }
    let tenths = || (1..10).map(|tenth| Size::Percent(10 * tenth)).collect();
    let sizes: Vec<Size> = if args.memory.is_empty() { tenths() } else { args.memory.clone() };
    let mut frames: Vec<u32> = sizes.iter().map(|size| size.frames(about.pages)).collect();
    frames.sort_unstable();
    frames.dedup();
    let all = || KINDS.iter().map(|(kind, _)| Choice::new(*kind)).collect();
    let choices: Vec<Choice> = if args.policy.is_empty() { all() } else { args.policy.clone() };
    step.becomes("simulating");
    let begin = Instant::now();
    let outcomes = simulation::simulate(&mut *open(args, path)?, &choices, &frames).map_err(wrong)?;
    let seconds = begin.elapsed().as_secs_f64();
    drop(step);
    print!("{}", show::table(&about, &choices, &frames, &outcomes));
    let simulated = about.references as f64 * outcomes.len() as f64;
    ui.say(&format!(
        "{:.1} million references a second in each of {} simulations",
        simulated / seconds.max(1e-9) / 1e6,
        outcomes.len()
    ));
    if let Some(file) = &args.json {
        let document = show::json(&about, &outcomes, seconds);
        store::write(file, (document.to_string() + "\n").as_bytes())?;
    }
    if let Some(file) = &args.plot {
        let svg = show::plot(&about, &choices, &outcomes)?;
        store::write(file, svg.as_bytes()).with_context(|| format!("--plot {}", file.display()))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_frames_or_percent() {
        assert_eq!("64".parse(), Ok(Size::Frames(64)));
        assert_eq!("50%".parse::<Size>().unwrap().frames(301), 150);
        assert_eq!("1%".parse::<Size>().unwrap().frames(3), 1);
        for wrong in ["0", "0%", "x", "1M", "-1", "4294967296", ""] {
            assert!(wrong.parse::<Size>().unwrap_err().contains("page frames"), "{wrong}");
        }
    }

    #[test]
    fn everything_is_listed() {
        let list = list();
        assert!(list.contains("water-nsquared") && list.contains("s3-fifo") && list.contains("opt, clock"));
        assert!(program("lu").err().unwrap().to_string().contains("lu-ncb"));
    }
}
