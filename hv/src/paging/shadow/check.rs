//! A check of everything that the shadow pages say against the guest's tables and the P2m, for tests and for runs that
//! trust nothing.
//!
//! [`Shadow::check`] looks at each page in the pool by itself: what must hold of an entry follows from the page's key,
//! the guest's entry and the P2m. As the keys of pages that point to one another must fit as well, it holds of every way
//! from a root to a leaf.

mod entry;
mod report;

pub use report::Disagreement;

use super::Shadow;
use super::pool::PageId;
use super::role::Source;
use super::root::root_key;
use super::sync::Unsync;
use crate::arch::addr::{Gpa, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::PRESENT;
use crate::paging::guest_walk::PagingState;
use crate::paging::p2m::P2m;
use alloc::boxed::Box;

/// What the check works with.
struct Check<'a, M: TableMemory, F: PteFormat, N: TableMemory, G> {
    shadow: &'a Shadow<M, F>,
    p2m: &'a P2m<N>,
    memory: &'a G,
    state: &'a PagingState,
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Checks that
    ///
    /// - each present entry of each shadow page leads where the guest's entry and the P2m say, with no more rights; in
    ///   tables that are unsync, the entry is the one that was noted and not the one that is there now;
    /// - the guest cannot write through any leaf to a table that is write-protected;
    /// - the root is that of `state`, and all lists and counters are right.
    ///
    /// To be called between operations, while the guest runs on these tables (after [`load`](Shadow::load) with these
    /// registers). The work is bounded by the size of the pool: milliseconds for each 1000 pages.
    pub fn check(
        &self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        state: &PagingState,
    ) -> Result<(), Box<Disagreement>> {
        let check = Check { shadow: self, p2m, memory, state };
        self.pool.check_lists().map_err(|(what, id, index)| check.report(what, id, index, None))?;
        check.root()?;
        check.unsync()?;
        self.pool.ids().try_for_each(|id| check.page(id))
    }
}

impl<M: TableMemory, F: PteFormat, N: TableMemory, G: GuestMemory> Check<'_, M, F, N, G> {
    fn root(&self) -> Result<(), Box<Disagreement>> {
        let Some(root) = self.shadow.pool.root() else { return Ok(()) };
        let (key, _) = root_key(self.p2m, self.state, self.shadow.current_vcpu, self.shadow.tree);
        if self.shadow.pool.page(root).key != key {
            return Err(self.report("the root is not that of the registers", root, 0, None));
        }
        Ok(())
    }

    /// The list of unsync pages, and that all pages of a table are or none.
    fn unsync(&self) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let list = &self.shadow.unsync;
        for &Unsync { id, number, .. } in list {
            let page = pool.page(id);
            let frame = Hfn(page.key.number());
            let why = match () {
                () if !page.unsync => "a page on the list is not unsync",
                () if !page.key.is_table() || number != page.key.number() => {
                    "a page is listed as another one"
                }
                () if page.nested && !page.key.is_nestable() => "a page cannot be nested",
                () if (page.nested || page.key.level() != 1) && !self.shadow.pool.upper_unsync => {
                    "it is not known that a page is unsync"
                }
                () if pool.is_write_protected(frame) => "a table is write-protected, and its page is unsync",
                () => continue,
            };
            return Err(self.report(why, id, 0, None));
        }
        let mut count = 0;
        for id in pool.ids().filter(|&id| pool.page(id).unsync) {
            count += 1;
            if !list.iter().any(|page| page.id == id) {
                return Err(self.report("an unsync page is not listed", id, 0, None));
            }
        }
        if count != list.len() {
            return Err(self.report("a page is listed twice as unsync", list[0].id, 0, None));
        }
        Ok(())
    }

    fn page(&self, id: PageId) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let page = pool.page(id);
        let role = page.key.role();
        let is_table = role.source == Source::Table;
        if page.deferred && (page.is_linked() || role.level != 1) {
            return Err(self.report("a page is linked and was not compared", id, 0, None));
        }
        if is_table {
            let frame = Hfn(page.key.number());
            if self.frame(page.gfn.base()) != Some(frame) {
                return Err(self.report("the guest's table is elsewhere", id, 0, None));
            }
            if !page.unsync
                && let Some((leaf, index)) = pool.writable_leaf(frame)
            {
                return Err(self.report("the guest can write to a write-protected table", leaf, index, None));
            }
        }
        for index in (0..ENTRIES).filter(|&index| pool.is_absent(id, index)) {
            let guest = self.guest_entry(id, index).filter(|_| !page.unsync && !pool.upper_unsync);
            if guest.is_none_or(|(_, raw)| raw & PRESENT != 0) {
                return Err(self.report("the guest's entry may be present", id, index, None));
            }
        }
        if page.nested || page.nested_below {
            // [`Shadow::sync_from`] goes down from the root by these marks.
            if let Some((parent, index)) =
                pool.parents(id).find(|&(parent, _)| !pool.page(parent).nested_below)
            {
                return Err(self.report("a flush would not come to a nested page", parent, index, None));
            }
        }
        if page.unsync && page.key.level() > 1 {
            // Until the next flush they lead where the guest's entries led once.
            return Ok(());
        }
        let mut from = 0;
        while let Some(index) = page.next_present(from) {
            from = index + 1;
            match role.source {
                Source::Table => self.table_entry(id, role, index)?,
                Source::Top => self.pointer(id, role, index)?,
                Source::Direct(leaf) => self.direct_entry(id, role, leaf, index)?,
            }
        }
        Ok(())
    }

    /// The frame of guest memory that can be read.
    fn frame(&self, gpa: Gpa) -> Option<Hfn> {
        self.p2m.peek(gpa).readable().map(|hpa| hpa.frame())
    }

    /// The guest's entry that an entry of a page follows: its place, and what it is now.
    fn guest_entry(&self, id: PageId, index: usize) -> Option<(Gpa, u64)> {
        let page = self.shadow.pool.page(id);
        let at = Gpa(page.gfn.base().0 + page.key.entry_offset(index));
        let raw = self.memory.read_entry(at, page.key.entry_bytes());
        Some((at, raw.ok()?)).filter(|_| page.key.is_table())
    }
}
