//! The oracle: one trace of guest actions drives every way of translating addresses, and all must agree on
//! where each access goes, on faults with their error codes, and on the accessed and dirty bits that are left
//! in guest memory.
//!
//! Two machines for now, each with memory of its own under one P2m: [`Software`], the plain walker; and
//! [`Hardware`], a modelled processor with stale caches that walks guest tables (by the reference walker)
//! through the nested tables, with the nested engine behind it. Another engine is another implementation of
//! [`Machine`].

use super::arena::Arena;
use super::format::{ept::Ept, npt::Npt};
use super::guest_walk::reference::reference;
use super::guest_walk::{PagingKind, PagingState, WalkError, translate};
use super::model::{Modelled, Processor};
use super::nested::{Nested, NestedOutcome};
use super::p2m::{P2m, P2mEntry};
use super::random::{PAGES, Random};
use super::range::{Changed, GpaRange};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE, PageSize};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::paging::vm_memory::VmMemory;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};

const HOST: Hpa = Hpa(0x8000_0000);
/// Each guest page has two places that it can be at.
const HOST_PAGES: u64 = 2 * PAGES;

type Guest<'a> = P2m<&'a Arena>;

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done(Hpa),
    PageFault(u32),
    /// Something else than memory, or a write that is not allowed: the access itself or the walk of the
    /// tables.
    Stopped(Gpa, NestedOutcome),
}

trait Machine {
    /// Takes over a change of the P2m.
    fn changed(&mut self, p2m: &Guest, changed: Changed);

    /// Makes the guest do an access.
    fn access(&mut self, p2m: &Guest, state: &PagingState, gva: Gva, access: Access) -> Outcome;

    /// The machine's own copy of host memory.
    fn host(&self) -> &VecHost;
}

/// What an access that reaches `gpa` comes to, by the P2m alone.
fn by_p2m(p2m: &Guest, gpa: Gpa, access: Access) -> Outcome {
    let stopped = match p2m.translate(gpa) {
        P2mEntry::Local { .. } => unreachable!("nothing here is mapped to a cache"),
        P2mEntry::Ram { writable: false, .. } if access.write => NestedOutcome::WriteProtected,
        P2mEntry::Rom { .. } if access.write => NestedOutcome::RomWrite,
        P2mEntry::Ram { hpa, .. } | P2mEntry::Rom { hpa } => return Outcome::Done(hpa),
        P2mEntry::Mmio => NestedOutcome::Mmio,
        P2mEntry::Hole | P2mEntry::Absent { .. } => NestedOutcome::NotMapped,
    };
    Outcome::Stopped(gpa, stopped)
}

/// The walker over the P2m. As under nested paging, walks count as writes: tables in ROM are not walked.
struct Software(VecHost);

struct WritableOnly<'a>(VmMemory<'a, &'a Arena, VecHost>);

impl GuestMemory for WritableOnly<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.0.check(gpa, buf.len() as u64, true)?;
        self.0.read(gpa, buf)
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.0.write(gpa, buf)
    }
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        self.0.compare_exchange(gpa, size, old, new)
    }
}

impl Machine for Software {
    fn changed(&mut self, _: &Guest, _: Changed) {}

    fn access(&mut self, p2m: &Guest, state: &PagingState, gva: Gva, access: Access) -> Outcome {
        let memory = WritableOnly(VmMemory::new(p2m, &self.0));
        match translate(state, &memory, gva, access) {
            Ok(found) => by_p2m(p2m, found.gpa, access),
            Err(WalkError::PageFault(code)) => Outcome::PageFault(code),
            Err(WalkError::NotRam { table }) => by_p2m(p2m, table, Access::WRITE),
            Err(WalkError::Contended) => panic!("there is no other processor"),
        }
    }

    fn host(&self) -> &VecHost {
        &self.0
    }
}

/// Nested paging on a modelled processor.
struct Hardware<'a, F: Modelled> {
    arena: &'a Arena,
    nested: Nested<F, &'a Arena>,
    processor: RefCell<Processor>,
    host: VecHost,
}

/// Guest memory as the processor reaches it in its walks; remembers the first address at which it faulted.
struct Walks<'a, F: Modelled> {
    machine: &'a Hardware<'a, F>,
    fault: Cell<Option<Gpa>>,
}

impl<F: Modelled> Walks<'_, F> {
    fn hpa(&self, gpa: Gpa) -> Result<Hpa, NotRam> {
        let Hardware { arena, nested, processor, .. } = self.machine;
        let got = processor.borrow_mut().access(arena, nested.root().frame(), gpa, Access::WRITE);
        got.map_err(|_| {
            self.fault.set(self.fault.get().or(Some(gpa)));
            NotRam { gpa }
        })
    }
}

impl<F: Modelled> GuestMemory for Walks<'_, F> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.machine.host.read(self.hpa(gpa)?, buf);
        Ok(())
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.machine.host.write(self.hpa(gpa)?, buf);
        Ok(())
    }
    fn compare_exchange(&self, _: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        unreachable!("the reference walker returns what it would write")
    }
}

impl<'a, F: Modelled> Hardware<'a, F> {
    fn new(arena: &'a Arena, p2m: &P2m<&'a Arena>, host: VecHost) -> Self {
        Hardware {
            arena,
            nested: Nested::new(arena, PageSize::Size1G, p2m).unwrap(),
            processor: RefCell::new(Processor::new(F::VENDOR)),
            host,
        }
    }
}

impl<F: Modelled> Machine for Hardware<'_, F> {
    fn changed(&mut self, p2m: &Guest, changed: Changed) {
        let flush = self.nested.apply(p2m, changed).unwrap();
        self.processor.borrow_mut().flush(flush);
        self.nested.take_retired().free(&self.arena);
    }

    fn access(&mut self, p2m: &Guest, state: &PagingState, gva: Gva, access: Access) -> Outcome {
        let walks = Walks { machine: self, fault: Cell::new(None) };
        let (found, writes) = reference(state, &walks, gva, access);
        for (at, size, value) in writes {
            walks.write(at, &value.to_le_bytes()[..size]).unwrap();
        }
        let (gpa, access) = match (walks.fault.get(), found) {
            (Some(table), _) => (table, Access::WRITE),
            (None, Ok(found)) => (found.gpa, access),
            (None, Err(WalkError::PageFault(code))) => return Outcome::PageFault(code),
            (None, Err(error)) => panic!("{error:?} without a nested fault"),
        };
        let root = self.nested.root().frame();
        match self.processor.borrow_mut().access(self.arena, root, gpa, access) {
            Ok(hpa) => Outcome::Done(hpa),
            Err(_) => Outcome::Stopped(gpa, self.nested.fault(gpa, access, p2m).unwrap()),
        }
    }

    fn host(&self) -> &VecHost {
        &self.host
    }
}

fn contents(machine: &dyn Machine) -> Vec<u8> {
    let mut bytes = vec![0; (HOST_PAGES * PAGE_SIZE) as usize];
    machine.host().read(HOST, &mut bytes);
    bytes
}

/// One step of a trace; returns whether it was an access.
fn step(
    random: &mut Random,
    kind: PagingKind,
    state: &mut PagingState,
    p2m: &mut Guest,
    machines: &mut [&mut dyn Machine],
) -> bool {
    let page = |random: &mut Random| GpaRange::page(Gpa(random.draw() % (PAGES + 1) * PAGE_SIZE));
    let place = |random: &mut Random, range: GpaRange| {
        let second = if random.once_in(4) { PAGES * PAGE_SIZE } else { 0 };
        Hpa(HOST.0 + (range.start.0 + second) % (HOST_PAGES * PAGE_SIZE))
    };
    let changed = match random.draw() % 32 {
        0 => {
            *state = random.state(kind);
            return false;
        }
        1..4 => {
            // The guest's kernel writes an entry somewhere.
            let at = (random.draw() % (PAGES * PAGE_SIZE)) & !7;
            let entry = random.entry_at(at, kind != PagingKind::TwoLevel).to_le_bytes();
            for machine in machines {
                let _what_is_not_ram_stays = VmMemory::new(p2m, machine.host()).write(Gpa(at), &entry);
            }
            return false;
        }
        4 => p2m.unmap(page(random)).unwrap(),
        5 => {
            let range = page(random);
            p2m.map_rom(range, place(random, range)).unwrap()
        }
        6 => p2m.map_mmio(page(random)).unwrap(),
        7..12 => {
            let range = page(random);
            p2m.map_ram(range, place(random, range), !random.once_in(8)).unwrap()
        }
        12 => p2m.merge(page(random)),
        13 => {
            p2m.split(GpaRange::page(Gpa(0)), PageSize::Size4K).unwrap();
            return false;
        }
        _ => {
            let gva = Gva((random.draw() as i64 >> 16) as u64);
            let access = random.access(state.cpl);
            let (first, others) = machines.split_first_mut().unwrap();
            let expected = first.access(p2m, state, gva, access);
            for machine in others {
                let got = machine.access(p2m, state, gva, access);
                assert_eq!(got, expected, "{gva} {access:?} {state:x?}");
            }
            return true;
        }
    };
    for machine in machines {
        machine.changed(p2m, changed);
    }
    false
}

fn run(kind: PagingKind, seed: u64, steps: &[u64]) {
    let arena = Arena::new(1000);
    let mut random = Random(seed);
    let mut p2m = P2m::new(&arena).unwrap();
    let ram = GpaRange::new(Gpa(0), PAGES * PAGE_SIZE).unwrap();
    let _no_machine_yet = p2m.map_ram(ram, HOST, true).unwrap();
    let host = || VecHost::new(HOST, (HOST_PAGES * PAGE_SIZE) as usize);
    let mut software = Software(host());
    let mut amd = Hardware::<Npt>::new(&arena, &p2m, host());
    let mut intel = Hardware::<Ept>::new(&arena, &p2m, host());
    random.fill(&VmMemory::new(&p2m, &software.0), kind != PagingKind::TwoLevel);
    amd.host.write(HOST, &contents(&software));
    intel.host.write(HOST, &contents(&software));
    let mut state = random.state(kind);
    for &seed in steps {
        let mut machines: [&mut dyn Machine; 3] = [&mut software, &mut amd, &mut intel];
        let accessed = step(&mut Random(seed), kind, &mut state, &mut p2m, &mut machines);
        if accessed {
            let expected = contents(&software);
            let same = contents(&amd) == expected && contents(&intel) == expected;
            assert!(same, "the machines leave different accessed and dirty bits");
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn all_machines_agree_without_paging(seed: u64, steps in steps()) {
        run(PagingKind::Off, seed, &steps);
    }

    #[test]
    fn all_machines_agree_on_two_levels(seed: u64, steps in steps()) {
        run(PagingKind::TwoLevel, seed, &steps);
    }

    #[test]
    fn all_machines_agree_on_pae(seed: u64, steps in steps()) {
        run(PagingKind::Pae, seed, &steps);
    }

    #[test]
    fn all_machines_agree_on_four_levels(seed: u64, steps in steps()) {
        run(PagingKind::FourLevel, seed, &steps);
    }
}
