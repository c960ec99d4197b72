//! Writes to guest tables: dropped at once where tables are watched, found at the next flush where not.

use super::fill::index;
use super::pool::PageId;
use super::{Shadow, TlbFlush};
use crate::guest::mem::GuestMemory;
use crate::paging::addr::{Gpa, Gva, Hfn, PAGE_SIZE};
use crate::paging::format::x86::{ACCESSED, DIRTY, PRESENT};
use crate::paging::p2m::P2m;
use crate::paging::table::{ENTRIES, TableMemory};

/// Shadow pages that may be unsync at a time: a flush looks at each.
pub(super) const MAX_UNSYNC: usize = 64;

/// Whether a leaf made from a guest entry `then` says more than the entry does `now`. Accessed and dirty bits
/// that came to it do no harm.
fn is_stale(then: u64, now: u64) -> bool {
    const BITS: u64 = ACCESSED | DIRTY;
    (then ^ now) & !BITS != 0 || then & BITS & !now != 0
}

impl<M: TableMemory> Shadow<M> {
    /// `len` bytes of guest memory at `gpa` have been written by the hypervisor: the emulator or a device.
    pub fn written(&mut self, p2m: &P2m<impl TableMemory>, gpa: Gpa, len: u64) -> TlbFlush {
        self.pool.begin();
        let mut done = 0;
        while done < len {
            let Some(at) = gpa.checked_add(done) else { break };
            let part = (PAGE_SIZE - at.offset()).min(len - done);
            if let Some(hpa) = p2m.translate(at).readable() {
                self.written_frame(hpa.frame(), at.offset(), part);
            }
            done += part;
        }
        self.pool.take_owed()
    }

    fn written_frame(&mut self, frame: Hfn, offset: u64, len: u64) {
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let key = self.pool.page(id).key;
            for index in key.entries_at(offset, len) {
                self.drop_entry(id, index);
            }
            let page = self.pool.page_mut(id);
            page.writes = page.writes.saturating_add(1);
            if page.unsync || page.writes < self.tuning.flood {
                continue;
            }
            // Only written: perhaps no table any more.
            self.statistics.floods += 1;
            page.writes = 0;
            if self.pool.root == Some(id) {
                for index in 0..ENTRIES {
                    self.drop_entry(id, index);
                }
            } else {
                self.pool.release(id);
                seen -= 1;
            }
        }
    }

    /// Drops an entry that the guest has changed. The guest owes a flush; but it flushes a large page as one,
    /// with any address in it, and the processor may have it in pieces.
    fn drop_entry(&mut self, id: PageId, index: usize) {
        if self.pool.entry(id, index) & PRESENT == 0 {
            return;
        }
        let key = self.pool.page(id).key;
        let child = self.pool.child(id, index).map(|child| self.pool.page(child).key);
        let in_pieces = match child {
            // A 4 MiB page is two leaves; other leaves are all of their page.
            None => key.level() > 1 && key.entry_bytes() == 4,
            Some(child) if child.is_table() => key.level() > 2 && self.pool.has_pieces(),
            Some(_) => true,
        };
        if in_pieces {
            self.pool.owed = TlbFlush::All;
        }
        self.pool.zap(id, index);
    }

    /// Lets the guest write to a table, if it is one of level 1 only and has been written repeatedly. Returns
    /// whether it may.
    pub(super) fn let_write(&mut self, memory: &impl GuestMemory, frame: Hfn) -> bool {
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
        while self.unsync.len() + count > MAX_UNSYNC {
            let oldest = self.pool.page(self.unsync[0]).key.number();
            self.watch(memory, Hfn(oldest));
        }
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            let page = self.pool.page_mut(id);
            (page.unsync, page.quiet) = (true, 0);
            self.unsync.push(id);
        }
        self.statistics.unsynced += 1;
        true
    }

    /// Makes sure that the guest does not write to `frame` unseen, and that what shadows it is in step.
    pub(super) fn watch(&mut self, memory: &impl GuestMemory, frame: Hfn) {
        if self.pool.is_watched(frame) {
            return;
        }
        self.pool.protect(frame);
        let mut seen = 0;
        while let Some(id) = self.pool.nth_shadow(frame, seen) {
            seen += 1;
            self.resync_page(memory, id);
            let page = self.pool.page_mut(id);
            (page.unsync, page.writes) = (false, 0);
            self.unsync.retain(|&other| other != id);
        }
    }

    /// Drops what has changed in all tables that the guest writes itself.
    pub(super) fn resync_all(&mut self, memory: &impl GuestMemory) {
        for at in 0..self.unsync.len() {
            let id = self.unsync[at];
            let changed = self.resync_page(memory, id);
            let page = self.pool.page_mut(id);
            page.quiet = if changed { 0 } else { page.quiet.saturating_add(1) };
        }
        let limit = self.tuning.quiet;
        let done = |shadow: &Self, id| shadow.pool.is_orphan(id) || shadow.pool.page(id).quiet >= limit;
        while let Some(at) = self.unsync.iter().position(|&id| done(self, id)) {
            let id = self.unsync[at];
            if self.pool.is_orphan(id) {
                self.unsync.remove(at);
                self.pool.release(id);
            } else {
                self.watch(memory, Hfn(self.pool.page(id).key.number()));
            }
        }
    }

    /// Drops what has changed in a page of level 1; returns whether anything had.
    pub(super) fn resync_page(&mut self, memory: &impl GuestMemory, id: PageId) -> bool {
        let mut left = self.pool.page(id).present();
        let mut changed = false;
        for index in 0..ENTRIES {
            if left == 0 {
                break;
            }
            if self.pool.entry(id, index) & PRESENT != 0 {
                left -= 1;
                changed |= self.resync_entry(memory, id, index);
            }
        }
        changed
    }

    fn resync_entry(&mut self, memory: &impl GuestMemory, id: PageId, index: usize) -> bool {
        let page = self.pool.page(id);
        let at = Gpa(page.gfn.base().0 + page.key.entry_offset(index));
        let now = match page.key.entry_bytes() {
            4 => memory.read_u32(at).map(u64::from),
            _ => memory.read_u64(at),
        };
        let stale = now.map_or(true, |now| is_stale(self.pool.note(id, index), now));
        if stale {
            self.statistics.resynced_entries += 1;
            self.pool.zap(id, index);
        }
        stale
    }

    /// Drops the entry for one address under the root in use if it has changed.
    pub(super) fn resync_address(&mut self, memory: &impl GuestMemory, gva: Gva) {
        let Some(mut table) = self.pool.root else { return };
        let mut level = self.pool.page(table).key.level();
        while level > 1 {
            let Some(child) = self.pool.child(table, index(gva, level)) else { return };
            (table, level) = (child, level - 1);
        }
        let at = index(gva, 1);
        if self.pool.page(table).unsync && self.pool.entry(table, at) & PRESENT != 0 {
            self.resync_entry(memory, table, at);
        }
    }
}
