//! APR (Lee, M.S. thesis, Seoul National University 2020, chapter 3). At each replacement two policies name a victim: CLOCK among
//! all pages, and LIFO+ in the object of CLOCK's victim ([`lists`]). The one with the better [`score`] in that object has its way.
//! Who named an idle page earlier than the other is praised, and who named a page that is accessed again is punished.
//!
//! A page that only one side has named stays in the other side's list: resident if the side had not its way, else as a ghost. What
//! must hold: each resident page is in both lists; each ghost is in one, and its [`Entry::named`] says who evicted it.

pub mod lists;
mod real;
pub mod score;

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot, bytes_of, frames_in_range,
    index::Index,
    links::{Links, List},
    slots::Slots,
    table,
};
use lists::Lists;
use score::{Decay, Score, Side};

/// Objects that have a stack of their own where nothing else is said, with the one of all other pages.
pub const OBJECTS: u32 = 1024;

/// What a user may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The decay factor, in thousandths, below 1000.
    pub decay_milli: u32,
    /// Objects that have a stack of their own, with the one of all other pages; 1 to 65536.
    pub objects: u32,
}

impl Default for Parameters {
    /// The thesis' decay of 0.7.
    fn default() -> Self {
        Parameters { decay_milli: 700, objects: OBJECTS }
    }
}

/// What is known of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Replacements in it so far.
    now: u32,
    score: Score,
    /// Its resident pages.
    resident: u32,
}

/// A page that is resident or a ghost.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    page: Page,
    /// [`NONE`]: it is a ghost.
    slot: Slot,
    object: u32,
    /// Which side named it last, without an access since then, and at which replacement in its object.
    named: Option<(Side, u32)>,
    /// Each list's copy of the access bit.
    accessed: [bool; 2],
}

const NO_ENTRY: Entry = Entry { page: Page(0), slot: NONE, object: 0, named: None, accessed: [false; 2] };

/// The state.
#[derive(Clone, Debug)]
pub struct Apr {
    frames: u32,
    used: u32,
    decay: Decay,
    entries: Vec<Entry>,
    index: Index,
    lists: Lists,
    /// Ghosts, the latest at the head, and entries that are free.
    order: Links,
    ghosts: List,
    free: List,
    objects: Vec<Known>,
    slots: Slots,
    /// The side that always has its way, for tests.
    forced: Option<Side>,
}

impl Apr {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32, parameters: Parameters) -> Result<Apr, TryReserveError> {
        let frames = frames_in_range(frames);
        // One ghost more than may stay, for a moment.
        let entries = 2 * frames as usize + 1;
        let objects = parameters.objects.clamp(1, 1 << 16) as usize;
        let (order, free) = Links::free(entries)?;
        Ok(Apr {
            frames,
            used: 0,
            decay: Decay::new(parameters.decay_milli),
            entries: table(entries, NO_ENTRY)?,
            index: Index::new(entries)?,
            lists: Lists::new(entries, objects)?,
            order,
            ghosts: List::EMPTY,
            free,
            objects: table(objects, Known::default())?,
            slots: Slots::new(frames)?,
            forced: None,
        })
    }

    /// One side always has its way: then pages go as by that policy alone.
    #[cfg(test)]
    pub fn force(mut self, side: Side) -> Apr {
        self.forced = Some(side);
        self
    }

    /// The scores of an object, in 2^-32: CLOCK's and LIFO+'s.
    pub fn scores(&self, object: Object) -> [i64; 2] {
        let Known { score, .. } = self.objects[self.known(object)];
        [score.of(Side::Clock), score.of(Side::Lifo)]
    }

    /// The object's number; those beyond the table share that of all other pages.
    fn known(&self, object: Object) -> usize {
        Some(object.0 as usize).filter(|object| *object < self.objects.len()).unwrap_or(0)
    }

    /// Moves a page's access bit into both lists' copies. An access after one side named the page was a mistake of that side.
    fn fold(&mut self, entry: u32, bits: &mut impl AccessBits) {
        let Entry { slot, .. } = self.entries[entry as usize];
        if slot != NONE && bits.take(slot) {
            self.punish(entry);
            let accessed = &mut self.entries[entry as usize];
            (accessed.accessed, accessed.named) = ([true; 2], None);
        }
    }

    /// The page was accessed: who named it is punished.
    fn punish(&mut self, entry: u32) {
        let Entry { object, named, .. } = self.entries[entry as usize];
        if let Some((side, at)) = named {
            let Known { now, score, .. } = &mut self.objects[object as usize];
            score.punish(side, now.wrapping_sub(at), &self.decay);
        }
    }

    /// The page was named by the other side, too: who named it first is praised.
    fn praise(&mut self, entry: u32) {
        let Entry { object, named, .. } = self.entries[entry as usize];
        if let Some((side, at)) = named {
            let Known { now, score, .. } = &mut self.objects[object as usize];
            score.praise(side, now.wrapping_sub(at), &self.decay);
        }
    }

    /// The side that has its way in an object.
    fn active(&self, object: u32) -> Side {
        self.forced.unwrap_or(self.objects[object as usize].score.better())
    }

    /// Names a page for a side: the next whose access bit is clear. What the active side evicts must be resident, and may be what it
    /// has named before, when it was not active; the other side names no page twice. `None`: it has named them all. Judgements on the
    /// way may change who is active, but not for an object whose replacement has begun: `active`.
    fn name(
        &mut self,
        side: Side,
        object: u32,
        active: Option<Side>,
        bits: &mut impl AccessBits,
    ) -> Option<u32> {
        // Twice round: the first time clears access bits. Ghosts that are forgotten on the way were in the list at first.
        for _ in 0..2 * self.lists.len(side, object) {
            let entry = self.lists.pass(side, object);
            bits.search(1);
            self.fold(entry, bits);
            let found = &mut self.entries[entry as usize];
            if core::mem::take(&mut found.accessed[side as usize]) {
                continue;
            }
            let Entry { slot, object, named, .. } = *found;
            let is_active = active.unwrap_or_else(|| self.active(object)) == side;
            if slot == NONE && (is_active || self.objects[object as usize].resident == 0) {
                // It has evicted this page already, as it were, and goes on to the next.
                self.praise(entry);
                self.forget(entry);
            } else if is_active || named.is_none_or(|(by, _)| by != side) {
                return Some(entry);
            }
        }
        None
    }

    /// The next resident page, if a side must have one and has named all.
    fn any(&mut self, side: Side, object: u32, bits: &mut impl AccessBits) -> u32 {
        loop {
            // Ends: there is one.
            bits.search(1);
            let entry = self.lists.pass(side, object);
            if self.entries[entry as usize].slot != NONE {
                self.entries[entry as usize].named = None;
                return entry;
            }
        }
    }

    /// A replacement: both sides name a page, and the active one's is evicted.
    fn replace(&mut self, bits: &mut impl AccessBits) -> Slot {
        let clocks = self.name(Side::Clock, 0, None, bits).unwrap_or_else(|| self.any(Side::Clock, 0, bits));
        let object = self.entries[clocks as usize].object;
        let active = self.active(object);
        let mut lifos = self.name(Side::Lifo, object, Some(active), bits);
        if active == Side::Lifo && lifos.is_none() {
            lifos = Some(self.any(Side::Lifo, object, bits));
        }
        let known = &mut self.objects[object as usize];
        known.now = known.now.wrapping_add(1);
        known.score.decay(&self.decay);
        let victim = if active == Side::Clock { clocks } else { lifos.unwrap_or(clocks) };
        let slot = self.entries[victim as usize].slot;
        if lifos == Some(clocks) {
            self.praise(victim);
            self.forget(victim);
        } else {
            self.judge(Side::Clock, clocks, active);
            if let Some(lifos) = lifos {
                self.judge(Side::Lifo, lifos, active);
            }
        }
        // Two at most: of those that a lower limit leaves one goes with each that comes.
        for _ in 0..2.min(self.ghosts.len.saturating_sub(self.frames)) {
            self.forget(self.ghosts.tail);
        }
        slot
    }

    /// A side alone has named a page: praises the other one if that was earlier, and evicts the page if the side is active.
    fn judge(&mut self, by: Side, entry: u32, active: Side) {
        let Entry { slot, object, named, .. } = self.entries[entry as usize];
        if named.is_some_and(|(other, _)| other != by) {
            self.praise(entry);
            // Both have named it: there is nothing more to learn from it.
            if slot == NONE || by == active {
                self.forget(entry);
            } else {
                self.entries[entry as usize].named = None;
            }
            return;
        }
        let known = &mut self.objects[object as usize];
        self.entries[entry as usize].named = named.or(Some((by, known.now)));
        if by == active {
            known.resident -= 1;
            self.lists.remove(by, entry, object);
            self.entries[entry as usize].slot = NONE;
            self.order.push_head(&mut self.ghosts, entry);
        }
    }

    /// Takes a page out of all lists.
    fn forget(&mut self, entry: u32) {
        let Entry { page, slot, object, named, .. } = self.entries[entry as usize];
        for side in [Side::Clock, Side::Lifo] {
            // A ghost is gone already from the list of the side that evicted it, which is the one that has named it.
            if slot != NONE || named.is_some_and(|(by, _)| by != side) {
                self.lists.remove(side, entry, object);
            }
        }
        if slot == NONE {
            self.order.remove(&mut self.ghosts, entry);
        } else {
            self.objects[object as usize].resident -= 1;
        }
        self.order.push_head(&mut self.free, entry);
        self.index.remove(page);
        self.entries[entry as usize] = NO_ENTRY;
    }

    /// A page comes into both lists.
    fn push(&mut self, page: Page, slot: Slot, object: u32, bits: &mut impl AccessBits) {
        let entry = self.free.head;
        self.order.remove(&mut self.free, entry);
        self.entries[entry as usize] = Entry { page, slot, object, ..NO_ENTRY };
        self.objects[object as usize].resident += 1;
        self.index.insert(page, entry);
        self.lists.push_clock(entry);
        // The former top is in the access window only if it is accessed from now on.
        let former = self.lists.push_lifo(entry, object);
        if former != NONE {
            self.fold(former, bits);
            self.entries[former as usize].accessed[Side::Lifo as usize] = false;
        }
    }
}

impl Policy for Apr {
    fn fault(&mut self, page: Page, object: Object, bits: &mut impl AccessBits) -> Placement {
        let ghost = self.index.find(page);
        if ghost != NONE {
            self.punish(ghost);
            self.forget(ghost);
        }
        let placement = if self.used < self.frames {
            self.used += 1;
            Placement::free(self.slots.free())
        } else {
            Placement::evicting(self.replace(bits))
        };
        let object = self.known(object) as u32;
        self.slots.set(placement, self.free.head);
        self.push(page, placement.slot, object, bits);
        placement
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        let slot = self.replace(bits);
        self.slots.give_back(slot);
        self.used -= 1;
        slot
    }

    fn remove(&mut self, slot: Slot) {
        let entry = self.slots.give_back(slot);
        self.forget(entry);
        self.used -= 1;
    }

    fn limit(&mut self, frames: u32) {
        self.frames = frames.clamp(1, self.slots.count());
    }

    fn ghosts(&self) -> usize {
        self.ghosts.len as usize
    }

    fn bytes(&self) -> usize {
        bytes_of(&self.entries)
            + self.index.bytes()
            + self.lists.bytes()
            + self.order.bytes()
            + bytes_of(&self.objects)
            + self.slots.bytes()
    }
}
