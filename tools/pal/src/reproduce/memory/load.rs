//! Figures 67, 68, 71 and 73 of the memory-region thesis, of memlat as a store whose size changes. Samples of the run have the VM's
//! working set, the histogram of its access histories and its share of the fast memory.

use std::fmt::Write;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::{Bench, Claim, Record, ReproduceArgs, Setting, listen, publish};
use crate::{
    project::Project,
    reproduce::verdict::{claim, claims_text},
    ui::Ui,
};

pub const SIZES: &str = "memory-fig67";
pub const SIZES_SHOW: &str = "working sets over time (and figure 71)";
/// The same run under the name of the other figure that it is.
pub const SIZES_TOO: &str = "memory-fig71";
pub const SIZES_TOO_SHOWS: &str = "the same as memory-fig67: one run is both figures";
pub const HISTOGRAM: &str = "memory-fig68";
pub const HISTOGRAM_SHOWS: &str = "pages by the ones of their access histories";
pub const SAVING: &str = "memory-fig73";
pub const SAVING_SHOWS: &str = "fast memory that E-states save at equal performance";
/// Fast memory in MiB; the base of figure 73 has half of it, E4.
const FAST: u64 = 128;
/// Sizes of the store in turn, in MiB: the last cache has 12.
const LOAD: &[u64] = &[24, 24, 40, 24, 16, 48];
const QUICK: &[u64] = &[24, 40, 24];
/// Ones of 32 from which on a page is hot, and up to which it is cold: a program that uses it now and then.
const HOT: usize = 22;
const COLD: usize = 8;
/// Pages of a MiB.
const PAGES: f64 = 256.0;
/// Samples of accesses of which a working set is made, in nanoseconds of the VM's time.
const HISTORY_NS: u64 = 3_200_000_000;

/// A moment of the run.
#[derive(Clone, Debug, Default, PartialEq)]
struct Moment {
    /// Nanoseconds since the one before, and since the VM's start.
    span_ns: u64,
    time_ns: u64,
    /// In frames: what the VM may have and its working set.
    share: f64,
    working_set: f64,
    histogram: Vec<u64>,
}

/// What a run has brought.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    accesses: u64,
    /// Cycles of an access, by the sizes in turn.
    cycles: Vec<u64>,
    moments: Vec<Moment>,
}

impl Outcome {
    /// # Errors
    /// memlat has not found its memory as it left it, or has said too little.
    fn new(said: &str, samples: &str, sizes: usize) -> Result<Outcome> {
        let lines = || said.lines().filter_map(|line| line.trim().strip_prefix("memlat: "));
        let cycles = |line: &str| line.strip_suffix(" cycles")?.split_once(" MiB: ")?.1.parse().ok();
        let accesses = lines().find_map(|line| line.strip_suffix(" accesses, right")?.parse().ok());
        let cycles: Vec<u64> = lines().filter_map(cycles).collect();
        let moments: Vec<Moment> = samples.lines().filter_map(moment).collect();
        match accesses {
            Some(accesses) if cycles.len() == sizes && !moments.is_empty() => {
                Ok(Outcome { accesses, cycles, moments })
            }
            _ => bail!("memlat or the samples say too little, and nothing is claimed: {said}"),
        }
    }

    /// The share that it had on average, in frames.
    fn mean_share(&self) -> f64 {
        let time: u64 = self.moments.iter().map(|moment| moment.span_ns).sum();
        let sum: f64 = self.moments.iter().map(|moment| moment.share * moment.span_ns as f64).sum();
        sum / time.max(1) as f64
    }

    /// The working sets at the ends of the stretches in which the store had one size, in MiB.
    fn working_sets(&self, ms: u64) -> Vec<f64> {
        let begin = self.begin_ns(ms);
        let at_end = |n: usize| {
            let end = begin + (n as u64 + 1) * ms * 1_000_000;
            let before = self.moments.iter().rev().find(|moment| moment.time_ns <= end);
            before.map_or(0.0, |moment| moment.working_set / PAGES)
        };
        (0..self.cycles.len()).map(at_end).collect()
    }

    /// When memlat began, by the VM's time: its run ends with the last size.
    fn begin_ns(&self, ms: u64) -> u64 {
        let end = self.moments.last().map_or(0, |moment| moment.time_ns);
        end.saturating_sub(self.cycles.len() as u64 * ms * 1_000_000)
    }
}

fn moment(line: &str) -> Option<Moment> {
    let line: Value = serde_json::from_str(line).ok()?;
    let number = |key: &str| line.get(key)?.as_u64();
    (line.get("t")? == "tiers").then_some(())?;
    Some(Moment {
        span_ns: number("span_ns")?,
        time_ns: number("time_ns")?,
        share: number("share")? as f64,
        working_set: number("working_set")? as f64,
        histogram: line.get("histogram")?.as_array()?.iter().filter_map(Value::as_u64).collect(),
    })
}

/// Milliseconds of each size, and the sizes.
fn load(args: &ReproduceArgs) -> (u64, &'static [u64]) {
    if args.quick { (5000, QUICK) } else { (10_000, LOAD) }
}

/// Runs the store with nested paging, with each of these ways to share, and MiB of fast memory.
fn measure<const N: usize>(
    name: &str,
    ways: [(&'static str, u64); N],
    args: &ReproduceArgs,
    project: &Project,
    ui: &Ui,
) -> Result<(String, [Outcome; N])> {
    let (bench, mut kept) = Bench::new(name, args, project, ui)?;
    let (ms, sizes) = load(args);
    let words: Vec<String> = sizes.iter().map(u64::to_string).collect();
    let memlat = format!("load {ms} {}", words.join(" "));
    let session = |(sharing, fast)| {
        let name = format!("{sharing}, {fast} MiB of fast memory");
        bench.session(&name, &bench.lab, Setting::nested(sharing, fast), &memlat, "")
    };
    let sessions = ways.into_iter().map(session).collect::<Result<Vec<_>>>()?;
    let records = kept.each(name, &sessions, 1, ui, |session| bench.perform(session, None, listen))?;
    let outcome = |record: &Record| Outcome::new(&record.said, &record.samples, sizes.len());
    let outcomes = records.iter().map(outcome).collect::<Result<Vec<_>>>()?;
    Ok((bench.lab, outcomes.try_into().map_err(|_| anyhow!("a run is missing"))?))
}

/// Figures 67 and 71.
///
/// # Errors
/// As for the table.
pub fn run_sizes(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (lab, [outcome]) = measure(SIZES, [("shares", FAST)], args, project, ui)?;
    let (ms, sizes) = load(args);
    let mut text =
        format!("{lab}, nested, a store of {sizes:?} MiB for {ms} ms each; working set in MiB\n\n");
    let begin = outcome.begin_ns(ms);
    for moment in outcome.moments.iter().filter(|moment| moment.time_ns >= begin).step_by(5) {
        let mib = moment.working_set / PAGES;
        let bar = "#".repeat(mib.round() as usize);
        let _ = writeln!(text, "{:>5.1} s {mib:>5.1} {bar}", (moment.time_ns - begin) as f64 / 1e9);
    }
    publish(
        SIZES,
        args,
        &(text + &claims_text(&[judge_sizes(sizes, &outcome.working_sets(ms))], "modelled")),
    )?;
    Ok(0)
}

fn judge_sizes(sizes: &[u64], sets: &[f64]) -> Claim {
    // The kernel's own pages, and those that only a longer history forgets.
    let follows = sizes.iter().zip(sets).all(|(size, set)| (*size as f64..=*size as f64 + 8.0).contains(set));
    let sets: Vec<String> = sets.iter().map(|set| format!("{set:.1}")).collect();
    claim(
        "Histories of accessed bits show working sets that change over time with what the program does",
        format!("sizes of {sizes:?} MiB, working sets of {} MiB at the end of each", sets.join(", ")),
        follows && sets.len() == sizes.len(),
    )
}

/// Figure 68.
///
/// # Errors
/// As for the table.
pub fn run_histogram(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (lab, [outcome]) = measure(HISTOGRAM, [("shares", FAST)], args, project, ui)?;
    let (ms, sizes) = load(args);
    // When a whole history is of the first size.
    let at = outcome.begin_ns(ms) + HISTORY_NS;
    let moment = outcome.moments.iter().find(|moment| moment.time_ns >= at);
    let histogram = moment.map(|moment| moment.histogram.clone()).unwrap_or_default();
    let mut text =
        format!("{lab}, nested, a store of {} MiB; pages by ones of 32 samples (31: or 32)\n\n", sizes[0]);
    for (ones, pages) in histogram.iter().enumerate().filter(|(_, pages)| **pages > 0) {
        let _ = writeln!(text, "{ones:>3} {pages:>6} {}", "#".repeat((*pages as usize).div_ceil(128)));
    }
    publish(HISTOGRAM, args, &(text + &claims_text(&[judge_histogram(&histogram)], "modelled")))?;
    Ok(0)
}

fn judge_histogram(histogram: &[u64]) -> Claim {
    let of = |ones: std::ops::Range<usize>| histogram.iter().take(ones.end).skip(ones.start).sum::<u64>();
    let (cold, between, hot) = (of(0..COLD + 1), of(COLD + 1..HOT), of(HOT..32));
    claim(
        "Hot pages are at the right end of the histogram and cold ones at the left, some between; 22 ones tell them apart",
        format!("{cold} pages of up to {COLD} ones, {hot} of {HOT} or more, {between} between"),
        hot > 0 && cold > 0 && between * 5 <= hot + cold,
    )
}

/// Figure 73.
///
/// # Errors
/// As for the table.
pub fn run_saving(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    // Without E-states all of the machine's fast memory is the VM's: half of what E-states divide.
    let ways = [("shares", FAST / 2), ("estate-qos", FAST)];
    let (lab, [base, states]) = measure(SAVING, ways, args, project, ui)?;
    let (ms, sizes) = load(args);
    let mut text = format!("{lab}, nested, a store of {sizes:?} MiB for {ms} ms each\n\n{:<24}", "");
    let _ = writeln!(text, "{:>12} {:>18}  cycles of an access by size", "accesses", "fast memory (MiB)");
    for (name, outcome) in [("half of it, fixed (E4)", &base), ("E-states by QoS", &states)] {
        let cycles: Vec<String> = outcome.cycles.iter().map(u64::to_string).collect();
        let share = outcome.mean_share() / PAGES;
        let _ = writeln!(text, "{name:<24}{:>12} {share:>18.1}  {}", outcome.accesses, cycles.join(", "));
    }
    publish(SAVING, args, &(text + &claims_text(&[judge_saving(&base, &states)], "modelled")))?;
    Ok(0)
}

fn judge_saving(base: &Outcome, states: &Outcome) -> Claim {
    let work = states.accesses as f64 / base.accesses.max(1) as f64;
    let memory = states.mean_share() / base.mean_share().max(1.0);
    claim(
        "E-states by QoS take 30 % less fast memory than a fixed half of it, at comparable performance",
        format!(
            "{:.0} % less fast memory on average, {:.0} % of the accesses",
            100.0 * (1.0 - memory),
            100.0 * work
        ),
        memory <= 0.70 && work >= 0.95,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str =
        "memlat: 24 MiB: 300 cycles\r\nmemlat: 40 MiB: 350 cycles\nmemlat: 5000 accesses, right\n";

    fn samples(shares: &[u64]) -> String {
        let line = |(n, share): (usize, &u64)| {
            format!(
                "{{\"t\":\"tiers\",\"span_ns\":100,\"time_ns\":{},\"share\":{share},\"working_set\":{},\"histogram\":[0,3,0]}}\n{{\"t\":\"sample\"}}\n",
                (n + 1) * 1_000_000,
                512 * (n + 1)
            )
        };
        shares.iter().enumerate().map(line).collect()
    }

    #[test]
    fn a_run_is_read_and_its_share_averaged() {
        let outcome = Outcome::new(SAID, &samples(&[100, 300]), 2).unwrap();
        assert_eq!((outcome.accesses, &outcome.cycles[..]), (5000, &[300, 350][..]));
        assert_eq!((outcome.moments.len(), outcome.mean_share()), (2, 200.0));
        assert_eq!(outcome.moments[0].histogram, [0, 3, 0]);
        assert_eq!(outcome.working_sets(1), [2.0, 4.0]);
        for (said, samples, sizes) in [
            ("", samples(&[1]), 2),
            (SAID, String::new(), 2),
            (SAID, samples(&[1]), 3),
            ("memlat: 5", samples(&[1]), 0),
        ] {
            assert!(Outcome::new(said, &samples, sizes).is_err(), "{said}");
        }
    }

    #[test]
    fn saving_counts_only_at_equal_performance() {
        let run = |accesses, share| Outcome {
            accesses,
            moments: vec![Moment { span_ns: 10, share, ..Moment::default() }],
            ..Outcome::default()
        };
        let holds = |accesses, share| judge_saving(&run(1000, 100.0), &run(accesses, share)).holds;
        assert!(holds(950, 70.0) && !holds(940, 70.0) && !holds(1000, 72.0));
        assert!(
            judge_saving(&run(1000, 100.0), &run(960, 66.0))
                .ours
                .starts_with("34 % less fast memory on average, 96 %")
        );
    }

    #[test]
    fn working_sets_follow_sizes_and_histograms_have_two_ends() {
        assert!(judge_sizes(&[24, 40], &[26.0, 43.5]).holds);
        assert!(!judge_sizes(&[24, 40], &[26.0, 39.0]).holds && !judge_sizes(&[24, 40], &[26.0]).holds);
        assert!(!judge_sizes(&[24, 40], &[33.0, 43.0]).holds);
        let mut histogram = [0; 32];
        (histogram[1], histogram[31]) = (100, 200);
        assert!(judge_histogram(&histogram).holds);
        histogram[15] = 61;
        assert!(!judge_histogram(&histogram).holds && !judge_histogram(&[]).holds);
    }
}
