//! The fast path of a page fault: where [`super::leaf_lookup`] finds the page of level 1, only one guest entry must be read;
//! under a large page none, because all that its small leaves depend on is in their page's key.
//!
//! All other cases (reserved bits, CR0.WP clear, memory that is not RAM, a race with another VCPU) take the
//! [slow path](super::slow_path).
//!
//! It is written once for two ways to reach the tables ([`FastPath`]): exclusively, by `&mut Shadow`, or together with other VCPUs
//! that do the same ([`super::concurrent`]).

use core::ops::{Deref, Range};

use super::fault::{AddressSpace, PageFault};
use super::leaf_lookup::{Leaf, NotFound};
use super::pool::PageId;
use super::role::{HOST_WRITABLE, Key};
use super::slow_path::index;
use super::{Shadow, ShadowOutcome, TlbFlush};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SHIFT, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, DIRTY, PRESENT};
use crate::paging::guest_walk::error_code;
use crate::paging::p2m::P2m;

/// What an entry that is filled ahead has.
const WANTED_NEAR: u64 = PRESENT | ACCESSED;

/// The last leaf that was filled ahead, without its address: most neighbours have the same rights.
#[derive(Default)]
pub(super) struct LastLeaf {
    /// The guest's entry without its address, and whether the memory may be written in the lowest of the address's bits. Never 0
    /// for a leaf, which is present.
    made_from: u64,
    /// The shadow entry without its address.
    bits: u64,
}

/// A way to reach the tables, and the fast path in it. What cannot be done in that way is refused, and nothing changes then.
pub(super) trait FastPath<M: TableMemory, F: PteFormat>: Deref<Target = Shadow<M, F>> {
    /// What must be zero in the guest's entries of level 1.
    fn reserved(&self) -> u64;

    /// The guest's entry is not present, where the processor filters faults (VT-x). Whether that could be noted.
    fn note_absent(&mut self, memory: &impl GuestMemory, table: PageId, index: usize) -> bool;

    /// The same of a neighbour, of which nothing need be noted.
    fn note_absent_near(&mut self, table: PageId, index: usize);

    /// Whether the guest may write to the page at `at` by itself; `None`: something must go first.
    fn may_write(&mut self, memory: &impl GuestMemory, at: Hpa, access: Access) -> Option<bool>;

    /// Makes an entry of level 1 this one. Whether it did.
    fn put(&mut self, table: PageId, index: usize, gva: Gva, entry: u64, guest_pte: u64) -> bool;

    /// The same of an entry that was empty when it was looked at, ahead of its use.
    fn put_ahead(&mut self, table: PageId, index: usize, entry: u64, guest_pte: u64) -> bool;

    /// Handles a fault on the fast path, at an entry of this page. `None`: it needs the slow path, or the tables exclusively, and
    /// nothing has changed but accessed and dirty bits that may be set.
    #[inline(always)]
    fn fast_path(
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
            if F::FILTERS_FAULTS && !self.note_absent(ram, leaf.table, index) {
                return None;
            }
            return Some(ShadowOutcome::GuestFault(fault.code(state, 0)));
        }
        if raw & self.reserved() != 0 {
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
        let gpa = Gpa(now & ADDRESS | gva.offset());
        let at = match self.place(p2m, leaf.key, gpa) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        // A frame that holds a guest table with a shadow is mapped read-only, so that writes to it are seen.
        let writable = self.may_write(ram, at, access)?;
        if access.write && !writable {
            return Some(ShadowOutcome::EmulateWrite(gpa));
        }
        let entry = self.typed(leaf.key.leaf(now, at.align_down(PAGE_SIZE), writable) | HOST_WRITABLE, 1);
        if !self.put(leaf.table, index, gva, entry, now) {
            return None;
        }
        let prefetched = self.fill_near(p2m, ram, &leaf, index);
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
        let gpa = Gpa(leaf.first.0 + ((index as u64) << 12) + gva.offset());
        let at = match self.place(p2m, leaf.key, gpa) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        let writable = self.may_write(ram, at, access)?;
        if access.write && !writable {
            return Some(ShadowOutcome::EmulateWrite(gpa));
        }
        let entry = self.typed(leaf.key.direct_leaf(at.align_down(PAGE_SIZE), writable) | HOST_WRITABLE, 1);
        if !self.put(leaf.table, index, gva, entry, 0) {
            return None;
        }
        let prefetched = self.fill_direct(p2m, leaf, index);
        Some(ShadowOutcome::Filled { prefetched })
    }

    /// Fills empty entries around the one that was needed: upwards and downwards as long as the guest has accessed them
    /// before, and they are not filled yet.
    #[inline(always)]
    fn fill_near(
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
            if !self.fill_ahead(p2m, memory, leaf, index, &mut last) {
                break;
            }
            filled += 1;
        }
        for index in down.rev().take_while(is_empty) {
            if !self.fill_ahead(p2m, memory, leaf, index, &mut last) {
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
            self.note_absent_near(leaf.table, index);
        }
        raw & WANTED_NEAR == WANTED_NEAR
    }

    /// Fills one entry, which is empty, ahead of its use; returns whether it did.
    #[inline(always)]
    fn fill_ahead(
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
            self.note_absent_near(leaf.table, index);
        }
        // Without the accessed bit it must not be filled: the processor would use the entry and the guest never see the bit.
        if raw & WANTED_NEAR != WANTED_NEAR || raw & self.reserved() != 0 {
            return false;
        }
        let Some(to) = self.place_ahead(p2m, leaf.key, Gpa(raw & ADDRESS)) else { return false };
        let writable = !self.pool.is_write_protected(to.frame());
        let made_from = raw & !ADDRESS | u64::from(writable) << PAGE_SHIFT;
        if last.made_from != made_from {
            let bits = self.typed(leaf.key.leaf(raw, Hpa(0), writable) | HOST_WRITABLE, 1);
            *last = LastLeaf { made_from, bits };
        }
        self.put_ahead(leaf.table, index, to.0 | last.bits, raw)
    }

    /// Fills empty entries around the one that was needed, under a large page.
    fn fill_direct(&mut self, p2m: &P2m<impl TableMemory>, leaf: &Leaf, own: usize) -> u8 {
        let window = usize::from(self.tuning.direct_window);
        let first = own & !(window - 1);
        let mut filled = 0;
        let mut from = first;
        while let Some(index) = self.pool.page(leaf.table).next_empty(from)
            && index < (first + window).min(ENTRIES)
        {
            from = index + 1;
            if let Some(to) = self.place_ahead(p2m, leaf.key, Gpa(leaf.first.0 + ((index as u64) << 12))) {
                let writable = !self.pool.is_write_protected(to.frame());
                let entry = self.typed(leaf.key.direct_leaf(to, writable) | HOST_WRITABLE, 1);
                filled += u8::from(self.put_ahead(leaf.table, index, entry, 0));
            }
        }
        filled
    }
}

/// Exclusively.
impl<M: TableMemory, F: PteFormat> FastPath<M, F> for &mut Shadow<M, F> {
    #[inline(always)]
    fn reserved(&self) -> u64 {
        self.reserved
    }

    #[inline(always)]
    fn note_absent(&mut self, memory: &impl GuestMemory, table: PageId, index: usize) -> bool {
        self.see_absent(memory, table, index);
        true
    }

    #[inline(always)]
    fn note_absent_near(&mut self, table: PageId, index: usize) {
        self.pool.mark_absent(table, index);
    }

    #[inline(always)]
    fn may_write(&mut self, memory: &impl GuestMemory, at: Hpa, access: Access) -> Option<bool> {
        Some(self.is_writable_by_guest(memory, at, access))
    }

    #[inline(always)]
    fn put(&mut self, table: PageId, index: usize, gva: Gva, entry: u64, guest_pte: u64) -> bool {
        if self.pool.page(table).is_present(index) {
            self.replace(table, index, gva, entry);
        }
        self.pool.map_at(table, index, 1, entry, guest_pte);
        true
    }

    #[inline(always)]
    fn put_ahead(&mut self, table: PageId, index: usize, entry: u64, guest_pte: u64) -> bool {
        self.pool.map_at(table, index, 1, entry, guest_pte);
        true
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// The fast path of a VCPU that has the tables for itself.
    #[inline(always)]
    pub(super) fn exclusive_fast_path(
        mut self: &mut Self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        leaf: Leaf,
    ) -> Option<ShadowOutcome> {
        self.fast_path(space, fault, leaf)
    }

    /// Whether the guest may write to the page at `at` by itself. If it wants to, there: what shadows it goes if it is a table that
    /// nothing leads to, which was one of an address space that is gone, or will be found again.
    #[inline(always)]
    pub(super) fn is_writable_by_guest(
        &mut self,
        memory: &impl GuestMemory,
        at: Hpa,
        access: Access,
    ) -> bool {
        !self.pool.is_write_protected(at.frame()) || access.write && self.unprotect(memory, at)
    }

    #[inline(never)]
    fn unprotect(&mut self, memory: &impl GuestMemory, at: Hpa) -> bool {
        self.drop_dead(at.frame());
        !self.pool.is_write_protected(at.frame()) || self.allow_write(memory, at)
    }

    /// Where the byte at `gpa` is for an entry of a shadow page with this key, if it is plain RAM that is open in the key's set of tables.
    /// Not [`Shadow::tree`]: that is another VCPU's where several handle their faults together.
    #[inline(always)]
    fn place(&self, p2m: &P2m<impl TableMemory>, key: Key, gpa: Gpa) -> Result<Hpa, NotFound> {
        let (entry, domain) = (p2m.translate(gpa), key.tree().domain());
        let closed = || entry.closed_in(domain).map(|home| ShadowOutcome::Closed(gpa, home));
        entry.writable_in(domain).ok_or_else(closed)
    }

    /// The same, for an access that may never come: a page that the pager holds stays there.
    #[inline(always)]
    pub(super) fn place_ahead(&self, p2m: &P2m<impl TableMemory>, key: Key, gpa: Gpa) -> Option<Hpa> {
        p2m.peek(gpa).writable_in(key.tree().domain())
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

    /// Fills empty entries around one of this page that was needed.
    pub(super) fn prefetch(
        mut self: &mut Self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        own: usize,
    ) -> u8 {
        if leaf.key.is_direct() {
            self.fill_direct(p2m, leaf, own)
        } else {
            self.fill_near(p2m, memory, leaf, own)
        }
    }
}
