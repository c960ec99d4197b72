//! Shadow pages and who refers to whom: the only code that writes shadow entries.
//!
//! Everything is allocated when the pool is made. Each of the 512 entries of each page is on at most one list:
//! one that points to a page is on the list of that page's *parents*; a leaf is on the *reverse map* of the
//! host frame (or aligned 2 MiB) that it maps, a hash list that may also hold leaves of others. So whatever
//! is unmapped, protected or freed is found without a search, and is taken off its list in constant time.
//!
//! What must hold: an entry is present if and only if it is on a list; pages are on the hash list of their
//! number; the table pages in each 2 MiB of host memory are counted in `crowded` (which may count those of
//! other places too). A page that is freed leaves the obligation to flush ([`Pool::owed`]): processors may
//! have cached its address.

mod check;
mod entries;
mod gaps;
mod leaves;
mod release;
mod shared;
mod tables;

pub(super) use leaves::is_stale;
use shared::Shared;
use tables::Tables;

use super::TlbFlush;
use super::role::Key;
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::ADDRESS;
use crate::paging::table::MapError;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// No page, no entry.
const NONE: u32 = u32::MAX;
/// In `before`: not an entry but the head of the list.
const HEAD: u32 = 1 << 31;

/// An index of a page.
pub(super) type PageId = u32;

/// A shadow page.
#[derive(Debug)]
pub(super) struct Page {
    pub key: Key,
    /// Where the guest's table is, for [`Source::Table`](super::role::Source::Table).
    pub gfn: Gfn,
    /// Where the shadow page is.
    pub frame: Hfn,
    /// The guest may write its table: entries may be out of date until the next flush.
    pub unsync: bool,
    /// Writes to the guest's table since a fault last led through this page.
    pub writes: u8,
    /// Flush points in a row at which nothing had changed (if `unsync`).
    pub quiet: u8,
    in_use: bool,
    /// Free, but its entries are still there and on their lists.
    stale: bool,
    /// Used since the hand of the clock came by.
    referenced: bool,
    /// The operation that last used it: not evicted during the same.
    stamp: u64,
    /// Counts links to it that went.
    unlinked: u32,
    /// One bit for each present entry.
    present: [u64; ENTRIES / 64],
    next: u32,
}

impl Page {
    /// Whether it stands for anything.
    pub(super) fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// 64 entries, a bit for each: which are present.
    #[inline(always)]
    pub(super) fn present(&self, word: usize) -> u64 {
        self.present[word]
    }

    /// Whether an entry is present.
    #[inline(always)]
    pub(super) fn is_present(&self, index: usize) -> bool {
        self.present[index / 64] >> (index % 64) & 1 != 0
    }

    /// The first empty entry from `index` on.
    #[inline]
    pub(super) fn next_empty(&self, index: usize) -> Option<usize> {
        let mut word = index / 64;
        let mut bits = !self.present.get(word)? & u64::MAX << (index % 64);
        while bits == 0 {
            word += 1;
            bits = !*self.present.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }

    /// The first present entry from `index` on.
    #[inline]
    pub(super) fn next_present(&self, index: usize) -> Option<usize> {
        let mut word = index / 64;
        let mut bits = self.present.get(word)? & u64::MAX << (index % 64);
        while bits == 0 {
            word += 1;
            bits = *self.present.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

/// All shadow pages of one engine.
#[derive(Debug)]
pub(super) struct Pool<M: TableMemory, F: PteFormat> {
    memory: M,
    pages: Vec<Page>,
    /// What is known about the entries of each page.
    slots: Vec<[Slot; ENTRIES]>,
    /// Counts links above level 2 that went: see [`Pool::links`].
    links: u64,
    /// The first entry of each list: parents by page, then reverse maps by hash.
    heads: Vec<u32>,
    /// The first page by hash of the number.
    buckets: Vec<u32>,
    crowded: Vec<u32>,
    free: Vec<u32>,
    /// Pages from this one on have not been used since all were freed last.
    used: PageId,
    hand: usize,
    operation: u64,
    /// The root in use: never evicted.
    root: Option<PageId>,
    /// What the caller owes before the guest goes on.
    pub owed: TlbFlush,
    /// A writable leaf was dropped without a flush since the last flush of everything: processors may still
    /// write through it.
    lingering: bool,
    /// Pages that are made from memory under large guest pages.
    direct: usize,
    /// What entries are that are not filled: see [`gaps`].
    open: u64,
    /// For each page one bit for each entry that is absent. Empty where nobody asks.
    absent: Vec<[u64; ENTRIES / 64]>,
    format: PhantomData<fn() -> F>,
    shared: Shared,
    pub evictions: u64,
}

/// What is known about a present entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// For a leaf, what the guest's entry was when this was filled; otherwise the page it points to.
    pub note: u64,
    /// The next of its list.
    after: u32,
    /// The one before, or `HEAD | index of the head`.
    before: u32,
}

#[inline(always)]
fn hash(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

const LARGE_FRAMES: u64 = 512;

/// A vector that will not grow beyond `count`; no memory for it is no reason to panic.
fn room<T>(count: usize) -> Result<Vec<T>, MapError> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(|_| MapError::OutOfFrames)?;
    Ok(vector)
}

/// `count` times the same.
fn filled<T: Clone>(value: T, count: usize) -> Result<Vec<T>, MapError> {
    let mut vector = room(count)?;
    vector.resize(count, value);
    Ok(vector)
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    pub(super) fn new(memory: M, count: usize, physical_bits: u8) -> Result<Pool<M, F>, MapError> {
        let lists = (count * 64).next_power_of_two();
        let mut pool = Pool {
            memory,
            pages: room(count)?,
            slots: filled([Slot { note: 0, after: NONE, before: NONE }; ENTRIES], count)?,
            links: 0,
            heads: filled(NONE, count + lists)?,
            buckets: filled(NONE, (2 * count).next_power_of_two())?,
            crowded: filled(0, (4 * count).next_power_of_two())?,
            free: room(count)?,
            used: 0,
            hand: 0,
            operation: 0,
            root: None,
            owed: TlbFlush::None,
            lingering: false,
            direct: 0,
            open: 0,
            absent: Vec::new(),
            format: PhantomData,
            shared: Shared::default(),
            evictions: 0,
        };
        pool.free.extend((0..count as u32).rev());
        for _ in 0..count {
            // On failure, dropping the pool gives back what there is.
            let frame = pool.memory.allocate_low().ok_or(MapError::OutOfFrames)?;
            pool.pages.push(Page {
                key: Key::VOID,
                gfn: Gfn(0),
                frame,
                unsync: false,
                writes: 0,
                quiet: 0,
                in_use: false,
                stale: false,
                referenced: false,
                stamp: 0,
                unlinked: 0,
                present: [0; ENTRIES / 64],
                next: NONE,
            });
        }
        pool.open_all(physical_bits)?;
        Ok(pool)
    }

    /// The memory of the tables.
    #[cfg(test)]
    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    #[inline(always)]
    pub(super) fn page(&self, id: PageId) -> &Page {
        &self.pages[id as usize]
    }

    #[inline(always)]
    pub(super) fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id as usize]
    }

    pub(super) fn in_use(&self) -> usize {
        self.pages.len() - self.free.len() - self.shared.in_limbo()
    }

    /// Begins an operation: pages that are used from now on stay until the next begins.
    pub(super) fn begin(&mut self) {
        self.operation += 1;
    }

    /// Keeps a page for the operation and marks it as recently used.
    pub(super) fn touch(&mut self, id: PageId) {
        let operation = self.operation;
        let page = self.page_mut(id);
        page.referenced = true;
        page.stamp = operation;
    }

    /// A fault leads through a page.
    pub(super) fn pass(&mut self, id: PageId) {
        let operation = self.operation;
        let page = self.page_mut(id);
        (page.referenced, page.stamp, page.writes) = (true, operation, 0);
    }

    /// Two numbers that stay the same as long as the way from a root to a page of level 1 does.
    #[inline(always)]
    pub(super) fn links(&self, id: PageId) -> (u64, u32) {
        (self.links, self.page(id).unlinked)
    }

    /// The page with this key.
    pub(super) fn find(&self, key: Key) -> Option<PageId> {
        self.chain(key.number()).find(|&id| self.page(id).key == key)
    }

    /// The pages that shadow the guest table at `frame`.
    pub(super) fn shadows(&self, frame: Hfn) -> impl Iterator<Item = PageId> + '_ {
        self.tables().shadows(frame)
    }

    #[inline(always)]
    fn tables(&self) -> Tables<'_> {
        Tables { pages: &self.pages, buckets: &self.buckets }
    }

    /// One of them, for callers that change pages on the way.
    pub(super) fn nth_shadow(&self, frame: Hfn, n: usize) -> Option<PageId> {
        self.shadows(frame).nth(n)
    }

    /// Whether the guest must not write to `frame` unseen.
    #[inline]
    pub(super) fn is_watched(&self, frame: Hfn) -> bool {
        self.tables().is_watched(frame)
    }

    /// The root in use.
    #[inline(always)]
    pub(super) fn root(&self) -> Option<PageId> {
        self.root
    }

    /// Whether any large page of the guest is mapped in pieces.
    pub(super) fn has_pieces(&self) -> bool {
        self.direct > 0
    }

    /// Whether there may be guest tables in the 2 MiB of host memory around `frame`.
    pub(super) fn is_crowded(&self, frame: Hfn) -> bool {
        self.crowded[self.crowd(frame)] != 0
    }

    fn crowd(&self, frame: Hfn) -> usize {
        hash(frame.0 / LARGE_FRAMES) & (self.crowded.len() - 1)
    }

    fn bucket(&self, number: u64) -> usize {
        self.tables().bucket(number)
    }

    fn chain(&self, number: u64) -> impl Iterator<Item = PageId> + '_ {
        self.tables().chain(number)
    }

    /// A new, empty page; an old one is evicted if there is no other.
    pub(super) fn create(&mut self, key: Key, gfn: Gfn) -> PageId {
        let id = match self.free.pop() {
            Some(id) => id,
            None => self.make_room(),
        };
        self.used = self.used.max(id + 1);
        self.sweep(id);
        let bucket = self.bucket(key.number());
        let next = core::mem::replace(&mut self.buckets[bucket], id);
        let page = self.page_mut(id);
        *page = Page {
            key,
            gfn,
            frame: page.frame,
            unsync: false,
            in_use: true,
            next,
            writes: 0,
            quiet: 0,
            ..*page
        };
        if key.is_table() {
            let crowd = self.crowd(Hfn(key.number()));
            self.crowded[crowd] += 1;
        }
        self.direct += usize::from(key.is_direct());
        self.begin_gaps(id);
        self.touch(id);
        id
    }
}

/// The address bits of a leaf of level 1 or 2.
const fn leaf_address(level: u8) -> u64 {
    if level == 1 { ADDRESS } else { ADDRESS & !0x1f_ffff }
}

impl<M: TableMemory, F: PteFormat> Drop for Pool<M, F> {
    fn drop(&mut self) {
        for page in &self.pages {
            self.memory.free(page.frame);
        }
    }
}
