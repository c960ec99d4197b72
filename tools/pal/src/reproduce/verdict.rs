//! What a paper claims of a figure, what came out here, and whether the claim's shape holds: pure, of a table's rows.

mod agile;
mod reasons;

use workloads::Kind;

use super::figures::{ASP, NESTED, POOLED, SHADOW, Subject};
use crate::{
    cli::Mode,
    compare::{
        cell::Cell,
        learn::{PROFILE, RANDOM},
        plan::DAV2M,
        results::Row,
        table::percent,
    },
};

/// A claim and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// What the paper says.
    pub paper: String,
    /// What came out here, with the numbers.
    pub ours: String,
    /// Its shape holds here.
    pub holds: bool,
}

/// A claim.
pub fn claim(paper: &str, ours: String, holds: bool) -> Claim {
    Claim { paper: paper.to_owned(), ours, holds }
}

/// The claims as a person reads them. `how`: what the numbers are, `modelled` or `simulated`.
pub fn claims_text(claims: &[Claim], how: &str) -> String {
    let line = |Claim { paper, ours, holds }: &Claim| {
        let shape = if *holds { "holds" } else { "does not hold" };
        format!("\npaper  {paper}\nours   {ours} ({how})\nshape  {shape}\n")
    };
    claims.iter().map(line).collect()
}

/// The claims of a figure on one machine. `rows` has a row for each workload and policy of the figure, `cells` what was run for them
/// besides, too.
///
/// # Errors
/// What is missing: nothing is said of what was not run.
pub fn claims(subject: Subject, rows: &[Row], cells: &[Cell]) -> Result<Vec<Claim>, String> {
    let rows = Rows(rows);
    match subject {
        Subject::Dav2mTime => dav2m_time(&rows),
        Subject::Dav2mChanges => dav2m_changes(&rows),
        Subject::Dav2mShares => shares(
            &rows,
            DAV2M,
            0.5,
            [
                "Of the workloads that are best with shadow paging, most of the time is spent in it",
                "of those that are best with nested paging, most of it in that",
            ],
        ),
        Subject::DspTime => dsp_time(&rows),
        Subject::DspShares => shares(
            &rows,
            POOLED,
            0.9,
            [
                "Most programs are in one mode almost always: TLB-bound ones in shadow paging",
                "paging-bound ones in nested paging",
            ],
        ),
        Subject::DspCost => dsp_cost(&rows, cells),
        Subject::AgileRefs => agile::refs(&rows),
        Subject::AgileTime => agile::time(&rows, &agile::SMALL_PAGES),
        Subject::AgileTimeHuge => agile::time(&rows, &agile::HUGE_PAGES),
    }
}

/// Of goals that are missed: why, by what was counted. A line of Markdown for each.
///
/// # Errors
/// What is missing, as with [`claims`].
pub fn reasons(subject: Subject, rows: &[Row]) -> Result<Vec<String>, String> {
    let rows = Rows(rows);
    match subject {
        Subject::AgileRefs => reasons::refs(&rows),
        Subject::AgileTime => reasons::time(&rows, &agile::SMALL_PAGES),
        Subject::AgileTimeHuge => reasons::time(&rows, &agile::HUGE_PAGES),
        _ => Ok(Vec::new()),
    }
}

/// The rows, by workload and policy.
struct Rows<'a>(&'a [Row<'a>]);

impl<'a> Rows<'a> {
    fn workloads(&self) -> Vec<&'a str> {
        let mut all: Vec<&str> = self.0.iter().map(|row| row.workload).collect();
        all.dedup();
        all
    }

    fn of(&self, workload: &str, policy: &str) -> Result<&'a Row<'a>, String> {
        let row = self.0.iter().find(|row| row.workload == workload && row.policy == policy);
        row.ok_or_else(|| format!("{workload} was not run with {policy}"))
    }

    /// Modelled cycles.
    fn cycles(&self, workload: &str, policy: &str) -> Result<f64, String> {
        Ok(self.of(workload, policy)?.median.cycles().max(1) as f64)
    }

    /// The time of one policy relative to another's.
    fn ratio(&self, workload: &str, policy: &str, other: &str) -> Result<f64, String> {
        Ok(self.cycles(workload, policy)? / self.cycles(workload, other)?)
    }

    /// The time relative to the better static mode.
    fn to_better(&self, workload: &str, policy: &str) -> Result<f64, String> {
        Ok(self.ratio(workload, policy, NESTED)?.max(self.ratio(workload, policy, SHADOW)?))
    }

    /// The geometric mean over all workloads.
    fn mean(&self, of: impl Fn(&str) -> Result<f64, String>) -> Result<f64, String> {
        let workloads = self.workloads();
        let logs =
            workloads.iter().map(|workload| Ok(of(workload)?.ln())).collect::<Result<Vec<_>, String>>()?;
        if logs.is_empty() {
            return Err("nothing was run".into());
        }
        Ok((logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }
}

fn kind(workload: &str) -> Option<Kind> {
    workloads::find(workload).map(|workload| workload.kind)
}

/// `chase +0.3 %, gups −2.0 %`, and the largest.
fn listed(workloads: &[&str], of: impl Fn(&str) -> Result<f64, String>) -> Result<(String, f64), String> {
    let mut words = Vec::new();
    let mut most = f64::MIN;
    for workload in workloads {
        let value = of(workload)?;
        most = most.max(value);
        words.push(format!("{workload} {}", percent(Some(value))));
    }
    if words.is_empty() { Err("nothing was run".into()) } else { Ok((words.join(", "), most)) }
}

fn dav2m_time(rows: &Rows) -> Result<Vec<Claim>, String> {
    let workloads = rows.workloads();
    let (words, worst) = listed(&workloads, |workload| rows.to_better(workload, DAV2M))?;
    let paper = "DAV²M takes at most 1 % longer than the better static mode, on each workload";
    let mut claims = vec![claim(paper, format!("to the better static mode: {words}"), worst <= 1.01)];
    let differs = |workload: &&&str| kind(workload) == Some(Kind::Phases);
    let phases: Vec<&str> = workloads.iter().filter(differs).copied().collect();
    if !phases.is_empty() {
        let (words, worst) = listed(&phases, |workload| rows.to_better(workload, DAV2M))?;
        let paper = "Where phases change sides the cost of changes is made up for: it is as good as the better static mode, or ahead";
        claims.push(claim(paper, format!("with phases: {words}"), worst <= 1.0));
    }
    Ok(claims)
}

fn dav2m_changes(rows: &Rows) -> Result<Vec<Claim>, String> {
    /// Of 403.gcc, which had the most.
    const MOST: u64 = 13;
    let workloads = rows.workloads();
    let mut words = Vec::new();
    let (mut most, mut most_indifferent, mut indifferent) = (0, 0, Vec::new());
    for workload in &workloads {
        let changes = rows.of(workload, DAV2M)?.median.changes;
        words.push(format!("{workload} {changes}"));
        most = most.max(changes);
        if kind(workload) == Some(Kind::Indifferent) {
            indifferent.push(format!("{workload} {changes}"));
            most_indifferent = most_indifferent.max(changes);
        }
    }
    if words.is_empty() {
        return Err("nothing was run".into());
    }
    let mut claims =
        vec![claim("At most 13 changes on any workload (403.gcc)", words.join(", "), most <= MOST)];
    if !indifferent.is_empty() {
        let paper = "At most one change where neither mode is better";
        claims.push(claim(paper, indifferent.join(", "), most_indifferent <= 1));
    }
    Ok(claims)
}

/// The share of one mode on the workloads that are best in it.
fn shares(rows: &Rows, policy: &str, least: f64, papers: [&str; 2]) -> Result<Vec<Claim>, String> {
    let mut claims = Vec::new();
    for (paper, of, mode) in [(papers[0], Kind::Tlb, SHADOW), (papers[1], Kind::Paging, NESTED)] {
        let mut words = Vec::new();
        let mut holds = true;
        for workload in rows.workloads().into_iter().filter(|workload| kind(workload) == Some(of)) {
            let shadow = rows.of(workload, policy)?.median.shadow_share();
            let share = if mode == SHADOW { shadow } else { 1.0 - shadow };
            holds &= share >= least;
            words.push(format!("{workload} {:.0} %", 100.0 * share));
        }
        if !words.is_empty() {
            claims.push(claim(paper, format!("{mode}: {}", words.join(", ")), holds));
        }
    }
    if claims.is_empty() { Err("no TLB-bound or paging-bound workload was run".into()) } else { Ok(claims) }
}

fn dsp_time(rows: &Rows) -> Result<Vec<Claim>, String> {
    let to_nested = |policy| move |workload: &str| rows.ratio(workload, policy, NESTED);
    let pooled = rows.mean(to_nested(POOLED))?;
    let asp = rows.mean(to_nested(ASP))?;
    let workloads = rows.workloads();
    let (words, worst) = listed(&workloads, |workload| rows.to_better(workload, POOLED))?;
    let to_worse =
        |workload: &str| Ok(rows.ratio(workload, POOLED, NESTED)?.min(rows.ratio(workload, POOLED, SHADOW)?));
    let best = workloads.iter().map(|workload| to_worse(workload)).collect::<Result<Vec<f64>, String>>()?;
    let best = best.into_iter().fold(f64::MAX, f64::min);
    Ok(vec![
        claim(
            "One pooled DSP-OFFSET model is 1.2 % faster than always nested in the mean (integer 1.4 %, numerical 1.0 %)",
            format!("{} in the mean", percent(Some(pooled))),
            pooled <= 1.0 / 1.012,
        ),
        claim(
            "It is as good as ASP-SVM, which takes far more profiling (1.2 % and 1.3 %)",
            format!("DSP-OFFSET {}, ASP-SVM {}", percent(Some(pooled)), percent(Some(asp))),
            pooled <= asp * 1.01,
        ),
        claim(
            "It is hardly worse than the better static mode anywhere (2.1 % at worst)",
            format!("to the better static mode: {words}"),
            worst <= 1.021,
        ),
        claim(
            "Against the worse static mode it gains up to 44 %",
            format!("{} at best", percent(Some(best))),
            best <= 1.0 / 1.44,
        ),
    ])
}

fn dsp_cost(rows: &Rows, cells: &[Cell]) -> Result<Vec<Claim>, String> {
    let (mut random, mut profiled, mut enumerated, mut worse, mut runs) = (0.0, 0.0, 0.0, 0.0, Vec::new());
    for workload in rows.workloads() {
        let [nested, shadow] = [rows.cycles(workload, NESTED)?, rows.cycles(workload, SHADOW)?];
        random += rows.cycles(workload, RANDOM)?;
        worse += nested.max(shadow);
        let profile = cells.iter().find(|cell| cell.workload == workload && cell.policy == PROFILE);
        let profile = profile.ok_or_else(|| format!("{workload} was not profiled by chance"))?;
        profiled += profile.cycles() as f64;
        // With the ones that the phases are compared with.
        let phases: Vec<&Cell> =
            cells.iter().filter(|cell| cell.workload == workload && is_of_a_phase(cell)).collect();
        if phases.is_empty() {
            return Err(format!("{workload} was not run phase by phase"));
        }
        enumerated += nested + shadow + phases.iter().map(|cell| cell.cycles() as f64).sum::<f64>();
        // A profile has more work than what is compared.
        let times =
            f64::from(profile.scale_milli) / f64::from(rows.of(workload, NESTED)?.median.scale_milli.max(1));
        runs.push((workload, phases.len() + 2, times));
    }
    if runs.is_empty() {
        return Err("nothing was run".into());
    }
    let (share, to_worse) = (profiled / enumerated, random / worse);
    let words: Vec<_> = runs
        .iter()
        .map(|(workload, runs, times)| {
            format!("{workload} {runs}, and one by chance with {times:.1} times the work")
        })
        .collect();
    let mean = runs.iter().map(|(_, runs, _)| runs).sum::<usize>() as f64 / runs.len() as f64;
    Ok(vec![
        claim(
            "A random run is no more expensive than one in the worse static mode",
            format!("{} to the worse static modes, all workloads together", percent(Some(to_worse))),
            to_worse <= 1.0,
        ),
        claim(
            "One random run of each program is a tenth of the profiling of ASP-SVM, which took 6 runs of each in the mean",
            format!(
                "{:.1} % of what asp-svm learns from here, {mean:.1} runs of each in the mean: {}",
                100.0 * share,
                words.join("; ")
            ),
            share <= 0.1,
        ),
    ])
}

/// It was run for enumerated training: with one phase on the other engine.
fn is_of_a_phase(cell: &Cell) -> bool {
    matches!(cell.policy.parse::<Mode>(), Ok(Mode::Oracle(schedule)) if schedule.changes().len() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{
        plan::words,
        results::{rows, tests::cell},
    };

    /// The claims of made-up cells.
    pub fn judge(
        subject: Subject,
        cells: &[Cell],
        workloads: &[&str],
        policies: &[&str],
    ) -> Result<Vec<bool>, String> {
        let (workloads, policies) = (words(workloads), words(policies));
        let claims = claims(subject, &rows(cells, &workloads, &policies), cells)?;
        assert!(claims.iter().all(|claim| !claim.ours.is_empty() && !claim.paper.is_empty()));
        Ok(claims.into_iter().map(|claim| claim.holds).collect())
    }

    #[test]
    fn dav2m_is_at_most_a_percent_behind() {
        let judge = |chase, phases| {
            let cells = [
                cell("chase", NESTED, 1, 2000),
                cell("chase", SHADOW, 1, 1000),
                cell("chase", DAV2M, 1, chase),
                cell("phases", NESTED, 1, 1500),
                cell("phases", SHADOW, 1, 1600),
                cell("phases", DAV2M, 1, phases),
            ];
            judge(Subject::Dav2mTime, &cells, &["chase", "phases"], &[NESTED, SHADOW, DAV2M]).unwrap()
        };
        assert_eq!(judge(1010, 1400), [true, true]);
        assert_eq!(judge(1011, 1400), [false, true]);
        assert_eq!(judge(1000, 1501), [true, false]);
        assert_eq!(judge(1000, 1600), [false, false]);
    }

    #[test]
    fn nothing_is_said_of_what_was_not_run() {
        let cells = [cell("chase", NESTED, 1, 1), cell("chase", DAV2M, 1, 1)];
        let all = [NESTED, SHADOW, DAV2M, POOLED, ASP, RANDOM];
        for subject in [Subject::Dav2mTime, Subject::DspTime, Subject::DspShares, Subject::DspCost] {
            let error = judge(subject, &cells, &["chase"], &all).unwrap_err();
            assert!(error.starts_with("chase was not run with "), "{error}");
        }
        for subject in [
            Subject::Dav2mTime,
            Subject::Dav2mChanges,
            Subject::Dav2mShares,
            Subject::DspTime,
            Subject::DspCost,
        ] {
            assert!(judge(subject, &[], &["chase"], &all).is_err());
        }
    }

    #[test]
    fn changes_are_few() {
        let judge = |phases, matmul| {
            let cells = [("phases", phases), ("matmul", matmul)]
                .map(|(workload, changes)| Cell { changes, ..cell(workload, DAV2M, 1, 10) });
            judge(Subject::Dav2mChanges, &cells, &["phases", "matmul"], &[DAV2M]).unwrap()
        };
        assert_eq!(judge(13, 1), [true, true]);
        assert_eq!(judge(14, 0), [false, true]);
        assert_eq!(judge(6, 2), [true, false]);
    }

    #[test]
    fn most_of_the_time_is_spent_in_the_better_mode() {
        let judge = |subject, policy, chase, churn| {
            let cell = |workload, shadow| Cell {
                shadow_cycles: shadow,
                nested_cycles: 100 - shadow,
                ..cell(workload, policy, 1, 0)
            };
            let cells = [cell("chase", chase), cell("mmap-churn", churn)];
            judge(subject, &cells, &["chase", "mmap-churn"], &[policy]).unwrap()
        };
        assert_eq!(judge(Subject::Dav2mShares, DAV2M, 60, 40), [true, true]);
        assert_eq!(judge(Subject::Dav2mShares, DAV2M, 40, 60), [false, false]);
        assert_eq!(judge(Subject::DspShares, POOLED, 60, 5), [false, true]);
        assert_eq!(judge(Subject::DspShares, POOLED, 95, 20), [true, false]);
    }

    #[test]
    fn a_model_is_worth_it() {
        let judge = |pooled, asp| {
            let cells = [(NESTED, 1500), (SHADOW, 1000), (POOLED, pooled), (ASP, asp)]
                .map(|(policy, cycles)| cell("chase", policy, 1, cycles));
            judge(Subject::DspTime, &cells, &["chase"], &[NESTED, SHADOW, POOLED, ASP]).unwrap()
        };
        assert_eq!(judge(1000, 1000), [true, true, true, true]);
        assert_eq!(judge(1400, 1000), [true, false, false, false]);
        assert_eq!(judge(1490, 1490), [false, true, false, false]);
        assert_eq!(judge(1030, 1100), [true, true, false, true]);
    }

    #[test]
    fn profiling_is_counted_in_runs() {
        let judge = |random, profile, phases: &[&str]| {
            let static_runs = [(NESTED, 100), (SHADOW, 200), (RANDOM, random), (PROFILE, profile)];
            let phases = phases.iter().map(|policy| (*policy, 150));
            let cells: Vec<_> = static_runs
                .into_iter()
                .chain(phases)
                .map(|(policy, cycles)| cell("chase", policy, 1, cycles))
                .collect();
            judge(Subject::DspCost, &cells, &["chase"], &[NESTED, SHADOW, RANDOM])
        };
        // 300 and four times 150.
        let four = [
            "oracle,changes=5:9",
            "oracle,first=shadow,changes=5:9",
            "oracle,changes=9:12",
            "oracle,first=shadow,changes=9:12",
        ];
        assert_eq!(judge(200, 90, &four).unwrap(), [true, true]);
        assert_eq!(judge(200, 91, &four).unwrap(), [true, false]);
        assert_eq!(judge(201, 90, &four).unwrap(), [false, true]);
        assert_eq!(judge(90, 90, &four[..2]).unwrap(), [true, false]);
        // A schedule of something else is no profiling.
        let error = judge(30, 30, &["oracle,changes=5", "oracle,changes=1:2:3"]).unwrap_err();
        assert_eq!(error, "chase was not run phase by phase");
    }
}
