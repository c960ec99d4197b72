//! A phase: each touch makes a frame global, opens it, or changes the current region, and merges it with the one before.

use arrayvec::ArrayVec;

use super::classify::classify;
use super::evidence::{self, About, Evidence, Met};
use super::seen::Seen;
use super::{Answer, Change, Params, Round, Touch};
use crate::arch::addr::Gfn;
use crate::mem::pieces::Pieces;
use crate::region::partition::{Info, Partition};
use crate::region::{Effects, Kind, Owner, Refused, Rid, Space};

/// A local region that may be torn down: its number, and its frames when it was seen.
pub type Largest = ArrayVec<(Rid, u32), 2>;

/// What is known of a VM's regions.
pub struct Known<'a> {
    pub seen: &'a mut Pieces<Seen>,
    pub evidence: &'a mut evidence::Records,
}

/// What is known in a phase.
#[derive(Clone, Debug)]
pub struct Phase {
    space: Space,
    number: u16,
    start_ns: u64,
    /// When the guest's kernel began to serve an interrupt.
    interrupted_ns: Option<u64>,
    current: Option<Rid>,
    /// The page of it that was touched last.
    last: Option<Gfn>,
    /// When the current region was entered, in nanoseconds of the phase.
    entered_ns: u32,
    /// The current visit is no measure of the access time: it began before the phase, or its region has grown since.
    is_partial: bool,
    /// The two largest local regions so far, the larger one first.
    largest: Largest,
    round: Round,
}

impl Phase {
    pub fn new(space: Space, number: u16, start_ns: u64) -> Phase {
        Phase {
            space,
            number,
            start_ns,
            interrupted_ns: None,
            current: None,
            last: None,
            entered_ns: 0,
            is_partial: true,
            largest: Largest::new(),
            round: Round::default(),
        }
    }

    pub fn current(&self) -> Option<Rid> {
        self.current
    }

    pub fn largest(&self) -> Largest {
        self.largest.clone()
    }

    /// Whether its time is over, or its touches are used up.
    pub fn is_over(&self, params: &Params, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.start_ns) >= params.phase_ns.into()
            || self.round.touches >= params.most_touches.into()
    }

    /// Nanoseconds of the program's own work since the phase began.
    fn own_ns(&self, now_ns: u64) -> u32 {
        let own = now_ns.saturating_sub(self.start_ns).saturating_sub(self.round.system_ns);
        u32::try_from(own).unwrap_or(u32::MAX)
    }

    /// The program is interrupted, and everything is closed.
    pub fn interrupt(&mut self, evidence: &mut evidence::Records, now_ns: u64) {
        self.interrupted_ns.get_or_insert(now_ns);
        self.current.into_iter().for_each(|rid| evidence.closed(rid));
    }

    /// The program runs again: everything was closed at the interrupt, so its first access is seen.
    fn end_interrupt(&mut self, now_ns: u64) {
        if let Some(since) = self.interrupted_ns.take() {
            self.round.system_ns += now_ns.saturating_sub(since);
        }
    }

    /// A region has died.
    pub fn forget(&mut self, rid: Rid) {
        self.largest.retain(|(own, _)| *own != rid);
        if self.current == Some(rid) {
            self.current = None;
        }
    }

    /// What a touch leads to.
    pub fn touch(
        &mut self,
        params: &Params,
        partition: &mut Partition,
        mut known: Known<'_>,
        now_ns: u64,
        touch: &Touch,
    ) -> Answer {
        self.round.touches += 1;
        let mut answer = Answer::new(Change::Open(touch.gfn));
        if touch.by_kernel && self.interrupted_ns.is_some() {
            return answer;
        }
        self.end_interrupt(now_ns);
        match self.region_of(partition, known.seen, touch, &mut answer) {
            Ok(Some(rid)) => {
                let at_ns = self.own_ns(now_ns);
                let is_entered = self.current != Some(rid);
                let idle_ns = known.seen[rid.index()].idle(self.number, at_ns);
                let met = Met { rid, gfn: touch.gfn, at_ns, is_entered, idle_ns };
                if self.is_large(params, partition, rid) {
                    known.evidence.touched(self.space, &met, params.merge_ns);
                }
                answer.change = match is_entered {
                    true => self.enter(params, partition, &mut known, &met, &mut answer.effects),
                    // An entry of the current region that is not filled yet, or all were closed at an interrupt.
                    false => Change::Switch { close: None, open: rid },
                };
                self.last = Some(touch.gfn);
            }
            Ok(None) => {}
            Err(_) => self.round.refused += 1,
        }
        answer
    }

    /// Whether a region is one of the address space's, and so large that one page does not stand for it.
    fn is_large(&self, params: &Params, partition: &Partition, rid: Rid) -> bool {
        let is_large = |info: Info| info.owner == Owner::Space(self.space) && info.frames >= params.large;
        partition.info(rid).is_some_and(is_large)
    }

    /// The region that a frame belongs to, after it has left its seed region; `None`: it is open in all caches.
    fn region_of(
        &mut self,
        partition: &mut Partition,
        seen: &mut Pieces<Seen>,
        touch: &Touch,
        answer: &mut Answer,
    ) -> Result<Option<Rid>, Refused> {
        let rid = partition.region_of(touch.gfn)?;
        let Some(info) = partition.info(rid) else { return Err(Refused::NoRegion) };
        match (info.kind, info.owner) {
            // The pool: no address space's half maps it, so it is the kernel's.
            (Kind::Shared | Kind::Global, _) | (Kind::Seed, Owner::Vm) => return Ok(None),
            (Kind::Seed, _) => {}
            (Kind::Regular | Kind::Local(_), _) => return Ok(Some(rid)),
        }
        if classify(touch).is_some() {
            answer.effects.push(partition.exclude(touch.gfn)?);
            self.round.excluded += 1;
            return Ok(None);
        }
        let (rid, effects) = partition.split(touch.gfn)?;
        seen[rid.index()] = Seen::default();
        answer.effects.push(effects);
        self.round.born += 1;
        Ok(Some(rid))
    }

    /// The program goes from the current region to another one, which merge if the other one was idle for less than `q`, and if that says
    /// anything of both.
    fn enter(
        &mut self,
        params: &Params,
        partition: &mut Partition,
        known: &mut Known<'_>,
        met: &Met,
        effects: &mut ArrayVec<Effects, 2>,
    ) -> Change {
        let Met { rid: next, gfn, at_ns, .. } = *met;
        let evidence = self.evidence(params, partition, known, met);
        match (evidence, self.current) {
            (Evidence::Together, Some(previous)) => {
                if let Some(rid) = self.merge(partition, known, [previous, next], effects) {
                    self.round.switches += 1;
                    self.current = Some(rid);
                    self.mark(partition, rid);
                    return Change::Switch { close: None, open: rid };
                }
            }
            (Evidence::Beside { small, of }, Some(previous)) => {
                if let Some(rid) = self.merge(partition, known, [of, small], effects) {
                    let last = match small {
                        _ if small == previous => self.last,
                        _ if small == next => Some(gfn),
                        _ => None,
                    };
                    last.into_iter().for_each(|last| known.evidence.joined(rid, last));
                    let now = |old: Rid| if old == of || old == small { rid } else { old };
                    let next = now(next);
                    self.current = Some(now(previous));
                    return self.switch(partition, known, met, next, None);
                }
            }
            (Evidence::Hub, _) => {
                if let Ok(excluded) = partition.exclude(gfn) {
                    effects.push(excluded);
                    known.evidence.hubs.add(gfn, self.space);
                    self.round.excluded += 1;
                    return Change::Open(gfn);
                }
            }
            // Neither visit is one by itself.
            (Evidence::Unclear, _) => {
                self.is_partial = true;
                return self.switch(partition, known, met, next, None);
            }
            (Evidence::Apart, _) | (_, None) => {}
        }
        let access_ns = (!self.is_partial).then(|| at_ns.saturating_sub(self.entered_ns));
        self.is_partial &= self.current.is_none();
        self.switch(partition, known, met, next, access_ns)
    }

    /// Whether the current region and the one that is entered are one.
    fn evidence(&self, params: &Params, partition: &Partition, known: &mut Known<'_>, met: &Met) -> Evidence {
        let is_soon = |idle_ns: &u32| *idle_ns < params.merge_ns;
        let (Some(previous), Some(_)) = (self.current, met.idle_ns.filter(is_soon)) else {
            return Evidence::Apart;
        };
        // The guest's own regions do not merge.
        let is_own = |rid| partition.owner_of(rid) == Some(Owner::Space(self.space));
        if !is_own(previous) || !is_own(met.rid) {
            return Evidence::Apart;
        }
        let is_large = |rid| self.is_large(params, partition, rid);
        let Known { seen, evidence } = known;
        let idle_ns = |rid: Rid| seen[rid.index()].idle(self.number, met.at_ns);
        let about = |rid| About {
            is_in_use: idle_ns(rid).is_some_and(|idle| is_soon(&idle)),
            is_large: is_large(rid),
        };
        evidence.judge([previous, met.rid], [previous, met.rid].map(is_large), met, about)
    }

    /// Merges two regions of the address space. What is known of either is not true of the one that they become, and its visit says
    /// nothing of its access time: it was in use before.
    fn merge(
        &mut self,
        partition: &mut Partition,
        known: &mut Known<'_>,
        [one, other]: [Rid; 2],
        effects: &mut ArrayVec<Effects, 2>,
    ) -> Option<Rid> {
        let (rid, merged) = partition.merge(one, other).ok()?;
        self.round.merges += 1;
        effects.push(merged);
        known.evidence.merged([one, other], rid);
        self.is_partial = true;
        (known.seen[one.index()], known.seen[other.index()]) = (Seen::default(), Seen::default());
        self.largest.retain(|(own, _)| *own != one && *own != other);
        Some(rid)
    }

    /// The current region is another one now. `access_ns`: how long the last one was used, if that is known.
    fn switch(
        &mut self,
        partition: &Partition,
        known: &mut Known<'_>,
        met: &Met,
        next: Rid,
        access_ns: Option<u32>,
    ) -> Change {
        self.round.switches += 1;
        let previous = self.current.replace(next);
        if let Some(previous) = previous {
            known.seen[previous.index()].leave(self.number, met.at_ns, access_ns);
        }
        if let Some(idle_ns) = met.idle_ns.filter(|_| next == met.rid) {
            known.seen[next.index()].enter(idle_ns);
        }
        self.entered_ns = met.at_ns;
        self.mark(partition, next);
        Change::Switch { close: previous, open: next }
    }

    /// Remembers a local region of the address space if it is one of the two largest.
    fn mark(&mut self, partition: &Partition, rid: Rid) {
        let Some(info) = partition.info(rid) else { return };
        if !matches!(info.kind, Kind::Local(_)) || info.owner != Owner::Space(self.space) {
            return;
        }
        self.largest.retain(|(own, _)| *own != rid);
        let at = self.largest.iter().take_while(|(_, frames)| *frames >= info.frames).count();
        if at < self.largest.capacity() {
            self.largest.truncate(self.largest.capacity() - 1);
            self.largest.insert(at, (rid, info.frames));
        }
    }

    /// The end. The visit that it interrupts is not seen as a whole, and does not count.
    pub fn finish(&mut self, params: &Params, now_ns: u64) -> Round {
        self.end_interrupt(now_ns);
        let at_ns = self.own_ns(now_ns);
        self.round.program_ns = at_ns.into();
        self.round.is_cut = now_ns.saturating_sub(self.start_ns) < params.phase_ns.into()
            && self.round.touches >= params.most_touches.into();
        self.round
    }
}
