//! Entries that lead nowhere, on processors that deliver some page faults without an exit.
//!
//! Where the format says that processors [filter page faults](PteFormat::FILTERS_FAULTS), a fault exits if the entry at fault is
//! present, in the processor's sense. So entries here are one of three: *filled*; *open*, present with a reserved bit, at which
//! the engine looks; or *absent*, all zeroes, where the guest's entry is not present and the fault is the guest's own. Absent
//! entries are found by faults and marked one by one; a mark goes when the guest's entry is written, all marks of a
//! page go before the guest may write its table unseen, and all marks of all pages before it may write one above level 1. Elsewhere,
//! and where the processor has no reserved bit to spare, whatever is not filled is zero and exits.

use super::*;
use crate::paging::format::x86::PRESENT;
use crate::paging::shadow::hardware::{RESERVED, has_reserved_bit};

/// What an entry is that is not filled. Page-directory pointers have no reserved bit that can be set.
#[inline(always)]
pub(super) fn unfilled<F: PteFormat>(marker: u64, key: Key) -> u64 {
    if key.is_top() { 0 } else { unfilled_marker::<F>(marker) }
}

/// The same of a page that is no top one, as all are that leaves are in.
#[inline(always)]
pub(super) fn unfilled_marker<F: PteFormat>(marker: u64) -> u64 {
    if F::FILTERS_FAULTS { marker } else { 0 }
}

/// An entry that is `raw` in memory, if it is filled; otherwise zero.
#[inline(always)]
pub(super) fn if_filled<F: PteFormat>(marker: u64, raw: u64) -> u64 {
    if F::FILTERS_FAULTS && marker != 0 && raw & RESERVED != 0 { 0 } else { raw }
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// What entries that are not filled are, if the processor's physical addresses have `physical_bits` bits.
    pub(super) fn unfilled_marker(physical_bits: u8) -> u64 {
        if F::FILTERS_FAULTS && has_reserved_bit(physical_bits) { PRESENT | RESERVED } else { 0 }
    }

    /// Fills a table that is all zeroes with open entries.
    pub(super) fn mark_all_unfilled(&self, frame: Hfn) {
        if self.marker != 0 {
            (0..ENTRIES).for_each(|index| self.memory.store(frame, index, self.marker));
        }
    }

    /// A page begins to stand for something: those for page-directory pointers have other entries where nothing is filled.
    #[inline(always)]
    pub(super) fn begin_unfilled(&mut self, id: PageId) {
        if F::FILTERS_FAULTS {
            let page = self.page(id);
            let marker = unfilled::<F>(self.marker, page.key);
            (0..4).for_each(|index| self.memory.store(page.frame, index, marker));
        }
    }

    /// Whether faults can be told apart by the entry at which they happen.
    #[inline(always)]
    pub(in super::super) fn filters_faults(&self) -> bool {
        F::FILTERS_FAULTS && self.marker != 0
    }

    /// Whether faults at this entry are the guest's own, and do not exit.
    pub(in super::super) fn is_absent(&self, id: PageId, index: usize) -> bool {
        self.page(id).absent[word(index)] >> (index % 64) & 1 != 0
    }

    /// The guest's entry is not present: faults there are its own. Not done while another processor may still be able to write to
    /// the guest's table. (The current one flushes what is owed before the guest goes on.)
    ///
    /// Not done either while the guest writes tables above level 1 unseen. It may have led one elsewhere without a flush: at a page
    /// fault a processor forgets upper entries, and goes the new way at the second access. Here it would fault by the mark until
    /// a flush.
    pub(in super::super) fn mark_absent(&mut self, id: PageId, index: usize) {
        let page = &mut self.pages[id as usize];
        if self.marker == 0 || page.unsync || self.upper_unsync || page.is_present(index) {
            return;
        }
        if self.owed != TlbFlush::None && self.shared.has_others() {
            return;
        }
        page.absent[word(index)] |= 1 << (index % 64);
        self.memory.store(page.frame, index, 0);
    }

    /// The guest's entry may have changed.
    #[inline(always)]
    pub(in super::super) fn forget_absent(&mut self, id: PageId, index: usize) {
        if F::FILTERS_FAULTS && self.is_absent(id, index) {
            let page = &mut self.pages[id as usize];
            page.absent[word(index)] &= !(1 << (index % 64));
            self.memory.store(page.frame, index, self.marker);
        }
    }

    /// All of the guest's table may change.
    #[inline(always)]
    pub(in super::super) fn forget_all_absent(&mut self, id: PageId) {
        if !F::FILTERS_FAULTS || self.marker == 0 {
            return;
        }
        let page = &mut self.pages[id as usize];
        for (word, bits) in page.absent.iter_mut().enumerate() {
            let mut rest = core::mem::take(bits);
            while rest != 0 {
                self.memory.store(page.frame, word * 64 + rest.trailing_zeros() as usize, self.marker);
                rest &= rest - 1;
            }
        }
    }

    /// The guest writes tables above level 1 unseen from now on: a page may be unsync there, or [nested](super::super::agile).
    pub(in super::super) fn begin_upper_unsync(&mut self) {
        self.upper_unsync = true;
        // Faults must not begin below such a table.
        self.forget_paths();
    }

    /// Invalidates all cached paths to pages of level 1, and with them the knowledge that a fault there is the guest's own.
    pub(in super::super) fn forget_paths(&mut self) {
        self.links += 1;
        if F::FILTERS_FAULTS {
            (0..self.used).for_each(|id| self.forget_all_absent(id));
        }
    }

    /// Whether an entry that is not filled is what it should be.
    pub(super) fn is_rightly_unfilled(&self, id: PageId, index: usize) -> bool {
        let page = self.page(id);
        // A page for pointers uses four of its entries.
        let is_pointer = page.key.is_top() && index < 4 && page.state != State::Free;
        let wanted = if self.is_absent(id, index) || is_pointer { 0 } else { self.marker };
        self.memory.load(page.frame, index) == wanted || page.state == State::Free && index < 4
    }
}
