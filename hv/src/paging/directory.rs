//! A flat index over the P2m for the hypervisor's own accesses: one word for each 2 MiB of the lowest guest-physical
//! addresses that are plain RAM, contiguous in host memory.
//!
//! Page walks of guests in software read four table entries each; with this index an entry costs one more load instead
//! of a descent through the P2m's tree. Owned and kept up to date by [`super::p2m::P2m`], which remains the truth: an
//! empty word says only that the tree must be asked.

use alloc::vec::Vec;

use super::range::GpaRange;
use crate::arch::addr::{Gpa, Hpa, PageSize};

const CHUNK: PageSize = PageSize::Size2M;
/// Words at most: guests of up to 64 GiB are covered, by 256 KiB.
const MOST: usize = 1 << 15;

/// The index. A word is the host address of the chunk, which is 2 MiB-aligned or not, plus 1; 0 is empty.
#[derive(Debug, Default)]
pub(super) struct Directory {
    words: Vec<u64>,
}

impl Directory {
    /// Where `gpa` is, if the index knows: RAM that may be written.
    #[inline(always)]
    pub(super) fn get(&self, gpa: Gpa) -> Option<Hpa> {
        let word = *self.words.get((gpa.0 >> CHUNK.shift()) as usize)?;
        (word != 0).then(|| Hpa(word - 1 + (gpa.0 & (CHUNK.bytes() - 1))))
    }

    /// A part of the chunk that `gpa` is in is not writable RAM any more.
    pub(super) fn forget(&mut self, gpa: Gpa) {
        if let Some(word) = self.words.get_mut((gpa.0 >> CHUNK.shift()) as usize) {
            *word = 0;
        }
    }

    /// Brings the chunks that `range` touches up to date. `find` says where a chunk's memory is if it all is writable
    /// RAM in one piece.
    pub(super) fn update(&mut self, range: GpaRange, find: impl Fn(GpaRange) -> Option<Hpa>) {
        let first = (range.start.0 >> CHUNK.shift()) as usize;
        let end = range.end.0.div_ceil(CHUNK.bytes()).min(MOST as u64) as usize;
        // Without memory for more words the index stays short.
        if end > self.words.len() && self.words.try_reserve(end - self.words.len()).is_ok() {
            self.words.resize(end, 0);
        }
        for chunk in first..end.min(self.words.len()) {
            let start = Gpa((chunk as u64) << CHUNK.shift());
            let found = GpaRange::new(start, CHUNK.bytes()).and_then(&find);
            self.words[chunk] = found.map_or(0, |hpa| hpa.0 + 1);
        }
    }
}
