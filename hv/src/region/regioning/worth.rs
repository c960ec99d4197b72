//! From phase to phase: what is torn down, and whether regioning brings anything to the address space (thesis 2.2.1, 2.3.3).
//!
//! A round is futile if its phase was one change of region after the other, of which less than a quarter led to a merge, and
//! visits were shorter than `q` on average: accesses without locality. It is so, too, if moves between caches cost more than a 32nd of
//! the time since the last round. After two futile rounds in a row
//! all regions of the address space are torn down. Seed regions are open in all caches, so scheduling is then as without regions.
//! The next phases are left out: one at first, and twice as many after each further failure, up to 64.

use super::phase::Largest;
use super::{Params, Round};
use crate::arch::addr::Gfn;
use crate::region::partition::Partition;
use crate::region::{Effects, Kind, Owner, Rid, Space};

/// Futile rounds in a row after which regions are given up.
const FUTILE: u8 = 2;
/// Changes of region in a phase, below which the share of merges says nothing.
const FEW: u32 = 16;
/// Phases that are left out at most.
const MOST_LEFT_OUT: u32 = 64;

/// Whether an address space is to have regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "regions that bring nothing are to be given up"]
pub enum Verdict {
    /// Yes, or it is not known yet.
    Keep,
    /// No: call [`Worth::give_up`].
    GiveUp,
}

/// What is known of an address space from round to round.
#[derive(Clone, Debug, Default)]
pub struct Worth {
    /// The largest local regions of the latest phase.
    largest: Largest,
    /// A frame of the region that was torn down last.
    torn: Option<Gfn>,
    is_futile: bool,
    futile: u8,
    /// Turns to leave out before the next phase, and how many the next failure costs.
    left_out: u32,
    next_left_out: u32,
}

impl Worth {
    /// Whether a phase may begin at this turn.
    pub(super) fn is_tried(&mut self) -> bool {
        let is_tried = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        is_tried
    }

    pub(super) fn candidates(&mut self, largest: Largest) {
        self.largest = largest;
    }

    pub(super) fn judge(&mut self, params: &Params, round: &Round) {
        let are_short = round.program_ns < u64::from(round.switches) * u64::from(params.merge_ns);
        self.is_futile = round.switches >= FEW && round.merges < round.switches / 4 && are_short;
    }

    pub(super) fn forget(&mut self, rid: Rid) {
        self.largest.retain(|(own, _)| *own != rid);
    }

    /// Judges the round that has ended: `moves` between caches since the last one, in `elapsed_ns` of virtual time.
    pub fn verdict(&mut self, params: &Params, moves: u64, elapsed_ns: u64) -> Verdict {
        let costs_too_much = moves.saturating_mul(params.move_ns.into()) > elapsed_ns / 32;
        if !costs_too_much && !self.is_futile {
            (self.futile, self.next_left_out) = (0, 0);
            return Verdict::Keep;
        }
        self.futile += 1;
        if self.futile < FUTILE {
            return Verdict::Keep;
        }
        self.futile = 0;
        self.next_left_out = (self.next_left_out * 2).clamp(1, MOST_LEFT_OUT);
        self.left_out = self.next_left_out;
        Verdict::GiveUp
    }

    /// Tears the largest local region down that the latest phase has seen; the next largest if that is the one that was torn down last,
    /// which may have another number since.
    pub(super) fn tear_down(&mut self, partition: &mut Partition) -> Option<Effects> {
        let last = self.torn.take().and_then(|gfn| partition.region_of(gfn).ok());
        for (rid, _) in core::mem::take(&mut self.largest) {
            let is_local = partition.info(rid).is_some_and(|info| matches!(info.kind, Kind::Local(_)));
            if !is_local || last == Some(rid) {
                continue;
            }
            let frame = partition.frames_of(rid).next();
            if let Ok(effects) = partition.tear_down(rid) {
                self.torn = frame;
                return Some(effects);
            }
        }
        None
    }

    /// Tears all regions of the address space down. Takes time for each region of the VM.
    pub fn give_up(&mut self, partition: &mut Partition, space: Space, mut follow: impl FnMut(Effects)) {
        for index in 0..partition.region_records() {
            let rid = Rid(index as u16);
            let is_own =
                |kind, owner| matches!(kind, Kind::Regular | Kind::Local(_)) && owner == Owner::Space(space);
            if partition.info(rid).is_some_and(|info| is_own(info.kind, info.owner))
                && let Ok(effects) = partition.tear_down(rid)
            {
                follow(effects);
            }
        }
        self.largest.clear();
    }
}
