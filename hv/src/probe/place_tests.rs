//! Places on processors of every kind. The tables are what such processors answer; those of the emulator and of a virtual Xeon
//! were recorded.

use proptest::prelude::*;

use super::*;
use crate::sched::topology::{PcpuId, Topology};

type Table = &'static [(u32, u32, [u32; 4])];

fn answers(table: Table) -> impl Fn(u32, u32) -> [u32; 4] {
    move |leaf, subleaf| {
        let found = table.iter().find(|(l, s, _)| (*l, *s) == (leaf, subleaf));
        found.map(|(_, _, words)| *words).unwrap_or_default()
    }
}

/// The places of the PCPUs with these APIC IDs.
fn topology(table: Table, ids: impl IntoIterator<Item = u32>) -> Topology {
    let cpuid = answers(table);
    Topology::new(ids.into_iter().map(|id| place(&cpuid, id)))
}

/// Packages, cores, threads of a core, LLC domains.
fn counts_of(topology: &Topology) -> [usize; 4] {
    let threads = kinds(topology, |place| place.thread);
    [
        kinds(topology, |place| place.package),
        kinds(topology, |place| place.core),
        threads,
        topology.llcs().len(),
    ]
}

/// Four cores with two threads each.
const SKYLAKE: Table = &[
    (0, 0, [0x16, 0, 0, 0]),
    (1, 0, [0x0005_06e3, 0x0010_0800, 0, 0xbfeb_fbff]),
    (4, 0, [0x1c00_4121, 0x01c0_003f, 0x3f, 0]),
    (4, 1, [0x1c00_4122, 0x01c0_003f, 0x3f, 0]),
    (4, 2, [0x1c00_4143, 0x00c0_003f, 0x3ff, 0]),
    (4, 3, [0x1c03_c163, 0x03c0_003f, 0x1fff, 6]),
    (0xb, 0, [1, 2, 0x100, 0]),
    (0xb, 1, [4, 8, 0x201, 0]),
    (0xb, 2, [0, 0, 2, 0]),
];

/// The same without leaf 0Bh.
const NEHALEM_WITHOUT_LEVELS: Table = &[
    (0, 0, [0xa, 0, 0, 0]),
    (1, 0, [0x0001_06a5, 0x0010_0800, 0, 0xbfeb_fbff]),
    (4, 0, [0x1c00_4121, 0x01c0_003f, 0x3f, 0]),
    (4, 3, [0x1c03_c163, 0x03c0_003f, 0x1fff, 2]),
    (4, 1, [0x1c00_4122, 0x01c0_003f, 0x3f, 0]),
    (4, 2, [0x1c00_4143, 0x00c0_003f, 0x3ff, 0]),
];

/// Four cores in pairs that share a second-level cache, and no third level.
const CORE2_QUAD: Table = &[
    (0, 0, [0xa, 0, 0, 0]),
    (1, 0, [0x0000_06fb, 0x0004_0800, 0, 0xbfeb_fbff]),
    (4, 0, [0x0c00_0121, 0x01c0_003f, 0x3f, 1]),
    (4, 1, [0x0c00_0122, 0x01c0_003f, 0x3f, 1]),
    (4, 2, [0x0c00_4143, 0x03c0_003f, 0xfff, 1]),
];

/// Eight cores on two complexes with a third-level cache each.
const ZEN2: Table = &[
    (0, 0, [0x10, 0, 0, 0]),
    (1, 0, [0x0087_0f10, 0x0010_0800, 0, 0x178b_fbff]),
    (0xb, 0, [1, 2, 0x100, 0]),
    (0xb, 1, [4, 16, 0x201, 0]),
    (0x8000_0000, 0, [0x8000_0020, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, 0x75c2_37ff, 0]),
    (0x8000_0008, 0, [0x3030, 0, 0x400f, 0]),
    (0x8000_001d, 0, [0x0000_4121, 0x01c0_003f, 0x3f, 0]),
    (0x8000_001d, 1, [0x0000_4122, 0x01c0_003f, 0x3f, 0]),
    (0x8000_001d, 2, [0x0000_4143, 0x01c0_003f, 0x3ff, 2]),
    (0x8000_001d, 3, [0x0001_c163, 0x03c0_003f, 0x3fff, 1]),
    (0x8000_001e, 0, [0, 0x100, 0, 0]),
];

/// Before leaf 0Bh: eight cores in units of two, which share a cache.
const BULLDOZER: Table = &[
    (0, 0, [0xd, 0, 0, 0]),
    (1, 0, [0x0060_0f12, 0x0008_0800, 0, 0x178b_fbff]),
    (0x8000_0000, 0, [0x8000_001e, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, 0x01c9_bfff, 0]),
    (0x8000_0008, 0, [0x3030, 0, 0x4007, 0]),
    (0x8000_001d, 2, [0x0000_4143, 0x03c0_003f, 0x7ff, 0]),
    (0x8000_001d, 0, [0x0000_0121, 0x00c0_003f, 0x3f, 0]),
    (0x8000_001d, 1, [0x0000_4122, 0x0040_003f, 0x1ff, 0]),
    (0x8000_001d, 3, [0x0001_c163, 0x0fc0_003f, 0x7ff, 1]),
    (0x8000_001e, 0, [0, 0x100, 0, 0]),
];

/// Six cores, sizes of caches only.
const K10: Table = &[
    (0, 0, [6, 0, 0, 0]),
    (1, 0, [0x0010_0fa0, 0x0006_0800, 0, 0x178b_fbff]),
    (0x8000_0000, 0, [0x8000_001b, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, 0x0000_37ff, 0]),
    (0x8000_0006, 0, [0, 0, 0x0200_8140, 0x0030_b140]),
    (0x8000_0008, 0, [0x3030, 0, 0x3005, 0]),
];

/// Sixteen efficient cores in modules of four, of a processor that has leaf 1Fh.
const MODULES: Table = &[
    (0, 0, [0x20, 0, 0, 0]),
    (1, 0, [0x000b_0671, 0x0080_0800, 0, 0xbfeb_fbff]),
    (4, 0, [0xfc00_4121, 0x01c0_003f, 0x3f, 0]),
    (4, 1, [0xfc00_4122, 0x01c0_003f, 0x3f, 0]),
    (4, 2, [0xfc01_c143, 0x03c0_003f, 0xfff, 0]),
    (4, 3, [0xfc1f_c163, 0x02c0_003f, 0xbfff, 4]),
    (0xb, 0, [1, 1, 0x100, 0]),
    (0xb, 1, [7, 0x20, 0x201, 0]),
    (0x1f, 0, [1, 1, 0x100, 0]),
    (0x1f, 1, [3, 4, 0x201, 0]),
    (0x1f, 2, [7, 0x20, 0x302, 0]),
];

/// Recorded: a virtual Xeon with two PCPUs.
const VIRTUAL_XEON: Table = &[
    (0, 0, [0x1c, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
    (1, 0, [0x000c_06f2, 0x0102_0800, 0xfffa_3203, 0x1f8b_fbff]),
    (4, 0, [0x0400_0121, 0x02c0_003f, 0x3f, 0]),
    (4, 1, [0x0400_0122, 0x01c0_003f, 0x3f, 0]),
    (4, 2, [0x0400_0143, 0x03c0_003f, 0x7ff, 0]),
    (4, 3, [0x0400_4163, 0x04c0_003f, 0x0003_3fff, 0]),
    (0xb, 0, [0, 1, 0x100, 1]),
    (0xb, 1, [5, 2, 0x201, 1]),
    (0xb, 2, [0, 0, 2, 1]),
    (0x8000_0000, 0, [0x8000_0021, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, 0x121, 0x2c10_0800]),
    (0x8000_0006, 0, [0, 0, 0x0800_7040, 0]),
];

#[test]
fn by_levels() {
    let one = topology(SKYLAKE, 0..8);
    assert_eq!(counts_of(&one), [1, 4, 2, 1]);
    assert_eq!(one.location(PcpuId(5)).map(|place| (place.core, place.thread)), Some((2, 1)));
    assert_eq!(counts_of(&topology(SKYLAKE, (0..8).chain(16..24))), [2, 8, 2, 2]);
    let modules = topology(MODULES, (0x20..0x40).step_by(2));
    assert_eq!(counts_of(&modules), [1, 16, 1, 1]);
}

#[test]
fn by_counts() {
    assert_eq!(counts_of(&topology(NEHALEM_WITHOUT_LEVELS, (0..8).chain(16..24))), [2, 8, 2, 2]);
    assert_eq!(counts_of(&topology(K10, (0..6).chain(8..14))), [2, 12, 1, 2]);
}

#[test]
fn caches_may_be_shared_by_less_than_a_package() {
    let zen2 = topology(ZEN2, 0..16);
    assert_eq!(counts_of(&zen2), [1, 8, 2, 2]);
    assert_eq!(zen2.llcs()[1].bits(), 0xff00);
    let core2 = topology(CORE2_QUAD, 0..4);
    assert_eq!(counts_of(&core2), [1, 4, 1, 2]);
    assert_eq!(counts_of(&topology(BULLDOZER, 0..8)), [1, 4, 2, 1]);
}

#[test]
fn a_virtual_xeon() {
    assert_eq!(counts_of(&topology(VIRTUAL_XEON, 0..2)), [1, 2, 1, 1]);
    // Its cache reaches two APIC IDs.
    assert_eq!(counts_of(&topology(VIRTUAL_XEON, 0..4)), [1, 4, 1, 2]);
}

#[test]
fn a_processor_without_threads_is_a_package() {
    const SINGLE: Table = &[(0, 0, [1, 0, 0, 0]), (1, 0, [0x0f4a, 0x0001_0800, 0, 0x0183_fbff])];
    assert_eq!(counts_of(&topology(SINGLE, [0, 1, 6])), [3, 3, 1, 3]);
}

#[test]
fn the_shape_in_words() {
    let words = |table, ids: &[u32]| shape(&topology(table, ids.iter().copied())).to_string();
    assert_eq!(
        words(SKYLAKE, &[0, 16, 1, 2, 17, 3]),
        "3 cores in 2 packages, last-level caches of PCPUs 0+2-3+5, 1+4, 1 memory node"
    );
    assert_eq!(words(K10, &[0]), "1 core in 1 package, last-level cache of PCPUs 0, 1 memory node");
    let nodes = Topology::new((0..64).map(|n| Location { node: n / 32, ..Location::default() }));
    assert_eq!(
        shape(&nodes).to_string(),
        "1 core in 1 package, last-level cache of PCPUs 0-63, 2 memory nodes"
    );
}

#[test]
fn the_record() {
    let mut text = String::new();
    let mut json = Json::object(&mut text).unwrap();
    record(&mut json, &topology(SKYLAKE, [3, 16])).unwrap();
    json.end().unwrap();
    assert_eq!(
        text,
        r#"{"topology":[{"package":0,"llc":0,"core":1,"thread":1,"node":0},{"package":1,"llc":1,"core":8,"thread":0,"node":0}]}"#
    );
}

proptest! {
    /// Whatever CPUID says: the parts fit into each other.
    #[test]
    fn any_answers(words in prop::collection::vec(any::<[u32; 4]>(), 16), highest in 0u32..0x30, ids in prop::collection::vec(any::<u32>(), 2..9)) {
        let cpuid = |leaf: u32, subleaf: u32| match leaf {
            0 => [highest, 0, 0, 0],
            0x8000_0000 => [0x8000_0020, 0, 0, 0],
            _ => words[(leaf.wrapping_mul(7).wrapping_add(subleaf) % 16) as usize],
        };
        let places: Vec<Location> = ids.iter().map(|id| place(&cpuid, *id)).collect();
        for (a, id) in places.iter().zip(&ids) {
            for (b, other) in places.iter().zip(&ids) {
                prop_assert!(a.core != b.core || a.llc == b.llc && a.package == b.package);
                prop_assert!(a.llc != b.llc || a.package == b.package);
                prop_assert!((a.core, a.thread) != (b.core, b.thread) || id == other);
            }
        }
        prop_assert!(!shape(&Topology::new(places)).to_string().is_empty());
    }
}
