//! A machine with two caches, one PCPU each, and programs that run at the same time, each in an address space of its own.

use std::collections::BTreeMap;

use super::lru::Lru;
use super::program::Program;
use crate::arch::addr::{Gfn, Gva};
use crate::region::balance::{self, Cache, Item, Policy};
use crate::region::history::{AccessSource, Asked};
use crate::region::partition::Partition;
use crate::region::regioning::{
    Answer, Change, Event, Moves, Outcome, Params, Regioning, Touch, Turn, Verdict,
};
use crate::region::{Domain, Effect, Effects, Kind, Owner, Rid, Space};

/// Frames of a cache; a frame is one line of it.
pub const CACHE: u32 = 256;
/// Frames that count as a change.
const CHANGED: u32 = CACHE / 8;
const FRAMES: u64 = 16_384;
const HIT_NS: u64 = 10;
const MISS_NS: u64 = 100;
/// A move to another cache, and an exit for a touch in a phase: a sixteenth of Clovertown's, whose caches have 256 times as many lines.
const MOVE_NS: u64 = 1000;
const TOUCH_NS: u64 = 100;
const SAMPLE_NS: u64 = 125_000;
/// Virtual time of each program until its time is measured.
const WARM_NS: u64 = 8_500_000;

const PARAMS: Params = Params {
    merge_ns: 8000,
    period_ns: 4_000_000,
    phase_ns: 200_000,
    most_touches: 2048,
    move_ns: MOVE_NS as u32,
    most_moves: 1000,
    large: 16,
};

/// What maps regions to caches.
#[derive(Clone, Copy, Debug)]
pub enum Mapping {
    /// Nothing: there are no regions.
    None,
    /// The balancer.
    Policy(Policy<'static>),
    /// By hand, without regioning: the program's two halves are two regions on two caches.
    Apart,
}

/// Access bits.
struct Accessed(Vec<u64>);

impl AccessSource for Accessed {
    fn touched(&mut self, _first: Gfn, _before: u64) -> u8 {
        u8::MAX
    }

    fn take_accessed(&mut self, first: Gfn, Asked { wanted, .. }: Asked) -> u64 {
        let word = &mut self.0[(first.0 / 64) as usize];
        let taken = *word & wanted;
        *word &= !wanted;
        taken
    }
}

/// A program on its VCPU.
struct Vcpu {
    program: Program,
    space: Space,
    first: u64,
    domain: Domain,
    /// Time of the program, and all time.
    virtual_ns: u64,
    wall_ns: u64,
    turn: Turn,
    sample_ns: u64,
    samples: u32,
    /// Frames that the latest one has found accessed.
    recent: u32,
    phases: u32,
    /// In a phase: its end, and what is open.
    phase: Option<(u64, Option<Rid>, Vec<Gfn>)>,
    round_ns: u64,
    moves: Moves,
    all_moves: u64,
    given_up: u32,
    /// Accesses and time when measuring began.
    mark: Option<(u64, u64)>,
    accesses: u64,
}

/// The machine.
pub struct Machine {
    mapping: Mapping,
    caches: [Lru; 2],
    partition: Partition,
    regioning: Regioning,
    accessed: Accessed,
    vcpus: Vec<Vcpu>,
    measured_ns: u64,
}

fn domain(number: u8) -> Domain {
    Domain::new(number).unwrap()
}

impl Machine {
    /// All programs begin on the first cache's PCPU.
    pub fn new(mapping: Mapping, programs: &[Program]) -> Machine {
        let mut partition = Partition::new([Gfn(0)..Gfn(FRAMES)]).unwrap();
        partition.start_histories().unwrap();
        let mut vcpus = vec![];
        for (n, program) in programs.iter().enumerate() {
            let space = partition.add_space().unwrap();
            let first = 2048 * n as u64;
            let frames = program.frames * program.regions;
            (first..first + frames).for_each(|n| drop(partition.map(Gfn(n), space).unwrap()));
            if matches!(mapping, Mapping::Apart) {
                (0..2).for_each(|n| {
                    by_hand(&mut partition, first + n * program.frames, program.frames, n as u8)
                });
            }
            let turn = Turn::new(n as u16, programs.len() as u16, 0, PARAMS.period_ns);
            vcpus.push(Vcpu {
                program: program.clone(),
                space,
                first,
                domain: domain(0),
                virtual_ns: 0,
                wall_ns: 0,
                turn,
                sample_ns: SAMPLE_NS,
                samples: 0,
                recent: 0,
                phases: 0,
                phase: None,
                round_ns: 0,
                moves: Moves::default(),
                all_moves: 0,
                given_up: 0,
                mark: None,
                accesses: 0,
            });
        }
        let regioning = Regioning::new(PARAMS, &partition).unwrap();
        let accessed = Accessed(vec![0; FRAMES as usize / 64]);
        Machine {
            mapping,
            caches: [(); 2].map(|()| Lru::new(CACHE, FRAMES as u32)),
            partition,
            regioning,
            accessed,
            vcpus,
            measured_ns: 8_000_000,
        }
    }

    /// The same; programs are measured for this many periods between turns.
    pub fn for_periods(periods: u64, mapping: Mapping, programs: &[Program]) -> Machine {
        Machine { measured_ns: periods * PARAMS.period_ns, ..Machine::new(mapping, programs) }
    }

    /// Runs all programs. Returns how many nanoseconds each needed for an access, with everything that comes with it.
    pub fn run(&mut self) -> Vec<f64> {
        while let Some(n) = self.next_vcpu() {
            self.access(n);
            let vcpu = &mut self.vcpus[n];
            if vcpu.mark.is_none() && vcpu.virtual_ns >= WARM_NS {
                vcpu.mark = Some((vcpu.accesses, vcpu.wall_ns));
            }
        }
        self.partition.check().unwrap();
        let time = |vcpu: &Vcpu| {
            let (accesses, wall_ns) = vcpu.mark.unwrap();
            (vcpu.wall_ns - wall_ns) as f64 / (vcpu.accesses - accesses) as f64
        };
        self.vcpus.iter().map(time).collect()
    }

    /// The one that is behind; until the first has run long enough.
    fn next_vcpu(&self) -> Option<usize> {
        let is_done = |vcpu: &Vcpu| vcpu.virtual_ns >= WARM_NS + self.measured_ns;
        let all_measured = self.vcpus.iter().all(|vcpu| vcpu.mark.is_some());
        if all_measured && self.vcpus.iter().any(is_done) {
            return None;
        }
        (0..self.vcpus.len()).min_by_key(|n| self.vcpus[*n].wall_ns)
    }

    /// Moves between caches, of all programs.
    pub fn moves(&self) -> u64 {
        self.vcpus.iter().map(|vcpu| vcpu.all_moves).sum()
    }

    /// Phases of all programs.
    pub fn phases(&self) -> u32 {
        self.vcpus.iter().map(|vcpu| vcpu.phases).sum()
    }

    /// How often regions of a program were given up.
    pub fn given_up(&self) -> u32 {
        self.vcpus.iter().map(|vcpu| vcpu.given_up).sum()
    }

    fn follow(&mut self, effects: &Effects) {
        for effect in effects.iter() {
            if let Effect::Died(rid) = effect {
                self.regioning.forget(rid);
            }
        }
    }

    fn access(&mut self, n: usize) {
        let vcpu = &mut self.vcpus[n];
        let gfn = Gfn(vcpu.first + vcpu.program.next());
        vcpu.accesses += 1;
        if vcpu.phase.is_some() {
            self.access_in_phase(n, gfn);
        } else {
            self.follow_region(n, gfn);
        }
        let vcpu = &mut self.vcpus[n];
        let is_hit = self.caches[usize::from(vcpu.domain.number())].access(gfn.0 as u32);
        let ns = if is_hit { HIT_NS } else { MISS_NS };
        vcpu.virtual_ns += ns;
        vcpu.wall_ns += ns;
        self.accessed.0[(gfn.0 / 64) as usize] |= 1 << (gfn.0 % 64);
        self.clock(n);
    }

    /// A touch of a region of the other cache moves the VCPU there.
    fn follow_region(&mut self, n: usize, gfn: Gfn) {
        let vcpu = &mut self.vcpus[n];
        let open = self.partition.open_in(gfn).unwrap();
        if open.contains(vcpu.domain) {
            return;
        }
        vcpu.domain = [0, 1].map(domain).into_iter().find(|domain| open.contains(*domain)).unwrap();
        vcpu.wall_ns += MOVE_NS;
        vcpu.all_moves += 1;
        let excluded = vcpu.moves.moved(gfn, vcpu.virtual_ns, PARAMS.most_moves, &mut self.partition);
        if let Some(effects) = excluded {
            self.follow(&effects);
        }
    }

    fn access_in_phase(&mut self, n: usize, gfn: Gfn) {
        let rid = self.partition.region_of(gfn).unwrap();
        let vcpu = &mut self.vcpus[n];
        let Some((end_ns, current, frames)) = &vcpu.phase else { return };
        if vcpu.virtual_ns >= *end_ns {
            return self.event(n, Event::End);
        }
        if *current == Some(rid) || frames.contains(&gfn) {
            return;
        }
        vcpu.wall_ns += TOUCH_NS;
        let touch = Touch {
            gfn,
            address: Some(Gva(0x7f00_0000_0000 | gfn.0 << 12)),
            is_user_address: true,
            rip: Gva(0x40_1000),
            rsp: Gva(0x7fff_ffff_0000),
            is_fetch: false,
            by_kernel: false,
        };
        self.event(n, Event::Touch(touch));
    }

    fn clock(&mut self, n: usize) {
        let vcpu = &mut self.vcpus[n];
        if vcpu.virtual_ns >= vcpu.sample_ns {
            vcpu.sample_ns += SAMPLE_NS;
            vcpu.samples += 1;
            let scan = self.partition.scan(vcpu.space, vcpu.virtual_ns, &mut self.accessed, u64::MAX);
            assert!(scan.is_complete);
            vcpu.recent = scan.accessed as u32;
        }
        if matches!(self.mapping, Mapping::Policy(_)) && vcpu.turn.take(vcpu.virtual_ns) {
            let steady = self.regioning.steady(vcpu.space).unwrap();
            if steady.takes_turn(vcpu.recent, CHANGED) {
                self.event(n, Event::Due);
            } else {
                self.balance();
            }
        }
    }

    fn event(&mut self, n: usize, event: Event) {
        let vcpu = &self.vcpus[n];
        let (space, now_ns) = (vcpu.space, vcpu.virtual_ns);
        let Answer { change, effects } = self.regioning.on(&mut self.partition, space, now_ns, event);
        effects.iter().for_each(|effects| self.follow(effects));
        let phase = &mut self.vcpus[n].phase;
        match (change, phase) {
            (Change::CloseAll, phase) => {
                *phase = Some((now_ns + u64::from(PARAMS.phase_ns), None, vec![]));
                self.vcpus[n].phases += 1;
            }
            (Change::Switch { open, .. }, Some((_, current, _))) => *current = Some(open),
            (Change::Open(gfn), Some((.., frames))) => frames.push(gfn),
            (Change::Finish(_), phase) => {
                *phase = None;
                self.end_round(n);
            }
            (Change::None, _) => {}
            other => panic!("{other:?} outside of a phase"),
        }
    }

    /// What follows each round: verdict, then balance.
    fn end_round(&mut self, n: usize) {
        let vcpu = &mut self.vcpus[n];
        let elapsed_ns = vcpu.virtual_ns - vcpu.round_ns;
        vcpu.round_ns = vcpu.virtual_ns;
        let space = vcpu.space;
        let worth = self.regioning.worth(space).unwrap();
        if worth.verdict(&PARAMS, vcpu.moves.take(), elapsed_ns) == Verdict::GiveUp {
            vcpu.given_up += 1;
            worth.give_up(&mut self.partition, space, |_effects| {});
        }
        let accessed = vcpu.recent;
        let items = self.balance();
        let own = items.iter().filter(|item| item.vm == space.number());
        let outcome = Outcome { loads: balance::loads(own), accessed };
        self.regioning.steady(space).unwrap().ended(outcome, CHANGED);
    }

    /// Evens the loads. Returns where all is then.
    fn balance(&mut self) -> Vec<Item> {
        let Mapping::Policy(policy) = self.mapping else { return vec![] };
        let mut items = self.items();
        let caches = [0, 1].map(|n| Cache { domain: domain(n), frames: CACHE, others: 0 });
        let _counts = balance::rebalance(policy, &caches, &mut items);
        for moved in balance::moves(&items) {
            let effects = self.partition.localise(moved.rid, moved.to).unwrap();
            self.follow(&effects);
        }
        items
    }

    /// All regions that may be mapped to a cache.
    fn items(&self) -> Vec<Item> {
        let samples: BTreeMap<Space, u32> =
            self.vcpus.iter().map(|vcpu| (vcpu.space, vcpu.samples)).collect();
        let regions = self.partition.regions().filter_map(|(rid, info)| {
            let Owner::Space(space) = info.owner else { return None };
            let was = match info.kind {
                Kind::Regular => None,
                Kind::Local(domain) => Some(domain),
                Kind::Seed | Kind::Shared | Kind::Global => return None,
            };
            let is_known = samples[&space] >= 32;
            let load = if is_known { self.partition.working_set(rid) as u32 } else { 4 * info.frames };
            let access_ns = self.regioning.times(rid).map(|(access, _)| access);
            Some(Item::new(space.number(), 0, rid, load, access_ns, was))
        });
        regions.collect()
    }
}

/// Makes a region of these frames, and maps it.
fn by_hand(partition: &mut Partition, first: u64, frames: u64, to: u8) {
    let mut region = None;
    for n in first..first + frames {
        let (rid, _open) = partition.split(Gfn(n)).unwrap();
        region = Some(region.map_or(rid, |region| partition.merge(region, rid).unwrap().0));
    }
    let _closed = partition.localise(region.unwrap(), domain(to)).unwrap();
}
