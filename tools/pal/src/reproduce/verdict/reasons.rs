//! Why goals of agile paging are missed: where the cycles and the references went, by what was counted.

use super::{
    Rows,
    agile::{Bounds, MOST, by_switch},
};
use crate::{
    compare::{cell::Cell, plan::NATIVE, table::percent},
    reproduce::figures::{AGILE, NESTED, SHADOW},
};

/// Reasons of exits that are named.
const REASONS: usize = 4;

/// Of walks that take too many references: where they switch, and what the guest did.
pub fn refs(rows: &Rows) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for workload in rows.workloads() {
        let cell = rows.of(workload, AGILE)?.median;
        let Some(refs) = cell.refs_per_walk().filter(|refs| *refs > MOST[0]) else { continue };
        let walks = cell.agile_walks.iter().sum::<u64>();
        let nested: u64 = cell.agile_walks.iter().skip(1).sum();
        let mut line = format!(
            "`{workload}` has {refs:.2} references in a walk: {nested} of {walks} walks end in nested tables (references in a walk: {})",
            by_switch(cell)
        );
        if let Some(faults) = cell.counted.page_faults {
            let share = 100.0 * faults as f64 / walks.max(1) as f64;
            line += &format!("; the guest took {faults} page faults, {share:.0} for 100 walks");
        }
        lines.push(line + &exits(cell));
    }
    Ok(lines)
}

/// Of workloads on which agile paging takes longer than it may: what takes longer, beside native and beside the better static mode.
pub fn time(rows: &Rows, bounds: &Bounds) -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for workload in rows.workloads() {
        let agile = rows.of(workload, AGILE)?.median;
        let native = rows.of(workload, NATIVE)?.median;
        let mut parts = Vec::new();
        if rows.ratio(workload, AGILE, NATIVE)? > 1.0 + f64::from(bounds.percent) / 100.0 {
            parts.push(more(rows, workload, native, "native")?);
        }
        if rows.to_better(workload, AGILE)? > 1.0 {
            let better = [NESTED, SHADOW]
                .into_iter()
                .map(|policy| rows.of(workload, policy).map(|row| (row.median, policy)));
            let better = better.collect::<Result<Vec<_>, _>>()?;
            let (cell, name) =
                better.into_iter().min_by_key(|(cell, _)| cell.cycles()).ok_or("no static mode was run")?;
            parts.push(more(rows, workload, cell, name)?);
        }
        if !parts.is_empty() {
            lines.push(format!("`{workload}` takes {}{}", parts.join("; and "), exits(agile)));
        }
    }
    Ok(lines)
}

/// What agile paging takes more than another run of a workload, in hundredths of native time.
fn more(rows: &Rows, workload: &str, other: &Cell, name: &str) -> Result<String, String> {
    let (agile, native) = (rows.of(workload, AGILE)?.median, rows.cycles(workload, NATIVE)?);
    let share = |of: &dyn Fn(&Cell) -> u64| (of(agile) as f64 - of(other) as f64) / native;
    let [all, walks, hypervisor] =
        [share(&Cell::cycles), share(&|cell: &Cell| cell.walk_cycles), share(&Cell::hypervisor_cycles)];
    let signed = |share: f64| percent(Some(1.0 + share));
    let times = |of: &dyn Fn(&Cell) -> u64| of(agile) as f64 / of(other).max(1) as f64;
    Ok(format!(
        "{} of native time beside {name}: walks {}, the hypervisor {}, other cycles of the guest {}, which executes {} \
         instructions, misses the first level of TLBs {:.2} times and walks {:.2} times as often",
        signed(all),
        signed(walks),
        signed(hypervisor),
        signed(all - walks - hypervisor),
        percent(Some(times(&|cell: &Cell| cell.counted.instructions))),
        times(&|cell: &Cell| cell.counted.l1_tlb_misses),
        times(&|cell: &Cell| cell.counted.walks),
    ))
}

/// The end of a line: the exits of a run by reason, and how many of them are none of the proposed processor's.
fn exits(cell: &Cell) -> String {
    let counted = &cell.counted;
    let all = counted.exits.iter().map(|(_, count)| count).sum::<u64>();
    let named: Vec<_> =
        counted.exits.iter().take(REASONS).map(|(name, count)| format!("{name} {count}")).collect();
    if named.is_empty() {
        return ".".into();
    }
    format!(
        ". {all} exits ({}), of which {} stand in for the processor.",
        named.join(", "),
        counted.stand_ins
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        compare::{
            plan::words,
            results::{rows, tests::cell},
        },
        reproduce::{figures::Subject, verdict::reasons},
        workload::counted::Counted,
    };

    fn lines(subject: Subject, cells: &[Cell], policies: &[&str]) -> Vec<String> {
        let (workloads, policies) = (words(&["bfs"]), words(policies));
        reasons(subject, &rows(cells, &workloads, &policies)).unwrap()
    }

    fn with(cell: Cell, host_cycles: u64, walk_cycles: u64, instructions: u64) -> Cell {
        let (nested_cycles, counted) = (
            cell.cycles() - host_cycles,
            Counted {
                instructions,
                l1_tlb_misses: 2 * instructions,
                walks: 10,
                exits: vec![("page-fault".into(), 9), ("hlt".into(), 1)],
                stand_ins: 8,
                page_faults: Some(5),
            },
        );
        Cell { host_cycles, nested_cycles, walk_cycles, counted, ..cell }
    }

    #[test]
    fn time_above_the_goal_is_taken_apart() {
        let all = |agile| {
            [
                with(cell("bfs", NATIVE, 1, 1000), 1000, 50, 400),
                with(cell("bfs", NESTED, 1, 1200), 10, 200, 400),
                with(cell("bfs", SHADOW, 1, 1300), 300, 50, 400),
                with(cell("bfs", AGILE, 1, agile), 30, 60, 404),
            ]
        };
        let policies = [NATIVE, NESTED, SHADOW, AGILE];
        let lines = |agile| lines(Subject::AgileTime, &all(agile), &policies);
        assert_eq!(lines(1040), [""; 0], "the goal is met");
        let expected = "`bfs` takes +6.0 % of native time beside native: walks +1.0 %, the hypervisor +3.0 %, other cycles of the \
            guest +2.0 %, which executes +1.0 % instructions, misses the first level of TLBs 1.01 times and walks 1.00 times as \
            often. 10 exits (page-fault 9, hlt 1), of which 8 stand in for the processor.";
        assert_eq!(lines(1060), [expected]);
        let both = &lines(1210)[0];
        assert!(
            both.contains("; and +1.0 % of native time beside nested: walks −14.0 %, the hypervisor +2.0 %"),
            "{both}"
        );
    }

    #[test]
    fn walks_above_the_goal_are_taken_apart() {
        let of = |nested: u64| Cell {
            agile_walks: vec![100 - nested, nested],
            agile_refs: vec![4 * (100 - nested), 8 * nested],
            ..with(cell("bfs", AGILE, 1, 10), 0, 0, 1)
        };
        assert_eq!(lines(Subject::AgileRefs, &[of(20)], &[AGILE]), [""; 0]);
        let expected = "`bfs` has 5.20 references in a walk: 30 of 100 walks end in nested tables (references in a walk: 4: 70.0 %, \
            8: 30.0 %); the guest took 5 page faults, 5 for 100 walks. 10 exits (page-fault 9, hlt 1), of which 8 stand in for the \
            processor.";
        assert_eq!(lines(Subject::AgileRefs, &[of(30)], &[AGILE]), [expected]);
    }

    #[test]
    fn other_figures_have_no_goals_of_agile_paging() {
        assert_eq!(lines(Subject::DspCost, &[], &[]), [""; 0]);
    }
}
