//! The page of `pal report`: its values are those of the samples, and a browser shows it without complaint.

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::context::{Context, PATIENCE};

/// At the end of a copy of the page: points at the middle step of the first chart, and tells whether its value is shown.
const PROBE: &str = r#"<script>
addEventListener("error", (event) => { document.body.dataset.error = event.message; });
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const figure = data.figures[0], steps = figure.steps[0], step = steps[steps.length >> 1];
  const element = document.querySelector('figure[data-figure="0"]');
  const svg = element.querySelector("svg"), box = svg.getBoundingClientRect();
  const time = (step[0] + step[1]) / 2;
  const x = figure.place[0] + time / data.end * (figure.place[1] - figure.place[0]);
  const clientX = box.left + x * box.width / svg.viewBox.baseVal.width;
  element.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY: box.top + 9, bubbles: true }));
  const wanted = step[2].toLocaleString("en", { maximumSignificantDigits: 5 });
  const tip = document.getElementById("tip");
  document.body.dataset.tip = !tip.hidden && tip.textContent.includes(wanted) ? "right" : `${tip.textContent}, not ${wanted}`;
}
</script>"#;

/// The text of a table's cells in a row with this title.
fn row<'a>(page: &'a str, table: &str, title: &str) -> Result<Vec<&'a str>> {
    let begin = page.find(&format!("<table id=\"{table}\">")).with_context(|| format!("no table {table}"))?;
    let row = format!("<td>{title}</td>");
    let begin = begin + page[begin..].find(&row).with_context(|| format!("no {title}"))? + row.len();
    let row = &page[begin..begin + page[begin..].find("</tr>").context("the row does not end")?];
    Ok(row
        .split("<td>")
        .skip(1)
        .map(|cell| cell.split(['<', '\u{a0}']).next().unwrap_or(cell).trim())
        .collect())
}

/// A number as tables have it: groups of digits with thin spaces.
fn number(cell: &str) -> Option<u64> {
    let digits: String =
        cell.split("&nbsp;").collect::<String>().chars().filter(|c| *c != '\u{202f}').collect();
    digits.parse().ok()
}

/// Reports a file of samples beside a damaged copy of it, and looks at the page.
pub fn check(context: &Context, samples: &str) -> Result<()> {
    let text = fs::read_to_string(samples)?;
    // In a line: at the end of one nothing would be damaged.
    let half = text[..text.len() / 2].rfind('\n').context("one line only")? + "\n{".len();
    let cut = context.file("cut.jsonl", &text[..half])?;
    let page = context.path("page.html");
    let made = context.pal(["report", samples, &cut, "-o", &page], None)?.status(0)?;
    made.says("cut: ")?.says("killed")?.says("1 damaged")?;
    let html = fs::read_to_string(&page)?;
    values(&html, &text)?;
    for other in ["/dev/null", &page] {
        context.pal(["report", other, "-o", &page], None)?.status(2)?.says("not a file of samples")?;
    }
    context.pal(["report", samples, "-o", "/dev/full"], None)?.status(2)?.says("choose another place")?;
    browse(context, &html, &text)
}

/// Reports the samples of a lab machine: what its counters say is there, and what it is.
pub fn check_lab(context: &Context, samples: &str) -> Result<()> {
    let page = context.path("lab.html");
    context.pal(["report", samples, "-o", &page], None)?.status(0)?;
    let (html, text) = (fs::read_to_string(&page)?, fs::read_to_string(samples)?);
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    for (title, counter) in [
        ("instructions of the guest", "instructions"),
        ("data TLB misses", "dtlb_misses"),
        ("page walks", "walks"),
        ("cycles of page walks", "walk_cycles"),
        ("last-level cache misses", "llc_misses"),
    ] {
        let sum: u64 = lines.iter().filter_map(|line| line["guest"][counter].as_u64()).sum();
        let cells = row(&html, "totals", title)?;
        ensure!(sum > 0 && number(cells[0]) == Some(sum), "{title}: {cells:?}, not {sum}");
    }
    let shown = [
        "The machine zen3</summary>",
        "QEMU emulator version",
        "[[walk_cache]]",
        "version of pal and hypervisor",
        "--lab zen3",
    ];
    let missing = shown.iter().find(|text| !html.contains(**text));
    ensure!(missing.is_none() && !html.contains("Not counted in these runs"), "{missing:?}");
    Ok(())
}

/// The page's values are those of the lines.
fn values(html: &str, text: &str) -> Result<()> {
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let samples = || lines.iter().filter(|line| line["t"] == "sample");
    let exits = |reason: Option<&str>| -> u64 {
        let all = samples().flat_map(|line| line["exits"].as_object().into_iter().flatten());
        all.filter(|(name, _)| reason.is_none_or(|reason| *name == reason))
            .filter_map(|(_, count)| count.as_u64())
            .sum()
    };
    ensure!(exits(None) > 0, "no exits");
    let cells = row(html, "totals", "exits")?;
    ensure!(cells.len() == 2 && number(cells[0]) == Some(exits(None)), "{cells:?}, not {}", exits(None));
    for reason in ["page_fault", "io", "wrmsr"] {
        let cells = row(html, "exits", reason)?;
        ensure!(
            number(cells[0]) == Some(exits(Some(reason))),
            "{reason}: {cells:?}, not {}",
            exits(Some(reason))
        );
    }
    let switches: u64 = samples()
        .flat_map(|line| [&line["switches"]["to_nested"], &line["switches"]["to_shadow"]])
        .filter_map(Value::as_u64)
        .sum();
    let cells = row(html, "totals", "changes of the mode")?;
    ensure!(number(cells[0]) == Some(switches) && switches > 0, "{cells:?}, not {switches}");
    ensure!(row(html, "totals", "data TLB misses")?[0] == "–", "what is absent is not 0");
    Ok(())
}

/// The program, if there is one.
fn browser() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let places = || env::split_paths(&path);
    ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .find_map(|name| places().map(|place| place.join(name)).find(|file| file.is_file()))
}

fn browse(context: &Context, html: &str, text: &str) -> Result<()> {
    let Some(browser) = browser() else {
        println!(
            "note   the report was not opened in a browser: none is installed (apt-get install chromium)"
        );
        return Ok(());
    };
    let probed = html.replace("</body>", &format!("{PROBE}</body>"));
    ensure!(probed.len() > html.len(), "the page has no end");
    let page = context.file("probed.html", probed)?;
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
    ]);
    command.arg(format!("--user-data-dir={}", context.path("profile"))).arg("--dump-dom");
    command.env("HOME", context.path("home")).arg(format!("file://{page}"));
    let shown = context.wait_for(command, PATIENCE)?.status(0)?;
    let dom = shown.stdout();
    let complaints: Vec<_> = shown.stderr.lines().filter(|line| line.contains("CONSOLE")).collect();
    ensure!(complaints.is_empty() && !dom.contains("data-error"), "{complaints:?}");
    let told = dom.split("data-tip=\"").nth(1).and_then(|rest| rest.split('"').next());
    ensure!(told == Some("right"), "the chart tells {told:?}");
    ensure!(dom.matches("<svg").count() >= 4 && dom.matches("<polyline").count() >= 4, "charts are missing");
    values(&dom, text)
}
