//! Traces of page references. A trace is runs, which are accesses to one page in a row, and patterns, which are runs that repeat: what
//! inner loops do. [`format`](mod@format) is our own file format, [`foreign`] reads libCacheSim's, [`compact`] finds patterns.

pub mod compact;
pub mod files;
pub mod foreign;
pub mod format;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
pub mod universe;

use std::io;

#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;
pub use universe::Universe;

/// Page numbers are below this: addresses have 64 bits, and pages 4 KiB.
pub const PAGES: u64 = 1 << 52;
/// Runs of a pattern, at most.
pub const LONGEST: usize = 8;
/// Pages of a trace, at most: each has a row in tables of 32 bits.
pub const MOST_PAGES: usize = 1 << 30;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It begins otherwise.
    #[error(
        "not a page trace of Palimpsest's; for libCacheSim's formats say --format txt, csv or oracle-general, \
         and `cargo pal replace --generate NAME -o FILE` makes one"
    )]
    Magic,
    /// It was written by another version.
    #[error("a page trace of version {0}, and this pal reads version {ours}: make it again with this pal", ours = format::VERSION)]
    Version(u8),
    /// It ends before its end.
    #[error("cut off after {0} references: copy it or make it again")]
    Cut(u64),
    /// A record is none.
    #[error("damaged at byte {at}: {what}; copy it or make it again")]
    Damaged {
        /// Where.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A line of a text has no page.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1.
        line: u64,
        /// What is wrong, and what to do.
        what: String,
    },
    /// It has more pages than tables have rows.
    #[error("it has more than {MOST_PAGES} pages: simulate a part of it")]
    Pages,
}

/// Accesses to one page in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<P> {
    /// The page: its number, or its row in a [`Universe`].
    pub page: P,
    /// How many, one at least.
    pub count: u32,
}

/// Runs that are repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The first of them in [`Batch::runs`].
    pub begin: u32,
    /// How many runs.
    pub len: u32,
    /// How many times all of them are done.
    pub times: u32,
}

/// A piece of a trace, with pages by their rows.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The runs.
    pub runs: Vec<Run<u32>>,
    /// What is done with them, in order.
    pub steps: Vec<Step>,
}

impl Batch {
    /// Runs of a piece, about.
    pub const RUNS: usize = 1 << 15;

    /// Forgets all.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.steps.clear();
    }

    /// No more should be added.
    pub fn is_full(&self) -> bool {
        self.runs.len() >= Self::RUNS
    }

    /// Adds a run that is not repeated.
    pub fn push(&mut self, run: Run<u32>) {
        let end = self.runs.len() as u32;
        self.runs.push(run);
        match self.steps.last_mut() {
            Some(step) if step.times == 1 && step.begin + step.len == end => step.len += 1,
            _ => self.steps.push(Step { begin: end, len: 1, times: 1 }),
        }
    }

    /// Makes the last `len` runs, which are in no step yet, a pattern.
    pub fn repeat(&mut self, len: u32, times: u32) {
        self.steps.push(Step { begin: self.runs.len() as u32 - len, len, times });
    }

    /// The runs of a step.
    pub fn of(&self, step: &Step) -> &[Run<u32>] {
        &self.runs[step.begin as usize..][..step.len as usize]
    }

    /// References.
    pub fn references(&self) -> u64 {
        let once = |step: &Step| self.of(step).iter().map(|run| u64::from(run.count)).sum::<u64>();
        self.steps
            .iter()
            .map(|step| once(step).saturating_mul(u64::from(step.times)))
            .fold(0, u64::saturating_add)
    }
}

/// Reads a trace piece by piece.
pub trait Source {
    /// Fills an empty piece; one without steps is the end.
    ///
    /// # Errors
    /// The trace is damaged, or is none.
    fn fill(&mut self, batch: &mut Batch, universe: &mut Universe) -> Result<(), TraceError>;
}

/// Takes a trace run by run.
pub trait Sink {
    /// These pages belong together from now on.
    fn object(&mut self, first: u64, pages: u64) -> io::Result<()>;
    /// A run.
    fn run(&mut self, run: Run<u64>) -> io::Result<()>;
    /// Runs that are repeated: 2 to [`LONGEST`], two times or more.
    fn pattern(&mut self, runs: &[Run<u64>], times: u32) -> io::Result<()>;
}
