//! A figure as a page of Markdown.

use std::{fmt::Write, path::Path};

use anyhow::{Error, Result};

use super::{
    Part, ReproduceArgs,
    figures::{Figure, Subject},
    verdict::{self, Claim},
};
use crate::{
    compare::{
        results::{self, OVERHEADS, Row, short, shortened},
        table::percent,
    },
    report::chart::{self, Bar},
};

/// What is written.
pub struct Page {
    /// The page.
    pub text: String,
    /// The names of its charts, and the charts as SVG.
    pub charts: Vec<(String, String)>,
}

/// Makes the page.
///
/// # Errors
/// A chart cannot be drawn.
pub fn page(figure: &Figure, args: &ReproduceArgs, parts: &[(&Part, Vec<Claim>)]) -> Result<Page> {
    let stem = args.output.as_ref().and_then(|path| path.file_stem());
    let stem = stem.map_or_else(|| figure.name.into(), |stem| stem.to_string_lossy());
    let mut charts = Vec::new();
    let quick = if args.quick { "Quick: short runs of few workloads.\n" } else { "" };
    let mut text = format!(
        "# {}: {}\n\nAfter {}.\n{quick}All figures are *modelled*: the machine is a [lab machine](../lab.md).\n\
         The workloads [stand in](../policies.md#comparing) for the paper's.\n\n```console\n$ {}\n```\n\n\
         Made with Palimpsest {}.\n",
        figure.name,
        figure.shows,
        figure.paper,
        command(args),
        env!("CARGO_PKG_VERSION"),
    );
    for (part, claims) in parts {
        let policies = part.comparison.policies();
        let about = part.comparison.about();
        let _ = write!(
            text,
            "\n## {}\n\nScale {}, seeds {}, nested pages {}.\n\n| claim | here | shape |\n|---|---|---|\n",
            part.lab,
            part.comparison.scales(),
            about["seeds"],
            about["nested_page"].as_str().unwrap_or_default(),
        );
        for Claim { paper, ours, holds } in claims {
            let _ = writeln!(
                text,
                "| {paper} | {ours} | {} |",
                if *holds { "holds" } else { "**does not hold**" }
            );
        }
        let reasons = verdict::reasons(figure.subject, &part.rows()).map_err(Error::msg)?;
        if !reasons.is_empty() {
            text += "\nWhat is missed, and by what:\n\n";
            reasons.iter().for_each(|reason| text += &item(reason));
        }
        if let Some(svg) = chart(figure.subject, &part.rows(), policies)? {
            // A machine may be a file.
            let lab = Path::new(&part.lab).file_stem().unwrap_or_default().to_string_lossy();
            let name = format!("{stem}-{lab}.svg");
            let _ = write!(text, "\n![Page walks and the hypervisor, in % of native time]({name})\n");
            charts.push((name, svg));
        }
        text += "\n| workload | policy | Mcycles | to the better static mode | changes | shadow |\n|---|---|---|---|---|---|\n";
        for row in part.rows() {
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {} | {} | {:.0} % |",
                row.workload,
                short(row.policy, policies),
                row.median.cycles() as f64 / 1e6,
                percent(row.relative),
                row.median.changes,
                100.0 * row.median.shadow_share(),
            );
        }
        let shortened = shortened(policies);
        if !shortened.is_empty() {
            text += "\nParameters:\n\n";
            for policy in shortened {
                let (name, parameters) = policy.split_once(',').unwrap_or((policy, ""));
                let parameters: Vec<_> = parameters.split(',').map(|word| format!("`{word}`")).collect();
                let _ = writeln!(text, "- `{name}`:\n  {}", parameters.join(",\n  "));
            }
        }
    }
    Ok(Page { text, charts })
}

/// Stacked bars of what walks and the hypervisor take, of a figure that is about them.
fn chart(subject: Subject, rows: &[Row], policies: &[String]) -> Result<Option<String>> {
    let is_about_them = matches!(subject, Subject::AgileTime | Subject::AgileTimeHuge);
    let bars = if is_about_them { results::overheads(rows, policies) } else { Vec::new() };
    let draw = |bars: &[Bar]| chart::stacked_alone(bars, OVERHEADS, "% of native time");
    (!bars.is_empty()).then(|| draw(&bars)).transpose()
}

/// An item of a list, in lines of the length that pages have.
fn item(text: &str) -> String {
    const COLUMNS: usize = 100;
    let (mut item, mut columns) = ("-".to_owned(), 1);
    for word in text.split(' ') {
        let len = word.chars().count() + 1;
        if columns + len > COLUMNS {
            (item, columns) = (item + "\n ", 1);
        }
        item = item + " " + word;
        columns += len;
    }
    item + "\n"
}

/// The command that made it, without where its files lie.
fn command(args: &ReproduceArgs) -> String {
    let mut command = format!("cargo pal reproduce {}", args.name.as_deref().unwrap_or_default());
    if args.quick {
        command += " --quick";
    }
    if !args.workloads.is_empty() {
        let _ = write!(command, " --workloads {}", args.workloads.join(","));
    }
    if let Some(milli) = args.scale {
        let _ = write!(command, " --scale {}", f64::from(milli) / 1000.0);
    }
    if args.seeds != 1 {
        let _ = write!(command, " --seeds {}", args.seeds);
    }
    if args.no_kit {
        command += " --no-kit";
    }
    if let Some(lab) = &args.lab {
        let _ = write!(command, " --lab {lab}");
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_wrapped() {
        let text = "−ab ".repeat(40);
        let text = text.trim_end();
        let item = item(text);
        let lines: Vec<&str> = item.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].starts_with("- −ab −ab") && lines[1].starts_with("  −ab"),
            "{item}"
        );
        assert_eq!(lines[0].chars().count(), 97, "one more word would be 101 columns");
        let words: Vec<&str> = item.split_whitespace().skip(1).collect();
        assert_eq!(words.join(" "), text);
    }
}
