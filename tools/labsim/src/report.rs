//! The report that a run leaves: all counters of all processors, as JSON.

use abi::lab::{AgileCounters, Counters, Record, SWITCH_REFS, Side};
use serde_json::{Map, Value, json};

use std::ops::Range;

use crate::model::{channel::Carried, regions::Region};

/// Of the report's format. Fields may be added without a new number.
pub const VERSION: u32 = 1;

/// What the report says beside the counters.
pub struct About<'a> {
    /// The machine's name.
    pub machine: &'a str,
    /// Cycles in a microsecond.
    pub mhz: u32,
    /// Processors that share a last-level cache.
    pub pcpus_per_domain: u32,
    /// `count`, `tlb` or `full`.
    pub model: &'a str,
    /// `boot`, or `session`, before which only instructions and world switches were counted.
    pub from: &'a str,
    /// That was reached.
    pub modelled: bool,
    /// `off`, `miss` or `all`.
    pub check: &'a str,
    /// How often a processor went on although another one was farther behind than the window of [`crate::model::pace`]. `None`: there
    /// is one processor only.
    pub out_of_step: Option<u64>,
    /// The ranges of memory that have a channel, and what that has carried.
    pub channels: Vec<(Range<u64>, Carried)>,
    /// References of the trace of pages, or why that is cut off. `None`: there is none.
    pub page_trace: Option<Result<u64, String>>,
}

/// One processor.
pub struct Pcpu {
    /// Its counters.
    pub record: Record,
    /// Its first differences from the emulator.
    pub differences: Vec<String>,
    /// What programs have marked, by number.
    pub regions: Vec<Region>,
    /// It is the spare one, on which no guest runs. It has no number, and comes last.
    pub is_spare: bool,
}

/// The report on these processors, in the order of their numbers.
pub fn report(about: &About, pcpus: &[Pcpu]) -> Value {
    let About {
        machine,
        mhz,
        pcpus_per_domain,
        model,
        from,
        modelled,
        check,
        out_of_step,
        channels,
        page_trace,
    } = about;
    let domains = domains(*pcpus_per_domain, pcpus);
    let pcpus: Vec<Value> = pcpus.iter().enumerate().map(|(number, of)| pcpu(number, of)).collect();
    let mut report = json!({
        "version": VERSION, "machine": machine, "mhz": mhz, "model": model, "from": from, "modelled": modelled,
        "check": check, "domains": domains, "pcpus": pcpus
    });
    if let Some(times) = out_of_step {
        report["out_of_step"] = (*times).into();
    }
    if !channels.is_empty() {
        report["channels"] = self::channels(channels);
    }
    match page_trace {
        Some(Ok(references)) => report["page_trace"] = json!({ "references": references }),
        Some(Err(error)) => report["page_trace"] = json!({ "error": error }),
        None => {}
    }
    report
}

/// What the last-level cache of each domain has had, of all its processors and sides. The spare processor has a domain of its own,
/// which is left out.
fn domains(each: u32, pcpus: &[Pcpu]) -> Vec<Value> {
    let described: Vec<&Record> = pcpus.iter().filter(|of| !of.is_spare).map(|of| &of.record).collect();
    let sum = |records: &[&Record], of: fn(&Counters) -> u64| -> u64 {
        records.iter().flat_map(|record| &record.sides).map(of).sum()
    };
    let domain = |(number, records): (usize, &[&Record])| {
        json!({
            "domain": number, "llc_hits": sum(records, |it| it.llc_hits), "llc_misses": sum(records, |it| it.llc_misses)
        })
    };
    described.chunks(each.max(1) as usize).enumerate().map(domain).collect()
}

/// What came through the channels of ranges of memory. `busy` is the share of the time from the first line of any to the last one.
fn channels(all: &[(Range<u64>, Carried)]) -> Value {
    let used = || all.iter().filter(|(_, it)| it.lines + it.prefetched > 0).map(|(_, it)| it.span);
    let begin = used().map(|(begin, _)| begin).min().unwrap_or(0);
    let cycles = used().map(|(_, end)| end).max().unwrap_or(0) - begin;
    let of = |(range, it): &(Range<u64>, Carried)| {
        json!({
            "from_mib": range.start >> 20, "to_mib": range.end >> 20, "lines": it.lines, "prefetched": it.prefetched,
            "waits": it.waits, "wait_cycles": it.wait_cycles, "busy_cycles": it.busy_cycles, "cycles": cycles,
            "busy": it.busy_cycles as f64 / cycles.max(1) as f64,
        })
    };
    all.iter().map(of).collect::<Vec<_>>().into()
}

fn pcpu(number: usize, Pcpu { record, differences, regions, is_spare }: &Pcpu) -> Value {
    let mut pcpu = counted(record);
    if *is_spare {
        pcpu.insert("spare".into(), true.into());
    } else {
        pcpu.insert("pcpu".into(), number.into());
    }
    if !differences.is_empty() {
        pcpu.insert("differences".into(), differences.as_slice().into());
    }
    let marked = regions.iter().enumerate().filter(|(_, region)| region.times > 0);
    let marked: Vec<Value> = marked
        .map(|(number, region)| {
            let mut counted = counted(&region.counted);
            counted.insert("region".into(), number.into());
            counted.insert("times".into(), region.times.into());
            counted.into()
        })
        .collect();
    if !marked.is_empty() {
        pcpu.insert("regions".into(), marked.into());
    }
    pcpu.into()
}

/// Counters by the names of their sides. What stood in for the proposed processor of agile paging is not among the host's.
fn counted(record: &Record) -> Map<String, Value> {
    let sides = Side::ALL.map(|side| {
        let counters = &record.sides[side as usize];
        let charged = match side {
            Side::Host => counters.since(&record.stand_ins),
            _ => *counters,
        };
        (side.name().to_owned(), named(&charged))
    });
    let mut all: Map<_, _> = sides.into_iter().collect();
    if record.agile != AgileCounters::default() {
        all.insert("stand_ins".into(), named(&record.stand_ins));
        all.insert("agile".into(), agile(&record.agile));
    }
    all
}

fn named(counters: &Counters) -> Value {
    let pairs = Counters::NAMES.iter().zip(counters.values());
    pairs.map(|(name, value)| ((*name).to_owned(), value.into())).collect::<Map<_, _>>().into()
}

/// Walks of agile paging, in the order of [`abi::lab::SWITCHES`].
fn agile(counted: &AgileCounters) -> Value {
    let AgileCounters { walks, refs, refs_uncached, stand_ins, checks_stale } = counted;
    json!({
        "switch_refs": SWITCH_REFS, "walks": walks, "walk_refs": refs, "walk_refs_uncached": refs_uncached,
        "stand_ins": stand_ins, "checks_stale": checks_stale,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'_> = About {
        machine: "m",
        mhz: 2000,
        pcpus_per_domain: 1,
        model: "full",
        from: "boot",
        modelled: true,
        check: "miss",
        out_of_step: None,
        channels: Vec::new(),
        page_trace: None,
    };

    #[test]
    fn counters_stand_by_side() {
        let mut record = Record::default();
        record.sides[Side::Nested as usize].walk_refs = 24;
        let region = Region { times: 3, counted: record };
        let pcpus = [
            Pcpu { record, differences: vec![], regions: vec![], is_spare: false },
            Pcpu {
                record,
                differences: vec!["one".into()],
                regions: vec![Region::default(), region],
                is_spare: false,
            },
            Pcpu { record, differences: vec![], regions: vec![], is_spare: true },
        ];
        let report = report(&ABOUT, &pcpus);
        assert_eq!(report["pcpus"][0]["regions"], Value::Null);
        let regions = report["pcpus"][1]["regions"].as_array().unwrap();
        assert_eq!((regions.len(), &regions[0]["region"], &regions[0]["times"]), (1, &json!(1), &json!(3)));
        assert_eq!(regions[0]["guest_nested"]["walk_refs"], 24);
        assert_eq!(report["pcpus"][1]["guest_nested"]["walk_refs"], 24);
        assert_eq!(report["pcpus"][0]["host"]["cycles"], 0);
        assert_eq!(
            (&report["pcpus"][0]["differences"], &report["pcpus"][1]["differences"]),
            (&Value::Null, &json!(["one"]))
        );
        assert_eq!(
            (&report["pcpus"][0]["agile"], &report["pcpus"][0]["stand_ins"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!((&report["machine"], &report["pcpus"][1]["pcpu"]), (&json!("m"), &json!(1)));
        assert_eq!(report["domains"].as_array().map(Vec::len), Some(2));
        let spare = &report["pcpus"][2];
        assert_eq!((&spare["spare"], &spare["pcpu"]), (&json!(true), &Value::Null));
    }

    #[test]
    fn stand_ins_are_told_apart_from_the_host() {
        let mut record = Record::default();
        (record.sides[0].cycles, record.stand_ins.cycles) = (100, 30);
        record.agile = AgileCounters { walks: [5, 4, 3, 2, 1, 0], stand_ins: 2, ..AgileCounters::default() };
        let report =
            report(&ABOUT, &[Pcpu { record, differences: vec![], regions: vec![], is_spare: false }]);
        let pcpu = &report["pcpus"][0];
        assert_eq!((&pcpu["host"]["cycles"], &pcpu["stand_ins"]["cycles"]), (&json!(70), &json!(30)));
        assert_eq!(pcpu["agile"]["walks"], json!([5, 4, 3, 2, 1, 0]));
        assert_eq!((&pcpu["agile"]["stand_ins"], &pcpu["agile"]["switch_refs"][5]), (&json!(2), &json!(24)));
    }

    #[test]
    fn channels_have_one_span_of_time() {
        let carried = |lines, span| Carried {
            lines,
            prefetched: 1,
            waits: 3,
            wait_cycles: 70,
            busy_cycles: 25 * (lines + 1),
            span,
        };
        let idle = (3 << 20..4 << 20, Carried::default());
        let channels =
            vec![(0..1 << 20, carried(3, (500, 1000))), (1 << 20..3 << 20, carried(1, (600, 1300))), idle];
        let report = report(&About { channels, ..ABOUT }, &[]);
        let of = |n: usize, key: &str| report["channels"][n][key].clone();
        assert_eq!(
            ["from_mib", "to_mib", "lines", "waits"].map(|key| of(1, key)),
            [1, 3, 1, 3].map(Value::from)
        );
        assert_eq!([0, 1, 2].map(|n| of(n, "cycles")), [800; 3].map(Value::from));
        assert_eq!([0, 1, 2].map(|n| of(n, "busy")), [0.125, 0.0625, 0.0].map(Value::from));
        assert_eq!(super::report(&ABOUT, &[])["channels"], Value::Null);
    }

    #[test]
    fn domains_have_the_sums_of_their_processors() {
        let pcpus = (1..=5).map(|n| {
            let mut record = Record::default();
            (record.sides[0].llc_hits, record.sides[1].llc_hits, record.sides[2].llc_misses) =
                (n, 10 * n, 100 * n);
            Pcpu { record, differences: vec![], regions: vec![], is_spare: n == 5 }
        });
        let report = report(&About { pcpus_per_domain: 2, ..ABOUT }, &pcpus.collect::<Vec<_>>());
        let expected = [(0, 33, 300), (1, 77, 700)].map(
            |(domain, hits, misses)| json!({ "domain": domain, "llc_hits": hits, "llc_misses": misses }),
        );
        assert_eq!(report["domains"], json!(expected));
    }
}
