//! The switching bit of links from shadowed to nested pages, and what a page knows of nested ones below it.

use super::*;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use abi::agile::SWITCHING;

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// Gives every link to a page the switching bit that it should have. No processor reads the bit, so nothing is flushed.
    pub(in super::super) fn mark_parents(&mut self, id: PageId) {
        let nested = self.page(id).nested;
        for (parent, index) in self.parents(id) {
            let page = self.page(parent);
            let raw = self.memory.load(page.frame, index);
            let bit = if nested && !page.nested { SWITCHING } else { 0 };
            if raw & SWITCHING != bit {
                self.memory.store(page.frame, index, raw & !SWITCHING | bit);
            }
        }
    }

    /// The same of the links below a page.
    pub(in super::super) fn mark_children(&mut self, id: PageId) {
        if self.page(id).key.level() == 1 {
            return;
        }
        let mut from = 0;
        while let Some(index) = self.page(id).next_present(from) {
            from = index + 1;
            if let Some(child) = self.child(id, index) {
                self.mark_parents(child);
            }
        }
    }

    /// Notes in all pages from which a page is reached that a nested one is.
    pub(in super::super) fn mark_above(&mut self, id: PageId) {
        let mut slot = self.page(id).parents;
        while slot != NONE {
            let (parent, index) = place(slot);
            (slot, _) = self.record(parent, index).neighbours(&self.memory);
            // As deep as there are levels: a parent's is one more.
            if !core::mem::replace(&mut self.page_mut(parent).nested_below, true) {
                self.mark_above(parent);
            }
        }
    }

    /// No page is nested any more, or what leads to nested ones is noted once more. Without agile paging links are not noted, so nothing may
    /// be left of those before.
    pub(in super::super) fn forget_nested_below(&mut self) {
        for id in 0..self.end() {
            self.page_mut(id).nested_below = false;
        }
    }

    /// A link to `child` is about to be made in `table`: the switching bit, if it is to have it.
    #[cold]
    pub(in super::super) fn note_link(&mut self, table: PageId, child: PageId) -> u64 {
        let (nested, below) = (self.page(child).nested, self.page(child).nested_below);
        if (nested || below) && !core::mem::replace(&mut self.page_mut(table).nested_below, true) {
            self.mark_above(table);
        }
        if nested && !self.page(table).nested { SWITCHING } else { 0 }
    }

    /// Whether a page that is not nested points to this one.
    pub(in super::super) fn has_shadowed_parent(&self, id: PageId) -> bool {
        self.parents(id).any(|(parent, _)| !self.page(parent).nested)
    }

    /// The entries that point to a page.
    pub(in super::super) fn parents(&self, id: PageId) -> impl Iterator<Item = (PageId, usize)> {
        let known = |slot: u32| (slot != NONE).then_some(slot);
        let after = move |slot: &u32| known(self.record_of(*slot).neighbours(&self.memory).0);
        core::iter::successors(known(self.page(id).parents), after).map(place)
    }
}
