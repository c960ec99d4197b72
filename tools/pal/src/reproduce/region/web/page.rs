//! What the page says of the server, and its table: pure.

use super::runs::{Group, Measured, groups, is_off, without};
use crate::compare::table::percent;

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
the run. *calls*: hypercalls while it was measured and after it, where a program's regions end with
it, of all in the run; what one takes is [measured](../guest-kit.md#slab-caches-in-regions).
*frames*: of the regions. What misses take is each one's latency of memory, of the cycles of all
VCPUs: where one VCPU has most of the misses and the others wait for it, more can be gained.
";

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

#[cfg(test)]
mod tests {
    use super::{
        super::runs::{Kind, OFF, tests::run},
        *,
    };

    #[test]
    fn rows_are_what_was_measured() {
        let all = [run(Kind::Static, OFF, 1000), run(Kind::Static, "net-core", 980)];
        let expected = [
            "static", "2", "net-core", "9800", "0.0 %", "−2.0 %", "306122", "51", "50 %", "1.00", "500", "2",
            "1 of 300", "40",
        ];
        assert_eq!(rows(&all)[1], expected.map(str::to_owned));
        assert_eq!(rows(&all)[0][5], "–");
    }

    #[test]
    fn a_row_is_the_median_of_its_runs() {
        let (off, set) =
            (|requests| run(Kind::Static, OFF, requests), |requests| run(Kind::Static, "net-core", requests));
        let rows = rows(&[off(1000), set(1100), off(1300), set(1060), off(990), set(700)]);
        assert_eq!([&rows[0][3], &rows[0][4], &rows[0][5]], ["10000", "31.3 %", "–"]);
        assert_eq!([&rows[1][3], &rows[1][4], &rows[1][5]], ["10600", "57.1 %", "+6.0 %"]);
        assert_eq!(rows.len(), 2);
    }
}
