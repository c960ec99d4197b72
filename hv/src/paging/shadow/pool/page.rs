//! The record of a shadow page.

use super::super::demand::Writing;
use super::super::role::Key;
use super::claims::Bits;
use super::{NONE, PageId, word};
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::table_memory::ENTRIES;
use core::sync::atomic::{AtomicBool, Ordering};

/// What a page stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum State {
    /// Nothing.
    Free,
    /// Nothing, but its entries are still there and on their lists.
    Stale,
    /// What its key says.
    InUse,
}

/// A shadow page. Sixteen make a piece.
#[derive(Debug)]
#[repr(align(256))]
pub(in super::super) struct Page {
    pub key: Key,
    /// Where the guest's table is, for [`Source::Table`](super::role::Source::Table).
    pub gfn: Gfn,
    /// Where the shadow page is; [`NO_TABLE`] if it has no memory at the moment.
    pub frame: Hfn,
    /// The guest may write its table: entries may be out of date until the next flush.
    pub unsync: bool,
    /// And goes on to until it is moved back: see [`agile`](super::agile).
    pub nested: bool,
    /// There may be nested pages below it.
    pub nested_below: bool,
    /// Entries may be out of date, nothing links to it, and it is compared before anything does: see [`resume`](super::resume).
    pub deferred: bool,
    /// A link to it has gone that was accessed, or a sample has found one: leaves may be that no link tells of.
    pub(super) touched: AtomicBool,
    /// The comparison of nested pages that was here last.
    pub synced: u64,
    /// Writes to the guest's table since a fault last led through this page.
    pub writes: u8,
    /// Flush points in a row at which nothing had changed (if `unsync`).
    pub quiet: u8,
    /// What the [writes to its table](super::demand) were like.
    pub writing: Writing,
    pub(super) state: State,
    /// Used since the hand of the clock came by.
    pub(super) referenced: AtomicBool,
    /// The operation that last used it, the lower half of its number: not evicted during the same.
    pub(super) stamp: u32,
    /// Counts links to it that went.
    pub(super) unlinked: u32,
    /// One bit for each present entry.
    pub(super) present: Bits,
    /// Where what is known about its entries is, for 64 of them each; 0 where nothing is known.
    pub(super) chunks: [u64; ENTRIES / 64],
    /// One bit for each entry that is absent: see [`unfilled`].
    pub(super) absent: [u64; ENTRIES / 64],
    /// The first entry that points to it.
    pub(super) parents: u32,
    /// The next page on the list of its number, or of free pages.
    pub(super) next: u32,
}

/// The frame of a page without memory.
pub(super) const NO_TABLE: Hfn = Hfn(0);

impl Page {
    /// One that stands for nothing and has no memory.
    pub(super) const fn bare(next: PageId) -> Page {
        Page {
            key: Key::VOID,
            gfn: Gfn(0),
            frame: NO_TABLE,
            unsync: false,
            nested: false,
            nested_below: false,
            deferred: false,
            touched: AtomicBool::new(false),
            synced: 0,
            writes: 0,
            quiet: 0,
            writing: Writing::NEW,
            state: State::Free,
            referenced: AtomicBool::new(false),
            stamp: 0,
            unlinked: 0,
            present: Bits::new(),
            chunks: [0; ENTRIES / 64],
            absent: [0; ENTRIES / 64],
            parents: NONE,
            next,
        }
    }

    /// It is used, as the hand of the clock is to know.
    #[inline(always)]
    pub(super) fn mark_referenced(&self) {
        self.referenced.store(true, Ordering::Relaxed);
    }

    /// Whether it was used since this was asked last.
    pub(super) fn take_referenced(&mut self) -> bool {
        core::mem::take(self.referenced.get_mut())
    }

    /// Whether it stands for anything.
    pub(in super::super) fn is_in_use(&self) -> bool {
        self.state == State::InUse
    }

    /// All entries, a bit for each: which are present.
    #[inline(always)]
    pub(in super::super) fn all_present(&self) -> [u64; ENTRIES / 64] {
        self.present.all()
    }

    /// How many entries are present.
    pub(in super::super) fn count_present(&self) -> u32 {
        self.present.all().iter().map(|bits| bits.count_ones()).sum()
    }

    /// 64 entries, among them this one.
    #[inline(always)]
    pub(in super::super) fn present_around(&self, index: usize) -> u64 {
        self.present.word(word(index))
    }

    /// Whether an entry is present.
    #[inline(always)]
    pub(in super::super) fn is_present(&self, index: usize) -> bool {
        self.present.has(index % ENTRIES)
    }

    /// Whether an entry points to it.
    #[inline(always)]
    pub(in super::super) fn is_linked(&self) -> bool {
        self.parents != NONE
    }

    /// The first empty entry from `index` on.
    #[inline]
    pub(in super::super) fn next_empty(&self, index: usize) -> Option<usize> {
        let (mut word, present) = (index / 64, self.present.all());
        let mut bits = !present.get(word)? & u64::MAX << (index % 64);
        while bits == 0 {
            word += 1;
            bits = !*present.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The first present entry from `index` on.
    #[inline]
    pub(in super::super) fn next_present(&self, index: usize) -> Option<usize> {
        let (mut word, present) = (index / 64, self.present.all());
        let mut bits = present.get(word)? & u64::MAX << (index % 64);
        while bits == 0 {
            word += 1;
            bits = *present.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}
