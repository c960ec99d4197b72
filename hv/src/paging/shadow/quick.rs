//! The short way of a page fault: where shadow pages lead down to a table of level 1, only its entry must be looked at.
//!
//! The tables above are watched: each entry on the way is as it was when the link was made, with its accessed bit set, and
//! what they allow together is in the key of the page. Whatever is not plain (large pages, reserved bits, writes to
//! tables, no CR0.WP, memory that is not RAM, a race with another VCPU) takes the way of [`super::fill`].

use super::fill::index;
use super::pool::PageId;
use super::role::Key;
use super::{Shadow, ShadowOutcome, TlbFlush};
use crate::guest::mem::GuestMemory;
use crate::paging::addr::{Gpa, Gva, Hpa};
use crate::paging::format::x86::{ACCESSED, ADDRESS, DIRTY, PRESENT};
use crate::paging::guest_walk::{PagingKind, PagingState, error_code, leaf_reserved, pdpte};
use crate::paging::p2m::{P2m, P2mEntry};
use crate::paging::table::TableMemory;
use crate::virt::Access;

/// A table of level 1 and its shadow page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    table: PageId,
    /// Its first entry.
    first: Gpa,
    bytes: u64,
    key: Key,
    reserved: u64,
}

/// The table that was found last: good for its 2 MiB while no link goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    links: u64,
    region: u64,
    leaf: Leaf,
}

impl Leaf {
    fn at(&self, index: usize) -> Gpa {
        Gpa(self.first.0 + index as u64 * self.bytes)
    }

    #[inline]
    fn read(&self, memory: &impl GuestMemory, index: usize) -> Option<u64> {
        memory.read_entry(self.at(index), self.bytes).ok()
    }
}

impl<M: TableMemory> Shadow<M> {
    /// Handles a fault the short way; `None`: it needs the long one, and nothing has happened but that accessed and dirty
    /// bits may be set.
    #[inline]
    pub(super) fn quick(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        state: &PagingState,
        gva: Gva,
        access: Access,
    ) -> Option<ShadowOutcome> {
        let leaf = self.leaf(state, memory, gva)?;
        let index = index(gva, 1);
        let raw = leaf.read(memory, index)?;
        if raw & PRESENT == 0 {
            return Some(ShadowOutcome::GuestFault(state.fault_code(access, 0)));
        }
        if raw & leaf.reserved != 0 {
            return None;
        }
        let rights = leaf.key.rights(raw);
        if !state.allows(access, rights) {
            return Some(ShadowOutcome::GuestFault(state.fault_code(access, error_code::PRESENT)));
        }
        if access.write && !rights.writable {
            return None;
        }
        let bits = if access.write { ACCESSED | DIRTY } else { ACCESSED };
        let now = raw | bits;
        if now != raw {
            let set = memory.compare_exchange(leaf.at(index), leaf.bytes as usize, raw, now);
            if set != Ok(true) {
                return None;
            }
        }
        let to = self.place(p2m, now)?;
        if access.write && self.pool.is_watched(to.frame()) {
            return None;
        }
        self.pool.mark_used(leaf.table);
        self.put(&leaf, index, gva, now, to);
        let prefetched = self.prefetch_near(p2m, memory, &leaf, index, gva);
        Some(ShadowOutcome::Filled { prefetched })
    }

    /// The table of level 1 for `gva`, if shadow pages lead to it.
    #[inline]
    pub(super) fn leaf(&mut self, state: &PagingState, memory: &impl GuestMemory, gva: Gva) -> Option<Leaf> {
        if let Some(found) = &self.found
            && found.links == self.pool.links()
            && found.region == gva.0 >> 21
        {
            return Some(found.leaf);
        }
        self.find_leaf(state, memory, gva)
    }

    fn find_leaf(&mut self, state: &PagingState, memory: &impl GuestMemory, gva: Gva) -> Option<Leaf> {
        let root = self.pool.root()?;
        let is_pae = state.kind() == PagingKind::Pae;
        // Page-directory pointers are not watched.
        if is_pae {
            let directory = self.pool.child(root, index(gva, 3))?;
            if pdpte(state, memory, gva) != Some(self.pool.page(directory).gfn) {
                return None;
            }
        }
        let table = self.table_of_leaves(root, gva)?;
        let page = self.pool.page(table);
        let key = page.key;
        if !key.is_table() {
            return None;
        }
        let leaf = Leaf {
            table,
            first: Gpa(page.gfn.base().0 + key.entry_offset(0)),
            bytes: key.entry_bytes(),
            key,
            reserved: leaf_reserved(state),
        };
        if !is_pae {
            self.found = Some(Found { links: self.pool.links(), region: gva.0 >> 21, leaf });
        }
        Some(leaf)
    }

    /// The memory that an entry leads to, if it is plain RAM.
    #[inline]
    fn place(&self, p2m: &P2m<impl TableMemory>, raw: u64) -> Option<Hpa> {
        match p2m.translate(Gpa(raw & ADDRESS)) {
            P2mEntry::Ram { hpa, writable: true } => Some(hpa),
            _ => None,
        }
    }

    /// Makes the shadow entry of a guest entry with its accessed bit set.
    #[inline]
    fn put(&mut self, leaf: &Leaf, index: usize, gva: Gva, raw: u64, to: Hpa) {
        let entry = leaf.key.leaf(raw, to, !self.pool.is_watched(to.frame()));
        if self.pool.page(leaf.table).is_present(index) && self.pool.entry(leaf.table, index) != entry {
            self.pool.owed = self.pool.owed.and(TlbFlush::Page(gva));
        }
        self.pool.map(leaf.table, index, entry, raw);
    }

    /// Fills empty entries around the one that was needed: upwards and downwards as long as the guest has accessed them
    /// before, and they are not filled yet.
    #[inline]
    pub(super) fn prefetch_near(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        own: usize,
        gva: Gva,
    ) -> u8 {
        let window = usize::from(self.tuning.window.clamp(1, 64));
        let first = own & !(window - 1);
        let region = gva.0 & !0x1f_ffff;
        let mut filled = 0;
        let mut index = own + 1;
        while index < first + window && self.fill_near(p2m, memory, leaf, index, region) {
            filled += 1;
            index += 1;
        }
        index = own;
        while index > first && self.fill_near(p2m, memory, leaf, index - 1, region) {
            filled += 1;
            index -= 1;
        }
        filled
    }

    /// Fills one entry ahead of its use; returns whether it did.
    #[inline(always)]
    fn fill_near(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        index: usize,
        region: u64,
    ) -> bool {
        const WANTED: u64 = PRESENT | ACCESSED;
        if self.pool.page(leaf.table).is_present(index) {
            return false;
        }
        let Some(raw) = leaf.read(memory, index) else { return false };
        if raw & WANTED != WANTED || raw & leaf.reserved != 0 {
            return false;
        }
        let Some(to) = self.place(p2m, raw) else { return false };
        self.put(leaf, index, Gva(region | (index as u64) << 12), raw, to);
        true
    }
}
