//! Address spaces that come, share memory, sleep and go, beside a model that keeps a list of mappers for each frame.

mod small;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::arch::addr::Gva;
use crate::region::history::SAMPLE_NS;
use crate::region::spaces::UNSEEN_NS;
use crate::region::{Domain, Effect, Kind};

const FRAMES: u64 = 0x200;
/// Frames that any program touches, and those that programs get for themselves.
const COMMON: core::ops::Range<u64> = 0x10..0x18;
const OWN: core::ops::Range<u64> = 0x40..0x140;
/// A root that is no program's.
const KERNEL: u64 = 0x1000;

fn settings(word: &str) -> abi::regions::Regioning {
    match word.parse().unwrap() {
        abi::regions::Regions::On(settings) => settings,
        abi::regions::Regions::Off => unreachable!("{word}"),
    }
}

fn at() -> At {
    At { caches: Arc::new(Caches::new([1000, 1000])), vm: 0, weight: 256 }
}

fn touch(gfn: Gfn, by_kernel: bool) -> Touch {
    Touch {
        gfn,
        address: Some(Gva(0x7f00_0000_0000 | gfn.0 << 12)),
        is_user_address: !by_kernel,
        rip: Gva(0x40_1000),
        rsp: Gva(0x7fff_ffff_0000),
        is_fetch: false,
        by_kernel,
    }
}

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twin {
    None,
    /// What is open stays so when another program runs.
    KeepsOpen,
    /// Address spaces that are gone keep their frames.
    KeepsFrames,
    /// What the kernel touches is its program's.
    TakesKernels,
}

/// A program, with the frames that it has for itself.
#[derive(Debug)]
struct Program {
    frames: Vec<u64>,
    sleeps: bool,
    /// When the VM's clock was looked at last while it ran.
    seen_ns: u64,
}

struct Scene {
    twin: Twin,
    state: u64,
    partition: Partition,
    rounds: Rounds,
    at: At,
    now_ns: u64,
    clock_ns: u64,
    programs: BTreeMap<u64, Program>,
    next_root: u64,
    free: Vec<u64>,
    /// The first two that are known to map a frame, by their roots.
    mappers: BTreeMap<u64, Vec<u64>>,
    /// Pages of the current program that are open in the phase's tables.
    open: BTreeSet<u64>,
    is_on: bool,
}

impl Scene {
    fn new(seed: u64, twin: Twin) -> Scene {
        let mut partition = Partition::new([Gfn(0)..Gfn(FRAMES)]).unwrap();
        partition.have_all_spaces();
        let settings = settings("balance,q_us=20,period_ms=20,phase_ms=4,cache_kib=64");
        let rounds = Rounds::new(settings, &mut partition).unwrap();
        Scene {
            twin,
            state: seed.wrapping_mul(2) + 1,
            partition,
            rounds,
            at: at(),
            now_ns: 0,
            clock_ns: 0,
            programs: BTreeMap::new(),
            next_root: 0x10_0000,
            free: OWN.collect(),
            mappers: BTreeMap::new(),
            open: BTreeSet::new(),
            is_on: false,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % below.max(1)
    }

    fn follow<'a>(&mut self, all: impl IntoIterator<Item = &'a Effects>) {
        for effect in all.into_iter().flat_map(Effects::iter) {
            if let Effect::Died(rid) = effect {
                self.rounds.forget(rid);
            }
        }
    }

    fn root(&mut self) -> Option<u64> {
        let count = self.programs.len() as u64;
        let at = self.random(count) as usize;
        self.programs.keys().nth(at).copied()
    }

    fn begin_program(&mut self) {
        let count = self.random(12) as usize + 1;
        let at = self.free.len().saturating_sub(count);
        let frames = self.free.split_off(at);
        self.programs.insert(self.next_root, Program { frames, sleeps: false, seen_ns: self.clock_ns });
        self.next_root += 0x1000;
    }

    /// Its frames are others' next.
    fn exit_program(&mut self, root: u64) {
        self.free.extend(self.programs.remove(&root).unwrap().frames);
    }

    fn begin_phase(&mut self, root: u64) {
        if !self.is_on {
            let _sample = self.rounds.ran(0, self.clock_ns, Some(root), 0);
            if let Some(program) = self.programs.get_mut(&root) {
                program.seen_ns = self.clock_ns;
            }
            let aged = self.rounds.age(&mut self.partition);
            self.follow(&aged);
            let answer = self.rounds.due(&mut self.partition, 0, Some(root), self.now_ns);
            self.is_on = answer.change == Change::CloseAll;
            self.follow(&answer.effects);
        }
    }

    fn touch(&mut self, root: u64, frame: u64, by_kernel: bool) -> Result<(), String> {
        if !self.is_on || self.open.contains(&frame) {
            return Ok(());
        }
        let made = self.rounds.space_counts().made;
        let was_global = self.partition.region_of(Gfn(frame)) == Ok(Rid::GLOBAL);
        if !by_kernel || self.twin == Twin::TakesKernels {
            let programs = &self.programs;
            let arrival =
                self.rounds.arrive(&mut self.partition, self.now_ns, Some(root), Gfn(frame), |root| {
                    programs.contains_key(&root)
                });
            self.follow(&arrival.effects);
            if arrival.is_switch && self.twin != Twin::KeepsOpen {
                self.open.clear();
            }
        }
        if by_kernel && self.rounds.space_counts().made != made {
            return Err("the kernel has an address space".into());
        }
        if !by_kernel {
            let mappers = self.mappers.entry(frame).or_default();
            mappers.retain(|root| self.rounds.known(Some(*root)).is_some());
            if mappers.is_empty() || mappers.len() < 2 && !mappers.contains(&root) && !was_global {
                mappers.push(root);
            }
            self.programs.get_mut(&root).unwrap().seen_ns = self.clock_ns;
        }
        self.event(Event::Touch(touch(Gfn(frame), by_kernel)));
        // What one has open is no other's.
        let own = self.rounds.known(Some(root));
        for frame in self.open.iter().filter(|_| !by_kernel) {
            let info = self.partition.info_of(Gfn(*frame)).unwrap();
            if let Owner::Space(space) = info.owner
                && Some(space) != own
            {
                return Err(format!("frame {frame:#x} of {space:?} is open for {own:?}"));
            }
        }
        Ok(())
    }

    fn event(&mut self, event: Event) {
        let Answer { change, effects } = self.rounds.on(&mut self.partition, self.now_ns, event);
        self.follow(&effects);
        match (change, event) {
            (Change::Open(gfn), Event::Touch(Touch { by_kernel: false, .. })) => _ = self.open.insert(gfn.0),
            (Change::Switch { close, .. }, Event::Touch(touch)) => {
                if close.is_some() {
                    self.open.clear();
                }
                self.open.insert(touch.gfn.0);
            }
            (Change::CloseAll, _) => self.open.clear(),
            (Change::Finish(_), _) => {
                self.open.clear();
                self.is_on = false;
                let mut effects = vec![];
                let moves = self.rounds.end(
                    &mut self.partition,
                    self.now_ns,
                    &self.at,
                    |_| false,
                    |effect| effects.push(effect),
                );
                self.follow(&effects);
                for step in moves.unwrap() {
                    let _performed = self.partition.localise(step.rid, step.to).unwrap();
                }
            }
            _ => {}
        }
    }

    /// All programs that do not sleep run for so long.
    fn settle(&mut self, ns: u64) {
        self.event(Event::End);
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns += SAMPLE_NS;
            self.clock_ns = self.now_ns;
            let _no_program = self.rounds.ran(0, self.clock_ns, Some(KERNEL), SAMPLE_NS);
            for (root, program) in self.programs.iter_mut().filter(|(_, program)| !program.sleeps) {
                let _sample = self.rounds.ran(0, self.clock_ns, Some(*root), SAMPLE_NS);
                program.seen_ns = self.clock_ns;
            }
            if self.twin != Twin::KeepsFrames {
                let programs = &self.programs;
                let gone = self.rounds.sweep(&mut self.partition, |root| programs.contains_key(&root));
                self.follow(&gone);
            }
            let (programs, now_ns) = (&self.programs, self.clock_ns);
            let is_gone = |root: &u64| programs.get(root).is_none_or(|it| now_ns - it.seen_ns >= UNSEEN_NS);
            let is_over = now_ns >= end_ns;
            for mappers in self.mappers.values_mut() {
                mappers.retain(|root| !is_gone(root) || !is_over && !programs.contains_key(root));
            }
        }
    }

    /// Each frame is where its mappers say that it belongs.
    fn check(&self) -> Result<(), String> {
        self.partition.check()?;
        for frame in 0..FRAMES {
            let info = self.partition.info_of(Gfn(frame)).unwrap();
            let mappers = self.mappers.get(&frame).map_or(&[][..], |mappers| mappers);
            let fits = match *mappers {
                [] => self.partition.region_of(Gfn(frame)) == Ok(Rid::POOL),
                _ if self.partition.region_of(Gfn(frame)) == Ok(Rid::GLOBAL) => true,
                [root] => Some(info.owner) == self.rounds.known(Some(root)).map(Owner::Space),
                _ => info.kind == Kind::Shared,
            };
            if !fits {
                return Err(format!("frame {frame:#x}: {info:?}, mapped by {mappers:x?}"));
            }
        }
        let counts = self.rounds.space_counts();
        let fits = counts.used <= self.programs.len() as u64 && counts.refused == 0;
        if fits { Ok(()) } else { Err(format!("{counts:?}, {} programs", self.programs.len())) }
    }

    fn step(&mut self) -> Result<(), String> {
        self.now_ns += self.random(30_000);
        let Some(root) = self.root() else {
            self.begin_program();
            return Ok(());
        };
        let program = &self.programs[&root];
        let own = program.frames.clone();
        match self.random(100) {
            0..4 => self.begin_program(),
            4..6 => self.exit_program(root),
            6 => {
                let sleeps = &mut self.programs.get_mut(&root).unwrap().sleeps;
                *sleeps = !*sleeps;
            }
            7..9 => self.event(Event::Interrupt),
            9 => {
                let long = self.random(4) == 0;
                self.settle(if long { UNSEEN_NS + 4 * SAMPLE_NS } else { 8 * SAMPLE_NS });
                self.check()?;
            }
            10..16 => self.begin_phase(if self.state >> 40 & 1 == 0 { root } else { KERNEL }),
            kind => {
                // A program runs for a while.
                for _ in 0..self.random(20) {
                    let frame = match self.random(8) {
                        0 => COMMON.start + self.random(COMMON.end - COMMON.start),
                        _ if own.is_empty() => continue,
                        _ => own[self.random(own.len() as u64) as usize],
                    };
                    let by_kernel = kind < 30 && self.random(2) == 0;
                    self.touch(root, frame, by_kernel)?;
                    self.now_ns += 2000;
                }
            }
        }
        Ok(())
    }

    fn run(seed: u64, twin: Twin) -> Result<spaces::Counts, String> {
        let mut scene = Scene::new(seed, twin);
        for _ in 0..3000 {
            scene.step()?;
        }
        scene.settle(UNSEEN_NS + 4 * SAMPLE_NS);
        scene.check()?;
        Ok(scene.rounds.space_counts())
    }
}

#[test]
fn frames_are_where_programs_have_them() {
    let mut all = spaces::Counts::default();
    for seed in 0..20 {
        let counts = Scene::run(seed, Twin::None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        (all.made, all.ended) = (all.made + counts.made, all.ended + counts.ended);
    }
    assert!(all.made > 200 && all.ended > 150, "{all:?}");
}

#[test]
fn twins_are_found_out() {
    for twin in [Twin::KeepsOpen, Twin::KeepsFrames, Twin::TakesKernels] {
        let found = (0..20).filter(|seed| Scene::run(*seed, twin).is_err()).count();
        assert!(found >= 10, "{twin:?} is found in {found} of 20 runs");
    }
}

/// A VM in which a phase begins on the kernel's tables.
fn in_phase(word: &str) -> (Partition, Rounds) {
    let mut partition = Partition::new([Gfn(0)..Gfn(FRAMES)]).unwrap();
    let mut rounds = Rounds::new(settings(word), &mut partition).unwrap();
    assert_eq!(rounds.due(&mut partition, 0, Some(KERNEL), 0).change, Change::CloseAll);
    (partition, rounds)
}

/// A program touches a frame at this time.
fn program(
    partition: &mut Partition,
    rounds: &mut Rounds,
    root: u64,
    frame: u64,
    now_ns: u64,
) -> (Arrival, Change) {
    let arrival = rounds.arrive(partition, now_ns, Some(root), Gfn(frame), |_| true);
    let answer = rounds.on(partition, now_ns, Event::Touch(touch(Gfn(frame), false)));
    (arrival, answer.change)
}

#[test]
fn the_time_of_another_program_is_not_ones_own() {
    let (mut partition, mut rounds) = in_phase("unify,q_us=1");
    let mut at = |root, frame, us: u64| program(&mut partition, &mut rounds, root, frame, us * 1000);
    // The first is entered in the middle, and counts for no time.
    assert!(at(0x5000, 0x40, 0).0.is_switch);
    assert!(!at(0x5000, 0x41, 10).0.is_switch);
    assert!(at(0x6000, 0x50, 30).0.is_switch);
    // Back in the same region, for 5 µs more.
    assert!(at(0x5000, 0x41, 500).0.is_switch);
    let _visit_is_over = at(0x5000, 0x40, 505);
    let rid = partition.region_of(Gfn(0x41)).unwrap();
    assert_eq!(rounds.access_ns(rid), Some(25_000));
    assert_eq!(rounds.root(partition.info(rid).unwrap().owner), Some(0x5000));
    let Change::Finish(round) = rounds.on(&mut partition, 600_000, Event::End).change else {
        panic!("it goes on")
    };
    // Of the first until 30 and from 500 on, of the second from 30 to 500.
    assert_eq!((round.touches, round.program_ns), (5, (30 + 100 + 470) * 1000));
}

#[test]
fn long_phases_have_more_touches_and_short_ones_no_fewer() {
    assert_eq!(
        [1, 10, 20, 60, 80, 1000].map(Params::most_touches),
        [8192, 8192, 16_384, 49_152, 65_535, 65_535]
    );
}

#[test]
fn a_guest_that_makes_address_spaces_without_end_gets_no_more_than_there_are() {
    let (mut partition, mut rounds) = in_phase("balance,phase_ms=100,period_ms=200");
    for n in 0..1000u64 {
        let (_, change) = program(&mut partition, &mut rounds, 0x10_0000 + (n << 12), n % FRAMES, n * 1000);
        assert!(!matches!(change, Change::Finish(_)), "{n}");
    }
    let counts = rounds.space_counts();
    let most = partition.space_records() as u64 - 1;
    assert_eq!((counts.used, counts.made, counts.ended), (most, most, 0));
    assert_eq!(counts.refused, 1000 - most);
    // The touches of all together end a phase.
    let last = (1000..90_000).find(|n| {
        let root = 0x10_0000 + ((n % 200) << 12);
        matches!(program(&mut partition, &mut rounds, root, n % FRAMES, n * 1000).1, Change::Finish(_))
    });
    assert_eq!(last, Some(u64::from(Params::most_touches(100))));
    // All of it is given back.
    rounds.give_up(&mut partition, |_| {});
    while rounds.leave(&mut partition).is_some() {}
    partition.check().unwrap();
    assert_eq!((rounds.space_counts().used, rounds.space_counts().ended), (0, most));
    let left =
        (0..FRAMES).filter(|frame| partition.mappers(Gfn(*frame)).any(|(space, _)| space != Space::VM));
    assert_eq!(left.count(), 0);
}

#[test]
fn the_vm_is_the_address_space_if_that_is_wanted() {
    let (mut partition, mut rounds) = in_phase("balance,spaces=vm");
    for n in 0..20u64 {
        let (arrival, _) = program(&mut partition, &mut rounds, n << 12, 0x40 + n % 4, n * 200_000);
        assert!(!arrival.is_switch);
    }
    assert_eq!(rounds.space_counts(), spaces::Counts::default());
    assert_eq!(partition.info_of(Gfn(0x41)).unwrap().owner, Owner::Space(Space::VM));
    // From now on by CR3: what the VM has is taken from it.
    rounds.change(settings("balance,spaces=cr3"), &mut partition).unwrap();
    assert_eq!(rounds.in_phase(), None);
    let _begun = rounds.due(&mut partition, 0, None, 0);
    let _touched = program(&mut partition, &mut rounds, 0x7000, 0x41, 0);
    assert_eq!(rounds.root(partition.info_of(Gfn(0x41)).unwrap().owner), Some(0x7000));
    rounds.abandon(&mut partition);
    for n in 0..4 {
        rounds.ran(0, n * SAMPLE_NS, Some(KERNEL), 0);
        let _opened = rounds.sweep(&mut partition, |_| true);
    }
    assert_eq!(partition.entries_in(Space::VM), Ok(0));
    // And back.
    rounds.change(settings("balance,spaces=vm"), &mut partition).unwrap();
    let _begun = rounds.due(&mut partition, 0, None, 0);
    let _touched = program(&mut partition, &mut rounds, 0x7000, 0x41, 0);
    assert_eq!(partition.info_of(Gfn(0x41)).unwrap().owner, Owner::Space(Space::VM));
    partition.check().unwrap();
}

#[test]
fn moves_count_for_the_address_space_whose_memory_it_is() {
    let (mut partition, mut rounds) = in_phase("balance");
    let _touched = program(&mut partition, &mut rounds, 0x5000, 0x40, 0);
    let rid = partition.region_of(Gfn(0x40)).unwrap();
    let _closed = partition.localise(rid, Domain::new(1).unwrap()).unwrap();
    let owner = partition.owner_of(rid).unwrap();
    (0..7).for_each(|n| assert_eq!(rounds.moved(&mut partition, owner, Gfn(0x40), n), None));
    let space = rounds.known(Some(0x5000)).unwrap();
    assert_eq!((rounds.spaces.moves(space).take(), rounds.spaces.moves(Space::VM).take()), (7, 0));
}

#[test]
fn a_phase_of_several_programs_may_be_abandoned() {
    let (mut partition, mut rounds) = in_phase("balance");
    for root in [0x5000, 0x6000, 0x7000] {
        let _touched = program(&mut partition, &mut rounds, root, root >> 8, 1000);
    }
    rounds.abandon(&mut partition);
    assert_eq!(rounds.in_phase(), None);
    assert!(!rounds.spaces.numbers().any(|space| rounds.finished.contains(space)));
}

#[test]
fn frames_age_however_often_rounds_are() {
    let (mut partition, mut rounds) = in_phase("balance");
    let _touched = program(&mut partition, &mut rounds, 0x5000, 0x40, 0);
    let space = rounds.known(Some(0x5000)).unwrap();
    let complete = |accessed| Scan { is_complete: true, accessed, ..Scan::default() };
    let mut samples = 0;
    for n in 1..5 {
        let answer = rounds.on(&mut partition, n, Event::End);
        assert!(matches!(answer.change, Change::Finish(_)) && rounds.finished.contains(space));
        let _nothing_to_move = rounds.end(&mut partition, n, &at(), |_| false, |_| {}).unwrap();
        // The program runs for half of the time from one round to the next, and uses the frame no more.
        for _ in 0..4 {
            rounds.sampled(space, complete(0));
        }
        // No turn is left out: other memory of its is used by turns.
        rounds.sampled(space, complete(n % 2 * 1000));
        samples += 5;
        let _opened = rounds.age(&mut partition);
        let is_aged = partition.region_of(Gfn(0x40)) == Ok(Rid::POOL);
        assert_eq!(is_aged, samples >= 8, "after {samples} samples");
        let answer = rounds.due(&mut partition, 0, Some(0x5000), n);
        assert_eq!(answer.change, Change::CloseAll);
    }
    assert_eq!(rounds.counts().aged, 1);
}

#[test]
fn each_touch_without_a_number_is_counted() {
    let (mut partition, mut rounds) = in_phase("balance");
    let spaces = partition.space_records() as u64;
    for n in 0..spaces {
        let _touched = program(&mut partition, &mut rounds, 0x10_0000 + (n << 12), n, n);
    }
    assert_eq!(rounds.space_counts().refused, 1);
    let last = 0x10_0000 + ((spaces - 1) << 12);
    let (arrival, _) = program(&mut partition, &mut rounds, last, 0x180, 1000);
    assert_eq!((arrival.is_switch, rounds.space_counts().refused), (false, 2));
}

#[test]
fn a_program_that_comes_late_in_a_phase_keeps_its_regions() {
    for (ms, is_kept) in [(1, false), (5, false), (6, true), (9, true)] {
        let (mut partition, mut rounds) = in_phase("balance,q_us=1");
        for (us, frame) in [(10, 0x40), (40, 0x50)] {
            let _touched = program(&mut partition, &mut rounds, 0x5000, frame, us * 1000);
        }
        let rid = partition.region_of(Gfn(0x40)).unwrap();
        let _closed = partition.localise(rid, Domain::new(1).unwrap()).unwrap();
        let _seen = program(&mut partition, &mut rounds, 0x5000, 0x40, 80_000);
        let _over = rounds.on(&mut partition, 130_000, Event::End);
        let _moves = rounds.end(&mut partition, 130_000, &at(), |_| false, |_| {}).unwrap();
        // Another phase begins, and the program runs in it after so long.
        let begin_ns = 1_000_000_000;
        assert_eq!(rounds.due(&mut partition, 0, Some(KERNEL), begin_ns).change, Change::CloseAll);
        let _touched = program(&mut partition, &mut rounds, 0x5000, 0x50, begin_ns + ms * 1_000_000);
        let is_local = partition.info(rid).is_some_and(|info| info.kind.is_local());
        assert_eq!(
            (is_local, rounds.regioning.is_on(rounds.known(Some(0x5000)).unwrap())),
            (is_kept, !is_kept),
            "{ms}"
        );
        // What it touches is its own all the same.
        let _touched = program(&mut partition, &mut rounds, 0x5000, 0x60, begin_ns + ms * 1_000_000);
        assert_eq!(rounds.root(partition.info_of(Gfn(0x60)).unwrap().owner), Some(0x5000));
    }
}

#[test]
fn a_region_that_rests_is_mapped_to_no_cache() {
    let (mut partition, mut rounds) = in_phase("balance,q_us=1,cache_kib=64");
    for n in 0..4 {
        let _touched = program(&mut partition, &mut rounds, 0x5000, 0x40 + n, n * 30_000);
    }
    let rid = partition.region_of(Gfn(0x40)).unwrap();
    let _over = rounds.on(&mut partition, 130_000, Event::End);
    assert!(rounds.end(&mut partition, 130_000, &at(), |_| true, |_| {}).unwrap().is_empty());
    let mut placed = |rests: &dyn Fn(Rid) -> bool| {
        rounds.balance(&partition, &at(), rests).unwrap().iter().map(|step| step.rid).collect::<Vec<_>>()
    };
    let others = placed(&|other| other == rid);
    assert!(!others.is_empty() && !others.contains(&rid));
    assert!(placed(&|_| false).contains(&rid));
    // What a cache has stays there.
    let _closed = partition.localise(rid, Domain::new(1).unwrap()).unwrap();
    let _all = rounds.balance(&partition, &at(), |_| true).unwrap();
    assert!(partition.info(rid).unwrap().kind.is_local());
}
