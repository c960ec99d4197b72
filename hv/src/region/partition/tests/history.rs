//! Random transitions. The model is told what a partition is to be in other words: for each frame a map of its mappers, and the region
//! that it is in; for each region what it is. Beside it stand the tables of all domains, which follow the effects alone.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One transition; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Map(u8, u8),
    Unmap(u8, u8),
    Split(u8),
    Merge(u8, u8),
    Localise(u8, u8),
    Globalise(u8),
    Open(u8),
    TearDown(u8),
    Exclude(u8),
    AddGuest,
    EndGuest(u8),
    Claim(u8, u8),
    Release(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let n = any::<u8>;
    prop_oneof![
        8 => (n(), n()).prop_map(|(a, b)| Op::Map(a, b)),
        6 => (n(), n()).prop_map(|(a, b)| Op::Unmap(a, b)),
        6 => n().prop_map(Op::Split),
        4 => (n(), n()).prop_map(|(a, b)| Op::Merge(a, b)),
        4 => (n(), n()).prop_map(|(a, b)| Op::Localise(a, b)),
        1 => n().prop_map(Op::Globalise),
        1 => n().prop_map(Op::Open),
        1 => n().prop_map(Op::TearDown),
        1 => n().prop_map(Op::Exclude),
        1 => Just(Op::AddGuest),
        1 => n().prop_map(Op::EndGuest),
        3 => (n(), n()).prop_map(|(a, b)| Op::Claim(a, b)),
        2 => n().prop_map(Op::Release),
    ]
}

struct Model {
    real: Partition,
    spaces: Vec<Space>,
    /// Mappers and region of each frame.
    frames: BTreeMap<Gfn, (BTreeMap<Space, u32>, Rid)>,
    regions: BTreeMap<Rid, (Kind, Owner)>,
    /// The domains in whose tables a frame may be, as the effects say.
    open: BTreeMap<Gfn, Domains>,
    /// The partition's records are enough to know all mappers.
    is_exact: bool,
}

impl Model {
    fn new(spaces: usize, is_exact: bool) -> Model {
        let mut real = new();
        let spaces = (0..spaces).map(|_| real.add_space().unwrap()).collect();
        let frames: Vec<Gfn> =
            RAM.into_iter().flat_map(|range| (range.start.0..range.end.0).map(Gfn)).collect();
        Model {
            real,
            spaces,
            frames: frames.iter().map(|&frame| (frame, (BTreeMap::new(), Rid::POOL))).collect(),
            regions: [(Rid::POOL, (Kind::Seed, Owner::Vm))].into(),
            open: frames.into_iter().map(|frame| (frame, Domains::ALL)).collect(),
            is_exact,
        }
    }

    fn frame(&self, n: u8) -> Gfn {
        *self.frames.keys().nth(usize::from(n) % self.frames.len()).unwrap()
    }

    fn region(&self, n: u8) -> Rid {
        *self.regions.keys().nth(usize::from(n) % self.regions.len()).unwrap()
    }

    fn kind(&self, rid: Rid) -> Kind {
        self.regions[&rid].0
    }

    fn is_guests(&self, rid: Rid) -> bool {
        matches!(self.regions[&rid].1, Owner::Guest(_))
    }

    /// The frame changes its region, and what has lost its last frame dies.
    fn move_to(&mut self, frame: Gfn, rid: Rid) {
        let what = match rid {
            Rid::SHARED => (Kind::Shared, Owner::Vm),
            Rid::GLOBAL => (Kind::Global, Owner::Vm),
            rid => {
                let seed = || (Kind::Seed, Owner::Space(Space(rid.0 - Rid::SEEDS)));
                self.regions.get(&rid).copied().unwrap_or_else(seed)
            }
        };
        self.regions.insert(rid, what);
        self.frames.get_mut(&frame).unwrap().1 = rid;
        self.bury();
    }

    fn bury(&mut self) {
        let used: Vec<Rid> = self.frames.values().map(|(_, rid)| *rid).collect();
        self.regions.retain(|rid, (_, owner)| {
            *rid == Rid::POOL || matches!(owner, Owner::Guest(_)) || used.contains(rid)
        });
    }

    /// Where the frame's mappers place it.
    fn settle(&mut self, frame: Gfn) {
        let (mappers, rid) = self.frames[&frame].clone();
        let (kind, owner) = self.regions[&rid];
        let to = match (mappers.len(), mappers.keys().next()) {
            _ if self.is_guests(rid) => rid,
            (0, _) => Rid::POOL,
            (1, Some(space)) if owner == Owner::Space(*space) => rid,
            _ if kind == Kind::Global => Rid::GLOBAL,
            (1, Some(space)) => Rid::seed(*space),
            _ => Rid::SHARED,
        };
        self.move_to(frame, to);
    }

    /// The tables follow.
    fn perform(&mut self, effects: &Effects) {
        for effect in effects.iter() {
            let (target, change): (_, fn(Domains, Domains) -> Domains) = match effect {
                Effect::Close(target, _) => (target, Domains::without),
                Effect::Open(target, _) => (target, Domains::and),
                Effect::Born(_) | Effect::Died(_) => continue,
            };
            let (Effect::Close(_, domains) | Effect::Open(_, domains)) = effect else { continue };
            for (frame, open) in &mut self.open {
                let is_meant = match target {
                    Target::Frame(gfn) => gfn == *frame,
                    Target::Region(rid) => self.real.region_of(*frame) == Ok(rid),
                    Target::From(gfn) => self.real.frames_from(gfn).any(|other| other == *frame),
                };
                if is_meant {
                    *open = change(*open, domains);
                }
            }
        }
    }

    fn step(&mut self, op: &Op) {
        let grouped = |kind| matches!(kind, Kind::Regular | Kind::Local(_));
        let done = match *op {
            Op::Map(frame, space) => {
                let (frame, space) = (self.frame(frame), self.spaces[usize::from(space) % self.spaces.len()]);
                *self.frames.get_mut(&frame).unwrap().0.entry(space).or_default() += 1;
                let effects = self.real.map(frame, space);
                self.settle(frame);
                Some(effects.expect("a frame and an address space"))
            }
            Op::Unmap(frame, space) => {
                let frame = self.frame(frame);
                let mappers = &mut self.frames.get_mut(&frame).unwrap().0;
                if mappers.is_empty() {
                    let space = self.spaces[usize::from(space) % self.spaces.len()];
                    assert_eq!(self.real.unmap(frame, space), Err(Refused::NotMapped));
                    return;
                }
                let at = usize::from(space) % mappers.len();
                let (&space, count) = mappers.iter_mut().nth(at).unwrap();
                *count -= 1;
                if *count == 0 {
                    mappers.remove(&space);
                }
                let effects = self.real.unmap(frame, space);
                self.settle(frame);
                Some(effects.expect("a mapper"))
            }
            Op::Split(frame) => {
                let frame = self.frame(frame);
                let (kind, owner) = self.regions[&self.frames[&frame].1];
                let done = self.real.split(frame);
                let expected = kind == Kind::Seed && !self.frames[&frame].0.is_empty();
                assert!(done.is_ok() == expected || done == Err(Refused::Full), "{done:?}");
                done.ok().map(|(rid, effects)| {
                    self.regions.insert(rid, (Kind::Regular, owner));
                    self.move_to(frame, rid);
                    effects
                })
            }
            Op::Merge(one, other) => {
                let (one, other) = (self.region(one), self.region(other));
                let [a, b] = [one, other].map(|rid| self.regions[&rid]);
                let done = self.real.merge(one, other);
                let fits = one != other && a.1 == b.1 && !self.is_guests(one) && grouped(a.0) && grouped(b.0);
                assert_eq!(done.is_ok(), fits, "{done:?}");
                done.ok().map(|(rid, effects)| {
                    let frames = |rid| self.frames.values().filter(|(_, own)| *own == rid).count();
                    let gone = if rid == one { other } else { one };
                    assert!(frames(rid) >= frames(gone));
                    let kind = if self.kind(rid) == Kind::Regular { self.kind(gone) } else { self.kind(rid) };
                    self.regions.insert(rid, (kind, a.1));
                    self.frames.values_mut().filter(|(_, own)| *own == gone).for_each(|(_, own)| *own = rid);
                    self.bury();
                    effects
                })
            }
            Op::Localise(rid, domain) => {
                let kind = Kind::Local(super::domain(domain % 4));
                self.change(rid, kind, Partition::localise_to(domain % 4), |old| {
                    grouped(old) || old == Kind::Global
                })
            }
            Op::Open(rid) => {
                self.change(rid, Kind::Regular, Partition::open, |old| matches!(old, Kind::Local(_)))
            }
            Op::Globalise(rid) => self
                .change(rid, Kind::Global, Partition::globalise, |old| grouped(old) || old == Kind::Global),
            Op::TearDown(rid) => {
                let rid_now = self.region(rid);
                let may = !self.is_guests(rid_now);
                self.change(rid, Kind::Seed, Partition::tear_down, |old| may && grouped(old))
            }
            Op::Exclude(frame) => {
                let frame = self.frame(frame);
                let (mappers, rid) = self.frames[&frame].clone();
                let done = self.real.exclude(frame).ok();
                assert_eq!(done.is_some(), !mappers.is_empty() && !self.is_guests(rid));
                if done.is_some() {
                    self.move_to(frame, Rid::GLOBAL);
                }
                done
            }
            Op::AddGuest => self.real.add_guest(1).ok().map(|(rid, effects)| {
                self.regions.insert(rid, (Kind::Regular, Owner::Guest(1)));
                effects
            }),
            Op::EndGuest(rid) => {
                let rid = self.region(rid);
                let is_empty = !self.frames.values().any(|(_, own)| *own == rid);
                let done = self.real.end_guest(rid).ok();
                assert_eq!(done.is_some(), is_empty && self.is_guests(rid));
                if done.is_some() {
                    self.regions.remove(&rid);
                }
                done
            }
            Op::Claim(frame, rid) => {
                let (frame, rid) = (self.frame(frame), self.region(rid));
                let done = self.real.claim(frame, rid).ok();
                assert_eq!(done.is_some(), self.is_guests(rid) && !self.is_guests(self.frames[&frame].1));
                if done.is_some() {
                    self.move_to(frame, rid);
                }
                done
            }
            Op::Release(frame) => {
                let frame = self.frame(frame);
                let (mappers, rid) = self.frames[&frame].clone();
                let done = self.real.release(frame, rid).ok();
                assert_eq!(done.is_some(), self.is_guests(rid));
                if done.is_some() {
                    let to = match (mappers.len(), mappers.keys().next()) {
                        (1, Some(space)) => Rid::seed(*space),
                        (0, _) => Rid::POOL,
                        _ => Rid::SHARED,
                    };
                    self.move_to(frame, to);
                }
                done
            }
        };
        if let Some(effects) = done {
            self.perform(&effects);
        }
    }

    /// A region changes its kind, if it is one of those that do, and its kind one of those that may.
    fn change(
        &mut self,
        rid: u8,
        kind: Kind,
        change: impl FnOnce(&mut Partition, Rid) -> Result<Effects, Refused>,
        may: impl FnOnce(Kind) -> bool,
    ) -> Option<Effects> {
        let rid = self.region(rid);
        let done = change(&mut self.real, rid).ok();
        assert_eq!(done.is_some(), !rid.is_fixed() && may(self.kind(rid)), "{rid:?} to {kind:?}");
        if done.is_some() {
            self.regions.get_mut(&rid).unwrap().0 = kind;
        }
        done
    }

    /// The partition says what the model says, and the tables lead nowhere else.
    fn compare(&mut self) {
        self.real.check().unwrap();
        let kinds = |rid| self.real.info(rid).map(|info| (info.kind, info.owner));
        for (frame, (mappers, rid)) in &mut self.frames {
            let own = self.real.region_of(*frame).unwrap();
            if self.is_exact {
                assert_eq!(own, *rid, "{frame:?} of {mappers:?}");
                assert!(self.real.mappers(*frame).eq(mappers.clone().into_iter()) || mappers.len() > 1);
                let known: BTreeMap<Space, u32> = self.real.mappers(*frame).collect();
                assert_eq!(known, *mappers);
            } else {
                // The other mappers of a frame may be unknown, but never that there are some.
                let owner = kinds(own).unwrap().1;
                let is_private = matches!(owner, Owner::Space(space) if !mappers.keys().eq([&space]));
                assert!(!is_private, "{frame:?} of {mappers:?} in {own:?} of {owner:?}");
                *rid = own;
            }
            assert_eq!(Ok(self.open[frame]), self.real.open_in(*frame), "{frame:?} in {own:?}");
        }
        let real = self.real.regions().map(|(rid, info)| (rid, (info.kind, info.owner)));
        if self.is_exact {
            assert_eq!(real.collect::<BTreeMap<_, _>>(), self.regions);
        } else {
            self.regions = real.collect();
        }
    }

    /// All mappings go: nothing but the pool and the guest's regions is left.
    fn end(&mut self) {
        for (frame, (mappers, _)) in self.frames.clone() {
            for (space, count) in mappers {
                (0..count).for_each(|_| {
                    let effects = self.real.unmap(frame, space).unwrap();
                    self.perform(&effects);
                });
            }
        }
        self.real.check().unwrap();
        let regions = self.real.regions();
        assert!(
            regions.into_iter().all(|(rid, info)| rid == Rid::POOL || matches!(info.owner, Owner::Guest(_)))
        );
        for space in core::mem::take(&mut self.spaces) {
            self.real.remove_space(space).unwrap();
        }
    }
}

impl Partition {
    fn localise_to(domain: u8) -> impl FnOnce(&mut Partition, Rid) -> Result<Effects, Refused> {
        move |partition, rid| partition.localise(rid, super::domain(domain))
    }
}

fn play(spaces: usize, is_exact: bool, ops: &[Op]) {
    let mut model = Model::new(spaces, is_exact);
    for op in ops {
        model.step(op);
        model.compare();
    }
    model.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// With two further address spaces there is a record for each.
    #[test]
    fn histories_are_those_of_the_model(ops in proptest::collection::vec(op(), 0..200)) {
        play(2, true, &ops);
    }

    /// With many, records of them run out.
    #[test]
    fn frames_whose_mappers_are_not_known_stay_shared(ops in proptest::collection::vec(op(), 0..60), more in 100usize..400) {
        let mut model = Model::new(9, false);
        for n in 0..more {
            model.step(&Op::Map((n % 40) as u8, (n / 40 + n % 3) as u8));
        }
        for op in &ops {
            model.compare();
            // What depends on a frame's mappers differs.
            if matches!(op, Op::Map(..) | Op::Unmap(..) | Op::Localise(..) | Op::Globalise(_) | Op::Open(_)) {
                model.step(op);
            }
        }
        model.compare();
        model.end();
    }
}
