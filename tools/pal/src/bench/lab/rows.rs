//! What is measured on a lab machine: the usual rows, and accesses of memory whose sizes follow from its TLBs.

use labsim::machine::{Machine, Page, Port};
use toml::Spanned;

use crate::{bench::rows::ROWS, status::Usage};

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its name in the guest's records, on the command line and in JSON.
    pub name: String,
    /// What a person reads.
    pub title: String,
}

/// Rows that access memory: the word on the command line, and what a person reads.
const KINDS: [(&str, &str); 4] = [
    ("chase", "load, chased through"),
    ("gups", "update of a random word of"),
    ("stream", "word of the triad over"),
    ("populate", "page populated of"),
];
/// Pages, by their words in names.
const PAGES: [(&str, Page, u64); 2] = [("4k", Page::Small, 4 << 10), ("2m", Page::Large, 2 << 20)];
/// Every machine is measured with this much, so that machines can be compared; nothing is larger.
const LARGEST: u64 = 256 << 20;

/// The rows with these names, in order; all for no names. `chase`, `gups`, `stream` and `populate` stand for all of theirs on this machine.
///
/// # Errors
/// [`Usage`] for a name that there is not.
pub fn select(names: &[String], machine: &Machine) -> Result<Vec<Row>, Usage> {
    let usual: Vec<Row> = ROWS[..ROWS.len() - 1].iter().map(usual).collect();
    let accesses = accesses(machine);
    if names.is_empty() {
        return Ok([usual, accesses].concat());
    }
    let mut rows: Vec<Row> = usual.iter().filter(|row| names.contains(&row.name)).cloned().collect();
    for name in names.iter().filter(|name| !usual.iter().any(|row| row.name == **name)) {
        let of_kind = accesses.iter().filter(|row| row.name.split('-').next() == Some(name)).cloned();
        let mut found: Vec<Row> = of_kind.collect();
        found.extend(named(name));
        if found.is_empty() {
            let known: Vec<_> = usual.iter().map(|row| row.name.as_str()).collect();
            return Err(Usage::new(format!(
                "--only {name}: no such row with --lab; there are {}, chase, gups, stream, populate, and their rows by name, such as chase-4k-256m",
                known.join(", ")
            )));
        }
        rows.extend(found.into_iter().filter(|row| !rows.contains(row)).collect::<Vec<_>>());
    }
    Ok(rows)
}

fn usual(row: &crate::bench::rows::Row) -> Row {
    Row { name: row.name.to_owned(), title: row.title.to_owned() }
}

/// Chases at sizes on both sides of each data TLB's reach, and rows that are the same everywhere.
fn accesses(machine: &Machine) -> Vec<Row> {
    let mut rows = Vec::new();
    for (page, kind, bytes) in PAGES {
        let mut sizes = vec![LARGEST];
        for reach in
            [1, 2].map(|level| reach(machine, level, kind, bytes)).into_iter().filter(|reach| *reach > 0)
        {
            // The chase takes powers of two: the largest that leaves room for other pages, and the smallest that does not fit.
            let above = (reach + 1).next_power_of_two();
            sizes.extend([if reach.is_power_of_two() { reach / 2 } else { above / 2 }, above]);
        }
        sizes.retain(|size| (bytes..=LARGEST).contains(size));
        sizes.sort_unstable();
        sizes.dedup();
        rows.extend(sizes.into_iter().filter_map(|size| named(&format!("chase-{page}-{}", words(size)))));
    }
    let fixed = ["gups-4k-64m", "gups-2m-64m", "stream-4k-48m", "stream-2m-48m", "populate-4k-4m"];
    rows.extend(fixed.into_iter().filter_map(named));
    rows
}

/// What the data TLBs of a level hold of these pages, in bytes.
fn reach(machine: &Machine, level: u32, page: Page, bytes: u64) -> u64 {
    let arrays = machine.tlb.iter().map(Spanned::get_ref);
    let arrays = arrays
        .filter(|tlb| u32::from(tlb.level) == level && tlb.port != Port::Code && tlb.pages.contains(&page));
    arrays.map(|tlb| tlb.entries as u64 * bytes).sum()
}

/// The row of this name, if it is one that the guest's program knows (`bench/guest/src/ops/access.rs`).
fn named(name: &str) -> Option<Row> {
    let words: Vec<&str> = name.split('-').collect();
    let [kind, page, size] = words[..] else { return None };
    let (_, title) = KINDS.iter().find(|(word, _)| *word == kind)?;
    let (_, _, bytes) = PAGES.iter().find(|(word, ..)| *word == page)?;
    let (number, shift, unit) = match (size.strip_suffix('k'), size.strip_suffix('m')) {
        (Some(number), _) => (number, 10, "KiB"),
        (_, Some(number)) => (number, 20, "MiB"),
        _ => return None,
    };
    let size = number.parse::<u64>().ok().filter(|number| *number <= LARGEST >> 10)? << shift;
    let masked = kind == "chase" || kind == "gups";
    if !(*bytes..=LARGEST).contains(&size) || size % bytes != 0 || masked && !size.is_power_of_two() {
        return None;
    }
    let pages = if page == "4k" { "4 KiB" } else { "2 MiB" };
    Some(Row { name: name.to_owned(), title: format!("{title} {number} {unit}, {pages} pages") })
}

/// A size as it stands in names.
fn words(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{}k", bytes >> 10) } else { format!("{}m", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select_on(name: &str, names: &[&str]) -> Result<Vec<String>, Usage> {
        let machine = crate::lab::find(name).unwrap().1;
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        select(&names, &machine).map(|rows| rows.into_iter().map(|row| row.name).collect())
    }

    #[test]
    fn sizes_lie_around_the_reach_of_each_tlb() {
        // Westmere: 64 and 512 entries for 4 KiB, 32 for 2 MiB.
        let westmere = [
            "chase-4k-128k",
            "chase-4k-512k",
            "chase-4k-1m",
            "chase-4k-4m",
            "chase-4k-256m",
            "chase-2m-32m",
            "chase-2m-128m",
            "chase-2m-256m",
        ];
        assert_eq!(select_on("westmere-x5660", &["chase"]).unwrap(), westmere);
        for (name, _) in labsim::machine::PRESETS {
            let rows = select_on(name, &[]).unwrap();
            assert!(
                ["chase-4k-256m", "chase-2m-256m", "cpuid", "stream-4k-48m"]
                    .iter()
                    .all(|row| rows.iter().any(|name| name == row)),
                "{name}"
            );
            let machine = crate::lab::find(name).unwrap().1;
            for (page, kind, bytes) in PAGES {
                for reach in [1, 2]
                    .map(|level| reach(&machine, level, kind, bytes))
                    .into_iter()
                    .filter(|reach| (2 * bytes + 1..LARGEST / 2).contains(reach))
                {
                    let sizes = rows.iter().filter_map(|row| row.strip_prefix(&format!("chase-{page}-")));
                    let sizes: Vec<u64> = sizes
                        .map(|size| {
                            let (number, unit) = size.split_at(size.len() - 1);
                            number.parse::<u64>().unwrap() << if unit == "k" { 10 } else { 20 }
                        })
                        .collect();
                    let near = |range: std::ops::Range<u64>| sizes.iter().any(|size| range.contains(size));
                    assert!(
                        near(reach / 4..reach) && near(reach + 1..2 * reach + 1),
                        "{name}: {reach} {sizes:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_by_name_and_by_kind() {
        let rows = select_on("zen3", &["gups", "chase-4k-16m", "fork-wait", "gups-4k-64m"]).unwrap();
        assert_eq!(rows, ["fork-wait", "gups-4k-64m", "gups-2m-64m", "chase-4k-16m"]);
        for wrong in ["first-instruction", "chase-4k-3m", "chase-4k-512m", "chase-2m-1m", "chase-4k", "gup"] {
            let error = select_on("zen3", &[wrong]).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("chase-4k-256m"), "{error}");
        }
        assert_eq!(named("chase-4k-256m").unwrap().title, "load, chased through 256 MiB, 4 KiB pages");
    }
}
