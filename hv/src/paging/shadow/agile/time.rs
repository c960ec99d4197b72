//! What happens with time: address spaces that are no longer young, and nested tables that have not been written for long.
//!
//! The paper looks at the dirty bits of the nested tables. Here guests write their nested tables through shadow leaves, which have
//! none; so the contents are compared, without accessed and dirty bits, by a digest of 64 bits. A table that was written and
//! is as before counts as not written.

use super::super::Shadow;
use super::super::TlbFlush;
use super::super::pool::PageId;
use super::super::sync::Unsync;
use crate::arch::addr::{Gfn, Gpa, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, DIRTY};
use core::cmp::Reverse;

/// Address spaces whose time is known.
pub(super) const MAX_SPACES: usize = 256;
/// A young address space that has not run for this many timeouts is taken for gone.
const FORGOTTEN: u64 = 8;

/// An address space, by its root table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// Host frame of the guest's root table.
    pub(super) root: u64,
    /// For how long it has run, in nanoseconds.
    pub(super) own: u64,
    /// When it ran last.
    last: u64,
    /// It has not been moved to shadow since it is known.
    pub(super) may_be_nested: bool,
}

/// A number that differs where the entries of a table do, but for accessed and dirty bits: never 0.
fn digest(memory: &impl GuestMemory, table: Gfn) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for word in 0..8 {
        let at = Gpa(table.base().0 + word * 512);
        let read = memory.entries::<8>(at, u64::MAX, |_, raw| {
            sum = (sum ^ raw & !(ACCESSED | DIRTY)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        });
        if read.is_err() {
            return 1;
        }
    }
    sum | 1
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Whether a root that is about to be made is that of a young address space.
    pub(super) fn begins_nested(&mut self, root: Hfn) -> bool {
        let Some(agile) = &mut self.agile else { return false };
        let start = agile.times.start;
        let known = agile.spaces.iter().find(|space| space.root == root.0);
        let is_young = known.map_or(0, |space| space.own) < start;
        if is_young {
            self.agile_counts.roots_nested += 1;
        }
        is_young
    }

    /// The address space with this root table has run for `ran` nanoseconds until `now`: moves what is due. To be called from time
    /// to time between two operations. `stands_in`: what is done now is not charged. Then tables are only compared, which is what
    /// nested dirty bits would say, and moved at a later call.
    pub fn agile_time(
        &mut self,
        memory: &impl GuestMemory,
        root: Option<Hfn>,
        ran: u64,
        now: u64,
        stands_in: bool,
    ) -> TlbFlush {
        self.begin();
        if let Some(root) = root {
            self.account(root.0, ran, now);
        }
        let Some(agile) = &mut self.agile else { return TlbFlush::None };
        let timeout = agile.times.timeout.max(1);
        if agile.next_look == 0 {
            agile.next_look = now.saturating_add(timeout);
        }
        let late = now.saturating_sub(agile.next_look);
        let (is_due, is_compared) = (now >= agile.next_look, agile.is_compared);
        // Not for ever where nothing stands in; on the machine `commodity` nothing does.
        if is_due && !is_compared && (stands_in || agile.upper_only || late >= timeout / 2) {
            agile.is_compared = true;
            self.compare_tables(memory);
        }
        if !stands_in {
            self.move_grown(memory);
            self.move_unwritten(memory, now);
            self.forget_shadowed();
        }
        self.drop_unlinked();
        self.pool.take_owed_and(TlbFlush::None)
    }

    /// Whether [`agile_time`](Self::agile_time) has something to do at an exit of this kind, beside charging time.
    pub fn is_agile_due(&self, now: u64, stands_in: bool) -> bool {
        self.agile.as_ref().is_some_and(|agile| {
            if stands_in { !agile.is_compared && now >= agile.next_look } else { agile.is_compared }
        })
    }

    /// Charges time to an address space.
    fn account(&mut self, root: u64, ran: u64, now: u64) {
        let Some(agile) = &mut self.agile else { return };
        let at = agile.spaces.iter().position(|space| space.root == root).unwrap_or_else(|| {
            if agile.spaces.len() == MAX_SPACES {
                let oldest = (0..MAX_SPACES).max_by_key(|&at| Reverse(agile.spaces[at].last)).unwrap_or(0);
                agile.spaces.swap_remove(oldest);
            }
            agile.spaces.push(Space { root, own: 0, last: now, may_be_nested: true });
            agile.spaces.len() - 1
        });
        let space = &mut agile.spaces[at];
        (space.own, space.last) = (space.own.saturating_add(ran), now);
    }

    /// Address spaces that are not young any more become shadowed.
    fn move_grown(&mut self, memory: &impl GuestMemory) {
        let mut at = 0;
        while let Some(agile) = &mut self.agile
            && let Some(space) = agile.spaces.get_mut(at)
        {
            at += 1;
            if space.own < agile.times.start || !core::mem::replace(&mut space.may_be_nested, false) {
                continue;
            }
            let root = Hfn(space.root);
            let is_root = |&id: &PageId| self.pool.page(id).nested && self.pool.page(id).key.level() == 4;
            let found = self.pool.shadows(root).find(is_root);
            if let Some(id) = found {
                self.agile_counts.roots_to_shadow += 1;
                self.unnest_from(memory, id);
            }
        }
    }

    /// A root and all nested tables that are reached from it become shadowed.
    fn unnest_from(&mut self, memory: &impl GuestMemory, id: PageId) {
        let key = self.pool.page(id).key;
        self.unnest(memory, Hfn(key.number()));
        let mut from = 0;
        while key.level() > 1
            && let Some(index) = self.pool.page(id).next_present(from)
        {
            from = index + 1;
            // As deep as there are levels.
            if let Some(child) = self.pool.child(id, index)
                && self.pool.page(child).nested
            {
                self.unnest_from(memory, child);
            }
        }
    }

    /// Notes which nested tables have not changed since they were compared last.
    fn compare_tables(&mut self, memory: &impl GuestMemory) {
        for page in self.unsync.iter_mut().filter(|page| self.pool.page(page.id).nested) {
            let now = digest(memory, self.pool.page(page.id).gfn);
            page.is_same = core::mem::replace(&mut page.digest, now) == now;
        }
    }

    /// Nested tables that had not changed when they were compared become shadowed, from the root downwards: a table
    /// below a nested one is not looked at, but on the machine `commodity`.
    fn move_unwritten(&mut self, memory: &impl GuestMemory, now: u64) {
        let Some(agile) = &mut self.agile else { return };
        if !core::mem::take(&mut agile.is_compared) {
            return;
        }
        agile.next_look = now.saturating_add(agile.times.timeout.max(1));
        let (start, gone) = (agile.times.start, agile.times.timeout.saturating_mul(FORGOTTEN));
        let upper_only = agile.upper_only;
        agile.spaces.retain(|space| space.own >= start || now.saturating_sub(space.last) <= gone);
        let before = self.nested_pages();
        for level in (1..=4).rev() {
            let mut at = 0;
            while let Some(&Unsync { id, number, is_same, .. }) = self.unsync.get(at) {
                at += 1;
                let page = self.pool.page(id);
                // What was a table may hold data now, which changes.
                let is_lost = upper_only && self.pool.is_orphan(id);
                if !page.nested || page.key.level() != level || !is_same && !is_lost {
                    continue;
                }
                let frame = Hfn(number);
                if is_lost || level == 4 && self.pool.is_orphan(id) && !self.is_known(number) {
                    // It leaves the list.
                    self.drop_page(id);
                    at -= 1;
                } else if upper_only || level == 4 && !self.is_young(number) || self.is_below_shadowed(frame)
                {
                    self.unnest(memory, frame);
                }
            }
        }
        if upper_only && self.nested_pages() != before {
            self.mark_above_nested();
            self.note_upper_unsync();
        }
    }

    /// Notes once more which pages lead to nested ones: so flushes do not go down where there are none any more.
    fn mark_above_nested(&mut self) {
        self.pool.forget_nested_below();
        for page in &self.unsync {
            if self.pool.page(page.id).nested {
                self.pool.mark_above(page.id);
            }
        }
    }

    fn is_known(&self, root: u64) -> bool {
        self.agile.as_ref().is_some_and(|agile| agile.spaces.iter().any(|space| space.root == root))
    }

    fn is_young(&self, root: u64) -> bool {
        self.agile.as_ref().is_some_and(|agile| {
            let start = agile.times.start;
            agile.spaces.iter().any(|space| space.root == root && space.own < start)
        })
    }

    fn is_below_shadowed(&self, table: Hfn) -> bool {
        self.pool.shadows(table).any(|id| self.pool.has_shadowed_parent(id))
    }
}
