//! Page replacement: which resident page makes room at a page fault.
//!
//! Owns the policies and their tables, and no memory of guests. A page fault, the page's object and access bits go in; the slot
//! for the page comes out. The simulator (`tools/pagesim`) compiles this same source; the hypervisor's pager
//! ([`pager`](super::pager)) calls it.
//!
//! What must hold: each resident page has a slot of its own below the frames that the policy was made for; a fault evicts one page, and
//! only if as many are resident as [`Policy::limit`] says; no more ghosts (pages that are remembered after their eviction) than frames;
//! no allocation after `new`, which fails where there is no memory; every loop ends, also while guests keep setting access bits. docs/design/0027-page-replacement.md names the paper of each policy, and what was decided
//! where the paper is silent.

pub mod apr;
pub mod clock;
pub mod clock_pro;
pub mod frames;
pub mod ghosts;
pub mod index;
pub mod links;
pub mod lru;
pub mod s3_fifo;
pub mod seq;
pub mod sequences;
pub mod sieve;
pub mod slots;
#[cfg(test)]
mod tests;

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// The number of a page of guest memory, or of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(pub u64);

/// What a page belongs to: an allocation, a region, a range. 0 is what is known of no page in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Object(pub u32);

/// The place of a resident page, below the number of frames. The caller knows which frame it stands for.
pub type Slot = u32;

/// No slot, no entry of a table.
pub const NONE: u32 = u32::MAX;

/// Frames of a policy, at most: tables have up to two entries for each, and indexes of 32 bits.
pub const MOST_FRAMES: u32 = 1 << 30;

/// Entries that one fault goes over for each frame, at most, if a bit that was taken stays clear meanwhile. SEQ looks at some 44 000 more.
pub const ROUNDS: u32 = 8;

/// The access bits of resident pages.
pub trait AccessBits {
    /// Whether the page in this slot was accessed since the last time, or since it came; clears the bit.
    fn take(&mut self, slot: Slot) -> bool;

    /// A search goes over this many entries of the policy's tables, [`take`](AccessBits::take) not counted; for who bounds its time.
    fn search(&mut self, _entries: u32) {}
}

/// Where a page goes.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its slot; the caller clears the slot's access bit.
    pub slot: Slot,
    /// Another page was in this slot and is evicted.
    pub evicts: bool,
}

impl Placement {
    /// Into a free slot.
    pub const fn free(slot: Slot) -> Placement {
        Placement { slot, evicts: false }
    }

    /// Into the place of another page.
    pub const fn evicting(slot: Slot) -> Placement {
        Placement { slot, evicts: true }
    }
}

/// A policy.
pub trait Policy {
    /// It must hear of accesses by [`touch`](Policy::touch): access bits that are looked at when a page is wanted are not enough.
    const TOUCHES: bool = false;

    /// A page that is not resident was accessed: makes it resident. The access itself sets no bit.
    fn fault(&mut self, page: Page, object: Object, bits: &mut impl AccessBits) -> Placement;

    /// Evicts a page for which none comes; its slot is free, and the caller clears the slot's access bit. There must be a resident page.
    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot;

    /// The page in this slot is gone by itself, and not remembered; the slot is free, and the caller clears
    /// its access bit. It must be resident.
    fn remove(&mut self, slot: Slot);

    /// From now on a fault evicts a page when `frames` are resident, from 1 to what the policy was made for. Nothing is evicted by this:
    /// while more are resident, each fault takes the place of one.
    fn limit(&mut self, frames: u32);

    /// The page in this slot was accessed this many times in a row, or its access bit was found set.
    fn touch(&mut self, _slot: Slot, _times: u32) {}

    /// Pages that are remembered after their eviction.
    fn ghosts(&self) -> usize {
        0
    }

    /// Bytes of its tables.
    fn bytes(&self) -> usize;
}

/// A table of this length.
fn table<T: Clone>(len: usize, element: T) -> Result<Vec<T>, TryReserveError> {
    let mut table = Vec::new();
    table.try_reserve_exact(len)?;
    table.resize(len, element);
    Ok(table)
}

/// Bytes of a vector's elements.
fn bytes_of<T>(table: &[T]) -> usize {
    size_of_val(table)
}

/// Frames as policies take them: one at least.
fn frames_in_range(frames: u32) -> u32 {
    frames.clamp(1, MOST_FRAMES)
}
