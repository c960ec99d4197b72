//! What is known about present entries: what the guest's entry was, and the neighbours on the entry's list.
//!
//! That is 16 bytes for each entry, and most tables have few. So it is kept for 64 entries at a time, in *chunks* of 1 KiB, four
//! to a frame; a page has one for each aligned 64 entries of which one is or was present since the pool last ran short of them. They lie in
//! frames like tables and are reached in the same way.
//!
//! The word of a free chunk that would be the neighbours of its first entry says [`FREE`], which no neighbours are. So whether a
//! frame is free as a whole is seen without a count, when frames are given back.

use super::{ENTRIES, HEAD, Page};
use crate::arch::addr::Hfn;
use crate::mem::table_memory::TableMemory;

/// Chunks of a frame.
pub(super) const EACH: usize = 4;
/// Words of a chunk.
const WORDS: usize = ENTRIES / EACH;
/// Instead of neighbours. An entry's number is below 2^29.
const FREE: u64 = ((HEAD - 2) as u64) << 32;

/// Free chunks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunks {
    /// The first of them, or 0; word 0 of each names the next.
    first: u64,
    spare: usize,
}

/// The records of 64 entries: the address of the chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk(u64);

/// Where something is known about an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    frame: Hfn,
    word: usize,
}

impl Chunk {
    /// For the entries with a number of 64 times `word` and up, of which one is present.
    #[inline(always)]
    pub(super) fn of(page: &Page, word: usize) -> Chunk {
        Chunk(page.chunks[word])
    }

    /// Of entry `n` of its 64.
    #[inline(always)]
    pub(super) fn record(self, n: usize) -> Record {
        Record { frame: Hfn(self.0 >> 12), word: (self.0 >> 3) as usize & (ENTRIES - WORDS) | (n & 63) << 1 }
    }
}

impl Record {
    /// Of an entry that is present, or about to be.
    #[inline(always)]
    pub(super) fn of(page: &Page, index: usize) -> Record {
        Chunk::of(page, super::word(index)).record(index)
    }

    /// Notes everything.
    #[inline(always)]
    pub(super) fn write(self, memory: &impl TableMemory, payload: u64, after: u32, before: u32) {
        memory.store(self.frame, self.word, payload);
        self.set_neighbours(memory, after, before);
    }

    /// For a leaf, what the guest's entry was when this was filled; otherwise the page it points to.
    #[inline(always)]
    pub(super) fn payload(self, memory: &impl TableMemory) -> u64 {
        memory.load(self.frame, self.word)
    }

    #[inline(always)]
    pub(super) fn set_payload(self, memory: &impl TableMemory, payload: u64) {
        memory.store(self.frame, self.word, payload);
    }

    /// The next of its list, and the one before.
    #[inline(always)]
    pub(super) fn neighbours(self, memory: &impl TableMemory) -> (u32, u32) {
        let both = memory.load(self.frame, self.word | 1);
        (both as u32, (both >> 32) as u32)
    }

    /// The next of its list.
    #[inline(always)]
    pub(super) fn after(self, memory: &impl TableMemory) -> u32 {
        self.neighbours(memory).0
    }

    #[inline(always)]
    pub(super) fn set_neighbours(self, memory: &impl TableMemory, after: u32, before: u32) {
        memory.store(self.frame, self.word | 1, u64::from(before) << 32 | u64::from(after));
    }

    #[inline(always)]
    pub(super) fn set_after(self, memory: &impl TableMemory, after: u32) {
        let (_, before) = self.neighbours(memory);
        self.set_neighbours(memory, after, before);
    }

    #[inline(always)]
    pub(super) fn set_before(self, memory: &impl TableMemory, before: u32) {
        let (after, _) = self.neighbours(memory);
        self.set_neighbours(memory, after, before);
    }
}

impl Chunks {
    /// How many there are.
    #[inline(always)]
    pub(super) fn spare(&self) -> usize {
        self.spare
    }

    /// The chunks of a frame are free.
    pub(super) fn add(&mut self, memory: &impl TableMemory, frame: Hfn) {
        (0..EACH as u64).rev().for_each(|n| self.give(memory, frame.base().0 | n << 10));
    }

    /// Takes one.
    #[inline(always)]
    pub(super) fn take(&mut self, memory: &impl TableMemory) -> Option<u64> {
        if self.first == 0 {
            return None;
        }
        let chunk = self.first;
        self.first = Self::next(memory, chunk);
        let Record { frame, word } = Chunk(chunk).record(0);
        memory.store(frame, word | 1, 0);
        self.spare -= 1;
        Some(chunk)
    }

    /// Takes one back.
    #[inline(always)]
    pub(super) fn give(&mut self, memory: &impl TableMemory, chunk: u64) {
        let Record { frame, word } = Chunk(chunk).record(0);
        memory.store(frame, word, core::mem::replace(&mut self.first, chunk));
        memory.store(frame, word | 1, FREE);
        self.spare += 1;
    }

    fn next(memory: &impl TableMemory, chunk: u64) -> u64 {
        Chunk(chunk).record(0).payload(memory)
    }

    /// Gives back frames of which all chunks are free, but keeps `keep` of them; returns how many. Looks at all free chunks.
    pub(super) fn give_back(&mut self, memory: &impl TableMemory, mut keep: usize) -> usize {
        let mut chunk = core::mem::take(self).first;
        let mut frames = 0;
        while chunk != 0 {
            let next = Self::next(memory, chunk);
            let frame = Hfn(chunk >> 12);
            if !(0..EACH).all(|n| memory.load(frame, (n * WORDS) | 1) == FREE) {
                self.give(memory, chunk);
            } else if frame.base().0 == chunk {
                // By the first of the four. Its first two words are still looked at.
                memory.store(frame, 2, core::mem::replace(&mut frames, chunk));
            }
            chunk = next;
        }
        let mut returned = 0;
        while frames != 0 {
            let frame = Hfn(frames >> 12);
            frames = memory.load(frame, 2);
            if keep > 0 {
                keep -= 1;
                self.add(memory, frame);
            } else {
                memory.free(frame);
                returned += 1;
            }
        }
        returned
    }

    /// Checks the list of free ones.
    pub(super) fn check(&self, memory: &impl TableMemory) -> Result<(), &'static str> {
        let (mut chunk, mut count) = (self.first, 0);
        while chunk != 0 {
            let Record { frame, word } = Chunk(chunk).record(0);
            count += 1;
            if count > self.spare || memory.load(frame, word | 1) != FREE {
                return Err("a free chunk is in use, or on the list twice");
            }
            chunk = Self::next(memory, chunk);
        }
        if count == self.spare { Ok(()) } else { Err("free chunks are counted wrongly") }
    }
}
