//! The tables of a phase of regioning: pages of RAM are open in them one by one, and only these have leaves.
//!
//! They are a set of tables of their own ([`TreeKey::is_of_phase`]), whose pages no other VCPU's tables lead to. Which pages are open
//! the caller knows (`vm::regions`). What must hold: each leaf was made for a page that was open then, and is gone when the page is
//! closed. So leaves are made here alone, each for one page of 4 KiB, and only after a look whether it is open: a fault comes back as
//! [`ShadowOutcome::InPhase`] before it fills anything, and what else fills entries ([`follow_write`](Shadow::follow_write)) leaves
//! these pages alone.
//!
//! Such faults take the slow path: there is one VCPU of a VM in a phase at a time, for a hundredth of its time.

use super::fault::{AddressSpace, PageFault};
use super::leaf_lookup::Leaf;
use super::left_out::Step;
use super::pool::PageId;
use super::role::HOST_WRITABLE;
use super::{Shadow, ShadowOutcome, TlbFlush};
use crate::arch::addr::{Gfn, Gpa, Hfn};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{ACCESSED, ADDRESS, PRESENT};
use crate::paging::p2m::{P2m, P2mEntry};
use crate::paging::tree_key::TreeKey;

/// Whether a page of RAM is open.
pub(super) type IsOpen<'a> = &'a dyn Fn(Gfn) -> bool;

/// Neighbouring entries of level 1 that a fault looks at: as many as one piece of the pool's records is for.
const WINDOW: usize = 64;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Handles a fault that [`Shadow::fault`] has left alone because the VCPU is in a phase: what is open is filled, whatever cache
    /// it is mapped to. A page of RAM that is not comes back as [`ShadowOutcome::Touched`].
    pub fn fault_in_phase(
        &mut self,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
        is_open: IsOpen,
    ) -> (ShadowOutcome, TlbFlush) {
        self.begin();
        self.has_phase = true;
        let outcome = self.walk_and_fill(space, fault.within(self.linear), Some(is_open));
        self.statistics.count_fault(outcome);
        (outcome, self.pool.take_owed_and(TlbFlush::None))
    }

    /// Fills empty entries around the one that was needed whose pages are open: they are likely to follow, and would fault one by one.
    pub(super) fn prefetch_open(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        table: PageId,
        own: usize,
        is_open: IsOpen,
    ) -> u8 {
        let leaf = self.leaf_of(table);
        // Where tables above level 1 may have been written unseen, the path leads elsewhere for other addresses, perhaps.
        if self.pool.upper_unsync || leaf.key.is_guarded() {
            return 0;
        }
        let first = own & !(WINDOW - 1);
        let mut filled = 0;
        for index in first..first + WINDOW {
            filled += u8::from(self.fill_open(p2m, memory, &leaf, index, is_open));
        }
        filled
    }

    /// Fills one entry ahead of its use, if it is empty, the guest has used it, and its page is open; returns whether it did.
    fn fill_open(
        &mut self,
        p2m: &P2m<impl TableMemory>,
        memory: &impl GuestMemory,
        leaf: &Leaf,
        index: usize,
        is_open: IsOpen,
    ) -> bool {
        const WANTED: u64 = PRESENT | ACCESSED;
        if self.pool.page(leaf.table).is_present(index) {
            return false;
        }
        let (gpa, raw) = if leaf.key.is_table() {
            let Some(raw) = leaf.read(memory, index) else { return false };
            if raw & WANTED != WANTED || raw & self.reserved != 0 {
                return false;
            }
            (Gpa(raw & ADDRESS), raw)
        } else {
            (Gpa(leaf.first.0 + ((index as u64) << 12)), 0)
        };
        let P2mEntry::Ram { hpa: to, writable: true } = p2m.peek(gpa).opened() else { return false };
        if !is_open(gpa.frame()) && !self.left_out.is(Step::AskPrefetched) {
            return false;
        }
        let writable = !self.pool.is_write_protected(to.frame());
        let entry = match leaf.key.is_table() {
            true => leaf.key.leaf(raw, to, writable),
            false => leaf.key.direct_leaf(to, writable),
        };
        let entry = self.typed(entry | HOST_WRITABLE, 1);
        self.pool.map_at(leaf.table, index, 1, entry, raw);
        true
    }

    /// The memory in these frames is closed in the tables of a phase, whose VCPU owes the flush.
    pub fn close_in_phase(&mut self, tree: TreeKey, frames: impl Iterator<Item = Hfn>) -> TlbFlush {
        self.begin();
        // A phase on nested tables has no leaves here, and is not to look for each of them.
        if self.has_phase {
            frames.for_each(|frame| self.pool.unmap_in(tree, frame));
        }
        // In any case: the processor may remember leaves that have gone before.
        self.pool.take_owed_and(TlbFlush::All)
    }

    /// Drops the tables of a phase. The VCPU in service, which used them, uses others from its next [`load`](Self::load) on, which must
    /// come before it goes on, and owes the flush.
    pub fn end_phase(&mut self, tree: TreeKey) -> TlbFlush {
        self.begin();
        if self.pool.root().is_some_and(|root| self.pool.page(root).key.tree() == tree) {
            self.leave();
        }
        self.pool.forget_former_root();
        for id in 0..self.pool.end() {
            let page = self.pool.page(id);
            if page.is_in_use() && page.key.tree() == tree {
                self.free(id);
            }
        }
        self.has_phase = false;
        self.pool.take_owed_and(TlbFlush::All)
    }
}
