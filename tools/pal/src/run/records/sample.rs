//! Samples as JSON: what was counted since the last one. docs/telemetry.md is the schema.

use records::{
    pcpus,
    regions::{self, Regions},
    sample::{COUNTERS, Counters, ENGINES, EXITS, Sample},
};
use serde_json::{Map, Value, json};

use super::tiers;

/// Version of the schema of samples.
pub const VERSION: u64 = 1;

/// What is kept of each VM, and of the PCPUs, between two records.
#[derive(Default)]
pub struct Samples {
    /// Names of the VMs, by number.
    pub names: Vec<String>,
    /// Ticks of the TSC in a millisecond.
    pub khz: u64,
    /// The TSC at the first record: times of the machine count from there.
    first: Option<u64>,
    vms: Vec<Option<(Sample, Vec<u64>)>>,
    pcpus: Vec<pcpus::Pcpu>,
    regions: Vec<Option<Regions>>,
    pub(super) memory: tiers::Last,
}

impl Samples {
    /// For VMs of these names.
    pub fn new(names: Vec<String>) -> Samples {
        Samples { names, ..Samples::default() }
    }

    /// The nanoseconds that this number of ticks takes.
    pub fn nanos(&self, ticks: u64) -> u64 {
        (u128::from(ticks) * 1_000_000 / u128::from(self.khz.max(1))) as u64
    }

    /// The name of a VM.
    pub fn name(&self, vm: u8) -> String {
        self.names.get(usize::from(vm)).cloned().unwrap_or_else(|| format!("vm{vm}"))
    }

    /// A record as JSON; `None`: it is of no kind that is known here.
    pub fn read(&mut self, record: &[u64]) -> Option<Value> {
        if let Some((sample, ran)) = Sample::read(record) {
            return Some(self.sample(sample, ran));
        }
        if let Some(regions) = Regions::read(record) {
            return Some(self.regions(regions));
        }
        if let Some(line) = tiers::read(self, record) {
            return Some(line);
        }
        let ([tsc, free, heap], pcpus) = pcpus::read(record)?;
        let pcpus: Vec<_> = pcpus.collect();
        let line = self.pcpus(tsc, free, heap, &pcpus);
        self.pcpus = pcpus;
        Some(line)
    }

    pub(super) fn machine_ns(&mut self, tsc: u64) -> u64 {
        let first = *self.first.get_or_insert(tsc);
        self.nanos(tsc.saturating_sub(first))
    }

    fn sample(&mut self, now: Sample, ran: &[u64]) -> Value {
        let number = usize::from(now.vm);
        if self.vms.len() <= number {
            self.vms.resize_with(number + 1, || None);
        }
        let before = self.vms[number].replace((now, ran.to_vec()));
        // A VM that was started or reset counts from 0.
        let same = before.filter(|(last, _)| last.resets == now.resets && last.time_ns <= now.time_ns);
        let is_first = same.is_none();
        // The VM's time counts from before its guest was loaded.
        let last_time = same.as_ref().map_or(now.began_ns, |(last, _)| last.time_ns);
        let (last, last_ran) = same.unwrap_or_default();
        let grown = |now: &[u64], last: &[u64], names: &[&str]| -> Value {
            let values = now.iter().zip(last).map(|(now, last)| now.wrapping_sub(*last));
            let counted = names.iter().zip(values).filter(|(_, value)| *value != 0);
            counted.map(|(name, value)| ((*name).to_owned(), json!(value))).collect::<Map<_, _>>().into()
        };
        let side = |side: usize| {
            let (now, last) = (&now.sums.counters[side], &last.sums.counters[side]);
            // Before the first sample all events count from 0. A guest that stops counting page faults, and begins again, goes on
            // from the same sum.
            let begin = |event: usize| if is_first { 0 } else { last.values[event] };
            let counted = (0..COUNTERS.len()).filter_map(|event| Some((event, present(now, event)?)));
            let values = counted
                .map(|(event, value)| (COUNTERS[event].to_owned(), json!(value.wrapping_sub(begin(event)))));
            Value::from(values.collect::<Map<_, _>>())
        };
        let vcpus: Vec<_> = ran
            .iter()
            .zip(last_ran.iter().chain(std::iter::repeat(&0)))
            .map(|(now, last)| json!({ "ran_ns": self.nanos(now.saturating_sub(*last)) }))
            .collect();
        let (sums, old) = (&now.sums, &last.sums);
        let faults = [0, 1].map(|n: usize| now.shadow_faults[n].saturating_sub(last.shadow_faults[n]));
        json!({
            "v": VERSION,
            "t": "sample",
            "vm": self.name(now.vm),
            "time_ns": now.time_ns,
            "span_ns": now.time_ns.saturating_sub(last_time),
            "machine_ns": self.machine_ns(now.tsc),
            "engine": ENGINES.get(usize::from(now.engine)).copied().unwrap_or("?"),
            "exits": grown(&sums.exits, &old.exits, &EXITS),
            "exit_ticks": grown(&sums.exit_ticks, &old.exit_ticks, &EXITS),
            "faults": {
                "shadow": faults[0],
                "guest": faults[1],
                "nested_filled": sums.nested_filled.wrapping_sub(old.nested_filled),
                "emulated": sums.emulated.wrapping_sub(old.emulated),
            },
            "switches": {
                "to_nested": sums.switches[0].wrapping_sub(old.switches[0]),
                "to_shadow": sums.switches[1].wrapping_sub(old.switches[1]),
                "to_agile": sums.switches[2].wrapping_sub(old.switches[2]),
                "ticks": sums.switch_ticks.wrapping_sub(old.switch_ticks),
            },
            "interrupts": sums.interrupts.wrapping_sub(old.interrupts),
            "shadow_pages": now.shadow_memory[0],
            "shadow_bytes": now.shadow_memory[1],
            "guest": side(0),
            "host": side(1),
            "vcpus": vcpus,
        })
    }

    fn regions(&mut self, now: Regions) -> Value {
        let number = usize::from(now.vm);
        if self.regions.len() <= number {
            self.regions.resize_with(number + 1, || None);
        }
        let before = self.regions[number].replace(now);
        let last = before.filter(|last| last.resets == now.resets && last.time_ns <= now.time_ns);
        let last = last.unwrap_or_default();
        let counts = now.counts.iter().zip(last.counts).map(|(now, last)| now.saturating_sub(last));
        let mut line: Map<String, Value> = regions::COUNTS
            .iter()
            .zip(counts)
            .map(|(key, count)| ((*key).to_owned(), json!(count)))
            .collect();
        let known = |number: u32| (number != regions::UNKNOWN).then_some(number);
        let listed = now.regions().iter().map(|it| {
            // A number may come again, with a count that begins again.
            let old =
                last.regions().iter().find(|old| (old.number, old.is_guests) == (it.number, it.is_guests));
            let moves = it.moves.checked_sub(old.map_or(0, |old| old.moves)).unwrap_or(it.moves);
            json!({
                "region": it.number,
                "by": if it.is_guests { "guest" } else { "hypervisor" },
                "kind": regions::KINDS.get(usize::from(it.kind)).copied().unwrap_or("?"),
                "cache": it.cache,
                "frames": it.frames,
                "working_set": known(it.working_set),
                "access_ns": known(it.access_ns),
                "space_root": known(it.space).map(|frame| u64::from(frame) << 12),
                "moves": moves,
            })
        });
        let listed: Vec<_> = listed.collect();
        let caches = now.caches().iter();
        let caches: Vec<_> =
            caches.map(|it| json!({ "frames": it.frames, "working_set": it.working_set })).collect();
        let digit = |bin: &u8| {
            bin.checked_sub(1).map_or('.', |cache| char::from_digit(cache.into(), 16).unwrap_or('?'))
        };
        let map: String = now.map.iter().map(digit).collect();
        for (key, value) in [
            ("v", json!(VERSION)),
            ("t", json!("regions")),
            ("vm", json!(self.name(now.vm))),
            ("time_ns", json!(now.time_ns)),
            ("machine_ns", json!(self.machine_ns(now.tsc))),
            ("span_ns", json!(now.time_ns.saturating_sub(last.time_ns))),
            ("frames", json!(now.frames)),
            ("found", json!(now.known[0])),
            ("defined", json!(now.known[1])),
            ("caches", json!(caches)),
            ("map", json!(map)),
            ("regions", json!(listed)),
        ] {
            line.insert(key.to_owned(), value);
        }
        Value::Object(line)
    }

    fn pcpus(&mut self, tsc: u64, free: u64, heap: u64, now: &[pcpus::Pcpu]) -> Value {
        let of = |pcpu: &pcpus::Pcpu| self.pcpus.iter().find(|old| old.pcpu == pcpu.pcpu).copied();
        let grown = |now: u64, old: Option<u64>| now.saturating_sub(old.unwrap_or(0));
        let all: Vec<_> = now
            .iter()
            .map(|it| {
                let old = of(it);
                let busy = self.nanos(grown(it.busy, old.map(|old| old.busy)));
                let idle = self.nanos(grown(it.idle, old.map(|old| old.idle)));
                json!({ "pcpu": it.pcpu, "busy_ns": busy, "idle_ns": idle })
            })
            .collect();
        json!({
            "v": VERSION,
            "t": "pcpus",
            "machine_ns": self.machine_ns(tsc),
            "free_bytes": free,
            "heap_bytes": heap,
            "pcpus": all,
        })
    }
}

fn present(counters: &Counters, event: usize) -> Option<u64> {
    counters.get(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::sample::{MOST, Sums};

    fn record(time: u64, exits: u64, instructions: u64, resets: u8) -> Vec<u64> {
        let mut sums = Sums::default();
        sums.exits[6] = exits;
        sums.counters[0] = Counters { present: 1, values: [instructions; COUNTERS.len()] };
        let (vcpus, tsc) = (1, 2 * time);
        let began_ns = if resets == 0 { 600 } else { 4900 };
        let sample = Sample { vm: 1, vcpus, resets, time_ns: time, began_ns, tsc, sums, ..Sample::default() };
        let mut record = [0; MOST];
        let words = sample.write([2 * exits].into_iter(), &mut record);
        record[..words].to_vec()
    }

    #[test]
    fn samples_say_what_was_added() {
        let mut samples =
            Samples { names: vec!["a".into(), "b".into()], khz: 2_000_000, ..Samples::default() };
        let first = samples.read(&record(1000, 5, 70, 0)).unwrap();
        assert_eq!((&first["vm"], &first["span_ns"]), (&json!("b"), &json!(400)), "since the guest began");
        assert_eq!(first["exits"], json!({ "page_fault": 5 }));
        let second = samples.read(&record(4000, 12, 100, 0)).unwrap();
        assert_eq!(second["exits"], json!({ "page_fault": 7 }));
        assert_eq!(second["guest"], json!({ "instructions": 30 }), "what is absent has no key");
        assert_eq!((&second["span_ns"], &second["machine_ns"]), (&json!(3000), &json!(3000)));
        assert_eq!(second["vcpus"], json!([{ "ran_ns": 7 }]));
        let reset = samples.read(&record(5000, 3, 10, 1)).unwrap();
        assert_eq!(&reset["span_ns"], &json!(100));
        assert_eq!(
            (&reset["exits"], &reset["guest"]),
            (&json!({ "page_fault": 3 }), &json!({ "instructions": 10 }))
        );
        assert_eq!(samples.read(&[records::head(99, 1, 0)]), None);
    }

    #[test]
    fn a_count_that_was_not_known_for_a_while_goes_on() {
        let mut samples = Samples { khz: 2_000_000, ..Samples::default() };
        let mut read = |time, count, known: bool| {
            let mut counters =
                Counters { present: u64::from(known) << (COUNTERS.len() - 1), ..Counters::default() };
            counters.values[COUNTERS.len() - 1] = count;
            let mut sample = Sample { vcpus: 1, time_ns: time, tsc: 2 * time, ..Sample::default() };
            sample.sums.counters[0] = counters;
            let mut record = [0; MOST];
            let words = sample.write([0].into_iter(), &mut record);
            samples.read(&record[..words]).unwrap()["guest"].clone()
        };
        let none = json!({});
        assert_eq!(read(1000, 0, false), none);
        assert_eq!(read(2000, 40, true), json!({ "page_faults": 40 }));
        assert_eq!(read(3000, 45, false), none);
        assert_eq!(read(4000, 52, true), json!({ "page_faults": 7 }), "and not all 52");
    }

    #[test]
    fn regions_say_where_they_are_and_what_was_added() {
        let mut samples = Samples { names: vec!["a".into()], khz: 1_000_000, ..Samples::default() };
        let mut read = |time_ns, moves, resets| {
            let mut now = Regions {
                domains: 2,
                listed: 2,
                resets,
                time_ns,
                tsc: time_ns,
                frames: 256,
                ..Regions::default()
            };
            now.counts[1] = 2 * moves;
            now.known = [1, 1];
            now.caches[1] = regions::Cache { frames: 40, working_set: 30 };
            (now.map[0], now.map[5]) = (2, 16);
            let region = regions::Region {
                number: 7,
                kind: 2,
                cache: Some(1),
                frames: 40,
                working_set: 30,
                moves,
                space: 5,
                ..Default::default()
            };
            let unknown = regions::Region {
                is_guests: true,
                kind: 9,
                working_set: regions::UNKNOWN,
                space: regions::UNKNOWN,
                cache: None,
                ..region
            };
            (now.regions[0], now.regions[1]) = (region, unknown);
            let mut record = [0; regions::MOST];
            let words = now.write(&mut record);
            samples.read(&record[..words]).unwrap()
        };
        let first = read(1000, 5, 0);
        assert_eq!(
            (&first["t"], &first["vm"], &first["moves"]),
            (&json!("regions"), &json!("a"), &json!(10))
        );
        assert!(first["map"].as_str().unwrap().starts_with("1....f.."), "{first}");
        assert_eq!(
            first["caches"],
            json!([{ "frames": 0, "working_set": 0 }, { "frames": 40, "working_set": 30 }])
        );
        let second = read(4000, 12, 0);
        assert_eq!(
            (&second["moves"], &second["span_ns"], &second["machine_ns"]),
            (&json!(14), &json!(3000), &json!(3000))
        );
        assert_eq!(
            second["regions"][0],
            json!({ "region": 7, "by": "hypervisor", "kind": "local", "cache": 1, "frames": 40,
            "working_set": 30, "access_ns": 0, "space_root": 0x5000, "moves": 7 })
        );
        assert_eq!(
            second["regions"][1],
            json!({ "region": 7, "by": "guest", "kind": "?", "cache": null, "frames": 40,
            "working_set": null, "access_ns": 0, "space_root": null, "moves": 7 })
        );
        assert_eq!(read(5000, 3, 0)["regions"][0]["moves"], 3, "the number has come again");
        assert_eq!(read(6000, 9, 1)["moves"], 18, "the VM was reset");
    }

    #[test]
    fn pcpus_say_what_they_did() {
        let mut samples = Samples { khz: 1_000_000, ..Samples::default() };
        let mut record = [0; pcpus::MOST];
        let mut read = |busy, idle| {
            let words = pcpus::write(5, 1, 2, [pcpus::Pcpu { pcpu: 3, busy, idle }].into_iter(), &mut record);
            samples.read(&record[..words]).unwrap()["pcpus"].clone()
        };
        read(100, 50);
        assert_eq!(read(130, 90), json!([{ "pcpu": 3, "busy_ns": 30, "idle_ns": 40 }]));
    }
}
