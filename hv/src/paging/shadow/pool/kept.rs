//! Leaves that stay while the 2 MiB that they lead to are copied: they lose the right to write, and lead to the copy once it is complete.
//! So what reads the memory faults at neither step, and tables of small leaves are not to be filled again.
//!
//! As in [`super::unmap`] the heads of a piece's lists are side by side, and leaves to neighbours mostly are in one page: eight go together.

use super::chunks::Record;
use super::unmap::{TOGETHER, are_empty};
use super::*;
use crate::arch::addr::Hpa;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::WRITE;
use crate::paging::shadow::role::HOST_WRITABLE;

/// What leaves lose. Without the second bit nothing gives the first one back but a fault that writes, which asks the P2m.
const LOST: u64 = WRITE | HOST_WRITABLE;

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Takes the right to write to the 2 MiB from `first` on from all leaves; whether any had it.
    pub(in super::super) fn keep_reads(&mut self, first: Hfn) -> bool {
        let first = first.base();
        let mut lost = self.keep_reads_from(self.lists[self.reverse_map(first.0, 2)].get(), first, 2);
        let list = self.reverse_map(first.0, 1);
        let mut groups = self.groups_with_leaves(list);
        while groups != 0 {
            let n = groups.trailing_zeros() as usize * TOGETHER;
            groups &= groups - 1;
            let to = |n: usize| Hpa(first.0 + ((n as u64) << 12));
            let mut slots = [NONE; TOGETHER];
            for (slot, head) in slots.iter_mut().zip(self.lists.slice_mut(list + n..list + n + TOGETHER)) {
                *slot = *head.get_mut();
            }
            while let Some((page, raws)) = self.alike(&slots, to(n)) {
                for (slot, raw) in slots.iter_mut().zip(raws) {
                    let (_, index) = place(*slot);
                    self.memory.store(page.frame, index, raw & !LOST);
                    lost |= raw & WRITE;
                    *slot = Record::of(page, index).after(&self.memory);
                }
            }
            for (m, slot) in slots.into_iter().enumerate() {
                lost |= self.keep_reads_from(slot, to(n + m), 1);
            }
        }
        lost != 0
    }

    /// The same of the leaves of one level that lead to `to`, of a list from this entry on.
    fn keep_reads_from(&self, mut slot: u32, to: Hpa, level: u8) -> u64 {
        let mut lost = 0;
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let raw = self.memory.load(page.frame, index);
            slot = Record::of(page, index).after(&self.memory);
            if raw & leaf_address(level) == to.0 && page.key.level() == level {
                self.memory.store(page.frame, index, raw & !LOST);
                lost |= raw & WRITE;
            }
        }
        lost
    }

    /// Has all leaves that lead to the 2 MiB from `from` on lead to those from `to` on; whether there were any.
    pub(in super::super) fn lead_to(&mut self, from: Hfn, to: Hfn) -> bool {
        let (from, to) = (from.base(), to.base());
        let mut gone = self.lead_leaves_to(from, to, 2);
        let (old, new) = (self.reverse_map(from.0, 1), self.reverse_map(to.0, 1));
        let mut groups = self.groups_with_leaves(old);
        while groups != 0 {
            let n = groups.trailing_zeros() as usize * TOGETHER;
            groups &= groups - 1;
            let at = (n as u64) << 12;
            if let Some(raws) = self.lead_together(old + n, new + n, Hpa(from.0 + at), Hpa(to.0 + at)) {
                gone |= raws;
                continue;
            }
            for m in 0..TOGETHER as u64 {
                let at = at + (m << 12);
                gone |= self.lead_leaves_to(Hpa(from.0 + at), Hpa(to.0 + at), 1);
            }
        }
        self.stale |= gone;
        gone != 0
    }

    /// Of the lists from this one on, one for each frame of 2 MiB, those that have leaves: a bit for each group.
    fn groups_with_leaves(&mut self, list: usize) -> u64 {
        let (groups, _) =
            self.lists.slice_mut(list..list + LARGE_FRAMES as usize).as_chunks_mut::<TOGETHER>();
        (0..).zip(groups).fold(0, |found, (n, group)| found | u64::from(!are_empty(group)) << n)
    }

    /// Has the only leaves of each of some lists lead to the frames from `to` on, which have none. `None`: it is not so, and nothing is done.
    #[inline(always)]
    fn lead_together(&mut self, old: usize, new: usize, from: Hpa, to: Hpa) -> Option<u64> {
        let heads: &mut [_; TOGETHER] = self.lists.slice_mut(old..old + TOGETHER).first_chunk_mut()?;
        let slots = heads.each_mut().map(|head| *head.get_mut());
        if !are_empty(self.lists.slice_mut(new..new + TOGETHER).first_chunk_mut()?) {
            return None;
        }
        let (page, raws) = self.alike(&slots, from)?;
        // A leaf that is the head of its list is before no other one: the list ends with it.
        let ends = |slot: u32| Record::of(page, place(slot).1).after(&self.memory) == NONE;
        if !slots.into_iter().all(ends) {
            return None;
        }
        for (n, (slot, raw)) in slots.into_iter().zip(raws).enumerate() {
            let (_, index) = place(slot);
            Record::of(page, index).set_before(&self.memory, HEAD | (new + n) as u32);
            let raw = raw & !leaf_address(1) | (to.0 + ((n as u64) << 12));
            self.memory.store(page.frame, index, raw);
        }
        for (n, slot) in slots.into_iter().enumerate() {
            *self.lists[old + n].get_mut() = NONE;
            *self.lists[new + n].get_mut() = slot;
        }
        Some(raws.iter().fold(0, |gone, raw| gone | raw))
    }

    /// The same of all leaves of one level that lead to `from`, one by one: all bits of them.
    fn lead_leaves_to(&mut self, from: Hpa, to: Hpa, level: u8) -> u64 {
        let (old, new) = (self.reverse_map(from.0, level), self.reverse_map(to.0, level));
        let mut slot = self.lists[old].get();
        let mut gone = 0;
        while slot != NONE {
            let (id, index) = place(slot);
            let page = self.page(id);
            let record = Record::of(page, index);
            let (after, before) = record.neighbours(&self.memory);
            let raw = self.memory.load(page.frame, index);
            if raw & leaf_address(level) == from.0 && page.key.level() == level {
                gone |= raw;
                self.memory.store(page.frame, index, raw & !leaf_address(level) | to.0);
                if old != new {
                    match before & HEAD {
                        0 => self.record_of(before).set_after(&self.memory, after),
                        _ => *self.lists[old].get_mut() = after,
                    }
                    if after != NONE {
                        self.record_of(after).set_before(&self.memory, before);
                    }
                    let first = core::mem::replace(self.lists[new].get_mut(), slot);
                    record.set_neighbours(&self.memory, first, HEAD | new as u32);
                    if first != NONE {
                        self.record_of(first).set_before(&self.memory, slot);
                    }
                }
            }
            slot = after;
        }
        gone
    }

    /// Leaves that are all in one page of level 1 and lead to the frames from `to` on, in this order: the page, and what they are.
    #[inline(always)]
    fn alike(&self, slots: &[u32; TOGETHER], to: Hpa) -> Option<(&Page, [u64; TOGETHER])> {
        let first = slots[0];
        let apart = slots.iter().fold(0, |apart, slot| apart | slot ^ first);
        if first == NONE || apart >= ENTRIES as u32 {
            return None;
        }
        let page = self.page(place(first).0);
        let raws = slots.map(|slot| self.memory.load(page.frame, place(slot).1));
        let differ = |differ, (n, raw): (u64, &u64)| differ | raw & leaf_address(1) ^ (to.0 + (n << 12));
        let are = (0..).zip(&raws).fold(0, differ) == 0 && page.key.level() == 1;
        are.then_some((page, raws))
    }
}

#[cfg(test)]
mod tests;
