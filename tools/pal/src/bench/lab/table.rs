//! The tables that a person reads.

use super::results::{Figure, Results};
use crate::bench::table::{align, dash, grouped};

/// The table of one machine: cycles of each operation, those of walks among them, and the multiple of the native ones.
pub fn render(results: &Results) -> String {
    let columns: Vec<String> = results.measured.iter().map(|measured| measured.column.name()).collect();
    let is_compared = ["nested", "shadow"].iter().all(|mode| columns.iter().any(|column| column == mode));
    let mut heading = vec![results.machine.clone()];
    for (index, column) in columns.iter().enumerate() {
        heading.extend([column.clone(), "walks".to_owned()]);
        if index > 0 {
            heading.push("ratio".to_owned());
        }
    }
    if is_compared {
        heading.push("nested/shadow".to_owned());
    }
    let mut lines = vec![heading];
    for row in &results.rows {
        let figures: Vec<Option<&Figure>> =
            columns.iter().map(|column| results.figure(&row.name, column)).collect();
        let mut line = vec![row.title.clone()];
        for (index, figure) in figures.iter().enumerate() {
            line.push(figure.map_or_else(dash, |figure| grouped(figure.cycles())));
            line.push(figure.map_or_else(dash, |figure| grouped(figure.walk_cycles())));
            if index > 0 {
                let native = figures[0].map(Figure::cycles).filter(|native| *native > 0.0);
                let ratio = figure.and_then(|figure| Some(figure.cycles() / native?));
                line.push(ratio.map_or_else(dash, |ratio| format!("{ratio:.2}×")));
            }
        }
        if is_compared {
            line.push(results.nested_to_shadow(&row.name).map_or_else(dash, percent));
        }
        lines.push(line);
    }
    align(&lines, &[0])
}

/// Nested tables against shadow tables on several machines; `None` for one, whose own table says it.
pub fn against(all: &[Results]) -> Option<String> {
    if all.len() < 2 {
        return None;
    }
    let mut rows = Vec::new();
    for row in all.iter().flat_map(|results| &results.rows) {
        let is_known = rows.contains(&row);
        if !is_known && all.iter().any(|results| results.nested_to_shadow(&row.name).is_some()) {
            rows.push(row);
        }
    }
    let heading = |results: &Results| results.machine.clone();
    let mut lines =
        vec![std::iter::once("nested/shadow".to_owned()).chain(all.iter().map(heading)).collect::<Vec<_>>()];
    for row in &rows {
        let each = all.iter().map(|results| results.nested_to_shadow(&row.name).map_or_else(dash, percent));
        lines.push(std::iter::once(row.title.clone()).chain(each).collect());
    }
    (lines.len() > 1).then(|| align(&lines, &[0]))
}

/// How much more, or less, than the other.
fn percent(relative: f64) -> String {
    format!("{:+.1} %", 100.0 * (relative - 1.0)).replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::results::tests::example;

    #[test]
    fn cycles_walks_and_ratios() {
        let text = render(&example());
        let words =
            |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(0), "zen3 native walks nested walks ratio shadow walks ratio nested/shadow");
        assert_eq!(words(1), "the chase-4k-256m 100 10 220 90 2.20× 176 20 1.76× +25.0 %");
        assert_eq!(words(2), "the fork-wait – – – – – – – – –");
    }

    #[test]
    fn one_mode_is_compared_with_native_only() {
        let mut results = example();
        results.measured.truncate(2);
        let text = render(&results);
        assert!(text.lines().next().unwrap().ends_with("ratio"), "{text}");
        assert!(text.lines().nth(1).unwrap().ends_with("2.20×"), "{text}");
    }

    #[test]
    fn machines_stand_beside_each_other() {
        assert_eq!(against(&[example()]), None);
        let other = Results { machine: "mine.toml".into(), ..example() };
        let text = against(&[example(), other]).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("zen3  mine.toml") && lines.len() == 2, "{text}");
        assert!(lines[1].starts_with("the chase-4k-256m ") && lines[1].ends_with("+25.0 %"), "{text}");
    }

    #[test]
    fn signs() {
        assert_eq!([percent(0.76), percent(1.0), percent(1.254)], ["−24.0 %", "+0.0 %", "+25.4 %"]);
    }
}
