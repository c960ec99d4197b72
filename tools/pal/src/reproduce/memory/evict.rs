//! What policies of page replacement change in fast memory, beyond the papers: memlat with two stores that are used by turns, of which one
//! fits the fast memory, and with one that is larger than it and always in use.

use std::fmt::Write;

use abi::tiers::Eviction;
use anyhow::{Context, Result};
use serde_json::Value;

use super::{Bench, Claim, Record, ReproduceArgs, Setting, listen, publish};
use crate::{
    project::Project,
    reproduce::verdict::{claim, claims_text},
    ui::Ui,
};

pub const NAME: &str = "memory-evict";
pub const SHOWS: &str = "latency of memory by what says which pages leave the fast tier";
/// Fast memory in MiB; the last cache has 12.
const FAST: u64 = 28;
/// Without fast memory.
const NONE: &str = "none";
const LAZY: &str = "lazy";
const QUICK: [&str; 2] = [LAZY, "clock"];
/// A latency that is the same.
const SAME: f64 = 0.02;
/// What the best policy gains at least where hot pages change.
const GAIN: f64 = 0.05;

/// How the program uses its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// Two stores of these MiB by turns: hot pages take 2.2 s to be known, and cold ones 3 s.
    Turns(u64),
    /// One store of these MiB.
    Steady(u64),
}

const PATTERNS: [Pattern; 2] = [Pattern::Turns(24), Pattern::Steady(40)];

impl Pattern {
    /// Milliseconds of a stretch, and stretches of a run. The first one is not counted: pages come for the first time.
    const fn stretches(self, quick: bool) -> (u64, u64) {
        match (self, quick) {
            (Pattern::Turns(_), true) => (4500, 2),
            (Pattern::Turns(_), false) => (4500, 3),
            (Pattern::Steady(_), _) => (3000, 2),
        }
    }

    fn memlat(self, quick: bool) -> String {
        let (ms, count) = self.stretches(quick);
        match self {
            Pattern::Turns(mib) => format!("turns {ms} {count} {mib} 2"),
            Pattern::Steady(mib) => format!("turns {ms} {count} {mib} 1"),
        }
    }

    fn name(self, quick: bool) -> String {
        let (ms, count) = self.stretches(quick);
        match self {
            Pattern::Turns(mib) => format!("two stores of {mib} MiB by turns, {count} times {ms} ms"),
            Pattern::Steady(mib) => format!("a store of {mib} MiB for {} ms", ms * count),
        }
    }
}

/// What came of a policy.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outcome {
    policy: &'static str,
    /// Cycles of an access, after the first stretch.
    cycles: f64,
    /// Pages that moved, in all of the run.
    moved: [u64; 2],
    /// Of those that moved out, the ones that were not copied; and those that the policy has named.
    discarded: u64,
    evictions: u64,
}

impl Outcome {
    fn new(policy: &'static str, record: &Record, stretches: u64) -> Option<Outcome> {
        let cycles =
            |line: &str| line.trim().strip_suffix(" cycles")?.split_once(" MiB: ")?.1.parse::<f64>().ok();
        let all: Vec<f64> = record.said.lines().filter_map(cycles).collect();
        let (_, counted) = all.split_first().filter(|_| all.len() as u64 == stretches)?;
        // Stretches are equally long, so that those with fast accesses have more of them.
        let per_cycle: f64 = counted.iter().map(|cycles| 1.0 / cycles.max(1.0)).sum();
        let count = |key: &str| record.tiers.get(key).and_then(Value::as_u64).unwrap_or(0);
        (!counted.is_empty()).then(|| Outcome {
            policy,
            cycles: counted.len() as f64 / per_cycle,
            moved: [count("moved_in"), count("moved_out")],
            discarded: count("discarded"),
            evictions: count("evictions"),
        })
    }
}

/// Runs it, and says whether the claims hold.
///
/// # Errors
/// As for the table.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let (bench, mut kept) = Bench::new(NAME, args, project, ui)?;
    let policies = if args.quick { QUICK.to_vec() } else { [&[NONE], &Eviction::WORDS[..]].concat() };
    let all = PATTERNS.iter().flat_map(|pattern| policies.iter().map(move |policy| (*pattern, *policy)));
    let all: Vec<_> = all.collect();
    let session = |(pattern, policy): &(Pattern, &'static str)| {
        let (sharing, evict) = if *policy == NONE { ("static", LAZY) } else { ("shares", *policy) };
        let setting = Setting { evict, ..Setting::nested(sharing, FAST) };
        let name = format!("{}, {policy}", pattern.name(args.quick));
        bench.session(&name, &bench.lab, setting, &pattern.memlat(args.quick), "")
    };
    let sessions = all.iter().map(session).collect::<Result<Vec<_>>>()?;
    let records = kept.each(NAME, &sessions, 1, ui, |session| bench.perform(session, None, listen))?;
    let mut text = format!("{}, nested, {FAST} MiB of fast memory, cycles of an access\n", bench.lab);
    let mut claims = Vec::new();
    for pattern in PATTERNS {
        let of_this = all.iter().zip(&records).filter(|((of, _), _)| *of == pattern);
        let outcome = |((_, policy), record): (&(Pattern, &'static str), &Record)| -> Result<Outcome> {
            Outcome::new(policy, record, pattern.stretches(args.quick).1)
                .with_context(|| format!("{policy}: memlat says too little, and nothing is claimed"))
        };
        let outcomes = of_this.map(outcome).collect::<Result<Vec<_>>>()?;
        text += &table(&pattern.name(args.quick), &outcomes);
        claims.extend(judge(pattern, &outcomes));
    }
    publish(NAME, args, &(text + &claims_text(&claims, "modelled")))?;
    Ok(0)
}

fn table(name: &str, outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "\n{name}\n{:<11} {:>6} {:>9} {:>9} {:>9} {:>9}\n",
        "", "cycles", "moved in", "moved out", "discarded", "evictions"
    );
    for Outcome { policy, cycles, moved: [moved_in, out], discarded, evictions } in outcomes {
        let _ =
            writeln!(text, "{policy:<11} {cycles:>6.0} {moved_in:>9} {out:>9} {discarded:>9} {evictions:>9}");
    }
    text
}

fn judge(pattern: Pattern, outcomes: &[Outcome]) -> Option<Claim> {
    let lazy = outcomes.iter().find(|outcome| outcome.policy == LAZY)?;
    let policies = || outcomes.iter().filter(|outcome| ![NONE, LAZY].contains(&outcome.policy));
    let by_cycles = |a: &&Outcome, b: &&Outcome| a.cycles.total_cmp(&b.cycles);
    let (best, worst) = (policies().min_by(by_cycles)?, policies().max_by(by_cycles)?);
    let ours = format!(
        "lazy {:.0} cycles, {} {:.0}, {} {:.0}",
        lazy.cycles, best.policy, best.cycles, worst.policy, worst.cycles
    );
    Some(match pattern {
        Pattern::Turns(_) => claim(
            "Our goal: where hot pages change by turns, the best policy takes 5 % less than lazy, and none more",
            ours,
            best.cycles <= lazy.cycles * (1.0 - GAIN) && worst.cycles <= lazy.cycles * (1.0 + SAME),
        ),
        Pattern::Steady(_) => claim(
            "Our goal: where more is hot than fits, lazy moves fewest pages, and no policy takes less",
            format!("{ours}; lazy moved {} pages in, they {} at least", lazy.moved[0], least(policies())),
            best.cycles >= lazy.cycles * (1.0 - SAME)
                && policies().all(|other| other.moved[0] > lazy.moved[0]),
        ),
    })
}

fn least<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> u64 {
    outcomes.map(|outcome| outcome.moved[0]).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outcome(policy: &'static str, cycles: f64, moved_in: u64) -> Outcome {
        Outcome { policy, cycles, moved: [moved_in, moved_in / 2], discarded: 0, evictions: 0 }
    }

    #[test]
    fn the_first_stretch_is_not_counted() {
        let said = "memlat: 24 MiB: 900 cycles\r\nmemlat: 24 MiB: 200 cycles\nmemlat: 24 MiB: 600 cycles\nmemlat: 9 accesses, right\n";
        let tiers = json!({ "moved_in": 7, "moved_out": 5, "discarded": 2, "evictions": 4 });
        let record = Record { said: said.into(), samples: String::new(), tiers, ..Record::default() };
        let expected = Outcome { policy: LAZY, cycles: 300.0, moved: [7, 5], discarded: 2, evictions: 4 };
        assert_eq!(Outcome::new(LAZY, &record, 3), Some(expected));
        assert_eq!(Outcome::new(LAZY, &record, 4), None);
        assert!(
            table("x", &[expected])
                .contains("\nlazy           300         7         5         2         4\n")
        );
        let one = Record { said: "memlat: 24 MiB: 900 cycles\n".into(), ..Record::default() };
        assert_eq!(Outcome::new(LAZY, &one, 1), None);
    }

    #[test]
    fn policies_gain_by_turns_and_lazy_where_all_is_hot() {
        let holds = |pattern, all: [f64; 3]| {
            let [lazy, one, two] = all;
            let outcomes = [
                outcome(NONE, 900.0, 0),
                outcome(LAZY, lazy, 10),
                outcome("apr", one, 50),
                outcome("lru", two, 60),
            ];
            judge(pattern, &outcomes).unwrap().holds
        };
        let [turns, steady] = PATTERNS;
        assert!(holds(turns, [300.0, 280.0, 300.0]) && !holds(turns, [300.0, 290.0, 300.0]));
        assert!(!holds(turns, [300.0, 250.0, 310.0]), "one takes more");
        assert!(holds(steady, [300.0, 310.0, 299.0]) && !holds(steady, [300.0, 290.0, 310.0]));
        let moves_less = [outcome(LAZY, 300.0, 10), outcome("apr", 310.0, 10)];
        assert!(!judge(steady, &moves_less).unwrap().holds && judge(steady, &[]).is_none());
    }

    #[test]
    fn what_memlat_is_told() {
        assert_eq!(PATTERNS[0].memlat(false), "turns 4500 3 24 2");
        assert_eq!(PATTERNS[1].memlat(true), "turns 3000 2 40 1");
        assert!(QUICK.iter().all(|policy| Eviction::WORDS.contains(policy)));
    }
}
