//! Figure 72 of the memory-region thesis: what a program gets done while the E-state of its VM goes from E7, an eighth of the fast memory,
//! to E0, all of it. The program is memlat, whose memory fits the fast memory; E-states are set from outside, by `pal tier`. Slow memory
//! is the lab machine's, and M2 of the thesis' table 7.

use std::{
    fmt::Write,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{Bench, Curve, Record, Setting, line, publish};
use crate::{
    project::Project,
    reproduce::{
        ReproduceArgs,
        verdict::{Claim, claim, claims_text},
    },
    ui::Ui,
};

pub const NAME: &str = "memory-fig72";
pub const SHOWS: &str = "throughput as the share of fast memory grows in eight steps";
/// How many times the throughput the thesis has at E0: of E7's, and of that without fast memory (34 ms, then 8).
const THESIS: f64 = 4.3;
const THESIS_OF_NONE: f64 = 4.25;
/// Latency of the thesis' slowest memory in thousandths of that of fast memory.
const M2: u64 = 5200;
/// E-states, from the least memory to the most.
const STATES: usize = 8;
/// Intervals of memlat in which no page has been hot for long enough to move; the last of them is that without fast memory.
const NONE: usize = 2;
/// Intervals of each state: pages move in the first one, and the last one is its own.
const EACH: usize = 2;
const INTERVALS: usize = NONE + STATES * EACH;
/// Milliseconds of an interval: a page that moves was hot for 2.2 s.
const INTERVAL_MS: u64 = 1000;
/// Fast memory beside the program's in MiB, for what else is hot.
const BESIDE: u64 = 8;
/// Between two attempts to reach a machine that boots.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs it, and says whether the claim holds.
///
/// # Errors
/// As for the table.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (bench, mut kept) = Bench::new(NAME, args, project, ui)?;
    let (lab, mib) = (&bench.lab, if args.quick { 48 } else { 64 });
    let own = memory(lab)?;
    let m2 = with_slow(lab, own[0] * M2 / 1000, &project.cache("reproduce")?)?;
    let all = [("nested", lab), ("nested, M2", &m2), ("shadow", lab), ("shadow, M2", &m2)];
    let all = &all[..if args.quick { 2 } else { 4 }];
    let memlat = format!("latency {mib} {} {INTERVALS}", INTERVALS as u64 * INTERVAL_MS);
    let set: Vec<_> = (0..=INTERVALS).map(state_after).collect();
    let sessions = all.iter().map(|(name, lab)| {
        let mode = if name.starts_with("shadow") { "shadow" } else { "nested" };
        let setting = Setting { mode, ..Setting::nested("static", mib + BESIDE) };
        bench.session(name, lab, setting, &memlat, &format!("{set:?}"))
    });
    let sessions = sessions.collect::<Result<Vec<_>>>()?;
    let records = kept.each(NAME, &sessions, 1, ui, |session| {
        let name = format!("fig72-{}", std::process::id());
        bench.perform(session, Some(&name), |run| step(&name, run))
    })?;
    let run = |(&(name, lab), record): (&(&'static str, &String), &Record)| {
        let curve = record.said.lines().filter_map(line).collect();
        let pages = ["fast_frames", "hot_waiting"].map(|key| record.tiers[key].as_u64().unwrap_or(0));
        Ok(Run { name, memory: memory(lab)?, mib, curve, pages })
    };
    let curves = all.iter().zip(&records).map(run).collect::<Result<Vec<_>>>()?;
    let claims: Vec<Claim> =
        curves.iter().map(judge).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    publish(NAME, args, &text(lab, mib, &curves, &claims))?;
    Ok(0)
}

/// What came out on one machine.
struct Run {
    name: &'static str,
    memory: [u64; 2],
    /// MiB that the program accesses.
    mib: u64,
    curve: Curve,
    /// Pages in fast memory at the end, and hot ones in slow memory.
    pages: [u64; 2],
}

/// Cycles of an access to fast and to slow memory.
fn memory(lab: &str) -> Result<[u64; 2]> {
    let (_, machine) = crate::lab::find(lab)?;
    let memory = machine.memory.get_ref();
    Ok([memory.local, memory.slow])
}

/// A file that describes the same machine with slower slow memory.
fn with_slow(lab: &str, cycles: u64, cache: &Path) -> Result<String> {
    let (description, _) = crate::lab::find(lab)?;
    let line = |line: &str| {
        if line.starts_with("slow = ") { format!("slow = {cycles}\n") } else { format!("{line}\n") }
    };
    let name = Path::new(lab).file_stem().and_then(|name| name.to_str()).unwrap_or(super::LAB);
    let path = cache.join(format!("{name}-slow-m2.toml"));
    let text: String = description.lines().map(line).collect();
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path.display().to_string())
}

/// Gives the guest of a machine an E-state; false: it cannot be reached.
fn set(name: &str, state: usize) -> Result<bool> {
    let mut pal = Command::new(std::env::current_exe().context("cannot find pal's own program")?);
    pal.args(["tier", name, "guest", &format!("E{state}")]);
    let output = pal.output().context("cannot run pal")?;
    Ok(output.status.success())
}

/// Sets the states while memlat says how long its accesses took; all that it said.
fn step(name: &str, run: &mut Child) -> Result<String> {
    let output = run.stdout.take().context("the run has no output")?;
    // Until it boots there is no monitor.
    while !set(name, STATES - 1)? {
        if run.try_wait()?.is_some() {
            bail!("the run has ended before its monitor could be reached");
        }
        sleep(PAUSE);
    }
    let (mut said, mut intervals) = (String::new(), 0);
    for text in BufReader::new(output).lines() {
        let text = text.context("the run's output cannot be read")?;
        said = said + &text + "\n";
        if line(&text).is_none() {
            continue;
        }
        intervals += 1;
        if let Some(next) = state_after(intervals)
            && !set(name, next)?
        {
            bail!("E{next} cannot be set");
        }
    }
    Ok(said)
}

/// The state that is set when this many intervals are over.
fn state_after(intervals: usize) -> Option<usize> {
    let over = intervals.checked_sub(NONE)?;
    let states = (over % EACH == 0).then_some(over / EACH)?;
    (STATES - 1).checked_sub(states).filter(|_| states > 0)
}

/// Cycles of an access without fast memory, and in each state from E7 on, when all that fits has moved.
fn states(curve: &Curve) -> Option<(u64, [u64; STATES])> {
    let mut cycles = [0; STATES];
    for (n, to) in cycles.iter_mut().enumerate() {
        *to = curve.get(NONE + EACH * (n + 1) - 1)?.1;
    }
    let none = curve.get(NONE - 1)?.1;
    (none > 0 && cycles.iter().all(|cycles| *cycles > 0)).then_some((none, cycles))
}

/// What an access consists of, if at E0 all of it is in fast memory: accesses to memory, and cycles that no tier changes, those of caches,
/// walks and instructions. Then the cycles at E7, where an eighth of the fast memory is the program's.
fn parts(run: &Run, none: u64, last: u64) -> [f64; 3] {
    let [fast, slow] = run.memory.map(|cycles| cycles as f64);
    let to_memory = (none as f64 - last as f64) / (slow - fast);
    let rest = last as f64 - to_memory * fast;
    let there = (run.mib + BESIDE) as f64 / STATES as f64 / run.mib as f64;
    [to_memory, rest, rest + to_memory * (fast * there + slow * (1.0 - there))]
}

fn judge(run: &Run) -> Result<[Claim; 2]> {
    let Run { name, memory: [fast, slow], curve, .. } = run;
    let Some((none, cycles)) = states(curve) else {
        bail!("{name}: memlat has said too little, and nothing is claimed");
    };
    let (first, last) = (cycles[0], cycles[STATES - 1]);
    let grows = cycles.windows(2).all(|pair| pair[1] <= pair[0] + pair[0] / 20);
    let every = if grows { "with every step" } else { "not with every step" };
    let [to_memory, rest, at_first] = parts(run, none, last);
    let ours = |was: u64, what: &str| {
        let times = was as f64 / last as f64;
        (
            format!(
                "{name}: {was} cycles of an access {what}, {last} at E0, {times:.2} times the throughput"
            ),
            times,
        )
    };
    let (of_states, times) = ours(first, "at E7");
    let (of_none, times_of_none) = ours(none, "without fast memory");
    Ok([
        claim(
            "Throughput grows gradually to 4.3 times from E7 to E0",
            format!("{of_states}; more {every}; if all hot pages are in place, {at_first:.0} at E7"),
            times >= THESIS && grows,
        ),
        claim(
            "An operation takes 34 ms without fast memory (M1; 42 ms with M2) and 8 ms at E0: 4.25 times the throughput",
            format!(
                "{of_none}: {to_memory:.2} accesses to memory of {fast} or {slow} cycles, and {rest:.0} cycles of caches, walks and instructions in both"
            ),
            times_of_none >= THESIS_OF_NONE,
        ),
    ])
}

fn text(lab: &str, mib: u64, runs: &[Run], claims: &[Claim]) -> String {
    let mut text = format!(
        "{lab}, {mib} MiB accessed at random, {} MiB of fast memory; M2: slow memory takes 5.2 times as long as fast\n\n{:<22}  none",
        mib + BESIDE,
        "throughput of E7's"
    );
    for state in (0..STATES).rev() {
        let _ = write!(text, "    E{state}");
    }
    text.push('\n');
    for run in runs {
        let Some((none, cycles)) = states(&run.curve) else { continue };
        let _ = write!(text, "{:<22}", run.name);
        for one in [none].iter().chain(&cycles) {
            let _ = write!(text, " {:>5.2}", cycles[0] as f64 / *one as f64);
        }
        text.push('\n');
    }
    text.push('\n');
    for Run { name, pages: [fast, waiting], .. } in runs {
        let _ = writeln!(text, "{name}: at E0 {fast} pages are in fast memory, {waiting} hot ones are not");
    }
    text + &claims_text(claims, "modelled")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run with these cycles without fast memory and in the states.
    fn run(none: u64, states: [u64; STATES]) -> Run {
        let mut curve: Curve = vec![(0, 1), (0, none)];
        states.iter().for_each(|cycles| curve.extend([(0, 5000), (0, *cycles)]));
        Run { name: "nested", memory: [200, 800], mib: 48, curve, pages: [12_400, 3] }
    }

    #[test]
    fn each_state_has_its_intervals() {
        let set: Vec<_> = (0..=INTERVALS).filter_map(|over| Some((over, state_after(over)?))).collect();
        assert_eq!(set, [(4, 6), (6, 5), (8, 4), (10, 3), (12, 2), (14, 1), (16, 0)]);
        let cycles = [910, 820, 730, 640, 550, 460, 370, 190];
        let Run { mut curve, .. } = run(950, cycles);
        assert_eq!((curve.len(), states(&curve)), (INTERVALS, Some((950, cycles))));
        curve.pop();
        assert_eq!((states(&curve), states(&vec![(1, 0); INTERVALS])), (None, None));
    }

    #[test]
    fn a_run_is_judged_by_its_ends() {
        let of = |none, last| run(none, [900, 800, 700, 600, 500, 400, 300, last]);
        let holds = |run: &Run| judge(run).unwrap().map(|claim| claim.holds);
        assert_eq!(holds(&of(900, 200)), [true, true]);
        assert_eq!(holds(&of(1100, 250)), [false, true]);
        let less = judge(&of(1000, 250)).unwrap();
        assert_eq!(
            less[0].ours,
            "nested: 900 cycles of an access at E7, 250 at E0, 3.60 times the throughput; more with every step; if all hot pages are in place, 891 at E7"
        );
        // 250 = 1.25 · 200, and 1000 = 1.25 · 800.
        assert!(
            less[1].ours.ends_with(": 1.25 accesses to memory of 200 or 800 cycles, and 0 cycles of caches, walks and instructions in both")
                && !less[1].holds,
            "{}",
            less[1].ours
        );
        let [to_memory, rest, at_first] = parts(&of(900, 400), 900, 400);
        assert_eq!([to_memory * 6.0, rest * 3.0].map(f64::round), [5.0, 700.0]);
        assert!((at_first - 827.1).abs() < 0.1, "{at_first}");
        let not_gradual = run(900, [900, 800, 700, 600, 900, 400, 300, 200]);
        assert_eq!(holds(&not_gradual), [false, true]);
        assert!(judge(&Run { curve: Curve::new(), ..of(900, 200) }).is_err());
        let text = text("lab", 48, &[of(1000, 225)], &less);
        assert!(
            text.contains("nested                  0.90  1.00  1.12  1.29  1.50  1.80  2.25  3.00  4.00\n"),
            "{text}"
        );
        assert!(text.contains("shape  does not hold"));
        assert!(
            text.contains("\nnested: at E0 12400 pages are in fast memory, 3 hot ones are not\n"),
            "{text}"
        );
    }

    #[test]
    fn a_machine_has_slower_slow_memory() {
        let cache = tempfile::tempdir().unwrap();
        let [fast, slow] = memory(super::super::LAB).unwrap();
        let path = with_slow(super::super::LAB, fast * M2 / 1000, cache.path()).unwrap();
        let m2 = memory(&path).unwrap();
        assert!(m2[0] == fast && m2[1] == fast * M2 / 1000 && m2[1] > slow, "{m2:?}");
    }
}
