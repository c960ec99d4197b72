//! How pages become free again: one that is chosen, a certain one, or all of them.

use super::*;
use crate::arch::addr::Hfn;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use alloc::vec::Vec;

/// Pages that are released between two looks at what has not been used.
const TRIM_EVERY: u64 = 1024;

/// Whether `frames` frames from `first` on are partly in one of these runs.
fn meets(runs: &[(Hfn, u64)], first: Hfn, frames: u64) -> bool {
    runs.iter().any(|&(start, len)| first.0 < start.0 + len && start.0 < first.0 + frames)
}

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Frees a page; what points to it becomes not present.
    pub(in super::super) fn release(&mut self, id: PageId) {
        let key = self.page(id).key;
        let has_split = key.is_direct() || key.level() > 1 && (self.has_split() || key.entry_bytes() == 4);
        if has_split && self.page(id).next_present(0).is_some() {
            self.flush_split();
        }
        self.unlink(id);
        self.clear(id);
        if key.is_table() {
            let region = self.region_2m(Hfn(key.number()));
            self.pt_count_2m[region] -= 1;
            self.filter.remove(key.number());
        }
        let bucket = self.bucket(key.number());
        let next = self.page(id).next;
        if self.buckets[bucket] == id {
            self.buckets[bucket] = next;
        } else {
            let previous = self.chain(key.number()).find(|&other| self.page(other).next == id);
            self.page_mut(previous.expect("a page is on the list of its number")).next = next;
        }
        self.direct -= usize::from(key.is_direct());
        self.page_mut(id).state = State::Free;
        self.retire(id);
        self.released += 1;
        if self.released.is_multiple_of(TRIM_EVERY) {
            self.trim();
        }
    }

    /// The pages whose guest table is in one of these runs of frames.
    pub(in super::super) fn tables_in(&self, runs: &[(Hfn, u64)]) -> Vec<PageId> {
        let is_hit =
            |page: &Page| page.is_in_use() && page.key.is_table() && meets(runs, Hfn(page.key.number()), 1);
        (0..self.used).filter(|&id| is_hit(self.page(id))).collect()
    }

    /// Takes all leaves to these runs of frames away, by a look at all that there are; whether there were any.
    pub(in super::super) fn unmap_runs(&mut self, runs: &[(Hfn, u64)]) -> bool {
        let mut any = false;
        for id in 0..self.used {
            let page = self.page(id);
            if !page.is_in_use() || page.key.is_top() {
                continue;
            }
            let level = page.key.level();
            let span = if level == 1 { 1 } else { LARGE_FRAMES };
            let mut from = 0;
            while let Some(index) = self.page(id).next_present(from) {
                from = index + 1;
                let to = Hfn((self.entry(id, index) & leaf_address(level)) >> 12);
                if self.child(id, index).is_none() && meets(runs, to, span) {
                    self.zap(id, index);
                    any = true;
                }
            }
        }
        any
    }

    /// Frees all pages, in time that depends on how many were used and not on their entries: these are cleared when the pages
    /// are used again.
    pub(in super::super) fn release_all(&mut self) {
        self.forget_roots();
        // No link is seen to go.
        self.links += 1;
        // Backwards, so that the first ones are used again first.
        for id in (0..core::mem::take(&mut self.used)).rev() {
            let page = self.page_mut(id);
            if page.is_in_use() {
                page.state = State::Stale;
                let number = page.key.number();
                let (bucket, region) = (self.bucket(number), self.region_2m(Hfn(number)));
                self.buckets[bucket] = NONE;
                self.pt_count_2m[region] = 0;
                self.free.push(&mut self.pages, id);
            }
        }
        self.direct = 0;
        self.filter = Filter::EMPTY;
        self.owe_all();
        self.shoot_down(true);
    }

    /// Clears a free page of what was left there when all were freed.
    pub(super) fn sweep(&mut self, id: PageId) {
        if self.page(id).state != State::Stale {
            return;
        }
        self.page_mut(id).state = State::Free;
        // No processor remembers these entries: everything was flushed.
        let stale = self.stale;
        self.unlink(id);
        self.clear(id);
        self.stale = stale;
    }

    /// A free page where there was none: new, or of those that are evicted.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self) -> PageId {
        if self.shared.pending_free_pages() == 0 {
            if let Some(id) = self.add_table() {
                return id;
            }
            for _ in 0..self.at_once() {
                self.evict();
            }
        }
        self.flush_pending_free();
        self.free.pop(&self.pages).expect("a page was just released")
    }

    /// Releases the page that is used least.
    pub(super) fn evict(&mut self) -> PageId {
        let victim = self.victim();
        self.evictions += 1;
        self.release(victim);
        victim
    }

    /// The page that the hand of the clock comes to first: not the root, not used by this operation, and not
    /// used since the hand was there last.
    fn victim(&mut self) -> PageId {
        let used = self.used as usize;
        for _ in 0..2 * used {
            let id = (self.hand % used) as PageId;
            self.hand = (self.hand + 1) % used;
            let keep = self.page(id).stamp == self.operation as u32 || self.is_root(id);
            let page = self.page_mut(id);
            if page.is_in_use() && !keep && !page.take_referenced() {
                return id;
            }
        }
        unreachable!("an operation uses fewer pages than the smallest pool has")
    }

    /// Makes what points to a page not present.
    pub(in super::super) fn unlink(&mut self, id: PageId) {
        while self.page(id).parents != NONE {
            let (parent, index) = place(self.page(id).parents);
            self.zap(parent, index);
        }
    }
}
