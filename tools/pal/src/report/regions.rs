//! Regions in a report: which cache each part of a VM's memory is mapped to over time, what each cache has of it, and the regions at
//! the end. Runs without regions have none of this.

use std::{collections::BTreeMap, fmt::Write};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    chart::{self, COLOURS, Cell},
    figures::{Series, Step},
    page::escape,
};
use crate::samples::line::Regions;

/// Columns of a map at most; a run has ten moments in a second.
const COLUMNS: usize = 300;

/// What became of the regions of a series.
pub fn of<'a>(series: &Series<'a>) -> Vec<&'a Regions> {
    let vm = series.samples.first().map(|sample| sample.vm);
    series.run.regions.iter().filter(|regions| Some(regions.vm) == vm).collect()
}

/// The moments of a map, each with its begin and its end in seconds: until the next one, and the last one until the end.
fn moments<'a>(all: &[&'a Regions], end: f64) -> Vec<(f64, f64, &'a Regions)> {
    let every = all.len().div_ceil(COLUMNS).max(1);
    let some: Vec<_> = all.iter().step_by(every).map(|it| (it.machine_ns as f64 / 1e9, *it)).collect();
    let ends = some.iter().skip(1).map(|next| next.0).chain([end]);
    some.iter().zip(ends).map(|((begin, it), end)| (*begin, end.max(*begin), *it)).collect()
}

/// The cells of a map: neighbours in time that are mapped to one cache are one.
fn cells(moments: &[(f64, f64, &Regions)]) -> Vec<Cell> {
    let bins = moments.iter().map(|(.., it)| it.map.len()).max().unwrap_or(0);
    let mut all: Vec<Cell> = Vec::new();
    for bin in 0..bins {
        let mut open: Option<Cell> = None;
        for (begin, end, regions) in moments {
            let cache = regions.map.get(bin).copied().flatten();
            match (&mut open, cache) {
                (Some(cell), Some(cache)) if cell.colour == usize::from(cache) => cell.end = *end,
                (_, cache) => {
                    all.extend(open.take());
                    open = cache.map(|cache| Cell {
                        begin: *begin,
                        end: *end,
                        row: bin,
                        colour: cache.into(),
                        strength: 1.0,
                    });
                }
            }
        }
        all.extend(open);
    }
    all
}

/// MiB of each cache over time.
fn sizes(moments: &[(f64, f64, &Regions)]) -> Vec<(usize, Vec<Step>)> {
    let caches = moments.iter().map(|(.., it)| it.caches.len()).max().unwrap_or(0);
    let of = |cache: usize| {
        let size = |it: &Regions| it.caches.get(cache).map_or(0, |cache| cache.0) as f64 / f64::from(1 << 20);
        (cache, moments.iter().map(|(begin, end, it)| (*begin, *end, size(it))).collect())
    };
    (0..caches).map(of).collect()
}

/// The names of the caches with their colours.
fn legend(caches: usize) -> String {
    let entry = |cache: usize| {
        let colour = cache % COLOURS;
        format!("<span><i style=\"background:var(--s{colour})\"></i>cache {cache}</span>")
    };
    format!("<p class=\"legend\">{}</p>", (0..caches).map(entry).collect::<String>())
}

/// Moves of each region that was listed, over the run.
fn moves(all: &[&Regions]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for region in all.iter().flat_map(|it| &it.regions) {
        let sum: &mut u64 = sums.entry(region.name()).or_default();
        *sum = sum.saturating_add(region.moves);
    }
    sums
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes / 1024)
}

/// The regions at the end, as a table.
fn table(all: &[&Regions]) -> String {
    let Some(last) = all.last().filter(|last| !last.regions.is_empty()) else { return String::new() };
    let mut html = String::from(
        "<div class=\"wide\"><table class=\"regions\"><tr><th>region</th><th>kind</th><th>cache</th><th>size</th>\
         <th>working set</th><th>used for</th><th>VCPUs moved</th><th>space</th></tr>",
    );
    let moves = moves(all);
    for region in &last.regions {
        let name = region.name();
        let by = if region.is_guests { "the guest's " } else { "" };
        let cache = region.cache.map_or_else(|| "all".into(), |cache| cache.to_string());
        let used = region.working_set.map_or_else(|| "–".into(), kib);
        let time = region.access_ns.map_or_else(|| "–".into(), |ns| format!("{} µs", ns / 1000));
        let space = region.space_root.map_or_else(|| "VM".into(), |root| format!("{root:x}"));
        let _ = write!(
            html,
            "<tr><td>{by}{}</td><td>{}</td><td>{cache}</td><td>{}</td><td>{used}</td><td>{time}</td><td>{}</td><td>{space}</td></tr>",
            region.number,
            escape(&region.kind),
            kib(region.bytes),
            moves.get(&name).copied().unwrap_or(0)
        );
    }
    html + "</table></div>"
}

/// What is to be said of a series' regions; nothing if it has none.
///
/// # Errors
/// A chart cannot be drawn.
pub fn section(all: &[Series<'_>], end: f64) -> Result<String> {
    let mut html = String::new();
    for series in all {
        let seen = of(series);
        let Some(last) = seen.last() else { continue };
        if html.is_empty() {
            html += "<h2 id=\"regions\">Regions <small>of memory, and the caches that they are mapped to</small></h2>";
        }
        // A VM may end before the run does.
        let last_ns = series.samples.last().map_or(last.machine_ns, |sample| sample.machine_ns);
        let moments = moments(&seen, last_ns as f64 / 1e9);
        let cells = cells(&moments);
        let bins = seen.iter().map(|it| it.map.len()).max().unwrap_or(0);
        let mib = last.bytes as f64 / f64::from(1 << 20);
        let [found, defined] = last.known;
        let sum = |part: fn(&Regions) -> u64| seen.iter().map(|it| part(it)).fold(0, u64::saturating_add);
        let _ = write!(
            html,
            "<h3>{}</h3><p>Regions at the end: found by the hypervisor {found}, defined by the guest {defined}. VCPUs moved to the \
             cache of a region {} times; regions globalised {}, opened for an idle processor {} times.</p>",
            escape(&series.name),
            sum(|it| it.moves),
            sum(|it| it.globalised),
            sum(|it| it.opened)
        );
        if cells.is_empty() {
            html += "<p>No memory of it was mapped to a cache, as far as samples tell.</p>";
            html += &table(&seen);
            continue;
        }
        html += &legend(last.caches.len());
        let _ = write!(
            html,
            "<figure>{}</figure><p>Memory by its address, from 0 below to {mib} MiB above: the cache that it is mapped to. What is \
             not marked is open in all.</p>",
            chart::map(&cells, bins, (mib, "MiB"), end)?
        );
        let sizes = sizes(&moments);
        if sizes.iter().flat_map(|(_, steps)| steps).any(|step| step.2 > 0.0)
            && let Some((svg, ..)) = chart::figure(&sizes, end)?
        {
            let _ = write!(html, "<figure>{svg}</figure><p>MiB that are mapped to each cache.</p>");
        }
        html += &table(&seen);
    }
    Ok(html)
}

/// The same for programs; null if there are none.
pub fn data(series: &Series<'_>) -> Value {
    let seen = of(series);
    let Some(last) = seen.last() else { return Value::Null };
    let sum = |part: fn(&Regions) -> u64| seen.iter().map(|it| part(it)).fold(0, u64::saturating_add);
    let caches: Vec<_> = last.caches.iter().map(|it| json!({ "bytes": it.0, "working_set": it.1 })).collect();
    json!({ "found": last.known[0], "defined": last.known[1], "moves": sum(|it| it.moves),
        "globalised": sum(|it| it.globalised), "opened": sum(|it| it.opened), "caches": caches })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::figures;
    use crate::samples::{
        Run,
        line::tests::REGIONS,
        tests::{ABOUT, END, line},
    };

    fn run() -> Run {
        let one = REGIONS.replace('\n', "");
        let two = one
            .replace("\"machine_ns\":2000000000", "\"machine_ns\":3000000000")
            .replace("..0011..", "..0.111a");
        Run::read(format!("{ABOUT}{}{one}\n{}{two}\n{END}", line("a", 2, 5), line("a", 4, 5)).as_bytes())
            .unwrap()
    }

    #[test]
    fn a_map_has_what_the_lines_say() {
        let run = run();
        let seen: Vec<_> = run.regions.iter().collect();
        let moments = moments(&seen, 4.0);
        assert_eq!(moments.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>(), [(2.0, 3.0), (3.0, 4.0)]);
        let found: Vec<_> =
            cells(&moments).into_iter().map(|it| (it.row, it.colour, it.begin, it.end)).collect();
        assert_eq!(
            found,
            [
                (2, 0, 2.0, 4.0),
                (3, 0, 2.0, 3.0),
                (4, 1, 2.0, 4.0),
                (5, 1, 2.0, 4.0),
                (6, 1, 3.0, 4.0),
                (7, 10, 3.0, 4.0)
            ]
        );
        assert_eq!(sizes(&moments)[1], (1, vec![(2.0, 3.0, 3.0), (3.0, 4.0, 3.0)]));
    }

    #[test]
    fn a_section_shows_size_working_set_cache_and_moves() {
        let run = run();
        let runs = [run];
        let all = figures::series(&runs);
        let html = section(&all, 4.0).unwrap();
        assert_eq!(html.matches("<svg").count(), 2, "{html}");
        let row = "<tr><td>259</td><td>local</td><td>0</td><td>3072 KiB</td><td>2048 KiB</td><td>123 µs</td><td>450</td><td>12000</td></tr>";
        assert!(
            html.contains(row) && html.contains("<td>the guest's 1</td><td>regular</td><td>all</td>"),
            "{html}"
        );
        assert!(html.contains("moved to the cache of a region 900 times"), "{html}");
        assert_eq!(data(&all[0])["moves"], 900);
        let open = Regions { map: vec![None; 8], ..all[0].run.regions[0].clone() };
        let open = [Run {
            regions: vec![open],
            ..Run::read(format!("{ABOUT}{}", line("a", 2, 5)).as_bytes()).unwrap()
        }];
        let html = section(&figures::series(&open), 4.0).unwrap();
        assert!(
            html.contains("No memory of it was mapped") && html.contains("259") && !html.contains("<svg"),
            "{html}"
        );
        assert!(crate::report::page::page(&runs, &[]).unwrap().contains("id=\"regions\""));
    }

    #[test]
    fn runs_without_regions_have_no_section() {
        let runs = [Run { regions: Vec::new(), ..run() }];
        let all = figures::series(&runs);
        assert_eq!((section(&all, 4.0).unwrap(), data(&all[0])), (String::new(), Value::Null));
    }

    #[test]
    fn long_runs_have_as_many_columns_as_a_chart_has_room_for() {
        let one = run().regions.remove(0);
        let many: Vec<_> =
            (0..10_000).map(|n| Regions { machine_ns: n * 1_000_000, ..one.clone() }).collect();
        let many: Vec<_> = many.iter().collect();
        let moments = moments(&many, 10.0);
        assert!(moments.len() <= COLUMNS && moments.len() > COLUMNS / 2, "{}", moments.len());
        assert_eq!(cells(&moments).len(), 4, "nothing changes");
    }
}
