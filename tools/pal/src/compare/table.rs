//! The comparison as text: a table for people, and a line for each cell.

use std::fmt::Write;

use super::{
    cell::Cell,
    results::{Overall, Row, short, shortened},
};

/// A time relative to the better static mode, in percent.
pub fn percent(relative: Option<f64>) -> String {
    match relative {
        None => "–".into(),
        // No minus before 0.
        Some(relative) => {
            let tenths = ((relative - 1.0) * 1000.0).round() as i64;
            let sign = if tenths < 0 { '−' } else { '+' };
            format!("{sign}{}.{} %", tenths.abs() / 10, tenths.abs() % 10)
        }
    }
}

/// The table, and below it the parameters of the policies.
pub fn text(rows: &[Row], overall: &[Overall], policies: &[String], lab: &str) -> String {
    let short = |policy| short(policy, policies);
    let widest = policies.iter().map(|policy| short(policy).chars().count()).max().unwrap_or(0).max(6);
    let mut text = format!(
        "{lab}: modelled cycles of the work, the hypervisor's included, against the better of nested and shadow\n\n\
         {:<14} {:<widest$} {:>11} {:>9} {:>8} {:>7}\n",
        "workload", "policy", "Mcycles", "time", "changes", "shadow"
    );
    let mut last = "";
    for row in rows {
        let workload = if row.workload == last { "" } else { row.workload };
        last = row.workload;
        let mcycles = row.median.cycles() as f64 / 1e6;
        let share = 100.0 * row.median.shadow_share();
        let _ = write!(
            text,
            "{workload:<14} {:<widest$} {mcycles:>11.1} {:>9} {:>8} {share:>5.0} %",
            short(row.policy),
            percent(row.relative),
            row.median.changes,
        );
        if row.seeds > 1 {
            let _ = write!(text, "   of {}, {:.1} % apart", row.seeds, 100.0 * (row.spread - 1.0));
        }
        text.push('\n');
    }
    if !overall.is_empty() {
        let _ =
            write!(text, "\n{:<14} {:<widest$} {:>11} {:>9}\n", "all workloads", "policy", "mean", "worst");
        for Overall { policy, mean, worst: (worst, workload) } in overall {
            let (mean, worst) = (percent(Some(*mean)), percent(Some(*worst)));
            let policy = short(policy);
            let _ = writeln!(text, "{:<14} {policy:<widest$} {mean:>11} {worst:>9} {workload}", "");
        }
    }
    let shortened = shortened(policies);
    if !shortened.is_empty() {
        text += "\nparameters:\n";
        shortened.iter().for_each(|policy| text += &format!("  {policy}\n"));
    }
    text
}

/// A line for each cell, as RFC 4180 has it.
pub fn csv(cells: &[Cell], rows: &[Row]) -> String {
    let mut text =
        "workload,policy,seed,scale_milli,cycles,host_cycles,nested_cycles,shadow_cycles,changes,checksum,relative_of_median\n"
            .to_owned();
    for cell in cells {
        let row = rows.iter().find(|row| row.workload == cell.workload && row.policy == cell.policy);
        let relative =
            row.and_then(|row| row.relative).map_or_else(String::new, |relative| format!("{relative:.6}"));
        let policy = cell.policy.replace('"', "\"\"");
        let _ = writeln!(
            text,
            "{},\"{policy}\",{},{},{},{},{},{},{},{},{relative}",
            cell.workload,
            cell.seed,
            cell.scale_milli,
            cell.cycles(),
            cell.host_cycles,
            cell.nested_cycles,
            cell.shadow_cycles,
            cell.changes,
            cell.checksum,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::results::{overall, rows, tests::example};

    #[test]
    fn percents() {
        let percents = [1.0, 1.0504, 0.9, 0.99999, 2.0].map(|relative| percent(Some(relative)));
        assert_eq!(percents, ["+0.0 %", "+5.0 %", "−10.0 %", "+0.0 %", "+100.0 %"]);
        assert_eq!(percent(None), "–");
    }

    #[test]
    fn a_table_of_medians() {
        let (cells, workloads, policies) = example();
        let rows = rows(&cells, &workloads, &policies);
        let text = text(&rows, &overall(&rows, &workloads, &policies), &policies, "zen3");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[3].starts_with("a              nested") && lines[3].contains("+10.0 %"), "{text}");
        assert!(lines[3].ends_with("of 3, 33.3 % apart"), "{text}");
        assert!(lines[4].starts_with("               shadow") && lines[4].contains("+0.0 %"), "{text}");
        assert!(text.contains("+300.0 % b"), "{text}");
        assert!(
            lines[5].starts_with("               dav2m  ") && text.ends_with("\n  dav2m,window_inst=1000\n"),
            "{text}"
        );
    }

    #[test]
    fn a_line_for_each_cell() {
        let (cells, workloads, policies) = example();
        let csv = csv(&cells, &rows(&cells, &workloads, &policies));
        assert_eq!(csv.lines().count(), 1 + cells.len());
        assert!(csv.contains("\na,\"dav2m,window_inst=1000\",1,0,101,10,91,0,0,ab,1.010000\n"), "{csv}");
    }
}
