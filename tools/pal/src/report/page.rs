//! The page: charts, tables, what ran, and the same figures as JSON for programs and for the script that tells values.
//!
//! Everything that comes from a file is escaped; nothing is fetched from anywhere.

use std::fmt::Write;

use anyhow::Result;
use records::sample::ENGINES;
use serde_json::{Map, Value, json};

use super::{
    chart::{self, COLOURS, Stretch},
    figures::{self, FIGURES, Figure, Series, TOTALS},
    misses::{self, Misses},
    regions, tiers,
};
use crate::{
    samples::{Run, Sample},
    ui::shell_word,
};

/// The style sheet.
pub const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Text inside HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Makes the page, with miss ratios of traces if there are any.
///
/// # Errors
/// A chart cannot be drawn.
pub fn page(runs: &[Run], misses: &[Misses]) -> Result<String> {
    let all = figures::series(runs);
    let ends = all.iter().filter_map(|series| series.samples.last()).map(|last| last.machine_ns);
    let end = (ends.max().unwrap_or(0) as f64 / 1e9).max(1e-3);
    let names: Vec<_> = runs.iter().map(|run| escape(&run.name)).collect();
    let title = format!("Palimpsest: samples of {}", names.join(", "));
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n"
    );
    html += &summary(runs, &all, end);
    html += "<h2 id=\"mode\">Mode <small>of translation</small></h2>\
             <p class=\"legend\">";
    for name in ENGINES {
        let _ = write!(html, "<span><i style=\"background:var(--{name})\"></i>{name}</span>");
    }
    html += "</p>";
    let rows: Vec<_> = all.iter().map(|it| (it.name.as_str(), stretches(&it.samples))).collect();
    let _ = write!(html, "<figure>{}</figure>", chart::modes(&rows, end)?);
    html += &regions::section(&all, end)?;
    html += &tiers::section(&all, end)?;
    html += &misses::section(misses)?;
    let mut data = Vec::new();
    for figure in &FIGURES {
        html += &chart_of(figure, &all, end, &mut data)?;
    }
    html += &totals(&all);
    html += &reasons(&all);
    html += "<h2>What ran</h2>";
    runs.iter().for_each(|run| html += &about(run));
    let data =
        json!({ "series": data_of(&all), "figures": data, "end": end, "miss_ratios": misses::data(misses) });
    // `<` would end the element.
    let data = data.to_string().replace('<', "\\u003c");
    let _ = write!(
        html,
        "<div id=\"tip\" hidden></div>\n<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>{SCRIPT}</script></body></html>\n"
    );
    Ok(html)
}

/// What the page is about, in a line.
fn summary(runs: &[Run], all: &[Series<'_>], end: f64) -> String {
    let samples: usize = runs.iter().map(|run| run.samples.len()).sum();
    let group = all.iter().map(|series| figures::groups(&series.samples).next().map_or(1, <[_]>::len)).max();
    let steps = match group {
        Some(group @ 2..) => format!(" A step of a chart is up to {group} samples together."),
        _ => " A step of a chart is one sample.".into(),
    };
    let damaged: Vec<_> = runs
        .iter()
        .filter(|run| run.end.is_none() || run.broken + run.later > 0)
        .map(|run| format!("<p class=\"warn\">{}: {}.</p>", escape(&run.name), escape(&run.ending())))
        .collect();
    format!(
        "<p>{samples} samples in {end:.2} s of the machine's time. Times count from each machine's first sample.{steps} \
         Point at a chart for its values.</p>{}\n",
        damaged.concat()
    )
}

/// The modes of a series, neighbours of one mode together.
pub fn stretches(samples: &[&Sample]) -> Vec<Stretch> {
    let mut all: Vec<Stretch> = Vec::new();
    for group in figures::groups(samples) {
        let (begin, end) = figures::times(group);
        // The one that most of the group has; of two that have as many, the first.
        let count = |engine: &u8| group.iter().filter(|sample| sample.engine == *engine).count();
        let engine = (0..ENGINES.len() as u8).rev().max_by_key(count).unwrap_or(0);
        match all.last_mut() {
            Some(last) if last.2 == engine && begin - last.1 < 1e-6 => last.1 = end,
            _ => all.push((begin, end, engine)),
        }
    }
    all
}

/// The names of the series with their colours.
fn legend(all: &[Series<'_>]) -> String {
    let entry = |(number, series): (usize, &Series<'_>)| {
        let colour = number % COLOURS;
        format!("<span><i style=\"background:var(--s{colour})\"></i>{}</span>", escape(&series.name))
    };
    format!("<p class=\"legend\">{}</p>", all.iter().enumerate().map(entry).collect::<String>())
}

fn chart_of(figure: &Figure, all: &[Series<'_>], end: f64, data: &mut Vec<Value>) -> Result<String> {
    let steps: Vec<_> = all.iter().map(|series| figure.steps(&series.samples)).collect();
    let mut html = format!("<h2>{} <small>{}</small></h2>", figure.title, figure.unit);
    let lines: Vec<_> = steps.iter().cloned().enumerate().collect();
    if figure.is_plain(&steps) && steps.iter().any(|steps| !steps.is_empty()) {
        html += "<p>0 in all of these runs.</p>";
        return Ok(html);
    }
    let Some((svg, place, top)) = chart::figure(&lines, end)? else {
        html += "<p>Not counted in these runs: a <a href=\"#runs\">machine</a> with counters is needed, such as that of --lab.</p>";
        return Ok(html);
    };
    html += &legend(all);
    let _ = writeln!(html, "<figure data-figure=\"{}\">{svg}</figure>", data.len());
    html += &chart::cut(&lines, top).map_or_else(String::new, |cut| format!("<p>{cut}</p>"));
    data.push(
        json!({ "title": figure.title, "unit": figure.unit, "place": place, "top": top, "steps": steps }),
    );
    Ok(html)
}

/// The head of a table with a column for each series.
fn columns(id: &str, all: &[Series<'_>]) -> String {
    let names: String = all.iter().map(|series| format!("<th>{}</th>", escape(&series.name))).collect();
    format!("<div class=\"wide\"><table id=\"{id}\"><tr><th></th>{names}</tr>")
}

/// A row; beside each value how many times the first one's it is.
fn row(title: &str, values: &[Option<u64>]) -> String {
    let first = values.first().copied().flatten();
    let cell = |value: &Option<u64>| match (*value, first) {
        (None, _) => "<td>–</td>".to_owned(),
        (Some(value), Some(first @ 1..)) if value != first => {
            format!("<td>{} <small>×{:.2}</small></td>", thousands(value), value as f64 / first as f64)
        }
        (Some(value), _) => format!("<td>{}</td>", thousands(value)),
    };
    format!("<tr><td>{}</td>{}</tr>", escape(title), values.iter().map(cell).collect::<String>())
}

/// With thin spaces between groups of three digits.
fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join("\u{202f}")
}

fn totals(all: &[Series<'_>]) -> String {
    let mut html =
        format!("<h2>Totals <small>and ratios to the first column</small></h2>{}", columns("totals", all));
    for entry in TOTALS {
        let values: Vec<_> = all.iter().map(|series| figures::total(&series.samples, entry)).collect();
        html += &row(entry.0, &values);
    }
    html + "</table></div><p>A dash is what the machine does not count.</p>"
}

fn reasons(all: &[Series<'_>]) -> String {
    let mut names: Vec<&String> = all.iter().flat_map(|series| &series.run.names.reasons).collect();
    names.sort();
    names.dedup();
    let counts = |name: &str| all.iter().map(|series| figures::exits(series, name)).collect::<Vec<_>>();
    let mut rows: Vec<_> = names.into_iter().map(|name| (name, counts(name))).collect();
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.iter().flatten().max().copied()));
    let mut html = format!("<h2>Exits by reason</h2>{}", columns("exits", all));
    rows.iter().for_each(|(name, counts)| {
        let counts: Vec<_> = counts.iter().map(|count| Some(count.unwrap_or(0))).collect();
        html += &row(name, &counts);
    });
    html + "</table></div>"
}

/// What ran, in which versions, and how its file ends.
fn about(run: &Run) -> String {
    let mut html = format!("<h3>{}</h3><table class=\"runs\">", escape(&run.name));
    let mut line = |what: &str, value: String| {
        let _ = write!(html, "<tr><td>{what}</td><td>{}</td></tr>", escape(&value));
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "–".into(),
        Value::Array(all) => all
            .iter()
            .map(|it| it.as_str().map_or_else(|| it.to_string(), |word| shell_word(word).into_owned()))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    };
    let about = &run.about;
    for (what, key) in [
        ("machine", "machine"),
        ("emulator", "emulator"),
        ("lab machine", "lab"),
        ("mode", "mode"),
        ("PCPUs", "pcpus"),
        ("VMs", "vms"),
        ("ms between samples", "sample_ms"),
        ("command", "command"),
        ("version of pal and hypervisor", "version"),
    ] {
        line(what, text(&about[key]));
    }
    line("version of the schema", text(&about["v"]));
    line("samples", run.ending());
    html += "</table>";
    if let Some(description) = about["lab_machine"].as_str() {
        let name = escape(about["lab"].as_str().unwrap_or("lab machine"));
        let _ = write!(
            html,
            "<details><summary>The machine {name}</summary><pre>{}</pre></details>",
            escape(description)
        );
    }
    html
}

/// The totals for programs.
fn data_of(all: &[Series<'_>]) -> Value {
    let one = |series: &Series<'_>| {
        let totals = TOTALS.map(|entry| (entry.0.to_owned(), json!(figures::total(&series.samples, entry))));
        let exits =
            series.run.names.reasons.iter().map(|why| (why.clone(), json!(figures::exits(series, why))));
        json!({
            "name": series.name,
            "samples": series.samples.len(),
            "totals": totals.into_iter().collect::<Map<_, _>>(),
            "exits": exits.collect::<Map<_, _>>(),
            "regions": regions::data(series),
            "tiers": tiers::data(series),
            "pager": tiers::pager(series),
        })
    };
    Value::Array(all.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::{ABOUT, END, line};

    fn run(name: &str, vm: &str, exits: u64) -> Run {
        let about = ABOUT.replace("\"a\"", &json!(vm).to_string());
        let text = format!("{about}{}{}{END}", line(vm, 1, exits), line(vm, 2, 2 * exits));
        Run { name: name.into(), ..Run::read(text.as_bytes()).unwrap() }
    }

    #[test]
    fn a_page_has_the_values_of_the_files() {
        let page = page(&[run("one", "a<b>&\"", 1000), run("two", "x</script><script>alert(1)", 2500)], &[])
            .unwrap();
        let row = "<tr><td>exits</td><td>3\u{202f}002</td><td>7\u{202f}502 <small>×2.50</small></td></tr>";
        assert!(page.contains(row), "{page}");
        assert!(page.contains("<td>data TLB misses</td><td>–</td>"), "what is absent is not 0");
        // Mode, exits, processor time, instructions per cycle, changes, memory; misses and walks are not counted.
        assert_eq!((page.matches("<svg").count(), page.matches("Not counted").count()), (6, 3));
        let begin = page.find("id=\"data\">").unwrap() + 10;
        let data = &page[begin..begin + page[begin..].find("</script>").unwrap()];
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["series"][1]["totals"]["exits"], 7502);
        assert_eq!(data["series"][0]["exits"]["cpuid"], 3000);
        assert_eq!(data["figures"][0]["steps"][0], json!([[0.0, 1.0, 1001.0], [1.0, 2.0, 2001.0]]));
    }

    #[test]
    fn a_command_can_be_typed_again() {
        let mut run = run("one", "a", 1);
        run.about["command"] = json!(["pal", "run", "--exec", "seq 9 | md5sum"]);
        assert!(page(&[run], &[]).unwrap().contains("pal run --exec 'seq 9 | md5sum'"));
    }

    #[test]
    fn a_page_needs_nothing_else_and_trusts_no_name() {
        let mut hostile = run("<img>", "x</script><script>alert(1)", 1);
        hostile.end = None;
        hostile.about["lab_machine"] = json!("</pre><b>");
        let page = page(&[hostile], &[]).unwrap();
        assert!(!page.contains("<img") && !page.contains("<script>alert") && !page.contains("</pre><b>"));
        assert_eq!(page.matches("<script").count(), 2);
        assert!(page.contains("class=\"warn\"") && page.contains("killed"));
        for word in ["src=", "url(", "@import", "fetch(", "XMLHttpRequest"] {
            assert!(!page.contains(word), "{word}");
        }
        let addresses: Vec<_> =
            page.match_indices("http").map(|(at, _)| &page[at..(at + 18).min(page.len())]).collect();
        assert!(addresses.iter().all(|address| *address == "http://www.w3.org/"), "{addresses:?}");
    }
}
