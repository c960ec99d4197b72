//! What figures are made of: a stand-in program, its trace, and what policies make of it with memories of several sizes.

use workloads::science::Program;

use crate::{
    record::record,
    simulation::{self, About, Choice, Outcome},
    trace::{TraceError, format::Reader},
};

/// A program and what came out.
pub struct Measured {
    /// The program.
    pub program: &'static Program,
    /// Its checksum.
    pub checksum: u64,
    /// Its trace.
    pub about: About,
    /// Each policy with each memory: policies in their order, each with its memories.
    pub outcomes: Vec<Outcome>,
}

impl Measured {
    /// What a policy did with each memory.
    pub fn of<'a>(&'a self, choice: &'a Choice) -> impl Iterator<Item = &'a Outcome> {
        self.outcomes.iter().filter(move |outcome| outcome.choice == *choice)
    }
}

/// Runs a program and simulates these policies with memories of these shares of its pages, in percent.
///
/// # Errors
/// The trace's.
pub fn measure(
    program: &'static Program,
    scale_milli: u32,
    choices: &[Choice],
    percents: &[u32],
) -> Result<Measured, TraceError> {
    let (trace, recorded) = record(program, scale_milli, Vec::new())?;
    let about = simulation::about(&mut Reader::new(&trace[..])?)?;
    let frames =
        |percent: &u32| u32::try_from((about.pages * u64::from(*percent) / 100).max(1)).unwrap_or(u32::MAX);
    let frames: Vec<u32> = percents.iter().map(frames).collect();
    let outcomes = simulation::simulate(&mut Reader::new(&trace[..])?, choices, &frames)?;
    Ok(Measured { program, checksum: recorded.checksum, about, outcomes })
}
