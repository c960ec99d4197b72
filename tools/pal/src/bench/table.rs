//! The tables that a person reads.

use super::{
    column::Column,
    exits::{Exits, FAULTS},
    results::{Cost, Judgement, Results},
    rows::Figure,
    switches::Switches,
};

/// The table of each column that is compared with the reference. Where the mode changes, most of the time passes with
/// nested tables, which cause few exits: such figures are for the JSON file.
pub fn render(results: &Results, exits: &[(Column, Vec<Exits>)]) -> String {
    let mut text = String::new();
    for (column, _) in results.columns.iter().filter(|(column, _)| !column.switches()) {
        let judgements = results.judge(*column);
        if !judgements.is_empty() {
            let gap = if text.is_empty() { "" } else { "\n" };
            let exits = exits.iter().find(|(each, _)| each == column).map_or(&[][..], |(_, exits)| exits);
            text +=
                &format!("{gap}{}{}", comparison(*column, &judgements, exits), power_on(results, *column));
        }
    }
    if text.is_empty() { reference(results) } else { text }
}

fn comparison(column: Column, judgements: &[Judgement], exits: &[Exits]) -> String {
    let name = column.name();
    let heading = [
        "operation",
        "native",
        &name,
        "ratio",
        "spread",
        "over 1 s",
        "ratio",
        "of native",
        "KVM",
        "Xen",
        "goal",
        "",
        "left",
    ];
    let more = ["exits", "KVM", "goal", ""];
    let with_exits = |line: &[String], more: [String; 4]| -> Vec<String> {
        line.iter().cloned().chain(more.into_iter().take(if exits.is_empty() { 0 } else { 4 })).collect()
    };
    let mut lines = vec![with_exits(&heading.map(String::from), more.map(String::from))];
    for judgement in judgements {
        let comparison = judgement.comparison;
        let counted = exits.iter().find(|exits| exits.row.name == judgement.row.name);
        let figures = counted.and_then(|exits| exits.figures(column));
        let more = [
            counted.map_or_else(dash, |exits| decimal(exits.total())),
            figures.and_then(|figures| figures.kvm).map_or_else(dash, decimal),
            figures.map_or_else(dash, |figures| format!("≤ {}", decimal(figures.goal))),
            counted.and_then(|exits| exits.met(column)).map_or("", verdict).to_owned(),
        ];
        let line = [
            judgement.row.title.to_owned(),
            cost(judgement.native.as_ref()),
            cost(judgement.ours.as_ref()),
            judgement.ratio().map_or_else(dash, times),
            judgement.ours.as_ref().map_or_else(dash, spread),
            judgement.seconds[1].map_or_else(dash, grouped),
            judgement.ratio_over_second().map_or_else(dash, times),
            judgement.row.peers_native.map_or_else(dash, grouped),
            comparison.kvm.map_or_else(dash, figure),
            comparison.xen.map_or_else(dash, figure),
            comparison.goal.map_or_else(dash, |goal| format!("≤ {}", figure(goal))),
            judgement.met().map_or("", verdict).to_owned(),
            judgement.left().map_or_else(dash, |left| format!("{:.1} %", 100.0 * left)),
        ];
        lines.push(with_exits(&line, more));
    }
    let exits = exits.iter().filter_map(|exits| exits.met(column));
    let verdicts: Vec<bool> = judgements.iter().filter_map(Judgement::met).chain(exits).collect();
    let mut text = align(&lines, &[0, 11, 16]);
    if !verdicts.is_empty() {
        let met = verdicts.iter().filter(|met| **met).count();
        text += &format!("\n{met} of {} goals met\n", verdicts.len());
    }
    text
}

/// The time to the first instruction with the hypervisor's own start, which its row leaves out. Empty if it was not measured.
fn power_on(results: &Results, column: Column) -> String {
    let native = results.columns.first().and_then(|(column, _)| results.power_on(*column));
    let Some((native, ours)) = native.zip(results.power_on(column)) else { return String::new() };
    let (ticks, ratio) = (grouped(ours), times(ours / native));
    format!(
        "from power-on, with the hypervisor's own start, to the first user instruction: {ticks}, {ratio}\n"
    )
}

/// Exits for each operation.
fn decimal(count: f64) -> String {
    if count < 10.0 { format!("{count:.2}") } else { format!("{count:.1}") }
}

fn reference(results: &Results) -> String {
    let mut lines = vec![["operation", "native", "spread", "over 1 s"].map(String::from)];
    for row in &results.rows {
        let column = results.columns.first().map(|(column, _)| *column);
        let measured = column.and_then(|column| results.cost(row, column));
        lines.push([
            row.title.to_owned(),
            cost(measured.as_ref()),
            measured.as_ref().map_or_else(dash, spread),
            column.and_then(|column| results.second(row, column)).map_or_else(dash, grouped),
        ]);
    }
    align(&lines, &[0])
}

/// What changes of the mode cost in a column.
pub fn switches(column: Column, switches: &Switches) -> String {
    let name = column.name();
    let mut lines = vec![[&name, "changes", "mean", "longest", "goal", ""].map(String::from)];
    for direction in &switches.directions {
        lines.push([
            direction.name.to_owned(),
            direction.count.to_string(),
            grouped(direction.mean),
            grouped(direction.longest),
            format!("≤ {}", grouped(direction.goal)),
            verdict(direction.met()).to_owned(),
        ]);
    }
    let refill = format!(
        "filled again before the next change: {} times, after {} ticks and {} faults; single instructions on nested tables: {}\n",
        switches.refilled,
        grouped(switches.refill_ticks),
        grouped(switches.refill_faults),
        switches.nested_steps
    );
    align(&lines, &[0, 5]) + &refill
}

/// The exits of each row in a column, the most expensive reasons first.
pub fn exits(column: Column, rows: &[Exits]) -> String {
    let exit = format!("exit ({})", column.name());
    let mut lines = vec![["operation", &exit, "per operation", "ticks per operation"].map(String::from)];
    for row in rows {
        let mut title = row.row.title.to_owned();
        for (reason, exit) in row.by_cost().filter(|(_, exit)| exit.count >= 0.0005) {
            lines.push([
                std::mem::take(&mut title),
                reason.to_owned(),
                format!("{:.3}", exit.count),
                grouped(exit.ticks),
            ]);
            if reason == "page-fault" {
                let counts = FAULTS.map(|(name, what)| Some((what, row.faults.get(name)?)));
                for (what, count) in counts.into_iter().flatten() {
                    lines.push([String::new(), format!("  {what}"), format!("{count:.3}"), dash()]);
                }
            }
        }
    }
    align(&lines, &[0, 1])
}

/// Fields as wide as the widest of their column; the columns in `left` begin at the left, the others end at the right. All
/// lines have as many fields as the first.
pub fn align(lines: &[impl AsRef<[String]>], left: &[usize]) -> String {
    let lines: Vec<&[String]> = lines.iter().map(AsRef::as_ref).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines.first().map_or(0, |line| line.len())).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let fields = line.iter().zip(&widths).enumerate().map(|(column, (field, width))| {
            if left.contains(&column) { format!("{field:<width$}") } else { format!("{field:>width$}") }
        });
        text += fields.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

pub fn dash() -> String {
    "–".to_owned()
}

fn cost(cost: Option<&Cost>) -> String {
    cost.map_or_else(dash, |cost| grouped(cost.median))
}

fn spread(cost: &Cost) -> String {
    format!("{:.2} %", 100.0 * cost.spread())
}

fn times(ratio: f64) -> String {
    format!("{ratio:.3}×")
}

fn figure(figure: Figure) -> String {
    match figure {
        Figure::Ticks(ticks) => grouped(ticks),
        Figure::Times(times) => format!("{times:.2}×"),
    }
}

/// A number with its thousands apart; small ones with a decimal.
pub fn grouped(number: f64) -> String {
    if number < 1000.0 {
        return format!("{number:.1}").trim_end_matches(".0").to_owned();
    }
    let digits = format!("{number:.0}");
    let first = digits.len() % 3;
    let mut text = digits[..first].to_owned();
    for group in digits.as_bytes()[first..].chunks(3) {
        if !text.is_empty() {
            text.push(' ');
        }
        text.extend(group.iter().map(|digit| char::from(*digit)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        exits::Exit,
        results::tests::{NESTED, example},
        rows,
        switches::tests as changes,
    };

    #[test]
    fn numbers_are_grouped() {
        let cases = [
            (6.04, "6"),
            (6.0, "6"),
            (118.24, "118.2"),
            (999.96, "1000"),
            (1000.0, "1 000"),
            (1.587e9, "1 587 000 000"),
        ];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn changes_of_the_mode_are_judged() {
        let mut results = example();
        results.columns.push((changes::column(), vec![changes::run(10, 200_001)]));
        assert_eq!(render(&results, &[]), render(&example(), &[]), "no table of its own");
        assert_eq!(results.missed().last().unwrap(), "switch=50: a change to shadow tables");
        let (column, runs) = results.columns.last().unwrap();
        let text = switches(*column, &Switches::of(*column, runs).unwrap());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("to nested tables") && lines[1].ends_with("≤ 20 000  met"), "{text}");
        assert!(lines[2].contains(" 200 001 ") && lines[2].ends_with("≤ 200 000  MISSED"), "{text}");
        assert!(lines[3].contains("2 times, after 250 ticks and 15 faults"), "{text}");
    }

    #[test]
    fn the_table_shows_misses() {
        let text = render(&example(), &[]);
        assert!(!text.contains("exits"), "{text}");
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("CPUID ") && lines[1].contains("≤ 120  met "), "{text}");
        assert!(lines[1].ends_with("  8.3 %") && lines[2].ends_with("  -1.0 %"), "{text}");
        assert!(lines[2].contains("1.020×") && lines[2].contains("≤ 1.01×  MISSED"), "{text}");
        // The mean over a second stands beside the median, and its ratio beside the median's.
        assert!(lines[1].contains("  121  18.333×  "), "{text}");
        assert!(lines[2].contains("  1 122   1.020×  "), "{text}");
        assert!(lines[3].contains(" – ") && lines[3].contains("MISSED") && lines[3].ends_with('–'), "{text}");
        assert!(text.ends_with("1 of 3 goals met\n"), "{text}");
    }

    #[test]
    fn exits_stand_beside_the_figures() {
        let row = rows::select(&["fork-wait".into()]).unwrap()[0];
        let each = std::iter::once(("page-fault".to_owned(), Exit { count: 30.25, ticks: 900.0 })).collect();
        let faults =
            [("guest_faults", 10.5), ("filled", 19.75)].map(|(name, count)| (name.to_owned(), count));
        let exits_of = [Exits { row, each, faults: faults.into() }];
        let lines = exits(NESTED, &exits_of);
        let words: Vec<Vec<_>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[2], ["the", "guest's", "own", "10.500", "–"], "{lines}");
        assert_eq!(words[3], ["filled", "19.750", "–"], "{lines}");
        let text = render(&example(), &[(NESTED, exits_of.into())]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("exits  KVM  goal"), "{text}");
        let words = |line: &str| line.split_whitespace().rev().take(4).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(lines[1]), ["–", "–", "–", "%"], "{text}");
        assert_eq!(words(lines[2]), ["–", "–", "30.2", "%"], "{text}");
    }
}
