//! Address spaces that come and go: what a new root has in common with the one in use, and what is left of one that dies.
//!
//! A guest makes an address space by copying the entries of its kernel into a new root table, and ends it by clearing the
//! entries of its user, table by table, from below. Either is seen here without a fault for each entry.

use super::Shadow;
use super::fault::AddressSpace;
use super::pool::{Page, PageId};
use super::role::Key;
use super::root::root_key;
use super::sync::Unsync;
use crate::arch::addr::{Gpa, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, LARGE, PRESENT};
use crate::paging::guest_walk::reserved;

/// The first entry of a root table for addresses whose highest bit is set.
const UPPER_HALF: usize = 256;
/// Pages that are looked at to find out whether an address space is at its end: more than a process has, mostly.
const FEW: u32 = 64;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Links below a root that was just made what is linked below the root in use, wherever the guest's entries lead to the same
    /// tables with the same rights. Only entries that the guest has used already are looked at: no accessed bit is set.
    #[inline(never)]
    pub(super) fn inherit_links(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        root: PageId,
    ) {
        let AddressSpace { p2m, ram, state } = space;
        let Some(used) = self.pool.root() else { return };
        let (key, base) = (self.pool.page(root).key, self.pool.page(root).gfn.base());
        // While tables above level 1 are unsync, links may lead elsewhere than the guest's entries.
        if self.pool.upper_unsync && self.agile.is_none()
            || !key.is_table()
            || key.level() != 4
            || self.pool.page(used).key.level() != 4
        {
            return;
        }
        let forbidden = LARGE | reserved(state, 4);
        let mut from = 0;
        while let Some(index) = self.pool.page(used).next_present(from) {
            from = index + 1;
            let Some(child) = self.pool.child(used, index) else { continue };
            let at = base.0 + key.entry_offset(index);
            let Ok(raw) = ram.read_entry(Gpa(at), key.entry_bytes()) else { continue };
            // Without the accessed bit the guest must not be able to use the entry before a fault has set it.
            if raw & (PRESENT | ACCESSED | forbidden) != PRESENT | ACCESSED {
                continue;
            }
            let Some(to) = p2m.peek(Gpa(raw & ADDRESS)).readable() else { continue };
            if self.pool.page(child).key == key.below(raw, index, to.frame())
                && !self.pool.page(root).is_present(index)
            {
                self.connect(root, index, child);
            }
        }
        if self.pool.upper_unsync {
            // Not by way of the root that was in use: that has not been flushed.
            self.sync_from(ram, root, true);
        }
    }

    /// The guest has taken an entry away from a table: perhaps the last one of its user in a root, which it frees soon.
    pub(super) fn see_root_die(&mut self, id: PageId) {
        let page = self.pool.page(id);
        if page.key.level() == 4 && page.key.is_table() && !Self::has_lower_half(page) {
            self.dying = Some(id);
        }
    }

    fn has_lower_half(page: &Page) -> bool {
        page.next_present(0).is_some_and(|index| index < UPPER_HALF)
    }

    /// Frees the root that the guest is about to free, as soon as no VCPU has it any more: the guest would fault when it
    /// writes to the table.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_dying_root(&mut self) {
        let Some(id) = self.dying.filter(|&id| self.pool.root() != Some(id)) else { return };
        self.dying = None;
        let page = self.pool.page(id);
        let is_root = page.is_in_use() && page.key.is_table() && page.key.level() == 4 && !page.unsync;
        if is_root && !Self::has_lower_half(page) && self.pool.is_orphan(id) {
            // What hangs on it is the kernel's, and found again.
            self.statistics.dead += 1;
            self.free(id);
        }
    }

    /// The guest has taken a table of level 1 away from this page of level 2. If no user memory is mapped any more below the
    /// root, it takes all others away next, table by table: then their shadow pages go now, so that it does not fault at each.
    ///
    /// Whether an address space ends is a guess, and a wrong one costs faults that fill the pages again. Guests that unmap the
    /// memory of a process before they free its tables (Linux does) are always understood.
    #[inline(never)]
    pub(super) fn see_space_end(&mut self, memory: &impl GuestMemory, id: PageId) {
        let Some(root) = self.user_root(id) else { return };
        if self.maps_any(memory, root, UPPER_HALF, &mut { FEW }) {
            return;
        }
        let mut from = 0;
        while let Some(index) = self.pool.page(root).next_present(from).filter(|&index| index < UPPER_HALF) {
            self.unlink(root, index);
            from = index + 1;
        }
        self.drop_unlinked();
        if self.pool.is_orphan(root) {
            self.statistics.dead += 1;
            self.free(root);
        } else {
            self.dying = Some(root);
            self.open_dying_root(memory, root);
        }
    }

    /// The root of four levels to which a page of level 2 belongs: one of them, if there are several.
    fn user_root(&self, id: PageId) -> Option<PageId> {
        if !self.pool.page(id).is_in_use() {
            return None;
        }
        let (above, _) = self.pool.parent(id)?;
        let (root, index) = self.pool.parent(above)?;
        // What is unsync may lead elsewhere than the guest's entries.
        if self.pool.upper_unsync && [id, above, root].iter().any(|&id| self.pool.page(id).unsync) {
            return None;
        }
        let key = self.pool.page(root).key;
        (key.level() == 4 && key.is_plain_table() && index < UPPER_HALF).then_some(root)
    }

    /// Whether one of the first `end` entries of a page leads to memory that the guest still maps, as far as it is shadowed. After
    /// `rest` more pages: yes.
    fn maps_any(&self, memory: &impl GuestMemory, id: PageId, end: usize, rest: &mut u32) -> bool {
        let page = self.pool.page(id);
        // Bounded, because the guest decides how much there is to look at, and the VM's lock is held.
        *rest = rest.saturating_sub(1);
        if *rest == 0 || !page.key.is_plain_table() {
            return true;
        }
        let mut from = 0;
        while let Some(index) = page.next_present(from).filter(|&index| index < end) {
            from = index + 1;
            let is_mapped = match self.pool.child(id, index) {
                Some(child) => self.maps_any(memory, child, ENTRIES, rest),
                // In step with the guest's entry, which is present.
                None if !page.unsync => true,
                None => {
                    let at = Gpa(page.gfn.base().0 + page.key.entry_offset(index));
                    memory.read_entry(at, page.key.entry_bytes()).is_ok_and(|raw| raw & PRESENT != 0)
                }
            };
            if is_mapped {
                return true;
            }
        }
        false
    }

    /// The guest writes to the table of a dying root without a fault, until another root is loaded: it clears the entries of its
    /// user one by one.
    fn open_dying_root(&mut self, memory: &impl GuestMemory, root: PageId) {
        let frame = Hfn(self.pool.page(root).key.number());
        let is_wanted = !F::FILTERS_FAULTS
            && self.pool.root() == Some(root)
            && self.tuning.unsync_after == 0
            && self.has_unsync_room(1)
            && !self.pool.is_root_of_others(root)
            && self.pool.shadows(frame).count() == 1;
        if is_wanted {
            self.pool.begin_upper_unsync();
            self.unsync_table(memory, frame, 1);
            self.pool.unprotect(frame);
        }
    }

    /// Another root is about to be loaded. If the one in use is dying, and the guest writes to its table, that need not be
    /// write-protected again: the root goes with this load ([`Self::drop_dying_root`]).
    #[cold]
    #[inline(never)]
    pub(super) fn leave_dying_root(&mut self, space: AddressSpace<'_, impl TableMemory, impl GuestMemory>) {
        let Some(id) = self.dying.filter(|&id| self.pool.root() == Some(id)) else { return };
        let page = self.pool.page(id);
        let (key, _) = root_key(space.p2m, space.state, self.current_vcpu, self.tree);
        let is_left = page.is_in_use()
            && page.unsync
            && !page.nested
            && page.key.is_table()
            && page.key.level() == 4
            && key.number() != page.key.number()
            // Others of the table would stay unsync beside it, for an instruction that is not executed in software.
            && self.pool.shadows(Hfn(page.key.number())).count() == 1
            && !Self::has_lower_half(page)
            && !page.is_linked()
            && !self.pool.is_root_of_others(id);
        if is_left {
            self.pool.forget_former_root();
            self.pool.page_mut(id).unsync = false;
            self.unsync.retain(|other| other.id != id);
            self.note_upper_unsync();
        }
    }

    /// Whether the guest goes on writing to a table of this level that is shadowed for the first time: it can, so it has just
    /// made the table, and will hardly have made all its entries. That spares it the fault of the next write, and the
    /// other VCPUs a shootdown. Where processors deliver page faults to the guest by themselves, they do so only below tables
    /// that are write-protected.
    pub(super) fn starts_unsync(&self, level: u8, frame: Hfn) -> bool {
        level == 1
            && !F::FILTERS_FAULTS
            && self.tuning.unsync_after == 0
            && self.has_unsync_room(1)
            && !self.pool.is_write_protected(frame)
            && self.pool.is_writable(frame)
    }

    /// The same of the table that a new page will have. If not, it is write-protected from here on.
    pub(super) fn starts_unsync_or_write_protect(&mut self, memory: &impl GuestMemory, key: Key) -> bool {
        let frame = Hfn(key.number());
        if self.agile.is_some() && self.starts_nested(memory, key) {
            return true;
        }
        let starts_unsync = self.starts_unsync(key.level(), frame);
        if !starts_unsync {
            self.write_protect(memory, frame);
        }
        starts_unsync
    }

    /// The guest writes to the table of a new page until its next flush.
    pub(super) fn start_unsync(&mut self, id: PageId) {
        let page = self.pool.page_mut(id);
        (page.unsync, page.quiet) = (true, 0);
        let key = page.key;
        self.unsync.push(Unsync::new(id, key.number()));
        self.statistics.unsynced += 1;
        // Of tables that may be nested, only nested ones begin so.
        if self.may_be_nested(key) {
            if !self.pool.upper_unsync {
                self.pool.begin_upper_unsync();
            }
            self.begin_nested(id);
        }
    }

    /// Frees pages of levels 2 and 3 that have no entry left, from this one upwards: the guest has taken the last entry of a table
    /// away, and is about to do so above it. Roots of four levels are left to [`Self::drop_dying_root`].
    pub(super) fn drop_empty(&mut self, mut id: PageId) {
        loop {
            let page = self.pool.page(id);
            let is_empty = page.is_in_use() && page.next_present(0).is_none();
            let (level, is_table) = (page.key.level(), page.key.is_table());
            if level == 4 {
                return self.see_root_die(id);
            }
            if !is_empty || page.unsync || !is_table || level == 1 || self.pool.is_root(id) {
                return;
            }
            let parent = self.pool.parent(id);
            self.statistics.dead += 1;
            self.free(id);
            match parent {
                Some((parent, _)) => id = parent,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
