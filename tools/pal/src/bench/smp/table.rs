//! The tables that a person reads.

use super::{
    host::Host,
    results::{Results, Series, column_name},
    rows::{PROCESSORS, WORKS},
};
use crate::bench::table::{align, dash, grouped};

/// Costs: natively in ticks, in the modes as multiples of that; and the fastest samples beside each other.
pub fn costs(results: &Results) -> String {
    let mut lines = vec![["operation", "native", "spread"].map(String::from).to_vec()];
    for &mode in &results.modes {
        lines[0].extend([column_name(Some(mode)), "spread".to_owned(), "best".to_owned()]);
    }
    lines[0].push("samples".to_owned());
    for row in &results.rows {
        let native = results.cost(row, None);
        let mut line =
            vec![row.title.to_owned(), native.median().map_or_else(dash, grouped), percent(&native)];
        for &mode in &results.modes {
            let ratio = results.ratio(row, mode);
            line.extend([times(ratio.median()), percent(&ratio), times(results.best_ratio(row, mode))]);
        }
        let fewest = results.columns().map(|mode| results.samples(row, mode)).min().unwrap_or(0);
        line.push(fewest.to_string());
        lines.push(line);
    }
    align(&lines, &[0])
}

/// How much more several threads get done than one; empty if that was not measured.
pub fn scaling(results: &Results) -> String {
    let mut heading = vec!["done in the time of one thread's".to_owned()];
    for mode in results.columns() {
        heading.extend([column_name(mode), "spread".to_owned()]);
    }
    let mut lines = vec![heading];
    for (work, title) in WORKS {
        for row in &results.rows {
            let Some(workers) = row.workers.filter(|workers| workers.work == work && workers.threads > 1)
            else {
                continue;
            };
            let mut line = vec![format!("{title}, {} threads", workers.threads)];
            let series: Vec<Series> = results.columns().map(|mode| results.scaling(row, mode)).collect();
            if series.iter().any(|series| series.median().is_some()) {
                line.extend(series.iter().flat_map(|series| [times(series.median()), percent(series)]));
                lines.push(line);
            }
        }
    }
    if lines.len() > 1 { align(&lines, &[0]) } else { String::new() }
}

/// What a reader has to know of the machine that all this ran on.
pub fn notes(host: &Host) -> Vec<String> {
    let mut notes = Vec::new();
    if host.processors < PROCESSORS {
        notes.push(format!(
            "{PROCESSORS} emulated processors share the {} of this machine: more threads cannot get more done there, and a processor \
             that waits for another one also waits until that one is scheduled; compare with the native column",
            host.processors
        ));
    }
    if host.was_busy() {
        let load = |load: Option<f64>| load.map_or_else(dash, |load| format!("{load:.1}"));
        notes.push(format!(
            "the machine was busy before (load {}): ticks are too many, ratios hold but spread; measure again when it is quiet",
            load(host.load)
        ));
    }
    notes
}

/// A ratio, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio
        .map_or_else(dash, |times| if times < 10.0 { format!("{times:.2}×") } else { format!("{times:.0}×") })
}

/// How far the rounds are apart.
pub fn percent(series: &Series) -> String {
    series.spread().map_or_else(dash, |spread| format!("{:.0} %", 100.0 * spread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{record::Records, smp::results::tests::example};

    #[test]
    fn costs_and_their_ratios() {
        let mut results = example();
        results.rounds.iter_mut().for_each(|round| round[4].1.records = Records::default());
        let text = costs(&results);
        let lines: Vec<_> = text.lines().collect();
        let heading: Vec<_> = lines[0].split_whitespace().collect();
        assert_eq!(heading.join(" "), "operation native spread nested spread best samples");
        assert!(lines[1].starts_with("IPI ") && lines[1].contains(" 300 "), "{text}");
        assert!(lines[1].ends_with("  133 %   2.50×    40 %  2.00×       30"), "{text}");
        assert!(lines[5].contains('–') && lines[5].ends_with(" 0"), "{text}");
    }

    #[test]
    fn several_threads_beside_one() {
        let text = scaling(&example());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert!(lines[1].starts_with("compute, 2 threads") && lines[1].contains("2.00×     0 %"), "{text}");
        assert!(lines[6].starts_with("page faults, 4 threads") && lines[6].contains("4.00×"), "{text}");
        let mut results = example();
        results.rows.truncate(5);
        assert_eq!(scaling(&results), "");
    }

    #[test]
    fn a_small_or_busy_machine_is_told() {
        let host = |processors, load| notes(&Host { processors, load });
        assert!(host(4, Some(0.1)).is_empty() && host(8, None).is_empty());
        assert!(host(2, Some(0.1))[0].contains("share the 2 of"));
        assert!(host(4, Some(5.23))[0].contains("load 5.2"));
    }
}
