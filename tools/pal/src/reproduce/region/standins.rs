//! Figure 33 of the thesis: programs of SPEC CPU2006 with unification. SPEC is licensed and absent: `tests/kits/standins` has a program for
//! some of them, which uses memory as that does.
//!
//! Each runs without regions and with `unify`, at the hypervisor's own period. [`verdict`] judges them by the conditions that they were
//! made to meet or not.

mod verdict;

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use self::verdict::{Measured, Run};
use super::{
    super::{
        ReproduceArgs, check_files, compile,
        kept::{self, Kept},
    },
    Figure,
    point::{Pace, Setup},
    session,
};
use crate::{
    compare::{scratch::Scratch, store},
    host::{lock::lock, needs::Needs},
    project::Project,
    samples::Run as Samples,
    ui::Ui,
};

/// The figure.
pub const NAME: &str = "region-fig33";
/// What their file of results is called.
const KIND: &str = "standins";
/// Modelled milliseconds before the measurement without regions, where nothing has to be found, and of it: all are alike.
const OFF_MS: [u32; 2] = [100, 400];

/// A program.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name, as the kit has it.
    pub name: &'static str,
    /// What it stands in for.
    pub of: &'static str,
    /// The condition that forbids unification; `None`: all hold.
    pub broken: Option<u32>,
}

const fn program(name: &'static str, of: &'static str, broken: Option<u32>) -> Program {
    Program { name, of, broken }
}

/// The programs of the kit.
pub static PROGRAMS: [Program; 6] = [
    program("sphinx", "482.sphinx3", None),
    program("namd", "444.namd", None),
    program("h264", "464.h264ref", None),
    program("omnetpp", "471.omnetpp", Some(1)),
    program("povray", "453.povray", Some(2)),
    program("libquantum", "462.libquantum", Some(3)),
];

/// A program on a lab machine.
struct Planned {
    program: &'static Program,
    lab: String,
    inputs: String,
}

impl kept::Run for Planned {
    type Outcome = Measured;

    fn name(&self) -> String {
        self.program.name.to_owned()
    }

    fn inputs(&self) -> &str {
        &self.inputs
    }

    fn document(&self, measured: &Measured) -> Value {
        measured.document(&self.lab)
    }

    fn outcome(&self, document: &Value) -> Option<Measured> {
        Measured::of(self.program, document)
    }

    fn says(&self, measured: &Measured) -> String {
        measured.gain_text()
    }
}

/// Runs the figure, and says whether the claims hold.
///
/// # Errors
/// A file cannot be written, or a run failed.
pub fn run(figure: &Figure, args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let lab = args.lab.clone().unwrap_or_else(|| figure.labs[0].to_owned());
    let cache = project.cache("reproduce")?;
    let _lock = lock(&cache, ui)?;
    check_files([args.output.as_ref()])?;
    let mut kept = Kept::open(KIND, args, &cache, ui)?;
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let setup = Setup::new(&needs, scratch.path(), &lab)?;
    let binary = compile(project, ui, scratch.path(), "standins")?;
    // As figure 18's, but at the hypervisor's own period. Its phase is longer: regions are larger than those of figure 28.
    let (warm, measured) = if args.quick { (1500, 1000) } else { (2500, 4000) };
    let pace = Pace { phase: 20, warm, measured, ..Pace::USUAL };
    let parameters = super::parameters(&setup, pace);
    let source = std::fs::read(&binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let source = bootimg::sha256(&source);
    let planned = |program: &'static Program| {
        let inputs = format!("{} {source} {} {parameters} {pace:?}", setup.inputs(), program.name);
        Planned { program, lab: lab.clone(), inputs: bootimg::sha256(inputs.as_bytes()) }
    };
    let planned: Vec<_> = PROGRAMS.iter().map(planned).collect();
    let all = kept.each(NAME, &planned, 1, ui, |planned| {
        perform(&setup, planned.program, &binary, pace, &parameters)
    })?;
    let (claims, rows) = (verdict::claims(&all), all.iter().map(Measured::row).collect::<Vec<_>>());
    print!("{}", super::text_of(figure, &lab, &verdict::HEAD, &rows, &claims));
    if let Some(path) = &args.output {
        let page = format!(
            "{}\n## {lab}\n\n{}{}\n{}\nParameters:\n{}\n",
            super::head(figure, args, "a processor in each", verdict::STANDINS),
            super::claims_table(&claims),
            super::rows_table(&verdict::HEAD, &rows),
            verdict::EXPLAINED,
            super::words(&format!("unify,{parameters}")),
        );
        store::write(path, page.as_bytes())?;
    }
    Ok(0)
}

/// Both runs of a program.
fn perform(
    setup: &Setup,
    program: &'static Program,
    binary: &Path,
    pace: Pace,
    parameters: &str,
) -> Result<Measured> {
    let unify = format!("unify,{parameters}");
    let execute = |regions: &str, [warm, measured]: [u32; 2]| -> Result<Run> {
        let samples = setup.scratch().join(format!("{}.jsonl", program.name));
        let exec = format!("/standins {} {} {warm} {measured}", program.name, setup.cache_kib());
        let (line, stats) = session::run(setup, binary, &exec, regions, Some(&samples))?;
        let number = |key: &str| session::number(&line, key).with_context(|| format!("{line}: no {key}"));
        let (ns, units) = (number("ns")?, number("measured")?);
        let misses = misses(&Samples::open(&samples)?, ns).context("last-level misses are not counted")?;
        // Absent without regions.
        let count = |key: &str| stats["guests"][0]["paging"]["regions"][key].as_u64().unwrap_or(0);
        Ok(Run {
            ns,
            units,
            misses,
            moves: count("region_moves"),
            spread: count("rounds_spread"),
            rounds: count("rounds"),
        })
    };
    let on = execute(&unify, [pace.warm, pace.measured])?;
    Ok(Measured { program, off: execute("off", OFF_MS)?, unify: on })
}

/// Misses of the last-level cache in the last `ns` nanoseconds of the run, in which the program was measured and then checked. `None`:
/// they were not counted.
fn misses(run: &Samples, ns: u64) -> Option<u64> {
    let end = run.samples.iter().map(|sample| sample.machine_ns).max()?;
    let last = run.samples.iter().filter(|sample| sample.machine_ns + ns > end);
    last.map(|sample| sample.counter("llc_misses"))
        .try_fold(0u64, |sum, misses| Some(sum.saturating_add(misses?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::{ABOUT, line};

    #[test]
    fn misses_are_those_of_the_end() {
        let counted = |at| line("a", at, 1).replace("\"instructions\"", "\"llc_misses\":7,\"instructions\"");
        let run = |text: &str| Samples::read(format!("{ABOUT}{text}").as_bytes()).unwrap();
        let three = counted(1) + &counted(2) + &counted(3);
        assert_eq!(misses(&run(&three), 2_000_000_000), Some(14));
        assert_eq!(misses(&run(&(counted(1) + &line("a", 2, 1))), 1), None);
        assert_eq!(misses(&Samples::default(), 1), None);
    }

    #[test]
    fn the_kit_has_all_programs() {
        let kit = include_str!("../../../../../tests/kits/standins/standins.c");
        assert!(
            PROGRAMS
                .iter()
                .all(|program| kit.contains(&format!("{{\"{}\", {},", program.name, program.name)))
        );
        assert!(PROGRAMS.iter().all(|program| kit.contains(program.of)));
    }
}
