//! Events at random, among mappings that come and go.

use core::ops::Range;

use super::*;
use crate::region::history::{AccessSource, Asked};
use crate::region::{Domain, Effect, Kind, Owner};

const RAM: [Range<Gfn>; 2] = [Gfn(0)..Gfn(0x60), Gfn(0x80)..Gfn(0x100)];
/// Bytes of a step.
const STEP: usize = 4;

/// Access bits that are the same in each group.
struct Pattern(u64);

impl AccessSource for Pattern {
    fn touched(&mut self, _first: Gfn, _before: u64) -> u8 {
        u8::MAX
    }

    fn take_accessed(&mut self, first: Gfn, _: Asked) -> u64 {
        assert_eq!(first.0 % 64, 0);
        self.0
    }
}

/// A VM with some address spaces, and what has been seen of it.
struct Vm {
    partition: Partition,
    regioning: Regioning,
    moves: Moves,
    spaces: [Space; 3],
    now_ns: u64,
    /// A frame of the region that each address space's latest phase has begun with tearing down.
    torn: [Option<Gfn>; 3],
}

/// Performs the bytes as steps.
///
/// # Panics
/// If records contradict each other, if a phase takes longer than it may, or if its current region is none of its address space's.
pub fn fuzz_one(data: &[u8]) {
    let Ok(mut partition) = Partition::new(RAM) else { return };
    let spaces = [(); 2].map(|()| partition.add_space());
    let ([Ok(a), Ok(b)], Ok(())) = (spaces, partition.start_histories()) else { return };
    let times = Params { merge_ns: 3000, phase_ns: 40_000, ..Params::default() };
    let params = Params { most_touches: 24, most_moves: 3, large: 3, ..times };
    let Ok(regioning) = Regioning::new(params, &partition) else { return };
    let spaces = [Space::VM, a, b];
    let mut vm = Vm { partition, regioning, moves: Moves::default(), spaces, now_ns: 0, torn: [None; 3] };
    for step in data.chunks_exact(STEP).take(256) {
        vm.step([step[0], step[1], step[2], step[3]]);
    }
    if let Err(what) = vm.partition.check() {
        panic!("{what}");
    }
}

impl Vm {
    fn follow(&mut self, effects: &Effects) {
        for effect in effects.iter() {
            if let Effect::Died(rid) = effect {
                self.regioning.forget(rid);
            }
        }
    }

    fn step(&mut self, [op, n, m, time]: [u8; STEP]) {
        self.now_ns += u64::from(time) * 40;
        let (gfn, space) = (Gfn(n.into()), self.spaces[usize::from(m % 3)]);
        let effects = match op % 14 {
            0 | 1 => self.partition.map(gfn, space).ok(),
            2 => self.partition.unmap(gfn, space).ok(),
            3 => {
                let Some(rid) = self.any_region(n) else { return };
                Domain::new(m % 4).and_then(|domain| self.partition.localise(rid, domain).ok())
            }
            4 => self.moves.moved(gfn, self.now_ns, 3, &mut self.partition),
            5 => return self.event(m, Event::Interrupt),
            6 => return self.event(m, Event::Due),
            7 => return self.event(m, Event::End),
            8 => return self.sample(space, n, time),
            9 => return self.exclude(gfn, space),
            _ => return self.event(m, Event::Touch(self.touch(gfn, op, m))),
        };
        if let Some(effects) = effects {
            self.follow(&effects);
        }
    }

    /// As if a phase had found a hub, which another address space may map by now.
    fn exclude(&mut self, gfn: Gfn, space: Space) {
        let Ok(effects) = self.partition.exclude(gfn) else { return };
        self.regioning.evidence.hubs.add(gfn, space);
        self.follow(&effects);
    }

    /// Two groups of frames at most are looked at, so that samples take several calls.
    fn sample(&mut self, space: Space, seed: u8, time: u8) {
        let mut accessed = Pattern(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let scan = self.partition.scan(space, self.now_ns, &mut accessed, u64::from(time % 3));
        assert!(scan.pieces <= 2 && scan.groups <= 9 && scan.changed <= 9 * 64);
    }

    fn any_region(&self, n: u8) -> Option<Rid> {
        let regions = self.partition.regions().count();
        self.partition.regions().nth(usize::from(n) % regions.max(1)).map(|(rid, _)| rid)
    }

    fn touch(&self, gfn: Gfn, op: u8, m: u8) -> Touch {
        let address = Gva(gfn.0 << 12);
        Touch {
            gfn,
            address: (m & 4 == 0).then_some(address),
            is_user_address: m & 8 == 0,
            rip: Gva(0x40_0000 >> (m >> 4)),
            rsp: if op & 64 == 0 { Gva(0x7fff_0000) } else { Gva(address.0 ^ u64::from(m) << 8) },
            is_fetch: m & 0x70 == 0x70,
            by_kernel: op & 0x30 == 0x30,
        }
    }

    fn event(&mut self, m: u8, event: Event) {
        let at = usize::from(m % 3);
        let space = self.spaces[at];
        let local = if event == Event::Due { self.local() } else { Vec::new() };
        let Answer { change, effects } = self.regioning.on(&mut self.partition, space, self.now_ns, event);
        effects.iter().for_each(|effects| self.follow(effects));
        if let Err(what) = self.regioning.evidence.check(&self.partition) {
            panic!("{what}");
        }
        match change {
            Change::Finish(round) => self.finished(at, &round),
            Change::Switch { close, open } => {
                assert_eq!(self.regioning.current(space), Some(open));
                assert!(close != Some(open) && self.partition.info(open).is_some());
                if let Event::Touch(touch) = event {
                    assert_eq!(self.partition.region_of(touch.gfn), Ok(open), "another one is opened");
                }
            }
            Change::CloseAll if event == Event::Due => self.begun(at, &local),
            Change::None | Change::CloseAll | Change::Open(_) => {}
        }
        if let Some(info) = self.regioning.current(space).and_then(|rid| self.partition.info(rid)) {
            assert!(
                matches!(info.kind, Kind::Regular | Kind::Local(_) | Kind::Seed) && info.owner != Owner::Vm
            );
        }
    }

    /// The local regions, each with a frame.
    fn local(&self) -> Vec<(Rid, Option<Gfn>)> {
        let local = self.partition.regions().filter(|(_, info)| matches!(info.kind, Kind::Local(_)));
        local.map(|(rid, _)| (rid, self.partition.frames_of(rid).next())).collect()
    }

    /// One of the local regions may have been torn down, but not that which was the last time.
    fn begun(&mut self, at: usize, local: &[(Rid, Option<Gfn>)]) {
        let is_torn = |rid| self.partition.info(rid).is_some_and(|info| info.kind == Kind::Seed);
        let torn: Vec<_> = local.iter().filter(|(rid, _)| is_torn(*rid)).collect();
        assert!(torn.len() <= 1);
        let last = self.torn[at].and_then(|gfn| self.partition.region_of(gfn).ok());
        assert!(torn.iter().all(|(rid, _)| Some(*rid) != last), "the same region twice in a row");
        self.torn[at] = torn.first().and_then(|(_, gfn)| *gfn);
    }

    fn finished(&mut self, at: usize, round: &Round) {
        assert!(round.touches <= 24 && round.switches <= round.touches && round.merges <= round.switches);
        let (params, moves) = (*self.regioning.params(), self.moves.take());
        let Some(worth) = self.regioning.worth(self.spaces[at]) else { return };
        if worth.verdict(&params, moves, 1_000_000) == Verdict::GiveUp {
            worth.give_up(&mut self.partition, self.spaces[at], |_effects| {});
            let own = |owner| owner == Owner::Space(self.spaces[at]);
            let grouped = |kind| matches!(kind, Kind::Regular | Kind::Local(_));
            assert!(!self.partition.regions().any(|(_, info)| own(info.owner) && grouped(info.kind)));
        }
    }
}
