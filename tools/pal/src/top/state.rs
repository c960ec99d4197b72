//! What `pal top` knows: what the samples since the last refresh add up to, as rates.
//!
//! Every [line of samples](crate::samples::line) says what was counted and over which time. Both are summed, so that a line that is missed costs
//! resolution and falsifies no rate. What no line has told since the last refresh is absent, which is not 0.

use std::collections::BTreeMap;

use records::sample::{COUNTERS, ENGINES};
use serde_json::Value;

use super::regions;
use super::tiers::Memory;
use crate::samples::line::{Line, MOST, Names, Regions, Sample};

/// By what VMs are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Their order in the configuration.
    #[default]
    Name,
    /// Processor time.
    Cpu,
    /// Exits.
    Exits,
    /// Misses of the data TLB.
    Misses,
    /// Cycles of page walks.
    Walks,
    /// Memory of shadow paging.
    Memory,
}

impl Order {
    /// All of them, from the left column to the right.
    pub const ALL: [Order; 6] =
        [Order::Name, Order::Cpu, Order::Exits, Order::Misses, Order::Walks, Order::Memory];

    /// The title of its column.
    pub fn title(self) -> &'static str {
        match self {
            Order::Name => "VM",
            Order::Cpu => "%CPU",
            Order::Exits => "EXITS/S",
            Order::Misses => "MISS/KI",
            Order::Walks => "%WALK",
            Order::Memory => "SHADOW",
        }
    }

    /// The one to the right, or to the left.
    pub fn next(self, right: bool) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL[if right { (at + 1).min(Order::ALL.len() - 1) } else { at.saturating_sub(1) }]
    }
}

/// A VM since the last refresh.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// The engine in force, once a sample has told.
    pub engine: Option<&'static str>,
    /// Changes of the engine.
    pub switches: u64,
    /// Time that the samples are of, in nanoseconds.
    pub span_ns: u64,
    /// Time that each VCPU ran.
    pub ran_ns: Vec<u64>,
    /// Exits by reason.
    pub exits: BTreeMap<String, u64>,
    /// Counters of the guest, in the order of [`COUNTERS`]; what is not counted is absent.
    pub guest: [Option<u64>; COUNTERS.len()],
    /// Bytes of shadow paging now.
    pub shadow_bytes: Option<u64>,
    /// Its regions now, if there are any, with what they have done.
    pub regions: Option<Regions>,
    /// What it has of fast memory, and what is evicted of it.
    pub memory: Memory,
}

impl Vm {
    /// Exits of any reason in a second; `None`: no time has passed.
    pub fn exits_per_second(&self) -> Option<u64> {
        per_second(self.exits.values().fold(0, |sum, count| sum.saturating_add(*count)), self.span_ns)
    }

    /// Changes of the engine in a second.
    pub fn switches_per_second(&self) -> Option<u64> {
        per_second(self.switches, self.span_ns)
    }

    /// Percent of one processor that its VCPUs used.
    pub fn cpu(&self) -> Option<f64> {
        share(self.ran_ns.iter().fold(0, |sum, ran| sum.saturating_add(*ran)), self.span_ns)
    }

    /// The same of each VCPU.
    pub fn vcpus(&self) -> impl Iterator<Item = Option<f64>> + '_ {
        self.ran_ns.iter().map(|ran| share(*ran, self.span_ns))
    }

    fn counter(&self, name: &str) -> Option<u64> {
        self.guest[COUNTERS.iter().position(|known| *known == name)?]
    }

    /// Instructions per cycle.
    pub fn ipc(&self) -> Option<f64> {
        quotient(self.counter("instructions")?, self.counter("cycles")?)
    }

    /// Data TLB misses in a thousand instructions.
    pub fn misses(&self) -> Option<f64> {
        Some(quotient(self.counter("dtlb_misses")?, self.counter("instructions")?)? * 1000.0)
    }

    /// Percent of the cycles that went into walks.
    pub fn walks(&self) -> Option<f64> {
        share(self.counter("walk_cycles")?, self.counter("cycles")?)
    }

    /// Exits in a second by reason, the most frequent first.
    pub fn reasons(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<_> = self.exits.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        all.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        all.into_iter().filter_map(|(name, count)| Some((name, per_second(count, self.span_ns)?))).collect()
    }

    /// Takes a sample in. `reasons`: the names of its exits.
    fn add(&mut self, sample: &Sample, reasons: &[String]) {
        self.engine = ENGINES.get(usize::from(sample.engine)).copied();
        self.shadow_bytes = Some(sample.shadow_bytes);
        add(&mut self.switches, sample.switches);
        add(&mut self.span_ns, sample.span_ns);
        self.ran_ns.resize(sample.ran_ns.len(), 0);
        self.ran_ns.iter_mut().zip(&sample.ran_ns).for_each(|(sum, ran)| add(sum, *ran));
        for (reason, count) in &sample.exits {
            add(self.exits.entry(reasons[*reason].clone()).or_default(), *count);
        }
        for (sum, count) in self.guest.iter_mut().zip(sample.guest) {
            *sum = count.map_or(*sum, |count| Some(sum.unwrap_or(0).saturating_add(count)));
        }
    }

    /// Forgets what was counted. What is so at a moment, and not counted over a time, stays.
    fn begin_again(&mut self) {
        let name = std::mem::take(&mut self.name);
        let ran_ns = vec![0; self.ran_ns.len()];
        let mut regions = self.regions.take();
        regions::begin_again(&mut regions);
        let mut memory = std::mem::take(&mut self.memory);
        memory.begin_again();
        let (engine, shadow_bytes) = (self.engine, self.shadow_bytes);
        *self = Vm { name, engine, ran_ns, shadow_bytes, regions, memory, ..Vm::default() };
    }
}

fn quotient(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A quotient in percent.
fn share(part: u64, whole: u64) -> Option<f64> {
    Some(quotient(part, whole)? * 100.0)
}

/// A count in a second; `None`: no time has passed.
pub(super) fn per_second(count: u64, nanos: u64) -> Option<u64> {
    let rate = (u128::from(count) * 1_000_000_000).checked_div(nanos.into())?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

fn add(sum: &mut u64, value: u64) {
    *sum = sum.saturating_add(value);
}

/// Everything on the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// What runs: the first line.
    pub about: Value,
    /// The VMs in the order of the configuration, then in that of their first samples.
    pub vms: Vec<Vm>,
    /// Busy and idle time of each PCPU since the last refresh, in nanoseconds.
    pub pcpus: BTreeMap<u64, (u64, u64)>,
    /// Free bytes of host memory.
    pub free_bytes: Option<u64>,
    /// Bytes that the hypervisor's heap has taken.
    pub heap_bytes: Option<u64>,
    /// The machine's time, in nanoseconds since the first sample.
    pub machine_ns: u64,
    /// A sample has come.
    pub sampled: bool,
    /// What the lines' names are.
    names: Names,
}

impl State {
    /// Takes a line of samples in; others change nothing.
    pub fn add(&mut self, line: &str) {
        match self.names.read(line.as_bytes()) {
            Line::Run(about) => self.about = about,
            Line::Pcpus(line) => {
                self.machine_ns = line.machine_ns;
                (self.free_bytes, self.heap_bytes) = (line.free_bytes, line.heap_bytes);
                for (pcpu, busy, idle) in line.pcpus {
                    if self.pcpus.len() >= MOST && !self.pcpus.contains_key(&pcpu) {
                        continue;
                    }
                    let times = self.pcpus.entry(pcpu).or_default();
                    add(&mut times.0, busy);
                    add(&mut times.1, idle);
                }
            }
            Line::Sample(sample) => {
                self.sampled = true;
                self.machine_ns = sample.machine_ns;
                self.know_vms();
                self.vms[sample.vm].add(&sample, &self.names.reasons);
            }
            Line::Regions(regions) => {
                self.know_vms();
                regions::add(&mut self.vms[regions.vm].regions, &regions);
            }
            Line::Tiers(tiers) => {
                self.know_vms();
                self.vms[tiers.vm].memory.add_tiers(&tiers);
            }
            Line::Pager(pager) => {
                self.know_vms();
                self.vms[pager.vm].memory.add_pager(&pager);
            }
            Line::End(_) | Line::Later | Line::Other | Line::Broken => {}
        }
        self.know_vms();
    }

    /// Has each VM that a line has named at its place.
    fn know_vms(&mut self) {
        let new = self.names.vms.iter().skip(self.vms.len());
        self.vms.extend(new.map(|name| Vm { name: name.clone(), ..Vm::default() }));
    }

    /// What is shown, and a new beginning.
    pub fn refresh(&mut self) -> State {
        let shown = self.clone();
        self.vms.iter_mut().for_each(Vm::begin_again);
        self.pcpus.values_mut().for_each(|times| *times = (0, 0));
        shown
    }

    /// The VMs in this order, the largest first; those of which the figure is absent come last.
    pub fn sorted(&self, order: Order, reversed: bool) -> Vec<&Vm> {
        let key = |vm: &Vm| match order {
            Order::Name => None,
            Order::Cpu => vm.cpu(),
            Order::Exits => vm.exits_per_second().map(|rate| rate as f64),
            Order::Misses => vm.misses(),
            Order::Walks => vm.walks(),
            Order::Memory => vm.shadow_bytes.map(|bytes| bytes as f64),
        };
        let mut vms: Vec<_> = self.vms.iter().collect();
        vms.sort_by(|a, b| key(b).unwrap_or(-1.0).total_cmp(&key(a).unwrap_or(-1.0)));
        if reversed {
            vms.reverse();
        }
        vms
    }

    /// Percent of its time that each PCPU was busy.
    pub fn busy(&self) -> impl Iterator<Item = (u64, Option<f64>)> + '_ {
        self.pcpus.iter().map(|(pcpu, (busy, idle))| (*pcpu, share(*busy, busy.saturating_add(*idle))))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub fn example() -> State {
        let mut state = State::default();
        let mut add = |line: Value| state.add(&line.to_string());
        add(
            json!({ "v": 1, "t": "run", "machine": "qemu-svm", "lab": "zen3", "mode": "switch=50", "vms": ["web", "db"] }),
        );
        for (vm, exits) in [("web", 500), ("db", 2000), ("web", 500)] {
            add(
                json!({ "v": 1, "t": "sample", "vm": vm, "span_ns": 10_000_000, "machine_ns": 30_000_000, "engine": "shadow",
                "exits": { "page_fault": exits, "cpuid": 1 }, "switches": { "to_shadow": 1, "to_nested": 0 },
                "guest": { "instructions": 1000, "cycles": 2000, "dtlb_misses": 3, "walk_cycles": 500 },
                "vcpus": [{ "ran_ns": 4_000_000 }, { "ran_ns": 2_000_000 }], "shadow_bytes": 4096 }),
            );
        }
        add(
            json!({ "v": 1, "t": "pcpus", "machine_ns": 30_000_000, "free_bytes": 1 << 30, "heap_bytes": 3 << 20,
            "pcpus": [{ "pcpu": 0, "busy_ns": 3, "idle_ns": 1 }] }),
        );
        state
    }

    #[test]
    fn samples_become_rates() {
        let state = example();
        let web = &state.vms[0];
        assert_eq!((web.name.as_str(), web.span_ns), ("web", 20_000_000));
        assert_eq!((web.exits_per_second(), web.switches_per_second()), (Some(50_100), Some(100)));
        assert_eq!(
            (web.cpu(), web.ipc(), web.misses(), web.walks()),
            (Some(60.0), Some(0.5), Some(3.0), Some(25.0))
        );
        assert_eq!(web.vcpus().collect::<Vec<_>>(), [Some(40.0), Some(20.0)]);
        assert_eq!(web.reasons(), [("page_fault", 50_000), ("cpuid", 100)]);
        assert_eq!(state.busy().collect::<Vec<_>>(), [(0, Some(75.0))]);
    }

    #[test]
    fn vms_are_sorted() {
        let state = example();
        let names = |order, reversed| -> String {
            state.sorted(order, reversed).iter().map(|vm| vm.name.clone() + " ").collect()
        };
        assert_eq!(names(Order::Name, false), "web db ", "as the configuration has them");
        assert_eq!(names(Order::Exits, false), "db web ");
        assert_eq!(names(Order::Exits, true), "web db ");
        assert_eq!((Order::Name.next(false), Order::Cpu.next(true)), (Order::Name, Order::Exits));
        assert_eq!(Order::Memory.next(true), Order::Memory);
    }

    #[test]
    fn what_is_absent_is_not_zero() {
        let mut state = example();
        assert_eq!(state.refresh(), example());
        let web = &state.vms[0];
        assert_eq!((web.cpu(), web.ipc(), web.exits_per_second(), web.misses()), (None, None, None, None));
        assert_eq!((web.engine, web.ran_ns.len(), web.shadow_bytes), (Some("shadow"), 2, Some(4096)));
        assert_eq!(state.busy().collect::<Vec<_>>(), [(0, None)]);
        // A machine that counts instructions alone.
        let line = json!({ "v": 1, "t": "sample", "vm": "web", "span_ns": 10, "machine_ns": 40_000_000, "vcpus": [],
            "guest": { "instructions": 7 }, "exits": {} });
        state.add(&line.to_string());
        let web = &state.vms[0];
        assert_eq!((web.ipc(), web.misses(), web.exits_per_second()), (None, None, Some(0)));
    }

    proptest::proptest! {
        #[test]
        fn no_line_panics(text in ".{0,60}", number: u64, big: bool) {
            let number = if big { u64::MAX } else { number };
            let mut state = example();
            let span = json!(number);
            for t in ["run", "pcpus", "sample", "tiers", "pager", &text] {
                let one = json!({ "v": 1, "t": t, "vm": text, "vms": [text, 1], "span_ns": span, "machine_ns": span, "exits": { "io": number },
                    "vcpus": [{ "ran_ns": number }, text], "pcpus": [{ "pcpu": number, "busy_ns": number, "idle_ns": number }, 3],
                    "guest": { "cycles": number, "instructions": number }, "switches": number, "fast": number, "waiting": number,
                    "moved_in": number, "faults": number, "target": number, "e_state": number, "stored": number, "accessed": [number, 9], "hot_parts": [number],
                    "recent": [number, text] }).to_string();
                state.add(&one);
                state.add(&one);
            }
            for vm in &state.refresh().vms {
                let _rates = (vm.cpu(), vm.exits_per_second(), vm.ipc(), vm.reasons(), vm.memory.rows(number as usize % 200));
            }
            state.add(&json!([text]).to_string());
            state.add(&text);
        }
    }
}
