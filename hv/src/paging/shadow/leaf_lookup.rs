//! Finds the shadow page of level 1 for an address; links the pages that are missing on the path to it.
//!
//! The tables above level 1 are write-protected: each guest entry on the path is as it was when the link was made, with its
//! accessed bit set, and what the entries allow together is in the key of the page. So the walk begins at the lowest page that
//! is linked, whatever lies above. It does not handle large pages, reserved bits, and memory that is not RAM, nor the top pages
//! above the guest's own tables: that is the [slow path](super::slow_path).

use super::fault::{AddressSpace, PageFault};
use super::pool::{PageId, Pool};
use super::role::Key;
use super::slow_path::index;
use super::{Shadow, ShadowOutcome};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, NO_EXECUTE, PRESENT, USER, leaf_address};
use crate::paging::guest_walk::{PagingKind, pdpte, walk};

/// A page of level 1, and what it is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaf {
    pub table: PageId,
    /// The guest's entry that its first one follows; the memory that its first one maps, if it is direct.
    pub first: Gpa,
    pub bytes: u64,
    pub key: Key,
}

/// Pages that were found lately, by 2 MiB of addresses: good under their root while no link goes.
#[derive(Clone, Debug, Default)]
pub(super) struct LeafCache([Option<CachedLeaf>; SLOTS]);

/// Of the few pages that a VCPU uses at a time, in the tables of two cache domains, hardly two have the same slot then.
const SLOTS: usize = 32;

#[derive(Clone, Copy, Debug)]
struct CachedLeaf {
    links: (u64, u32),
    place: u64,
    leaf: Leaf,
}

/// A number that no page has.
const NO_ROOT: PageId = super::MAX_PAGES as PageId;

impl LeafCache {
    /// Where the page of a [`place`](Self::place) is kept: most often another slot for another root, so that a VCPU that goes to and fro
    /// between two cache domains finds its pages again.
    #[inline(always)]
    fn slot(place: u64) -> usize {
        // Multiplicative hashing by the golden ratio.
        (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.ilog2())) as usize
    }

    /// Root and 2 MiB in one number: of 2^20 and 2^43.
    #[inline(always)]
    fn place(root: Option<PageId>, gva: Gva) -> u64 {
        gva.0 >> 21 | u64::from(root.unwrap_or(NO_ROOT)) << 43
    }

    /// The page for `gva`, if links still lead to it from this root.
    #[inline(always)]
    pub(super) fn find(
        &self,
        pool: &Pool<impl TableMemory, impl PteFormat>,
        root: Option<PageId>,
        gva: Gva,
    ) -> Option<&Leaf> {
        let place = Self::place(root, gva);
        let known = self.0[Self::slot(place)].as_ref()?;
        let is_good = known.place == place && known.links == pool.links(known.leaf.table);
        is_good.then_some(&known.leaf)
    }
}

/// No page of level 1 was found: the outcome, or `None` if the slow path must decide.
pub(super) type NotFound = Option<ShadowOutcome>;

impl Leaf {
    /// Where the guest's entry is.
    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> Gpa {
        Gpa(self.first.0 + index as u64 * self.bytes)
    }

    /// The guest's entry.
    #[inline]
    pub(super) fn read(&self, memory: &impl GuestMemory, index: usize) -> Option<u64> {
        memory.read_entry(self.at(index), self.bytes).ok()
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// The page of level 1 for `gva` that was found lately, if links still lead to it from the root in use.
    #[inline(always)]
    pub(super) fn known_leaf(&self, gva: Gva) -> Option<&Leaf> {
        self.leaf_caches.get(self.current_vcpu as usize)?.find(&self.pool, self.pool.root(), gva)
    }

    /// The page of level 1 for the address of a fault.
    #[inline(never)]
    pub(super) fn find_leaf(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
    ) -> Result<Leaf, NotFound> {
        let gva = fault.gva;
        if self.pool.upper_unsync && !self.is_path_protected(gva) {
            return Err(None);
        }
        let root = self.pool.root().ok_or(None)?;
        let is_pae = self.pool.page(root).key.kind() == PagingKind::Pae;
        // Page-directory pointers are not write-protected: the processor reads them when CR3 is loaded, and not again (Intel SDM 3,
        // 4.4.1). The guest may change them in memory meanwhile; a link is good only as long as they lead where it does.
        if is_pae {
            let directory = self.pool.child(root, index(gva, 3)).ok_or(None)?;
            if pdpte(space.state, space.ram, gva) != Some(self.pool.page(directory).gfn) {
                return Err(None);
            }
        }
        let (mut table, mut level) = (root, self.pool.page(root).key.level());
        while level > 1 {
            table = match self.pool.step(table, index(gva, level)) {
                Some(child) => child,
                None => self.link_child(space, fault, table)?,
            };
            level -= 1;
        }
        self.pool.pass(table);
        let leaf = self.leaf_of(table);
        if !is_pae {
            let (links, place) = (self.pool.links(table), LeafCache::place(Some(root), gva));
            if let Some(cache) = self.leaf_caches.get_mut(self.current_vcpu as usize) {
                cache.0[LeafCache::slot(place)] = Some(CachedLeaf { links, place, leaf });
            }
        }
        Ok(leaf)
    }

    /// A page of level 1.
    #[inline(always)]
    pub(super) fn leaf_of(&self, table: PageId) -> Leaf {
        let page = self.pool.page(table);
        let key = page.key;
        let base = page.gfn.base().0;
        let first = Gpa(if key.is_table() { base + key.entry_offset(0) } else { base });
        Leaf { table, first, bytes: key.entry_bytes(), key }
    }

    /// Write-protects all tables on the path of an address that are not shadowed yet: with one shootdown, when
    /// the first of them is shadowed.
    #[cold]
    #[inline(never)]
    fn write_protect_path(&mut self, space: AddressSpace<'_, impl TableMemory, impl GuestMemory>, gva: Gva) {
        let AddressSpace { p2m, ram, state } = space;
        let _or_fault = walk(state, ram, gva, Access::READ, false, |step| {
            let is_pointer = step.level == 3 && state.kind() == PagingKind::Pae;
            if !is_pointer
                && let Some(to) = p2m.translate(step.at).readable()
                && self.pool.shadows(to.frame()).next().is_none()
                && !self.starts_unsync(step.level, to.frame())
            {
                self.pool.withdraw(to.frame());
            }
        });
    }

    /// Links the next page below `table`, which is above level 1, found or made.
    fn link_child(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        table: PageId,
    ) -> Result<PageId, NotFound> {
        let AddressSpace { p2m, ram, state } = space;
        let page = self.pool.page(table);
        let (key, gfn) = (page.key, page.gfn);
        let (level, bytes) = (key.level(), key.entry_bytes());
        if !key.is_plain_table() {
            return Err(None);
        }
        let index = index(fault.gva, level);
        let at = Gpa(gfn.base().0 + key.entry_offset(index));
        let raw = ram.read_entry(at, bytes).map_err(|_| None)?;
        if raw & PRESENT == 0 {
            self.mark_absent_near(ram, table, index);
            return Err(Some(ShadowOutcome::GuestFault(fault.code(state, 0))));
        }
        if raw & self.table_reserved[usize::from(level) - 2] != 0 {
            return Err(None);
        }
        let below = Gpa(raw & ADDRESS);
        let to = p2m.translate(below).readable().ok_or(None)?;
        if raw & ACCESSED == 0 && ram.compare_exchange(at, bytes as usize, raw, raw | ACCESSED) != Ok(true) {
            return Err(None);
        }
        // Each table that is write-protected is a shootdown, in which all other VCPUs leave the guest: one for the whole path.
        if self.is_shared {
            self.write_protect_path(space, fault.gva);
        }
        self.note_parent(table);
        let child = self.page(key.below(raw, index, to.frame()), below.frame(), ram);
        self.connect(table, index, child);
        // The path below is not write-protected.
        if self.pool.upper_unsync && level > 2 && self.pool.page(child).unsync {
            return Err(None);
        }
        Ok(child)
    }

    /// Faults at entries around this one, which is not present, are the guest's own as long as they stay so.
    pub(super) fn mark_absent_near(&mut self, memory: &impl GuestMemory, table: PageId, index: usize) {
        if !F::FILTERS_FAULTS {
            return;
        }
        let page = self.pool.page(table);
        let (key, base) = (page.key, page.gfn.base().0);
        for near in (index & !7)..(index | 7) + 1 {
            let at = Gpa(base + key.entry_offset(near));
            if memory.read_entry(at, key.entry_bytes()).is_ok_and(|raw| raw & PRESENT == 0) {
                self.pool.mark_absent(table, near);
            }
        }
    }

    /// Where the processor may fetch code for `gva` from, if the tables say so. Not under SMEP's rule: what a supervisor
    /// fetches from a user's page is not told.
    pub fn code(&self, gva: Gva, user: bool) -> Option<Hpa> {
        let gva = Gva(gva.0 & self.linear);
        let mut table = self.pool.root()?;
        loop {
            let level = self.pool.page(table).key.level();
            match self.pool.child(table, index(gva, level)) {
                Some(child) => table = child,
                None => {
                    let raw = self.pool.entry(table, index(gva, level));
                    let fetchable = raw & (PRESENT | NO_EXECUTE) == PRESENT && user == (raw & USER != 0);
                    let offset = gva.0 & ((PAGE_SIZE << (9 * (level - 1))) - 1);
                    return fetchable.then(|| Hpa(leaf_address(raw, level) | offset));
                }
            }
        }
    }

    /// The page of level 1 to which links lead from the root in use.
    pub(super) fn table_of_leaves(&self, gva: Gva) -> Option<PageId> {
        if let Some(leaf) = self.known_leaf(gva) {
            return Some(leaf.table);
        }
        let root = self.pool.root()?;
        let (mut table, mut level) = (root, self.pool.page(root).key.level());
        while level > 1 {
            table = self.pool.child(table, index(gva, level))?;
            level -= 1;
        }
        Some(table)
    }
}
