//! Agile paging's machine `commodity`: tables of levels 2 and 3 that the guest keeps writing stay unsync over its flushes.
//!
//! It is plain shadow paging otherwise. A table that is written often within the window becomes nested as on the modelled machine: it
//! is not write-protected, faults below it walk the guest's tables from the root, and flushes compare it. No processor goes on
//! in the guest's tables there, so level 1 below it is as in plain shadow paging, in step or unsync until it is quiet. When the
//! guest has not changed it for a timeout, which its contents tell, it is write-protected again.
//!
//! A flush compares [`MAX_UPPER`] of them at most, beside the other unsync pages. A table of level 2 that is shadowed first below one
//! of level 3 begins so, without a write. Roots stay write-protected: all faults of their address space would be walked from there.

use super::super::Shadow;
use super::super::TlbFlush;
use super::super::role::Key;
use super::super::sync::MAX_UNSYNC;
use super::{Agile, AgileTimes};
use crate::arch::addr::Hfn;
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use abi::telemetry::key;

/// Shadow pages above level 1 that stay unsync at a time. A table that would exceed this stays write-protected.
pub(super) const MAX_UPPER: usize = 16;

/// Writes within the window after which a table stays unsync. A process that starts and ends writes its tables a few times, and
/// faults below them more often: it would lose more by the walks than it gains.
pub(super) const UPPER_WRITES: usize = 8;

/// Tables above level 1 that stay unsync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpperCounts {
    /// Their shadow pages now.
    pub unsync: u64,
    /// Tables that have become so by their writes, or began so.
    pub to_unsync: u64,
    /// Tables that were write-protected again.
    pub protected: u64,
}

impl UpperCounts {
    /// All counters with their names in statistics and telemetry.
    pub fn named(&self) -> [(&'static str, u64); 3] {
        [
            (key::UPPER_UNSYNC, self.unsync),
            (key::UPPER_TO_UNSYNC, self.to_unsync),
            (key::UPPER_PROTECTED, self.protected),
        ]
    }
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// From now on tables of levels 2 and 3 stay unsync by these times (an address space has no first time of its own), or none
    /// does. VCPUs may run meanwhile. While agile paging itself is in force, nothing happens. `physical_bits`: of the processor.
    pub fn set_upper(
        &mut self,
        times: Option<AgileTimes>,
        physical_bits: u8,
        memory: &impl GuestMemory,
    ) -> TlbFlush {
        self.begin();
        match (times, &mut self.agile) {
            (None, _) => self.end_upper(memory),
            (Some(times), Some(agile)) if agile.upper_only => {
                agile.times = AgileTimes { start: 0, ..times };
                agile.next_look = 0;
            }
            (Some(_), Some(_)) => {}
            (Some(times), None) => {
                let times = AgileTimes { start: 0, ..times };
                self.agile = Some(Agile::new(times, physical_bits, true, self.tuning));
                self.unsync.reserve(MAX_UNSYNC + MAX_UPPER);
            }
        }
        self.pool.take_owed_and(TlbFlush::None)
    }

    /// All tables that stay unsync are write-protected, and no others become so.
    pub(super) fn end_upper(&mut self, memory: &impl GuestMemory) {
        if !self.agile.as_ref().is_some_and(|agile| agile.upper_only) {
            return;
        }
        while let Some(page) = self.unsync.iter().find(|page| self.pool.page(page.id).nested) {
            self.unnest(memory, Hfn(page.number));
        }
        self.forget_shadowed();
        self.agile = None;
        self.drop_unlinked();
        self.pool.forget_nested_below();
        self.note_upper_unsync();
    }

    /// Whether it is time to look which of the tables that stay unsync have changed: by [`agile_time`](Self::agile_time), of no
    /// address space.
    pub fn is_upper_due(&self, now: u64) -> bool {
        self.agile.as_ref().is_some_and(|agile| agile.upper_only && now >= agile.next_look)
    }

    /// Tables above level 1 that stay unsync.
    pub fn upper_counts(&self) -> UpperCounts {
        let counts = self.upper_counts;
        UpperCounts {
            unsync: if self.is_modelled() { 0 } else { self.nested_pages() as u64 },
            to_unsync: counts.to_nested,
            protected: counts.to_shadow,
        }
    }

    /// Shadow pages of nested tables.
    pub(in super::super) fn nested_pages(&self) -> usize {
        self.unsync.iter().filter(|page| self.pool.page(page.id).nested).count()
    }

    /// Whether a page with this key may be nested, by its level and kind.
    #[inline(always)]
    pub(in super::super) fn may_be_nested(&self, key: Key) -> bool {
        let Some(agile) = &self.agile else { return false };
        key.is_nestable() && (!agile.upper_only || matches!(key.level(), 2 | 3))
    }
}

#[cfg(test)]
mod tests;
