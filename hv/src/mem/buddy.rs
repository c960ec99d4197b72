//! Buddy allocation of frames (Knowlton 1965): blocks of 2^order frames, aligned to their size.
//!
//! Pure: it hands out numbers and never touches the frames. Its own memory is about two bits per frame, in words that
//! the caller carves from the memory that it manages. Allocation and release cost O(orders × log64 frames). Called by
//! [`super::frame`].

use core::ops::Range;

use super::index_set::IndexSet;
use crate::arch::addr::Hfn;

/// The greatest order: 2^18 frames are 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// How many orders there are.
pub const ORDERS: usize = MAX_ORDER as usize + 1;

/// A release of something that was not allocated like that: a broken invariant of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeError {
    /// The block is not aligned to its order, or not within the managed frames.
    NotABlock,
    /// The block, or a part of it, is free already.
    AlreadyFree,
}

/// The frames of one node.
#[derive(Debug)]
pub struct Buddy<'m> {
    /// Number of the first frame, a multiple of the greatest block.
    base: u64,
    frames: u64,
    free_frames: u64,
    /// Free blocks of each order; member i is the block at `base + (i << order)`.
    free: [IndexSet<'m>; ORDERS],
}

/// `range` relative to a multiple of the greatest block, and that multiple.
fn anchored(range: &Range<Hfn>) -> (u64, u64) {
    let base = range.start.0 >> MAX_ORDER << MAX_ORDER;
    (base, range.end.0.saturating_sub(base))
}

impl<'m> Buddy<'m> {
    /// How many 64-bit words of its own an allocator for the frames of `range` needs.
    pub fn words(range: &Range<Hfn>) -> usize {
        let (_, frames) = anchored(range);
        (0..ORDERS).map(|order| IndexSet::words((frames >> order) as usize)).sum()
    }

    /// An allocator that may manage the frames of `range` and has none of them yet.
    ///
    /// # Panics
    /// If `memory` is shorter than [`Buddy::words`].
    pub fn new(range: Range<Hfn>, memory: &'m mut [u64]) -> Buddy<'m> {
        let (base, frames) = anchored(&range);
        let mut memory = memory;
        let free = core::array::from_fn(|order| {
            let (set, rest) = IndexSet::new((frames >> order) as usize, core::mem::take(&mut memory));
            memory = rest;
            set
        });
        Buddy { base, frames, free_frames: 0, free }
    }

    /// Hands over the frames of `range`, cut into the largest blocks that fit.
    pub fn insert(&mut self, range: Range<Hfn>) -> Result<(), FreeError> {
        let mut at = range.start.0;
        while at < range.end.0 {
            let fit = (range.end.0 - at).ilog2();
            let order = at.trailing_zeros().min(fit).min(MAX_ORDER.into()) as u8;
            self.free(Hfn(at), order)?;
            at += 1 << order;
        }
        Ok(())
    }

    /// The lowest free block among the smallest that hold 2^order frames.
    pub fn alloc(&mut self, order: u8) -> Option<Hfn> {
        self.alloc_below(order, Hfn(u64::MAX))
    }

    /// As [`Buddy::alloc`], from blocks that end at or below `limit`.
    pub fn alloc_below(&mut self, order: u8, limit: Hfn) -> Option<Hfn> {
        let size = 1u64.checked_shl(order.into())?;
        let (from, index) = (order..=MAX_ORDER).find_map(|from| {
            // The lowest block, so that runs repeat and large blocks stay whole at the top.
            let index = self.free[from as usize].first_from(0)?;
            let end = self.base + ((index as u64) << from) + size;
            (end <= limit.0).then_some((from, index))
        })?;
        self.free[from as usize].remove(index);
        let mut index = index;
        for below in (order..from).rev() {
            // Keep the lower half, release the upper one.
            index *= 2;
            self.free[below as usize].insert(index + 1);
        }
        self.free_frames -= size;
        Some(Hfn(self.base + ((index as u64) << order)))
    }

    /// Takes a block back and joins it with its free buddies.
    pub fn free(&mut self, frame: Hfn, order: u8) -> Result<(), FreeError> {
        let index = self.check(frame, order)?;
        let mut index = index;
        let mut order_now = order;
        // The buddy differs in the lowest bit of the index; a pair that is free is one block of the next order.
        while order_now < MAX_ORDER && self.free[order_now as usize].contains(index ^ 1) {
            self.free[order_now as usize].remove(index ^ 1);
            index /= 2;
            order_now += 1;
        }
        self.free[order_now as usize].insert(index);
        self.free_frames += 1 << order;
        Ok(())
    }

    /// The index of an allocated block in its order.
    fn check(&self, frame: Hfn, order: u8) -> Result<usize, FreeError> {
        let at = frame.0.checked_sub(self.base).ok_or(FreeError::NotABlock)?;
        let size = 1u64.checked_shl(order.into()).ok_or(FreeError::NotABlock)?;
        if order > MAX_ORDER || at % size != 0 || at >= self.frames || size > self.frames - at {
            return Err(FreeError::NotABlock);
        }
        // A frame may be free as part of a block of any order.
        let overlaps = self.free.iter().enumerate().any(|(o, set)| {
            let first = (at >> o) as usize;
            let last = ((at + size - 1) >> o) as usize;
            set.first_from(first).is_some_and(|member| member <= last)
        });
        if overlaps { Err(FreeError::AlreadyFree) } else { Ok((at >> order) as usize) }
    }

    /// Free frames.
    pub fn free_frames(&self) -> u64 {
        self.free_frames
    }

    /// Whether 2^order frames are free in one piece.
    pub fn has_block(&self, order: u8) -> bool {
        self.free.iter().skip(order.into()).any(|set| set.count() > 0)
    }

    /// Free blocks of each order.
    pub fn free_blocks(&self) -> [u64; ORDERS] {
        core::array::from_fn(|order| self.free[order].count() as u64)
    }
}

#[cfg(test)]
#[path = "buddy_tests.rs"]
mod tests;
