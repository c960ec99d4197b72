//! Leaves that go because the memory that they lead to does, found by the reverse maps.

use super::chunks::Record;
use super::*;
use crate::arch::addr::Hpa;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

/// Frames of which the heads of their lists of leaves lie together ([`Pool::reverse_map`]).
const NEIGHBOURS: u64 = 16;

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Takes all leaves away through which `frames` frames from `first` on, all in the same 2 MiB, are reached; whether there were any.
    pub(in super::super) fn unmap(&mut self, first: Hfn, frames: u64) -> bool {
        let mut any = self.unmap_leaves(first.base().align_down(LARGE_FRAMES << 12), 2);
        let (mut from, end) = (first.0, first.0 + frames);
        while from < end {
            let next = end.min((from | (NEIGHBOURS - 1)) + 1);
            if next - from < NEIGHBOURS || self.has_leaves_of_neighbours(from) {
                for frame in from..next {
                    any |= self.unmap_leaves(Hfn(frame).base(), 1);
                }
            }
            from = next;
        }
        any
    }

    /// Whether there may be leaves of level 1 that lead to a group of sixteen frames.
    fn has_leaves_of_neighbours(&self, first: u64) -> bool {
        let group = self.reverse_map(Hfn(first).base().0, 1) & !(NEIGHBOURS as usize - 1);
        let heads = self.lists.slices(group..group + NEIGHBOURS as usize).flatten();
        // All ones: no test for each.
        heads.fold(NONE, |all, head| all & head) != NONE
    }

    /// The same for leaves of one level.
    pub(in super::super) fn unmap_leaves(&mut self, to: Hpa, level: u8) -> bool {
        let mut slot = self.lists[self.reverse_map(to.0, level)];
        let mut any = false;
        while slot != NONE {
            let (id, index) = Self::place(slot);
            let page = self.page(id);
            let (next, _) = Record::of(page, index).neighbours(&self.memory);
            // The list may hold leaves of other frames.
            if self.memory.load(page.frame, index) & leaf_address(level) == to.0 && page.key.level() == level
            {
                self.zap(id, index);
                any = true;
            }
            slot = next;
        }
        any
    }
}
