//! How pages become free again: one that is chosen, a certain one, or all of them.

use super::*;
use crate::arch::addr::Hfn;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Frees a page; what points to it becomes not present.
    pub(in super::super) fn release(&mut self, id: PageId) {
        let key = self.page(id).key;
        let has_pieces = key.is_direct() || key.level() > 1 && (self.has_pieces() || key.entry_bytes() == 4);
        if has_pieces && self.page(id).next_present(0).is_some() {
            self.leave_pieces();
        }
        self.unlink(id);
        self.clear(id);
        if key.is_table() {
            let crowd = self.crowd(Hfn(key.number()));
            self.crowded[crowd] -= 1;
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
        self.page_mut(id).in_use = false;
        self.leave_in_limbo(id);
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
            if core::mem::take(&mut page.in_use) {
                page.stale = true;
                let number = page.key.number();
                let (bucket, crowd) = (self.bucket(number), self.crowd(Hfn(number)));
                self.buckets[bucket] = NONE;
                self.crowded[crowd] = 0;
                self.free.push(id);
            }
        }
        self.direct = 0;
        self.owe_all();
        self.tell(true);
    }

    /// Clears a free page of what was left there when all were freed.
    pub(super) fn sweep(&mut self, id: PageId) {
        if !core::mem::take(&mut self.page_mut(id).stale) {
            return;
        }
        // No processor remembers these entries: everything was flushed.
        let lingering = self.lingering;
        self.unlink(id);
        self.clear(id);
        self.lingering = lingering;
    }

    /// A free page where there was none.
    #[cold]
    pub(super) fn make_room(&mut self) -> PageId {
        if self.shared.in_limbo() == 0 {
            for _ in 0..self.at_once() {
                let victim = self.victim();
                self.evictions += 1;
                self.release(victim);
            }
        }
        self.end_limbo();
        self.free.pop().expect("a page was just released")
    }

    /// The page that the hand of the clock comes to first: not the root, not used by this operation, and not
    /// used since the hand was there last.
    fn victim(&mut self) -> PageId {
        for _ in 0..2 * self.pages.len() {
            let id = self.hand as PageId;
            self.hand = (self.hand + 1) % self.pages.len();
            let keep = self.page(id).stamp == self.operation || self.is_root(id);
            let page = self.page_mut(id);
            if page.in_use && !keep && !core::mem::take(&mut page.referenced) {
                return id;
            }
        }
        unreachable!("an operation uses fewer pages than the smallest pool has")
    }

    /// Makes what points to a page not present.
    fn unlink(&mut self, id: PageId) {
        while self.heads[id as usize] != NONE {
            let (parent, index) = Self::place(self.heads[id as usize]);
            self.zap(parent, index);
        }
    }
}
