//! The mapper against a model that is nothing but the list of changes so far, watched after every single
//! store.

use super::*;
use crate::arch::Access;
use crate::paging::arena::Arena;
use crate::paging::format::{MemoryType, NestedAttr, Rights, ept::Ept, npt::Npt};
use crate::paging::model::{Fault, Processor, Vendor};
use crate::paging::range::Flush;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

pub(super) const K4: u64 = 0x1000;
pub(super) const M2: u64 = 0x20_0000;
pub(super) const G1: u64 = 0x4000_0000;
const WINDOW: u64 = 4 * G1;

pub(super) fn range(start: u64, len: u64) -> GpaRange {
    GpaRange::new(Gpa(start), len).unwrap()
}

/// Memory that calls a closure after every store. (The check below looks at the first hundred stores of an
/// update and at a sample of the others: long updates repeat themselves.)
struct Watched<'a> {
    arena: &'a Arena,
    after: RefCell<Option<Box<dyn Fn() + 'a>>>,
}

impl<'a> Watched<'a> {
    fn new(arena: &'a Arena) -> Self {
        Watched { arena, after: RefCell::default() }
    }

    fn watch(&self, after: Option<Box<dyn Fn() + 'a>>) {
        *self.after.borrow_mut() = after;
    }

    fn stored(&self) {
        // A failed check drops the table, which stores again.
        if !std::thread::panicking()
            && let Some(after) = &*self.after.borrow()
        {
            after();
        }
    }
}

impl TableMemory for Watched<'_> {
    fn allocate(&self) -> Option<Hfn> {
        self.arena.allocate()
    }
    fn free(&self, frame: Hfn) {
        self.arena.free(frame);
    }
    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.arena.load(frame, index)
    }
    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.arena.store(frame, index, value);
        self.stored();
    }
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        let done = self.arena.compare_exchange(frame, index, old, new);
        self.stored();
        done
    }
}

#[derive(Clone, Debug)]
enum Op {
    Map(GpaRange, Hpa, NestedAttr),
    Unmap(GpaRange),
    /// Takes WRITE away (false) or gives it (true).
    Protect(GpaRange, bool),
    Split(GpaRange, PageSize),
    Merge(GpaRange),
    Touch(Gpa, Access),
    Harvest(GpaRange),
}

impl Op {
    fn range(&self) -> GpaRange {
        match *self {
            Op::Map(range, ..) | Op::Unmap(range) | Op::Protect(range, _) => range,
            _ => GpaRange { start: Gpa(0), end: Gpa(0) },
        }
    }
}

/// What an address maps to after `ops`.
fn expected(ops: &[Op], gpa: Gpa) -> Option<(Hpa, NestedAttr)> {
    let mut now = None;
    for op in ops.iter().filter(|op| op.range().contains(gpa)) {
        match *op {
            Op::Map(range, to, attr) => now = Some((Hpa(to.0 + gpa.0 - range.start.0), attr)),
            Op::Unmap(_) => now = None,
            Op::Protect(_, write) => {
                now = now.map(|(to, attr): (Hpa, NestedAttr)| (to, with_write(attr, write)));
            }
            _ => {}
        }
    }
    now
}

fn with_write(mut attr: NestedAttr, write: bool) -> NestedAttr {
    if !attr.rights.is_empty() {
        attr.rights.set(Rights::WRITE, write);
    }
    attr
}

fn allowed(state: Option<(Hpa, NestedAttr)>, access: Access) -> Result<Hpa, Fault> {
    let Some((to, attr)) = state.filter(|(_, attr)| !attr.rights.is_empty()) else {
        return Err(Fault::NotPresent);
    };
    let write = !access.write || attr.rights.contains(Rights::WRITE);
    let execute = !access.execute || attr.rights.contains(Rights::EXECUTE);
    if write && execute { Ok(to) } else { Err(Fault::Forbidden) }
}

/// Ranges that often overlap, with edges at all alignments.
fn any_range() -> impl Strategy<Value = GpaRange> {
    let unit = || prop_oneof![Just(K4), Just(M2), Just(G1)];
    (0..2u64, 0..3u64, 0..3u64, unit(), 1..4u64).prop_map(|(gigs, megs, pages, unit, count)| {
        let start = gigs * G1 + megs * M2 + pages * K4;
        range(start, if unit == G1 { G1 } else { count * unit })
    })
}

fn any_attr() -> impl Strategy<Value = NestedAttr> {
    prop_oneof![
        4 => Just(NestedAttr::RAM),
        2 => Just(NestedAttr::ROM),
        1 => Just(NestedAttr::CLOSED),
        1 => Just(NestedAttr { memory: MemoryType::Uncacheable, ..NestedAttr::RAM }),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    // Few host places, so that pieces come to fit together again.
    let to = prop_oneof![6 => Just(0), 1 => Just(M2), 1 => Just(K4)];
    prop_oneof![
        4 => (any_range(), to, any_attr()).prop_map(|(r, to, attr)| {
            // What needs small leaves is kept small: millions of stores prove no more than thousands.
            let r = if to == K4 { range(r.start.0, r.len().min(2 * M2)) } else { r };
            Op::Map(r, Hpa(8 * G1 + to + r.start.0), attr)
        }),
        2 => any_range().prop_map(Op::Unmap),
        2 => (any_range(), any::<bool>()).prop_map(|(r, write)| Op::Protect(r, write)),
        1 => (any_range(), prop_oneof![Just(PageSize::Size4K), Just(PageSize::Size2M)])
            .prop_map(|(r, size)| Op::Split(range(r.start.0, r.len().min(2 * M2)), size)),
        2 => Just(Op::Merge(range(0, WINDOW))),
        4 => (any_range(), any::<bool>(), any::<bool>()).prop_map(|(r, write, execute)| {
            Op::Touch(r.start, Access { write, execute: execute && !write, user: false })
        }),
        1 => prop_oneof![any_range(), Just(range(0, WINDOW))].prop_map(Op::Harvest),
    ]
}

const ACCESSES: [Access; 3] = [Access::READ, Access::WRITE, Access::FETCH];

/// The edges of all ranges, inside and outside.
fn probes(ops: &[Op]) -> Vec<Gpa> {
    let mut at: Vec<Gpa> = Vec::new();
    for op in ops {
        let range = op.range();
        if let Op::Touch(gpa, _) = op {
            at.push(*gpa);
        } else if !range.is_empty() {
            let middle = range.start.0 + range.len() / 2;
            at.extend([range.start, Gpa(range.start.0.wrapping_sub(1)), range.end, Gpa(range.end.0 - 1)]);
            at.extend([Gpa(middle), Gpa(middle ^ M2), Gpa(middle ^ K4)]);
        }
    }
    at.retain(|gpa| gpa.0 < WINDOW);
    at.sort();
    at.dedup();
    at
}

fn perform<F, M>(table: &mut Table<F, M>, op: &Op, written: &mut Vec<Gpa>) -> Result<Flush, MapError>
where
    F: PteFormat<Attr = NestedAttr>,
    M: TableMemory,
{
    match *op {
        Op::Map(range, to, attr) => table.map(range, to, attr),
        Op::Unmap(range) => table.unmap(range),
        Op::Protect(range, write) => table.protect(range, |attr| with_write(attr, write)),
        Op::Split(range, size) => table.split(range, size),
        Op::Merge(range) => Ok(table.merge(range)),
        Op::Touch(..) => Ok(Flush::None),
        Op::Harvest(range) => {
            let mut dirty = Vec::new();
            let flush = table.harvest(range, AccessBits::DIRTY, |leaf| dirty.push(leaf.range()))?;
            let reported = |gpa: Gpa| dirty.iter().any(|range| range.contains(gpa));
            for &gpa in written.iter().filter(|&&gpa| range.contains(gpa)) {
                assert!(reported(gpa), "the write to {gpa} is lost");
            }
            written.retain(|&gpa| !reported(gpa));
            Ok(flush)
        }
    }
}

/// Drives a table, a caching processor and the model through `ops`.
fn run<F: PteFormat<Attr = NestedAttr>>(vendor: Vendor, ops: &[Op], largest: PageSize) {
    let arena = Arena::new(4096);
    let watched = Watched::new(&arena);
    let mut table = Table::<F, _>::new(&watched, largest).unwrap();
    let root = table.root();
    let mut processor = Processor::new(vendor);
    let mut written = Vec::new();
    let probes = probes(ops);
    for (n, op) in ops.iter().enumerate() {
        let before: Vec<_> = probes.iter().map(|&gpa| expected(&ops[..n], gpa)).collect();
        let after: Vec<_> = probes.iter().map(|&gpa| expected(&ops[..=n], gpa)).collect();
        let check = {
            let (probes, after, arena) = (probes.clone(), after.clone(), &arena);
            let touched = op.range();
            let stores = Cell::new(0);
            move || {
                stores.set(stores.get() + 1);
                if stores.get() > 100 && stores.get() % 61 != 0 {
                    return;
                }
                for (i, &gpa) in probes.iter().enumerate() {
                    for access in ACCESSES {
                        let now = Processor::look(vendor, arena, root, gpa, access);
                        let fine = now == allowed(before[i], access)
                            || (touched.contains(gpa)
                                && (now == allowed(after[i], access) || now == Err(Fault::NotPresent)));
                        assert!(fine, "{gpa} {access:?} is {now:x?} in the middle of an update");
                    }
                }
            }
        };
        if let Op::Touch(gpa, access) = *op {
            let got = processor.access(&arena, root, gpa, access);
            assert_eq!(got, allowed(after_of(&probes, &after, gpa), access));
            if access.write && got.is_ok() {
                written.push(gpa);
            }
        }
        written.retain(|gpa| {
            let moved = matches!(*op, Op::Map(range, ..) | Op::Unmap(range) if range.contains(*gpa));
            !moved
        });
        watched.watch(Some(Box::new(check)));
        let flush = perform(&mut table, op, &mut written).unwrap();
        watched.watch(None);
        processor.flush(flush);
        table.reclaim();
        for (&gpa, &state) in probes.iter().zip(&after) {
            let found = match table.walk(gpa) {
                Found::Leaf(leaf) => Some((Hpa(leaf.to.0 + gpa.0 - leaf.gpa.0), leaf.attr)),
                Found::Hole(_) => None,
            };
            assert_eq!(found, state, "{gpa}");
            // Caches included; without effects, so that the dirty bits stay what the guest made them.
            let cached = processor.access(&arena, root, gpa, Access::READ);
            assert_eq!(cached, allowed(state, Access::READ), "{gpa} through the caches");
        }
        assert_eq!(arena.in_use() as u64, table.frames(), "every frame is in the tree");
    }
    let flush = table.unmap(GpaRange::ALL).unwrap();
    processor.flush(flush);
    table.reclaim();
    assert_eq!(table.frames(), 1);
    drop(table);
    assert_eq!(arena.in_use(), 0);
}

fn after_of(probes: &[Gpa], after: &[Option<(Hpa, NestedAttr)>], gpa: Gpa) -> Option<(Hpa, NestedAttr)> {
    probes.iter().position(|&probe| probe == gpa).and_then(|i| after[i])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn npt_tables_follow_the_model_after_every_store(ops in prop::collection::vec(any_op(), 1..14)) {
        run::<Npt>(Vendor::Amd, &ops, PageSize::Size1G);
    }

    #[test]
    fn ept_tables_follow_the_model_after_every_store(ops in prop::collection::vec(any_op(), 1..14)) {
        run::<Ept>(Vendor::Intel, &ops, PageSize::Size2M);
    }

    #[test]
    fn running_out_of_frames_leaves_other_addresses_alone(
        ops in prop::collection::vec(any_op(), 1..10),
        limit in 1..12usize,
    ) {
        let arena = Arena::new(limit);
        let mut table = Table::<Npt, _>::new(&arena, PageSize::Size1G).unwrap();
        let probes = probes(&ops);
        for op in &ops {
            let before: Vec<_> = probes.iter().map(|&gpa| translation(&table, gpa)).collect();
            let done = perform(&mut table, op, &mut Vec::new());
            for (&gpa, &old) in probes.iter().zip(&before) {
                if !op.range().contains(gpa) {
                    prop_assert_eq!(translation(&table, gpa), old);
                }
            }
            prop_assert!(done.is_ok() || done == Err(MapError::OutOfFrames));
            table.reclaim();
            prop_assert_eq!(arena.in_use() as u64, table.frames());
        }
    }
}

fn translation(table: &Table<Npt, &Arena>, gpa: Gpa) -> Option<(Hpa, NestedAttr)> {
    match table.walk(gpa) {
        Found::Leaf(leaf) => Some((Hpa(leaf.to.0 + gpa.0 - leaf.gpa.0), leaf.attr)),
        Found::Hole(_) => None,
    }
}
