//! P2m, nested tables and a modelled processor with stale caches, driven together.

use super::*;
use crate::arch::addr::Hpa;
use crate::paging::arena::Arena;
use crate::paging::format::{ept::Ept, npt::Npt};
use crate::paging::model::{Fault, Processor, Vendor};
use crate::paging::p2m::P2mEntry;
use proptest::prelude::*;

const K4: u64 = 0x1000;
const M2: u64 = 0x20_0000;
const G1: u64 = 0x4000_0000;
/// Where host memory lies, without an offset.
const HOST: u64 = 16 * G1;

fn range(start: u64, len: u64) -> GpaRange {
    GpaRange::new(Gpa(start), len).unwrap()
}

#[derive(Clone, Debug)]
enum Op {
    Ram(GpaRange, u64, bool),
    Rom(GpaRange),
    Mmio(GpaRange),
    Unmap(GpaRange),
    Writable(GpaRange, bool),
    Split(GpaRange, PageSize),
    Merge(GpaRange),
    /// Lets the engine look for dirty pages.
    Harvest,
}

/// What `gpa` is after `ops`.
fn expected(ops: &[Op], gpa: Gpa) -> P2mEntry {
    let mut now = P2mEntry::Hole;
    for op in ops {
        match *op {
            Op::Ram(range, offset, writable) if range.contains(gpa) => {
                now = P2mEntry::Ram { hpa: Hpa(HOST + offset + gpa.0), writable };
            }
            Op::Rom(range) if range.contains(gpa) => now = P2mEntry::Rom { hpa: Hpa(HOST + gpa.0) },
            Op::Mmio(range) if range.contains(gpa) => now = P2mEntry::Mmio,
            Op::Unmap(range) if range.contains(gpa) => now = P2mEntry::Hole,
            Op::Writable(range, writable) if range.contains(gpa) => {
                if let P2mEntry::Ram { hpa, .. } = now {
                    now = P2mEntry::Ram { hpa, writable };
                }
            }
            _ => {}
        }
    }
    now
}

fn perform(p2m: &mut P2m<&Arena>, op: &Op) -> Option<Changed> {
    match *op {
        Op::Ram(range, offset, writable) => {
            Some(p2m.map_ram(range, Hpa(HOST + offset + range.start.0), writable).unwrap())
        }
        Op::Rom(range) => Some(p2m.map_rom(range, Hpa(HOST + range.start.0)).unwrap()),
        Op::Mmio(range) => Some(p2m.map_mmio(range).unwrap()),
        Op::Unmap(range) => Some(p2m.unmap(range).unwrap()),
        Op::Writable(range, writable) => Some(p2m.set_writable(range, writable).unwrap()),
        Op::Merge(range) => Some(p2m.merge(range)),
        Op::Split(range, size) => {
            p2m.split(range, size).unwrap();
            None
        }
        Op::Harvest => None,
    }
}

fn any_range() -> impl Strategy<Value = GpaRange> {
    let unit = prop_oneof![Just(K4), Just(M2), Just(G1)];
    (0..2u64, 0..3u64, 0..3u64, unit, 1..4u64).prop_map(|(gigs, megs, pages, unit, count)| {
        range(gigs * G1 + megs * M2 + pages * K4, if unit == G1 { G1 } else { count * unit })
    })
}

fn any_op() -> impl Strategy<Value = Op> {
    let offset = prop_oneof![4 => Just(0), 1 => Just(M2), 1 => Just(K4)];
    prop_oneof![
        4 => (any_range(), offset, prop::bool::weighted(0.8)).prop_map(|(r, offset, writable)| {
            let len = if offset == K4 { r.len().min(2 * M2) } else { r.len() };
            Op::Ram(range(r.start.0, len), offset, writable)
        }),
        1 => any_range().prop_map(Op::Rom),
        1 => any_range().prop_map(Op::Mmio),
        2 => any_range().prop_map(Op::Unmap),
        1 => (any_range(), any::<bool>()).prop_map(|(r, writable)| Op::Writable(r, writable)),
        1 => (any_range(), prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M)])
            .prop_map(|(r, size)| Op::Split(range(r.start.0, r.len().min(2 * M2)), size)),
        2 => any_range().prop_map(Op::Merge),
        1 => Just(Op::Harvest),
    ]
}

fn edges(ops: &[Op]) -> Vec<Gpa> {
    let mut at = vec![Gpa(0), Gpa(5 * G1)];
    for op in ops {
        if let Op::Ram(r, ..) | Op::Rom(r) | Op::Mmio(r) | Op::Unmap(r) | Op::Writable(r, _) = *op {
            let middle = r.start.0 + r.len() / 2;
            at.extend([r.start, Gpa(r.end.0 - 1), r.end, Gpa(r.start.0.saturating_sub(1)), Gpa(middle)]);
        }
    }
    at.sort();
    at.dedup();
    at
}

const ACCESSES: [Access; 3] = [Access::READ, Access::WRITE, Access::FETCH];

/// What the processor must do with an access, and what the engine must say about its fault.
fn outcome(entry: P2mEntry, access: Access) -> Result<Hpa, NestedOutcome> {
    match entry {
        P2mEntry::Ram { writable: false, .. } if access.write => Err(NestedOutcome::WriteProtected),
        P2mEntry::Rom { .. } if access.write => Err(NestedOutcome::RomWrite),
        P2mEntry::Ram { hpa, .. } | P2mEntry::Rom { hpa } => Ok(hpa),
        P2mEntry::Mmio => Err(NestedOutcome::Mmio),
        P2mEntry::Hole | P2mEntry::Absent { .. } => Err(NestedOutcome::NotMapped),
        P2mEntry::Local { .. } => unreachable!("nothing here is mapped to a cache"),
    }
}

fn run<F: PteFormat<Attr = NestedAttr>>(vendor: Vendor, ops: &[Op], largest: PageSize) {
    let arena = Arena::new(10_000);
    let mut p2m = P2m::new(&arena).unwrap();
    let mut nested = Nested::<F, _>::new(&arena, largest, &p2m).unwrap();
    let mut processor = Processor::new(vendor);
    let mut written = Vec::new();
    let edges = edges(ops);
    for (n, op) in ops.iter().enumerate() {
        if let Some(changed) = perform(&mut p2m, op) {
            let flush = nested.apply(&p2m, changed).unwrap();
            processor.flush(flush);
            nested.take_retired().free(&&arena);
        }
        if matches!(op, Op::Harvest) {
            let mut dirty = Vec::new();
            let flush =
                nested.harvest(GpaRange::ALL, AccessBits::DIRTY, |leaf| dirty.push(leaf.range())).unwrap();
            processor.flush(flush);
            for (gpa, entry) in written.drain(..) {
                let reported = dirty.iter().any(|range: &GpaRange| range.contains(gpa));
                assert!(reported || p2m.translate(gpa) != entry, "the write to {gpa} is lost");
            }
        }
        for &gpa in &edges {
            let entry = expected(&ops[..=n], gpa);
            assert_eq!(p2m.translate(gpa), entry, "{gpa}");
            for access in ACCESSES {
                let wanted = outcome(entry, access);
                let got = processor.access(&arena, nested.root().frame(), gpa, access);
                assert_eq!(got.ok(), wanted.ok(), "{gpa} {access:?} {got:?}");
                let said = nested.fault(gpa, access, &p2m).unwrap();
                assert_eq!(said, wanted.err().unwrap_or(NestedOutcome::Spurious), "{gpa} {access:?}");
                if access.write && got.is_ok() {
                    written.push((gpa, entry));
                }
            }
        }
        // A page that moved takes the knowledge about writes to its old place with it.
        written.retain(|&(gpa, entry)| p2m.translate(gpa) == entry);
    }
    drop((p2m, nested));
    assert_eq!(arena.in_use(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_processor_sees_the_p2m_through_npt(ops in prop::collection::vec(any_op(), 1..12)) {
        run::<Npt>(Vendor::Amd, &ops, PageSize::Size1G);
    }

    #[test]
    fn the_processor_sees_the_p2m_through_ept(ops in prop::collection::vec(any_op(), 1..12)) {
        run::<Ept>(Vendor::Intel, &ops, PageSize::Size2M);
    }

    #[test]
    fn runs_are_as_long_as_the_memory_is_contiguous(ops in prop::collection::vec(any_op(), 1..8)) {
        let arena = Arena::new(10_000);
        let mut p2m = P2m::new(&arena).unwrap();
        for op in &ops {
            let _no_engine = perform(&mut p2m, op);
        }
        for gpa in edges(&ops) {
            let (entry, len) = p2m.run(gpa, 3 * G1);
            prop_assert_eq!(entry, p2m.translate(gpa));
            let moved = |by: u64| match entry {
                P2mEntry::Ram { hpa, writable } => P2mEntry::Ram { hpa: Hpa(hpa.0 + by), writable },
                P2mEntry::Rom { hpa } => P2mEntry::Rom { hpa: Hpa(hpa.0 + by) },
                other => other,
            };
            prop_assert_eq!(p2m.translate(Gpa(gpa.0 + len - 1)), moved(len - 1));
            prop_assert!(len == 3 * G1 || p2m.translate(Gpa(gpa.0 + len)) != moved(len));
            prop_assert_eq!(p2m.run(gpa, 1).1, 1);
        }
    }
}

#[test]
fn a_fault_fills_what_the_tables_miss() {
    let arena = Arena::new(100);
    let mut p2m = P2m::new(&arena).unwrap();
    let mut nested = Nested::<Npt, _>::new(&arena, PageSize::Size2M, &p2m).unwrap();
    let root = nested.root().frame();
    let _not_applied = p2m.map_ram(range(0, 4 * M2), Hpa(HOST), true).unwrap();
    let mut processor = Processor::new(Vendor::Amd);
    let gpa = Gpa(M2 + 0x1234);
    assert_eq!(processor.access(&arena, root, gpa, Access::WRITE), Err(Fault::NotPresent));
    assert_eq!(nested.fault(gpa, Access::WRITE, &p2m), Ok(NestedOutcome::Filled(Flush::None)));
    assert_eq!(processor.access(&arena, root, gpa, Access::WRITE), Ok(Hpa(HOST + gpa.0)));
    assert_eq!(nested.fault(gpa, Access::WRITE, &p2m), Ok(NestedOutcome::Spurious));
    // A right that the P2m has given back in the meantime comes back without a flush.
    let changed = p2m.set_writable(range(M2, K4), false).unwrap();
    let flush = nested.apply(&p2m, changed).unwrap();
    assert_eq!(flush, Flush::Range(range(M2, K4)));
    let _not_applied = p2m.set_writable(range(M2, K4), true).unwrap();
    assert_eq!(nested.fault(Gpa(M2), Access::WRITE, &p2m), Ok(NestedOutcome::Filled(Flush::None)));
}

#[test]
fn out_of_frames_is_an_error() {
    let arena = Arena::new(3);
    let mut p2m = P2m::new(&arena).unwrap();
    assert!(p2m.map_ram(range(0, M2), Hpa(HOST), true).is_ok());
    assert_eq!(p2m.map_ram(range(0, K4), Hpa(HOST + M2), true), Err(MapError::OutOfFrames));
    assert_eq!(p2m.translate(Gpa(0x10)).readable(), Some(Hpa(HOST + 0x10)));
    arena.set_limit(5);
    assert_eq!(Nested::<Npt, _>::new(&arena, PageSize::Size1G, &p2m).unwrap_err(), MapError::OutOfFrames);
    arena.set_limit(6);
    assert!(Nested::<Npt, _>::new(&arena, PageSize::Size1G, &p2m).is_ok());
    assert_eq!(arena.in_use(), p2m.table_frames() as usize);
}
