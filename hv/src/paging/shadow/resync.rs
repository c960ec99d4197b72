//! Comparing unsync pages with the guest's tables, at a flush of the guest's, and where a table is write-protected again.
//!
//! A comparison is by content: the pool's records have, for each present entry, the guest's entry that it was made from. Most are
//! equal, so the loops read 64 entries at a time and look closer at those that differ. An entry of which only rights or accessed
//! and dirty bits changed is corrected, all others go, and a fault fills them again.

use super::Shadow;
use super::left_out::Step;
use super::pool::{PageId, is_stale};
use super::role::{Controls, HOST_WRITABLE, Key};
use super::slow_path::index;
use super::sync::Unsync;
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, DIRTY, GLOBAL, NO_EXECUTE, PRESENT, USER, WRITE};
use core::hint::cold_path;

/// Whether an entry that can be a leaf still leads to the same memory, and no bit is reserved that was not.
fn only_rights_changed(key: Key, then: u64, now: u64) -> bool {
    const KEPT: u64 = PRESENT | ACCESSED;
    const SOFTWARE: u64 = 0xe00;
    let execute = if key.controls().contains(Controls::NO_EXECUTE) { NO_EXECUTE } else { 0 };
    let rights = WRITE | USER | ACCESSED | DIRTY | GLOBAL | SOFTWARE | execute;
    now & KEPT == KEPT && (then ^ now) & !rights == 0
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Drops what has changed in all tables that the guest writes itself; of the nested ones, in those below the root that is used
    /// `next`.
    pub(super) fn resync_all(
        &mut self,
        memory: &impl GuestMemory,
        next: impl FnOnce(&Self) -> Option<PageId>,
    ) {
        // Unsync tables of upper levels come first. What they lead to is known only then, and so is the root.
        if self.pool.upper_unsync && self.resync_upper(memory) {
            let root = next(self);
            return self.sync_all(memory, root);
        }
        self.resync_leaves::<false>(memory, 1);
    }

    /// The same of those of level 1 that are not nested; there are no others but nested ones, and these only with `NESTED`: the path
    /// of a load of CR3 has no test for them. Each that has not changed is quiet for `step` flushes more.
    #[inline(always)]
    pub(super) fn resync_leaves<const NESTED: bool>(&mut self, memory: &impl GuestMemory, step: u8) {
        // Seldom is one, and only then they are gone through again.
        let mut done = false;
        for at in 0..self.unsync.len() {
            let id = self.unsync[at].id;
            if NESTED && self.pool.page(id).nested {
                continue;
            }
            let changed = self.resync_page(memory, id);
            let page = self.pool.page_mut(id);
            // A table that was written since the last flush is likely to be written before the next.
            page.quiet = if changed { 0 } else { page.quiet.saturating_add(step) };
            done |= page.quiet >= self.tuning.quiet || !page.is_linked();
        }
        while done && let Some(at) = self.unsync.iter().position(|page| self.is_done::<NESTED>(page.id)) {
            let Unsync { id, number, .. } = self.unsync[at];
            if self.pool.is_orphan(id) {
                self.free(id);
            } else {
                self.write_protect(memory, Hfn(number));
            }
        }
    }

    /// Whether the guest need not write to an unsync table any more: nothing leads to it, or nothing has changed there for long.
    #[inline(always)]
    fn is_done<const NESTED: bool>(&self, id: PageId) -> bool {
        let page = self.pool.page(id);
        !(NESTED && page.nested) && (self.pool.is_orphan(id) || page.quiet >= self.tuning.quiet)
    }

    /// Brings a page of level 1 in step; returns whether anything had changed. Others are emptied.
    pub(super) fn resync_page(&mut self, memory: &impl GuestMemory, id: PageId) -> bool {
        let key = self.pool.page(id).key;
        if key.level() > 1 {
            // To compare links would mean to look whether each child is still the right page. Faults link them again.
            self.pool.flush_split();
            self.pool.clear(id);
            return true;
        }
        self.pool.page_mut(id).deferred = false;
        match key.entry_bytes() {
            4 => self.resync_entries::<4>(memory, id, key),
            _ => self.resync_entries::<8>(memory, id, key),
        }
    }

    fn resync_entries<const BYTES: u64>(&mut self, memory: &impl GuestMemory, id: PageId, key: Key) -> bool {
        let page = self.pool.page(id);
        let base = page.gfn.base().0;
        let mut any = false;
        for (word, present) in page.all_present().into_iter().enumerate() {
            if present == 0 {
                continue;
            }
            let first = word * 64;
            let at = Gpa(base + key.entry_offset(first));
            // Most are exactly what they were made from.
            let mut changed = 0;
            let notes = self.pool.notes(id, word);
            let mut read = memory.entries::<BYTES>(at, present, |n, now| {
                if now != notes.get(n) {
                    cold_path();
                    changed |= 1 << n;
                }
            });
            // Those that differ are read again, and judged by what they are at that read: other VCPUs write the table meanwhile.
            // Accessed and dirty bits that the guest's processor has set are the most common difference, and change little.
            if changed != 0 && read.is_ok() {
                let (mut rest, mut stale) = (0, 0);
                let mut leaves = self.pool.leaves_of(id, word);
                read = memory.entries::<BYTES>(at, changed, |n, now| {
                    if let Some(is_stale) = leaves.follow(key, n & 63, now) {
                        stale += u64::from(is_stale);
                    } else {
                        rest |= 1 << n;
                    }
                });
                self.statistics.resynced_entries += stale;
                any |= stale != 0;
                if rest != 0 && read.is_ok() {
                    any = true;
                    read = memory.entries::<BYTES>(at, rest, |n, now| self.change(id, key, first + n, now));
                }
            }
            // The table is no memory any more (the P2m changed): nothing can be read from it, so nothing may be made from it.
            if read.is_err() {
                self.pool.clear(id);
                return true;
            }
        }
        any
    }

    /// Brings a present entry of level 1 in step with the guest's, which is `now`, and has changed by more than accessed and
    /// dirty bits that came to it. With other rights on the same memory it stays, otherwise it goes.
    fn change(&mut self, id: PageId, key: Key, index: usize, now: u64) {
        self.statistics.resynced_entries += 1;
        let (raw, guest_pte) = self.pool.leaf(id, index);
        if !only_rights_changed(key, guest_pte, now) {
            return self.pool.zap(id, index);
        }
        // The entry may become writable here without a fault, so what a fault would look at has to be looked at: the P2m (which is
        // noted in the entry), and whether the frame is a table.
        let host_writable =
            raw & HOST_WRITABLE != 0 && !self.pool.is_write_protected(Hpa(raw & ADDRESS).frame());
        let entry = self.typed(key.leaf(now, Hpa(raw & ADDRESS), host_writable), 1);
        self.pool.change(id, index, entry | raw & HOST_WRITABLE, now);
    }

    /// Brings the entries for one address in step: in all pages of the table to which the root in use leads; where it leads to
    /// none at the moment, in whatever may be linked again, with entries that no flush by the guest would reach any more.
    pub(super) fn resync_address(&mut self, memory: &impl GuestMemory, gva: Gva) {
        if self.unsync.is_empty() {
            return self.flush_dropped_links();
        }
        if self.pool.upper_unsync && self.resync_upper(memory) {
            self.sync_address(memory, gva);
            return self.flush_dropped_links();
        }
        // The comparison is by table and not by shadow page: a table may have several, for other rights, registers or sets of
        // tables, and the guest's INVLPG is a promise about its entry in all of them ([`Shadow::load_in_tree`] counts on that).
        let table = self.table_of_leaves(gva);
        let number = table.map(|id| self.pool.page(id).key.number());
        let at = index(gva, 1);
        for n in 0..self.unsync.len() {
            let Unsync { id, number: own, .. } = self.unsync[n];
            // Without a table the address may belong to any of them.
            if number.is_some_and(|number| number != own) {
                continue;
            }
            if self.left_out.is(Step::CompareOtherTrees) && self.pool.page(id).key.tree() != self.tree {
                continue;
            }
            self.resync_entry(memory, id, at);
        }
        self.flush_dropped_links();
    }

    /// At a flush of an address the processor forgets the upper entries of this address alone, where the guest's would forget all. It
    /// may have cached others that have gone since its last such flush, whichever VCPU found that.
    #[inline(always)]
    fn flush_dropped_links(&mut self) {
        if self.drops_seen != self.dropped_links {
            self.drops_seen = self.dropped_links;
            self.pool.owe_own_flush();
        }
    }

    /// Brings an entry of a page of level 1 in step.
    #[inline(always)]
    pub(super) fn resync_entry(&mut self, memory: &impl GuestMemory, id: PageId, at: usize) {
        let page = self.pool.page(id);
        if page.is_present(at) {
            let key = page.key;
            let entry = Gpa(page.gfn.base().0 + key.entry_offset(at));
            match memory.read_entry(entry, key.entry_bytes()) {
                Ok(now) if !is_stale(self.pool.guest_pte(id, at), now) => {}
                Ok(now) => self.change(id, key, at, now),
                Err(_) => self.pool.zap(id, at),
            }
        }
    }
}
