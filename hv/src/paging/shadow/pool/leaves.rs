//! Leaves of a page of level 1 that follow what became of the guest's right to write.
//!
//! `mprotect` and `fork` change it for hundreds of entries at a time. Of a page, everything is looked up once.

use super::super::role::{Controls, Key, TAKES_WRITES};
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
    slots: &'a mut [Slot; 64],
    lingering: &'a mut bool,
    tables: Tables<'a>,
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// The leaves with a number of 64 times `word` and up.
    pub(in super::super) fn leaves_of(&mut self, id: PageId, word: usize) -> Leaves<'_, M> {
        let Pool { memory, pages, slots, buckets, lingering, .. } = self;
        Leaves {
            memory,
            frame: pages[id as usize].frame,
            first: word * 64,
            slots: slots[id as usize].as_chunks_mut().0.get_mut(word).expect("eight words"),
            lingering,
            tables: Tables { pages, buckets },
        }
    }
}

impl<M: TableMemory> Leaves<'_, M> {
    /// Follows a guest entry that is `now`, if there is no more than the right to write that has changed; returns whether
    /// it had. `None`: more has changed, and nothing is done.
    #[inline(always)]
    pub(in super::super) fn follow(&mut self, key: Key, n: usize, now: u64) -> Option<bool> {
        let slot = &mut self.slots[n];
        if !is_stale(slot.note, now) {
            return Some(false);
        }
        // Without CR0.WP the right to write takes that of the user away.
        let wp = key.controls().contains(Controls::WRITE_PROTECT);
        if !wp || (slot.note ^ now) & !(ACCESSED | DIRTY) != WRITE || now & ACCESSED == 0 {
            return None;
        }
        slot.note = now;
        let raw = self.memory.load(self.frame, self.first + n);
        let writable = now & (WRITE | DIRTY) == WRITE | DIRTY
            && key.allows_writes()
            && raw & TAKES_WRITES != 0
            && !self.tables.is_watched(Hpa(raw & ADDRESS).frame());
        *self.lingering |= raw & WRITE != 0 && !writable;
        self.memory.store(self.frame, self.first + n, if writable { raw | WRITE } else { raw & !WRITE });
        Some(true)
    }
}
