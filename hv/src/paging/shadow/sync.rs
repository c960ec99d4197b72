//! Writes to guest tables: dropped at once where tables are write-protected, found at the next flush where not.

use super::left_out::Step;
use super::pool::{PageId, is_stale};
use super::role::{Controls, HOST_WRITABLE, Key};
use super::slow_path::index;
use super::{Shadow, TlbFlush};
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, DIRTY, GLOBAL, NO_EXECUTE, PRESENT, USER, WRITE};
use crate::paging::p2m::P2m;
use core::hint::cold_path;

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

/// Whether an entry that can be a leaf still leads to the same memory, and no bit is reserved that was not.
fn only_rights_changed(key: Key, then: u64, now: u64) -> bool {
    const KEPT: u64 = PRESENT | ACCESSED;
    const SOFTWARE: u64 = 0xe00;
    let execute = if key.controls().contains(Controls::NO_EXECUTE) { NO_EXECUTE } else { 0 };
    let rights = WRITE | USER | ACCESSED | DIRTY | GLOBAL | SOFTWARE | execute;
    now & KEPT == KEPT && (then ^ now) & !rights == 0
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
            for index in key.entries_at(offset, len) {
                self.unlink(id, index);
            }
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
            if page.key.level() != 1 {
                return false;
            }
            count += 1;
            writes = writes.max(page.writes);
        }
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

    /// Drops what has changed in all tables that the guest writes itself; of the nested ones, in those below the root that is used
    /// `next`.
    pub(super) fn resync_all(
        &mut self,
        memory: &impl GuestMemory,
        next: impl FnOnce(&Self) -> Option<PageId>,
    ) {
        if self.upper_unsync && self.resync_upper(memory) {
            let root = next(self);
            return self.sync_all(memory, root);
        }
        self.resync_leaves(memory, 1);
    }

    /// The same where all of them are of level 1. Each that has not changed is quiet for `step` flushes more.
    #[inline(always)]
    pub(super) fn resync_leaves(&mut self, memory: &impl GuestMemory, step: u8) {
        // Seldom is one, and only then they are gone through again.
        let mut done = false;
        for at in 0..self.unsync.len() {
            let id = self.unsync[at].id;
            let changed = self.resync_page(memory, id);
            let page = self.pool.page_mut(id);
            page.quiet = if changed { 0 } else { page.quiet.saturating_add(step) };
            done |= page.quiet >= self.tuning.quiet || !page.is_linked();
        }
        while done && let Some(at) = self.unsync.iter().position(|page| self.is_done(page.id)) {
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
    fn is_done(&self, id: PageId) -> bool {
        self.pool.is_orphan(id) || self.pool.page(id).quiet >= self.tuning.quiet
    }

    /// Brings a page of level 1 in step; returns whether anything had changed. Others are emptied.
    pub(super) fn resync_page(&mut self, memory: &impl GuestMemory, id: PageId) -> bool {
        let key = self.pool.page(id).key;
        if key.level() > 1 {
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
            return;
        }
        if self.upper_unsync && self.resync_upper(memory) {
            return self.sync_address(memory, gva);
        }
        // The comparison is by table and not by shadow page: a table may have several, for other rights or registers, and the
        // guest's INVLPG is a promise about its entry in all of them.
        let table = self.table_of_leaves(gva);
        let number = table.map(|id| self.pool.page(id).key.number());
        let at = index(gva, 1);
        for n in 0..self.unsync.len() {
            let Unsync { id, number: own, .. } = self.unsync[n];
            if number.is_some_and(|number| number != own) {
                continue;
            }
            self.resync_entry(memory, id, at);
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
