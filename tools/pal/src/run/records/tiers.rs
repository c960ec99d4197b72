//! Records of fast memory and of the pager as JSON. docs/telemetry.md is the schema.

use records::{
    pager::{self, Pager},
    tiers::{self, Tiers},
};
use serde_json::{Map, Value, json};

use super::sample::{Samples, VERSION};

/// What is kept of each VM between two records.
#[derive(Default)]
pub struct Last {
    tiers: Vec<Option<Tiers>>,
    pagers: Vec<Option<Pager>>,
}

/// Keeps a record in the place of the one before.
fn replace<T>(all: &mut Vec<Option<T>>, vm: u8, now: T) -> Option<T> {
    let number = usize::from(vm);
    if all.len() <= number {
        all.resize_with(number + 1, || None);
    }
    all[number].replace(now)
}

/// What was counted since. Another VM of the same number counts from 0.
fn grown<'a>(
    names: &'a [&'static str],
    now: &'a [u64],
    last: &'a [u64],
) -> impl Iterator<Item = (String, Value)> + 'a {
    let counts = now.iter().zip(last).map(|(now, last)| now.checked_sub(*last).unwrap_or(*now));
    names.iter().zip(counts).map(|(name, count)| ((*name).to_owned(), json!(count)))
}

/// The time that a record is of. The VM's time begins again at a reset.
fn span(now: u64, last: u64) -> u64 {
    now.checked_sub(last).unwrap_or(now)
}

/// What all such lines have.
fn head(samples: &mut Samples, kind: &str, vm: u8, times: [u64; 2], span_ns: u64) -> Map<String, Value> {
    let [time_ns, tsc] = times;
    let machine_ns = samples.machine_ns(tsc);
    let head = [
        ("v", json!(VERSION)),
        ("t", json!(kind)),
        ("vm", json!(samples.name(vm))),
        ("time_ns", json!(time_ns)),
        ("machine_ns", json!(machine_ns)),
        ("span_ns", json!(span_ns)),
    ];
    head.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A record of either kind as JSON; `None`: it is another.
pub fn read(samples: &mut Samples, record: &[u64]) -> Option<Value> {
    let line = match Tiers::read(record) {
        Some(now) => tiers(samples, now),
        None => pager(samples, Pager::read(record)?),
    };
    Some(Value::Object(line))
}

fn tiers(samples: &mut Samples, now: Tiers) -> Map<String, Value> {
    let last = replace(&mut samples.memory.tiers, now.vm, now).unwrap_or_default();
    let span_ns = span(now.time_ns, last.time_ns);
    let mut line = head(samples, "tiers", now.vm, [now.time_ns, now.tsc], span_ns);
    line.extend(grown(&tiers::COUNTS, &now.counts, &last.counts));
    for (key, value) in [
        ("e_state", json!(now.e_state)),
        ("set", json!(now.is_set)),
        ("hot", json!(now.hot)),
        ("total", json!(now.total)),
        ("free", json!(now.free)),
        ("tables", json!(now.tables)),
        ("share", json!(now.share)),
        ("fast", json!(now.fast)),
        ("waiting", json!(now.waiting)),
        ("working_set", json!(now.working_set)),
        ("accessed", json!(&now.accessed[..])),
        ("hot_parts", json!(&now.hot_parts[..])),
        ("histogram", json!(now.histogram)),
        ("recent", json!(now.recent)),
        ("target", json!((now.target != 0).then_some(now.target))),
    ] {
        line.insert(key.to_owned(), value);
    }
    line
}

fn pager(samples: &mut Samples, now: Pager) -> Map<String, Value> {
    let last = replace(&mut samples.memory.pagers, now.vm, now).unwrap_or_default();
    let span_ns = span(now.time_ns, last.time_ns);
    let mut line = head(samples, "pager", now.vm, [now.time_ns, now.tsc], span_ns);
    line.extend(grown(&pager::COUNTS, &now.counts, &last.counts));
    for (key, value) in [
        ("resident", now.resident),
        ("resident_limit", now.resident_limit),
        ("stored", now.stored),
        ("store", now.store),
        ("store_limit", now.store_limit),
        ("on_disk", now.on_disk),
    ] {
        line.insert(key.to_owned(), json!(value));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Samples {
        let mut samples = Samples::new(vec!["a".into(), "b".into()]);
        samples.khz = 1_000_000;
        samples
    }

    #[test]
    fn fast_memory_says_what_is_there_and_what_was_added() {
        let mut samples = samples();
        let mut read = |time_ns, tsc, moved: u64| {
            let now = Tiers {
                vm: 1,
                e_state: (time_ns != 2000).then_some(3),
                time_ns,
                tsc,
                total: 100,
                tables: 6,
                share: 60,
                fast: 40,
                waiting: 7,
                target: if time_ns == 2000 { 900 } else { 0 },
                recent: [1, 2, 3, 4, 5, 6],
                counts: [3 * moved, moved, 0, 1],
                ..Tiers::default()
            };
            samples.read(&now.write()).unwrap()
        };
        let first = read(1000, 1000, 5);
        assert_eq!(
            first,
            json!({ "v": 1, "t": "tiers", "vm": "b", "time_ns": 1000, "machine_ns": 0, "span_ns": 1000, "moved_in": 15,
                "moved_out": 5, "discarded": 0, "stayed": 1, "e_state": 3, "set": false, "hot": 0, "total": 100, "free": 0, "tables": 6,
                "share": 60, "fast": 40, "waiting": 7, "working_set": 0, "target": null,
                "accessed": vec![0; 64], "hot_parts": vec![0; 64], "histogram": vec![0; 32],
                "recent": [1, 2, 3, 4, 5, 6] })
        );
        let second = read(2000, 2000, 9);
        let of = |line: &Value, keys: [&str; 5]| keys.map(|key| line[key].clone());
        let keys = ["span_ns", "machine_ns", "moved_in", "stayed", "target"];
        assert_eq!(of(&second, keys), [1000, 1000, 12, 0, 900].map(|n| json!(n)));
        assert_eq!(second["e_state"], Value::Null);
        // Its time begins again at a reset, its counts with another VM of its number.
        assert_eq!(of(&read(300, 3000, 10), keys)[..3], [300, 2000, 3].map(|n| json!(n)));
        assert_eq!(of(&read(400, 4000, 2), keys)[..3], [100, 3000, 6].map(|n| json!(n)));
    }

    #[test]
    fn a_pager_says_what_went_out_and_came_in() {
        let mut samples = samples();
        let mut read = |time_ns, refaults| {
            let counts = [9, refaults, 2, 30, 4096, 2048, 7 * refaults, refaults, 1];
            let (resident, stored, store, on_disk) = (5, 8, 3, 16);
            let now =
                Pager { time_ns, tsc: time_ns, resident, stored, store, on_disk, counts, ..Pager::default() };
            samples.read(&now.write()).unwrap()
        };
        let first = read(1000, 4);
        assert_eq!(
            (&first["t"], &first["vm"], &first["refaults"]),
            (&json!("pager"), &json!("a"), &json!(4))
        );
        let second = read(3000, 10);
        assert_eq!(
            ["refaults", "went_out", "span_ns", "resident", "stored", "store"].map(|key| second[key].clone()),
            [6, 0, 2000, 5, 8, 3].map(|n| json!(n))
        );
        assert_eq!(
            ["on_disk", "from_disk", "disk_reads", "disk_writes"].map(|key| second[key].clone()),
            [16, 42, 6, 0].map(|n| json!(n))
        );
    }
}
