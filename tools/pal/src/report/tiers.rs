//! Fast memory in a report, and what was evicted: what there was over time, and what moved. Runs without either have none of this.

use std::fmt::Write;

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    chart::{self, COLOURS},
    figures::{Series, Step},
    heat,
    page::escape,
};
use crate::samples::memory::{Pager, Tiers};

/// Steps of a chart at most; a run has ten moments in a second.
const STEPS: usize = 600;

/// A moment of a VM, and what was counted since the one before.
trait Moment {
    fn machine_ns(&self) -> u64;
    fn span_ns(&self) -> u64;
}

impl Moment for Tiers {
    fn machine_ns(&self) -> u64 {
        self.machine_ns
    }
    fn span_ns(&self) -> u64 {
        self.span_ns
    }
}

impl Moment for Pager {
    fn machine_ns(&self) -> u64 {
        self.machine_ns
    }
    fn span_ns(&self) -> u64 {
        self.span_ns
    }
}

/// A part of a moment, and what it is called.
type Part<T> = (&'static str, fn(&T) -> u64);

/// What a chart shows of its parts.
#[derive(Clone, Copy, PartialEq)]
enum Shows {
    /// MiB at each moment.
    Size,
    /// How often in a second.
    Rate,
}

/// The steps of a part: several moments together, where there are more than a chart has room for.
fn steps<T: Moment>(all: &[&T], part: fn(&T) -> u64, shows: Shows) -> Vec<Step> {
    let step = |group: &[&T]| {
        let (first, last) = group.first().zip(group.last())?;
        let (begin, end) = (first.machine_ns().saturating_sub(first.span_ns()), last.machine_ns());
        let value = match shows {
            Shows::Size => part(last) as f64 / f64::from(1 << 20),
            Shows::Rate => {
                let span: f64 = group.iter().map(|it| it.span_ns() as f64).sum();
                let count: f64 = group.iter().map(|it| part(it) as f64).sum();
                if span > 0.0 { count * 1e9 / span } else { return None }
            }
        };
        Some((begin as f64 / 1e9, end as f64 / 1e9, value))
    };
    all.chunks(all.len().div_ceil(STEPS).max(1)).filter_map(step).collect()
}

/// A chart with the names of its lines.
fn figure<T: Moment>(all: &[&T], parts: &[Part<T>], shows: Shows, end: f64) -> Result<String> {
    let lines: Vec<_> =
        parts.iter().enumerate().map(|(n, (_, part))| (n, steps(all, *part, shows))).collect();
    let Some((svg, _, top)) = chart::figure(&lines, end)? else { return Ok(String::new()) };
    let entry = |(n, (name, _)): (usize, &Part<T>)| {
        format!("<span><i style=\"background:var(--s{})\"></i>{name}</span>", n % COLOURS)
    };
    let legend: String = parts.iter().enumerate().map(entry).collect();
    let unit = if shows == Shows::Size { "MiB" } else { "in a second" };
    let cut = chart::cut(&lines, top).map_or_else(String::new, |cut| format!(" {cut}"));
    Ok(format!("<p class=\"legend\">{legend}</p><figure>{svg}</figure><p>{unit}.{cut}</p>"))
}

const FAST: [Part<Tiers>; 4] = [
    ("in fast memory", |it| it.fast),
    ("may be there", |it| it.share),
    ("hot, in slow memory", |it| it.waiting),
    ("working set", |it| it.working_set),
];
const MOVES: [Part<Tiers>; 2] =
    [("pages moved in", |it| it.moved_in), ("pages moved out", |it| it.moved_out)];
const EVICTED: [Part<Pager>; 4] = [
    ("in frames", |it| it.resident),
    ("compressed", |it| it.stored),
    ("frames for these", |it| it.store),
    ("on the disk", |it| it.on_disk),
];
const FAULTS: [Part<Pager>; 5] = [
    ("faults", |it| it.faults),
    ("refaults", |it| it.refaults),
    ("pages came in", |it| it.came_in),
    ("pages went out", |it| it.went_out),
    ("pages came from the disk", |it| it.from_disk),
];

fn sum<T>(all: &[&T], part: fn(&T) -> u64) -> u64 {
    all.iter().map(|it| part(it)).fold(0, u64::saturating_add)
}

/// The lines of a series, of those of its run.
fn of<'a, T>(series: &Series<'_>, all: &'a [T], vm: fn(&T) -> usize) -> Vec<&'a T> {
    let own = series.samples.first().map(|sample| sample.vm);
    all.iter().filter(|it| Some(vm(it)) == own).collect()
}

fn fast<'a>(series: &Series<'a>) -> Vec<&'a Tiers> {
    of(series, &series.run.tiers, |it| it.vm)
}

fn evicted<'a>(series: &Series<'a>) -> Vec<&'a Pager> {
    of(series, &series.run.pagers, |it| it.vm)
}

/// When the E-state changed, in words.
fn states(all: &[&Tiers]) -> String {
    let mut text = String::new();
    let mut before = None;
    let mut changes = 0;
    for it in all {
        let state = it.state();
        if state == before {
            continue;
        }
        changes += 1;
        if changes <= 16 {
            let name = state.clone().unwrap_or_else(|| "none".into());
            let _ = write!(text, " {name} from {:.1} s on;", it.machine_ns as f64 / 1e9);
        }
        before = state;
    }
    if changes > 16 {
        let _ = write!(text, " and {} changes more;", changes - 16);
    }
    if text.is_empty() { text } else { format!(" E-state:{}.", text.trim_end_matches(';')) }
}

/// What the disk for evicted pages has, in words; nothing where none was used.
fn disk(all: &[&Pager]) -> String {
    let (back, writes) = (sum(all, |it| it.from_disk), sum(all, |it| it.disk_writes));
    match all.last() {
        Some(last) if back + writes > 0 || last.on_disk > 0 => format!(
            " On the disk {:.1} MiB; pages that came back from there {back}, by {} reads; writes {writes}.",
            last.on_disk as f64 / f64::from(1 << 20),
            sum(all, |it| it.disk_reads)
        ),
        _ => String::new(),
    }
}

/// What is to be said of the fast memory of all series, and of what was evicted; nothing if they have none.
///
/// # Errors
/// A chart cannot be drawn.
pub fn section(all: &[Series<'_>], end: f64) -> Result<String> {
    let mut html = String::new();
    for (series, seen) in all.iter().map(|series| (series, fast(series))) {
        let Some(last) = seen.last() else { continue };
        if html.is_empty() {
            html += "<h2 id=\"tiers\">Fast memory <small>and the hot pages that move there</small></h2>";
        }
        let _ = write!(
            html,
            "<h3>{}</h3><p>At the end {:.1} of {:.1} MiB; hot pages on the list: {}, of them in slow memory {}. Pages moved in {}, out \
             {}, of which {} were discarded.{}</p>",
            escape(&series.name),
            last.fast as f64 / f64::from(1 << 20),
            last.share as f64 / f64::from(1 << 20),
            last.listed(),
            last.waiting / 4096,
            sum(&seen, |it| it.moved_in),
            sum(&seen, |it| it.moved_out),
            sum(&seen, |it| it.discarded),
            states(&seen)
        );
        html += &figure(&seen, &FAST, Shows::Size, end)?;
        html += &figure(&seen, &MOVES, Shows::Rate, end)?;
        html += &heat::section(&seen, end)?;
    }
    let mut has_head = false;
    for (series, seen) in all.iter().map(|series| (series, evicted(series))) {
        let Some(last) = seen.last() else { continue };
        if !std::mem::replace(&mut has_head, true) {
            html += "<h2 id=\"evicted\">Evicted memory <small>of overcommitted VMs</small></h2>";
        }
        let _ = write!(
            html,
            "<h3>{}</h3><p>At the end {:.1} of {:.1} MiB in frames; faults {}, of them to pages that had been evicted {}.{}</p>",
            escape(&series.name),
            last.resident as f64 / f64::from(1 << 20),
            last.resident_limit as f64 / f64::from(1 << 20),
            sum(&seen, |it| it.faults),
            sum(&seen, |it| it.refaults),
            disk(&seen)
        );
        html += &figure(&seen, &EVICTED, Shows::Size, end)?;
        html += &figure(&seen, &FAULTS, Shows::Rate, end)?;
    }
    Ok(html)
}

/// The fast memory of a series for programs; null if it has none.
pub fn data(series: &Series<'_>) -> Value {
    let seen = fast(series);
    let Some(last) = seen.last() else { return Value::Null };
    json!({ "fast": last.fast, "share": last.share, "waiting": last.waiting, "e_state": last.e_state,
        "moved_in": sum(&seen, |it| it.moved_in), "moved_out": sum(&seen, |it| it.moved_out),
        "discarded": sum(&seen, |it| it.discarded) })
}

/// What was evicted of a series, for programs; null if nothing can be.
pub fn pager(series: &Series<'_>) -> Value {
    let seen = evicted(series);
    let Some(last) = seen.last() else { return Value::Null };
    json!({ "resident": last.resident, "stored": last.stored, "store": last.store, "faults": sum(&seen, |it| it.faults),
        "refaults": sum(&seen, |it| it.refaults), "came_in": sum(&seen, |it| it.came_in),
        "went_out": sum(&seen, |it| it.went_out), "on_disk": last.on_disk, "from_disk": sum(&seen, |it| it.from_disk),
        "disk_reads": sum(&seen, |it| it.disk_reads), "disk_writes": sum(&seen, |it| it.disk_writes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures;
    use crate::samples::{
        Run,
        memory::tests::{PAGER, TIERS},
        tests::{ABOUT, END, line},
    };

    /// The second moment is a tenth of a second after the first.
    fn run() -> Run {
        let both = |text: &str| {
            let one = text.replace('\n', "");
            let two = one.replace("\"machine_ns\":2000000000", "\"machine_ns\":2100000000");
            format!("{one}\n{}\n", two.replace("\"e_state\":2,\"set\":true", "\"e_state\":5,\"set\":false"))
        };
        let text =
            format!("{ABOUT}{}{}{}{}{END}", line("a", 2, 5), both(TIERS), both(PAGER), line("a", 4, 5));
        Run::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn sizes_are_those_of_the_moment_and_rates_those_of_the_time_before() {
        let run = run();
        let all: Vec<_> = run.tiers.iter().collect();
        assert_eq!(steps(&all, |it| it.fast, Shows::Size), [(1.9, 2.0, 3.0), (2.0, 2.1, 3.0)]);
        assert_eq!(steps(&all, |it| it.moved_in, Shows::Rate), [(1.9, 2.0, 300.0), (2.0, 2.1, 300.0)]);
        let stopped = [Tiers { span_ns: 0, ..run.tiers[0].clone() }];
        let stopped: Vec<_> = stopped.iter().collect();
        assert!(steps(&stopped, |it| it.moved_in, Shows::Rate).is_empty(), "no time has passed");
    }

    #[test]
    fn a_section_shows_what_was_there_and_what_moved() {
        let runs = [run()];
        let all = figures::series(&runs);
        let html = section(&all, 4.0).unwrap();
        assert_eq!(html.matches("<svg").count(), 6, "{html}");
        for part in [
            "At the end 3.0 of 4.0 MiB; hot pages on the list: 1024, of them in slow memory 256.",
            "Pages moved in 60, out 20, of which 8 were discarded.",
            "E-state: E2 set from 2.0 s on; E5 from 2.1 s on.",
            "At the end 64.0 of 64.0 MiB in frames; faults 100, of them to pages that had been evicted 80. On the disk 8.0 MiB; pages \
             that came back from there 24, by 6 reads; writes 4.",
            "on the disk</span>",
        ] {
            assert!(html.contains(part), "no {part:?} in {html}");
        }
        assert_eq!((&data(&all[0])["moved_in"], &pager(&all[0])["refaults"]), (&json!(60), &json!(80)));
        assert_eq!((&pager(&all[0])["on_disk"], &pager(&all[0])["from_disk"]), (&json!(8 << 20), &json!(24)));
        let without = Pager { on_disk: 0, from_disk: 0, disk_writes: 0, ..runs[0].pagers[0].clone() };
        assert_eq!(disk(&[&without]), "");
        let page = crate::report::page::page(&runs, &[]).unwrap();
        assert!(page.contains("id=\"tiers\"") && page.contains("id=\"evicted\""));
    }

    #[test]
    fn runs_without_have_no_section() {
        let runs = [Run { tiers: Vec::new(), pagers: Vec::new(), ..run() }];
        let all = figures::series(&runs);
        assert_eq!(
            (section(&all, 4.0).unwrap(), data(&all[0]), pager(&all[0])),
            (String::new(), Value::Null, Value::Null)
        );
    }

    #[test]
    fn long_runs_have_as_many_steps_as_a_chart_has_room_for() {
        let one = run().tiers.remove(0);
        let of = |n: u64| {
            let e_state = Some(n % 2);
            Tiers {
                machine_ns: (n + 1) * 1_000_000,
                span_ns: 1_000_000,
                moved_in: n % 3,
                e_state,
                ..one.clone()
            }
        };
        let many: Vec<_> = (0..10_000).map(of).collect();
        let many: Vec<_> = many.iter().collect();
        let steps = steps(&many, |it| it.moved_in, Shows::Rate);
        assert!(steps.len() <= STEPS && steps.len() > STEPS / 2, "{}", steps.len());
        let moved: f64 = steps.iter().map(|(begin, end, rate)| (end - begin) * rate).sum();
        assert_eq!(moved.round() as u64, sum(&many, |it| it.moved_in));
        let said = states(&many);
        assert!(said.ends_with("and 9984 changes more.") && said.len() < 500, "{said}");
    }
}
