//! Shadow pages and the links between them: the only code that writes shadow entries.
//!
//! Each of the 512 entries of each page is on at most one list: one that points to a page is on the list of that page's
//! *parents*; a leaf is on the *reverse map* of the host frame (or aligned 2 MiB) that it maps, a hash list that may also
//! hold leaves of others. So whatever is unmapped, protected or freed is found without a search, and is taken off its list in
//! constant time.
//!
//! Memory is of three kinds. Records of pages and heads of lists are made with the pool, in [pieces](Pieces) of a frame.
//! Tables are taken as pages are needed ([`grow`]), and so is what is known about entries, for 64 of them at a time
//! ([`chunks`]): up to the pool's [`Limit`] of frames, or as many as the host has; then pages are evicted. What has not been
//! used for long is given back.
//!
//! What must hold: an entry is present if and only if it is on a list; pages are on the hash list of their
//! number; the table pages in each 2 MiB of host memory are counted in `pt_count_2m` (which may count those of
//! other places too). A page that is freed leaves the obligation to flush ([`Pool::owed`]): processors may
//! have cached its address.

mod accessed;
mod check;
mod chunks;
mod claims;
mod entries;
mod grow;
mod kept;
mod leaves;
mod limit;
mod page;
mod release;
mod shared;
mod stock;
mod switching;
mod tables;
mod unfilled;
mod unmap;

pub use accessed::Collected;
use accessed::UsedFrames;
use chunks::Chunks;
use claims::Head;
pub(super) use leaves::is_stale;
pub use limit::Limit;
pub(super) use page::Page;
use page::{NO_TABLE, State};
use shared::Shared;
use stock::{Frames, Stack};
use tables::{Filter, Tables};

use super::TlbFlush;
use super::demand::Writing;
use super::role::Key;
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::pieces::Pieces;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::ADDRESS;
use core::marker::PhantomData;

/// No page, no entry.
const NONE: u32 = u32::MAX;
/// In `before`: not an entry but the head of the list; of leaves, with the list's number.
const HEAD: u32 = 1 << 31;

/// An index of a page.
pub(super) type PageId = u32;

/// All shadow pages of one engine.
#[derive(Debug)]
pub(super) struct Pool<M: TableMemory, F: PteFormat> {
    memory: M,
    pages: Pieces<Page>,
    /// Counts links above level 2 that went: see [`Pool::links`].
    links: u64,
    /// The first leaf of each list of the reverse maps, by hash.
    lists: Pieces<Head>,
    /// Frames whose addresses differ only below this bit have lists of their own: see [`Pool::reverse_map`].
    window_bits: u32,
    /// The first page by hash of the number.
    buckets: Pieces<u32>,
    /// Which frames are tables, roughly.
    filter: Filter,
    pt_count_2m: Pieces<u32>,
    /// What samples of accesses ask.
    used_frames: UsedFrames,
    /// Pages that stand for nothing: with a table, and without memory.
    free: Stack,
    bare: Stack,
    /// Of the free ones: how many there were at the least since pages were given back last.
    idle: usize,
    /// Pages that were freed.
    released: u64,
    /// What is known about entries.
    chunks: Chunks,
    /// Frames of tables and chunks.
    frames: Frames,
    /// Pages from this one on have not been used since all were freed last.
    used: PageId,
    hand: usize,
    operation: u64,
    /// The root in use: never evicted.
    root: Option<PageId>,
    /// What the caller owes before the guest goes on.
    pub owed: TlbFlush,
    /// The bits that leaves have lost without a flush since the last flush of everything, all bits of those that have gone:
    /// processors may still write through them, or read.
    stale: u64,
    /// Pages that are made from memory under large guest pages.
    direct: usize,
    /// What entries are that are not filled: see [`unfilled`].
    marker: u64,
    /// Pages above level 1 may be unsync, or some may be [nested](super::agile). No entry is marked as absent meanwhile.
    pub upper_unsync: bool,
    format: PhantomData<fn() -> F>,
    shared: Shared,
    pub evictions: u64,
}

/// The page and the index of an entry with this number ([`Pool::number`]).
#[inline(always)]
fn place(slot: u32) -> (PageId, usize) {
    (slot / ENTRIES as u32, slot as usize % ENTRIES)
}

/// The group of 64 that an entry belongs to.
#[inline(always)]
fn word(index: usize) -> usize {
    index / 64 % (ENTRIES / 64)
}

#[inline(always)]
fn hash(number: u64) -> usize {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// Frames of 2 MiB.
pub(super) const LARGE_FRAMES: u64 = 512;

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
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
        self.frames.tables - self.free.len - self.shared.pending_free_pages()
    }

    /// Begins an operation: pages that are used from now on stay until the next begins.
    pub(super) fn begin(&mut self) {
        self.operation += 1;
    }

    /// Keeps a page for the operation and marks it as recently used.
    pub(super) fn touch(&mut self, id: PageId) {
        let operation = self.operation;
        let page = self.page_mut(id);
        page.mark_referenced();
        page.stamp = operation as u32;
    }

    /// An operation of its own: a page that still has this key becomes the root in use. Where it is.
    #[inline(always)]
    pub(super) fn use_root(&mut self, id: PageId, key: Key) -> Option<Hfn> {
        let operation = self.operation + 1;
        let page = self.page_mut(id);
        if !page.is_in_use() || page.key != key {
            return None;
        }
        page.mark_referenced();
        page.stamp = operation as u32;
        let frame = page.frame;
        self.operation = operation;
        self.set_root(Some(id));
        Some(frame)
    }

    /// A fault leads through a page.
    #[inline(always)]
    pub(super) fn pass(&mut self, id: PageId) {
        let operation = self.operation;
        let page = self.page_mut(id);
        page.mark_referenced();
        (page.stamp, page.writes) = (operation as u32, 0);
    }

    /// Two numbers that change whenever a link on the path from a root to a page of level 1 goes.
    #[inline(always)]
    pub(super) fn links(&self, id: PageId) -> (u64, u32) {
        (self.links, self.page(id).unlinked)
    }

    /// The number after that of the last page in use.
    pub(super) fn end(&self) -> PageId {
        self.used
    }

    /// The page with this key.
    pub(super) fn find(&self, key: Key) -> Option<PageId> {
        self.tables().find(key)
    }

    /// The pages that shadow the guest table at `frame`.
    pub(super) fn shadows(&self, frame: Hfn) -> impl Iterator<Item = PageId> + '_ {
        self.tables().shadows(frame)
    }

    #[inline(always)]
    fn tables(&self) -> Tables<'_> {
        Tables { pages: &self.pages, buckets: &self.buckets, filter: &self.filter }
    }

    /// The `n`-th of them, for callers that change pages while they iterate.
    pub(super) fn nth_shadow(&self, frame: Hfn, n: usize) -> Option<PageId> {
        self.shadows(frame).nth(n)
    }

    /// Whether the guest must not write to `frame` unseen.
    #[inline]
    pub(super) fn is_write_protected(&self, frame: Hfn) -> bool {
        self.tables().is_write_protected(frame)
    }

    /// The root in use.
    #[inline(always)]
    pub(super) fn root(&self) -> Option<PageId> {
        self.root
    }

    /// Whether any large page of the guest is split.
    pub(super) fn has_split(&self) -> bool {
        self.direct > 0
    }

    /// Whether there may be guest tables in the 2 MiB of host memory around `frame`.
    pub(super) fn has_tables_near(&self, frame: Hfn) -> bool {
        self.pt_count_2m[self.region_2m(frame)] != 0
    }

    fn region_2m(&self, frame: Hfn) -> usize {
        hash(frame.0 / LARGE_FRAMES) & (self.pt_count_2m.len() - 1)
    }

    fn bucket(&self, number: u64) -> usize {
        self.tables().bucket(number)
    }

    fn chain(&self, number: u64) -> impl Iterator<Item = PageId> + '_ {
        self.tables().chain(number)
    }

    /// A new, empty page; an old one is evicted if there is no other.
    pub(super) fn create(&mut self, key: Key, gfn: Gfn) -> PageId {
        let id = match self.free.pop(&self.pages) {
            Some(id) => id,
            None => self.make_room(),
        };
        self.idle = self.idle.min(self.free.len);
        self.used = self.used.max(id + 1);
        self.sweep(id);
        let bucket = self.bucket(key.number());
        let next = core::mem::replace(&mut self.buckets[bucket], id);
        let page = self.page_mut(id);
        (page.key, page.gfn, page.next) = (key, gfn, next);
        (page.state, page.unsync, page.writes, page.quiet) = (State::InUse, false, 0, 0);
        (page.nested, page.nested_below, page.deferred) = (false, false, false);
        *page.touched.get_mut() = false;
        (page.synced, page.writing) = (0, Writing::NEW);
        if key.is_table() {
            let region = self.region_2m(Hfn(key.number()));
            self.pt_count_2m[region] += 1;
            self.filter.add(key.number());
        }
        self.direct += usize::from(key.is_direct());
        self.begin_unfilled(id);
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
        self.free_all();
    }
}
