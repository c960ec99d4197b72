//! Agile paging: how many references its walks make.

use super::{Claim, Rows, claim};
use crate::reproduce::figures::AGILE;

/// The paper's averages, by our stand-ins.
const PAPER_REFS: [(&str, &str, f64); 4] = [
    ("bfs", "graph500", 4.01),
    ("store", "memcached", 4.76),
    ("anneal", "canneal", 4.24),
    ("dedup", "dedup", 4.60),
];

/// The claims of `agile-refs`.
pub fn refs(rows: &Rows) -> Result<Vec<Claim>, String> {
    /// Of a workload, and of all on average.
    const MOST: [f64; 2] = [4.8, 4.3];
    let (mut all, mut words, mut holds) = (Vec::new(), Vec::new(), true);
    let mut claims = Vec::new();
    for workload in rows.workloads() {
        let cell = rows.of(workload, AGILE)?.median;
        let refs = cell.refs_per_walk();
        let refs = refs.ok_or_else(|| format!("no walk of agile paging was counted with {workload}"))?;
        let walks = cell.agile_walks.iter().sum::<u64>();
        let shares = abi::lab::SWITCH_REFS.iter().zip(&cell.agile_walks).filter(|(_, walks)| **walks > 0);
        let shares = shares.map(|(refs, of)| format!("{refs}: {:.1} %", 100.0 * *of as f64 / walks as f64));
        let ours = format!("{workload} {refs:.2} ({})", shares.collect::<Vec<_>>().join(", "));
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

#[cfg(test)]
mod tests {
    use super::super::{
        super::figures::{NESTED, Subject},
        tests::judge,
    };
    use super::*;
    use crate::compare::{cell::Cell, results::tests::cell};

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
        assert_eq!(error, "bfs was not run with agile");
    }
}
