//! Samples in parts, between which the guest goes on and the engine changes between shadow and nested paging.
//!
//! What must hold: the first sample that is taken on one engine from its beginning to its end finds each page that was accessed on that
//! engine before it began, and was found by no sample since; but for what went with the tables that told of it. No processor remembers a
//! translation here: flushes are looked at in `vm::regions::tests`.

use crate::region::partition::Partition;
use std::collections::BTreeSet;

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gva, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::model::{Modelled, Processor};
use crate::paging::nested::NestedOutcome;
use crate::paging::random::Random;
use crate::paging::shadow::model::{Registers, ShadowProcessor};
use crate::paging::shadow::tests::{STATE, Silent};
use crate::paging::shadow::{AddressSpace, PageFault, Root, ShadowOutcome, Tuning};
use crate::paging::vm_memory::VmMemory;

const PIECES: u64 = 4;
const RAM: u64 = PIECES * PIECE * PAGE_SIZE;
const HOST: Hpa = Hpa(0x8000_0000);
/// Pages that the guest uses, behind the 2 MiB with its tables.
const USED: [u64; 9] = [512, 513, 575, 576, 1023, 1024, 1500, 1700, 2047];

struct Machine<'a> {
    arena: &'a Arena,
    host: VecHost,
    p2m: P2m<&'a Arena>,
    trees: NestedTrees<Npt, &'a Arena>,
    shadow: Shadow<&'a Arena, Npt>,
    root: Root,
    partition: Partition,
    scans: Scans,
    is_shadow: bool,
    /// Pages that were accessed on nested tables, and on shadow tables, and found by no sample yet.
    due: [BTreeSet<u64>; 2],
    /// Shadow tables are not told that the engine has changed.
    omits: bool,
    random: Random,
}

impl<'a> Machine<'a> {
    fn new(arena: &'a Arena, seed: u64, omits: bool) -> Self {
        let (p2m, mut trees) = NestedTrees::of_domains(arena, RAM, HOST, 1);
        USED.iter().for_each(|page| trees.keep_small(Gfn(*page)));
        let host = VecHost::new(HOST, RAM as usize);
        let write = |at: u64, entry: u64| {
            VmMemory::new(&p2m, &host).write(Gpa(at), &entry.to_le_bytes()).unwrap();
        };
        let table = |page: u64| (page * PAGE_SIZE) | 7;
        write(PAGE_SIZE, table(2));
        write(2 * PAGE_SIZE, table(3));
        (0..PIECES).for_each(|n| write(3 * PAGE_SIZE + 8 * n, table(4 + n)));
        // Not accessed yet: what a fault fills ahead is not used.
        (0..PIECES * PIECE).for_each(|page| write(4 * PAGE_SIZE + 8 * page, table(page)));
        let mut shadow = Shadow::new(arena, 32, 40, Tuning::default()).unwrap();
        shadow.share(1, alloc::sync::Arc::new(Silent));
        let (root, _) = shadow.load(AddressSpace::new(&p2m, &VmMemory::new(&p2m, &host), &STATE));
        let mut partition = Partition::new([Gfn(0)..Gfn(PIECES * PIECE)]).unwrap();
        partition.start_histories().unwrap();
        Machine {
            arena,
            host,
            p2m,
            trees,
            shadow,
            root,
            partition,
            scans: Scans::default(),
            is_shadow: true,
            due: [BTreeSet::new(), BTreeSet::new()],
            omits,
            random: Random(seed),
        }
    }

    fn access(&mut self) {
        let page = USED[self.random.draw() as usize % USED.len()];
        let to = Hpa(HOST.0 + page * PAGE_SIZE);
        let reached = (0..3).any(|_| {
            let reached = if self.is_shadow { self.access_shadow(page) } else { self.access_nested(page) };
            reached.inspect(|reached| assert_eq!(*reached, to)).is_some()
        });
        assert!(reached, "page {page} faults for ever");
        self.due[usize::from(self.is_shadow)].insert(page);
    }

    fn access_shadow(&mut self, page: u64) -> Option<Hpa> {
        let gva = Gva(page << PAGE_SHIFT);
        let registers = Registers { smep: false, smap: false, ac: false };
        let mut processor = ShadowProcessor::default();
        let reached = processor.access(&self.arena, self.root, registers, gva, Access::WRITE);
        if reached.is_err() {
            let memory = VmMemory::new(&self.p2m, &self.host);
            let space = AddressSpace::new(&self.p2m, &memory, &STATE);
            let (outcome, _) = self.shadow.fault(space, PageFault::new(gva, Access::WRITE));
            assert!(matches!(outcome, ShadowOutcome::Filled { .. } | ShadowOutcome::Retry), "{outcome:?}");
        }
        reached.ok().map(|hpa| hpa.frame().base())
    }

    fn access_nested(&mut self, page: u64) -> Option<Hpa> {
        let gpa = Gpa(page << PAGE_SHIFT);
        let root = self.trees.root(TreeKey::FIRST).frame();
        let reached = Processor::new(Npt::VENDOR).access(&self.arena, root, gpa, Access::WRITE).map_err(drop);
        if reached.is_err() {
            let outcome = self.trees.tree_mut(TreeKey::FIRST).fault(gpa, Access::WRITE, &self.p2m).unwrap();
            assert!(matches!(outcome, NestedOutcome::Filled(_)), "{outcome:?}");
        }
        reached.ok()
    }

    /// All shadow pages go, as with a flush of all of the guest's.
    fn drop_shadow(&mut self) {
        let _no_processor_remembers = self.shadow.drop_everything();
        let memory = VmMemory::new(&self.p2m, &self.host);
        (self.root, _) = self.shadow.load(AddressSpace::new(&self.p2m, &memory, &STATE));
        self.due[1].clear();
    }

    fn sample(&mut self) -> Result<(), String> {
        let began = usize::from(self.is_shadow);
        let mut expected = self.due[began].clone();
        let mut engines = BTreeSet::from([began]);
        loop {
            self.scans.had_shadow |= self.omits;
            let nested = (!self.is_shadow).then_some(&self.trees);
            let shadow = self.is_shadow.then_some((&self.p2m, &mut self.shadow));
            let mut source = Tables::new(nested, shadow, &mut self.scans);
            source.most_entries = 1 + self.random.draw() as usize % 1500;
            let scan = self.partition.scan(Space::VM, 0, &mut source, 1 + self.random.draw() % 6);
            if scan.is_complete {
                break;
            }
            match self.random.draw() % 8 {
                0 => {
                    self.is_shadow = !self.is_shadow;
                    engines.insert(usize::from(self.is_shadow));
                }
                1 if self.random.once_in(8) => {
                    self.drop_shadow();
                    expected.retain(|_| began == 0);
                }
                _ => self.access(),
            }
        }
        self.scans.end_sample();
        let histories = self.partition.histories().unwrap();
        let told = |page: &u64| histories.history(Gfn(*page)).unwrap() >> 31 == 1;
        let missed = expected.iter().find(|page| engines.len() == 1 && !told(page));
        engines.into_iter().for_each(|engine| self.due[engine].retain(|page| !told(page)));
        missed.map_or(Ok(()), |page| Err(format!("page {page} was missed")))
    }
}

/// Random steps, each with a sample.
fn run(omits: bool, seed: u64) -> Result<(), String> {
    let arena = Arena::new(100);
    let mut machine = Machine::new(&arena, seed, omits);
    for step in 0..150 {
        (0..machine.random.draw() % 6).for_each(|_| machine.access());
        machine.is_shadow ^= machine.random.once_in(3);
        machine.sample().map_err(|what| format!("seed {seed}, step {step}: {what}"))?;
    }
    Ok(())
}

#[test]
fn what_was_accessed_before_the_engine_changed_is_found() {
    (0..20).for_each(|seed| run(false, seed).unwrap());
}

#[test]
fn tables_that_are_not_told_of_a_change_miss_accesses() {
    assert!((0..20).any(|seed| run(true, seed).is_err()));
}
