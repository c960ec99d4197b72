//! Accessed bits of frames, as the leaves of shadow tables tell them.
//!
//! The reverse maps name the leaves of a frame; no table is looked through. A leaf that goes (an eviction, a flush by which the guest
//! takes its entry away) takes its bit along: such an access is not seen unless another follows. Caller: `vm::regions`, with the
//! lock of the shadow tables.

use super::pool::LARGE_FRAMES;
use super::{Shadow, TlbFlush};
use crate::arch::addr::{Hfn, Hpa, PAGE_SHIFT};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// A sample with this number begins, above those of all samples before: what was used since the last one is found, by the accessed bits of
    /// the links to pages of small leaves. Whether any was cleared; [`Shadow::flush_accessed`] is owed then.
    pub fn begin_sample(&mut self, number: u64) -> bool {
        self.pool.find_touched(number)
    }

    /// Where leaves to the 2 MiB around a frame may be accessed, a bit for each eight frames, that were found so in a sample after that with the
    /// number `before`. With agile paging everywhere: processors walk parts of the guest's tables in place of these.
    pub fn touched(&self, frame: Hfn, before: u64) -> u64 {
        if self.agile.is_some() { u64::MAX } else { self.pool.touched(frame, before) }
    }

    /// Reads and clears the accessed bits of all leaves of 4 KiB that lead to frames from `first` on, all of them in the same 2 MiB: bit
    /// `n` of `wanted` asks for frame `first + n`. Those that were accessed. Processors may go on without setting the bits again until
    /// [`Shadow::flush_accessed`].
    pub fn take_accessed(&mut self, first: Hfn, wanted: u64) -> u64 {
        self.pool.take_accessed(first, wanted)
    }

    /// The same of the large leaves that lead to the 2 MiB around `frame`. A guest can have thousands of them to the same memory: one call
    /// is to do for all of its frames.
    pub fn take_accessed_large(&mut self, frame: Hfn) -> bool {
        self.pool.take_accessed_leaves(around(frame), 2, true)
    }

    /// Whether the memory in a frame is in use: it was accessed through these tables since the last time, or holds a guest's table that
    /// is shadowed. Its loss would cost the faults that fill all its shadow pages again. The bits of large leaves are cleared with the
    /// last of their frames.
    pub fn take_in_use(&mut self, frame: Hfn) -> bool {
        let small = self.take_accessed(frame, 1) != 0;
        let large =
            self.pool.take_accessed_leaves(around(frame), 2, frame.0 % LARGE_FRAMES == LARGE_FRAMES - 1);
        small || large || self.is_table(frame)
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
