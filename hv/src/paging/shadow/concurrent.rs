//! Page faults that VCPUs of one VM handle at the same time.
//!
//! Two kinds of faults are most of all: those that are the guest's own, which change nothing here, and those that fill an empty
//! entry of a page that is there. VCPUs with such a fault hold the lock of the tables as readers; all other work on the
//! tables takes it exclusively, and so finds them as one VCPU alone would have left them. The code is the [fast path](super::fast_path)
//! itself. What a reader cannot do it refuses, and the fault is handled exclusively, from the start.
//!
//! What readers change, and how:
//!
//! - an entry that is empty: the VCPU that sets its bit in `present` first fills it ([`super::pool::Pool::map_shared`]). Entries that are present
//!   are never changed, so nothing that a processor may have cached goes, and no flush is owed;
//! - the reverse map of the entry's memory: under the head of the list;
//! - the guest's accessed and dirty bits: by compare-exchange, as processors do.
//!
//! Why this is as good as one after the other: a reader reads the guest's entry and fills the shadow's, and no exclusive operation comes in
//! between. A write to the guest's table that exits, a flush by the guest, and the protection of a table are such operations: each of
//! them comes before the reader has read, or finds what it has filled.
//!
//! `tests/sched-loom` looks at every order of two VCPUs' steps on a list, `tests.rs` here lets threads race, and the oracle with several
//! VCPUs handles faults in this way first ([`super::oracle`]).

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use super::fast_path::FastPath;
use super::fault::{AddressSpace, PageFault};
use super::pool::PageId;
use super::{Shadow, ShadowOutcome, Statistics};
use crate::arch::Access;
use crate::arch::addr::{Gva, Hpa};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;

/// Faults that were handled in this way.
#[derive(Debug, Default)]
pub(super) struct ConcurrentCounts {
    guest_faults: AtomicU64,
    filled: AtomicU64,
    prefetched: AtomicU64,
}

impl ConcurrentCounts {
    /// Whether the outcome is one of this kind, which is counted then.
    #[inline(always)]
    fn count(&self, outcome: ShadowOutcome) -> bool {
        match outcome {
            ShadowOutcome::GuestFault(_) => self.guest_faults.fetch_add(1, Ordering::Relaxed),
            ShadowOutcome::Filled { prefetched } => {
                if prefetched > 0 {
                    self.prefetched.fetch_add(u64::from(prefetched), Ordering::Relaxed);
                }
                self.filled.fetch_add(1, Ordering::Relaxed)
            }
            _ => return false,
        };
        true
    }

    /// All faults, with those that were counted elsewhere.
    pub(super) fn add_to(&self, mut all: Statistics) -> Statistics {
        let [guest_faults, filled, prefetched] =
            [&self.guest_faults, &self.filled, &self.prefetched].map(|count| count.load(Ordering::Relaxed));
        all.guest_faults += guest_faults;
        all.filled += filled;
        all.prefetched += prefetched;
        all.concurrent += guest_faults + filled;
        all.faults += guest_faults + filled;
        all
    }
}

/// The tables of a VCPU that shares them with others at the moment.
struct Together<'a, M: TableMemory, F: PteFormat> {
    shadow: &'a Shadow<M, F>,
    reserved: u64,
}

impl<M: TableMemory, F: PteFormat> Deref for Together<'_, M, F> {
    type Target = Shadow<M, F>;

    #[inline(always)]
    fn deref(&self) -> &Shadow<M, F> {
        self.shadow
    }
}

impl<M: TableMemory, F: PteFormat> FastPath<M, F> for Together<'_, M, F> {
    #[inline(always)]
    fn reserved(&self) -> u64 {
        self.reserved
    }

    #[inline(always)]
    fn note_absent(&mut self, _: &impl GuestMemory, _: PageId, _: usize) -> bool {
        false
    }

    #[inline(always)]
    fn note_absent_near(&mut self, _: PageId, _: usize) {}

    #[inline(always)]
    fn may_write(&mut self, _: &impl GuestMemory, at: Hpa, access: Access) -> Option<bool> {
        let may = !self.pool.is_write_protected(at.frame());
        // What shadows the page may have to go, or an instruction is emulated.
        (may || !access.write).then_some(may)
    }

    #[inline(always)]
    fn put(&mut self, table: PageId, index: usize, _: Gva, entry: u64, guest_pte: u64) -> bool {
        self.pool.map_shared(table, index, entry, guest_pte)
    }

    #[inline(always)]
    fn put_ahead(&mut self, table: PageId, index: usize, entry: u64, guest_pte: u64) -> bool {
        self.pool.map_shared(table, index, entry, guest_pte)
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Handles a page fault of a VCPU, if that can be done while others do the same. `None`: [`Shadow::fault`] is to be called, with
    /// the tables locked exclusively. No flush is owed.
    pub fn fault_together(
        &self,
        vcpu: u32,
        space: AddressSpace<'_, impl TableMemory, impl GuestMemory>,
        fault: PageFault,
    ) -> Option<ShadowOutcome> {
        let masks = self.masks(vcpu)?;
        let fault = fault.within(masks.linear);
        let leaf =
            *self.leaf_caches.get(vcpu as usize)?.find(&self.pool, self.pool.root_of(vcpu), fault.gva)?;
        let mut tables = Together { shadow: self, reserved: masks.reserved };
        let outcome = tables.fast_path(space, fault, leaf)?;
        self.concurrent.count(outcome).then_some(outcome)
    }
}

#[cfg(test)]
mod tests;
