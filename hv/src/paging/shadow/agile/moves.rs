//! How guest tables become nested, and shadowed again.

use super::super::Shadow;
use super::super::pool::PageId;
use super::super::role::Key;
use super::super::sync::Unsync;
use super::{MAX_NESTED, MAX_WRITES};
use crate::arch::addr::Hfn;
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Notes a write to a shadowed table. Whether another one came within the window before.
    pub(super) fn is_second_write(&mut self, frame: Hfn, now: u64) -> bool {
        let Some(agile) = &mut self.agile else { return false };
        let window = agile.times.window;
        let first = agile.writes.iter().position(|&(table, _)| table == frame.0);
        if let Some(at) = first {
            let (_, then) = agile.writes.remove(at);
            if now.saturating_sub(then) <= window {
                return true;
            }
        } else if agile.writes.len() == MAX_WRITES {
            agile.writes.remove(0);
        }
        agile.writes.push((frame.0, now));
        self.agile_counts.first_writes += 1;
        false
    }

    /// Makes a table nested, and those below it that are reached from nested tables alone. False: it cannot be, and nothing has
    /// changed.
    pub(super) fn nest(&mut self, frame: Hfn) -> bool {
        let mut at = self.unsync.len();
        if !self.nest_one(frame) {
            return false;
        }
        // The list grows by what is below: it is the queue as well.
        while let Some(&Unsync { id, .. }) = self.unsync.get(at) {
            at += 1;
            if self.pool.page(id).nested {
                self.nest_below(id);
            }
        }
        // Faults must not begin below a nested table.
        self.pool.forget_paths();
        self.upper_unsync = true;
        true
    }

    fn nest_below(&mut self, id: PageId) {
        let mut from = 0;
        while self.pool.page(id).key.level() > 1
            && let Some(index) = self.pool.page(id).next_present(from)
        {
            from = index + 1;
            let Some(child) = self.pool.child(id, index) else { continue };
            let (key, nested) = (self.pool.page(child).key, self.pool.page(child).nested);
            if nested || !key.is_nestable() {
                continue;
            }
            let frame = Hfn(key.number());
            let is_shadowed_elsewhere = self
                .pool
                .shadows(frame)
                .any(|page| self.pool.is_root(page) || self.pool.has_shadowed_parent(page));
            if !is_shadowed_elsewhere {
                let _stays_shadowed_at_the_limit = self.nest_one(frame);
            }
        }
    }

    /// All shadow pages of a table become nested; false if they cannot.
    fn nest_one(&mut self, frame: Hfn) -> bool {
        let count = self.pool.shadows(frame).count();
        let is_possible = count > 0
            && self.unsync.len() + count <= MAX_NESTED
            && self.pool.shadows(frame).all(|id| self.pool.page(id).key.is_nestable());
        if !is_possible {
            return false;
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            if !core::mem::replace(&mut page.unsync, true) {
                self.unsync.push(Unsync::new(id, frame.0));
            }
            self.begin_nested(id);
        }
        self.pool.unprotect(frame);
        self.agile_counts.to_nested += 1;
        true
    }

    /// A page on the list of unsync ones is nested from now on.
    pub(in super::super) fn begin_nested(&mut self, id: PageId) {
        let page = self.pool.page_mut(id);
        (page.nested, page.quiet) = (true, 0);
        self.pool.forget_all_absent(id);
        self.pool.mark_parents(id);
        self.pool.mark_children(id);
        self.pool.mark_above(id);
    }

    /// A table becomes shadowed again: the guest does not write it any more, and its shadow pages are in step.
    pub(super) fn unnest(&mut self, memory: &impl GuestMemory, frame: Hfn) {
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            (page.unsync, page.nested, page.writes) = (false, false, 0);
            self.unsync.retain(|other| other.id != id);
        }
        // From here on no entry that is made writes to it, not even its own.
        self.pool.protect(frame);
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            match self.pool.page(id).key.level() {
                1 => _ = self.resync_page(memory, id),
                _ => self.compare_nested(memory, id),
            }
            self.pool.mark_parents(id);
            self.pool.mark_children(id);
        }
        self.agile_counts.to_shadow += 1;
    }

    /// Whether the table of a page that is about to be made is nested from the start. Otherwise it is write-protected next.
    #[cold]
    pub(in super::super) fn starts_nested(&mut self, memory: &impl GuestMemory, key: Key) -> bool {
        let frame = Hfn(key.number());
        let is_nested = |id| self.pool.page(id).nested;
        let others = self.pool.shadows(frame).next();
        let was_nested = others.is_some_and(is_nested);
        if was_nested && !key.is_nestable() {
            self.unnest(memory, frame);
            return false;
        }
        let is_full = self.unsync.len() >= MAX_NESTED;
        match others {
            // All pages of a table are the same.
            Some(_) if was_nested && is_full => {
                self.unnest(memory, frame);
                false
            }
            Some(_) => was_nested,
            None if is_full || !key.is_nestable() => false,
            None if key.level() == 4 => self.begins_nested(frame),
            None => self.agile.as_ref().is_some_and(|agile| agile.below_nested),
        }
    }
}
