//! Writes to guest tables: dropped at once where tables are write-protected, found at the next flush where not.
//!
//! A table is *in step*: it is write-protected, each write exits, and [`Shadow::written`] drops what was made from the old entry.
//! Or it is *unsync*: the guest writes it without exits, and its shadow pages are compared with it when the guest flushes (a load
//! of CR3, INVLPG), which is the first moment at which a processor has to know. A table of level 1 becomes unsync when it is
//! written ([`Shadow::allow_write`]), or begins so, and goes back when several flushes in a row find nothing changed (`resync.rs`
//! compares). Tables above are unsync for an instruction that cannot be executed in software, until the next flush
//! (`unsync.rs`), while their address space is taken down (`inherit.rs`), and where agile paging has them nested.
//!
//! The exits for writes and flushes call this module. What must hold after each: no entry of a page in step differs from what
//! the guest's entry says now, and none of an unsync page from what it said at some time since the guest's last flush. Pages that
//! are *deferred* after a time on nested tables (`resume.rs`) are neither, and nothing leads to them.

use super::left_out::Step;
use super::pool::PageId;
use super::{Shadow, TlbFlush};
use crate::arch::addr::{Gpa, Hfn, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::p2m::P2m;

/// Shadow pages that may be unsync at a time: a flush looks at each.
pub(super) const MAX_UNSYNC: usize = 64;

/// A page whose table the guest writes itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsync {
    pub id: PageId,
    /// Of its key: the table.
    pub number: u64,
    /// Of a nested one: what its table held at the last look, and whether that was the same as before.
    pub digest: u64,
    pub is_same: bool,
}

impl Unsync {
    /// A page on the list.
    pub(super) fn new(id: PageId, number: u64) -> Unsync {
        Unsync { id, number, digest: 0, is_same: false }
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// `len` bytes of guest memory at `gpa` have been written by the hypervisor: the emulator or a device.
    pub fn written(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        gpa: Gpa,
        len: u64,
    ) -> TlbFlush {
        self.begin();
        // Page by page: neighbours in guest memory need not be neighbours in the host's.
        let mut done = 0;
        while done < len {
            let Some(at) = gpa.checked_add(done) else { break };
            let part = (PAGE_SIZE - at.offset()).min(len - done);
            if let Some(hpa) = p2m.translate(at).readable() {
                self.written_frame(p2m, memory, Hpa(hpa.frame().base().0 | at.offset()), part);
            }
            done += part;
        }
        self.pool.take_owed_and(TlbFlush::None)
    }

    fn written_frame(&mut self, p2m: &P2m<impl TableMemory>, memory: &impl GuestMemory, at: Hpa, len: u64) {
        let (frame, offset) = (at.frame(), at.offset());
        let mut seen = 0;
        let (mut emptied, mut lost) = (None, None);
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let key = self.pool.page(id).key;
            let before = self.unlinked.len();
            // A write need not be aligned, nor be as long as an entry: all that it touches go.
            for index in key.entries_at(offset, len) {
                self.unlink(id, index);
            }
            // A link has gone. The guest may be taking an address space down: look whether it is one, and whether this page is
            // the next to die. Nothing is freed yet, while the loop goes through the list that the page is on.
            if self.unlinked.len() > before {
                self.see_root_die(id);
                if self.pool.page(id).next_present(0).is_none() {
                    emptied = Some(id);
                }
                lost = (key.level() == 2).then_some(id).or(lost);
            }
            let page = self.pool.page_mut(id);
            page.writes = page.writes.saturating_add(1);
            // A page that the guest has freed and uses for data would cost an emulated write for every store.
            if page.unsync || page.writes < self.tuning.flood {
                if F::FILTERS_FAULTS && self.tuning.demand && len <= key.entry_bytes() {
                    key.entries_at(offset, 1)
                        .for_each(|index| self.follow_write(p2m, memory, (id, seen), index));
                }
                continue;
            }
            // Only written: perhaps no table any more.
            self.statistics.floods += 1;
            page.writes = 0;
            // A processor runs on a root, and has its address in CR3: it is emptied and stays.
            if self.pool.is_root(id) {
                for index in 0..ENTRIES {
                    self.unlink(id, index);
                }
            } else {
                // The next one of the frame takes its place on the list.
                self.pool.release(id);
                seen -= 1;
            }
        }
        self.drop_unlinked();
        if let Some(id) = lost {
            self.see_space_end(memory, id);
        }
        if let Some(id) = emptied {
            self.drop_empty(id);
        }
    }

    /// Frees the pages that were unlinked if nothing points to them any more, and so on below them.
    pub(super) fn drop_unlinked(&mut self) {
        // By a list and not by recursion: the stack of the hypervisor is small, and the guest chooses how its tables are linked.
        while let Some(id) = self.unlinked.pop() {
            if self.pool.page(id).is_in_use() && self.pool.is_orphan(id) {
                self.drop_page(id);
            }
        }
    }

    /// Drops an entry that the guest has changed. The guest owes a flush; but it flushes a large page as one,
    /// with any address in it, and the processor may have it as several pages. A table that nothing points to any more is most
    /// likely dead, and about to be reused.
    pub(super) fn unlink(&mut self, id: PageId, index: usize) {
        if !self.left_out.is(Step::ForgetWritten) {
            self.pool.forget_absent(id, index);
        }
        if !self.pool.page(id).is_present(index) {
            return;
        }
        let key = self.pool.page(id).key;
        let child = self.pool.child(id, index);
        let is_split = match child.map(|child| self.pool.page(child).key) {
            // A 4 MiB page is two leaves; other leaves are all of their page.
            None => key.level() > 1 && key.entry_bytes() == 4,
            Some(child) if child.is_table() => key.level() > 2 && self.pool.has_split(),
            Some(_) => true,
        };
        if is_split {
            self.pool.flush_split();
        }
        self.pool.zap(id, index);
        // Where the list is full, the page stays until it is found or evicted: it costs memory, and nothing is wrong.
        if let Some(child) = child
            && self.unlinked.len() < self.unlinked.capacity()
        {
            self.unlinked.push(child);
        }
    }

    /// Frees a page, and notes those that nothing points to then.
    pub(super) fn drop_page(&mut self, id: PageId) {
        self.statistics.dead += 1;
        let mut from = 0;
        while self.pool.page(id).key.level() > 1
            && let Some(index) = self.pool.page(id).next_present(from)
        {
            self.unlink(id, index);
            from = index + 1;
        }
        self.free(id);
    }

    /// Frees a page that may be unsync. The guest writes its table without a fault from now on, if nothing else shadows it.
    pub(super) fn free(&mut self, id: PageId) {
        if self.pool.page(id).unsync {
            self.unsync.retain(|other| other.id != id);
        }
        let key = self.pool.page(id).key;
        self.pool.release(id);
        if key.is_table() {
            self.pool.unprotect(Hfn(key.number()));
        }
    }

    /// Frees what shadows `frame` if nothing points to it and it is not the root in use: before a write to it, it was a
    /// table of an address space that is gone, or will be found again.
    pub(super) fn drop_dead(&mut self, frame: Hfn) {
        if self.pool.shadows(frame).all(|id| self.pool.is_orphan(id)) {
            while let Some(id) = self.pool.nth_shadow(frame, 0) {
                self.statistics.dead += 1;
                self.free(id);
            }
        }
    }

    /// Lets the guest write to a table, at `at`, if it is one of level 1 only and has been written repeatedly. Returns
    /// whether it may.
    pub(super) fn allow_write(&mut self, memory: &impl GuestMemory, at: Hpa) -> bool {
        let frame = at.frame();
        let limit = self.tuning.unsync_after;
        let (mut count, mut writes) = (0, 0);
        for id in self.pool.shadows(frame) {
            let page = self.pool.page(id);
            // A table can be of level 1 and of one above at once, where it is mapped into itself. Above level 1 a flush would have
            // to look whether each link still leads to the right page.
            if page.key.level() != 1 {
                return false;
            }
            count += 1;
            writes = writes.max(page.writes);
        }
        // The highest limit stands for never.
        if limit == u8::MAX || writes < limit || count > MAX_UNSYNC {
            return false;
        }
        if F::FILTERS_FAULTS && self.stays_protected(memory, at) {
            return false;
        }
        self.unsync_table(memory, frame, count);
        true
    }

    /// Makes sure that the guest does not write to `frame` unseen, and that what shadows it is in step.
    pub(super) fn write_protect(&mut self, memory: &impl GuestMemory, frame: Hfn) {
        if self.pool.is_write_protected(frame) {
            return;
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            debug_assert!(!page.nested, "a nested table is not for this");
            (page.unsync, page.writes) = (false, 0);
            page.writing.protected();
            self.unsync.retain(|other| other.id != id);
        }
        // From here on no entry that is made writes to it, not even its own. First this, then the comparison: what the guest writes
        // in between would be seen by neither.
        self.pool.protect(frame);
        if self.left_out.is(Step::CompareProtected) {
            return;
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            self.resync_page(memory, id);
        }
    }
}
