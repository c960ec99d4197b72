//! Entries of shadow pages, and the reverse maps that find them: parents of a page, leaves of a frame.

use super::super::TlbFlush;
use super::*;
use crate::paging::addr::{Hfn, Hpa};
use crate::paging::format::x86::{LARGE, PRESENT, WRITE};
use crate::paging::table::{ENTRIES, TableMemory};

impl<M: TableMemory> Pool<M> {
    /// Whether nothing points to a page.
    pub(in super::super) fn is_orphan(&self, id: PageId) -> bool {
        self.heads[id as usize] == NONE && self.root != Some(id)
    }

    /// Makes all entries of a page not present.
    pub(in super::super) fn clear(&mut self, id: PageId) {
        let mut from = 0;
        while let Some(index) = self.page(id).next_present(from) {
            self.zap(id, index);
            from = index + 1;
        }
    }

    pub(in super::super) fn entry(&self, id: PageId, index: usize) -> u64 {
        self.memory.load(self.page(id).frame, index)
    }

    /// What was noted about a present entry: see [`link`](Self::link) and [`map`](Self::map).
    pub(in super::super) fn note(&self, id: PageId, index: usize) -> u64 {
        self.notes[Self::slot(id, index) as usize]
    }

    /// The page that an entry points to.
    pub(in super::super) fn child(&self, id: PageId, index: usize) -> Option<PageId> {
        let raw = self.entry(id, index);
        let leaf = self.page(id).key.level() == 1 || (raw & LARGE != 0 && !self.page(id).key.is_top());
        (raw & PRESENT != 0 && !leaf).then(|| self.note(id, index) as PageId)
    }

    /// Makes an entry point to `child`.
    pub(in super::super) fn link(&mut self, id: PageId, index: usize, raw: u64, child: PageId) {
        self.put(id, index, raw, u64::from(child), child as usize);
    }

    /// Makes an entry a leaf, and notes what the guest's entry is.
    pub(in super::super) fn map(&mut self, id: PageId, index: usize, raw: u64, note: u64) {
        let head = self.reverse_map(raw, self.page(id).key.level());
        self.put(id, index, raw, note, head);
    }

    pub(super) fn put(&mut self, id: PageId, index: usize, raw: u64, note: u64, head: usize) {
        self.zap(id, index);
        let slot = Self::slot(id, index);
        let first = core::mem::replace(&mut self.heads[head], slot);
        self.after[slot as usize] = first;
        self.before[slot as usize] = HEAD | head as u32;
        if first != NONE {
            self.before[first as usize] = slot;
        }
        self.notes[slot as usize] = note;
        self.page_mut(id).present[index / 64] |= 1 << (index % 64);
        self.memory.store(self.page(id).frame, index, raw);
    }

    /// Changes the rights of a present leaf, and what is noted about it.
    pub(in super::super) fn change(&mut self, id: PageId, index: usize, raw: u64, note: u64) {
        self.lingering |= self.entry(id, index) & WRITE != 0 && raw & WRITE == 0;
        self.notes[Self::slot(id, index) as usize] = note;
        self.memory.store(self.page(id).frame, index, raw);
    }

    /// Makes an entry not present. Processors may still have it cached: whether they must forget it is up to
    /// the caller.
    pub(in super::super) fn zap(&mut self, id: PageId, index: usize) {
        let raw = self.entry(id, index);
        if raw & PRESENT == 0 {
            return;
        }
        self.lingering |= raw & WRITE != 0 && self.child(id, index).is_none();
        self.memory.store(self.page(id).frame, index, 0);
        self.page_mut(id).present[index / 64] &= !(1 << (index % 64));
        let slot = Self::slot(id, index) as usize;
        let (before, after) = (self.before[slot], self.after[slot]);
        if before & HEAD != 0 {
            self.heads[(before & !HEAD) as usize] = after;
        } else {
            self.after[before as usize] = after;
        }
        if after != NONE {
            self.before[after as usize] = before;
        }
    }

    /// What is owed to the processor, and `more`: the caller now promises to do it.
    pub(in super::super) fn take_owed_and(&mut self, more: TlbFlush) -> TlbFlush {
        let owed = core::mem::replace(&mut self.owed, TlbFlush::None).and(more);
        if owed == TlbFlush::All {
            self.lingering = false;
        }
        owed
    }

    /// Takes the right to write to `frame` from all leaves, those included that processors remember.
    pub(in super::super) fn protect(&mut self, frame: Hfn) {
        if self.lingering {
            self.owed = TlbFlush::All;
        }
        self.protect_leaves(frame.base(), 1);
        self.protect_leaves(frame.base().align_down(LARGE_FRAMES << 12), 2);
    }

    pub(super) fn protect_leaves(&mut self, to: Hpa, level: u8) {
        let mut slot = self.heads[self.reverse_map(to.0, level)];
        while slot != NONE {
            let next = self.after[slot as usize];
            let (id, index) = Self::place(slot);
            let raw = self.entry(id, index);
            if raw & leaf_address(level) == to.0 && self.page(id).key.level() == level && raw & WRITE != 0 {
                // A large leaf is filled again in pieces.
                match level {
                    1 => self.memory.store(self.page(id).frame, index, raw & !WRITE),
                    _ => self.zap(id, index),
                }
                self.owed = TlbFlush::All;
            }
            slot = next;
        }
    }

    pub(super) fn reverse_map(&self, raw: u64, level: u8) -> usize {
        let lists = self.heads.len() - self.pages.len();
        self.pages.len() + (hash((raw & leaf_address(level)) | u64::from(level)) & (lists - 1))
    }

    /// All leaves: page, index, entry.
    #[cfg(test)]
    pub(in super::super) fn leaves(&self) -> impl Iterator<Item = (PageId, usize, u64)> + '_ {
        let ids = (0..self.pages.len() as PageId).filter(|&id| self.page(id).in_use);
        let entries =
            ids.flat_map(move |id| (0..ENTRIES).map(move |index| (id, index, self.entry(id, index))));
        entries.filter(|&(id, index, raw)| raw & PRESENT != 0 && self.child(id, index).is_none())
    }

    pub(super) fn slot(id: PageId, index: usize) -> u32 {
        id * ENTRIES as u32 + index as u32
    }

    pub(super) fn place(slot: u32) -> (PageId, usize) {
        (slot / ENTRIES as u32, slot as usize % ENTRIES)
    }
}
