//! The root for the guest's registers.

use super::fault::AddressSpace;
use super::left_out::Step;
use super::pool::PageId;
use super::role::{Allowed, Controls, Key, Role, Source};
use super::shootdown::View;
use super::{Root, Shadow, TlbFlush};
use crate::arch::addr::{Gfn, Gpa};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::address_mask;
use crate::paging::format::x86::LARGE;
use crate::paging::guest_walk::{PagingKind, PagingState, reserved};
use crate::paging::p2m::P2m;
use crate::paging::tree_key::TreeKey;

/// Registers that were loaded lately, and the roots that were found for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// Of several address spaces, each of them in the sets of two cache domains and in that of a phase.
    roots: [Option<(Registers, PageId, Key)>; 8],
    next: usize,
    /// [`Key::controls_and_kind`] of the root in use.
    pub means: Option<u64>,
}

/// What decides about the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// CR0
    pub cr0: u64,
    /// CR3
    pub cr3: u64,
    /// CR4
    pub cr4: u64,
    /// EFER
    pub efer: u64,
}

impl Recent {
    /// Registers may stand for other tables from now on.
    pub(super) fn forget_roots(&mut self) {
        self.roots = Default::default();
    }
}

impl Recent {
    /// The root that was found for these registers in this set of tables. What differs most often after a change of control registers
    /// comes first.
    #[inline(always)]
    fn find(&self, registers: &Registers, tree: TreeKey) -> Option<(PageId, Key)> {
        for slot in &self.roots {
            if let Some((loaded, id, key)) = slot
                && loaded.cr0 == registers.cr0
                && loaded.cr4 == registers.cr4
                && loaded.cr3 == registers.cr3
                && loaded.efer == registers.efer
                && key.tree() == tree
            {
                return Some((*id, *key));
            }
        }
        None
    }
}

impl Registers {
    #[inline(always)]
    fn are(&self, state: &PagingState) -> bool {
        self.cr3 == state.cr3 && self.cr0 == state.cr0 && self.cr4 == state.cr4 && self.efer == state.efer
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// The root for these registers, found or made. Called after writes to CR0, CR3, CR4 and EFER that the
    /// guest was allowed to do, and after [`Reload`](super::Reload). Entries that the guest changed unseen are dropped, as
    /// after any flush of the guest's.
    #[inline(always)]
    pub fn load(&mut self, space: AddressSpace<'_, impl TableMemory, impl GuestMemory>) -> (Root, TlbFlush) {
        self.begin();
        if !self.unsync.is_empty() {
            if self.dying.is_some() {
                self.leave_dying_root(space);
            }
            self.resync_all(space.ram, |shadow| shadow.existing_root(space));
        }
        let (root, key) = self.find_root(space);
        let same = self.recent.means == Some(key.controls_and_kind());
        if !same {
            self.change_meaning(space.state, key);
        }
        self.pool.touch(root);
        self.pool.set_root(Some(root));
        if self.dying.is_some() {
            self.drop_dying_root();
        }
        let long = !key.is_top();
        if !long && key.kind() == PagingKind::Pae {
            // The pointers are those of this moment; faults read them again. What is left of the load before would be used where
            // the guest has changed a pointer and loaded the same CR3, which is how it makes that known.
            self.pool.clear(root);
        }
        // A load of CR3 keeps global translations. Under registers with another meaning the same address may be another page.
        let flush = if same { TlbFlush::NonGlobal } else { TlbFlush::All };
        let root = Root { frame: self.pool.page(root).frame, long };
        (root, self.pool.take_owed_and(flush))
    }

    /// The root for these registers, if it was in use lately and nothing else is due: what guests do that change CR0.WP or
    /// CR4.PGE and change it back. Only four levels; the pointers of other roots may be due. As after [`Shadow::load`], all is
    /// flushed that the guest's change of registers flushes.
    #[inline(always)]
    pub fn load_recent(&mut self, registers: &Registers) -> Option<(Root, TlbFlush)> {
        if !self.unsync.is_empty() || self.dying.is_some() {
            return None;
        }
        let root = self.use_recent(registers)?;
        Some((root, self.pool.take_owed_and_all()))
    }

    /// The VCPU in service goes on with the tables of this key and the same registers: the root there, as by
    /// [`Shadow::load_recent`]. `None`: it must [`load`](Self::load). The caller flushes everything in the processor in any
    /// case. `has_faulted`: the guest may have taken a page fault on this VCPU since all unsync tables were compared on its
    /// behalf.
    ///
    /// A change of the set of tables is no flush of the guest's, so unsync tables need not be compared. What must hold is that no
    /// entry of the other set is older than this VCPU's last flush of its address:
    ///
    /// - A load of CR3, or any other flush of everything, compares all unsync tables. INVLPG compares its entry in all shadow pages
    ///   of the table. In both cases that is in all sets, whichever the VCPU uses; and a page to which nothing leads is compared
    ///   when it is linked. So an entry is as the guest's was at the flush, or was filled later.
    /// - A page fault that the guest takes is a flush of its address, too, without an exit of its own, and compares nothing: then
    ///   the unsync tables are. Where processors deliver faults by themselves, the hypervisor does not know.
    /// - A fault that only fills an entry tells the guest nothing: it may have used a new translation and use the old one
    ///   again, until it flushes (Intel SDM 3, 4.10.4.4).
    /// - With tables above level 1 that are unsync or nested, flushes reach what is below the root in use.
    #[inline(always)]
    pub fn load_in_tree(&mut self, tree: TreeKey, registers: &Registers, has_faulted: bool) -> Option<Root> {
        self.tree = tree;
        let may_be_older = (has_faulted && !self.left_out.is(Step::CompareAfterFault))
            || F::FILTERS_FAULTS
            || self.pool.upper_unsync;
        if !self.unsync.is_empty() && may_be_older || self.dying.is_some() {
            return None;
        }
        let root = self.use_recent(registers)?;
        let _by_the_caller = self.pool.take_owed_and_all();
        Some(root)
    }

    /// The VCPU uses the root that was found for these registers lately, if there is nothing to do for that.
    #[inline(always)]
    fn use_recent(&mut self, registers: &Registers) -> Option<Root> {
        // No page is made, so that it does not matter whether the pool is short.
        let (id, key) = self.recent.find(registers, self.tree)?;
        // What `change_meaning` finds is the same, then.
        if key.is_top() || !key.reads_entries_as(self.recent.means?) {
            return None;
        }
        let frame = self.pool.use_root(id, key)?;
        self.statistics.roots_found += 1;
        self.recent.means = Some(key.controls_and_kind());
        Some(Root { frame, long: true })
    }

    /// Whether a flush of everything by the guest that leaves its root alone is all that is to be done for it: no entries may have
    /// been changed unseen, and no pointers are to be loaded, because there are four levels.
    #[inline(always)]
    pub fn is_in_step(&self) -> bool {
        self.unsync.is_empty() && self.dying.is_none() && self.linear == u64::MAX
    }

    /// Entries mean something else from now on.
    #[cold]
    fn change_meaning(&mut self, state: &PagingState, key: Key) {
        self.recent.means = Some(key.controls_and_kind());
        self.linear = if key.is_top() { 0xffff_ffff } else { u64::MAX };
        self.reserved = reserved(state, 1);
        self.table_reserved = [2, 3, 4].map(|level| LARGE | reserved(state, level));
    }

    /// The VCPU in service uses the tables of this key from its next [`load`](Self::load) on, which must come before it goes on.
    pub fn select(&mut self, tree: TreeKey) {
        self.tree = tree;
    }

    /// All VCPUs use the first set of tables from their next [`load`](Self::load) on: the VM is reset.
    pub fn select_first(&mut self) {
        self.select(TreeKey::FIRST);
        self.views.iter_mut().for_each(View::select_first);
    }

    /// The processor uses other tables from now on.
    pub fn leave(&mut self) {
        self.pool.set_root(None);
        self.recent.means = None;
    }

    /// The root page and its key: of those that were in use lately, found in the pool, or made.
    fn find_root(&mut self, space: AddressSpace<'_, impl TableMemory, impl GuestMemory>) -> (PageId, Key) {
        let AddressSpace { p2m, ram, state } = space;
        for (loaded, id, key) in self.recent.roots.iter().flatten() {
            let (id, key) = (*id, *key);
            if !loaded.are(state) || key.tree() != self.tree {
                continue;
            }
            let page = self.pool.page(id);
            if page.is_in_use() && page.key == key {
                self.statistics.roots_found += 1;
                return (id, key);
            }
        }
        let (key, gfn) = root_key(p2m, state, self.current_vcpu, self.tree);
        let id = match self.pool.find(key) {
            Some(id) => {
                self.statistics.roots_found += 1;
                id
            }
            None => {
                // The guest copies what all its address spaces have in common from one to the next.
                self.statistics.roots_made += 1;
                let id = self.page(key, gfn, ram);
                self.inherit_links(space, id);
                id
            }
        };
        let registers = Registers { cr0: state.cr0, cr3: state.cr3, cr4: state.cr4, efer: state.efer };
        let slots = self.recent.roots.len();
        self.recent.roots[self.recent.next % slots] = Some((registers, id, key));
        self.recent.next = (self.recent.next + 1) % slots;
        (id, key)
    }
}

/// The key of the root for these registers of a VCPU in this set of tables, and where the guest's root table is. Pages of pointers are each VCPU's own:
/// with PAE paging they hold what the pointers were when this VCPU loaded them.
pub(super) fn root_key(
    p2m: &P2m<impl TableMemory>,
    state: &PagingState,
    vcpu: u32,
    tree: TreeKey,
) -> (Key, Gfn) {
    let vcpu = u64::from(vcpu) << 27;
    let kind = state.kind();
    let role = Role {
        level: if kind == PagingKind::FourLevel { 4 } else { 3 },
        kind,
        quadrant: 0,
        controls: Controls::of(state),
        allowed: Allowed::all(),
        source: Source::Top,
        tree,
        guarded: false,
    };
    match kind {
        PagingKind::Off => (Key::new(vcpu, role), Gfn(0)),
        PagingKind::TwoLevel => (Key::new(vcpu | (state.cr3 & 0xffff_f000) >> 12, role), Gfn(0)),
        PagingKind::Pae => (Key::new(vcpu | (state.cr3 & 0xffff_ffe0) >> 5, role), Gfn(0)),
        PagingKind::FourLevel => {
            let gpa = Gpa(state.cr3 & address_mask(state.features.physical_bits));
            match p2m.translate(gpa).readable() {
                Some(hpa) => (Key::new(hpa.frame().0, Role { source: Source::Table, ..role }), gpa.frame()),
                // No memory, no translations: a root that stays empty.
                None => (Key::new(0, Role { source: Source::Direct(0), ..role }), Gfn(0)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
