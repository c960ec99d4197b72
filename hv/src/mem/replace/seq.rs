//! SEQ (Glass and Cao, SIGMETRICS 1997), with CLOCK in the place of LRU, as in the thesis on APR: where page faults come at
//! neighbouring pages, as in a loop over an array that does not fit, the page shortly behind the head of the sequence goes, which is
//! used again last of all. Elsewhere it is CLOCK.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot, bytes_of,
    clock::Clock,
    frames_in_range,
    index::Index,
    sequences::{MOST, Sequences},
    table,
};

/// How far behind the head a page must be: the paper's M. Pages nearer to it are still in use.
const BEHIND: u64 = 20;
/// Pages of sequences that are looked for at a fault, at most.
const SEARCHED: u32 = 4096;

/// The state. A page that comes in the place of another is where that one was in CLOCK's circle.
#[derive(Clone, Debug)]
pub struct Seq {
    clock: Clock,
    frames: u32,
    used: u32,
    pages: Vec<Page>,
    index: Index,
    sequences: Sequences,
}

impl Seq {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Seq, TryReserveError> {
        let frames = frames_in_range(frames);
        Ok(Seq {
            clock: Clock::new(frames)?,
            frames,
            used: 0,
            pages: table(frames as usize, Page(0))?,
            index: Index::new(frames as usize)?,
            sequences: Sequences::new()?,
        })
    }

    /// A resident page of the sequence that grows fastest and has one.
    fn behind_a_head(&self, bits: &mut impl AccessBits) -> Option<Slot> {
        let mut left = SEARCHED;
        let mut tried = [false; MOST + 1];
        loop {
            bits.search(self.sequences.all().len() as u32);
            let all = self.sequences.all().iter().enumerate();
            let fastest = all
                .filter(|(at, sequence)| !tried[*at] && sequence.is_long())
                .max_by_key(|(at, sequence)| (sequence.nth_time(), core::cmp::Reverse(*at)));
            let (at, sequence) = fastest?;
            tried[at] = true;
            let mut distance = BEHIND;
            while let Some(page) = sequence.behind_head(distance) {
                left = left.checked_sub(1)?;
                bits.search(1);
                match self.index.find(page) {
                    NONE => distance += 1,
                    slot => return Some(slot),
                }
            }
        }
    }
}

impl Policy for Seq {
    fn fault(&mut self, page: Page, object: Object, bits: &mut impl AccessBits) -> Placement {
        let behind = if self.used < self.frames { None } else { self.behind_a_head(bits) };
        let placement = match behind {
            Some(slot) => Placement::evicting(slot),
            None => self.clock.fault(page, object, bits),
        };
        if placement.evicts {
            self.index.remove(self.pages[placement.slot as usize]);
        } else {
            self.used += 1;
        }
        self.pages[placement.slot as usize] = page;
        self.index.insert(page, placement.slot);
        bits.search(self.sequences.all().len() as u32);
        self.sequences.fault(page);
        placement
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        let slot = match self.behind_a_head(bits) {
            Some(slot) => slot,
            None => self.clock.victim(bits),
        };
        self.remove(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        self.index.remove(self.pages[slot as usize]);
        self.clock.remove(slot);
        self.used -= 1;
    }

    fn limit(&mut self, frames: u32) {
        self.clock.limit(frames);
        self.frames = frames.clamp(1, self.pages.len() as u32);
    }

    fn bytes(&self) -> usize {
        self.clock.bytes() + bytes_of(&self.pages) + self.index.bytes() + self.sequences.bytes()
    }
}
