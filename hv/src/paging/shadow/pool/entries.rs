//! Entries of shadow pages, and the reverse maps that find them: parents of a page, leaves of a frame.

use super::super::TlbFlush;
use super::gaps::{gap, if_filled};
use super::*;
use crate::arch::addr::{Hfn, Hpa};
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{LARGE, PRESENT, WRITE};

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Whether nothing points to a page.
    pub(in super::super) fn is_orphan(&self, id: PageId) -> bool {
        self.heads[id as usize] == NONE && !self.is_root(id)
    }

    /// Makes all entries of a page not present.
    pub(in super::super) fn clear(&mut self, id: PageId) {
        let mut from = 0;
        while let Some(index) = self.page(id).next_present(from) {
            self.zap(id, index);
            from = index + 1;
        }
        self.forget_all_absent(id);
    }

    /// An entry; zero if it is not filled.
    #[inline]
    pub(in super::super) fn entry(&self, id: PageId, index: usize) -> u64 {
        if_filled::<F>(self.open, self.memory.load(self.page(id).frame, index))
    }

    /// What was noted about a present entry: see [`link`](Self::link) and [`map`](Self::map).
    pub(in super::super) fn note(&self, id: PageId, index: usize) -> u64 {
        self.slots[id as usize][index].note
    }

    /// The same of 64 entries.
    pub(in super::super) fn notes(&self, id: PageId, word: usize) -> &[Slot; 64] {
        self.slots[id as usize].as_chunks().0.get(word).expect("eight words")
    }

    /// The page that an entry points to.
    #[inline]
    pub(in super::super) fn child(&self, id: PageId, index: usize) -> Option<PageId> {
        let page = self.page(id);
        let raw = if_filled::<F>(self.open, self.memory.load(page.frame, index));
        let leaf = page.key.level() == 1 || (raw & LARGE != 0 && !page.key.is_top());
        (raw & PRESENT != 0 && !leaf).then(|| self.note(id, index) as PageId)
    }

    /// Makes an empty entry point to `child`.
    pub(in super::super) fn link(&mut self, id: PageId, index: usize, raw: u64, child: PageId) {
        self.put(id, index, raw, u64::from(child), child as usize);
    }

    /// Makes an empty entry a leaf, and notes what the guest's entry is.
    #[inline(always)]
    pub(in super::super) fn map(&mut self, id: PageId, index: usize, raw: u64, note: u64) {
        let head = self.reverse_map(raw, self.page(id).key.level());
        self.put(id, index, raw, note, head);
    }

    pub(super) fn put(&mut self, id: PageId, index: usize, raw: u64, note: u64, head: usize) {
        self.forget_absent(id, index);
        let slot = Self::number(id, index);
        let first = core::mem::replace(&mut self.heads[head], slot);
        self.slots[id as usize][index] = Slot { note, after: first, before: HEAD | head as u32 };
        if first != NONE {
            self.slot_mut(first).before = slot;
        }
        let page = &mut self.pages[id as usize];
        page.present[index / 64] |= 1 << (index % 64);
        page.referenced = true;
        self.memory.store(page.frame, index, raw);
    }

    /// What is known about an entry.
    #[inline(always)]
    pub(super) fn slot(&self, slot: u32) -> &Slot {
        let (id, index) = Self::place(slot);
        &self.slots[id as usize][index]
    }

    #[inline(always)]
    fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        let (id, index) = Self::place(slot);
        &mut self.slots[id as usize][index]
    }

    /// Changes the rights of a present leaf, and what is noted about it.
    pub(in super::super) fn change(&mut self, id: PageId, index: usize, raw: u64, note: u64) {
        let frame = self.page(id).frame;
        self.lingering |= self.memory.load(frame, index) & WRITE != 0 && raw & WRITE == 0;
        self.slots[id as usize][index].note = note;
        self.memory.store(frame, index, raw);
    }

    /// Makes an entry not present. Processors may still have it cached: whether they must forget it is up to
    /// the caller.
    #[inline]
    pub(in super::super) fn zap(&mut self, id: PageId, index: usize) {
        let open = self.open;
        let page = &mut self.pages[id as usize];
        let raw = if_filled::<F>(open, self.memory.load(page.frame, index));
        if raw & PRESENT == 0 {
            return;
        }
        self.memory.store(page.frame, index, gap::<F>(open, page.key));
        page.present[index / 64] &= !(1 << (index % 64));
        let level = page.key.level();
        if level == 1 || raw & LARGE != 0 && !page.key.is_top() {
            self.lingering |= raw & WRITE != 0;
        } else if level > 2 {
            self.links += 1;
        } else {
            let child = self.note(id, index) as PageId;
            let page = self.page_mut(child);
            page.unlinked = page.unlinked.wrapping_add(1);
        }
        let Slot { before, after, .. } = self.slots[id as usize][index];
        if before & HEAD != 0 {
            self.heads[(before & !HEAD) as usize] = after;
        } else {
            self.slot_mut(before).after = after;
        }
        if after != NONE {
            self.slot_mut(after).before = before;
        }
    }

    /// What is owed to the processor, and `more`: the caller now promises to do it.
    pub(in super::super) fn take_owed_and(&mut self, more: TlbFlush) -> TlbFlush {
        let owed = core::mem::replace(&mut self.owed, TlbFlush::None).and(more);
        if owed == TlbFlush::All {
            self.flushes_all();
        }
        owed
    }

    /// Takes the right to write to `frame` from all leaves, those included that processors remember.
    pub(in super::super) fn protect(&mut self, frame: Hfn) {
        self.withdraw(frame);
        self.count_on_protection();
    }

    /// The same, but other processors may remember it until [`Pool::count_on_protection`].
    pub(in super::super) fn withdraw(&mut self, frame: Hfn) {
        if self.lingering {
            self.owe_all();
        }
        self.protect_leaves(frame.base(), 1);
        self.protect_leaves(frame.base().align_down(LARGE_FRAMES << 12), 2);
    }

    pub(super) fn protect_leaves(&mut self, to: Hpa, level: u8) {
        let mut slot = self.heads[self.reverse_map(to.0, level)];
        while slot != NONE {
            let (id, index) = Self::place(slot);
            let next = self.slot(slot).after;
            let raw = self.entry(id, index);
            if raw & leaf_address(level) == to.0 && self.page(id).key.level() == level && raw & WRITE != 0 {
                // A large leaf is filled again in pieces.
                match level {
                    1 => self.memory.store(self.page(id).frame, index, raw & !WRITE),
                    _ => self.zap(id, index),
                }
                self.owe_all();
            }
            slot = next;
        }
    }

    #[inline(always)]
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

    pub(super) fn number(id: PageId, index: usize) -> u32 {
        id * ENTRIES as u32 + index as u32
    }

    pub(super) fn place(slot: u32) -> (PageId, usize) {
        (slot / ENTRIES as u32, slot as usize % ENTRIES)
    }
}
