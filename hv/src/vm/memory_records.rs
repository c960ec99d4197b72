//! What a VM has of fast memory, and what an overcommitted one has compressed, for its samples ([`records::tiers`],
//! [`records::pager`]).
//!
//! `vcpu::sampling` asks when it ends a period of the VM's samples, at most once in [`PERIOD_NS`]. A VM without either is asked for
//! that alone.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{HostMemory, Vm};
use crate::mem::tier::sharing::Target;
use crate::paging::format::{NestedAttr, PteFormat};

/// Nanoseconds of the VM's time between two: pages are looked at no more often either.
const PERIOD_NS: u64 = 100_000_000;

/// When there were records.
#[derive(Debug)]
pub struct Pace {
    last_ns: AtomicU64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { last_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Pace {
    /// Whether there are to be some at `time_ns` of the VM's time, which goes back at a reset. Of several that ask, one is told so.
    pub fn is_due(&self, time_ns: u64, demanded: bool) -> bool {
        let last = self.last_ns.load(Ordering::Relaxed);
        let is_due = demanded || last == u64::MAX || time_ns.abs_diff(last) >= PERIOD_NS;
        is_due && self.last_ns.compare_exchange(last, time_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Whether it has anything for these records.
    pub fn has_memory_records(&self) -> bool {
        self.tiers.is_some() || self.pager.is_some()
    }

    /// Its fast memory now, without a time.
    pub fn tier_record(&self) -> Option<records::tiers::Tiers> {
        let tiers = self.tiers.as_ref()?;
        let (now, pool) = (tiers.view(), tiers.pool());
        let (state, is_set) = now.state;
        let (counts, map) = (now.counts, tiers.map());
        Some(records::tiers::Tiers {
            e_state: (is_set || pool.sharing().has_states()).then_some(state.number()),
            is_set,
            hot: now.hot,
            total: pool.total(),
            free: pool.free(),
            tables: pool.tables(),
            share: now.share,
            fast: now.fast,
            waiting: now.waiting,
            working_set: now.working_set,
            target: now.target.0.map_or(0, Target::per_mille).into(),
            counts: [counts.moved_in, counts.moved_out, counts.discarded, counts.busy + counts.pinned],
            accessed: map.accessed,
            hot_parts: map.hot,
            histogram: map.histogram,
            recent: map.recent,
            ..records::tiers::Tiers::default()
        })
    }

    /// What it has in frames, compressed and on the disk now, without a time.
    pub fn pager_record(&self) -> Option<records::pager::Pager> {
        let pager = self.pager.as_ref()?;
        let (now, budget) = (pager.counts(), pager.budget());
        let pages = |pages: u64| u32::try_from(pages).unwrap_or(u32::MAX);
        Some(records::pager::Pager {
            resident: pages(now.resident),
            resident_limit: budget.resident,
            stored: pages(now.stored),
            store: pages(now.store_frames),
            store_limit: budget.store,
            on_disk: pages(now.on_disk),
            counts: [
                now.faults,
                now.refaults,
                now.came_in,
                now.went_out,
                now.compressed_from,
                now.compressed_to,
                now.from_disk,
                now.disk_reads,
                now.disk_writes,
            ],
            ..records::pager::Pager::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_in_a_period_and_after_a_reset() {
        let pace = Pace::default();
        let times =
            [5, 6, PERIOD_NS, PERIOD_NS + 5, PERIOD_NS + 6, 3, 7].map(|time| pace.is_due(time, false));
        assert_eq!(times, [true, false, false, true, false, true, false]);
        assert!(pace.is_due(8, true), "the end of the VM");
    }
}
