//! The list of hot pages: those in slow memory, and those in fast memory, each from the newest to the oldest.
//!
//! A page is found by its number through four bytes for each page of the VM; an entry takes 16 bytes, and there are as many as the list
//! is made for; a home takes four for each frame of fast memory. Neighbours are linked by number, so that all operations take
//! constant time.

use core::ops::Range;

use crate::mem::pieces::{OutOfMemory, Pieces};

/// No entry, or no frame.
const NONE: u32 = u32::MAX;

/// Which memory a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Slow memory.
    Slow = 0,
    /// Fast memory.
    Fast = 1,
}

/// A page in fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The number of its frame in the [`FastPool`](super::pool::FastPool).
    pub fast: u32,
    /// The number of its frame in slow memory, which stays its own.
    pub home: u32,
}

/// An entry of the list; in the chain of free ones only `older` counts.
#[derive(Clone, Copy, Debug)]
struct Entry {
    page: u32,
    newer: u32,
    older: u32,
    /// The number of its frame in fast memory.
    fast: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
    count: u32,
}

/// The hot pages of a VM.
#[derive(Debug)]
pub struct HotList {
    /// The entry of each page.
    places: Pieces<u32>,
    entries: Pieces<Entry>,
    /// The home of what is in each frame of fast memory.
    homes: Pieces<u32>,
    ends: [Ends; 2],
    free: u32,
}

impl HotList {
    /// An empty list for `pages` pages, of which `most` can be on it, beside `fast` frames of fast memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new(pages: u32, most: u32, fast: u32) -> Result<HotList, OutOfMemory> {
        let empty = Entry { page: NONE, newer: NONE, older: NONE, fast: NONE };
        let mut entries = Pieces::new(most as usize, || empty)?;
        for at in 0..most {
            entries[at as usize].older = if at + 1 < most { at + 1 } else { NONE };
        }
        Ok(HotList {
            places: Pieces::new(pages as usize, || NONE)?,
            entries,
            homes: Pieces::new(fast as usize, || NONE)?,
            ends: [Ends { newest: NONE, oldest: NONE, count: 0 }; 2],
            free: if most == 0 { NONE } else { 0 },
        })
    }

    /// Bytes of host memory, without the tables of pieces (a 512th of it).
    pub const fn bytes_for(pages: u32, most: u32, fast: u32) -> usize {
        let frames = Pieces::<u32>::frames(pages as usize)
            + Pieces::<Entry>::frames(most as usize)
            + Pieces::<u32>::frames(fast as usize);
        frames * crate::arch::addr::PAGE_SIZE as usize
    }

    /// Pages of the VM.
    pub fn pages(&self) -> u32 {
        self.places.len() as u32
    }

    /// Pages on one side.
    pub fn count(&self, side: Side) -> u32 {
        self.ends[side as usize].count
    }

    /// The side that a page is listed on.
    pub fn side(&self, page: u32) -> Option<Side> {
        self.entry(page).map(|at| self.side_of(at))
    }

    /// Whether one of these pages is listed.
    pub fn has_any(&self, pages: Range<u32>) -> bool {
        let places = self.places.slices(pages.start as usize..pages.end as usize);
        // All ones: no test for each.
        places.flatten().fold(NONE, |all, at| all & at) != NONE
    }

    /// Where a page in fast memory is.
    pub fn placed(&self, page: u32) -> Option<Placed> {
        self.entry(page).and_then(|at| self.placed_at(at))
    }

    /// Adds a page in slow memory at the head. False: it is listed, or the list is full.
    pub fn add(&mut self, page: u32) -> bool {
        if page >= self.pages() || self.entry(page).is_some() || self.free == NONE {
            return false;
        }
        let at = self.free;
        self.free = self.entries[at as usize].older;
        self.entries[at as usize].page = page;
        self.entries[at as usize].fast = NONE;
        self.places[page as usize] = at;
        self.link(at);
        true
    }

    /// Whether no page can be added.
    pub fn is_full(&self) -> bool {
        self.free == NONE
    }

    /// The page at the tail of a side, which goes to its head.
    pub fn next_oldest(&mut self, side: Side) -> Option<u32> {
        let at = self.ends[side as usize].oldest;
        let page = self.entries_get(at)?.page;
        self.unlink(at);
        self.link(at);
        Some(page)
    }

    /// Takes a page in slow memory off the list.
    pub fn remove(&mut self, page: u32) {
        let Some(at) = self.entry(page).filter(|at| self.side_of(*at) == Side::Slow) else { return };
        self.unlink(at);
        self.places[page as usize] = NONE;
        self.entries[at as usize].page = NONE;
        self.entries[at as usize].older = self.free;
        self.free = at;
    }

    /// A listed page is in fast memory now (`Some`), or in slow memory; it goes to the head of its new side.
    pub fn place(&mut self, page: u32, placed: Option<Placed>) {
        let Some(at) = self.entry(page) else { return };
        self.unlink(at);
        self.entries[at as usize].fast = placed.map_or(NONE, |placed| placed.fast);
        if let Some(placed) = placed {
            self.homes[placed.fast as usize] = placed.home;
        }
        self.link(at);
    }

    /// All pages in fast memory.
    pub fn fast(&self) -> impl Iterator<Item = (u32, Placed)> + '_ {
        let mut at = self.ends[Side::Fast as usize].newest;
        core::iter::from_fn(move || {
            let (entry, placed) = (self.entries_get(at)?, self.placed_at(at)?);
            at = entry.older;
            Some((entry.page, placed))
        })
    }

    fn placed_at(&self, at: u32) -> Option<Placed> {
        let fast = self.entries[at as usize].fast;
        (fast != NONE).then(|| Placed { fast, home: self.homes[fast as usize] })
    }

    fn entry(&self, page: u32) -> Option<u32> {
        if page >= self.pages() {
            return None;
        }
        Some(self.places[page as usize]).filter(|at| *at != NONE)
    }

    fn entries_get(&self, at: u32) -> Option<&Entry> {
        (at != NONE).then(|| &self.entries[at as usize])
    }

    fn side_of(&self, at: u32) -> Side {
        if self.entries[at as usize].fast == NONE { Side::Slow } else { Side::Fast }
    }

    fn unlink(&mut self, at: u32) {
        let side = self.side_of(at) as usize;
        let Entry { newer, older, .. } = self.entries[at as usize];
        if newer == NONE {
            self.ends[side].newest = older;
        } else {
            self.entries[newer as usize].older = older;
        }
        if older == NONE {
            self.ends[side].oldest = newer;
        } else {
            self.entries[older as usize].newer = newer;
        }
        self.ends[side].count -= 1;
    }

    fn link(&mut self, at: u32) {
        let side = self.side_of(at) as usize;
        let second = self.ends[side].newest;
        self.entries[at as usize].newer = NONE;
        self.entries[at as usize].older = second;
        if second == NONE {
            self.ends[side].oldest = at;
        } else {
            self.entries[second as usize].newer = at;
        }
        self.ends[side].newest = at;
        self.ends[side].count += 1;
    }

    /// Pages of a side from the newest on.
    #[cfg(test)]
    pub fn order(&self, side: Side) -> alloc::vec::Vec<u32> {
        let mut at = self.ends[side as usize].newest;
        let next = || {
            let entry = self.entries_get(at)?;
            at = entry.older;
            Some(entry.page)
        };
        core::iter::from_fn(next).collect()
    }
}
