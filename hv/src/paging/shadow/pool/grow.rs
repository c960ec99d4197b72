//! Memory of the pool: taken as it is needed, and given back.
//!
//! Tables and chunks are frames, which the pool takes one by one up to its limit, or until the host has no more. Then pages are
//! evicted. So that each operation finds what it needs in either case, a few tables are there from the beginning, and before
//! each operation there are chunks enough for it ([`Pool::is_short`]).
//!
//! Given back is what has not been used for long: half of the tables that were free all the time while
//! [`TRIM_EVERY`](super::release) pages were released; everything when the guest leaves shadow tables for good.

use super::*;
use crate::paging::table::MapError;

/// Chunks that an operation uses at most, generously: one for each link on the path of a fault, for its leaf, and for what is
/// filled ahead.
const NEEDED: usize = 16;
const _: () = assert!(size_of::<Page>() == 256, "sixteen make a piece");

/// Heads of reverse maps for each page.
const LISTS: usize = 64;

/// The lengths of the arrays for `pages` pages: lists, buckets, counters of tables.
fn lengths(pages: usize) -> [usize; 3] {
    // A piece of 2 MiB has a list for each of its frames.
    [(LISTS * pages).max(LARGE_FRAMES as usize), 2 * pages, 4 * pages].map(usize::next_power_of_two)
}

/// Frames of records and heads of lists for `pages` pages.
pub(super) fn record_frames(pages: usize) -> usize {
    let heads: usize = lengths(pages).into_iter().map(Pieces::<u32>::frames).sum();
    Pieces::<Page>::frames(pages) + heads
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// A pool that has taken what it never gives back.
    pub(in super::super) fn new(memory: M, limit: Limit, physical_bits: u8) -> Result<Pool<M, F>, MapError> {
        let no_memory = |_| MapError::OutOfFrames;
        let none = |count| Pieces::new(count, || NONE).map_err(no_memory);
        let [lists, buckets, counters] = lengths(limit.pages);
        let mut pool = Pool {
            memory,
            pages: Pieces::new(limit.pages, || Page::bare(NONE)).map_err(no_memory)?,
            links: 0,
            lists: Pieces::new(lists, || Head::new(NONE)).map_err(no_memory)?,
            window_bits: 12 + lists.trailing_zeros(),
            buckets: none(buckets)?,
            filter: Filter::EMPTY,
            pt_count_2m: Pieces::new(counters, || 0).map_err(no_memory)?,
            used_frames: UsedFrames::default(),
            free: Stack::EMPTY,
            bare: Stack::EMPTY,
            idle: 0,
            released: 0,
            chunks: Chunks::default(),
            frames: Frames { limit: limit.frames, reserve: limit.reserve(), ..Frames::default() },
            used: 0,
            hand: 0,
            operation: 0,
            root: None,
            owed: TlbFlush::None,
            stale: 0,
            direct: 0,
            marker: Self::unfilled_marker(physical_bits),
            upper_unsync: false,
            format: PhantomData,
            shared: Shared::new(),
            evictions: 0,
        };
        // The first ones are used first: those of the reserve change stacks.
        let reserve = pool.frames.reserve.min(limit.pages);
        let order = (reserve..limit.pages).rev().chain(0..reserve);
        order.for_each(|id| pool.bare.push(&mut pool.pages, id as PageId));
        while pool.frames.tables < reserve {
            let id = pool.add_table().ok_or(MapError::OutOfFrames)?;
            pool.free.push(&mut pool.pages, id);
        }
        while pool.frames.chunks < 2 * reserve {
            pool.add_chunks().then_some(()).ok_or(MapError::OutOfFrames)?;
        }
        pool.idle = reserve;
        Ok(pool)
    }

    /// Bytes that the pool takes: now, and at the most so far.
    pub(in super::super) fn bytes(&self) -> (u64, u64) {
        let records = record_frames(self.pages.len());
        (((records + self.frames.total()) as u64) << 12, ((records + self.frames.most) as u64) << 12)
    }

    /// Memory for one more page, which stands for nothing yet.
    pub(super) fn add_table(&mut self) -> Option<PageId> {
        if self.bare.len == 0 || !self.may_grow() {
            return None;
        }
        let frame = self.memory.allocate_low()?;
        self.mark_all_unfilled(frame);
        let id = self.bare.pop(&self.pages)?;
        self.pages[id as usize].frame = frame;
        self.frames.tables += 1;
        self.frames.most = self.frames.most.max(self.frames.total());
        Some(id)
    }

    /// One more frame of chunks; false: there is none.
    fn add_chunks(&mut self) -> bool {
        if !self.may_grow() {
            return false;
        }
        let Some(frame) = self.memory.allocate_unwalked() else { return false };
        self.chunks.add(&self.memory, frame);
        self.frames.chunks += 1;
        self.frames.most = self.frames.most.max(self.frames.total());
        true
    }

    /// Whether the limit allows one more frame, perhaps after free chunks are given back.
    fn may_grow(&mut self) -> bool {
        if self.frames.total() >= self.frames.limit && self.chunks.spare() > self.frames.chunks {
            self.trim_chunks();
        }
        self.frames.total() < self.frames.limit
    }

    /// Whether there may be too few chunks for an operation.
    #[inline(always)]
    pub(in super::super) fn is_short(&self) -> bool {
        self.chunks.spare() < NEEDED
    }

    /// Makes sure that there are chunks enough for an operation, which has not begun: pages may be evicted.
    #[cold]
    pub(in super::super) fn relieve(&mut self) {
        if !self.add_chunks() {
            self.drop_unused_chunks();
        }
        while self.is_short() && !self.add_chunks() {
            match self.free.pop(&self.pages) {
                // A free page first: it costs no refilling fault.
                Some(id) if self.frames.tables > self.frames.reserve => self.take_table(id),
                free => {
                    free.into_iter().for_each(|id| self.free.push(&mut self.pages, id));
                    let victim = self.evict();
                    self.drop_chunks(victim);
                }
            }
        }
        self.idle = self.idle.min(self.free.len);
    }

    /// Gives a page the place for what is known about an entry.
    #[cold]
    #[inline(never)]
    pub(super) fn add_chunk<'a>(
        memory: &M,
        chunks: &mut Chunks,
        pages: &'a mut Pieces<Page>,
        id: PageId,
        index: usize,
    ) -> &'a mut Page {
        let page = &mut pages[id as usize];
        page.chunks[word(index)] = chunks.take(memory).expect("there are enough for each operation");
        page
    }

    /// A page does without chunks of which no entry is present. Pages keep them when they become free, as most will need them again.
    fn drop_chunks(&mut self, id: PageId) {
        let page = &mut self.pages[id as usize];
        for (chunk, present) in page.chunks.iter_mut().zip(page.present.all()) {
            if present == 0 && *chunk != 0 {
                self.chunks.give(&self.memory, core::mem::take(chunk));
            }
        }
    }

    /// All pages do without chunks that they do not use.
    fn drop_unused_chunks(&mut self) {
        self.sweep_all();
        (0..self.pages.len() as PageId).for_each(|id| self.drop_chunks(id));
    }

    /// Clears all free pages of what was left there.
    fn sweep_all(&mut self) {
        let mut id = self.free.top;
        while id != NONE {
            self.sweep(id);
            id = self.pages[id as usize].next;
        }
    }

    /// Takes the memory of a page that is off the list of free ones.
    fn take_table(&mut self, id: PageId) {
        self.sweep(id);
        self.drop_chunks(id);
        let page = &mut self.pages[id as usize];
        self.memory.free(core::mem::replace(&mut page.frame, NO_TABLE));
        self.frames.tables -= 1;
        self.bare.push(&mut self.pages, id);
    }

    /// Gives back half of what has not been used since this was done last.
    #[cold]
    #[inline(never)]
    pub(super) fn trim(&mut self) {
        for _ in 0..self.idle / 2 {
            if self.frames.tables <= self.frames.reserve {
                break;
            }
            let Some(id) = self.free.pop(&self.pages) else { break };
            self.take_table(id);
        }
        self.idle = self.free.len;
        self.trim_chunks();
    }

    /// Gives back frames of free chunks, except half as many as are in use.
    fn trim_chunks(&mut self) {
        let used = self.frames.chunks - self.chunks.spare() / chunks::EACH;
        let reserve = 2 * self.frames.reserve;
        let keep = reserve.saturating_sub(used).max(used / 2).max(NEEDED / chunks::EACH);
        self.frames.chunks -= self.chunks.give_back(&self.memory, keep);
    }

    /// Gives back all but what was there at the beginning. No page is in use.
    pub(in super::super) fn give_back(&mut self) {
        debug_assert_eq!(self.in_use(), 0);
        while self.frames.tables > self.frames.reserve
            && let Some(id) = self.free.pop(&self.pages)
        {
            self.take_table(id);
        }
        self.idle = self.free.len;
        self.drop_unused_chunks();
        self.frames.chunks -= self.chunks.give_back(&self.memory, 2 * self.frames.reserve);
    }

    /// Gives back everything.
    pub(super) fn free_all(&mut self) {
        for id in 0..self.pages.len() as PageId {
            let chunks = core::mem::take(&mut self.pages[id as usize].chunks);
            let all = chunks.into_iter().filter(|&chunk| chunk != 0);
            all.for_each(|chunk| self.chunks.give(&self.memory, chunk));
        }
        self.chunks.give_back(&self.memory, 0);
        let tables = self.pages.iter().map(|page| page.frame).filter(|&frame| frame != NO_TABLE);
        tables.for_each(|frame| self.memory.free(frame));
    }
}

#[cfg(test)]
mod tests;
