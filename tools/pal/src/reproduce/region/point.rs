//! A point of a figure: memlat in two runs, and what these say.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use labsim::machine::{Machine, Sharing};
use serde_json::{Value, json};

use super::{super::kept, session};
use crate::{compare::table::percent, host::needs::Needs};

/// What is the same for all points on a machine.
pub struct Setup {
    /// The lab machine's name.
    pub lab: String,
    machine: Machine,
    hypervisor: PathBuf,
    memlat: PathBuf,
    scratch: PathBuf,
    inputs: String,
}

/// A size of the regions, and a length of visits.
#[derive(Clone, Debug)]
pub struct Point {
    lab: String,
    /// Size of each region, in eighths of a cache.
    pub size: u32,
    /// The same in KiB.
    pub kib: u64,
    /// Accesses of a visit, as a power of two.
    pub visit: u32,
    /// What `--regions` is told.
    pub regions: String,
    /// How often regions are looked for, and for how long it runs.
    pub pace: Pace,
    /// Which of the runs of the same it is, from 0 on.
    run: u32,
    mhz: u32,
    inputs: String,
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Modelled time of an access in the part that is measured.
    pub ns_per_access: f64,
    /// Modelled seconds of the whole guest's program.
    seconds: f64,
    /// The VCPU's moves between caches.
    moves: u64,
    /// Modelled cycles of the hypervisor for a move, from the fault to the next entry elsewhere on both PCPUs together, if any was counted.
    pub move_cycles: Option<u64>,
    /// Instructions of the hypervisor for a move, if that was counted.
    pub move_instructions: Option<u64>,
    /// Rounds after which the regions were spread.
    spread: u64,
    /// Phases of regioning, and faults in them.
    rounds: u64,
    touches: u64,
}

/// Both runs of a point.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The point.
    pub point: Point,
    /// Without regions.
    pub off: Run,
    /// With them.
    pub unify: Run,
    /// The least and the greatest gain of all runs of the same, if it is their median.
    pub gains: Option<[f64; 2]>,
}

/// How often regions are looked for, and for how long a run lasts; all in modelled milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// From a phase of regioning to the next.
    pub period: u32,
    /// Length of a phase.
    pub phase: u32,
    /// Before the part that is measured.
    pub warm: u32,
    /// Length of that part: some whole periods, so that it has as many phases wherever it begins.
    pub measured: u32,
}

impl Pace {
    /// Regions are found in a short run.
    pub const DENSE: Pace = Pace { period: 300, phase: 20, warm: 700, measured: 300 };
    /// The same for regions of 9 MiB, which a phase of 20 ms does not find.
    pub const DENSE_LARGE: Pace = Pace { period: 1500, phase: 60, warm: 3500, measured: 1500 };
    /// The hypervisor's own period and phase, and the thesis'.
    pub const USUAL: Pace = Pace { period: 1000, phase: 10, warm: 1500, measured: 5000 };

    /// The dense one by which regions are found that are three quarters of a cache of this size each.
    pub fn dense(cache_kib: u64) -> Pace {
        if cache_kib > 4096 { Pace::DENSE_LARGE } else { Pace::DENSE }
    }
}

/// Modelled milliseconds before the measurement without regions, where nothing has to be found.
const WARM_OFF_MS: u32 = 100;

impl Setup {
    /// Builds or finds everything; `scratch` is for files of the runs.
    ///
    /// # Errors
    /// Something is missing here, or does not compile; the machine has no last level of caches for each package.
    pub fn new(needs: &Needs, scratch: &Path, lab: &str) -> Result<Setup> {
        let (description, machine) = crate::lab::find(lab)?;
        let memlat = super::super::compile(needs.project, needs.ui, scratch, "memlat")?;
        let hypervisor = needs.hypervisor()?;
        let inputs = kept::inputs(needs, &hypervisor, &memlat, &description)?;
        Ok(Setup { lab: lab.to_owned(), machine, hypervisor, memlat, scratch: scratch.to_owned(), inputs })
    }

    /// KiB of a last-level cache.
    pub fn cache_kib(&self) -> u64 {
        let shared = self.machine.cache.iter().map(|cache| cache.get_ref());
        let last = shared.filter(|cache| cache.shared == Sharing::Domain).max_by_key(|cache| cache.level);
        last.map_or(0, |cache| cache.size_kib as u64)
    }

    /// Cycles of an access that all caches miss, to memory of either package.
    pub fn memory_cycles(&self) -> u64 {
        let memory = self.machine.memory.get_ref();
        memory.local.max(memory.remote)
    }

    /// Modelled cycles of a microsecond.
    pub fn mhz(&self) -> u32 {
        *self.machine.mhz.get_ref()
    }

    /// Hash of all that runs depend on, but for their own parameters.
    pub fn inputs(&self) -> &str {
        &self.inputs
    }

    /// The hypervisor's file.
    pub fn hypervisor(&self) -> &Path {
        &self.hypervisor
    }

    /// Where files of runs go.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The program's file.
    pub fn memlat(&self) -> &Path {
        &self.memlat
    }

    /// A point, the first of its runs: regions of this many eighths of a cache, visits of 2^`visit` accesses.
    pub fn point(&self, pace: Pace, size: u32, visit: u32) -> Point {
        let cache_kib = self.cache_kib();
        let regions = format!("unify,{}", super::parameters(self, pace));
        let kib = cache_kib * u64::from(size) / 8;
        let text = format!("{} {kib} {visit} {regions} {} {}", self.inputs, pace.warm, pace.measured);
        let (lab, mhz) = (self.lab.clone(), self.mhz());
        Point { lab, size, kib, visit, regions, pace, run: 0, mhz, inputs: bootimg::sha256(text.as_bytes()) }
    }

    /// Runs a point.
    ///
    /// # Errors
    /// A run failed, with what it said.
    pub fn perform(&self, point: &Point) -> Result<Measured> {
        let off = self.perform_off(point)?;
        let unify = self.execute(point, &point.regions, point.pace.warm)?;
        Ok(Measured { point: point.clone(), off, unify, gains: None })
    }

    /// Runs it without regions only.
    ///
    /// # Errors
    /// The run failed, with what it said.
    pub fn perform_off(&self, point: &Point) -> Result<Run> {
        self.execute(point, "off", WARM_OFF_MS)
    }

    fn execute(&self, point: &Point, regions: &str, warm_ms: u32) -> Result<Run> {
        let accesses = 1u64 << point.visit;
        let exec = format!("/memlat chase {} {accesses} {warm_ms} {}", point.kib, point.pace.measured);
        let (line, stats) = session::run(self, &self.memlat, &exec, regions, None)?;
        run_of(&line, &stats).with_context(|| format!("{line}: not what memlat says"))
    }
}

/// What memlat and the statistics say of a run.
fn run_of(line: &str, stats: &Value) -> Option<Run> {
    let number = |key: &str| session::number(line, key);
    let (ns, measured, warm) = (number("ns")?, number("measured")?, number("warm_ns")?);
    // Absent without regions.
    let regions = &stats["guests"][0]["paging"]["regions"];
    let count = |key: &str| regions[key].as_u64().unwrap_or(0);
    (measured > 0).then(|| Run {
        ns_per_access: ns as f64 / measured as f64,
        seconds: (ns + warm) as f64 / 1e9,
        moves: count("region_moves"),
        move_cycles: regions["move_cycles"].as_u64(),
        move_instructions: regions["move_instructions"].as_u64(),
        spread: count("rounds_spread"),
        rounds: count("rounds"),
        touches: count("touches"),
    })
}

impl Run {
    /// Moves in a modelled second; `None` if there were none.
    pub fn moves_per_second(&self) -> Option<f64> {
        (self.moves > 0).then(|| self.moves as f64 / self.seconds)
    }

    /// Microseconds of a phase for each fault there, with what the fault has the program wait for: a bound from above.
    pub fn us_per_touch(&self, pace: Pace) -> Option<f64> {
        (self.touches > 0).then(|| 1000.0 * f64::from(pace.phase) * self.rounds as f64 / self.touches as f64)
    }

    fn document(&self) -> Value {
        json!({ "ns_per_access": self.ns_per_access, "seconds": self.seconds, "moves": self.moves,
            "move_cycles": self.move_cycles, "move_instructions": self.move_instructions, "rounds_spread": self.spread, "rounds": self.rounds,
            "touches": self.touches })
    }

    fn of(value: &Value) -> Option<Run> {
        Some(Run {
            ns_per_access: value["ns_per_access"].as_f64()?,
            seconds: value["seconds"].as_f64()?,
            moves: value["moves"].as_u64()?,
            move_cycles: value["move_cycles"].as_u64(),
            move_instructions: value["move_instructions"].as_u64(),
            spread: value["rounds_spread"].as_u64()?,
            rounds: value["rounds"].as_u64()?,
            touches: value["touches"].as_u64()?,
        })
    }
}

impl Point {
    /// Modelled cycles of a microsecond.
    pub fn mhz(&self) -> u32 {
        self.mhz
    }

    /// The same again: memlat has other frames in each boot, and so other conflicts in the caches.
    pub fn again(&self, run: u32) -> Point {
        let inputs = if run == 0 { self.inputs.clone() } else { format!("{} {run}", self.inputs) };
        Point { run, inputs: bootimg::sha256(inputs.as_bytes()), ..self.clone() }
    }
}

impl kept::Run for Point {
    type Outcome = Measured;

    fn name(&self) -> String {
        format!("{}, 2 × {} KiB, visits of 2^{}, run {}", self.lab, self.kib, self.visit, self.run + 1)
    }

    fn inputs(&self) -> &str {
        &self.inputs
    }

    fn document(&self, measured: &Measured) -> Value {
        measured.document()
    }

    fn outcome(&self, document: &Value) -> Option<Measured> {
        Measured::of(self, document)
    }

    fn says(&self, measured: &Measured) -> String {
        measured.gain_text()
    }
}

impl Measured {
    /// Performance relative to one cache.
    pub fn gain(&self) -> f64 {
        self.off.ns_per_access / self.unify.ns_per_access
    }

    /// Of all runs of a point the one with the median gain (the lower one of two), in the order of the first of each.
    pub fn medians(all: Vec<Measured>) -> Vec<Measured> {
        let mut points: Vec<Vec<Measured>> = Vec::new();
        for measured in all {
            let is_same = |other: &Measured| {
                (other.point.kib, other.point.visit) == (measured.point.kib, measured.point.visit)
            };
            match points.iter_mut().find(|runs| is_same(&runs[0])) {
                Some(runs) => runs.push(measured),
                None => points.push(vec![measured]),
            }
        }
        let median = |mut runs: Vec<Measured>| {
            runs.sort_by(|a, b| a.gain().total_cmp(&b.gain()));
            let gains = [runs[0].gain(), runs[runs.len() - 1].gain()];
            let middle = runs.swap_remove((runs.len() - 1) / 2);
            Measured { gains: (!runs.is_empty()).then_some(gains), ..middle }
        };
        points.into_iter().map(median).collect()
    }

    /// The same for people.
    fn gain_text(&self) -> String {
        let moves = self.unify.moves_per_second().unwrap_or(0.0);
        format!("{}, {moves:.0} moves in a second", percent(Some(self.gain())))
    }

    /// For the file.
    fn document(&self) -> Value {
        let Point { lab, kib, visit, regions, mhz, .. } = &self.point;
        json!({ "lab": lab, "region_kib": kib, "accesses": 1u64 << visit, "regions": regions, "mhz": mhz,
            "gain": self.gain(), "off": self.off.document(), "unify": self.unify.document() })
    }

    /// From the file.
    fn of(point: &Point, document: &Value) -> Option<Measured> {
        let (off, unify) = (Run::of(&document["off"])?, Run::of(&document["unify"])?);
        Some(Measured { point: point.clone(), off, unify, gains: None })
    }
}

#[cfg(test)]
impl Measured {
    /// A made-up one.
    pub fn made_up(size: u32, visit: u32, gain: f64) -> Measured {
        let run = |ns_per_access| Run {
            ns_per_access,
            seconds: 1.0,
            moves: 0,
            move_cycles: None,
            move_instructions: None,
            spread: 0,
            rounds: 0,
            touches: 0,
        };
        let point = Point {
            lab: "zen3".into(),
            size,
            kib: 512 * u64::from(size),
            visit,
            regions: "unify".into(),
            pace: Pace::DENSE,
            run: 0,
            mhz: 3000,
            inputs: "x".into(),
        };
        Measured { point, off: run(100.0), unify: run(100.0 / gain), gains: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "memlat: kib=3072 accesses=16384 warm_ns=500000000 visits=245 measured=4000000 ns=400000000 right";

    #[test]
    fn a_run_is_what_both_say() {
        let stats =
            json!({ "guests": [{ "paging": { "regions": { "region_moves": 1800, "move_cycles": 4500 } } }] });
        let run = run_of(LINE, &stats).unwrap();
        assert_eq!(
            (run.ns_per_access, run.moves_per_second(), run.move_cycles),
            (100.0, Some(2000.0), Some(4500))
        );
        let none = run_of(LINE, &json!({})).unwrap();
        assert_eq!((none.moves_per_second(), none.move_cycles), (None, None));
        assert!(
            run_of("memlat: right", &stats).is_none()
                && run_of(&LINE.replace("4000000", "0"), &stats).is_none()
        );
    }

    #[test]
    fn a_point_is_the_median_of_its_runs() {
        let runs = [(6, 14, 4.0), (6, 9, 1.0), (6, 14, 2.0), (6, 14, 3.5), (6, 9, 0.9)];
        let all = runs.map(|(size, visit, gain)| Measured::made_up(size, visit, gain)).into();
        let medians = Measured::medians(all);
        let of = |n: usize| (medians[n].point.visit, medians[n].gain(), medians[n].gains);
        assert_eq!((medians.len(), of(0)), (2, (14, 3.5, Some([2.0, 4.0]))));
        assert_eq!(of(1), (9, 0.9, Some([0.9, 1.0])));
        assert_eq!(Measured::medians(vec![Measured::made_up(6, 14, 2.0)])[0].gains, None);
        let first = Measured::made_up(6, 14, 2.0).point;
        assert_ne!(kept::Run::inputs(&first.again(1)), kept::Run::inputs(&first.again(2)));
    }

    #[test]
    fn what_is_kept_comes_back() {
        let measured = Measured::made_up(6, 14, 1.5);
        let again = Measured::of(&measured.point, &measured.document()).unwrap();
        assert_eq!((again.off, again.unify, again.gain()), (measured.off, measured.unify, 1.5));
        assert!(Measured::of(&measured.point, &json!({ "off": {} })).is_none());
    }
}
