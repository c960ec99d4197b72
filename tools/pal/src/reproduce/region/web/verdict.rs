//! What the thesis found with a web server whose kernel is on cores of its own, what came out here, and whether it is beaten: pure.

use serde_json::{Value, json};

use super::super::super::verdict::{Claim, claim};
use crate::compare::table::percent;

/// Without regions.
pub const OFF: &str = "off";
/// The page's tables have regions, which are open everywhere: what other memory than without does by itself.
pub const OPEN: &str = "program, open";
/// The same, mapped to both caches.
pub const PROGRAM: &str = "program";
/// The hypervisor finds regions.
pub const UNIFY: &str = "unify";

/// The thesis' best change of throughput (3.6.1, 3.7), and its worst.
const BEST: f64 = 0.05;
const WORST: f64 = -0.028;
/// Runs of the same differ by less: what they say of regions is no chance then.
const SPREAD: f64 = 0.03;
/// Moves in a second that the thesis saw with regions opened that move too often.
const MOVES: f64 = 10_000.0;
/// Calls for regions for each request, below which they are negligible.
const CALLS: f64 = 0.01;

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
    fn pages(self) -> &'static str {
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
    fn pace(&self) -> f64 {
        // Samples do not end with the part that is measured: a little of what is beside it counts.
        (self.cycles as f64 * 1000.0 / f64::from(self.mhz) / self.ran_ns.max(1) as f64).min(1.0)
    }

    /// The part of the time in which its VCPUs had a processor.
    fn busy(&self) -> f64 {
        self.ran_ns as f64 / self.ns.max(1) as f64 / f64::from(self.vcpus)
    }

    fn cycles_per_request(&self) -> f64 {
        self.cycles as f64 / self.requests.max(1) as f64
    }

    fn moves_per_second(&self) -> f64 {
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

/// What the page says of the guest.
pub const SERVER: &str = "
It stands for figures 46 to 58: nginx serves 96 files of 64 KiB of an ext4 file system, or passes
requests to a search in Python, which goes over an index and then over a table of documents
([page.py](../../tests/kits/webload/page.py)): each fits one cache, both do not; or Redis answers
`GET` with one of 1024 values of 1 KiB. The load is in the same guest, over loopback. Each of the
guest's processors has an nginx or a Redis of its own and a load that asks it alone, on twelve
connections; the search has the last processor for itself. So it is not chance where Linux puts
them. The set of slab caches of each run has a
[region](../guest-kit.md#slab-caches-in-regions), which the monitor maps to the second cache. With
`program` the page's two tables have one each, by the device of the [SDK](../sdk.md#the-device),
which the monitor maps to both caches. VCPUs are free in all runs.
";

/// Titles of the columns.
pub const HEAD: [&str; 14] = [
    "pages",
    "VCPUs",
    "regions",
    "requests/s",
    "spread",
    "gain",
    "cycles/request",
    "misses/request",
    "busy",
    "pace",
    "moves/s",
    "opened",
    "calls",
    "frames",
];

/// What the columns are.
pub const EXPLAINED: &str = "\
Each row is the median of its runs by requests in a second, and *spread* how far the best run is
above the worst. *gain* is that of the median, beside the median without regions. With `program,
open` nothing is mapped to a cache, either. *cycles* and *misses* of the last-level caches are those
of all VCPUs. *busy*: the part of the time in which VCPUs had a processor. *pace*: the part of that
for which they were charged cycles; the rest is waiting for another of the emulator's processors,
and requests are those of a second without it. *moves/s*: of VCPUs between caches; *opened*: regions
that were opened everywhere because they moved VCPUs too often, or for an idle processor, in all of
the run. *calls*: hypercalls while it was measured, of all in the run. *frames*: of the regions.
";

/// Whether nothing is mapped to a cache in a run.
pub fn is_off(regions: &str) -> bool {
    [OFF, OPEN].contains(&regions)
}

/// Runs of the same: their median by requests in a second, and the best run relative to the worst.
#[derive(Clone, Copy)]
struct Group {
    median: Measured,
    spread: f64,
}

impl Group {
    fn is_beside(&self, other: &Group) -> bool {
        (self.median.kind, self.median.vcpus) == (other.median.kind, other.median.vcpus)
    }

    fn relative_to(&self, other: &Group) -> f64 {
        self.median.per_second() / other.median.per_second().max(1e-9)
    }
}

/// All of them, in the order of their first runs.
fn groups(all: &[Measured]) -> Vec<Group> {
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
fn without(all: &[Group], of: &Group) -> Option<Group> {
    let mut own = all.iter().filter(|it| it.is_beside(of) && it.median.regions == OFF);
    own.next().copied().filter(|_| of.median.regions != OFF)
}

/// Throughput relative to the best median with nothing mapped; `None`: nothing is mapped here.
fn beyond(all: &[Group], of: &Group) -> Option<f64> {
    let own = all.iter().filter(|it| it.is_beside(of) && is_off(it.median.regions));
    let least = own.map(|base| of.relative_to(base)).reduce(f64::min)?;
    (!is_off(of.median.regions)).then_some(least)
}

/// Rows of the table.
pub fn rows(all: &[Measured]) -> Vec<[String; HEAD.len()]> {
    let groups = groups(all);
    let row = |group: &Group| {
        let it = &group.median;
        let count = |value: u64| if is_off(it.regions) { "–".into() } else { value.to_string() };
        [
            it.kind.name().to_owned(),
            it.vcpus.to_string(),
            it.regions.to_owned(),
            format!("{:.0}", it.per_second()),
            format!("{:.1} %", 100.0 * (group.spread - 1.0)),
            without(&groups, group).map_or("–".into(), |off| percent(Some(group.relative_to(&off)))),
            format!("{:.0}", it.cycles_per_request()),
            format!("{:.0}", it.misses as f64 / it.requests.max(1) as f64),
            format!("{:.0} %", 100.0 * it.busy()),
            format!("{:.2}", it.pace()),
            count(it.moves_per_second().round() as u64),
            count(it.all_opened),
            format!("{} of {}", it.calls, it.all_calls),
            count(it.frames),
        ]
    };
    groups.iter().map(row).collect()
}

/// The claims of the figures.
pub fn claims(all: &[Measured]) -> Vec<Claim> {
    let mut claims = Vec::new();
    let groups = groups(all);
    for kind in Kind::ALL {
        let own = groups.iter().filter(|it| it.median.kind == kind);
        let gains: Vec<_> = own.filter_map(|it| Some((beyond(&groups, it)?, it.median))).collect();
        let worst = gains.iter().min_by(|(a, _), (b, _)| a.total_cmp(b));
        let best = gains.iter().max_by(|(a, _), (b, _)| a.total_cmp(b));
        let (Some((worst, at_worst)), Some((best, at_best))) = (worst, best) else { continue };
        let said = |gain: f64, at: &str, it: &Measured| {
            format!("{} at {at} ({}, {} VCPUs)", percent(Some(gain)), it.regions, it.vcpus)
        };
        claims.push(claim(
            &format!("{}: no set or policy costs more than 2.8 %", kind.pages()),
            said(*worst, "worst", at_worst),
            *worst >= 1.0 + WORST,
        ));
        claims.push(claim(
            &format!("{}: the best gains more than 5 % (our goal; the thesis has up to 5 %)", kind.pages()),
            said(*best, "best", at_best),
            *best > 1.0 + BEST,
        ));
    }
    if let Some(spread) = groups.iter().map(|group| group.spread).reduce(f64::max)
        && !claims.is_empty()
    {
        claims.push(claim(
            "Runs of the same differ by less than 3 % (medians are compared)",
            format!("{:.1} % at most", 100.0 * (spread - 1.0)),
            spread < 1.0 + SPREAD,
        ));
    }
    let most = |of: fn(&Measured) -> f64| all.iter().map(of).fold(0.0, f64::max);
    if !claims.is_empty() {
        let moves = most(Measured::moves_per_second);
        claims.push(claim(
            "With regions opened that move too often, up to 10 000 moves in a second",
            format!("up to {moves:.0}"),
            moves <= MOVES,
        ));
        let calls = most(|it| it.calls as f64 / it.requests.max(1) as f64);
        claims.push(claim(
            "Calls are negligible once slabs are there (figure 55)",
            format!("at most {calls:.4} for each request"),
            calls <= CALLS,
        ));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kind: Kind, regions: &'static str, requests: u64) -> Measured {
        Measured {
            kind,
            vcpus: 2,
            regions,
            ns: 100_000_000,
            mhz: 3000,
            requests,
            cycles: 300_000_000,
            ran_ns: 100_000_000,
            misses: 5000,
            moves: 50,
            opened: 1,
            all_moves: 90,
            all_opened: 2,
            calls: 1,
            all_calls: 300,
            frames: 40,
        }
    }

    fn holds(all: &[Measured]) -> Vec<bool> {
        claims(all).iter().map(|claim| claim.holds).collect()
    }

    #[test]
    fn each_kind_is_judged_beside_its_own_runs_without_regions() {
        let files = [run(Kind::Static, OFF, 1000), run(Kind::Static, "net-core", 980)];
        let pages = [
            run(Kind::Dynamic, OFF, 200),
            run(Kind::Dynamic, "fs-core", 199),
            run(Kind::Dynamic, UNIFY, 300),
        ];
        let all = [&files[..], &pages].concat();
        assert_eq!(holds(&all), [true, false, true, true, true, true, true]);
        let said: Vec<_> = claims(&all).into_iter().map(|claim| claim.ours).collect();
        assert_eq!(said[1], "−2.0 % at best (net-core, 2 VCPUs)");
        assert_eq!(said[3], "+50.0 % at best (unify, 2 VCPUs)");
        let slow = [files[0], run(Kind::Static, "net-core", 900)];
        assert_eq!(holds(&slow), [false, false, true, true, true]);
        let busy = Measured { moves: 2000, calls: 500, ..files[1] };
        assert_eq!(holds(&[files[0], busy]), [true, false, true, false, false]);
        assert_eq!(holds(&files[..1]), [false; 0], "nothing to compare");
        assert_eq!(holds(&files[1..]), [false; 0]);
        let other = Measured { vcpus: 4, ..files[1] };
        assert_eq!(holds(&[files[0], other]), [false; 0], "of other VCPUs");
    }

    #[test]
    fn medians_are_compared() {
        let off = |requests| run(Kind::Static, OFF, requests);
        let set = |requests| run(Kind::Static, "net-core", requests);
        let all = [off(1000), set(1100), off(1300), set(1060), off(990), set(700)];
        assert_eq!(holds(&all), [true, true, false, true, true], "the runs of the same differ");
        let rows = rows(&all);
        assert_eq!([&rows[0][3], &rows[0][4], &rows[0][5]], ["10000", "31.3 %", "–"]);
        assert_eq!([&rows[1][3], &rows[1][4], &rows[1][5]], ["10600", "57.1 %", "+6.0 %"]);
        assert_eq!(rows.len(), 2);
        let open = Measured { regions: OPEN, requests: 1050, ..off(0) };
        assert_eq!(holds(&[off(1000), open, set(1100)])[..2], [true, false], "it may be the memory's place");
        assert_eq!(holds(&[off(1000), open, set(1010)])[..2], [false, false]);
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
    fn rows_are_what_was_measured_and_what_is_kept_comes_back() {
        let all = [run(Kind::Static, OFF, 1000), run(Kind::Static, "net-core", 980)];
        let expected = [
            "static", "2", "net-core", "9800", "0.0 %", "−2.0 %", "306122", "5", "50 %", "1.00", "500", "2",
            "1 of 300", "40",
        ];
        assert_eq!(rows(&all)[1], expected.map(str::to_owned));
        assert_eq!(rows(&all)[0][5], "–");
        let again = Measured::of(Kind::Static, 2, "net-core", &all[1].document("zen3"));
        assert_eq!(again, Some(all[1]));
        assert_eq!(Measured::of(Kind::Static, 2, OFF, &json!({ "ns": 1 })), None);
    }
}
