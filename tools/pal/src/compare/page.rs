//! The comparison as one page of HTML that needs nothing else: bars, tables, and for each workload which engine was in force
//! when, above what the policies saw.

use std::fmt::Write;

use anyhow::Result;
use records::sample::ENGINES;

use super::{
    cell::METRICS,
    results::{self, OVERHEADS, Overall, Row, short, shortened},
    store::Failed,
    table::percent,
};
use crate::report::{
    chart::{self, COLOURS},
    figures::FIGURES,
    page::{STYLE, escape},
};

/// Style of the bars.
const BARS: &str = ".bar { display: inline-block; height: .8em; background: var(--s0); vertical-align: middle }\
    .share { display: inline-block; width: 8em; height: .8em; background: var(--nested); vertical-align: middle }\
    .share i { display: block; height: 100%; background: var(--shadow); float: right }";

/// Makes the page.
///
/// # Errors
/// A chart cannot be drawn.
pub fn page(
    rows: &[Row],
    overall: &[Overall],
    policies: &[String],
    failed: &[Failed],
    (lab, description): (&str, &str),
) -> Result<String> {
    let title = format!("Palimpsest: policies compared on {}", escape(lab));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}{BARS}</style></head>\n<body><h1>{title}</h1>\n\
         <p>Times are modelled cycles of the work, the hypervisor's included, relative to the better of nested and shadow. \
         They are medians over seeds; the timelines are of the median run.</p>\n"
    );
    for Failed { workload, policy, seed, why } in failed {
        let why = why.lines().next().unwrap_or_default();
        let _ = writeln!(
            html,
            "<p class=\"warn\">{}, {}, seed {seed} failed: {}</p>",
            escape(workload),
            escape(policy),
            escape(why)
        );
    }
    if !overall.is_empty() {
        html += "<h2>All workloads</h2><div class=\"wide\"><table id=\"overall\"><tr><th></th><th>geometric mean</th><th>worst</th><th></th></tr>";
        for Overall { policy, mean, worst: (worst, workload) } in overall {
            let (mean, worst) = (percent(Some(*mean)), percent(Some(*worst)));
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{mean}</td><td>{worst}</td><td>{}</td></tr>",
                escape(short(policy, policies)),
                escape(workload)
            );
        }
        html += "</table></div>\n";
    }
    let overheads = results::overheads(rows, policies);
    if !overheads.is_empty() {
        let chart = chart::stacked(&overheads, OVERHEADS, "% of native time")?;
        let _ = write!(html, "<h2>Walks and the hypervisor</h2><figure>{chart}</figure>");
    }
    for rows in rows.chunk_by(|a, b| a.workload == b.workload) {
        html += &workload(rows, policies)?;
    }
    let parameters: String =
        shortened(policies).iter().map(|policy| format!("{}\n", escape(policy))).collect();
    let _ = writeln!(
        html,
        "<h2>What ran</h2><p>Parameters of the policies:</p><pre>{parameters}</pre><details><summary>The machine {}</summary><pre>{}</pre></details>{}</body></html>",
        escape(lab),
        escape(description),
        commands(rows)
    );
    Ok(html)
}

/// A workload: its table with bars, and its timelines.
fn workload(rows: &[Row], policies: &[String]) -> Result<String> {
    let short = |row: &Row| short(row.policy, policies).to_owned();
    let known = workloads::find(rows[0].workload);
    let what = known.map_or("", |workload| workload.work);
    let mut html = format!("<h2>{} <small>{}</small></h2>", escape(rows[0].workload), escape(what));
    html += "<div class=\"wide\"><table><tr><th></th><th>Mcycles</th><th>time</th><th></th><th>changes</th><th>shadow</th><th></th></tr>";
    let longest = rows.iter().map(|row| row.median.cycles()).max().unwrap_or(0).max(1);
    for row in rows {
        let cell = row.median;
        let (width, share) = (14.0 * cell.cycles() as f64 / longest as f64, 100.0 * cell.shadow_share());
        let _ = write!(
            html,
            "<tr><td>{}</td><td>{:.1}</td><td>{}</td><td style=\"text-align:left\"><span class=\"bar\" style=\"width:{width:.2}em\"></span></td>\
             <td>{}</td><td>{share:.0} %</td><td><span class=\"share\"><i style=\"width:{share:.1}%\"></i></span></td></tr>",
            escape(&short(row)),
            cell.cycles() as f64 / 1e6,
            percent(row.relative),
            cell.changes,
        );
    }
    html += "</table></div>\n";
    let end = rows
        .iter()
        .flat_map(|row| row.median.timeline.modes.last())
        .map(|(_, end, _)| *end)
        .fold(1e-3, f64::max);
    let names: Vec<String> = rows.iter().map(short).collect();
    let modes: Vec<_> = rows
        .iter()
        .zip(&names)
        .map(|(row, name)| (name.as_str(), row.median.timeline.modes.clone()))
        .collect();
    let legend = |entries: String| format!("<p class=\"legend\">{entries}</p>");
    let entry = |colour: &str, name: &str| {
        format!("<span><i style=\"background:var(--{colour})\"></i>{}</span>", escape(name))
    };
    html += &legend(ENGINES.map(|name| entry(name, name)).concat());
    let _ = write!(html, "<figure>{}</figure>", chart::modes(&modes, end)?);
    for (place, figure) in METRICS.iter().enumerate() {
        let steps = |row: &Row| row.median.timeline.metrics.get(place).cloned().unwrap_or_default();
        let lines: Vec<_> = rows.iter().map(steps).enumerate().collect();
        let Some((svg, _, top)) = chart::figure(&lines, end)? else { continue };
        let names =
            names.iter().enumerate().map(|(number, name)| entry(&format!("s{}", number % COLOURS), name));
        let _ = write!(
            html,
            "<h3>{} <small>{}</small></h3>{}<figure>{svg}</figure>{}",
            FIGURES[*figure].title,
            FIGURES[*figure].unit,
            legend(names.collect()),
            chart::cut(&lines, top).map_or_else(String::new, |cut| format!("<p>{cut}</p>"))
        );
    }
    Ok(html)
}

/// The commands of the median runs.
fn commands(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let words: Vec<_> = row.median.command.iter().map(|word| crate::ui::shell_word(word)).collect();
        format!("{}, {}: pal {}\n", row.workload, row.policy, words.join(" "))
    };
    format!(
        "<details><summary>The commands</summary><pre>{}</pre></details>",
        escape(&rows.iter().map(line).collect::<String>())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{
        cell::Cell,
        results::{overall, rows, tests::example},
    };

    #[test]
    fn a_page_has_all_rows_and_needs_nothing_else() {
        let (mut cells, workloads, policies) = example();
        for cell in &mut cells {
            cell.timeline.modes = vec![(0.0, 1.0, 0), (1.0, 2.0, 1)];
            cell.timeline.metrics = vec![vec![(0.0, 2.0, 3.5)], vec![]];
        }
        let rows = rows(&cells, &workloads, &policies);
        let failed = [Failed { workload: "b".into(), policy: "<script>".into(), seed: 1, why: "<b>".into() }];
        let page = page(
            &rows,
            &overall(&rows, &workloads, &policies),
            &policies,
            &failed,
            ("m<n", "</pre><script>"),
        )
        .unwrap();
        // Modes and one metric for each of two workloads.
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(
            page.contains("<td>+300.0 %</td>")
                && page.contains("dav2m,window_inst=1000")
                && page.contains("m&lt;n")
        );
        assert!(!page.contains("<script") && !page.contains("<b>"));
        for word in ["src=", "url(", "@import"] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(!page.contains("Walks and the hypervisor"), "nothing was run without a hypervisor");
        assert!(page.match_indices("http").all(|(at, _)| page[at..].starts_with("http://www.w3.org/")));
    }
    #[test]
    fn with_native_runs_there_are_bars() {
        let (mut cells, workloads, mut policies) = example();
        cells.push(Cell { policy: "native".into(), ..cells[0].clone() });
        policies.insert(0, "native".into());
        let rows = rows(&cells, &workloads, &policies);
        let page = page(&rows, &[], &policies, &[], ("m", "")).unwrap();
        let (_, bars) = page.split_once("<h2>Walks and the hypervisor</h2><figure><svg").unwrap();
        let (bars, _) = bars.split_once("</svg>").unwrap();
        assert!(bars.contains("% of native time") && bars.contains("dav2m"), "{bars}");
    }
}
