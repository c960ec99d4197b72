//! Programs with known regions, and the rules one by one.

mod hubs;
mod visits;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::region::{Domain, Effect, Kind, Owner};

/// Frames that the program maps, of those that RAM has: there is a record of a region for every sixteenth.
const FRAMES: u64 = 256;
const RAM: u64 = 16 * FRAMES;

/// A program in an address space that maps all of RAM, on one VCPU, whose accesses take time.
struct Program {
    partition: Partition,
    regioning: Regioning,
    space: Space,
    now_ns: u64,
    /// What is open in the phase's tables, and the pages that the last touch has looked at: `None` outside of phases.
    open: Option<(BTreeSet<Gfn>, usize)>,
    rounds: Vec<Round>,
}

impl Program {
    fn new(params: Params) -> Program {
        let mut partition = Partition::new([Gfn(0)..Gfn(RAM)]).unwrap();
        let space = partition.add_space().unwrap();
        (0..FRAMES).for_each(|n| drop(partition.map(Gfn(n), space).unwrap()));
        let regioning = Regioning::new(params, &partition).unwrap();
        Program { partition, regioning, space, now_ns: 0, open: None, rounds: vec![] }
    }

    fn event(&mut self, event: Event) -> Change {
        let Answer { change, effects } =
            self.regioning.on(&mut self.partition, self.space, self.now_ns, event);
        for effect in effects.iter().flat_map(Effects::iter) {
            if let Effect::Died(rid) = effect {
                self.regioning.forget(rid);
            }
        }
        match change {
            Change::None => {}
            Change::CloseAll => self.open = Some(Default::default()),
            Change::Open(gfn) => drop(self.open.as_mut().unwrap().0.insert(gfn)),
            Change::Switch { close, .. } => {
                let Event::Touch(touch) = event else { panic!("{change:?} without a touch") };
                // As `vcpu::regions::phase`: each touch of a visit opens twice as many.
                let (open, ahead) = self.open.as_mut().unwrap();
                if close.is_some() {
                    (*open, *ahead) = Default::default();
                }
                *ahead = if effects.is_empty() { (2 * *ahead).clamp(1, 256) } else { 0 };
                open.extend(self.partition.frames_from(touch.gfn).take((*ahead).max(1)));
            }
            Change::Finish(round) => {
                self.open = None;
                self.rounds.push(round);
            }
        }
        change
    }

    fn data(gfn: u64) -> Touch {
        Touch {
            gfn: Gfn(gfn),
            address: Some(Gva(0x7f00_0000_0000 + (gfn << 12))),
            is_user_address: true,
            rip: Gva(0x40_1000),
            rsp: Gva(0x7fff_ffff_0000),
            is_fetch: false,
            by_kernel: false,
        }
    }

    /// An access, which touches if the phase's tables do not lead there; it takes so long.
    fn access(&mut self, touch: Touch, ns: u64) -> Option<Change> {
        let rid = self.partition.region_of(touch.gfn).unwrap();
        let kind = self.partition.info(rid).unwrap().kind;
        let is_closed =
            |(open, _): &(BTreeSet<Gfn>, usize)| kind != Kind::Global && !open.contains(&touch.gfn);
        let change = self.open.as_ref().is_some_and(is_closed).then(|| self.event(Event::Touch(touch)));
        self.now_ns += ns;
        change
    }

    /// A phase of a program that uses two ranges of frames by turns, in order, `visit` accesses each.
    ///
    /// Returns the local region that it began with tearing down.
    fn alternate(&mut self, ranges: [Range<u64>; 2], visit: u64, ns: u64) -> Option<Rid> {
        let is = |own: &Program, rid, seed| {
            let kind = own.partition.info(rid).unwrap().kind;
            if seed { kind == Kind::Seed } else { matches!(kind, Kind::Local(_)) }
        };
        let local: Vec<Rid> =
            self.partition.regions().map(|(rid, _)| rid).filter(|rid| is(self, *rid, false)).collect();
        assert_eq!(self.event(Event::Due), Change::CloseAll);
        let torn = local.into_iter().find(|rid| is(self, *rid, true));
        let end_ns = self.now_ns + u64::from(self.regioning.params().phase_ns);
        let mut at = [ranges[0].start, ranges[1].start];
        while self.open.is_some() {
            for (range, at) in ranges.iter().zip(&mut at) {
                for _ in 0..visit {
                    self.access(Program::data(*at), ns);
                    *at = if *at + 1 == range.end { range.start } else { *at + 1 };
                }
            }
            if self.open.is_some() && self.now_ns >= end_ns {
                self.event(Event::End);
            }
        }
        torn
    }

    fn region(&self, gfn: u64) -> Rid {
        self.partition.region_of(Gfn(gfn)).unwrap()
    }

    /// Sizes of the regions that are no seeds, largest first.
    fn sizes(&self) -> Vec<u32> {
        let regions =
            self.partition.regions().filter(|(_, info)| matches!(info.kind, Kind::Regular | Kind::Local(_)));
        let mut sizes: Vec<u32> = regions.map(|(_, info)| info.frames).collect();
        sizes.sort_unstable_by_key(|size| u32::MAX - size);
        sizes
    }

    fn localise_all(&mut self) {
        let all: Vec<Rid> = self.partition.regions().map(|(rid, _)| rid).collect();
        all.into_iter().for_each(|rid| drop(self.partition.localise(rid, Domain::new(0).unwrap())));
    }
}

use core::ops::Range;

/// `q` is 10 µs, a phase 2 ms.
fn params() -> Params {
    Params { merge_ns: 10_000, phase_ns: 2_000_000, ..Params::default() }
}

#[test]
fn two_regions_are_found_where_visits_are_longer_than_q() {
    let mut program = Program::new(params());
    // 40 frames of 100 ns: a loop takes 4 µs, a visit 40 µs.
    program.alternate([0..40, 100..140], 400, 100);
    assert_eq!(program.sizes(), [40, 40]);
    assert_ne!(program.region(0), program.region(100));
    let round = program.rounds[0];
    assert_eq!((round.born, round.merges, round.refused, round.is_cut), (80, 78, 0, false));
    // From then on only changes between the two fault.
    program.alternate([0..40, 100..140], 400, 100);
    assert_eq!((program.rounds[1].switches, program.rounds[1].born), (50, 0));
    let times = |gfn| program.regioning.times(program.region(gfn)).unwrap();
    assert_eq!(times(0), (40_000, Some(40_000)));
    assert_eq!(times(100), (40_000, Some(40_000)));
}

#[test]
fn visits_shorter_than_q_make_one_region() {
    let mut program = Program::new(params());
    program.alternate([0..20, 100..120], 20, 100);
    assert_eq!(program.sizes(), [40]);
}

#[test]
fn a_single_pass_has_no_idle_times_and_merges_nothing() {
    let mut program = Program::new(params());
    assert_eq!(program.event(Event::Due), Change::CloseAll);
    for n in 0..FRAMES {
        program.access(Program::data(n), 100);
    }
    assert!(matches!(program.event(Event::End), Change::Finish(Round { born: 256, merges: 0, .. })));
}

#[test]
fn code_stacks_and_the_kernels_are_global() {
    let mut program = Program::new(params());
    let _closed = program.event(Event::Due);
    let data = Program::data(1);
    let at = |gfn, address| Touch { gfn: Gfn(gfn), address: Some(Gva(address)), ..data };
    let stack = data.rsp.0;
    let kernel = Touch { by_kernel: true, is_user_address: false, ..Program::data(9) };
    let touches = [
        (at(2, data.rip.0 + 0xff0), true),
        (Touch { is_fetch: true, address: None, ..Program::data(3) }, true),
        (at(4, stack - 0x1000), true),
        (at(5, stack + 0xffff), true),
        (at(6, stack - 0x1001), false),
        (at(7, stack + 0x1_0000), false),
        (Touch { address: None, ..Program::data(8) }, false),
        (kernel, true),
        // A system call reads the program's data.
        (Touch { is_user_address: true, gfn: Gfn(10), ..kernel }, false),
    ];
    for (touch, is_global) in touches {
        let change = program.access(touch, 10).unwrap();
        assert_eq!(program.region(touch.gfn.0) == Rid::GLOBAL, is_global, "{touch:?}");
        assert_eq!(change == Change::Open(touch.gfn), is_global, "{change:?}");
    }
    // A page of two address spaces is shared, and open.
    let other = program.partition.add_space().unwrap();
    let _shared = program.partition.map(Gfn(20), other).unwrap();
    assert_eq!(program.access(Program::data(20), 10), Some(Change::Open(Gfn(20))));
    assert!(matches!(program.event(Event::End), Change::Finish(Round { excluded: 5, born: 4, .. })));
    program.partition.check().unwrap();
}

#[test]
fn work_for_interrupts_is_no_idle_time() {
    for is_told in [false, true] {
        let mut program = Program::new(params());
        let _closed = program.event(Event::Due);
        for gfn in [0, 1] {
            program.access(Program::data(gfn), 6000);
        }
        // The kernel serves an interrupt for 50 µs, and looks at a page of the program's.
        if is_told {
            assert_eq!(program.event(Event::Interrupt), Change::CloseAll);
            let by_kernel = Touch { by_kernel: true, ..Program::data(7) };
            assert_eq!(program.access(by_kernel, 50_000), Some(Change::Open(Gfn(7))));
            // The program goes on in the same region, which is opened again.
            let (current, touch) = (program.region(1), Program::data(1));
            assert_eq!(program.access(touch, 0), Some(Change::Switch { close: None, open: current }));
        } else {
            program.now_ns += 50_000;
        }
        program.access(Program::data(0), 100);
        assert_eq!(program.region(0) == program.region(1), is_told);
        let Change::Finish(round) = program.event(Event::End) else { panic!("it ends") };
        assert_eq!(round.system_ns, if is_told { 50_000 } else { 0 });
    }
}

#[test]
fn a_phase_ends_by_time_and_by_touches() {
    let mut program = Program::new(Params { most_touches: 50, ..params() });
    program.alternate([0..100, 100..200], 100, 100);
    assert_eq!((program.rounds[0].touches, program.rounds[0].is_cut), (50, true));
    let _closed = program.event(Event::Due);
    assert_eq!(program.event(Event::Due), Change::None, "a second VCPU waits");
    program.now_ns += 2_000_000;
    let late = program.event(Event::Touch(Program::data(1)));
    assert!(matches!(late, Change::Finish(Round { touches: 0, is_cut: false, .. })));
    assert_eq!(program.event(Event::Touch(Program::data(1))), Change::None);
}

#[test]
fn the_largest_local_region_is_torn_down_and_never_twice_in_a_row() {
    let mut program = Program::new(params());
    let mut round = |is_local| {
        let torn = program.alternate([0..40, 100..120], 400, 100);
        assert_eq!(program.sizes(), [40, 20], "what was torn down is found again");
        if is_local {
            program.localise_all();
        }
        let sizes = [0, 100].map(|gfn| program.region(gfn));
        (torn, sizes)
    };
    // The first round finds regions, the second sees that they are local.
    let (torn, _) = round(true);
    assert_eq!(torn, None);
    let (torn, [large, _]) = round(true);
    assert_eq!(torn, None);
    let (torn, [again, small]) = round(true);
    assert_eq!(torn, Some(large));
    // It was no local region in the phase that built it again, so it is the other one's turn.
    let (torn, _) = round(true);
    assert_eq!(torn, Some(small));
    let (torn, _) = round(false);
    assert_eq!(torn, Some(again));
    // It would be the largest now, if it had been mapped to a cache in its phase.
    program.localise_all();
    let (again, small) = (program.region(0), program.region(100));
    program.regioning.worth(program.space).unwrap().candidates([(again, 40), (small, 20)].into());
    assert_eq!(program.alternate([0..40, 100..120], 400, 100), Some(small));
    program.partition.check().unwrap();
}

#[test]
fn what_brings_nothing_is_given_up_and_tried_again_later() {
    let mut program = Program::new(params());
    program.alternate([0..40, 100..140], 400, 100);
    let (params, space) = (params(), program.space);
    let verdict = |program: &mut Program, moves| {
        program.regioning.worth(space).unwrap().verdict(&params, moves, 1_000_000_000)
    };
    // 1970 moves of 15.86 µs are a 32nd of a second.
    assert_eq!([1971, 1970, 1971].map(|moves| verdict(&mut program, moves)), [Verdict::Keep; 3]);
    assert_eq!(verdict(&mut program, 5000), Verdict::GiveUp);
    let mut opened = 0;
    let worth = program.regioning.worth(space).unwrap();
    worth.give_up(&mut program.partition, space, |_| opened += 1);
    assert_eq!((opened, program.sizes()), (2, vec![]));
    // Turns that are left out: one, then two.
    assert_eq!([(); 2].map(|()| program.event(Event::Due)), [Change::None, Change::CloseAll]);
    let _round = program.event(Event::End);
    let _keep = verdict(&mut program, 5000);
    assert_eq!(verdict(&mut program, 5000), Verdict::GiveUp);
    let turns = [(); 3].map(|()| program.event(Event::Due));
    assert_eq!(turns, [Change::None, Change::None, Change::CloseAll]);
}

#[test]
fn accesses_without_locality_are_futile() {
    let mut program = Program::new(Params { most_touches: 200, merge_ns: 500, ..params() });
    for round in 0..2 {
        program.alternate([0..100, 100..200], 100, 100);
        assert!(program.rounds[round].is_cut);
        let params = *program.regioning.params();
        let verdict = program.regioning.worth(program.space).unwrap().verdict(&params, 0, 1_000_000_000);
        assert_eq!(verdict, [Verdict::Keep, Verdict::GiveUp][round]);
    }
}

#[test]
fn a_page_that_moves_vcpus_too_often_is_excluded() {
    let mut program = Program::new(params());
    program.alternate([0..40, 100..140], 400, 100);
    let mut moves = Moves::default();
    // Others cause as many moves together, each of them few.
    for n in 0..100 {
        assert!(moves.moved(Gfn(5), n, 100, &mut program.partition).is_none());
        assert!(moves.moved(Gfn(100 + n % 40), n, 100, &mut program.partition).is_none());
    }
    let mut more = 0;
    while moves.moved(Gfn(5), 100, 100, &mut program.partition).is_none() {
        more += 1;
        assert!(more <= 200 / 17 + 1, "its count is too low by a 17th at most");
    }
    assert_eq!((program.region(5), moves.excluded(), moves.take()), (Rid::GLOBAL, 1, 201 + more));
    // The same number in several windows is none too many.
    for n in 0..1000 {
        assert!(moves.moved(Gfn(6), n * 1_000_000, 100, &mut program.partition).is_none());
    }
}

#[test]
fn vcpus_have_their_turns_at_different_moments() {
    let turns: Vec<Turn> = (0..4).map(|vcpu| Turn::new(vcpu, 4, 0, 1000)).collect();
    assert_eq!(turns.iter().map(Turn::next_ns).collect::<Vec<_>>(), [1000, 1250, 1500, 1750]);
    let mut turn = turns[1];
    assert!(!turn.take(1249) && turn.take(1250) && !turn.take(2249) && turn.take(5300));
    assert_eq!(turn.next_ns(), 6250);
    turn.postpone(5300, 10);
    assert!(!turn.take(5309) && turn.take(5310));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_events_keep_the_promises(data in proptest::collection::vec(any::<u8>(), 0..1024)) {
        fuzz_one(&data);
    }

    /// Whatever the sizes and the order of frames, each region is found, and none is mixed, if loops are shorter and visits longer than q.
    #[test]
    fn regions_are_found_whatever_their_sizes(a in 2u64..60, b in 2u64..60, visits in 2u64..6) {
        let mut program = Program::new(params());
        program.alternate([0..a, 100..100 + b], visits * 60, 150);
        let mut sizes = [a as u32, b as u32];
        sizes.sort_unstable_by_key(|size| u32::MAX - size);
        prop_assert_eq!(program.sizes(), sizes);
        let owner = program.partition.info(program.region(0)).unwrap().owner;
        prop_assert_eq!(owner, Owner::Space(program.space));
    }
}
