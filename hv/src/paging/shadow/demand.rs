//! Tables of level 1 in which the guest pages on demand: they stay write-protected while the guest writes to them.
//!
//! Where processors [filter page faults](crate::paging::format::PteFormat::FILTERS_FAULTS), a fault at an entry that is not present
//! needs no exit as long as the table is write-protected. What the guest's handler then writes exits, is emulated, and fills
//! the shadow entry at once: one exit in place of two (the fault, and the use of an unsync entry). And while no
//! table at all is unsync, an INVLPG has nothing to be compared with and needs no exit either ([`Shadow::passes_invlpg`]).
//!
//! Writes that do not come from demand paging are cheaper on an unsync table. A write is taken for one that does if
//!
//! - what was filled at the write before has been used since: it was filled without the accessed bit, which processors
//!   set in shadow entries as in any other; and
//! - the guest's entry is not present, or it is the one that was written last (a page that is mapped, used and unmapped).
//!
//! Anything else (`fork`, `mprotect`, copying on write, the end of a process, files mapped in runs of pages) makes the table
//! unsync at once. It is write-protected again when the guest faults at an entry there that is not present, which
//! needs no other exit. If the next writes are a run all the same, this takes twice as many faults the next time.
//!
//! The choice costs time when it is wrong, and nothing else: a table is write-protected or unsync by the same rules as any other.

use super::Shadow;
use super::left_out::Step;
use super::pool::PageId;
use super::role::HOST_WRITABLE;
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, PRESENT};
use crate::paging::p2m::P2m;

/// Shadow pages of a table whose entry is filled at a write: all that most have, and fewer than an operation may fill.
const FOLLOWED: usize = 4;
/// A table is write-protected again after at most 2 to the power of this many faults.
const PATIENCE: u8 = 6;
/// In [`Writing::last`]: none.
const NONE: u16 = ENTRIES as u16;

/// What the writes to a table of level 1 were like; each of its shadow pages has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Writing {
    /// The entry that was written last since the table was write-protected.
    last: u16,
    /// How often more than not the guest wrote a run of entries after the table had been write-protected again.
    runs: u8,
    /// The guest's faults at entries that are not present, since the table is unsync.
    missed: u8,
}

impl Writing {
    /// Nothing is known. Many tables belong to processes that live for some ten faults there, most of which map runs of a file's
    /// pages: those do not pay for protections that come to nothing. One in which the guest pages on demand pays eight faults.
    pub(super) const NEW: Writing = Writing { last: NONE, runs: 3, missed: 0 };

    /// The table is write-protected from here on.
    pub(super) fn protected(&mut self) {
        (self.last, self.missed) = (NONE, 0);
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Whether the guest's INVLPG may do without an exit: what it flushes in the processor is all that it has to, because no
    /// table is unsync. Several VCPUs would have to be stopped before the first one becomes so.
    #[inline(always)]
    pub fn passes_invlpg(&self) -> bool {
        F::FILTERS_FAULTS && !self.is_shared && self.unsync.is_empty() && !self.is_modelled()
    }

    /// Whether a table of level 1, to which the guest is about to write at `at`, stays write-protected.
    pub(super) fn stays_protected(&mut self, memory: &impl GuestMemory, at: Hpa) -> bool {
        if !self.pool.filters_faults() || self.is_modelled() || !self.tuning.demand {
            return false;
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(at.frame(), seen) {
            seen += 1;
            if !self.writes_on_demand(memory, id, at.offset()) {
                return false;
            }
        }
        true
    }

    /// The same of one of its pages.
    fn writes_on_demand(&mut self, memory: &impl GuestMemory, id: PageId, offset: u64) -> bool {
        let page = self.pool.page(id);
        let Some(index) = page.key.entries_at(offset, 1).next() else { return true };
        let (key, base) = (page.key, page.gfn.base().0);
        let is_empty = |index: usize| {
            let at = Gpa(base + key.entry_offset(index));
            self.pool.is_absent(id, index)
                || memory.read_entry(at, key.entry_bytes()).is_ok_and(|raw| raw & PRESENT == 0)
        };
        let last = usize::from(page.writing.last);
        let is_filled = last < ENTRIES && page.is_present(last);
        let is_unused = if is_filled {
            self.pool.entry(id, last) & ACCESSED == 0
        } else {
            last < ENTRIES && !is_empty(last)
        };
        if is_unused {
            let writing = &mut self.pool.page_mut(id).writing;
            writing.runs = writing.runs.saturating_add(1).min(PATIENCE);
            return false;
        }
        let on_demand = index == last || is_empty(index);
        if on_demand && is_filled {
            let page = self.pool.page_mut(id);
            page.writing.runs = page.writing.runs.saturating_sub(1);
            // It is in use, although no fault says so.
            page.writes = 0;
        }
        on_demand
    }

    /// Follows a write to one entry of a table of level 1 that stays write-protected: what is there now is filled, if the
    /// guest can use it. `seen`: the pages of the table that have followed before.
    pub(super) fn follow_write(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        (id, seen): (PageId, usize),
        index: usize,
    ) {
        let page = self.pool.page(id);
        let (key, base) = (page.key, page.gfn.base().0);
        if key.tree().is_of_phase() && !self.left_out.is(Step::AskFollowed) {
            return;
        }
        if page.unsync || !key.is_plain_table() || key.level() != 1 || seen > FOLLOWED || self.is_modelled() {
            return;
        }
        self.pool.page_mut(id).writing.last = index as u16;
        let Ok(raw) = memory.read_entry(Gpa(base + key.entry_offset(index)), key.entry_bytes()) else {
            return;
        };
        if raw & PRESENT == 0 {
            return self.pool.mark_absent(id, index);
        }
        // As where entries are filled ahead; here it may be another VCPU's registers that say what is reserved.
        let is_same = self.recent.means.is_some_and(|means| key.reads_entries_as(means));
        if !is_same || raw & ACCESSED == 0 || raw & self.reserved != 0 {
            return;
        }
        let Some(to) = self.place_ahead(p2m, key, Gpa(raw & ADDRESS)) else { return };
        let writable = !self.pool.is_write_protected(to.frame());
        let entry = self.typed(key.leaf(raw, to, writable) | HOST_WRITABLE, 1) & !ACCESSED;
        self.pool.map_at(id, index, 1, entry, raw);
        // What the guest touches next, if it goes upwards.
        let next = index + 1;
        if next < ENTRIES && !self.pool.page(id).is_present(next) && !self.pool.is_absent(id, next) {
            self.mark_absent_near(memory, id, next);
        }
    }

    /// The guest has faulted at an entry of level 1 that is not present.
    pub(super) fn see_absent(&mut self, memory: &impl GuestMemory, id: PageId, index: usize) {
        if self.pool.page(id).unsync && !self.protects_again(id) {
            return;
        }
        let frame = Hfn(self.pool.page(id).key.number());
        self.write_protect(memory, frame);
        self.mark_absent_near(memory, id, index);
    }

    /// Whether a table that is unsync is write-protected for a fault at an entry that is not present.
    fn protects_again(&mut self, id: PageId) -> bool {
        let page = self.pool.page_mut(id);
        page.writing.missed = page.writing.missed.saturating_add(1);
        let is_due = page.writing.missed >= 1 << page.writing.runs;
        // With others it would take a shootdown; and nothing is marked while tables above level 1 may be written unseen.
        let can_mark = self.pool.filters_faults() && !self.pool.upper_unsync;
        is_due && can_mark && !self.is_shared && !self.is_modelled() && self.tuning.demand
    }

    /// The guest has flushed a page at `gva` with an exit, because there are unsync tables, though its own is none of them. Those to
    /// which nothing happens for a number of such flushes are write-protected again, so that the next ones need no exit.
    pub(super) fn count_invlpg(&mut self, memory: &impl GuestMemory, gva: Gva) {
        if !F::FILTERS_FAULTS || self.is_shared || self.unsync.is_empty() || self.pool.upper_unsync {
            return;
        }
        if self.table_of_leaves(gva).is_some_and(|id| self.pool.page(id).unsync) {
            return;
        }
        self.invlpgs = self.invlpgs.saturating_add(1);
        if self.invlpgs >= self.tuning.invlpgs {
            self.invlpgs = 0;
            self.resync_leaves::<false>(memory, self.tuning.quiet.div_ceil(2));
        }
    }
}

#[cfg(test)]
mod tests;
