//! Micro-scheduling (thesis 2.2.3): what becomes of a VCPU that has touched memory which is closed in its cache domain.
//!
//! Either the VCPU moves to the region's domain, or the region becomes global. Owned by the VM beside its
//! [`Partition`](super::partition::Partition), under the same lock; `vcpu::micro` asks at each such fault, and performs the answer.
//! Pure: times are arguments, and whether a processor of the domain may run the VCPU is one, too.
//!
//! What must hold: an instruction that touches regions of two domains completes. Each move brings it to a domain where another one
//! of its regions is closed, so it would move for ever. While it does not complete, its VCPU's registers stay the same. A VCPU that
//! comes back with the same registers and touches another region than before has its region made global: at the third fault if it
//! has hardly run since the one before, at fault 64 in any case. Nothing here closes a global region again, so at most 64
//! moves for each region that an instruction touches come before its end, whatever the clock says.
//!
//! A loop that begins each visit to a region with the same registers touches the same region with them, and is not taken for
//! that; only if it comes back within [`NO_VISIT_NS`], as where interrupts come as fast as moves.
//!
//! Besides, a region that moves VCPUs too often becomes global: the moves cost more than the cache gains. And one is opened for a
//! while, not made global, so that a processor which has nothing to run can take a VCPU ([`Micro::opened_for_idle`]): which processors
//! have work changes.

use alloc::vec::Vec;

use super::Rid;
use crate::mem::pieces::OutOfMemory;

/// Moves of a region's VCPUs in a [`WINDOW_NS`] at most: 2000 in a second, up to which the thesis found them profitable where one takes
/// 16 µs.
pub const MOST_MOVES: u32 = 20;
/// Nanoseconds of machine time in which moves are counted together.
pub const WINDOW_NS: u64 = 10_000_000;
/// Faults with the same registers after which a region is made global, if the VCPU has hardly run between them.
pub const STUCK_FAULTS: u8 = 3;
/// Run time, in nanoseconds, below which a VCPU has hardly run.
pub const HARDLY_NS: u64 = 1_000_000;
/// Faults with the same registers after which a region is made global in any case.
pub const SAME_FAULTS: u8 = 64;
/// Run time, in nanoseconds, below which a visit to a region is none: moves would take most of the time.
pub const NO_VISIT_NS: u64 = 20_000;

/// How long a region rests that was opened for an idle processor, in nanoseconds of the VM's virtual time: before it is mapped to a cache
/// again. Twice as long each further time, [`MOST_REST`] times as long at most.
pub const REST_NS: u64 = 1_000_000_000;
/// A power of two.
pub const MOST_REST: u64 = 32;

/// The most moves of a region's VCPUs in a [`WINDOW_NS`], where a move takes `move_ns` nanoseconds: what takes about as much time as
/// [`MOST_MOVES`] on the thesis' machine, a thirtieth.
pub fn most_moves(move_ns: u32) -> u32 {
    u32::try_from(WINDOW_NS / 30 / u64::from(move_ns.max(1))).unwrap_or(u32::MAX).max(1)
}
/// States of registers that a VCPU remembers: interrupt handlers may fault between two faults of an instruction.
const STATES: usize = 4;

/// A touch of closed memory.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// The region.
    pub rid: Rid,
    /// A number that the VCPU's instruction pointer and general registers make: equal as long as the instruction has not completed.
    pub registers: u64,
    /// What the VCPU has run so far, in nanoseconds.
    pub ran: u64,
    /// Machine time in nanoseconds.
    pub now: u64,
    /// A processor of the region's domain may run the VCPU.
    pub can_move: bool,
    /// Moves in a [`WINDOW_NS`] after which the region is made global.
    pub most: u32,
}

/// What becomes of the VCPU.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It moves to the region's domain.
    Move,
    /// It stays, and the region becomes global.
    Globalise(Reason),
}

/// Why a region is made global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No processor of its domain may run the VCPU.
    NoProcessor,
    /// The VCPU has come back without progress.
    Stuck,
    /// It has moved VCPUs too often.
    TooOften,
}

/// What is remembered of a VCPU's last touches.
#[derive(Clone, Copy, Debug)]
pub struct LastTouches {
    /// Registers, the region that was touched with them last, and faults.
    states: [(u64, Rid, u8); STATES],
    next: usize,
    /// What it had run at the last touch.
    ran: u64,
}

impl Default for LastTouches {
    fn default() -> LastTouches {
        LastTouches { states: [(0, Rid::POOL, 0); STATES], next: 0, ran: 0 }
    }
}

impl LastTouches {
    /// Whether the VCPU has made no progress, as far as this touch tells; which is remembered.
    fn is_stuck(&mut self, touch: &Touch) -> bool {
        let ran = touch.ran.saturating_sub(self.ran);
        self.ran = touch.ran;
        let known =
            self.states.iter_mut().find(|(state, _, faults)| *faults != 0 && *state == touch.registers);
        let Some((_, rid, faults)) = known else {
            self.states[self.next] = (touch.registers, touch.rid, 1);
            self.next = (self.next + 1) % STATES;
            return false;
        };
        let is_other = core::mem::replace(rid, touch.rid) != touch.rid;
        if is_other || ran < NO_VISIT_NS {
            *faults = faults.saturating_add(1);
        }
        let is_stuck = *faults >= SAME_FAULTS || is_other && ran < HARDLY_NS && *faults >= STUCK_FAULTS;
        if is_stuck {
            *faults = 0;
        }
        is_stuck
    }
}

/// What has happened to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// VCPUs that it has moved.
    pub moves: u64,
    /// How often it was made global by a [`Verdict`].
    pub globalised: u64,
    /// How often it was opened for a while, so that a processor which had nothing to do could take a VCPU.
    pub opened: u64,
    /// Until when it rests, in virtual time of the VM.
    rests_until: u64,
    window: u64,
    in_window: u32,
}

/// The same of all regions of a VM, those that have died too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Touches of closed memory.
    pub closed_faults: u64,
    /// As in [`Record`].
    pub moves: u64,
    /// As in [`Record`].
    pub globalised: u64,
    /// As in [`Record`].
    pub opened: u64,
}

/// The records of a VM's regions that have been mapped to a cache, by number.
#[derive(Debug, Default)]
pub struct Micro {
    records: Vec<(Rid, Record)>,
    counts: Counts,
}

impl Micro {
    /// Begins a record of a region that is about to be mapped to a cache, if there is none.
    ///
    /// # Errors
    /// No memory.
    pub fn begin(&mut self, rid: Rid) -> Result<(), OutOfMemory> {
        if let Err(place) = self.place(rid) {
            self.records.try_reserve(1).map_err(|_| OutOfMemory)?;
            self.records.insert(place, (rid, Record::default()));
        }
        Ok(())
    }

    /// The region has died: its number may come again.
    pub fn end(&mut self, rid: Rid) {
        if let Ok(place) = self.place(rid) {
            self.records.remove(place);
        }
    }

    /// The record of a region; empty if it was never mapped to a cache.
    pub fn record(&self, rid: Rid) -> Record {
        self.place(rid).map_or(Record::default(), |place| self.records[place].1)
    }

    /// Of all regions.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What becomes of a VCPU that has touched a region. The region is made global by the caller if that is the answer.
    #[inline(always)]
    pub fn touch(&mut self, last: &mut LastTouches, touch: &Touch) -> Verdict {
        let place = self.place(touch.rid);
        let mut nothing = Record::default();
        let record = place.map_or(&mut nothing, |place| &mut self.records[place].1);
        self.counts.closed_faults += 1;
        let is_stuck = last.is_stuck(touch);
        if touch.now.saturating_sub(record.window) >= WINDOW_NS {
            (record.window, record.in_window) = (touch.now, 0);
        }
        let reason = match () {
            () if !touch.can_move => Reason::NoProcessor,
            () if is_stuck => Reason::Stuck,
            () if record.in_window >= touch.most => Reason::TooOften,
            () => {
                record.moves += 1;
                record.in_window += 1;
                self.counts.moves += 1;
                return Verdict::Move;
            }
        };
        record.globalised += 1;
        self.counts.globalised += 1;
        Verdict::Globalise(reason)
    }

    /// A region is opened for the sake of a processor that had nothing to do, at this virtual time of the VM.
    pub fn opened_for_idle(&mut self, rid: Rid, vm_ns: u64) {
        self.counts.opened += 1;
        if let Ok(place) = self.place(rid) {
            let record = &mut self.records[place].1;
            let doubled = record.opened.min(MOST_REST.ilog2().into());
            record.rests_until = vm_ns.saturating_add(REST_NS << doubled);
            record.opened += 1;
        }
    }

    /// Whether a region is not to be mapped to a cache yet, because an idle processor has opened it.
    pub fn rests(&self, rid: Rid, vm_ns: u64) -> bool {
        self.place(rid).is_ok_and(|place| vm_ns < self.records[place].1.rests_until)
    }

    fn place(&self, rid: Rid) -> Result<usize, usize> {
        self.records.binary_search_by_key(&rid, |(rid, _)| *rid)
    }
}

#[cfg(test)]
mod tests;
