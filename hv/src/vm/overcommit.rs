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
//! An access in between finds the page absent, and brings it back in the same frame.

use alloc::vec::Vec;

use super::{HostMemory, MapChanges, Memory, Vm};
use crate::arch::addr::Hfn;
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

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Whether the run loop is to call [`Vm::evict`] soon.
    #[inline(always)]
    pub fn wants_pager(&self) -> bool {
        self.pager.as_ref().is_some_and(|pager| pager.wants_service())
    }

    /// Evicts some pages on behalf of this VCPU; what that leaves for it to do. Waits like [`Vm::lock_shadow`].
    #[cold]
    pub fn evict(&self, vcpu: u32, work: &mut u32) -> MapChanges {
        let Some(pager) = &self.pager else { return MapChanges::default() };
        let Some((changed, flush, retired, host)) = self.take_away(pager, vcpu, work) else {
            return MapChanges::default();
        };
        let changes = self.translations_changed(vcpu, work, &changed, flush);
        retired.free(&host);
        loop {
            // For each page: others want the memory, too.
            let memory = self.read_memory(work);
            if !pager.store(&mut |page| memory.p2m.attach(page.page.base(), page.frame)) {
                return changes;
            }
        }
    }

    /// The first step: what changed, and what is owed.
    fn take_away(
        &self,
        pager: &Pager,
        vcpu: u32,
        work: &mut u32,
    ) -> Option<(Vec<Changed>, Flush, Retired, M)> {
        let mut memory = self.lock_memory(work);
        let leaving = {
            let mut shadow = self.lock_shadow(vcpu, work);
            pager.choose(&mut Tables { memory: &memory, shadow: shadow.as_mut() })
        };
        let Memory { p2m, nested, host, .. } = &mut *memory;
        let mut changed = Vec::new();
        let has_room = changed.try_reserve(leaving.len()).is_ok();
        let mut flush = Flush::None;
        for Resident { page, frame } in leaving {
            match if has_room { p2m.evict(page.base(), frame) } else { None } {
                // The nested tables lose a leaf, which needs no memory but where they have a large one; what they still hold on an
                // error goes as a whole.
                Some(change) => {
                    flush = flush.and(nested.remove_memory(p2m, change));
                    changed.push(change);
                }
                // It is present still: the pager must not take its frame.
                None => pager.bring_in(page, &mut |_: Hfn| ()),
            }
        }
        (!changed.is_empty()).then(|| (changed, flush, nested.take_retired(), host.clone()))
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
                changed.push(Changed { range, was: OldFrames::UNKNOWN });
            }
            Ok(changed)
        };
        let _new_vcpus_follow = self.change_map(0, &mut 0, forget);
        pager.reset();
        hole.map_or(Ok(true), Err)
    }
}
