//! Accessed bits of leaves: collected for samples in one pass over the pages that were used, and asked by the reverse maps.
//!
//! A processor sets the accessed bit of each entry that it walks through. So a leaf of a page of level 1 was used since the links to the page
//! were cleared only if one of them has its bit again. [`Pool::collect_accessed`] goes over the links to such pages, and over the leaves of
//! those that were used. It clears their bits and notes which frames they lead to; what is asked of these notes costs no look at a leaf.
//! The pass is taken in parts, so that no VCPU waits long for the lock of the tables.

use super::chunks::Record;
use super::*;
use crate::arch::addr::Hpa;
use crate::mem::table_memory::{ENTRIES, TableMemory, which_have};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, LARGE};
use core::sync::atomic::Ordering;

/// Places at which a piece may stand.
const PROBES: usize = 16;
/// The record of a page that is left out takes as long as this many entries.
const RECORD: usize = 8;
/// Words with a bit for each frame of a piece.
const FRAME_WORDS: usize = LARGE_FRAMES as usize / 64;

/// Frames that were used, and have not been asked for since, of pieces of 2 MiB.
#[derive(Debug, Default)]
pub(super) struct UsedFrames {
    /// By hash, some not in use; missing until the first sample.
    places: Option<Pieces<Place>>,
    latest: u64,
    /// See [`Pool::tell_again`].
    is_again: bool,
    /// This pass has found no room for a piece: each try costs a look at all places.
    is_full: bool,
    /// Where a pass goes on; `None`: none has been begun.
    pass: Option<Pass>,
}

/// How far a pass has come.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// It has gone over all links, and goes over leaves.
    is_at_leaves: bool,
    next: PageId,
}

/// What a part of a pass has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a pass that is not complete must be continued, and flushes may be owed"]
pub struct Collected {
    /// Some bits were cleared: until all processors have flushed they may go on without setting them again.
    pub owes: bool,
    /// The pass is complete.
    pub is_complete: bool,
}

/// The frames of a piece.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(128))]
struct Place {
    /// The number of the piece, and one; 0: the place is free.
    piece: u64,
    /// The sample with which the latest pass began that has found a leaf, or that is told again what was found before.
    sample: u64,
    frames: [u64; FRAME_WORDS],
}

impl Place {
    /// Notes frames from this one on, by their bits; those that have one are in this piece.
    #[inline(always)]
    fn note(&mut self, first: u64, frames: u8) {
        let (word, shift) = ((first % LARGE_FRAMES / 64) as usize, first % 64);
        self.frames[word] |= u64::from(frames) << shift;
        if shift > 56
            && let Some(next) = self.frames.get_mut(word + 1)
        {
            *next |= u64::from(frames) >> (64 - shift);
        }
    }
}

impl UsedFrames {
    /// A part of a sample with this number, its first or a later one. What it goes on with; `None`: the pass is complete, or there is no
    /// memory for places, of which there are `first` at first. A pass serves all samples that begin before its end, unless everything is
    /// to be told again.
    fn begin(&mut self, number: u64, is_first: bool, first: usize) -> Option<Pass> {
        if is_first && number <= self.latest {
            // Numbers begin again with the records of a VM that was reset.
            (self.places, self.pass) = (None, None);
        }
        let is_again = is_first && core::mem::take(&mut self.is_again);
        if is_again && let Some(places) = &mut self.places {
            places.for_each_mut(|place| place.sample = number);
        }
        if is_again || is_first && self.pass.is_none() {
            (self.latest, self.is_full) = (number, false);
            self.pass = Some(Pass::default());
        }
        if self.places.is_none() {
            self.places = Pieces::new(first, Place::default).ok();
        }
        self.pass.take_if(|_| self.places.is_some())
    }

    /// The place that a piece has or may have.
    fn place(places: &Pieces<Place>, piece: u64) -> Option<usize> {
        let first = hash(piece);
        let near = (first..first + PROBES).map(|n| n & (places.len() - 1));
        near.into_iter().find(|&n| [0, piece + 1].contains(&places[n].piece))
    }

    /// What is known of the piece that a frame is in; of one without a place nothing is.
    fn of(&self, frame: Hfn) -> Option<&Place> {
        let places = self.places.as_ref()?;
        Some(&places[Self::place(places, frame.0 / LARGE_FRAMES)?])
    }

    /// The same, to be changed.
    fn of_mut(&mut self, frame: Hfn) -> Option<&mut Place> {
        let places = self.places.as_mut()?;
        let at = Self::place(places, frame.0 / LARGE_FRAMES)?;
        Some(&mut places[at])
    }

    /// The place of a piece of which this sample has found a leaf. `None`: there is no room.
    fn note(&mut self, piece: u64) -> Option<usize> {
        let at = match Self::place(self.places.as_ref()?, piece) {
            Some(at) => at,
            None if self.is_full => return None,
            None => {
                self.grow();
                let at = Self::place(self.places.as_ref()?, piece);
                self.is_full = at.is_none();
                at?
            }
        };
        let place = &mut self.places.as_mut()?[at];
        (place.piece, place.sample) = (piece + 1, self.latest);
        Some(at)
    }

    /// The same by a frame; its index is kept in `latest` with the number of the piece: most often it is asked for again.
    #[inline(always)]
    fn place_after(&mut self, latest: &mut Option<(u64, usize)>, frame: u64) -> Option<&mut Place> {
        let piece = frame / LARGE_FRAMES;
        match *latest {
            Some((last, at)) if last == piece => Some(&mut self.places.as_mut()?[at]),
            _ => {
                // To note it may move all places.
                *latest = None;
                let at = self.note(piece)?;
                *latest = Some((piece, at));
                Some(&mut self.places.as_mut()?[at])
            }
        }
    }

    /// Makes twice as many places, without pieces of which nothing is to be told. Not where many are free: a bad hash is no reason.
    #[cold]
    fn grow(&mut self) {
        let Some(places) = self.places.as_ref() else { return };
        if places.iter().filter(|place| place.piece != 0).count() < places.len() / 4 {
            return;
        }
        let Ok(mut more) = Pieces::new(2 * places.len(), Place::default) else { return };
        for place in places.iter().filter(|place| place.frames != [0; FRAME_WORDS]) {
            let Some(at) = Self::place(&more, place.piece - 1) else { return };
            more[at] = *place;
        }
        self.places = Some(more);
    }
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Goes on to collect what was used, for a sample with this number, and clears the bits of that. The number of a sample that begins
    /// (`is_first`) is above those before. What there is no memory to note stays for a later sample. `is_all`: all leaves are looked at, as
    /// links do not tell of them. It stops when it has looked at `most` entries, after a page.
    pub(in super::super) fn collect_accessed(
        &mut self,
        number: u64,
        is_first: bool,
        is_all: bool,
        most: usize,
    ) -> Collected {
        let mut used = core::mem::take(&mut self.used_frames);
        let first = (2 * self.lists.len() / LARGE_FRAMES as usize).max(PROBES);
        let (mut owes, mut looked_at) = (false, 0);
        let mut rest = used.begin(number, is_first, first);
        while let Some(pass) = &mut rest
            && looked_at < most
        {
            if pass.next >= self.used {
                rest = (!pass.is_at_leaves).then_some(Pass { is_at_leaves: true, next: 0 });
                continue;
            }
            let (id, is_at_leaves) = (pass.next, pass.is_at_leaves);
            pass.next += 1;
            match self.collect_page(id, is_at_leaves, is_all, &mut used) {
                Some(any) => {
                    owes |= any;
                    looked_at += ENTRIES;
                }
                None => looked_at += RECORD,
            }
        }
        used.pass = rest;
        self.used_frames = used;
        Collected { owes, is_complete: rest.is_none() }
    }

    /// The next sample that begins is told of all that was found and not asked for, whichever sample found it.
    pub(in super::super) fn tell_again(&mut self) {
        self.used_frames.is_again = true;
    }

    /// A whole pass; whether bits were cleared.
    #[cfg(test)]
    pub(in super::super) fn collect_all(&mut self, number: u64, is_all: bool) -> bool {
        self.collect_accessed(number, true, is_all, usize::MAX).owes
    }

    /// The same of a page, of its links or its leaves. Whether bits were cleared; `None`: it has none of these, or was not used.
    fn collect_page(
        &mut self,
        id: PageId,
        is_at_leaves: bool,
        is_all: bool,
        used: &mut UsedFrames,
    ) -> Option<bool> {
        if !is_at_leaves {
            let page = self.page(id);
            return (page.is_in_use() && page.key.level() == 2).then(|| self.collect_links(id, used));
        }
        let is_touched = core::mem::take(self.page_mut(id).touched.get_mut());
        let page = self.page(id);
        if !((is_touched || is_all) && page.is_in_use() && page.key.level() == 1) {
            return None;
        }
        let (owes, is_left) = self.collect_leaves(page, used);
        *self.page_mut(id).touched.get_mut() = is_left;
        Some(owes)
    }

    /// The same of the large leaves of a page of level 2. The pages to which its links were used are marked.
    fn collect_links(&mut self, id: PageId, used: &mut UsedFrames) -> bool {
        let (page, mut owes) = (self.page(id), false);
        self.for_each_eight(page, |first, eight, accessed| {
            for n in ones(accessed) {
                let (index, raw) = (first + n, eight[n]);
                if raw & LARGE == 0 || page.key.is_top() {
                    let child = Record::of(page, index).payload(&self.memory) as PageId;
                    self.page(child).touched.store(true, Ordering::Relaxed);
                } else if let Some(place) = used.place_after(&mut None, (raw & leaf_address(2)) >> 12) {
                    place.frames = [u64::MAX; FRAME_WORDS];
                } else {
                    continue;
                }
                self.clear_accessed(page.frame, index, raw);
                owes = true;
            }
        });
        owes
    }

    /// The same of the leaves of a page of level 1, and whether some had to stay.
    fn collect_leaves(&self, page: &Page, used: &mut UsedFrames) -> (bool, bool) {
        let (mut owes, mut is_left) = (false, false);
        // The place of the piece that the leaf before leads to, as most do.
        let mut latest = None;
        self.for_each_eight(page, |first, eight, accessed| {
            let mut noted = 0;
            let mut note = |frame: u64, frames: u8, leaves: u8| match used.place_after(&mut latest, frame) {
                None => is_left = true,
                Some(place) => {
                    place.note(frame, frames);
                    noted |= leaves;
                }
            };
            match neighbours(&eight) {
                Some(frame) => note(frame, accessed, accessed),
                None => {
                    // Read again, so that the eight need not be in memory where they are neighbours.
                    let frame = |n| (self.memory.load(page.frame, first + n) & leaf_address(1)) >> 12;
                    ones(accessed).for_each(|n| note(frame(n), 1, 1 << n));
                }
            }
            self.memory.clear_in_eight(page.frame, first, noted, ACCESSED);
            owes |= noted != 0;
        });
        (owes, is_left)
    }

    /// In which groups of 64 frames of the 2 MiB around one samples after that with the number `before` have found something that was
    /// not asked for yet: a bit for each.
    pub(in super::super) fn used_groups(&self, frame: Hfn, before: u64) -> u8 {
        match self.used_frames.of(frame) {
            Some(place) if place.sample > before => {
                (0..).zip(place.frames).fold(0, |all, (n, word)| all | u8::from(word != 0) << n)
            }
            _ => 0,
        }
    }

    /// Which frames samples have found used, and that only once: bit `n` of `wanted` asks for frame `first + n`. All are in the same 2 MiB.
    pub(in super::super) fn take_used(&mut self, first: Hfn, wanted: u64) -> u64 {
        let Some(place) = self.used_frames.of_mut(first) else { return 0 };
        let (word, shift) = ((first.0 % LARGE_FRAMES / 64) as usize, first.0 % 64);
        let mut take = |word: usize, wanted: u64| {
            place.frames.get_mut(word).map_or(0, |frames| {
                let found = *frames & wanted;
                *frames &= !found;
                found
            })
        };
        let found = take(word, wanted << shift) >> shift;
        if shift == 0 { found } else { found | take(word + 1, wanted >> (64 - shift)) << (64 - shift) }
    }

    /// Calls `f` with each eight entries of a page of which one is present and accessed: the number of the first, all of them, and a bit for each
    /// such.
    #[inline(always)]
    fn for_each_eight(&self, page: &Page, mut f: impl FnMut(usize, [u64; 8], u8)) {
        for (word, present) in page.all_present().into_iter().enumerate() {
            for bit in (0..64).step_by(8).filter(|bit| present >> bit & 0xff != 0) {
                let first = word * 64 + bit;
                let eight = self.memory.load_eight(page.frame, first);
                let accessed = which_have(&eight, ACCESSED) & (present >> bit) as u8;
                if accessed != 0 {
                    f(first, eight, accessed);
                }
            }
        }
    }

    /// Clears the accessed bit of an entry, which was `raw`.
    #[inline(always)]
    fn clear_accessed(&self, frame: Hfn, index: usize, mut raw: u64) {
        while raw & ACCESSED != 0
            && let Err(now) = self.memory.compare_exchange(frame, index, raw, raw & !ACCESSED)
        {
            raw = now;
        }
    }

    /// Whether one of the leaves of `level` that lead to `to` was used; their accessed bits are cleared if that is wanted.
    pub(in super::super) fn take_accessed_leaves(&self, to: Hpa, level: u8, clears: bool) -> bool {
        let mut slot = self.lists[self.reverse_map(to.0, level)].get();
        let mut any = false;
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let raw = self.memory.load(page.frame, index);
            // A list may hold leaves of other frames.
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

/// The frame of the first of eight leaves, if the others lead to those that follow it, and all are in one piece.
#[inline(always)]
fn neighbours(eight: &[u64; 8]) -> Option<u64> {
    let first = eight[0] & leaf_address(1);
    let differ = (1..8).fold(0, |all, n| all | eight[n] ^ (first + ((n as u64) << 12)));
    let frame = first >> 12;
    (differ & leaf_address(1) == 0 && frame % LARGE_FRAMES <= LARGE_FRAMES - 8).then_some(frame)
}

/// The numbers of the ones of eight bits.
fn ones(mut bits: u8) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let n = (bits != 0).then(|| bits.trailing_zeros() as usize & 7);
        bits &= bits.wrapping_sub(1);
        n
    })
}

#[cfg(test)]
mod tests;
