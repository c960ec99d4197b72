//! Accessed bits of leaves, found by the reverse maps.

use super::chunks::Record;
use super::unmap::TOGETHER;
use super::*;
use crate::arch::addr::{Hpa, PAGE_SHIFT};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::ACCESSED;

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
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
                if group.iter().fold(NONE, |all, head| all & head.get()) != NONE {
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
            let mut raw = self.memory.load(page.frame, index);
            if raw & leaf_address(level) == to.0 && page.key.level() == level && raw & ACCESSED != 0 {
                any = true;
                while clears
                    && raw & ACCESSED != 0
                    && let Err(now) = self.memory.compare_exchange(page.frame, index, raw, raw & !ACCESSED)
                {
                    raw = now;
                }
            }
            (slot, _) = Record::of(page, index).neighbours(&self.memory);
        }
        any
    }
}
