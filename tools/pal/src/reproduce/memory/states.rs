//! Figure 72 of the memory-region thesis: what a program gets done while the E-state of its VM goes from E7, an eighth of the fast memory,
//! to E0, all of it. The program is memlat, whose memory is as large as the fast memory; E-states are set from outside, by `pal tier`.

use std::{
    fmt::Write,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{Curve, Setting, line, prepare, publish};
use crate::{
    project::Project,
    reproduce::{
        ReproduceArgs,
        verdict::{Claim, claim},
    },
    ui::Ui,
};

pub const NAME: &str = "memory-fig72";
pub const SHOWS: &str = "throughput as the share of fast memory grows in eight steps";
/// How many times the throughput of E7 the thesis has at E0.
const THESIS: f64 = 4.3;
/// E-states, from the least memory to the most.
const STATES: usize = 8;
/// The first interval of memlat's ten that is one of E7 from its beginning; then each state has one, and E0 two.
const FIRST: usize = 1;
/// Between two attempts to reach a machine that boots.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs it, and says whether the claim holds.
///
/// # Errors
/// As for the table.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (lab, program, _lock) = prepare(NAME, args, project, ui)?;
    let (mib, ms) = if args.quick { (24, 9000) } else { (64, 20_000) };
    let modes = &["nested", "shadow"][..if args.quick { 1 } else { 2 }];
    let mut curves = Vec::new();
    for mode in modes {
        let _step = ui.step(&format!("{NAME}: {mode}"));
        curves.push((*mode, measure(mode, &lab, &program, mib, ms, args.yes)?));
    }
    let claims = curves.iter().map(|(mode, curve)| judge(mode, curve)).collect::<Result<Vec<_>>>()?;
    publish(NAME, args, &text(&lab, mib, &curves, &claims))?;
    Ok(0)
}

/// A run that is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _it_may_have_ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Gives the guest of a machine an E-state; false: it cannot be reached.
fn set(name: &str, state: usize) -> Result<bool> {
    let mut pal = Command::new(std::env::current_exe().context("cannot find pal's own program")?);
    pal.args(["tier", name, "guest", &format!("E{state}")]);
    let output = pal.output().context("cannot run pal")?;
    Ok(output.status.success())
}

fn measure(mode: &'static str, lab: &str, program: &Path, mib: u64, ms: u64, yes: bool) -> Result<Curve> {
    let name = format!("fig72-{}", std::process::id());
    let memlat = format!("latency {mib} {ms}");
    let mut pal = Setting { mode, sharing: "static" }.command(lab, program, mib, &memlat, yes)?;
    pal.args(["--name", &name]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut running = Running(pal.spawn().context("cannot run pal")?);
    let output = running.0.stdout.take().context("the run has no output")?;
    // Until it boots there is no monitor.
    while !set(&name, STATES - 1)? {
        if running.0.try_wait()?.is_some() {
            bail!("{mode}: the run has ended before its monitor could be reached, and nothing is claimed");
        }
        sleep(PAUSE);
    }
    let (mut curve, mut is_right) = (Curve::new(), false);
    for text in BufReader::new(output).lines() {
        let text = text.context("the run's output cannot be read")?;
        is_right |= text.contains(", right");
        let Some(interval) = line(&text) else { continue };
        curve.push(interval);
        if let Some(next) = state_after(curve.len())
            && !set(&name, next)?
        {
            bail!("{mode}: E{next} cannot be set, and nothing is claimed");
        }
    }
    let status = running.0.wait()?;
    if !status.success() || !is_right {
        bail!("{mode} failed, and nothing is claimed: {status}");
    }
    Ok(curve)
}

/// The state that is set when this many intervals are over.
fn state_after(intervals: usize) -> Option<usize> {
    (STATES - 1).checked_sub(intervals.checked_sub(FIRST)?).filter(|state| *state + 1 < STATES)
}

/// Cycles of an access in each state, from E7 on; of E0 at the end, when all that fits has moved.
fn states(curve: &Curve) -> Option<[u64; STATES]> {
    let mut cycles = [0; STATES];
    for (to, (_, from)) in cycles.iter_mut().zip(curve.get(FIRST..)?) {
        *to = *from;
    }
    cycles[STATES - 1] = curve.get(FIRST + STATES)?.1;
    cycles.iter().all(|cycles| *cycles > 0).then_some(cycles)
}

fn judge(mode: &str, curve: &Curve) -> Result<Claim> {
    let Some(cycles) = states(curve) else {
        bail!("{mode}: memlat has said too little, and nothing is claimed");
    };
    let (first, last) = (cycles[0], cycles[STATES - 1]);
    let times = first as f64 / last as f64;
    let grows = cycles.windows(2).all(|pair| pair[1] <= pair[0] + pair[0] / 20);
    let every = if grows { "with every step" } else { "not with every step" };
    let ours = format!(
        "{mode}: {first} cycles of an access at E7, {last} at E0, {times:.2} times the throughput; more {every}"
    );
    Ok(claim("Throughput grows to 4.3 times from E7 to E0", ours, times >= THESIS))
}

fn text(lab: &str, mib: u64, curves: &[(&str, Curve)], claims: &[Claim]) -> String {
    let mut text =
        format!("{lab}, {mib} MiB accessed at random, as much fast memory\n\n{:<24}", "throughput of E7's");
    for state in (0..STATES).rev() {
        let _ = write!(text, "     E{state}");
    }
    text.push('\n');
    for (mode, curve) in curves {
        let Some(cycles) = states(curve) else { continue };
        let _ = write!(text, "{mode:<24}");
        for one in cycles {
            let _ = write!(text, " {:>6.2}", cycles[0] as f64 / one as f64);
        }
        text.push('\n');
    }
    text + &super::claims_text(claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_interval() {
        let set: Vec<_> = (0..=10).filter_map(|over| Some((over, state_after(over)?))).collect();
        assert_eq!(set, [(2, 6), (3, 5), (4, 4), (5, 3), (6, 2), (7, 1), (8, 0)]);
        let curve: Curve = (0..10).map(|n| (n * 100, 1000 - 90 * n)).collect();
        // E0 is that of the last interval, and not that in which pages still moved.
        assert_eq!(states(&curve), Some([910, 820, 730, 640, 550, 460, 370, 190]));
        assert_eq!((states(&curve[..9].to_vec()), states(&vec![(1, 0); 10])), (None, None));
    }

    #[test]
    fn a_run_is_judged_by_its_ends() {
        let curve = |last: u64| -> Curve {
            [900, 900, 800, 700, 600, 500, 400, 300, 250, last].into_iter().map(|n| (0, n)).collect()
        };
        assert!(judge("nested", &curve(200)).unwrap().holds);
        let less = judge("nested", &curve(300)).unwrap();
        assert!(
            !less.holds && less.ours.ends_with("3.00 times the throughput; more with every step"),
            "{}",
            less.ours
        );
        assert!(judge("nested", &Curve::new()).is_err());
        let text = text("lab", 24, &[("nested", curve(225))], &[less]);
        assert!(
            text.contains("nested                     1.00   1.12   1.29   1.50   1.80   2.25   3.00   4.00"),
            "{text}"
        );
        assert!(text.contains("shape  does not hold"));
    }
}
