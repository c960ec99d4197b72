//! Accessed bits of leaves: by the reverse maps, and those of the links above them, which tell where there are none to be found.
//!
//! A processor sets the accessed bit of each entry that it walks through. So a leaf of a page of level 1 was used since the links to the page
//! were cleared only if one of them has its bit again. [`Pool::find_touched`] goes over the links to such pages, and over the leaves of those
//! that were used, and notes where in the pieces of 2 MiB to which these lead. Nothing is asked of the rest.

use super::chunks::Record;
use super::unmap::TOGETHER;
use super::*;
use crate::arch::addr::{Hpa, PAGE_SHIFT};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, LARGE};

/// Frames that have one bit in [`Touched`].
const EIGHT: u64 = LARGE_FRAMES / 64;
/// Those of a group that are looked at together.
const EIGHT_WANTED: u64 = (1 << TOGETHER) - 1;

/// Which parts of host memory were used: of pieces of 2 MiB, by hash.
#[derive(Debug, Default)]
pub(super) struct TouchedPieces {
    /// Missing until the first sample.
    pieces: Option<Pieces<Touched>>,
    /// The latest sample that any leaf may be of.
    all: u64,
    /// All leaves are to be asked by the next sample, links or not.
    is_next_all: bool,
    latest: u64,
}

/// Where in a piece samples have found accessed leaves.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    /// The latest sample that has, and what it has found: a bit for each eight frames.
    sample: u64,
    frames: u64,
    /// The one before.
    before: u64,
    /// To a power of two.
    _unused: u64,
}

impl TouchedPieces {
    /// Leaves are accessed of which no link tells.
    pub(super) fn ask_all(&mut self) {
        self.is_next_all = true;
    }

    /// A sample begins. Without memory for `pieces` numbers all is asked.
    fn begin(&mut self, number: u64, pieces: usize) {
        if number <= self.latest {
            // Numbers begin again with the records of a VM that was reset.
            (self.pieces, self.all) = (None, 0);
        }
        self.latest = number;
        if self.pieces.is_none() {
            self.pieces = Pieces::new(pieces, Touched::default).ok();
            self.is_next_all = true;
        }
        if self.pieces.is_none() || core::mem::take(&mut self.is_next_all) {
            self.all = number;
        }
    }
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Notes where a sample with this number, above those before, has leaves to ask. Whether a bit of a link was cleared: until all processors
    /// have flushed they may go on without setting it again.
    pub(in super::super) fn find_touched(&mut self, number: u64) -> bool {
        let mut touched = core::mem::take(&mut self.touched);
        touched.begin(number, self.pt_count_2m.len());
        let owes = self.for_each_used(|pool, to, level| {
            let Some(pieces) = &mut touched.pieces else { return };
            let piece = &mut pieces[pool.region_2m(to.frame())];
            if piece.sample != number {
                *piece = Touched { sample: number, before: piece.sample, ..Touched::default() };
            }
            piece.frames |= if level == 1 { 1 << (to.frame().0 % LARGE_FRAMES / EIGHT) } else { u64::MAX };
        });
        self.touched = touched;
        owes
    }

    /// What may have been accessed of the 2 MiB around a frame, a bit for each eight frames, in the samples after that with the number
    /// `before`.
    pub(in super::super) fn touched(&self, frame: Hfn, before: u64) -> u64 {
        let Some(pieces) = self.touched.pieces.as_ref().filter(|_| self.touched.all <= before) else {
            return u64::MAX;
        };
        match pieces[self.region_2m(frame)] {
            piece if piece.sample <= before => 0,
            // One more sample has found something: of an address space that asks less often than others.
            piece if piece.before > before => u64::MAX,
            piece => piece.frames,
        }
    }

    /// Calls `f` with where each accessed leaf leads, and its level, that may have been used since the last time: the large ones, and those in pages to which
    /// a link was used, or has gone that was. Clears the bits of the links, not those of leaves; whether any.
    pub(in super::super) fn for_each_used(&mut self, mut f: impl FnMut(&Self, Hpa, u8)) -> bool {
        let mut owes = false;
        for id in 0..self.used {
            let page = self.page(id);
            if !page.is_in_use() || page.key.level() != 2 {
                continue;
            }
            for index in ones(self.accessed_entries(page)) {
                let page = self.page(id);
                let raw = self.memory.load(page.frame, index);
                if raw & LARGE != 0 && !page.key.is_top() {
                    f(self, Hpa(raw & leaf_address(2)), 2);
                } else {
                    let (frame, child) =
                        (page.frame, Record::of(page, index).payload(&self.memory) as PageId);
                    self.clear_accessed(frame, index, raw);
                    self.page_mut(child).touched = true;
                    owes = true;
                }
            }
        }
        for id in 0..self.used {
            if !core::mem::take(&mut self.page_mut(id).touched) {
                continue;
            }
            let page = self.page(id);
            if !page.is_in_use() || page.key.level() != 1 {
                continue;
            }
            for index in ones(self.accessed_entries(page)) {
                f(self, Hpa(self.memory.load(page.frame, index) & leaf_address(1)), 1);
            }
        }
        owes
    }

    /// Which entries of a page are present and accessed: a bit for each. Eight at a time are passed over if none is.
    fn accessed_entries(&self, page: &Page) -> [u64; ENTRIES / 64] {
        let mut words = page.all_present();
        for (n, word) in words.iter_mut().enumerate() {
            let present = core::mem::take(word);
            for eight in (0..64).step_by(8).filter(|eight| present >> eight & 0xff != 0) {
                let load = |bit: usize| self.memory.load(page.frame, n * 64 + eight + bit);
                if (0..8).fold(0, |all, bit| all | load(bit)) & ACCESSED != 0 {
                    let accessed =
                        (0..8).fold(0, |all, bit| all | u64::from(load(bit) & ACCESSED != 0) << bit);
                    *word |= present & accessed << eight;
                }
            }
        }
        words
    }

    /// Clears the accessed bit of an entry, which was `raw`.
    fn clear_accessed(&self, frame: Hfn, index: usize, mut raw: u64) {
        while raw & ACCESSED != 0
            && let Err(now) = self.memory.compare_exchange(frame, index, raw, raw & !ACCESSED)
        {
            raw = now;
        }
    }

    /// Which frames were used through leaves of level 1, whose bits are cleared: bit `n` of `wanted` asks for frame `first + n`. All are in
    /// the same 2 MiB, so that the heads of their lists are side by side; those of frames without leaves are passed over together.
    pub(in super::super) fn take_accessed(&self, first: Hfn, wanted: u64) -> u64 {
        let list = self.reverse_map(first.base().0, 1);
        let span = (u64::BITS - wanted.leading_zeros()) as usize;
        let (mut accessed, mut at) = (0, 0);
        let mut look = |n: u64, head: u32| {
            if wanted >> n & 1 == 1 {
                let to = Hpa(first.base().0 + (n << PAGE_SHIFT));
                accessed |= u64::from(self.take_accessed_on(head, to, 1, true)) << n;
            }
        };
        for heads in self.lists.slices(list..list + span) {
            let (groups, rest) = heads.as_chunks::<TOGETHER>();
            for group in groups {
                // All ones: no test for each.
                if wanted >> at & EIGHT_WANTED != 0
                    && group.iter().fold(NONE, |all, head| all & head.get()) != NONE
                {
                    (at..).zip(group).for_each(|(n, head)| look(n, head.get()));
                }
                at += TOGETHER as u64;
            }
            (at..).zip(rest).for_each(|(n, head)| look(n, head.get()));
            at += rest.len() as u64;
        }
        accessed
    }

    /// Whether one of the leaves of `level` that lead to `to` was used; their accessed bits are cleared if that is wanted.
    pub(in super::super) fn take_accessed_leaves(&self, to: Hpa, level: u8, clears: bool) -> bool {
        self.take_accessed_on(self.lists[self.reverse_map(to.0, level)].get(), to, level, clears)
    }

    /// The same of those on a list, which may hold leaves of other frames.
    fn take_accessed_on(&self, mut slot: u32, to: Hpa, level: u8, clears: bool) -> bool {
        let mut any = false;
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let raw = self.memory.load(page.frame, index);
            if raw & leaf_address(level) == to.0 && page.key.level() == level && raw & ACCESSED != 0 {
                any = true;
                if clears {
                    self.clear_accessed(page.frame, index, raw);
                }
            }
            (slot, _) = Record::of(page, index).neighbours(&self.memory);
        }
        any
    }
}

/// The places of the ones of a page's words.
fn ones(words: [u64; ENTRIES / 64]) -> impl Iterator<Item = usize> {
    words.into_iter().enumerate().flat_map(|(n, mut word)| {
        core::iter::from_fn(move || {
            let bit = (word != 0).then(|| n * 64 + word.trailing_zeros() as usize);
            word &= word.wrapping_sub(1);
            bit
        })
    })
}
