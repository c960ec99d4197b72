//! A phase: each touch makes a frame global, opens it, or changes the current region, and merges it with the one before.

use arrayvec::ArrayVec;

use super::classify::classify;
use super::seen::Seen;
use super::{Answer, Change, Params, Round, Touch};
use crate::mem::pieces::Pieces;
use crate::region::partition::Partition;
use crate::region::{Kind, Owner, Refused, Rid, Space};

/// A local region that may be torn down: its number, and its frames when it was seen.
pub type Largest = ArrayVec<(Rid, u32), 2>;

/// What is known in a phase.
#[derive(Clone, Debug)]
pub struct Phase {
    space: Space,
    number: u16,
    start_ns: u64,
    /// When the guest's kernel began to serve an interrupt.
    interrupted_ns: Option<u64>,
    current: Option<Rid>,
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

    pub fn interrupt(&mut self, now_ns: u64) {
        self.interrupted_ns.get_or_insert(now_ns);
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
        seen: &mut Pieces<Seen>,
        now_ns: u64,
        touch: &Touch,
    ) -> Answer {
        self.round.touches += 1;
        let mut answer = Answer::new(Change::Open(touch.gfn));
        if touch.by_kernel && self.interrupted_ns.is_some() {
            return answer;
        }
        self.end_interrupt(now_ns);
        match self.region_of(partition, seen, touch, &mut answer) {
            Ok(Some(rid)) if self.current != Some(rid) => {
                answer.change = self.enter(params, partition, seen, now_ns, rid, &mut answer.effects);
            }
            // An entry of the current region that is not filled yet, or all were closed at an interrupt.
            Ok(Some(rid)) => answer.change = Change::Switch { close: None, open: rid },
            Ok(None) => {}
            Err(_) => self.round.refused += 1,
        }
        answer
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

    /// The program goes from the current region to another one, which merge if the other one was idle for less than `q`.
    fn enter(
        &mut self,
        params: &Params,
        partition: &mut Partition,
        seen: &mut Pieces<Seen>,
        now_ns: u64,
        next: Rid,
        effects: &mut ArrayVec<crate::region::Effects, 2>,
    ) -> Change {
        self.round.switches += 1;
        let at_ns = self.own_ns(now_ns);
        let idle_ns = seen[next.index()].idle(self.number, at_ns);
        let previous = self.current.replace(next);
        if let (Some(previous), Some(idle_ns)) = (previous, idle_ns)
            && idle_ns < params.merge_ns
            && let Ok((rid, merged)) = partition.merge(previous, next)
        {
            self.round.merges += 1;
            effects.push(merged);
            self.is_partial = true;
            // One region has been in use since the previous one was entered, and what is known of either is not true of it.
            (seen[previous.index()], seen[next.index()]) = (Seen::default(), Seen::default());
            self.largest.retain(|(own, _)| *own != previous && *own != next);
            self.current = Some(rid);
            self.mark(partition, rid);
            return Change::Switch { close: None, open: rid };
        }
        if let Some(previous) = previous {
            let access_ns = (!self.is_partial).then(|| at_ns.saturating_sub(self.entered_ns));
            seen[previous.index()].leave(self.number, at_ns, access_ns);
            self.is_partial = false;
        }
        if let Some(idle_ns) = idle_ns {
            seen[next.index()].enter(idle_ns);
        }
        self.entered_ns = at_ns;
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
