//! Figure 70 of the memory-region thesis: how much programs slow down with slower memory. The lab machine's description says how long an
//! access takes; M1 and M2 are the thesis' (table 7): 2.5 and 5.2 times that of M0.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result, bail};

use super::{LAB, publish};
use crate::{
    cli::NestedPage,
    compare::plan::{Comparison, Request},
    project::Project,
    reproduce::{
        Part, ReproduceArgs, perform,
        verdict::{Claim, claim, claims_text},
    },
    ui::Ui,
};

pub const NAME: &str = "memory-fig70";
pub const SHOWS: &str = "slow-down of programs with slower memory";
/// The memories, and how many thousandths of M0's latency each has.
const MEMORIES: [(&str, u64); 3] = [("m0", 1000), ("m1", 2500), ("m2", 5200)];
/// Random accesses, a key-value store, canneal, sparse algebra, graphs, and programs that compute. The lines of `chase` fit a cache.
const WORKLOADS: &[&str] = &["gups", "store", "anneal", "spmv", "bfs", "chase", "matmul", "sha256"];
const QUICK: &[&str] = &["gups", "store", "matmul"];
/// How many times mcf's time the thesis has with M1 and M2.
const THESIS: [f64; 2] = [6.37, 15.31];

/// Runs it, and says whether the claims hold.
///
/// # Errors
/// A cell failed; the description of the lab machine says nothing of its memory.
pub fn run(args: &ReproduceArgs, project: &Project, ui: &Ui) -> Result<u8> {
    let lab = args.lab.as_deref().unwrap_or(LAB);
    let (description, _) = crate::lab::find(lab)?;
    let cache = project.cache("reproduce")?;
    let parts = MEMORIES.map(|(memory, milli)| part(args, lab, &description, &cache, memory, milli));
    let parts = perform(args, parts.into_iter().collect::<Result<_>>()?, project, ui)?;
    let slow_downs = slow_downs(&parts)?;
    publish(NAME, args, &text(lab, &slow_downs, &judge(&slow_downs)))?;
    Ok(0)
}

fn part(
    args: &ReproduceArgs,
    lab: &str,
    description: &str,
    cache: &Path,
    memory: &str,
    milli: u64,
) -> Result<(String, String, Comparison)> {
    let text = slower(description, milli).with_context(|| format!("{lab} has no [memory]"))?;
    let name = Path::new(lab).file_stem().and_then(|name| name.to_str()).unwrap_or(LAB);
    let path = cache.join(format!("{name}-{memory}.toml"));
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    let path = path.display().to_string();
    let (description, _) = crate::lab::find(&path)?;
    let names = if args.quick { QUICK } else { WORKLOADS };
    let workloads = match args.workloads.is_empty() {
        true => names.iter().map(|&name| name.to_owned()).collect(),
        false => args.workloads.clone(),
    };
    let request = Request {
        policies: vec!["nested".to_owned()],
        workloads,
        seeds: args.seeds,
        scale_milli: args.scale,
        is_quick: args.quick,
        sample_ms: crate::compare::plan::SAMPLE_MS,
        lab: path.clone(),
        nested_page: NestedPage::Small,
        huge_pages: false,
        lab_time: false,
        no_kit: args.no_kit,
        yes: args.yes,
        cell: None,
    };
    Ok((path, description, Comparison::new(request)?))
}

/// A description whose memory takes this many thousandths of the time.
fn slower(description: &str, milli: u64) -> Option<String> {
    let at = description.find("[memory]")?;
    let (before, memory) = description.split_at(at);
    let mut changed = 0;
    let line = |line: &str| match line.split_once(" = ") {
        Some((key @ ("local" | "remote" | "slow"), cycles)) if changed < 3 => {
            changed += 1;
            Some(format!("{key} = {}\n", cycles.trim().parse::<u64>().ok()? * milli / 1000))
        }
        _ => Some(format!("{line}\n")),
    };
    let memory: String = memory.lines().map(line).collect::<Option<_>>()?;
    (changed > 0).then(|| format!("{before}{memory}"))
}

/// Each workload, and its time with M1 and M2 in terms of that with M0.
fn slow_downs(parts: &[Part]) -> Result<Vec<(String, [f64; 2])>> {
    let [base, m1, m2] = parts else { bail!("some memories were not run") };
    let cycles = |part: &Part, workload: &str| {
        let rows = part.rows();
        rows.iter().find(|row| row.workload == workload).map(|row| row.median.cycles() as f64)
    };
    let of = |workload: &String| {
        let base = cycles(base, workload).filter(|cycles| *cycles > 0.0)?;
        Some((workload.clone(), [cycles(m1, workload)? / base, cycles(m2, workload)? / base]))
    };
    let all: Option<Vec<_>> = base.comparison.workloads().iter().map(of).collect();
    all.filter(|all| !all.is_empty()).context("a workload has no cycles, and nothing is claimed")
}

fn judge(slow_downs: &[(String, [f64; 2])]) -> Vec<Claim> {
    let by_m2 = |a: &&(String, [f64; 2]), b: &&(String, [f64; 2])| a.1[1].total_cmp(&b.1[1]);
    let (Some(most), Some(least)) = (slow_downs.iter().max_by(by_m2), slow_downs.iter().min_by(by_m2)) else {
        return Vec::new();
    };
    let say = |(name, [m1, m2]): &(String, [f64; 2])| format!("{name} {m1:.2} and {m2:.2} times");
    let is_ordered = slow_downs.iter().all(|(_, [m1, m2])| *m1 >= 0.99 && *m2 >= *m1 - 0.01);
    let differ = is_ordered && most.1[1] >= 3.0 && least.1[1] <= 1.5;
    vec![
        claim(
            "Several programs suffer severely from slower memory, others hardly; M2 costs more than M1",
            format!("with M1 and M2 {}, {}", say(most), say(least)),
            differ,
        ),
        claim(
            "mcf takes 6.4 times as long with M1, 15.3 times with M2, whose latency is 2.5 and 5.2 times M0's; bandwidth falls, too",
            format!("most: {}; only the latency is other here", say(most)),
            most.1[0] >= THESIS[0] && most.1[1] >= THESIS[1],
        ),
    ]
}

fn text(lab: &str, slow_downs: &[(String, [f64; 2])], claims: &[Claim]) -> String {
    let mut text = format!(
        "{lab}, nested paging, cycles of the work to those with M0\n\n{:<14}    M0    M1    M2\n",
        ""
    );
    for (name, [m1, m2]) in slow_downs {
        let _ = writeln!(text, "{name:<14}  1.00  {m1:>4.2}  {m2:>4.2}");
    }
    text + &claims_text(claims, "modelled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_slower_in_its_memory_alone() {
        let (text, _) = crate::lab::find(LAB).unwrap();
        assert_eq!(slower(&text, 1000).as_deref(), Some(text.as_str()));
        let slow = slower(&text, 2500).unwrap();
        let changed: Vec<_> = text.lines().zip(slow.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!(changed.len(), 3, "{changed:?}");
        assert!(changed.iter().any(|(was, is)| (*was, *is) == ("local = 228", "local = 570")));
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        fs::write(file.path(), slow).unwrap();
        crate::lab::find(&file.path().display().to_string()).unwrap();
        assert_eq!(slower("version = 1\n", 2500), None);
    }

    #[test]
    fn programs_must_differ_and_slower_memory_must_cost_more() {
        let of = |all: &[(&str, [f64; 2])]| {
            let all: Vec<_> = all.iter().map(|(name, times)| ((*name).to_owned(), *times)).collect();
            judge(&all).iter().map(|claim| claim.holds).collect::<Vec<_>>()
        };
        assert_eq!(of(&[("chase", [2.2, 4.0]), ("matmul", [1.0, 1.01])]), [true, false]);
        assert_eq!(of(&[("chase", [6.5, 16.0]), ("matmul", [1.0, 1.01])]), [true, true]);
        assert_eq!(of(&[("chase", [2.2, 4.0]), ("matmul", [1.9, 3.01])]), [false, false]);
        assert_eq!(of(&[("chase", [4.0, 3.2]), ("matmul", [1.0, 1.0])]), [false, false]);
        assert!(of(&[]).is_empty());
    }
}
