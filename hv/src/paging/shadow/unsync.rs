//! Tables that the guest writes itself until its next flush.

use super::left_out::Step;
use super::pool::{Page, PageId};
use super::sync::{MAX_UNSYNC, Unsync};
use super::{Shadow, TlbFlush};
use crate::arch::addr::{Gpa, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::p2m::P2m;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Lets the guest write to a table of any level until its next flush: it does so by an instruction that cannot be executed in
    /// software. `None`: the table is not what withholds the write, or too many pages shadow it.
    ///
    /// While there are such tables above level 1, faults walk the guest's from the root. At the flush all that was made from
    /// them is dropped. Forward progress: what one
    /// fault fills stays until that flush, so an instruction that needs two tables does not fault for ever.
    pub fn make_unsync(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        gpa: Gpa,
    ) -> Option<TlbFlush> {
        self.begin();
        let frame = p2m.translate_to_write(gpa).writable()?.frame();
        let count = self.pool.shadows(frame).count();
        if !self.pool.is_write_protected(frame) || count > MAX_UNSYNC {
            return None;
        }
        // Entries above level 1 lead to pages by links that cached paths count on: those are found by a walk from now on.
        if self.pool.shadows(frame).any(|id| self.pool.page(id).key.level() > 1) {
            self.pool.begin_upper_unsync();
        }
        self.unsync_table(memory, frame, count);
        Some(self.pool.take_owed_and(TlbFlush::None))
    }

    /// Write-protects all tables above level 1 again, but for nested ones. True: there are such, which the caller brings in step.
    #[cold]
    pub(super) fn resync_upper(&mut self, memory: &impl GuestMemory) -> bool {
        while let Some(at) = self.unsync.iter().position(|page| self.is_upper_unsync(page.id)) {
            let Unsync { id, number, .. } = self.unsync[at];
            self.write_protect(memory, Hfn(number));
            debug_assert!(
                !self.pool.page(id).unsync,
                "a page is unsync, and its table write-protected: {:?}",
                self.pool.page(id)
            );
        }
        self.note_upper_unsync();
        self.pool.upper_unsync
    }

    /// Some pages on the list may have become write-protected: whether nested ones are left, or others above level 1.
    pub(super) fn note_upper_unsync(&mut self) {
        let is_upper = |page: &Page| page.unsync && (page.nested || page.key.level() > 1);
        self.pool.upper_unsync = self.unsync.iter().any(|other| is_upper(self.pool.page(other.id)));
    }

    fn is_upper_unsync(&self, id: PageId) -> bool {
        let page = self.pool.page(id);
        !page.nested && page.key.level() > 1
    }

    /// Whether this many more pages may be unsync. Nested ones have room of their own.
    pub(super) fn has_unsync_room(&self, count: usize) -> bool {
        let nested = if self.agile.is_some() { self.nested_pages() } else { 0 };
        self.unsync.len() - nested + count <= MAX_UNSYNC
    }

    /// The guest writes to a table, which `count` pages shadow, until its next flush.
    pub(super) fn unsync_table(&mut self, memory: &impl GuestMemory, frame: Hfn, count: usize) {
        while !self.has_unsync_room(count)
            && let Some(oldest) = self.unsync.iter().find(|page| !self.pool.page(page.id).nested)
        {
            self.write_protect(memory, Hfn(oldest.number));
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            if page.unsync {
                continue;
            }
            (page.unsync, page.quiet) = (true, 0);
            if !self.left_out.is(Step::ForgetAbsent) {
                self.pool.forget_all_absent(id);
            }
            self.unsync.push(Unsync::new(id, frame.0));
        }
        self.statistics.unsynced += 1;
    }
}
