//! Flushes by the guest: what nested pages hold is dropped where the guest's entries do not say it any more.
//!
//! A load of CR3 and a flush of everything compare all nested pages that are reached from the root; INVLPG those above level 1,
//! because processors drop all that they have cached of upper entries (Intel SDM 3, 4.10.4.1; AMD APM 2, 5.5.2), and the
//! entries of its own address. A page that nothing from the root leads to is compared when a link to it is made. So what a
//! VCPU reaches is never older than its last flush.

use super::super::Shadow;
use super::super::left_out::Step;
use super::super::pool::PageId;
use super::super::role::{Allowed, Controls, Key, Role, Source};
use super::super::slow_path::index;
use crate::arch::addr::{Gpa, Gva, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::x86::{
    ACCESSED, ADDRESS, DIRTY, GLOBAL, LARGE, NO_EXECUTE, PRESENT, leaf_address, pat_index,
};
use crate::paging::format::{PteFormat, reserved_address_bits};
use crate::paging::guest_walk::PagingKind;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// The guest flushes everything, and then uses this root: brings the nested pages below it in step, and the other unsync pages.
    pub(in super::super) fn sync_all(&mut self, memory: &impl GuestMemory, root: Option<PageId>) {
        self.resync_leaves::<true>(memory, 1);
        if let Some(root) = root {
            self.sync_from(memory, root, true);
        }
        self.drop_unlinked();
        self.drops_seen = self.dropped_links;
    }

    /// The guest flushes an address.
    pub(in super::super) fn sync_address(&mut self, memory: &impl GuestMemory, gva: Gva) {
        if let Some(root) = self.pool.root() {
            self.sync_from(memory, root, false);
        }
        self.drop_unlinked();
        let at = index(gva, 1);
        match self.table_of_leaves(gva).map(|id| self.pool.page(id).key) {
            // In all pages of the table: another may be linked in its place.
            Some(key) if key.is_table() => {
                let mut seen = 0;
                while let Some(id) = self.pool.nth_shadow(Hfn(key.number()), seen) {
                    seen += 1;
                    let page = self.pool.page(id);
                    if page.unsync && page.key.level() == 1 {
                        self.resync_entry(memory, id, at);
                    }
                }
            }
            Some(_) => {}
            // Nested pages are compared when they are linked.
            None => {
                for n in 0..self.unsync.len() {
                    let id = self.unsync[n].id;
                    let page = self.pool.page(id);
                    if !page.nested && page.key.level() == 1 {
                        self.resync_entry(memory, id, at);
                    }
                }
            }
        }
    }

    /// Brings the nested pages that are reached from a page in step, those of level 1 too if `leaves`. Pages to which nothing leads
    /// any more are left to the caller: the present operation may be about to link one.
    pub(in super::super) fn sync_from(&mut self, memory: &impl GuestMemory, id: PageId, leaves: bool) {
        if self.agile.is_some() {
            self.syncs += 1;
            self.sync_below(memory, id, leaves);
        }
    }

    /// As deep as there are levels; each page once.
    fn sync_below(&mut self, memory: &impl GuestMemory, id: PageId, leaves: bool) {
        let page = self.pool.page_mut(id);
        let is_seen = core::mem::replace(&mut page.synced, self.syncs) == self.syncs;
        if is_seen || !page.nested && !page.nested_below {
            return;
        }
        let (nested, level) = (page.nested, page.key.level());
        if level == 1 {
            if nested && leaves && !self.left_out.is(Step::CompareNestedLeaves) {
                self.resync_page(memory, id);
            }
            return;
        }
        if nested && !self.left_out.is(Step::CompareNestedLinks) {
            self.compare_nested(memory, id);
        }
        let mut from = 0;
        while let Some(index) = self.pool.page(id).next_present(from) {
            from = index + 1;
            if let Some(child) = self.pool.child(id, index) {
                self.sync_below(memory, child, leaves);
            }
        }
    }

    /// Drops the entries of a page above level 1 that say something else than the guest's entries say now.
    pub(super) fn compare_nested(&mut self, memory: &impl GuestMemory, id: PageId) {
        let Some(physical_bits) = self.agile.as_ref().map(|agile| agile.physical_bits) else { return };
        let before = self.statistics.resynced_entries;
        self.drop_changed(memory, id, |shadow, key, now, index, child| {
            let page = shadow.pool.page(child);
            !is_unusual(key, now, physical_bits)
                && match now & LARGE {
                    0 => {
                        // Where the table is follows from the P2m, whose changes zap.
                        let same = Hfn(page.key.number());
                        page.gfn == Gpa(now & ADDRESS).frame() && page.key == key.below(now, index, same)
                    }
                    _ => page.key == direct_key(key, now),
                }
        });
        self.dropped_links += self.statistics.resynced_entries - before;
    }
}

/// Whether an entry above level 1 is not in use, or may have reserved bits set: a use of it fills the shadow entry again.
fn is_unusual(key: Key, now: u64, physical_bits: u8) -> bool {
    const USED: u64 = PRESENT | ACCESSED;
    let level = key.level();
    let mut unusual = reserved_address_bits(physical_bits);
    if !key.controls().contains(Controls::NO_EXECUTE) {
        unusual |= NO_EXECUTE;
    }
    match level {
        2 | 3 if now & LARGE != 0 => {
            // Below the address; the lowest of them is the PAT bit.
            let span = 1u64 << (12 + 9 * (u32::from(level) - 1));
            unusual |= (span - 1) & !0x1fff;
        }
        2 => {}
        3 => unusual |= GLOBAL,
        _ => unusual |= GLOBAL | LARGE,
    }
    now & (USED | unusual) != USED
}

/// The key of the direct page under a large page of the guest, for an entry of a page with this key.
fn direct_key(key: Key, now: u64) -> Key {
    let rights = key.rights(now);
    let write = rights.writable && now & DIRTY != 0;
    let global = now & GLOBAL != 0 && key.controls().contains(Controls::GLOBAL);
    let role = Role {
        level: key.level() - 1,
        kind: PagingKind::Off,
        quadrant: 0,
        controls: Controls::empty(),
        allowed: Allowed::of(write, rights.user, rights.executable),
        source: Source::Direct(pat_index(now, key.level()) | u8::from(global) << 3),
        tree: key.role().tree,
        guarded: false,
    };
    Key::new(leaf_address(now, key.level()) >> 12, role)
}
