//! Traces as JSON that Perfetto and Chrome open: an array of events, one on each line, whole at any moment but for its last
//! bracket, which they do not need.
//!
//! Each VM is a process with its VCPUs as threads: an exit is a slice, as long as the hypervisor took for it. The machine is
//! process 0 with its PCPUs as threads: what the scheduler let run. Samples are counters of their VM.

use std::collections::HashMap;

use records::{
    sample::{ENGINES, EXITS},
    trace::{Event, What},
};
use serde_json::{Value, json};

use super::sample::Samples;

/// What is kept between two events.
#[derive(Default)]
pub struct Trace {
    /// The TSC that is time 0.
    first: Option<u64>,
    /// What each PCPU runs, and since when.
    runs: HashMap<usize, (f64, String)>,
    named: Vec<(u64, u64)>,
    /// The TSC of the last event.
    last: u64,
}

/// The slice of what a PCPU ran.
fn run(pcpu: usize, begin: f64, end: f64, name: &str) -> Value {
    let dur = end - begin;
    json!({ "ph": "X", "name": name, "cat": "run", "pid": 0, "tid": pcpu, "ts": begin, "dur": dur })
}

/// The line for a decision of agile paging, of a VCPU: a process and a thread.
fn decision(name: String, (process, thread): (u64, u64), ts: f64, args: Value) -> Value {
    json!({ "ph": "i", "s": "t", "name": name, "cat": "agile", "pid": process, "tid": thread, "ts": ts, "args": args })
}

impl Trace {
    /// Microseconds since the first event.
    fn micros(&mut self, tsc: u64, khz: u64) -> f64 {
        let first = *self.first.get_or_insert(tsc);
        tsc.saturating_sub(first) as f64 * 1000.0 / khz.max(1) as f64
    }

    /// Names a thread, the first time that it is met.
    fn name(&mut self, process: u64, thread: u64, names: (&str, String), lines: &mut Vec<Value>) {
        if self.named.contains(&(process, thread)) {
            return;
        }
        self.named.push((process, thread));
        let meta = |what, name: &str| json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } });
        lines.push(meta("process_name", names.0));
        lines.push(meta("thread_name", &names.1));
    }

    /// The lines for an event of a PCPU.
    pub fn event(&mut self, pcpu: usize, event: &Event, samples: &Samples) -> Vec<Value> {
        let mut lines = Vec::new();
        let ts = self.micros(event.tsc, samples.khz);
        self.last = self.last.max(event.tsc);
        let dur = event.ticks as f64 * 1000.0 / samples.khz.max(1) as f64;
        let vm = samples.name(event.vm);
        let (process, thread) = (u64::from(event.vm) + 1, u64::from(event.vcpu));
        match event.what {
            What::Exit(kind) => {
                self.name(process, thread, (&vm, format!("VCPU {thread}")), &mut lines);
                let name = EXITS.get(usize::from(kind)).copied().unwrap_or("?");
                lines.push(json!({ "ph": "X", "name": name, "cat": "exit", "pid": process, "tid": thread, "ts": ts, "dur": dur,
                    "args": { "rip": format!("{:#x}", event.at), "pcpu": pcpu } }));
            }
            What::Switch(engine) => {
                let to = ENGINES.get(usize::from(engine)).copied().unwrap_or("?");
                lines.push(json!({ "ph": "X", "name": format!("to {to}"), "cat": "mode", "pid": process, "tid": thread,
                    "ts": ts, "dur": dur }));
            }
            What::Nest(tables) | What::Shadow(tables) => {
                let (kind, args) = match event.what {
                    What::Nest(_) => ("nested", json!({ "gpa": format!("{:#x}", event.at) })),
                    _ => ("shadowed", json!({})),
                };
                lines.push(decision(format!("{tables} tables {kind}"), (process, thread), ts, args));
            }
            What::Space(engine) => {
                let to = ENGINES.get(usize::from(engine)).copied().unwrap_or("?");
                let args = json!({ "cr3": format!("{:#x}", event.at) });
                lines.push(decision(format!("address space to {to}"), (process, thread), ts, args));
            }
            What::Run | What::Idle => {
                self.name(0, pcpu as u64, ("machine", format!("PCPU {pcpu}")), &mut lines);
                let next = (event.what == What::Run).then(|| format!("{vm}/{}", event.vcpu));
                let last = match next {
                    // It goes on.
                    Some(next) if self.runs.get(&pcpu).is_some_and(|(_, now)| *now == next) => None,
                    Some(next) => self.runs.insert(pcpu, (ts, next)),
                    None => self.runs.remove(&pcpu),
                };
                if let Some((begin, name)) = last {
                    lines.push(run(pcpu, begin, ts, &name));
                }
            }
        }
        lines
    }

    /// The lines of what still runs when the trace ends.
    pub fn finish(&mut self, khz: u64) -> Vec<Value> {
        let ts = self.micros(self.last, khz);
        let runs = std::mem::take(&mut self.runs);
        runs.into_iter().map(|(pcpu, (begin, name))| run(pcpu, begin, ts, &name)).collect()
    }

    /// The counters that a sample, as JSON, stands for.
    pub fn counters(&mut self, sample: &Value, vm: u8, tsc: u64, khz: u64) -> Vec<Value> {
        let ts = self.micros(tsc, khz);
        let count = |name: &str, value: &Value| json!({ "ph": "C", "name": name, "pid": u64::from(vm) + 1, "ts": ts, "args": { "value": value } });
        let number = |key: &str| sample["guest"][key].as_u64();
        let mut lines = vec![count("shadow pages", &sample["shadow_pages"])];
        let exits = sample["exits"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64());
        lines.push(count("exits", &exits.sum::<u64>().into()));
        if let (Some(instructions), Some(cycles @ 1..)) = (number("instructions"), number("cycles")) {
            lines.push(count("instructions per cycle", &json!(instructions as f64 / cycles as f64)));
        }
        for (name, key) in [("DTLB misses", "dtlb_misses"), ("LLC misses", "llc_misses")] {
            lines.extend(number(key).map(|value| count(name, &value.into())));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_slices_and_runs_last_until_the_next_decision() {
        let mut samples = Samples::new(vec!["a".into()]);
        samples.khz = 1000;
        let mut trace = Trace::default();
        let mut lines = Vec::new();
        let mut event = |what, tsc, ticks| {
            let event = Event { what, vm: 0, vcpu: 1, tsc, ticks, at: 0x1000 };
            lines.extend(trace.event(2, &event, &samples));
        };
        event(What::Run, 100, 1);
        event(What::Exit(0), 110, 4);
        event(What::Run, 120, 1);
        event(What::Switch(1), 130, 2);
        event(What::Idle, 150, 1);
        let slices: Vec<_> = lines.iter().filter(|line| line["ph"] == "X").collect();
        let found: Vec<_> =
            slices.iter().map(|it| (&it["name"], it["ts"].as_f64(), it["dur"].as_f64())).collect();
        let (exit, switch, run) = (json!("cpuid"), json!("to shadow"), json!("a/1"));
        let expected = [(&exit, 10.0, 4.0), (&switch, 30.0, 2.0), (&run, 0.0, 50.0)];
        assert_eq!(found, expected.map(|(name, ts, dur)| (name, Some(ts), Some(dur))));
        assert_eq!((&slices[0]["pid"], &slices[0]["tid"]), (&json!(1), &json!(1)));
        assert_eq!(lines.iter().filter(|line| line["ph"] == "M").count(), 4, "each thread is named once");
    }

    #[test]
    fn decisions_of_agile_paging_are_moments() {
        let samples = Samples::new(vec!["a".into()]);
        let mut trace = Trace::default();
        let mut named = |what| {
            let event = Event { what, vm: 0, vcpu: 1, tsc: 100, ticks: 0, at: 0x1000 };
            trace.event(2, &event, &samples).iter().find(|line| line["cat"] == "agile").cloned().unwrap()
        };
        let nested = named(What::Nest(3));
        assert_eq!((&nested["ph"], &nested["name"]), (&json!("i"), &json!("3 tables nested")));
        assert_eq!(nested["args"], json!({ "gpa": "0x1000" }));
        assert_eq!(named(What::Shadow(2))["name"], "2 tables shadowed");
        let space = named(What::Space(1));
        assert_eq!(
            (&space["name"], &space["args"]["cr3"]),
            (&json!("address space to shadow"), &json!("0x1000"))
        );
    }
}
