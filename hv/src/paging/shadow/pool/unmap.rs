//! Leaves that go because the memory that they lead to does, found by the reverse maps.
//!
//! A piece of 2 MiB has the heads of its frames' lists side by side ([`Pool::reverse_map`]): those of frames without leaves are passed
//! over together. Leaves to neighbours mostly are in one page: there eight go together. Of each other list all leaves go, and what stays is
//! put back, which is rare: so a leaf costs no look at its neighbours.

use super::chunks::Record;
use super::unfilled::unfilled_marker;
use super::*;
use crate::arch::addr::Hpa;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::tree_key::TreeKey;

/// Heads of lists that are looked at together.
pub(super) const TOGETHER: usize = 8;

/// What is changed when leaves go.
struct Parts<'a, M> {
    memory: &'a M,
    pages: &'a mut Pieces<Page>,
    /// What an entry of theirs is that is not filled.
    marker: u64,
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Takes all leaves away through which `frames` frames from `first` on, all in the same 2 MiB, are reached; whether there were any.
    pub(in super::super) fn unmap(&mut self, first: Hfn, frames: u64) -> bool {
        let any = self.unmap_leaves(first.base().align_down(LARGE_FRAMES << 12), 2);
        let list = self.reverse_map(first.base().0, 1);
        let Pool { memory, pages, lists, stale, .. } = self;
        let mut parts = Parts { memory: &*memory, pages, marker: unfilled_marker::<F>(self.marker) };
        let (groups, rest) = lists.slice_mut(list..list + frames as usize).as_chunks_mut::<TOGETHER>();
        let (mut at, mut to, mut gone) = (list, first.base().0, 0);
        for group in groups {
            if !are_empty(group) {
                gone |= parts.unmap_together(group, Hpa(to));
            }
            if !are_empty(group) {
                for (n, head) in group.iter_mut().enumerate() {
                    gone |= parts.unmap(head.get_mut(), at + n, Hpa(to + ((n as u64) << 12)), 1);
                }
            }
            (at, to) = (at + TOGETHER, to + ((TOGETHER as u64) << 12));
        }
        for (n, head) in rest.iter_mut().enumerate() {
            gone |= parts.unmap(head.get_mut(), at + n, Hpa(to + ((n as u64) << 12)), 1);
        }
        *stale |= gone;
        any || gone != 0
    }

    /// Takes the leaves of one level away that lead to `to`; whether there were any.
    pub(in super::super) fn unmap_leaves(&mut self, to: Hpa, level: u8) -> bool {
        let list = self.reverse_map(to.0, level);
        let Pool { memory, pages, lists, stale, .. } = self;
        let mut parts = Parts { memory: &*memory, pages, marker: unfilled_marker::<F>(self.marker) };
        let gone = parts.unmap(lists[list].get_mut(), list, to, level);
        *stale |= gone;
        gone != 0
    }

    /// Takes the leaves of level 1 away that lead to a frame in the pages of one set of tables.
    pub(in super::super) fn unmap_in(&mut self, tree: TreeKey, frame: Hfn) {
        let to = frame.base().0;
        let mut slot = self.lists[self.reverse_map(to, 1)].get();
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let key = page.key;
            let raw = self.memory.load(page.frame, index);
            slot = Record::of(page, index).after(&self.memory);
            if raw & leaf_address(1) == to && key.level() == 1 && key.tree() == tree {
                self.zap(id, index);
            }
        }
    }
}

/// Whether no list has a leaf.
#[inline(always)]
pub(super) fn are_empty(heads: &mut [Head; TOGETHER]) -> bool {
    // All ones: no test for each.
    heads.iter_mut().fold(NONE, |all, head| all & *head.get_mut()) == NONE
}

impl<M: TableMemory> Parts<'_, M> {
    /// Takes the first leaf of each list away, and again, as long as all of them are in one page of level 1 and lead to the frames from
    /// `to` on: all bits of those that have gone. What is left on the lists must go through [`Parts::unmap`], which makes whole what is
    /// before a first leaf.
    fn unmap_together(&mut self, heads: &mut [Head; TOGETHER], to: Hpa) -> u64 {
        let mut gone = 0;
        loop {
            let first = *heads[0].get_mut();
            let apart = heads.iter_mut().fold(0, |apart, head| apart | *head.get_mut() ^ first);
            if first == NONE || apart >= ENTRIES as u32 {
                return gone;
            }
            let page = &mut self.pages[place(first).0 as usize];
            let frame = page.frame;
            let leaves = heads.each_mut().map(|head| self.memory.load(frame, place(*head.get_mut()).1));
            let differ = |differ, (n, raw): (u64, &u64)| differ | raw & leaf_address(1) ^ (to.0 + (n << 12));
            if (0..).zip(&leaves).fold(0, differ) != 0 || page.key.level() != 1 {
                return gone;
            }
            for head in heads.iter_mut() {
                let head = head.get_mut();
                let (_, index) = place(*head);
                *head = Record::of(page, index).after(self.memory);
                self.memory.store(frame, index, self.marker);
                *page.present.word_mut(word(index)) &= !(1 << (index % 64));
            }
            gone = leaves.iter().fold(gone, |gone, raw| gone | raw);
        }
    }

    /// Takes the leaves of one level away that lead to `to`, from the list with this number, which may hold other leaves: all
    /// bits of those that have gone.
    #[inline(always)]
    fn unmap(&mut self, head: &mut u32, list: usize, to: Hpa, level: u8) -> u64 {
        let mut slot = core::mem::replace(head, NONE);
        let (mut gone, mut last) = (0, NONE);
        while slot != NONE {
            let (id, index) = place(slot);
            let page = &mut self.pages[id as usize];
            let next = Record::of(page, index).after(self.memory);
            let raw = self.memory.load(page.frame, index);
            if raw & leaf_address(level) == to.0 && page.key.level() == level {
                self.memory.store(page.frame, index, self.marker);
                *page.present.word_mut(word(index)) &= !(1 << (index % 64));
                gone |= raw;
            } else {
                self.put_back(head, list, last, slot);
                last = slot;
            }
            slot = next;
        }
        gone
    }

    /// Puts a leaf that stays behind the `last` one of its list.
    #[cold]
    #[inline(never)]
    fn put_back(&mut self, head: &mut u32, list: usize, last: u32, slot: u32) {
        let record = |slot: u32| {
            let (id, index) = place(slot);
            Record::of(&self.pages[id as usize], index)
        };
        let before = if last == NONE {
            *head = slot;
            HEAD | list as u32
        } else {
            record(last).set_after(self.memory, slot);
            last
        };
        record(slot).set_before(self.memory, before);
        record(slot).set_after(self.memory, NONE);
    }
}

#[cfg(test)]
pub(super) mod tests;
