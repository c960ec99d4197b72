//! Accessed bits of frames, as the leaves of shadow tables tell them.
//!
//! The reverse maps name the leaves of a frame; no table is looked through. A leaf that goes (an eviction, a flush by which the guest
//! takes its entry away) takes its bit along: such an access is not seen unless another follows. Caller: `vm::regions`, with the
//! lock of the shadow tables.

use super::pool::Pool;
use super::{Shadow, TlbFlush};
use crate::arch::addr::{Hfn, Hpa};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

/// What the large leaves that lead to the frame asked for last have said. A guest can have thousands of them to the same memory: so
/// those of 512 frames in a row are read for the first of these and the last, not for each.
#[derive(Debug, Default)]
pub struct LargeLeaves(Option<(Hpa, bool)>);

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Reads and clears the accessed bits of all leaves through which the memory at `frame` is reached. That of a large leaf is
    /// cleared when the last of its frames is asked for. Processors may go on without setting the bits again until
    /// [`Shadow::flush_accessed`]. `large`: from the call before, or none if others may have changed tables since.
    pub fn take_accessed(&mut self, frame: Hfn, large: &mut LargeLeaves) -> bool {
        self.pool.take_accessed(frame, large)
    }

    /// Whether a large leaf leads to the memory at `frame`, which tells of 512 frames together.
    pub fn has_large_leaf(&self, frame: Hfn) -> bool {
        self.pool.has_leaf(frame.base().align_down(0x20_0000), 2)
    }

    /// Takes the large leaves away that lead to the 2 MiB around these frames. A fault fills leaves as the P2m has them now. The other VCPUs
    /// have flushed, so that accesses are seen in these; the caller's processor owes the flush that is returned.
    pub fn drop_large_leaves(&mut self, frames: impl Iterator<Item = Hfn>) -> TlbFlush {
        let frames = frames.map(|frame| frame.base().align_down(0x20_0000));
        // All of them: each has leaves of its own.
        if frames.fold(false, |any, to| self.pool.unmap_leaves(to, 2) | any) {
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

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    fn take_accessed(&mut self, frame: Hfn, large: &mut LargeLeaves) -> bool {
        let (small, around) = (frame.base(), frame.base().align_down(0x20_0000));
        let is_last = frame.0 % 512 == 511;
        let small = self.take_accessed_leaves(small, 1, true);
        let was_accessed = match large.0 {
            Some((last, was_accessed)) if last == around && !is_last => was_accessed,
            _ => self.take_accessed_leaves(around, 2, is_last),
        };
        large.0 = Some((around, was_accessed));
        was_accessed || small
    }
}

#[cfg(test)]
mod tests;
