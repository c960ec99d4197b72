//! Samples of accesses and phases of regioning at random times, on nested tables, under VCPUs that move between cache domains.
//!
//! Each VCPU has a modelled processor that keeps what it has walked until it is told to flush, and sets no accessed bit where it has a
//! translation. What must hold: a sample finds each page that was accessed since the last one; in a phase no access goes through to a page
//! that is not open there; reads return what was written; the log of written pages has each that was, in a phase or not.

use std::collections::BTreeSet;

use super::scans::{Scans, Tables, parts};
use crate::arch::Access;
use crate::arch::addr::{Gfn, Gpa, Hpa, PAGE_SIZE};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::paging::arena::Arena;
use crate::paging::format::{ept::Ept, npt::Npt};
use crate::paging::model::{Modelled, Processor};
use crate::paging::nested::{NestedOutcome, PhasePages};
use crate::paging::nested_trees::NestedTrees;
use crate::paging::p2m::P2m;
use crate::paging::random::Random;
use crate::paging::range::{Flush, GpaRange};
use crate::paging::tree_key::TreeKey;
use crate::region::Space;
use crate::region::partition::Partition;
use crate::vm::regions::PHASE;

/// Guest memory: two large leaves at first, of which some pages are used.
const RAM: u64 = 0x40_0000;
const FRAMES: u64 = RAM / PAGE_SIZE;
const USED: [u64; 8] = [0, 1, 2, 63, 64, 511, 512, 700];
const DOMAINS: u8 = 2;
const HOST: Hpa = Hpa(0x4000_0000);

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Omits {
    Nothing,
    /// The flush of the VCPU that takes a sample.
    OwnFlush,
    /// That of the others.
    Shootdown,
    /// What is closed in the phase stays in the tables.
    Close,
    /// It goes from the tables, and the processor is not told.
    CloseFlush,
    /// A phase begins without other tables.
    Tables,
    /// The log of written pages goes on as if nothing was lost with the tables of a phase.
    LostLog,
}

struct Vcpu {
    processor: Processor,
    tree: TreeKey,
}

struct Machine<'a, F: Modelled> {
    arena: &'a Arena,
    p2m: P2m<&'a Arena>,
    trees: NestedTrees<F, &'a Arena>,
    vcpus: Vec<Vcpu>,
    host: VecHost,
    expected: [u64; USED.len()],
    partition: Partition,
    scans: Scans,
    /// Pages that were accessed since the last sample.
    accessed: BTreeSet<u64>,
    /// Pages that were written since the log of these began, if it has.
    written: Option<BTreeSet<u64>>,
    /// Pages that were closed in a phase, with what their entries told, since the last sample began.
    lost: BTreeSet<u64>,
    /// The VCPU that is in a phase, and what is open there.
    phase: Option<(usize, BTreeSet<u64>)>,
    /// Small leaves have been joined, or were until after the latest sample.
    is_joined: bool,
    was_joined: bool,
    random: Random,
    omits: Omits,
    touches: u64,
}

impl<'a, F: Modelled> Machine<'a, F> {
    fn new(arena: &'a Arena, seed: u64, omits: Omits) -> Self {
        let (p2m, trees) = NestedTrees::of_domains(arena, RAM, HOST, DOMAINS);
        let mut partition = Partition::new([Gfn(0)..Gfn(FRAMES)]).unwrap();
        partition.start_histories().unwrap();
        let vcpu = |_| Vcpu { processor: Processor::new(F::VENDOR), tree: TreeKey::FIRST };
        Machine {
            arena,
            p2m,
            trees,
            vcpus: (0..3).map(vcpu).collect(),
            host: VecHost::new(HOST, RAM as usize),
            expected: [0; USED.len()],
            partition,
            scans: Scans::default(),
            accessed: BTreeSet::new(),
            written: None,
            lost: BTreeSet::new(),
            phase: None,
            is_joined: false,
            was_joined: false,
            random: Random(seed),
            omits,
            touches: 0,
        }
    }

    fn access(&mut self) -> Result<(), String> {
        let v = self.random.draw() as usize % self.vcpus.len();
        let n = self.random.draw() as usize % USED.len();
        let (page, access) = (USED[n], if self.random.once_in(2) { Access::WRITE } else { Access::READ });
        let gpa = Gpa(page * PAGE_SIZE);
        for _ in 0..8 {
            let vcpu = &mut self.vcpus[v];
            let tree = vcpu.tree;
            let root = self.trees.root(tree).frame();
            match vcpu.processor.access(&self.arena, root, gpa, access) {
                Ok(hpa) => {
                    if let Some((_, open)) = self.phase.as_ref().filter(|(own, _)| *own == v)
                        && !open.contains(&page)
                    {
                        return Err(format!("VCPU {v} reaches page {page}, which is closed in its phase"));
                    }
                    return self.go_through(n, hpa, access);
                }
                Err(_) => match self.trees.tree_mut(tree).fault(gpa, access, &self.p2m).unwrap() {
                    NestedOutcome::Touched => self.touched(v, page)?,
                    NestedOutcome::Closed(home) => {
                        vcpu.tree = TreeKey::new(home, 0).unwrap();
                        vcpu.processor.flush(Flush::All);
                    }
                    NestedOutcome::Filled(flush) => {
                        self.vcpus.iter_mut().for_each(|vcpu| vcpu.processor.flush(flush));
                    }
                    NestedOutcome::Spurious => vcpu.processor.flush(Flush::All),
                    said => return Err(format!("VCPU {v}, page {page}, {access:?}: {said:?}")),
                },
            }
        }
        Err(format!("VCPU {v} faults for ever at page {page}"))
    }

    fn go_through(&mut self, n: usize, hpa: Hpa, access: Access) -> Result<(), String> {
        let page = USED[n];
        self.accessed.insert(page);
        if hpa != Hpa(HOST.0 + page * PAGE_SIZE) {
            return Err(format!("page {page} leads to {hpa}"));
        }
        if access.write {
            self.written.iter_mut().for_each(|written| written.extend([page]));
            self.expected[n] = self.random.draw();
            self.host.write(hpa, &self.expected[n].to_le_bytes());
        }
        let (found, expected) = (self.host.load(hpa), self.expected[n]);
        if found == expected { Ok(()) } else { Err(format!("page {page}: {found:#x}, not {expected:#x}")) }
    }

    fn pages(&mut self) -> PhasePages<'_, F, &'a Arena, &'a Arena> {
        self.trees.tree_mut(PHASE).phase_pages(&self.p2m).unwrap()
    }

    /// As regioning answers: the page is open, with or without those before it.
    fn touched(&mut self, v: usize, page: u64) -> Result<(), String> {
        self.touches += 1;
        if self.random.once_in(2) {
            self.close();
        }
        let Some((own, open)) = &mut self.phase else { return Err(format!("VCPU {v} is in no phase")) };
        if *own != v {
            return Err(format!("VCPU {v} is on the tables of {own}"));
        }
        open.insert(page);
        let _was_closed = self.pages().open(Gfn(page)).unwrap();
        self.trees.keep_small(Gfn(page));
        Ok(())
    }

    fn close(&mut self) {
        let Some((v, open)) = &mut self.phase else { return };
        let (v, closed) = (*v, core::mem::take(open));
        // Their bits go with the entries.
        self.accessed.retain(|page| !closed.contains(page));
        self.lost.extend(&closed);
        let omits = self.omits;
        for page in closed.into_iter().filter(|_| omits != Omits::Close) {
            self.pages().close(Gfn(page));
            debug_assert!(!self.trees.tree_mut(PHASE).is_open(Gfn(page)));
        }
        let retired = self.trees.take_retired();
        if self.omits != Omits::CloseFlush {
            self.vcpus[v].processor.flush(Flush::All);
            retired.free(&self.arena);
        }
    }

    fn begin_or_end(&mut self) {
        if let Some((v, _)) = self.phase.take() {
            self.vcpus[v].tree = TreeKey::new((v % 2) as u8, 0).unwrap();
            self.vcpus[v].processor.flush(Flush::All);
            self.trees.remove(PHASE);
            if self.omits == Omits::LostLog {
                self.trees.start_dirty_log(core::iter::empty());
            }
            return;
        }
        let v = self.random.draw() as usize % self.vcpus.len();
        self.trees.add_for_phase(PHASE, self.arena).unwrap();
        self.phase = Some((v, BTreeSet::new()));
        if self.omits != Omits::Tables {
            self.vcpus[v].tree = PHASE;
            self.vcpus[v].processor.flush(Flush::All);
        }
    }

    /// As at a change to nested tables.
    fn start_dirty_log(&mut self) {
        self.trees.start_dirty_log(USED.into_iter().map(Gfn));
        self.vcpus.iter_mut().for_each(|vcpu| vcpu.processor.flush(Flush::All));
        self.trees.take_retired().free(&self.arena);
        self.written = Some(BTreeSet::new());
    }

    /// As at the change back.
    fn check_dirty_log(&self) -> Result<(), String> {
        let mut written = self.written.iter().flatten();
        let missed = written.find(|page| !self.trees.is_written(Gfn(**page)));
        missed.map_or(Ok(()), |page| Err(format!("page {page} was written, and is not in the log")))
    }

    /// A sample, in parts, between which VCPUs go on.
    fn sample(&mut self) -> Result<(), String> {
        let due = core::mem::take(&mut self.accessed);
        self.lost.clear();
        // A joined leaf tells of those that were told of the time before, and so do those that it becomes.
        let is_vague = core::mem::replace(&mut self.was_joined, self.is_joined);
        let untold: Vec<u64> = USED.into_iter().filter(|page| is_vague && !self.is_told(*page)).collect();
        loop {
            let mut source = Tables::new(Some(&self.trees), None, &mut self.scans);
            let part = 1 + self.random.draw() % 6;
            let scan = self.partition.scan(Space::VM, 0, &mut source, part);
            if source.nested_owe {
                let taker = self.random.draw() as usize % self.vcpus.len();
                for (v, vcpu) in self.vcpus.iter_mut().enumerate() {
                    let is_left_out = match self.omits {
                        Omits::OwnFlush => v == taker,
                        Omits::Shootdown => v != taker,
                        _ => false,
                    };
                    if !is_left_out {
                        vcpu.processor.flush(Flush::All);
                    }
                }
            }
            if scan.is_complete {
                break;
            }
            self.access()?;
        }
        self.scans.end_sample();
        // What was accessed between the parts may be in this sample or in the next one: it is not asked for again.
        self.accessed.clear();
        let is_missed =
            |page: &&u64| !self.lost.contains(*page) && !untold.contains(*page) && !self.is_told(**page);
        let missed = due.iter().find(is_missed);
        missed.map_or(Ok(()), |page| Err(format!("the sample has missed page {page}")))
    }

    /// Whether the latest sample has found a page accessed.
    fn is_told(&self, page: u64) -> bool {
        self.partition.histories().unwrap().history(Gfn(page)).unwrap() >> 31 == 1
    }

    fn join_or_split(&mut self) {
        self.is_joined = !self.is_joined;
        self.was_joined = true;
        if self.is_joined {
            let flush = self.trees.join_pieces(GpaRange::ALL, |_| true);
            self.vcpus.iter_mut().for_each(|vcpu| vcpu.processor.flush(flush));
            self.trees.take_retired().free(&self.arena);
        } else {
            self.trees.split_joined(GpaRange::ALL);
        }
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.draw() % 10 {
            0..2 => self.sample()?,
            2 => {
                // Bits that only the phase's tables have go with them.
                self.sample()?;
                self.begin_or_end();
            }
            3 => {
                let page = USED[self.random.draw() as usize % USED.len()];
                let home = Some(self.random.draw() as u8 % (DOMAINS + 1)).filter(|home| *home < DOMAINS);
                let changed = self.p2m.set_home(GpaRange::page(Gfn(page).base()), home).unwrap();
                let flush = self.trees.close(&self.p2m, changed);
                self.vcpus.iter_mut().for_each(|vcpu| vcpu.processor.flush(flush));
                self.trees.take_retired().free(&self.arena);
            }
            4 => self.close(),
            5 => self.start_dirty_log(),
            6 => self.join_or_split(),
            _ => {}
        }
        self.check_dirty_log()?;
        (0..self.random.draw() % 8).try_for_each(|_| self.access())
    }
}

/// How many touches there were.
fn run<F: Modelled>(omits: Omits, seed: u64) -> Result<u64, String> {
    let arena = Arena::new(400);
    let mut machine = Machine::<F>::new(&arena, seed, omits);
    (0..200).try_for_each(|n| machine.step().map_err(|what| format!("seed {seed}, step {n}: {what}")))?;
    Ok(machine.touches)
}

#[test]
fn samples_find_all_accesses_and_phases_are_closed() {
    let mut touches = 0;
    for seed in 0..30 {
        touches += run::<Npt>(Omits::Nothing, seed).unwrap() + run::<Ept>(Omits::Nothing, seed).unwrap();
    }
    assert!(touches > 2000, "{touches}");
}

#[test]
fn what_is_left_out_is_found_out() {
    for omits in
        [Omits::OwnFlush, Omits::Shootdown, Omits::Close, Omits::CloseFlush, Omits::Tables, Omits::LostLog]
    {
        assert!((0..20).any(|seed| run::<Npt>(omits, seed).is_err()), "{omits:?}");
        assert!((0..20).any(|seed| run::<Ept>(omits, seed).is_err()), "{omits:?}");
    }
}

#[test]
fn parts_of_ram_are_all_of_it_and_bounded() {
    const MIB: u64 = 1 << 20;
    let ram = [0..700 * MIB, 4096 * MIB..5120 * MIB];
    let all: Vec<_> = parts(ram.map(|part| Gpa(part.start)..Gpa(part.end))).collect();
    let mib: Vec<_> = all.iter().map(|part| (part.start.0 / MIB, part.len() / MIB)).collect();
    assert_eq!(mib, [(0, 512), (512, 188), (4096, 512), (4608, 512)]);
}
