//! From a file's text to a machine that can be built.

use std::ops::Range;

use toml::Spanned;

use super::{Cache, Machine, Policy, Port, Shape, Sharing};
use crate::model::cache::PLRU_WAYS;

/// What is wrong with a description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {text}")]
pub struct Error {
    /// The file's name.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// Cause, and what to do.
    pub text: String,
}

/// Entries of one array at most: slots are numbered with 16 bits.
const MOST_ENTRIES: usize = 32768;
/// The largest cache: 1 GiB.
const MOST_KIB: usize = 1 << 20;

/// The longest that anything takes, in cycles: sums of many stay far from 64 bits.
const MOST_CYCLES: u64 = 1_000_000;

/// The most that a range of memory may carry, in MB/s.
const MOST_MB_S: u64 = 100_000_000;

/// Reads a description and checks it. `file` is its name in errors.
///
/// # Errors
/// Unknown or missing keys, values of the wrong kind, impossible geometry.
pub fn read(text: &str, file: &str) -> Result<Machine, Error> {
    let fail = |(span, message): (Range<usize>, String)| {
        let line = text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1;
        Error { file: file.to_owned(), line, text: message }
    };
    let machine: Machine = toml::from_str(text).map_err(|error| {
        let advice = "; docs/lab.md lists the keys";
        fail((error.span().unwrap_or(0..0), format!("{}{advice}", error.message())))
    })?;
    check(&machine).map_err(fail)?;
    Ok(machine)
}

type Problem = (Range<usize>, String);

fn check(machine: &Machine) -> Result<(), Problem> {
    header(machine)?;
    tlbs(machine)?;
    for array in machine.walk_cache.iter().chain(&machine.nested_walk_cache) {
        let cache = array.get_ref();
        shape(array, cache.shape(), "walk cache")?;
        not_empty(array, cache.holds.is_empty(), "holds", "\"pde\", \"pdpte\", \"pml4e\"")?;
        sourced(array, &cache.source)?;
    }
    for array in &machine.nested_tlb {
        let tlb = array.get_ref();
        shape(array, tlb.shape(), "nested TLB")?;
        not_empty(array, tlb.pages.is_empty(), "pages", "\"4K\", \"2M\", \"1G\"")?;
        sourced(array, &tlb.source)?;
    }
    distinct(&machine.walk_cache, |array| array.classes(), "walk caches")?;
    distinct(&machine.nested_walk_cache, |array| array.classes(), "nested walk caches")?;
    distinct(&machine.nested_tlb, |array| array.classes(), "nested TLBs")?;
    caches(machine)?;
    rest(machine)
}

fn problem<T>(at: &Spanned<T>, text: impl Into<String>) -> Result<(), Problem> {
    Err((at.span(), text.into()))
}

fn header(machine: &Machine) -> Result<(), Problem> {
    if *machine.version.get_ref() != 1 {
        return problem(
            &machine.version,
            format!("version {} is unknown: write 1", machine.version.get_ref()),
        );
    }
    if !(1..=100_000).contains(machine.mhz.get_ref()) {
        return problem(&machine.mhz, "mhz must be from 1 to 100000: cycles in a microsecond");
    }
    if machine.pcpus_per_domain == 0 {
        return problem(&machine.mhz, "pcpus_per_domain must be 1 or more");
    }
    let name = machine.name.get_ref();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return problem(&machine.name, "name must be a word of letters, digits, -, _ and .");
    }
    sourced(&machine.source, machine.source.get_ref())
}

fn sourced<T>(at: &Spanned<T>, source: &str) -> Result<(), Problem> {
    if source.trim().is_empty() {
        return problem(at, "source is empty: cite a manual or a measurement, or write \"assumed\"");
    }
    Ok(())
}

fn takes<T>(at: &Spanned<T>, cycles: impl IntoIterator<Item = u64>) -> Result<(), Problem> {
    match cycles.into_iter().find(|cycles| *cycles > MOST_CYCLES) {
        Some(cycles) => problem(at, format!("{cycles} cycles: nothing takes more than {MOST_CYCLES}")),
        None => Ok(()),
    }
}

fn not_empty<T>(at: &Spanned<T>, empty: bool, key: &str, words: &str) -> Result<(), Problem> {
    if empty {
        return problem(at, format!("{key} is empty: name one or more of {words}"));
    }
    Ok(())
}

fn shape<T>(at: &Spanned<T>, Shape { entries, ways, policy }: Shape, what: &str) -> Result<(), Problem> {
    if !(1..=MOST_ENTRIES).contains(&entries) {
        return problem(at, format!("a {what} has 1 to {MOST_ENTRIES} entries, not {entries}"));
    }
    set(at, entries, ways, policy, "entries")
}

fn set<T>(at: &Spanned<T>, entries: usize, ways: usize, policy: Policy, what: &str) -> Result<(), Problem> {
    if ways == 0 || !entries.is_multiple_of(ways) {
        let text =
            format!("{ways} ways do not divide {entries} {what}: change one, or write ways = \"full\"");
        return problem(at, text);
    }
    if policy == Policy::Plru && !ways.is_power_of_two() {
        return problem(at, format!("plru needs a power of two of ways, not {ways}: take lru"));
    }
    Ok(())
}

fn tlbs(machine: &Machine) -> Result<(), Problem> {
    for (index, array) in machine.tlb.iter().enumerate() {
        let tlb = array.get_ref();
        shape(array, tlb.shape(), "TLB")?;
        not_empty(array, tlb.pages.is_empty(), "pages", "\"4K\", \"2M\", \"1G\"")?;
        sourced(array, &tlb.source)?;
        takes(array, [tlb.latency])?;
        if !(1..=2).contains(&tlb.level) {
            return problem(array, format!("a TLB's level is 1 or 2, not {}", tlb.level));
        }
        if tlb.level == 1 && tlb.port == Port::Both {
            return problem(array, "a first-level TLB is for data or for code: write two");
        }
        let same = machine.tlb[..index].iter().map(Spanned::get_ref);
        let mut same = same.filter(|other| other.level == tlb.level);
        if same.clone().any(|other| other.port == tlb.port && other.classes() & tlb.classes() != 0) {
            return problem(array, "another TLB of this level and port holds the same pages: join them");
        }
        if same.any(|other| (other.port == Port::Both) != (tlb.port == Port::Both)) {
            return problem(array, "the second level is for both, or there is one for data and one for code");
        }
    }
    for (port, word) in [(Port::Data, "data"), (Port::Code, "code")] {
        let mut first =
            machine.tlb.iter().map(Spanned::get_ref).filter(|tlb| tlb.level == 1 && tlb.port == port);
        if !first.any(|tlb| tlb.classes() & 1 != 0) {
            let text =
                format!("no first-level TLB for {word} holds \"4K\" pages: add a [[tlb]] with level = 1");
            return problem(&machine.name, text);
        }
    }
    Ok(())
}

fn distinct<T>(arrays: &[Spanned<T>], classes: impl Fn(&T) -> u8, what: &str) -> Result<(), Problem> {
    let mut seen = 0;
    for array in arrays {
        let mine = classes(array.get_ref());
        if seen & mine != 0 {
            return problem(array, format!("two {what} hold the same: join them"));
        }
        seen |= mine;
    }
    Ok(())
}

fn caches(machine: &Machine) -> Result<(), Problem> {
    for (index, spanned) in machine.cache.iter().enumerate() {
        let cache: &Cache = spanned.get_ref();
        if !(1..=MOST_KIB).contains(&cache.size_kib) {
            return problem(
                spanned,
                format!("size_kib must be from 1 to {MOST_KIB}, not {}", cache.size_kib),
            );
        }
        let Shape { entries, ways, policy } = cache.shape();
        set(spanned, entries, ways, policy, "lines of 64 bytes")?;
        if policy == Policy::Plru && ways > PLRU_WAYS {
            return problem(
                spanned,
                format!("a cache with plru has {PLRU_WAYS} ways at most, not {ways}: take lru"),
            );
        }
        sourced(spanned, &cache.source)?;
        takes(spanned, [cache.latency])?;
        match (cache.level, cache.port) {
            (1, Port::Data | Port::Code) if cache.shared == Sharing::Pcpu => {}
            (1, Port::Both) => {
                return problem(spanned, "a first-level cache is for data or for code: write two");
            }
            (1, _) => return problem(spanned, "a first-level cache is one processor's: shared = \"pcpu\""),
            (2 | 3, Port::Both) => {}
            (2 | 3, _) => {
                return problem(spanned, "the second and third levels are for both: port = \"both\"");
            }
            (level, _) => return problem(spanned, format!("a cache's level is 1, 2 or 3, not {level}")),
        }
        let others = || machine.cache[..index].iter().map(Spanned::get_ref);
        if others().any(|other| other.level == cache.level && other.port == cache.port) {
            return problem(spanned, "there are two such caches: join them");
        }
    }
    let has = |level: u8, port: Port| {
        machine.cache.iter().any(|c| c.get_ref().level == level && c.get_ref().port == port)
    };
    for (level, port, text) in [(1, Port::Data, "data"), (1, Port::Code, "code"), (2, Port::Both, "both")] {
        if !has(level, port) {
            let text = format!("there is no cache of level {level} for {text}: add a [[cache]]");
            return problem(&machine.name, text);
        }
    }
    Ok(())
}

fn rest(machine: &Machine) -> Result<(), Problem> {
    let walker = machine.walker.get_ref();
    if !(1..=2).contains(&walker.begins_at) {
        return problem(&machine.walker, "the walker's references begin at the caches' level 1 or 2");
    }
    sourced(&machine.walker, &walker.source)?;
    if let Some(spanned) = &machine.prefetch {
        let prefetch = spanned.get_ref();
        if !(1..=1024).contains(&prefetch.streams) || !(1..=64).contains(&prefetch.degree) {
            return problem(spanned, "a prefetcher has 1 to 1024 streams and goes 1 to 64 lines ahead");
        }
        sourced(spanned, &prefetch.source)?;
    }
    memory(machine)?;
    let cost = machine.cost.get_ref();
    takes(&machine.cost, [cost.vmrun, cost.vmexit, cost.invlpg, cost.cr3_write, cost.ipi])?;
    sourced(&machine.cost, &cost.source)
}

fn memory(machine: &Machine) -> Result<(), Problem> {
    let memory = machine.memory.get_ref();
    sourced(&machine.memory, &memory.source)?;
    takes(&machine.memory, [memory.local, memory.remote, memory.slow])?;
    let mut levels: Vec<_> =
        machine.cache.iter().map(Spanned::get_ref).map(|c| (c.level, c.latency)).collect();
    levels.sort_unstable();
    let inner = levels.iter().zip(levels.iter().skip(1)).find(|(one, two)| one.0 < two.0 && one.1 > two.1);
    if let Some((one, two)) = inner {
        let text = format!(
            "level {} takes {} cycles, but level {} only {}: exchange them",
            one.0, one.1, two.0, two.1
        );
        return problem(&machine.memory, text);
    }
    let farthest = levels.iter().map(|level| level.1).max().unwrap_or(0);
    if memory.local < farthest || memory.remote < memory.local {
        let text = "remote memory takes at least as long as local memory, and that as long as any cache";
        return problem(&machine.memory, text);
    }
    for (index, spanned) in memory.range.iter().enumerate() {
        let range = spanned.get_ref();
        if range.from_mib >= range.to_mib || range.to_mib > 1 << 32 {
            let text =
                format!("the range from {} to {} MiB is empty or too large", range.from_mib, range.to_mib);
            return problem(spanned, text);
        }
        if let Some(mb_s) = range.bandwidth_mb_s {
            if !(1..=MOST_MB_S).contains(&mb_s) {
                let text = format!(
                    "bandwidth_mb_s must be from 1 to {MOST_MB_S}, not {mb_s}: leave it out for memory that is never busy"
                );
                return problem(spanned, text);
            }
            // Of a line's 64 bytes; a megabyte in a second is a byte in a microsecond.
            takes(spanned, [64 * u64::from(*machine.mhz.get_ref()) / mb_s])?;
        }
        let mut before = memory.range[..index].iter().map(Spanned::get_ref);
        if before.any(|other| range.from_mib < other.to_mib && other.from_mib < range.to_mib) {
            return problem(spanned, "this range overlaps one above: make them disjoint");
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
