//! Agile paging: how many references its walks make.

use super::{Claim, Rows, claim, percent};
use crate::{
    compare::{cell::Cell, plan::NATIVE},
    reproduce::figures::{AGILE, NESTED, SHADOW},
};

/// The paper's averages, by our stand-ins.
const PAPER_REFS: [(&str, &str, f64); 4] = [
    ("bfs", "graph500", 4.01),
    ("store", "memcached", 4.76),
    ("anneal", "canneal", 4.24),
    ("dedup", "dedup", 4.60),
];

/// References of a walk at most: of a workload, and of all on average.
pub(super) const MOST: [f64; 2] = [4.8, 4.3];

/// The claims of `agile-refs`.
pub fn refs(rows: &Rows) -> Result<Vec<Claim>, String> {
    let (mut all, mut words, mut holds) = (Vec::new(), Vec::new(), true);
    let mut claims = Vec::new();
    for workload in rows.workloads() {
        let cell = rows.of(workload, AGILE)?.median;
        let refs = cell.refs_per_walk();
        let refs = refs.ok_or_else(|| format!("no walk of agile paging was counted with {workload}"))?;
        let ours = format!("{workload} {refs:.2} ({})", by_switch(cell));
        if let Some((_, name, paper)) = PAPER_REFS.iter().find(|(stand_in, ..)| *stand_in == workload) {
            claims.push(claim(
                &format!("{name}: {paper:.2} references in a walk; 4.8 at most here"),
                ours,
                refs <= MOST[0],
            ));
        } else {
            holds &= refs <= MOST[0];
            words.push(ours);
        }
        all.push(refs);
    }
    if all.is_empty() {
        return Err("nothing was run".into());
    }
    if !words.is_empty() {
        claims.push(claim(
            "4 to 5 references in a walk on every workload; 4.8 at most here",
            words.join("; "),
            holds,
        ));
    }
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let paper = "4.40 on average of its four workloads; 4.3 at most here";
    claims.push(claim(paper, format!("{mean:.2} on average of all workloads"), mean <= MOST[1]));
    Ok(claims)
}

/// The shares of walks by the references of a whole one: `4: 81.3 %, 8: 18.7 %`.
pub(super) fn by_switch(cell: &Cell) -> String {
    let walks = cell.agile_walks.iter().sum::<u64>();
    let shares = abi::lab::SWITCH_REFS.iter().zip(&cell.agile_walks).filter(|(_, walks)| **walks > 0);
    let shares = shares.map(|(refs, of)| format!("{refs}: {:.1} %", 100.0 * *of as f64 / walks as f64));
    shares.collect::<Vec<_>>().join(", ")
}

/// What is claimed of time with pages of one size.
pub struct Bounds {
    /// What agile paging may cost, in hundredths of native time.
    pub(super) percent: u32,
    /// What the paper says of nested paging, and of shadow paging.
    statics: [&'static str; 2],
}

/// With pages of 4 KiB.
pub const SMALL_PAGES: Bounds = Bounds {
    percent: 4,
    statics: [
        "Nested paging: walks take up to 28 % of native time, the hypervisor next to nothing",
        "Shadow paging: walks as without a hypervisor, which takes up to 70 %",
    ],
};

/// With pages of 2 MiB.
pub const HUGE_PAGES: Bounds = Bounds {
    percent: 3,
    statics: [
        "Nested paging: walks take more than without a hypervisor, which takes next to nothing",
        "Shadow paging: walks as without a hypervisor, which takes more",
    ],
};

/// The claims of `agile-fig`.
pub fn time(rows: &Rows, bounds: &Bounds) -> Result<Vec<Claim>, String> {
    // Above native.
    let share = f64::from(bounds.percent) / 100.0;
    let workloads = rows.workloads();
    let (mut worst, mut behind) = (f64::MIN, f64::MIN);
    let counted = format!(
        "Agile paging: walks beyond native's, with the hypervisor, take at most {} %, as the paper counts",
        bounds.percent
    );
    let mut claims = Vec::new();
    for policy in [NATIVE, NESTED, SHADOW, AGILE] {
        let mut words = Vec::new();
        for workload in &workloads {
            let native = rows.cycles(workload, NATIVE)?;
            let cell = rows.of(workload, policy)?.median;
            let of_native = |cycles: u64| 100.0 * cycles as f64 / native;
            let parts = [cell.walk_cycles, cell.hypervisor_cycles()].map(of_native);
            words.push(format!("{workload} {:.1} % + {:.1} %", parts[0], parts[1]));
        }
        let paper = match policy {
            NATIVE => "Walks take part of the time without a hypervisor, too",
            NESTED => bounds.statics[0],
            SHADOW => bounds.statics[1],
            _ => &counted,
        };
        let mut holds = !workloads.is_empty();
        for workload in &workloads {
            let native = rows.cycles(workload, NATIVE)?;
            let of = |policy| rows.of(workload, policy).map(|row| row.median);
            let (walks, cell) = (|policy| of(policy).map(|cell| cell.walk_cycles), of(policy)?);
            holds &= match policy {
                NATIVE => cell.walk_cycles > 0,
                NESTED => walks(NESTED)? > walks(NATIVE)?,
                SHADOW => walks(SHADOW)? <= walks(NESTED)?,
                _ => {
                    (cell.walk_cycles.saturating_sub(walks(NATIVE)?) + cell.host_cycles) as f64
                        <= share * native
                }
            };
        }
        claims.push(claim(paper, format!("walks + hypervisor, of native time: {}", words.join(", ")), holds));
    }
    let mut words = Vec::new();
    for workload in &workloads {
        let ratio = rows.ratio(workload, AGILE, NATIVE)?;
        let to_static = rows.to_better(workload, AGILE)?;
        (worst, behind) = (worst.max(ratio), behind.max(to_static));
        words.push(format!("{workload} {} ({})", percent(Some(ratio)), percent(Some(to_static))));
    }
    if words.is_empty() {
        return Err("nothing was run".into());
    }
    let ours = format!("to native, and to the better static mode: {}", words.join(", "));
    let most = format!("Agile paging is at most {} % slower than native, all counted", bounds.percent);
    claims.push(claim(&most, ours.clone(), worst <= 1.0 + share));
    claims.push(claim("It is never behind the better static mode", ours, behind <= 1.0));
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use super::super::{
        super::figures::{NESTED, Subject},
        tests::judge,
    };
    use super::*;
    use crate::compare::results::tests::cell;

    #[test]
    fn walks_of_agile_paging_are_short() {
        let all = ["bfs", "store", "gups"];
        let judge = |walks: [u64; 3]| {
            let cells = [0, 1, 2].map(|at| Cell {
                agile_walks: vec![100 - walks[at], walks[at]],
                agile_refs: vec![4 * (100 - walks[at]), 8 * walks[at]],
                ..cell(all[at], AGILE, 1, 10)
            });
            judge(Subject::AgileRefs, &cells, &all, &[AGILE])
        };
        assert_eq!(judge([0, 20, 2]), Ok(vec![true, true, true, true]));
        assert_eq!(judge([0, 21, 0]), Ok(vec![true, false, true, true]));
        assert_eq!(judge([0, 0, 21]), Ok(vec![true, true, false, true]));
        assert_eq!(judge([10, 10, 10]), Ok(vec![true, true, true, false]));
    }

    #[test]
    fn nothing_is_said_of_walks_that_were_not_counted() {
        let cells = [cell("bfs", AGILE, 1, 10)];
        let error = judge(Subject::AgileRefs, &cells, &["bfs"], &[AGILE]).unwrap_err();
        assert_eq!(error, "no walk of agile paging was counted with bfs");
        let error =
            judge(Subject::AgileRefs, &[cell("bfs", NESTED, 1, 10)], &["bfs"], &[NESTED]).unwrap_err();
        assert_eq!(error, format!("bfs was not run with {AGILE}"));
    }

    #[test]
    fn agile_paging_is_near_native() {
        let judge_as = |subject, [nested, shadow, agile]: [(u64, u64, u64); 3]| {
            let all = [(NATIVE, (1000, 1000, 100)), (NESTED, nested), (SHADOW, shadow), (AGILE, agile)];
            let cells = all.map(|(policy, (cycles, host_cycles, walk_cycles))| Cell {
                host_cycles,
                nested_cycles: cycles - host_cycles,
                walk_cycles,
                ..cell("bfs", policy, 1, 0)
            });
            judge(subject, &cells, &["bfs"], &[NATIVE, NESTED, SHADOW, AGILE])
        };
        let judge = |cells| judge_as(Subject::AgileTime, cells);
        let (nested, shadow) = ((1200, 10, 280), (1300, 300, 100));
        assert_eq!(judge([nested, shadow, (1030, 10, 110)]), Ok(vec![true; 6]));
        let huge = |cells| judge_as(Subject::AgileTimeHuge, cells);
        assert_eq!(huge([nested, shadow, (1030, 20, 110)]), Ok(vec![true; 6]));
        assert_eq!(huge([nested, shadow, (1035, 20, 111)]), Ok(vec![true, true, true, false, false, true]));
        assert_eq!(judge([nested, shadow, (1035, 20, 111)]), Ok(vec![true; 6]));
        assert_eq!(judge([nested, shadow, (1050, 20, 121)]), Ok(vec![true, true, true, false, false, true]));
        assert_eq!(
            judge([nested, (1020, 10, 290), (1030, 30, 100)]),
            Ok(vec![true, true, false, true, true, false])
        );
        assert_eq!(
            judge([(1000, 0, 100), shadow, (1000, 0, 100)]),
            Ok(vec![true, false, true, true, true, true])
        );
    }

    #[test]
    fn nothing_is_said_without_a_native_run() {
        let cells = [NESTED, SHADOW, AGILE].map(|policy| cell("bfs", policy, 1, 10));
        let error = judge(Subject::AgileTime, &cells, &["bfs"], &[NESTED, SHADOW, AGILE]).unwrap_err();
        assert_eq!(error, "bfs was not run with native");
    }
}
