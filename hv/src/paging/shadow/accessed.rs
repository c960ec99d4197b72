//! Accessed bits of frames, as the leaves of shadow tables tell them.
//!
//! Samples go over the pages that were used, and note their leaves by frame; the pager asks the reverse maps, which name the leaves of a
//! frame. A leaf that goes (an eviction, a flush by which the guest takes its entry away) takes its bit along: such an access is not seen
//! unless another follows. Callers: `vm::regions` and the pager, with the lock of the shadow tables.

use super::pool::{Collected, LARGE_FRAMES};
use super::{Shadow, TlbFlush};
use crate::arch::addr::{Hfn, Hpa, PAGE_SHIFT};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Takes a part of a sample with this number, above those of all samples that began before, its first or a later one: what was used
    /// since the last one is noted by frame, and the accessed bits of the leaves are cleared. Call it again until it is complete; what is
    /// noted is to be asked for then. If bits were cleared [`Shadow::flush_accessed`] is owed: processors may go on without setting
    /// them again. With agile paging all leaves are looked at: processors walk parts of the guest's tables in place of the links to them.
    /// It looks at `most` entries, and those of one page more.
    pub fn collect_sample(&mut self, number: u64, is_first: bool, most: usize) -> Collected {
        self.pool.collect_accessed(number, is_first, self.agile.is_some(), most)
    }

    /// Samples have been taken without these tables, also the rest of one that had begun with them: what was noted for that is told again to
    /// the next one.
    pub fn tell_again(&mut self) {
        self.pool.tell_again();
    }

    /// A whole sample; whether bits were cleared.
    #[cfg(test)]
    pub fn take_sample(&mut self, number: u64) -> bool {
        self.collect_sample(number, true, usize::MAX).owes
    }

    /// In which groups of 64 frames of the 2 MiB around one something was used that was not asked for yet, as samples after that with the
    /// number `before` have found: a bit for each.
    pub fn used_groups(&self, frame: Hfn, before: u64) -> u8 {
        self.pool.used_groups(frame, before)
    }

    /// Which frames from `first` on, all of them in the same 2 MiB, samples have found used, and that only once: bit `n` of `wanted` asks for
    /// frame `first + n`. A large leaf has told of all its frames.
    pub fn take_used(&mut self, first: Hfn, wanted: u64) -> u64 {
        self.pool.take_used(first, wanted)
    }

    /// Whether the memory in a frame is in use: it was accessed through these tables since the last time, or holds a guest's table that
    /// is shadowed. Its loss would cost the faults that fill all its shadow pages again. The bits of large leaves are cleared with the
    /// last of their frames.
    pub fn take_in_use(&mut self, frame: Hfn) -> bool {
        let sampled = self.take_used(frame, 1) != 0;
        let small = self.pool.take_accessed_leaves(frame.base(), 1, true);
        let large =
            self.pool.take_accessed_leaves(around(frame), 2, frame.0 % LARGE_FRAMES == LARGE_FRAMES - 1);
        sampled || small || large || self.is_table(frame)
    }

    /// Whether a large leaf leads to the memory at `frame`, which tells of 512 frames together.
    pub fn has_large_leaf(&self, frame: Hfn) -> bool {
        self.pool.has_leaf(around(frame), 2)
    }

    /// Takes the large leaves away that lead to the 2 MiB around these frames. A fault fills leaves as the P2m has them now. The other VCPUs
    /// have flushed, so that accesses are seen in these; the caller's processor owes the flush that is returned.
    pub fn drop_large_leaves(&mut self, frames: impl Iterator<Item = Hfn>) -> TlbFlush {
        // All of them: each has leaves of its own.
        if frames.fold(false, |any, frame| self.pool.unmap_leaves(around(frame), 2) | any) {
            return self.flush_accessed();
        }
        TlbFlush::None
    }

    /// Has the other VCPUs flush, so that they set accessed bits again; the caller's processor owes the flush that is returned.
    pub fn flush_accessed(&mut self) -> TlbFlush {
        self.begin();
        self.pool.owe_all();
        self.pool.shoot_down(false);
        self.pool.take_owed_and(TlbFlush::None)
    }
}

/// The 2 MiB that a frame is in.
fn around(frame: Hfn) -> Hpa {
    frame.base().align_down(LARGE_FRAMES << PAGE_SHIFT)
}

#[cfg(test)]
mod tests;
