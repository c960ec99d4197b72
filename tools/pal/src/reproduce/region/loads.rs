//! Figure 30 of the thesis: what two caches have of a program with two regions, before unification and with it.
//!
//! The thesis turns unification on in the middle of a run. Here the halves are two runs of memlat: `balance` keeps a VM's memory together,
//! and `unify` spreads it. [`verdict`] judges what the lines of samples say of the part that is measured.

mod verdict;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use self::verdict::{Half, Measured, Moment};
use super::{
    super::{
        ReproduceArgs, check_files,
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
    samples::Run,
    ui::Ui,
};

/// The figure.
pub const NAME: &str = "region-fig30";
/// What their file of results is called.
const KIND: &str = "loads";

/// Size of each of the two regions in eighths of a cache, and accesses of a visit: Conditions 1 to 3 hold.
const EIGHTHS: u64 = 6;
const ACCESSES: u64 = 1 << 14;

/// One of the runs.
struct Planned {
    policy: &'static str,
    kib: u64,
    lab: String,
    inputs: String,
}

impl kept::Run for Planned {
    type Outcome = Half;

    fn name(&self) -> String {
        format!("memlat with two regions of {} KiB, {}", self.kib, self.policy)
    }

    fn inputs(&self) -> &str {
        &self.inputs
    }

    fn document(&self, half: &Half) -> Value {
        half.document(&self.lab, self.policy)
    }

    fn outcome(&self, document: &Value) -> Option<Half> {
        Half::of(document)
    }

    fn says(&self, half: &Half) -> String {
        format!("{:.1} ns of an access", half.ns_per_access)
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
    let pace = if args.quick { Pace::DENSE } else { Pace { measured: 1200, ..Pace::DENSE } };
    let kib = setup.cache_kib() * EIGHTHS / 8;
    let parameters = super::parameters(&setup, pace);
    let planned = ["balance", "unify"].map(|policy| {
        let inputs = format!("{} {NAME} {kib} {ACCESSES} {policy},{parameters} {pace:?}", setup.inputs());
        Planned { policy, kib, lab: lab.clone(), inputs: bootimg::sha256(inputs.as_bytes()) }
    });
    let halves = kept.each(NAME, &planned, 1, ui, |Planned { policy, .. }| {
        half(&setup, pace, kib, policy, &format!("{policy},{parameters}"))
    })?;
    let [before, after] = halves.try_into().map_err(|_| anyhow!("there are two halves"))?;
    let measured = Measured { kib, before, after };
    let (claims, rows) = (verdict::claims(&measured), measured.rows());
    print!("{}", super::text_of(figure, &lab, &verdict::HEAD, &rows, &claims));
    if let Some(path) = &args.output {
        let head = super::head(figure, args, "a processor in each", "");
        let page = format!(
            "{head}\n## {lab}\n\n{}{}\n{}\nParameters of both:\n{}\n",
            super::claims_table(&claims),
            super::rows_table(&verdict::HEAD, &rows),
            verdict::EXPLAINED,
            super::words(&parameters),
        );
        store::write(path, page.as_bytes())?;
    }
    Ok(0)
}

/// A run with a policy.
fn half(setup: &Setup, pace: Pace, kib: u64, policy: &str, regions: &str) -> Result<Half> {
    let samples = setup.scratch().join(format!("{policy}.jsonl"));
    let exec = format!("/memlat chase {kib} {ACCESSES} {} {}", pace.warm, pace.measured);
    let (line, _) = session::run(setup, setup.memlat(), &exec, regions, Some(&samples))?;
    let number = |key: &str| session::number(&line, key).with_context(|| format!("{line}: no {key}"));
    let (ns, measured) = (number("ns")?, number("measured")?);
    let moments = moments(&Run::open(&samples)?, ns).map_err(|why| anyhow!("{policy}: {why}"))?;
    Ok(Half { ns_per_access: ns as f64 / measured.max(1) as f64, moments })
}

/// What caches had in the last `ns` nanoseconds of the program, which ends when the run does, but for what the guest takes to power off.
fn moments(run: &Run, ns: u64) -> Result<Vec<Moment>, String> {
    let end = run.regions.iter().map(|line| line.machine_ns).max().unwrap_or(0);
    // The last line is of the VM's end.
    let lines = run.regions.iter().filter(|line| line.machine_ns + ns >= end && line.machine_ns < end);
    let moment = |line: &crate::samples::Regions| Moment {
        ms: line.machine_ns / 1_000_000,
        span_ns: line.span_ns,
        loads: line.caches.iter().map(|(_, working_set)| *working_set).collect(),
        moves: line.moves,
    };
    let moments: Vec<_> = lines.map(moment).collect();
    if moments.is_empty() {
        return Err("the samples say nothing of its regions".into());
    }
    Ok(moments)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::samples::tests::{ABOUT, line};

    #[test]
    fn the_end_of_a_run_is_measured() {
        let regions = |ms: u64, frames: [u64; 2], moves: u64| {
            let caches = frames.map(|frames| json!({ "frames": 2 * frames, "working_set": frames }));
            json!({ "v": 1, "t": "regions", "vm": "a", "machine_ns": ms * 1_000_000, "span_ns": 100_000_000, "moves": moves,
                "map": "..", "caches": caches, "regions": [] })
            .to_string()
                + "\n"
        };
        let lines = [
            regions(100, [9, 9], 1),
            regions(700, [8, 0], 2),
            regions(800, [4, 4], 3),
            regions(810, [1, 1], 4),
        ];
        let run = Run::read(format!("{ABOUT}{}{}", line("a", 1, 1), lines.concat()).as_bytes()).unwrap();
        let moments = moments(&run, 300_000_000).unwrap();
        let expected = |ms, loads: [u64; 2], moves| Moment {
            ms,
            span_ns: 100_000_000,
            loads: loads.map(|frames| frames * 4096).to_vec(),
            moves,
        };
        assert_eq!(moments, [expected(700, [8, 0], 2), expected(800, [4, 4], 3)]);
        assert!(super::moments(&Run::default(), 1).is_err());
    }
}
