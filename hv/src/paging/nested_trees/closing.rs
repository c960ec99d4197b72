//! Memory that is closed in the tables of some cache domains, under VCPUs that move between them.
//!
//! Each VCPU has a modelled processor that keeps what it has walked until it is told to flush, and the tables of the domain in which
//! it is. A read returns what was written last; no access goes through to memory that is closed in the VCPU's domain.

use super::*;
use crate::arch::Access;
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::paging::arena::Arena;
use crate::paging::format::{ept::Ept, npt::Npt};
use crate::paging::model::{Modelled, Processor};
use crate::paging::nested::NestedOutcome;
use crate::paging::p2m::P2mEntry;
use crate::paging::random::Random;

/// Guest memory: two large leaves at first, of which the first pages are used.
const RAM: u64 = 0x40_0000;
const USED: u64 = 8;
const DOMAINS: u8 = 3;
const HOST: Hpa = Hpa(0x4000_0000);

/// What is left out.
#[derive(Clone, Copy, PartialEq)]
enum Omits {
    Nothing,
    /// The other VCPUs do not flush.
    Shootdown,
    /// A VCPU that moves to another domain keeps its tables.
    Follow,
}

struct Vcpu {
    processor: Processor,
    /// Where it runs, and the tables that it uses.
    domain: u8,
    tree: TreeKey,
}

struct Machine<'a, F: Modelled> {
    arena: &'a Arena,
    p2m: P2m<&'a Arena>,
    trees: NestedTrees<F, &'a Arena>,
    vcpus: Vec<Vcpu>,
    host: VecHost,
    expected: [u64; USED as usize],
    random: Random,
    omits: Omits,
    /// Moves, and pages that were opened instead.
    moved: u64,
    opened: u64,
}

impl<'a, F: Modelled> Machine<'a, F> {
    fn new(arena: &'a Arena, seed: u64, omits: Omits) -> Self {
        let (p2m, trees) = NestedTrees::of_domains(arena, RAM, HOST, DOMAINS);
        let mut random = Random(seed);
        let vcpu = |_| Vcpu { processor: Processor::new(F::VENDOR), domain: 0, tree: TreeKey::FIRST };
        let vcpus = (0..2 + random.draw() % 3).map(vcpu).collect();
        let host = VecHost::new(HOST, RAM as usize);
        let expected = [0; USED as usize];
        Machine { arena, p2m, trees, vcpus, host, expected, random, omits, moved: 0, opened: 0 }
    }

    fn go_to(&mut self, v: usize, domain: u8) {
        let vcpu = &mut self.vcpus[v];
        vcpu.domain = domain;
        if self.omits != Omits::Follow {
            vcpu.tree = TreeKey::new(domain, 0).unwrap();
            vcpu.processor.flush(Flush::All);
        }
    }

    /// A VCPU reads or writes a page, with what faults on the way are answered with.
    fn access(&mut self) -> Result<(), String> {
        let v = self.random.draw() as usize % self.vcpus.len();
        let page = self.random.draw() % USED;
        let access = if self.random.once_in(2) { Access::WRITE } else { Access::READ };
        let gpa = Gpa(page * PAGE_SIZE);
        for _ in 0..6 {
            let vcpu = &mut self.vcpus[v];
            let (tree, domain) = (vcpu.tree, vcpu.domain);
            let root = self.trees.root(tree).frame();
            let entry = self.p2m.translate(gpa);
            match vcpu.processor.access(&self.arena, root, gpa, access) {
                Ok(hpa) => {
                    if let Some(home) = entry.closed_in(domain) {
                        return Err(format!(
                            "VCPU {v} in {domain} reaches page {page}, which is closed: {home}"
                        ));
                    }
                    return self.go_through(page, hpa, access);
                }
                Err(_) => match self.trees.tree_mut(tree).fault(gpa, access, &self.p2m).unwrap() {
                    NestedOutcome::Closed(home) if entry.closed_in(tree.domain()) == Some(home) => {
                        if self.random.once_in(3) {
                            self.set_home(GpaRange::page(gpa), None);
                            self.opened += 1;
                        } else {
                            self.go_to(v, home);
                            self.moved += 1;
                        }
                    }
                    NestedOutcome::Filled(flush) => {
                        self.vcpus.iter_mut().for_each(|vcpu| vcpu.processor.flush(flush));
                    }
                    NestedOutcome::Spurious => self.vcpus[v].processor.flush(Flush::All),
                    said => return Err(format!("VCPU {v}, page {page}, {access:?}: {said:?}")),
                },
            }
        }
        Err(format!("VCPU {v} faults for ever at page {page}"))
    }

    fn go_through(&mut self, page: u64, hpa: Hpa, access: Access) -> Result<(), String> {
        let place = Hpa(HOST.0 + page * PAGE_SIZE);
        if hpa != place {
            return Err(format!("page {page} leads to {hpa}"));
        }
        if access.write {
            self.expected[page as usize] = self.random.draw();
            self.host.write(hpa, &self.expected[page as usize].to_le_bytes());
        }
        let (found, expected) = (self.host.load(hpa), self.expected[page as usize]);
        if found == expected { Ok(()) } else { Err(format!("page {page}: {found:#x}, not {expected:#x}")) }
    }

    /// The P2m, all tables and all processors follow.
    fn set_home(&mut self, range: GpaRange, home: Option<u8>) {
        let changed = self.p2m.set_home(range, home).unwrap();
        let flush = self.trees.close(&self.p2m, changed);
        let retired = self.trees.take_retired();
        let told = if self.omits == Omits::Shootdown { 1 } else { self.vcpus.len() };
        self.vcpus[..told].iter_mut().for_each(|vcpu| vcpu.processor.flush(flush));
        if told > 1 {
            retired.free(&self.arena);
        }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.draw() % 8 {
            0..2 => {
                let first = self.random.draw() % USED;
                let pages = 1 + self.random.draw() % (USED - first);
                let range = GpaRange::new(Gpa(first * PAGE_SIZE), pages * PAGE_SIZE).unwrap();
                let home = (self.random.draw() % u64::from(DOMAINS + 1)) as u8;
                self.set_home(range, Some(home).filter(|home| *home < DOMAINS));
            }
            2 => {
                // The scheduler moves it for reasons of its own.
                let v = self.random.draw() as usize % self.vcpus.len();
                let domain = (self.random.draw() % u64::from(DOMAINS)) as u8;
                self.go_to(v, domain);
            }
            3 => {
                let changed = self.p2m.merge(GpaRange::ALL);
                let flush = self.trees.apply(&self.p2m, changed).unwrap();
                self.vcpus.iter_mut().for_each(|vcpu| vcpu.processor.flush(flush));
                self.trees.take_retired().free(&self.arena);
            }
            _ => {}
        }
        (0..self.random.draw() % 6).try_for_each(|_| self.access())
    }
}

/// How many moves there were, and openings.
fn run<F: Modelled>(omits: Omits, seed: u64) -> Result<(u64, u64), String> {
    let arena = Arena::new(400);
    let mut machine = Machine::<F>::new(&arena, seed, omits);
    (0..200).try_for_each(|n| machine.step().map_err(|what| format!("seed {seed}, step {n}: {what}")))?;
    Ok((machine.moved, machine.opened))
}

#[test]
fn no_processor_reaches_memory_that_is_closed_in_its_domain() {
    let mut sums = (0, 0);
    for seed in 0..20 {
        for (moved, opened) in
            [run::<Npt>(Omits::Nothing, seed).unwrap(), run::<Ept>(Omits::Nothing, seed).unwrap()]
        {
            sums = (sums.0 + moved, sums.1 + opened);
        }
    }
    assert!(sums.0 > 300 && sums.1 > 150, "{sums:?}");
}

#[test]
fn closing_without_a_shootdown_and_moving_without_other_tables_are_found_out() {
    for omits in [Omits::Shootdown, Omits::Follow] {
        assert!((0..20).any(|seed| run::<Npt>(omits, seed).is_err()));
        assert!((0..20).any(|seed| run::<Ept>(omits, seed).is_err()));
    }
}

#[test]
fn memory_closes_without_memory_for_tables() {
    let arena = Arena::new(100);
    let mut machine = Machine::<Npt>::new(&arena, 1, Omits::Nothing);
    let page = GpaRange::page(Gpa(0x3000));
    let changed = machine.p2m.set_home(page, Some(1)).unwrap();
    arena.set_limit(0);
    // Two of the three trees must close it, and have one leaf for it and its neighbours.
    assert_eq!(machine.trees.close(&machine.p2m, changed), Flush::All);
    arena.set_limit(100);
    for (key, tree) in machine.trees.iter() {
        let open = matches!(tree.find(page.start), super::super::table::Found::Leaf(leaf) if !leaf.attr.rights.is_empty());
        assert_eq!(open, key.domain() == 1, "{key:?}");
    }
    assert!(matches!(machine.p2m.translate(page.start), P2mEntry::Local { home: 1, .. }));
    (0..100).try_for_each(|_| machine.access()).unwrap();
}
