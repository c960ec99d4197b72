//! `pal calibrate`: what `--regions` needs to know of a machine, measured with memlat (thesis 2.3.1).

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use super::point::{Measured, Pace, Run, Setup};
use crate::{
    compare::{scratch::Scratch, store},
    host::needs::Needs,
    project::Project,
    ui::Ui,
};

const EXAMPLES: &str = "\
Examples:
  cargo pal calibrate                          for the lab machine clovertown-x5365
  cargo pal calibrate --lab westmere-x5660 --json westmere.json

It runs memlat with regions that fit one cache, without `--regions`, and with regions that fit two, with `--regions unify` and \
without, and prints the times that follow and the parameters for `--regions`. They are modelled, and hold for the lab machine alone.";

/// Options of `pal calibrate`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    /// The lab machine
    #[arg(long, value_name = "NAME", default_value = "clovertown-x5365")]
    pub lab: String,
    /// Write what was measured to FILE as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Install missing packages without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// Touches of a phase within which pages that are used together are met again, so that they merge.
const TOUCHES: f64 = 64.0;
/// A gain that is of interest.
const GAIN: f64 = 0.05;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    /// Nanoseconds of an access, where one cache is enough, and where it is not.
    hit_ns: f64,
    miss_ns: f64,
    /// Of a move.
    move_us: f64,
    /// Of a phase for each fault there.
    touch_us: f64,
}

/// What follows for `--regions`, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    q_us: u32,
    move_us: u32,
    least_us: u32,
    most_us: u32,
}

impl Times {
    /// The parameters. `lines`: of a region.
    fn parameters(&self, lines: f64) -> Parameters {
        let up = |us: f64| us.ceil().clamp(1.0, 1e6) as u32;
        let saved_ns = self.miss_ns - self.hit_ns;
        // A visit of one cache has as many misses as the program has lines meanwhile; with two it has a move.
        let even_us = self.move_us / saved_ns * self.miss_ns;
        // Each line of the region misses once, then it is there: long visits are hits with one cache, too.
        let most_us = lines * saved_ns / GAIN / 1000.0;
        // What pays for less than twice a move is left together.
        let least_us = 2.0 * even_us;
        let q_us = least_us.max(TOUCHES * self.touch_us);
        // Regions that are used for less than `q` merge, and are never seen.
        Parameters {
            q_us: up(q_us),
            move_us: up(self.move_us),
            least_us: up(least_us.max(q_us / 4.0)),
            most_us: up(most_us),
        }
    }
}

/// Runs memlat and prints what follows.
///
/// # Errors
/// Something is missing here; a run failed; nothing was moved, so that a move was not measured.
pub fn run(args: &CalibrateArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let needs = Needs { project, ui, yes: args.yes };
    let scratch = Scratch::new()?;
    let setup = Setup::new(&needs, scratch.path(), &args.lab)?;
    let cache_kib = setup.cache_kib();
    let (one, two) = (setup.point(Pace::DENSE, 3, 14), setup.point(Pace::dense(cache_kib), 6, 14));
    let _step = ui.step("memlat");
    let (one, two): (Run, Measured) = (setup.perform_off(&one)?, setup.perform(&two)?);
    let Some(cycles) = two.unify.move_cycles else {
        bail!(
            "the VCPU was not moved, so a move was not measured; the regions were not found on {}",
            args.lab
        );
    };
    let times = Times {
        hit_ns: one.ns_per_access,
        miss_ns: two.off.ns_per_access,
        move_us: cycles as f64 / f64::from(two.point.mhz()),
        touch_us: two.unify.us_per_touch(two.point.pace).context("no phase has seen a fault")?,
    };
    if times.miss_ns <= times.hit_ns {
        bail!("an access takes as long with one cache as with two: nothing is to be gained on {}", args.lab);
    }
    let Parameters { q_us, move_us, least_us, most_us } = times.parameters(two.point.kib as f64 * 16.0);
    let Times { hit_ns, miss_ns, move_us: moves, touch_us } = times;
    let regions = format!(
        "unify,q_us={q_us},move_us={move_us},least_us={least_us},most_us={most_us},cache_kib={cache_kib}"
    );
    println!("{}, modelled", args.lab);
    println!("an access: {hit_ns:.1} ns, and {miss_ns:.1} ns where one cache is too small");
    println!("a move of a VCPU: {moves:.1} µs, {cycles} cycles");
    if let Some(instructions) = two.unify.move_instructions {
        println!("                  {instructions} instructions of the hypervisor");
    }
    println!("a fault of a phase: {touch_us:.1} µs at most\n\n--regions {regions}");
    if let Some(path) = &args.json {
        let document = json!({ "t": "calibrate", "schema": 1, "lab": args.lab, "hit_ns": hit_ns, "miss_ns": miss_ns,
            "move_us": moves, "move_instructions": two.unify.move_instructions, "touch_us": touch_us, "regions": regions });
        store::write(path, (document.to_string() + "\n").as_bytes())?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_follow_from_times() {
        let times = Times { hit_ns: 7.0, miss_ns: 107.0, move_us: 10.0, touch_us: 2.0 };
        let parameters = times.parameters(1000.0);
        // Even: 100 misses, in 10.7 µs. 20 000 times the lines' misses are 100 µs each.
        assert_eq!(parameters, Parameters { q_us: 128, move_us: 10, least_us: 32, most_us: 2000 });
        // Moves that are dear decide about `q`.
        let dear = Times { move_us: 200.0, ..times }.parameters(1000.0);
        assert_eq!((dear.q_us, dear.least_us), (428, 428));
    }
}
