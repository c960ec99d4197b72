//! Evicts pages of a VM whose memory is overcommitted: what [`Pager`] chooses leaves the P2m, the tables and all processors, and is
//! stored then.
//!
//! Called by the run loop for a VCPU of the VM, which holds no lock. A VM evicts its own pages only, so that what its one VCPU has
//! found without the memory's lock ([`Vm::code`]) stays. The order, which must hold (docs/design/0029-overcommit.md):
//!
//! 1. With the memory locked for writing: pages are chosen, and become absent in the P2m and in the nested tables.
//! 2. Shadow tables follow, and all processors flush. Until then stores still reach the frames.
//! 3. A page that nothing has accessed meanwhile is compressed, and its frame is free.
//!
//! An access in between finds the page absent, and brings it back in the same frame. Pages that the guest has named to its balloon
//! leave in the same order; they are not stored.

use alloc::vec::Vec;

use super::{HostMemory, MapChanges, Memory, Vm};
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::pager::{Pager, Pages, Resident};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::range::{Changed, Flush, GpaRange, OldFrames};
use crate::paging::shadow::Shadow;
use crate::paging::table::Retired;

/// What the tables say of pages.
struct Tables<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    memory: &'a Memory<F, M>,
    shadow: Option<&'a mut Shadow<M, F>>,
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Pages for Tables<'_, F, M> {
    fn is_evictable(&mut self, page: Resident) -> bool {
        self.memory.p2m.evictable(page.page.base(), page.frame).is_some()
    }

    /// The one place where the pager reads access bits.
    fn take_accessed(&mut self, page: Resident) -> bool {
        let nested = self.memory.nested.take_accessed(page.page.base());
        let shadow = self.shadow.as_mut().is_some_and(|shadow| shadow.take_in_use(page.frame));
        nested || shadow
    }
}

/// Pages that have become absent in the P2m and in the nested tables, and what is owed for that.
struct Taken<M> {
    changed: Vec<Changed>,
    flush: Flush,
    retired: Retired,
    host: M,
}

/// The same, while pages are added.
struct Taking<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory> {
    memory: &'a mut Memory<F, M>,
    changed: Vec<Changed>,
    flush: Flush,
}

impl<'a, F: PteFormat<Attr = NestedAttr>, M: HostMemory> Taking<'a, F, M> {
    fn new(memory: &'a mut Memory<F, M>) -> Self {
        Taking { memory, changed: Vec::new(), flush: Flush::None }
    }

    /// Takes a page out of this frame. False: it is not plain RAM there now, or there is no memory; it stays.
    fn page(&mut self, page: Gfn, frame: Hfn) -> bool {
        let Memory { p2m, nested, .. } = &mut *self.memory;
        if self.changed.try_reserve(1).is_err() {
            return false;
        }
        let Some(change) = p2m.evict(page.base(), frame) else { return false };
        // The nested tables lose a leaf, which needs no memory but where they have a large one; what they still hold on an error
        // goes as a whole.
        self.flush = self.flush.and(nested.remove_memory(p2m, change));
        self.changed.push(change);
        true
    }

    fn end(self) -> Taken<M> {
        let (retired, host) = (self.memory.nested.take_retired(), self.memory.host.clone());
        Taken { changed: self.changed, flush: self.flush, retired, host }
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Whether the run loop is to call [`Vm::evict`] soon.
    #[inline(always)]
    pub fn wants_pager(&self) -> bool {
        self.pager.as_ref().is_some_and(|pager| pager.wants_service())
    }

    /// Evicts some pages on behalf of this VCPU, if no other one does; what that leaves for it to do. Waits like [`Vm::lock_shadow`].
    #[cold]
    pub fn evict(&self, vcpu: u32, work: &mut u32) -> MapChanges {
        self.remove_pages(vcpu, work, |pager, work| self.take_away(pager, vcpu, work))
    }

    /// Has the pager forget what the guest has named to its balloon, in the same way. Nothing, if another VCPU takes pages away now.
    #[cold]
    pub fn discard(&self, vcpu: u32, work: &mut u32) -> MapChanges {
        if self.pager.is_none() {
            self.virtio.take_named(|_in_frames_for_good| ());
            self.virtio.discarded();
        }
        self.remove_pages(vcpu, work, |pager, work| self.take_named(pager, work))
    }

    /// All three steps, of which `take` is the first.
    fn remove_pages(
        &self,
        vcpu: u32,
        work: &mut u32,
        take: impl FnOnce(&Pager, &mut u32) -> Taken<M>,
    ) -> MapChanges {
        // Pages that another VCPU has taken away may be in use until it has flushed: it alone stores them, and none beside them.
        let Some((pager, _turn)) = self.pager.as_ref().and_then(|pager| Some((pager, pager.turn()?))) else {
            return MapChanges::default();
        };
        let Taken { changed, flush, retired, host } = take(pager, work);
        let mut changes = MapChanges::default();
        if !changed.is_empty() {
            changes = self.translations_changed(vcpu, work, &changed, flush);
        }
        retired.free(&host);
        loop {
            // For each page: others want the memory, too.
            let memory = self.read_memory(work);
            if !pager.store(&mut |page| memory.p2m.attach(page.page.base(), page.frame)) {
                break;
            }
        }
        self.virtio.discarded();
        changes
    }

    /// The first step of an eviction.
    fn take_away(&self, pager: &Pager, vcpu: u32, work: &mut u32) -> Taken<M> {
        let mut memory = self.lock_memory(work);
        let leaving = {
            let mut shadow = self.lock_shadow(vcpu, work);
            pager.choose(&mut Tables { memory: &memory, shadow: shadow.as_mut() })
        };
        let mut taking = Taking::new(&mut memory);
        for Resident { page, frame } in leaving {
            if !taking.page(page, frame) {
                // It is present still: the pager must not take its frame.
                pager.bring_in(page, &mut |_: Hfn| ());
            }
        }
        taking.end()
    }

    /// The first step for pages of the balloon, with the device locked: a driver that resets it gets all of them back, or none.
    fn take_named(&self, pager: &Pager, work: &mut u32) -> Taken<M> {
        let mut memory = self.lock_memory(work);
        let mut taking = Taking::new(&mut memory);
        self.virtio.take_named(|page| {
            let _else_it_stays = pager.discard(page, &mut |frame| taking.page(page, frame));
        });
        taking.end()
    }

    /// Forgets the contents of all memory, for a reset. No VCPU runs, and new ones hold no translations. False: the VM has its
    /// memory in frames for good.
    ///
    /// # Errors
    /// A page of RAM is gone: its contents cannot be zeroes again.
    pub fn forget_memory(&self) -> Result<bool, GpaRange> {
        let Some(pager) = &self.pager else { return Ok(false) };
        let mut hole = None;
        let forget = |p2m: &mut crate::paging::P2m<M>, _: &mut super::covered::Covered| {
            let mut changed = Vec::new();
            for ram in self.layout.ram() {
                let range = GpaRange { start: ram.start, end: ram.end };
                hole = hole.or(p2m.first_hole(range));
                p2m.evict_all(range);
                changed.push(Changed::new(range, OldFrames::UNKNOWN));
            }
            Ok(changed)
        };
        let _new_vcpus_follow = self.change_map(0, &mut 0, forget);
        pager.reset();
        hole.map_or(Ok(true), Err)
    }
}
