//! What was measured of a web server, and medians of it: pure.

use serde_json::{Value, json};

/// Without regions.
pub const OFF: &str = "off";
/// The page's tables have regions, which are open everywhere: what other memory than without does by itself.
pub const OPEN: &str = "program, open";
/// The same, mapped to both caches.
pub const PROGRAM: &str = "program";
/// The hypervisor finds regions.
pub const UNIFY: &str = "unify";

/// Cycles that a call for a region counts for: almost twice what it takes, with the world switch (docs/guest-kit.md).
pub const CALL_CYCLES: f64 = 10_000.0;

/// What is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Files.
    Static,
    /// A page that is made for each request.
    Dynamic,
    /// Values of Redis'.
    Redis,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Static, Kind::Dynamic, Kind::Redis];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Static => "static",
            Kind::Dynamic => "dynamic",
            Kind::Redis => "redis",
        }
    }

    /// What claims call it.
    pub fn pages(self) -> &'static str {
        match self {
            Kind::Static => "static pages",
            Kind::Dynamic => "dynamic pages",
            Kind::Redis => "values of Redis",
        }
    }
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What was served.
    pub kind: Kind,
    /// VCPUs.
    pub vcpus: u32,
    /// What had regions: [`OFF`], [`OPEN`], [`PROGRAM`], [`UNIFY`], or the name of a set of slab caches.
    pub regions: &'static str,
    /// Modelled nanoseconds of the part that is measured.
    pub ns: u64,
    /// Modelled cycles of a microsecond.
    pub mhz: u32,
    /// Requests in it.
    pub requests: u64,
    /// Cycles of the VCPUs in it, with the hypervisor's for them.
    pub cycles: u64,
    /// Time that its VCPUs had a processor in it, in nanoseconds.
    pub ran_ns: u64,
    /// Misses of the last-level caches in it.
    pub misses: u64,
    /// Moves of VCPUs between caches in it, and regions that were opened.
    pub moves: u64,
    pub opened: u64,
    /// The same in all of the run.
    pub all_moves: u64,
    pub all_opened: u64,
    /// Hypercalls in it, and in all of the run.
    pub calls: u64,
    pub all_calls: u64,
    /// Frames of the set's region at the end.
    pub frames: u64,
}

impl Measured {
    /// Requests in a modelled second, of time that the emulator's processors kept step.
    pub fn per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.ns.max(1) as f64 / self.pace().max(1e-9)
    }

    /// The part of the time in which its VCPUs had a processor for which they were charged cycles. The rest is waiting for the emulator.
    pub fn pace(&self) -> f64 {
        // Samples do not end with the part that is measured: a little of what is beside it counts.
        (self.cycles as f64 * 1000.0 / f64::from(self.mhz) / self.ran_ns.max(1) as f64).min(1.0)
    }

    /// The part of the time in which its VCPUs had a processor.
    pub fn busy(&self) -> f64 {
        self.ran_ns as f64 / self.ns.max(1) as f64 / f64::from(self.vcpus)
    }

    /// Cycles of the VCPUs for each request.
    pub fn cycles_per_request(&self) -> f64 {
        self.cycles as f64 / self.requests.max(1) as f64
    }

    /// The part of the cycles that calls have taken.
    pub fn calls_share(&self) -> f64 {
        self.calls as f64 * CALL_CYCLES / self.cycles.max(1) as f64
    }

    /// Hypercalls in a modelled second.
    pub fn calls_per_second(&self) -> f64 {
        self.calls as f64 * 1e9 / self.ns.max(1) as f64
    }

    /// The part of the cycles in which misses of the last-level caches were waited for, which take `memory` cycles each.
    pub fn misses_share(&self, memory: u64) -> f64 {
        (self.misses as f64 * memory as f64 / self.cycles.max(1) as f64).min(1.0)
    }

    /// Moves of VCPUs between caches in a modelled second.
    pub fn moves_per_second(&self) -> f64 {
        self.moves as f64 * 1e9 / self.ns.max(1) as f64
    }

    /// For the file.
    pub fn document(&self, lab: &str) -> Value {
        json!({ "figure": super::NAME, "lab": lab, "kind": self.kind.name(), "vcpus": self.vcpus, "regions": self.regions,
            "ns": self.ns, "mhz": self.mhz, "requests": self.requests, "cycles": self.cycles, "ran_ns": self.ran_ns, "llc_misses": self.misses,
            "moves": self.moves, "opened": self.opened, "all_moves": self.all_moves, "all_opened": self.all_opened,
            "calls": self.calls, "all_calls": self.all_calls, "frames": self.frames })
    }

    /// From the file.
    pub fn of(kind: Kind, vcpus: u32, regions: &'static str, document: &Value) -> Option<Measured> {
        let number = |key: &str| document[key].as_u64();
        Some(Measured {
            kind,
            vcpus,
            regions,
            ns: number("ns")?,
            mhz: u32::try_from(number("mhz")?).ok()?,
            requests: number("requests")?,
            cycles: number("cycles")?,
            ran_ns: number("ran_ns")?,
            misses: number("llc_misses")?,
            moves: number("moves")?,
            opened: number("opened")?,
            all_moves: number("all_moves")?,
            all_opened: number("all_opened")?,
            calls: number("calls")?,
            all_calls: number("all_calls")?,
            frames: number("frames")?,
        })
    }
}

/// Whether nothing is mapped to a cache in a run.
pub fn is_off(regions: &str) -> bool {
    [OFF, OPEN].contains(&regions)
}

/// Runs of the same: their median by requests in a second, and the best run relative to the worst.
#[derive(Clone, Copy)]
pub struct Group {
    /// The median.
    pub median: Measured,
    /// The best run's requests in a second for each of the worst run's.
    pub spread: f64,
}

impl Group {
    fn is_beside(&self, other: &Group) -> bool {
        (self.median.kind, self.median.vcpus) == (other.median.kind, other.median.vcpus)
    }

    /// Throughput for each request of another one.
    pub fn relative_to(&self, other: &Group) -> f64 {
        self.median.per_second() / other.median.per_second().max(1e-9)
    }
}

/// Groups of all runs, in the order of their first runs.
pub fn groups(all: &[Measured]) -> Vec<Group> {
    let of = |it: &Measured| (it.kind, it.vcpus, it.regions);
    let mut groups: Vec<Group> = Vec::new();
    for first in all {
        if groups.iter().any(|group| of(&group.median) == of(first)) {
            continue;
        }
        let mut runs: Vec<_> = all.iter().filter(|it| of(it) == of(first)).collect();
        runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
        let spread = runs[runs.len() - 1].per_second() / runs[0].per_second().max(1e-9);
        groups.push(Group { median: *runs[(runs.len() - 1) / 2], spread });
    }
    groups
}

/// The same pages and VCPUs without regions; `None`: this is it, or there is none.
pub fn without(all: &[Group], of: &Group) -> Option<Group> {
    let mut own = all.iter().filter(|it| it.is_beside(of) && it.median.regions == OFF);
    own.next().copied().filter(|_| of.median.regions != OFF)
}

/// Throughput relative to the best median with nothing mapped; `None`: nothing is mapped here.
pub fn beyond(all: &[Group], of: &Group) -> Option<f64> {
    let own = all.iter().filter(|it| it.is_beside(of) && is_off(it.median.regions));
    let least = own.map(|base| of.relative_to(base)).reduce(f64::min)?;
    (!is_off(of.median.regions)).then_some(least)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A made-up run.
    pub fn run(kind: Kind, regions: &'static str, requests: u64) -> Measured {
        Measured {
            kind,
            vcpus: 2,
            regions,
            ns: 100_000_000,
            mhz: 3000,
            requests,
            cycles: 300_000_000,
            ran_ns: 100_000_000,
            misses: 50_000,
            moves: 50,
            opened: 1,
            all_moves: 90,
            all_opened: 2,
            calls: 1,
            all_calls: 300,
            frames: 40,
        }
    }

    #[test]
    fn requests_are_those_of_time_with_cycles() {
        let it = run(Kind::Static, OFF, 1000);
        let waits = Measured { cycles: it.cycles / 2, ..it };
        assert_eq!([it.per_second(), waits.per_second()], [10_000.0, 20_000.0]);
        let late = Measured { cycles: it.cycles + it.cycles / 4, ..it };
        assert_eq!(late.per_second(), it.per_second(), "cycles of a sample that began before");
    }

    #[test]
    fn what_is_kept_comes_back() {
        let run = run(Kind::Static, "net-core", 980);
        assert_eq!(Measured::of(Kind::Static, 2, "net-core", &run.document("zen3")), Some(run));
        assert_eq!(Measured::of(Kind::Static, 2, OFF, &json!({ "ns": 1 })), None);
    }
}
