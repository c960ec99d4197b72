//! How guest tables become nested, and shadowed again.
//!
//! [`nest`](Shadow::nest) follows on an exit for a write to a shadowed table, when there were enough of them
//! ([`is_enough_writes`](Shadow::is_enough_writes)); [`unnest`](Shadow::unnest) on a timeout (`time.rs`), and where a table cannot
//! stay nested. What must hold after each: all shadow pages of a guest table are of one kind, and a nested one is on the list
//! of unsync pages. Note 0023 has the reasons.

use super::super::Shadow;
use super::super::left_out::Step;
use super::super::pool::PageId;
use super::super::role::Key;
use super::super::sync::Unsync;
use super::upper::{MAX_UPPER, UPPER_WRITES};
use super::{MAX_NESTED, MAX_WRITES};
use crate::arch::addr::Hfn;
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

/// Writes to a shadowed table that have exited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writes {
    /// Its host frame.
    table: u64,
    /// When the first one came, in nanoseconds.
    since: u64,
    count: usize,
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Notes a write to a shadowed table. Whether there have been enough within the window: two, and one more for each table below
    /// that would move with it; four times as many at level 3, and again at level 4. To bring such a table back costs several
    /// exits, and until then all walks below it take four references more for each of its levels: a guest that only adds a
    /// table now and then keeps its upper ones shadowed.
    pub(super) fn is_enough_writes(&mut self, frame: Hfn, now: u64) -> bool {
        let enough = self.pool.shadows(frame).map(|id| self.enough_writes(id)).max().unwrap_or(2);
        let Some(agile) = &mut self.agile else { return false };
        let window = agile.times.window;
        let known = agile.writes.iter().position(|writes| writes.table == frame.0);
        let mut writes = Writes { table: frame.0, since: now, count: 0 };
        // The list is in the order of last use. It is short, so to go through it costs less than the exit.
        if let Some(at) = known {
            let before = agile.writes.remove(at);
            if now.saturating_sub(before.since) <= window {
                writes = before;
            }
        } else if agile.writes.len() == MAX_WRITES {
            agile.writes.remove(0);
        }
        writes.count += 1;
        if writes.count >= enough {
            return true;
        }
        agile.writes.push(writes);
        self.counts().first_writes += 1;
        false
    }

    fn enough_writes(&self, id: PageId) -> usize {
        if !self.is_modelled() {
            // Nothing moves with it.
            return UPPER_WRITES;
        }
        let level = self.pool.page(id).key.level();
        (2 + self.shadowed_below(id)) << (2 * level.saturating_sub(2))
    }

    /// Links of a page to shadowed ones.
    fn shadowed_below(&self, id: PageId) -> usize {
        let page = self.pool.page(id);
        if page.key.level() == 1 {
            return 0;
        }
        let entries = core::iter::successors(page.next_present(0), |&index| page.next_present(index + 1));
        let children = entries.filter_map(|index| self.pool.child(id, index));
        children
            .filter(|&child| self.pool.page(child).key.is_nestable() && !self.pool.page(child).nested)
            .count()
    }

    /// Makes a table nested, and those below it that are reached from nested tables alone. False: it cannot be, and nothing has
    /// changed.
    pub(super) fn nest(&mut self, frame: Hfn) -> bool {
        let mut at = self.unsync.len();
        if !self.nest_one(frame) {
            return false;
        }
        // The list grows by what is below: it is the queue as well.
        while self.is_modelled()
            && let Some(&Unsync { id, .. }) = self.unsync.get(at)
        {
            at += 1;
            if self.pool.page(id).nested {
                self.nest_below(id);
            }
        }
        self.pool.begin_upper_unsync();
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
            // The kernel's half is the common case: its tables of level 3 are below all roots. Nested, it would lengthen the walks of
            // address spaces that nothing has written.
            let is_shadowed_elsewhere = self
                .pool
                .shadows(frame)
                .any(|page| self.pool.is_root(page) || self.pool.has_shadowed_parent(page));
            if !is_shadowed_elsewhere {
                let _stays_shadowed_at_the_limit = self.nest_one(frame);
            }
        }
    }

    /// Whether the shadow pages of a table could become nested.
    pub(super) fn can_nest(&self, frame: Hfn) -> bool {
        let count = self.pool.shadows(frame).count();
        count > 0
            && self.has_room(count)
            && self.pool.shadows(frame).all(|id| self.may_be_nested(self.pool.page(id).key))
    }

    /// Whether this many more pages may become nested.
    fn has_room(&self, count: usize) -> bool {
        if self.is_modelled() {
            return self.unsync.len() + count <= MAX_NESTED;
        }
        self.nested_pages() + count <= MAX_UPPER
    }

    /// All shadow pages of a table become nested; false if they cannot.
    fn nest_one(&mut self, frame: Hfn) -> bool {
        if !self.can_nest(frame) {
            return false;
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            // It may be unsync already, for an instruction that could not be executed in software.
            if !core::mem::replace(&mut page.unsync, true) {
                self.unsync.push(Unsync::new(id, frame.0));
            }
            self.begin_nested(id);
        }
        self.pool.unprotect(frame);
        self.counts().to_nested += 1;
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

    /// A table becomes shadowed again: the guest does not write it any more, and its shadow pages are in step. They are still on
    /// the list until [`forget_shadowed`](Self::forget_shadowed), so that many take one pass over it; nothing is freed before that.
    pub(super) fn unnest(&mut self, memory: &impl GuestMemory, frame: Hfn) {
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            (page.unsync, page.nested, page.writes) = (false, false, 0);
        }
        // From here on no entry that is made writes to it, not even its own. What the guest wrote before that is found by the
        // comparison, so that must come second.
        self.pool.protect(frame);
        let is_compared = !self.left_out.is(Step::CompareShadowed);
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            match self.pool.page(id).key.level() {
                _ if !is_compared => {}
                1 => _ = self.resync_page(memory, id),
                _ => self.compare_nested(memory, id),
            }
            self.pool.mark_parents(id);
            self.pool.mark_children(id);
        }
        self.counts().to_shadow += 1;
    }

    /// Takes the pages off the list that have become shadowed.
    pub(super) fn forget_shadowed(&mut self) {
        self.unsync.retain(|page| self.pool.page(page.id).unsync);
    }

    /// Whether the table of a page that is about to be made is nested from the start. Otherwise it is write-protected next.
    #[cold]
    pub(in super::super) fn starts_nested(&mut self, memory: &impl GuestMemory, key: Key) -> bool {
        let frame = Hfn(key.number());
        let is_nested = |id| self.pool.page(id).nested;
        let others = self.pool.shadows(frame).next();
        let was_nested = others.is_some_and(is_nested);
        if was_nested && !self.may_be_nested(key) {
            self.unnest(memory, frame);
            self.forget_shadowed();
            return false;
        }
        match others {
            // All pages of a table are the same.
            Some(_) if was_nested && !self.has_room(1) => {
                self.unnest(memory, frame);
                self.forget_shadowed();
                false
            }
            Some(_) => was_nested,
            None if !self.may_be_nested(key) => false,
            None if key.level() == 4 => self.has_room(1) && self.begins_nested(frame),
            None => {
                let begins = self.agile.as_ref().is_some_and(|agile| agile.below_nested) && self.has_room(1);
                // Agile paging proper counts only what becomes nested later.
                self.upper_counts.to_nested += u64::from(begins && !self.is_modelled());
                begins
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AgileTimes;
    use super::Step;
    use crate::arch::Access;
    use crate::arch::addr::{Gpa, Gva, PAGE_SIZE};
    use crate::paging::guest_walk::PagingState;
    use crate::paging::shadow::left_out::LeftOut;
    use crate::paging::shadow::model::{Registers, ShadowProcessor};
    use crate::paging::shadow::tests::{HOST, STATE, with_guest};
    use crate::paging::shadow::{AddressSpace, PageFault, Shadow, ShadowOutcome};
    use crate::paging::vm_memory::VmMemory;

    /// Writes to a table until it is nested, one in each nanosecond; the guest's tables of levels 4 to 1 are in pages 1 to 4.
    fn writes_until_nested(window: u64, page: u64, most: u64) -> Option<u64> {
        let mut found = None;
        with_guest(|p2m, _, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let _none = shadow.begin_agile(AgileTimes { window, timeout: 100, start: 0 }, 40, &memory);
            let space = AddressSpace::new(p2m, &memory, &STATE);
            let _root = shadow.load(space);
            let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
            let gpa = Gpa(page * PAGE_SIZE);
            found = (1..=most).find(|now| shadow.agile_write(p2m, gpa, *now, false).is_some());
        });
        found
    }

    #[test]
    fn a_table_is_nested_by_two_writes_and_one_for_each_table_below() {
        assert_eq!(writes_until_nested(10, 4, 9), Some(2));
        assert_eq!(writes_until_nested(10, 3, 9), Some(3));
        assert_eq!(writes_until_nested(100, 2, 99), Some(12), "all walks below level 3 become longer");
        assert_eq!(writes_until_nested(100, 1, 99), Some(48), "all of the address space's");
        assert_eq!(writes_until_nested(10, 2, 99), None);
        assert_eq!(writes_until_nested(0, 4, 9), None, "none comes within the window");
        // The window begins with the first one.
        assert_eq!(writes_until_nested(1, 3, 9), None);
    }

    #[test]
    fn a_fault_compares_nothing_below_the_root_in_use() {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let _none = shadow.begin_agile(AgileTimes { window: 10, timeout: 100, start: 0 }, 40, &memory);
            let space = AddressSpace::new(p2m, &memory, &STATE);
            let _root = shadow.load(space);
            write(4 * PAGE_SIZE + 8, (6 * PAGE_SIZE) | 7);
            let fault = |shadow: &mut Shadow<_, _>, page: u64| {
                shadow.fault(space, PageFault::new(Gva(page * PAGE_SIZE), Access::READ)).0
            };
            assert_eq!(fault(shadow, 0), ShadowOutcome::Filled { prefetched: 0 });
            let table = Gpa(4 * PAGE_SIZE);
            assert!((1..=2).any(|now| shadow.agile_write(p2m, table, now, false).is_some()));
            // The guest owes the flush of page 0.
            write(4 * PAGE_SIZE, (7 * PAGE_SIZE) | 7);
            assert_eq!(fault(shadow, 1), ShadowOutcome::Filled { prefetched: 0 });
            assert_eq!(shadow.statistics().resynced_entries, 0);
            let _flush = shadow.invlpg(&memory, Gva(0));
            assert_eq!(shadow.statistics().resynced_entries, 1);
        });
    }

    #[test]
    fn a_root_that_was_made_between_two_times_of_agile_paging_leads_to_nested_pages() {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let other = PagingState { cr3: 7 * PAGE_SIZE, ..STATE };
            let nest = |shadow: &mut Shadow<_, _>, state: &PagingState| {
                let _none =
                    shadow.begin_agile(AgileTimes { window: 10, timeout: 100, start: 0 }, 40, &memory);
                let space = AddressSpace::new(p2m, &memory, state);
                let _root = shadow.load(space);
                let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
                assert!((1..=2).any(|now| shadow.agile_write(p2m, Gpa(4 * PAGE_SIZE), now, false).is_some()));
                shadow.check(p2m, &memory, state).unwrap();
            };
            nest(shadow, &STATE);
            let _reload = shadow.end_agile();
            write(7 * PAGE_SIZE, (2 * PAGE_SIZE) | 0x27);
            let _root = shadow.load(AddressSpace::new(p2m, &memory, &other));
            nest(shadow, &other);
            // The guest's flush has to find the nested page from this root.
            assert!(shadow.code(Gva(0), true).is_some());
            write(4 * PAGE_SIZE, (6 * PAGE_SIZE) | 0x27);
            let _flush = shadow.flush_all(&memory);
            assert!(shadow.code(Gva(0), true).is_none(), "nothing is left of the old entry");
        });
    }

    #[test]
    fn flushes_find_nested_pages_in_a_second_time_of_agile_paging_as_well() {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let space = AddressSpace::new(p2m, &memory, &STATE);
            // The upper pages are kept, and with them which comparison came to them last.
            for flushes in [1, 2] {
                let _none =
                    shadow.begin_agile(AgileTimes { window: 10, timeout: 100, start: 0 }, 40, &memory);
                let _root = shadow.load(space);
                let fault = |shadow: &mut Shadow<_, _>| {
                    let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
                    assert!(shadow.code(Gva(0), true).is_some());
                };
                fault(shadow);
                let nest = |now| shadow.agile_write(p2m, Gpa(4 * PAGE_SIZE), now, false).is_some();
                assert!((1..=2).any(nest));
                for flush in 0..flushes {
                    write(4 * PAGE_SIZE, ((5 + flushes + flush) * PAGE_SIZE) | 0x27);
                    let _flush = shadow.flush_all(&memory);
                    assert!(shadow.code(Gva(0), true).is_none(), "flush {flush} of {flushes}");
                    fault(shadow);
                }
                let _reload = shadow.end_agile();
            }
        });
    }

    /// Where an access to address 0 leads after the guest's flush of everything, which follows on a table's move back: the page
    /// of its entry was another one when it was used last, before that.
    fn page_after_move_back(left_out: Option<Step>) -> u64 {
        let mut found = 0;
        with_guest(|p2m, write, host, shadow| {
            shadow.left_out = LeftOut(left_out);
            let memory = VmMemory::new(p2m, host);
            let _none = shadow.begin_agile(AgileTimes { window: 10, timeout: 100, start: 0 }, 40, &memory);
            let space = AddressSpace::new(p2m, &memory, &STATE);
            let (root, _) = shadow.load(space);
            let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
            let table = Gpa(4 * PAGE_SIZE);
            assert!((1..=2).any(|now| shadow.agile_write(p2m, table, now, false).is_some()));
            write(table.0, (6 * PAGE_SIZE) | 7);
            // The flush is due and not done, while the table is found unchanged.
            for (now, stands_in) in [(200, true), (400, true), (400, false), (600, true), (600, false)] {
                let _flush = shadow.agile_time(&memory, shadow.root_table(), 10, now, stands_in);
            }
            assert_eq!(shadow.agile_counts().to_shadow, 1);
            let _flush = shadow.flush_all(&memory);
            let tables = *shadow.pool.memory();
            let registers = Registers { smep: false, smap: false, ac: false };
            let access = || ShadowProcessor::default().access(&tables, root, registers, Gva(0), Access::READ);
            if access().is_err() {
                let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
            }
            found = (access().unwrap().0 - HOST.0) / PAGE_SIZE;
        });
        found
    }

    #[test]
    fn a_table_that_is_shadowed_again_holds_nothing_from_before_the_guests_flush() {
        assert_eq!(page_after_move_back(None), 6);
        assert_eq!(page_after_move_back(Some(Step::CompareShadowed)), 5, "the mistake is seen");
    }
}
