//! Leaves of a page of level 1 that follow what became of the guest's right to write.
//!
//! `mprotect` and `fork` change it for hundreds of entries at a time. Of a page, everything is looked up once.

use super::super::role::{Controls, HOST_WRITABLE, Key};
use super::chunks::Chunk;
use super::*;
use crate::arch::addr::Hpa;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, DIRTY, WRITE};

/// Whether a leaf made from a guest entry `then` says more than the entry does `now`. Accessed and dirty bits
/// that came to it do no harm.
#[inline(always)]
pub(in super::super) fn is_stale(then: u64, now: u64) -> bool {
    const BITS: u64 = ACCESSED | DIRTY;
    (then ^ now) & !BITS != 0 || then & BITS & !now != 0
}

/// 64 leaves of a page of level 1.
pub(in super::super) struct Leaves<'a, M: TableMemory> {
    memory: &'a M,
    frame: Hfn,
    first: usize,
    chunk: Chunk,
    stale: &'a mut u64,
    tables: Tables<'a>,
}

/// What was noted about 64 entries of a page.
pub(in super::super) struct Notes<'a, M: TableMemory> {
    memory: &'a M,
    chunk: Chunk,
}

impl<M: TableMemory> Notes<'_, M> {
    /// Of one of them, which is present.
    #[inline(always)]
    pub(in super::super) fn get(&self, n: usize) -> u64 {
        self.chunk.record(n).payload(self.memory)
    }
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// What was noted about the entries with a number of 64 times `word` and up, of which one is present.
    #[inline(always)]
    pub(in super::super) fn notes(&self, id: PageId, word: usize) -> Notes<'_, M> {
        Notes { memory: &self.memory, chunk: Chunk::of(self.page(id), word) }
    }

    /// The leaves with a number of 64 times `word` and up.
    pub(in super::super) fn leaves_of(&mut self, id: PageId, word: usize) -> Leaves<'_, M> {
        let Pool { memory, pages, buckets, filter, stale, .. } = self;
        let page = &pages[id as usize];
        Leaves {
            memory,
            frame: page.frame,
            first: word * 64,
            chunk: Chunk::of(page, word),
            stale,
            tables: Tables { pages, buckets, filter },
        }
    }
}

impl<M: TableMemory> Leaves<'_, M> {
    /// Follows a guest entry that is `now`, if there is no more than the right to write that has changed; returns whether
    /// it had. `None`: more has changed, and nothing is done.
    #[inline(always)]
    pub(in super::super) fn follow(&mut self, key: Key, n: usize, now: u64) -> Option<bool> {
        let record = self.chunk.record(n);
        let then = record.payload(self.memory);
        if !is_stale(then, now) {
            return Some(false);
        }
        // Without CR0.WP the right to write takes that of the user away.
        let wp = key.controls().contains(Controls::WRITE_PROTECT);
        if !wp || (then ^ now) & !(ACCESSED | DIRTY) != WRITE || now & ACCESSED == 0 {
            return None;
        }
        record.set_payload(self.memory, now);
        let raw = self.memory.load(self.frame, self.first + n);
        let writable = now & (WRITE | DIRTY) == WRITE | DIRTY
            && key.allows_writes()
            && raw & HOST_WRITABLE != 0
            && !self.tables.is_write_protected(Hpa(raw & ADDRESS).frame());
        let entry = if writable { raw | WRITE } else { raw & !WRITE };
        *self.stale |= raw & !entry;
        self.memory.store(self.frame, self.first + n, entry);
        Some(true)
    }
}
