//! The fast path of a page fault: where [`super::leaf_lookup`] finds the page of level 1, only one guest entry must be read;
//! under a large page none, because all that its small leaves depend on is in their page's key.
//!
//! All other cases (reserved bits, CR0.WP clear, memory that is not RAM, a race with another VCPU) take the
//! [slow path](super::slow_path).

use core::ops::Range;

use super::fault::{AddressSpace, PageFault};
use super::leaf_lookup::Leaf;
use super::pool::PageId;
use super::role::HOST_WRITABLE;
use super::slow_path::index;
use super::{Shadow, ShadowOutcome, TlbFlush};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SHIFT};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, DIRTY, PRESENT};
use crate::paging::guest_walk::error_code;
use crate::paging::p2m::{P2m, P2mEntry};

/// What an entry that is filled ahead has.
const WANTED_NEAR: u64 = PRESENT | ACCESSED;

/// The last leaf that was filled ahead, without its address: most neighbours have the same rights.
#[derive(Default)]
struct LastLeaf {
    /// The guest's entry without its address, and whether the memory may be written in the lowest of the address's bits. Never 0
    /// for a leaf, which is present.
    made_from: u64,
    /// The shadow entry without its address.
    bits: u64,
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Handles a fault on the fast path, at an entry of this page. `None`: it needs the slow path, and nothing has changed but
    /// accessed and dirty bits that may be set.
    #[inline(always)]
    pub(super) fn fast_path(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        leaf: Leaf,
    ) -> Option<ShadowOutcome> {
        if !leaf.key.is_plain_table() {
            return self.fast_path_direct(space, fault, &leaf);
        }
        let (AddressSpace { p2m, ram, state }, PageFault { gva, access }) = (space, fault);
        let index = index(gva, 1);
        let raw = leaf.read(ram, index)?;
        if raw & PRESENT == 0 {
            // Where the processor filters faults by their error code (VT-x), the next one here needs no exit.
            if F::FILTERS_FAULTS {
                self.see_absent(ram, leaf.table, index);
            }
            return Some(ShadowOutcome::GuestFault(fault.code(state, 0)));
        }
        if raw & self.reserved != 0 {
            return None;
        }
        let rights = leaf.key.rights(raw);
        if !state.allows(access, rights) {
            return Some(ShadowOutcome::GuestFault(fault.code(state, error_code::PRESENT)));
        }
        // Allowed although read-only: a supervisor write with CR0.WP clear, for which the slow path has a rule of its own.
        if access.write && !rights.writable {
            return None;
        }
        let bits = if access.write { ACCESSED | DIRTY } else { ACCESSED };
        // Before the shadow entry exists, as a processor does: an entry is used only once its bits are set. The exchange fails
        // if another processor has changed the entry since it was read.
        let now = raw | bits;
        if now != raw {
            let set = ram.compare_exchange(leaf.at(index), leaf.bytes as usize, raw, now);
            if set != Ok(true) {
                return None;
            }
        }
        let to = self.place(p2m, Gpa(now & ADDRESS))?;
        // A frame that holds a guest table with a shadow is mapped read-only, so that writes to it are seen.
        let writable = self.may_write(ram, Hpa(to.0 | gva.offset()), access);
        if access.write && !writable {
            return Some(ShadowOutcome::EmulateWrite(Gpa(now & ADDRESS | gva.offset())));
        }
        self.put(&leaf, index, gva, now, to, writable);
        let prefetched = self.prefetch_near(p2m, ram, &leaf, index);
        Some(ShadowOutcome::Filled { prefetched })
    }

    /// The same under a large page.
    fn fast_path_direct(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        leaf: &Leaf,
    ) -> Option<ShadowOutcome> {
        // One of its pages must stay read-only, and is found by its address only on the slow path: see `guard`.
        if leaf.key.is_guarded() {
            return None;
        }
        let (AddressSpace { p2m, ram, state }, PageFault { gva, access }) = (space, fault);
        let rights = leaf.key.direct_rights();
        if !state.allows(access, rights) || access.write && !rights.writable {
            return None;
        }
        let index = index(gva, 1);
        let gpa = Gpa(leaf.first.0 + ((index as u64) << 12));
        let to = self.place(p2m, gpa)?;
        let writable = self.may_write(ram, Hpa(to.0 | gva.offset()), access);
        if access.write && !writable {
            return Some(ShadowOutcome::EmulateWrite(Gpa(gpa.0 | gva.offset())));
        }
        self.put_direct(leaf, index, gva, to, writable);
        let prefetched = self.prefetch_direct(p2m, leaf, index, gva);
        Some(ShadowOutcome::Filled { prefetched })
    }

    /// Whether the guest may write to the page at `at` by itself. If it wants to, there: what shadows it goes if it is a table that
    /// nothing leads to, which was one of an address space that is gone, or will be found again.
    #[inline(always)]
    pub(super) fn may_write(&mut self, memory: &impl GuestMemory, at: Hpa, access: Access) -> bool {
        !self.pool.is_write_protected(at.frame()) || access.write && self.unprotect(memory, at)
    }

    #[inline(never)]
    fn unprotect(&mut self, memory: &impl GuestMemory, at: Hpa) -> bool {
        self.drop_dead(at.frame());
        !self.pool.is_write_protected(at.frame()) || self.allow_write(memory, at)
    }

    /// The memory at `gpa`, if it is plain RAM.
    #[inline(always)]
    pub(super) fn place(&self, p2m: &P2m<impl TableMemory>, gpa: Gpa) -> Option<Hpa> {
        match p2m.translate(gpa) {
            P2mEntry::Ram { hpa, writable: true } => Some(hpa),
            _ => None,
        }
    }

    /// The same, for an access that may never come: a page that the pager holds stays there.
    #[inline(always)]
    pub(super) fn place_ahead(&self, p2m: &P2m<impl TableMemory>, gpa: Gpa) -> Option<Hpa> {
        match p2m.peek(gpa) {
            P2mEntry::Ram { hpa, writable: true } => Some(hpa),
            _ => None,
        }
    }

    /// Makes the shadow entry of a guest entry with its accessed bit set.
    #[inline]
    fn put(&mut self, leaf: &Leaf, index: usize, gva: Gva, raw: u64, to: Hpa, writable: bool) {
        let entry = leaf.key.leaf(raw, to, writable) | HOST_WRITABLE;
        self.put_entry(leaf.table, index, gva, entry, raw);
    }

    /// Makes the shadow entry of a page of 4 KiB in a split large page.
    fn put_direct(&mut self, leaf: &Leaf, index: usize, gva: Gva, to: Hpa, writable: bool) {
        let entry = leaf.key.direct_leaf(to, writable) | HOST_WRITABLE;
        self.put_entry(leaf.table, index, gva, entry, 0);
    }

    #[inline(always)]
    fn put_entry(&mut self, table: PageId, index: usize, gva: Gva, entry: u64, guest_pte: u64) {
        let entry = self.typed(entry, 1);
        if self.pool.page(table).is_present(index) {
            self.replace(table, index, gva, entry);
        }
        self.pool.map_at(table, index, 1, entry, guest_pte);
    }

    /// Empties an entry that is about to become another one.
    #[inline]
    fn replace(&mut self, table: PageId, index: usize, gva: Gva, entry: u64) {
        // Only this address's translation can be stale, and only if the entry says something else now.
        if self.pool.entry(table, index) != entry {
            self.pool.owed = self.pool.owed.and(TlbFlush::Page(gva));
        }
        self.pool.zap(table, index);
    }

    /// Makes an empty entry the leaf of a guest entry with its accessed bit set, ahead of its use.
    #[inline(always)]
    fn put_ahead(
        &mut self,
        leaf: &Leaf,
        index: usize,
        raw: u64,
        to: Hpa,
        writable: bool,
        last: &mut LastLeaf,
    ) {
        let made_from = raw & !ADDRESS | u64::from(writable) << PAGE_SHIFT;
        if last.made_from != made_from {
            let bits = self.typed(leaf.key.leaf(raw, Hpa(0), writable) | HOST_WRITABLE, 1);
            *last = LastLeaf { made_from, bits };
        }
        self.pool.map_at(leaf.table, index, 1, to.0 | last.bits, raw);
    }

    /// Fills empty entries around the one that was needed: upwards and downwards as long as the guest has accessed them
    /// before, and they are not filled yet.
    #[inline(always)]
    pub(super) fn prefetch_near(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        own: usize,
    ) -> u8 {
        // A power of two, so that windows are aligned. A neighbour costs the read of a guest entry in the same line of the cache,
        // a fault that it spares more than a thousand cycles.
        let window = usize::from(self.tuning.window);
        let first = own & !(window - 1);
        // Windows are within 64 entries, and each entry is looked at once.
        let present = self.pool.page(leaf.table).present_around(own);
        let is_empty = |index: usize| present >> (index % 64) & 1 == 0;
        // Where the guest touches new pages in order there is nothing to fill on either side: most faults end here.
        let up = own + 1 < first + window && is_empty(own + 1) && self.wants_near(memory, leaf, own + 1);
        let down = own > first && is_empty(own - 1) && self.wants_near(memory, leaf, own - 1);
        if !up && !down {
            return 0;
        }
        let up = if up { own + 1..first + window } else { 0..0 };
        let down = if down { first..own } else { 0..0 };
        self.fill_neighbours(p2m, memory, leaf, present, (up, down))
    }

    /// Fills entries upwards, and others downwards, each until the first that cannot be.
    #[inline(never)]
    fn fill_neighbours(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        present: u64,
        (up, down): (Range<usize>, Range<usize>),
    ) -> u8 {
        let is_empty = |index: &usize| present >> (index % 64) & 1 == 0;
        let mut filled = 0;
        let mut last = LastLeaf::default();
        for index in up.take_while(is_empty) {
            if !self.fill_near(p2m, memory, leaf, index, &mut last) {
                break;
            }
            filled += 1;
        }
        for index in down.rev().take_while(is_empty) {
            if !self.fill_near(p2m, memory, leaf, index, &mut last) {
                break;
            }
            filled += 1;
        }
        filled
    }

    /// Whether the guest has used the page of an entry, so that it may be filled ahead.
    #[inline(always)]
    fn wants_near(&mut self, memory: &impl GuestMemory, leaf: &Leaf, index: usize) -> bool {
        let Some(raw) = leaf.read(memory, index) else { return false };
        if F::FILTERS_FAULTS && raw & PRESENT == 0 {
            // Most likely the next that the guest touches.
            self.pool.mark_absent(leaf.table, index);
        }
        raw & WANTED_NEAR == WANTED_NEAR
    }

    /// Fills one entry, which is empty, ahead of its use; returns whether it did.
    #[inline(always)]
    fn fill_near(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        index: usize,
        last: &mut LastLeaf,
    ) -> bool {
        let Some(raw) = leaf.read(memory, index) else { return false };
        if F::FILTERS_FAULTS && raw & PRESENT == 0 {
            // Most likely the next that the guest touches.
            self.pool.mark_absent(leaf.table, index);
        }
        // Without the accessed bit it must not be filled: the processor would use the entry and the guest never see the bit.
        if raw & WANTED_NEAR != WANTED_NEAR || raw & self.reserved != 0 {
            return false;
        }
        let Some(to) = self.place_ahead(p2m, Gpa(raw & ADDRESS)) else { return false };
        let writable = !self.pool.is_write_protected(to.frame());
        self.put_ahead(leaf, index, raw, to, writable, last);
        true
    }

    /// Fills empty entries around the one that was needed, under a large page.
    pub(super) fn prefetch_direct(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        leaf: &Leaf,
        own: usize,
        gva: Gva,
    ) -> u8 {
        let window = usize::from(self.tuning.direct_window);
        let first = own & !(window - 1);
        let region = gva.0 & !0x1f_ffff;
        let mut filled = 0;
        let mut from = first;
        while let Some(index) = self.pool.page(leaf.table).next_empty(from)
            && index < (first + window).min(ENTRIES)
        {
            from = index + 1;
            let offset = (index as u64) << 12;
            if let Some(to) = self.place_ahead(p2m, Gpa(leaf.first.0 + offset)) {
                let writable = !self.pool.is_write_protected(to.frame());
                self.put_direct(leaf, index, Gva(region | offset), to, writable);
                filled += 1;
            }
        }
        filled
    }
}
