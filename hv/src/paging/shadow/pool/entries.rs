//! Entries of shadow pages, and the reverse maps that find them: parents of a page, leaves of a frame.
//!
//! Each present entry is on one doubly linked list: a link on that of its child's parents, a leaf on that of the leaves that lead
//! to its memory. So what a change concerns is found without a search: all links to a page that is freed, all leaves to a frame
//! that moves or becomes a table. A list is made of *slots*, which number the entries of all pages ([`Pool::number`]). The
//! neighbours of an entry, and what is noted about it (the guest's entry of a leaf, the child of a link), are in its
//! [`Record`], in memory of the pool beside the page. A record's `before` is the slot before it, or `HEAD`, for a leaf with the
//! number of the list that it heads. Leaves share lists by a hash, so each walk of one checks where a leaf leads and its
//! level.
//!
//! What must hold: an entry is present in the table exactly if its bit in `present` is set and its record is on its list. What
//! processors may still have cached of entries that went is in `stale`; where that matters ([`Pool::withdraw`]) it becomes a flush
//! that is `owed`, which callers take with [`Pool::take_owed_and`] before a guest runs again.

use super::super::TlbFlush;
use super::super::role::HOST_WRITABLE;
use super::chunks::{Chunk, Record};
use super::unfilled::{if_filled, unfilled};
use super::*;
use crate::arch::addr::{Hfn, Hpa};
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, DIRTY, LARGE, PRESENT, WRITE};

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Whether nothing points to a page.
    pub(in super::super) fn is_orphan(&self, id: PageId) -> bool {
        self.page(id).parents == NONE && !self.is_root(id)
    }

    /// Makes all entries of a page not present.
    pub(in super::super) fn clear(&mut self, id: PageId) {
        let page = &self.pages[id as usize];
        let (key, frame, present) = (page.key, page.frame, page.all_present());
        let marker = unfilled::<F>(self.marker, key);
        for (word, mut bits) in present.into_iter().enumerate() {
            if bits == 0 {
                continue;
            }
            let page = &mut self.pages[id as usize];
            *page.present.word_mut(word) = 0;
            let chunk = Chunk::of(page, word);
            while bits != 0 {
                let index = word * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let raw = self.memory.load(frame, index);
                self.memory.store(frame, index, marker);
                self.take_off(key, raw, chunk.record(index));
            }
        }
        self.forget_all_absent(id);
    }

    /// Takes an entry of a page with this key, which was `raw`, off its list.
    #[inline(always)]
    fn take_off(&mut self, key: Key, raw: u64, record: Record) {
        let (after, before) = record.neighbours(&self.memory);
        let level = key.level();
        if level == 1 || raw & LARGE != 0 && !key.is_top() {
            self.stale |= raw;
            if before & HEAD != 0 {
                *self.lists[(before & !HEAD) as usize].get_mut() = after;
            }
        } else {
            let child = record.payload(&self.memory) as PageId;
            self.links += u64::from(level > 2);
            let page = self.page_mut(child);
            page.unlinked = page.unlinked.wrapping_add(1);
            *page.touched.get_mut() |= raw & ACCESSED != 0;
            if before & HEAD != 0 {
                page.parents = after;
            }
        }
        if before & HEAD == 0 {
            self.record_of(before).set_after(&self.memory, after);
        }
        if after != NONE {
            self.record_of(after).set_before(&self.memory, before);
        }
    }

    /// An entry; zero if it is not filled.
    #[inline]
    pub(in super::super) fn entry(&self, id: PageId, index: usize) -> u64 {
        if_filled::<F>(self.marker, self.memory.load(self.page(id).frame, index))
    }

    /// What was noted about a present entry: see [`link`](Self::link) and [`map`](Self::map).
    pub(in super::super) fn guest_pte(&self, id: PageId, index: usize) -> u64 {
        self.record(id, index).payload(&self.memory)
    }

    /// The page that an entry points to.
    #[inline]
    pub(in super::super) fn child(&self, id: PageId, index: usize) -> Option<PageId> {
        self.child_of(self.page(id), index)
    }

    #[inline(always)]
    fn child_of(&self, page: &Page, index: usize) -> Option<PageId> {
        let raw = if_filled::<F>(self.marker, self.memory.load(page.frame, index));
        let leaf = page.key.level() == 1 || (raw & LARGE != 0 && !page.key.is_top());
        (raw & PRESENT != 0 && !leaf).then(|| Record::of(page, index).payload(&self.memory) as PageId)
    }

    /// The same when a fault leads through the page.
    #[inline(always)]
    pub(in super::super) fn step(&mut self, id: PageId, index: usize) -> Option<PageId> {
        self.pass(id);
        self.child_of(self.page(id), index)
    }

    /// A present leaf, and what was noted about it.
    #[inline(always)]
    pub(in super::super) fn leaf(&self, id: PageId, index: usize) -> (u64, u64) {
        let page = self.page(id);
        (self.memory.load(page.frame, index), Record::of(page, index).payload(&self.memory))
    }

    /// Makes an empty entry point to `child`.
    pub(in super::super) fn link(&mut self, id: PageId, index: usize, raw: u64, child: PageId) {
        let slot = Self::number(id, index);
        let first = core::mem::replace(&mut self.page_mut(child).parents, slot);
        self.put(id, index, raw, u64::from(child), first, HEAD);
    }

    /// Makes an empty entry a leaf, and notes what the guest's entry is.
    #[inline(always)]
    pub(in super::super) fn map(&mut self, id: PageId, index: usize, raw: u64, guest_pte: u64) {
        let level = self.page(id).key.level();
        self.map_at(id, index, level, raw, guest_pte);
    }

    /// The same of a page of this level.
    #[inline(always)]
    pub(in super::super) fn map_at(&mut self, id: PageId, index: usize, level: u8, raw: u64, guest_pte: u64) {
        let list = self.reverse_map(raw, level);
        let first = core::mem::replace(self.lists[list].get_mut(), Self::number(id, index));
        self.put(id, index, raw, guest_pte, first, HEAD | list as u32);
    }

    /// The same of an entry of level 1 by a VCPU that shares the tables with others. False: it is not empty, another VCPU has been
    /// faster, or it takes what is changed with the tables held exclusively; nothing is done then.
    #[inline(always)]
    pub(in super::super) fn map_shared(&self, id: PageId, index: usize, raw: u64, guest_pte: u64) -> bool {
        let page = self.page(id);
        // Whether there is a record is known only after a chunk was added; absent entries are changed with their bits.
        let has_no_record = page.chunks[word(index)] == 0;
        if has_no_record || F::FILTERS_FAULTS && self.is_absent(id, index) || !page.present.claim(index) {
            return false;
        }
        page.mark_referenced();
        let list = self.reverse_map(raw, 1);
        let head = &self.lists[list];
        let first = head.hold();
        Record::of(page, index).write(&self.memory, guest_pte, first, HEAD | list as u32);
        if first != NONE {
            self.record_of(first).set_before(&self.memory, Self::number(id, index));
        }
        self.memory.store(page.frame, index, raw);
        head.release(Self::number(id, index));
        true
    }

    /// Fills an entry that is now before `first` on its list.
    #[inline(always)]
    fn put(&mut self, id: PageId, index: usize, raw: u64, guest_pte: u64, first: u32, before: u32) {
        self.forget_absent(id, index);
        let mut page = &mut self.pages[id as usize];
        // Records come in chunks of 64, as pages need them: most pages have few entries.
        if page.chunks[word(index)] == 0 {
            page = Self::add_chunk(&self.memory, &mut self.chunks, &mut self.pages, id, index);
        }
        *page.present.word_mut(word(index)) |= 1 << (index % 64);
        page.mark_referenced();
        // The record first: from the store on the processor uses the entry, and sets its accessed and dirty bits.
        Record::of(page, index).write(&self.memory, guest_pte, first, before);
        self.memory.store(page.frame, index, raw);
        if first != NONE {
            self.record_of(first).set_before(&self.memory, Self::number(id, index));
        }
    }

    /// What is known about an entry.
    #[inline(always)]
    pub(super) fn record(&self, id: PageId, index: usize) -> Record {
        Record::of(self.page(id), index)
    }

    #[inline(always)]
    pub(super) fn record_of(&self, slot: u32) -> Record {
        let (id, index) = place(slot);
        self.record(id, index)
    }

    /// Changes the rights of a present leaf, and what is noted about it.
    pub(in super::super) fn change(&mut self, id: PageId, index: usize, raw: u64, guest_pte: u64) {
        let page = &self.pages[id as usize];
        // A right to write that goes may still be cached. Who protects a table asks for that.
        self.stale |= self.memory.load(page.frame, index) & !raw & WRITE;
        Record::of(page, index).set_payload(&self.memory, guest_pte);
        self.memory.store(page.frame, index, raw);
    }

    /// Makes an entry not present. Processors may still have it cached: whether they must forget it is up to
    /// the caller.
    #[inline]
    pub(in super::super) fn zap(&mut self, id: PageId, index: usize) {
        let marker = self.marker;
        let page = &mut self.pages[id as usize];
        let raw = if_filled::<F>(marker, self.memory.load(page.frame, index));
        if raw & PRESENT == 0 {
            return;
        }
        self.memory.store(page.frame, index, unfilled::<F>(marker, page.key));
        *page.present.word_mut(word(index)) &= !(1 << (index % 64));
        let (key, record) = (page.key, Record::of(page, index));
        self.take_off(key, raw, record);
    }

    /// What is owed to the processor, and `more`: the caller now promises to do it.
    pub(in super::super) fn take_owed_and(&mut self, more: TlbFlush) -> TlbFlush {
        let owed = core::mem::replace(&mut self.owed, TlbFlush::None).and(more);
        if owed == TlbFlush::All {
            self.flushes_all();
        }
        owed
    }

    /// The same where the caller flushes everything in any case: few instructions, on the path of each load of a root.
    #[inline(always)]
    pub(in super::super) fn take_owed_and_all(&mut self) -> TlbFlush {
        self.owed = TlbFlush::None;
        self.flushes_all();
        TlbFlush::All
    }

    /// Takes the right to write to `frame` from all leaves, those included that processors remember.
    pub(in super::super) fn protect(&mut self, frame: Hfn) {
        self.withdraw(frame);
        self.count_on_protection();
    }

    /// The same, but other processors may remember it until [`Pool::count_on_protection`].
    pub(in super::super) fn withdraw(&mut self, frame: Hfn) {
        // Some leaf with the right to write has gone, and perhaps it led here: no list has it any more.
        if self.stale & WRITE != 0 {
            self.owe_all();
        }
        self.protect_leaves(frame.base(), 1);
        self.protect_leaves(frame.base().align_down(LARGE_FRAMES << 12), 2);
    }

    pub(super) fn protect_leaves(&mut self, to: Hpa, level: u8) {
        let mut slot = self.lists[self.reverse_map(to.0, level)].get();
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let (next, _) = Record::of(page, index).neighbours(&self.memory);
            let raw = self.memory.load(page.frame, index);
            if raw & leaf_address(level) == to.0 && page.key.level() == level && raw & WRITE != 0 {
                // A large leaf is filled again, split.
                match level {
                    1 => self.memory.store(page.frame, index, raw & !WRITE),
                    _ => self.zap(id, index),
                }
                self.owe_all();
            }
            slot = next;
        }
    }

    /// Whether processors may still hold a translation by a leaf that has gone.
    pub(in super::super) fn has_stale(&self) -> bool {
        self.stale != 0
    }

    /// Whether a leaf of `level` leads to `to`.
    pub(in super::super) fn has_leaf(&self, to: Hpa, level: u8) -> bool {
        let mut slot = self.lists[self.reverse_map(to.0, level)].get();
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let raw = self.memory.load(page.frame, index);
            if raw & leaf_address(level) == to.0 && page.key.level() == level {
                return true;
            }
            (slot, _) = Record::of(page, index).neighbours(&self.memory);
        }
        false
    }

    /// Whether a leaf of level 1 allows writes to `frame`.
    pub(in super::super) fn is_writable(&self, frame: Hfn) -> bool {
        let to = frame.base().0;
        let mut slot = self.lists[self.reverse_map(to, 1)].get();
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let raw = self.memory.load(page.frame, index);
            if raw & leaf_address(1) == to && page.key.level() == 1 && raw & WRITE != 0 {
                return true;
            }
            (slot, _) = Record::of(page, index).neighbours(&self.memory);
        }
        false
    }

    /// Gives the right to write to `frame` back to the leaves that lack it only because tables are write-protected.
    pub(in super::super) fn unprotect(&mut self, frame: Hfn) {
        if self.is_write_protected(frame) {
            return;
        }
        let to = frame.base().0;
        let mut slot = self.lists[self.reverse_map(to, 1)].get();
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let record = Record::of(page, index);
            let raw = self.memory.load(page.frame, index);
            let key = page.key;
            if raw & leaf_address(1) == to
                && key.level() == 1
                && raw & HOST_WRITABLE != 0
                && key.allows_writes()
            {
                // Of a split large page the guest's dirty bit is part of the direct page's key.
                const BOTH: u64 = WRITE | DIRTY;
                if key.is_direct() || record.payload(&self.memory) & BOTH == BOTH {
                    self.memory.store(page.frame, index, raw | WRITE);
                }
            }
            (slot, _) = record.neighbours(&self.memory);
        }
    }

    /// The list of leaves of `level` that lead to the same memory as `raw`. Frames of one *window*, as many as there are lists, have
    /// lists of their own, and the heads of those of 2 MiB are side by side: leaves that are filled ahead mostly lead to neighbours, and
    /// pieces of 2 MiB go as one. Memory of several windows shares lists.
    #[inline(always)]
    pub(super) fn reverse_map(&self, raw: u64, level: u8) -> usize {
        let to = raw & leaf_address(level);
        let window = (to >> self.window_bits).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((to >> 12) ^ window << LARGE_FRAMES.trailing_zeros()) as usize & (self.lists.len() - 1)
    }

    /// All leaves: page, index, entry.
    #[cfg(any(test, feature = "testing"))]
    pub(in super::super) fn leaves(&self) -> impl Iterator<Item = (PageId, usize, u64)> + '_ {
        let ids = (0..self.pages.len() as PageId).filter(|&id| self.page(id).is_in_use());
        let entries =
            ids.flat_map(move |id| (0..ENTRIES).map(move |index| (id, index, self.entry(id, index))));
        entries.filter(|&(id, index, raw)| raw & PRESENT != 0 && self.child(id, index).is_none())
    }

    pub(super) fn number(id: PageId, index: usize) -> u32 {
        id * ENTRIES as u32 + index as u32
    }
}
