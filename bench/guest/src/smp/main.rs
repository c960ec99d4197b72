//! The guest of `cargo pal bench --smp`: what threads on different processors of a guest need to reach each other, and how
//! much more several of them get done than one (`docs/benchmarks.md`). It is made to be a Linux guest's first process, but
//! runs as a common program too. Arguments are names of rows; none means all. The word `quick` has each row take one sample.

mod calls;
#[path = "../clock.rs"]
mod clock;
#[path = "../guest.rs"]
mod guest;
#[allow(dead_code, reason = "the other program has figures over a second")]
#[path = "../report.rs"]
mod report;
#[allow(dead_code, reason = "the other program has figures that it need not measure")]
#[path = "../sample.rs"]
mod sample;
mod spaces;
mod threads;
mod turns;
mod workers;

use std::{env, io, process::ExitCode, thread};

use sample::Samples;

/// One row.
struct Row {
    /// The name, for the command line and the records.
    name: &'static str,
    /// Processors that it needs.
    processors: usize,
    /// How many samples it takes.
    samples: usize,
    /// Takes that many samples.
    measure: fn(&mut Samples, usize) -> io::Result<()>,
}

const fn row(
    name: &'static str,
    processors: usize,
    samples: usize,
    measure: fn(&mut Samples, usize) -> io::Result<()>,
) -> Row {
    Row { name, processors, samples, measure }
}

/// All rows. What takes little time is sampled often and one by one: on a busy machine now and then a processor waits for its
/// turn, and the median leaves those samples out.
const ROWS: [Row; 15] = [
    row("call", 2, 201, calls::call),
    row("wake", 2, 101, turns::wake),
    row("turns-1", 1, 201, turns::turns::<0>),
    row("turns-2", 2, 201, turns::turns::<1>),
    row("compute-1", 1, 11, workers::compute::<1>),
    row("compute-2", 2, 11, workers::compute::<2>),
    row("compute-3", 3, 11, workers::compute::<3>),
    row("compute-4", 4, 11, workers::compute::<4>),
    row("faults-1", 1, 11, workers::faults::<1>),
    row("faults-2", 2, 11, workers::faults::<2>),
    row("faults-3", 3, 11, workers::faults::<3>),
    row("faults-4", 4, 11, workers::faults::<4>),
    row("spaces-1", 1, 7, spaces::spaces::<1>),
    row("spaces-2", 2, 7, spaces::spaces::<2>),
    row("spaces-4", 4, 7, spaces::spaces::<4>),
];

/// The word that asks for one sample of each row.
const QUICK: &str = "quick";

fn main() -> ExitCode {
    let first = guest::is_first_process();
    if first {
        guest::prepare();
    }
    let failed = run(env::args().skip(1).collect());
    if first {
        guest::power_off();
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Performs the rows that are wanted; true if one failed.
fn run(mut wanted: Vec<String>) -> bool {
    let quick = wanted.iter().any(|word| word == QUICK);
    wanted.retain(|word| word != QUICK);
    guest::describe();
    let processors = thread::available_parallelism().map_or(1, usize::from);
    report::info("processors", &processors.to_string());
    let is_wanted = |row: &&Row| wanted.is_empty() || wanted.iter().any(|word| word == row.name);
    let (mut rows, mut failed) = (0, false);
    for row in ROWS.iter().filter(is_wanted) {
        rows += 1;
        let mut samples = Samples::default();
        let result = if row.processors <= processors {
            (row.measure)(&mut samples, if quick { 1 } else { row.samples })
        } else {
            Err(io::Error::other(format!("it needs {} processors, of {processors}", row.processors)))
        };
        match result {
            Ok(()) => report::row(row.name, &samples.summary()),
            Err(error) => {
                failed = true;
                report::error(&format!("{}: {error}", row.name));
            }
        }
    }
    report::done(rows);
    failed
}
