//! Pages that move VCPUs too often (thesis 2.3.3): a page that data of two regions share, or that all of a program uses.
//!
//! Counted in windows of 100 ms, for the pages with most moves, with a fixed number of counters (Misra and Gries 1982): a page that
//! causes more than a seventeenth of all moves has one, and its count is too low by a seventeenth of all moves at most, never too high.

use arrayvec::ArrayVec;

use crate::arch::addr::Gfn;
use crate::region::Effects;
use crate::region::partition::Partition;

/// Virtual time of a window, in nanoseconds.
const WINDOW_NS: u64 = 100_000_000;
/// Pages that are counted.
const COUNTERS: usize = 16;

/// Moves of VCPUs between caches while an address space was theirs; each has its own.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    until_ns: u64,
    pages: ArrayVec<(Gfn, u32), COUNTERS>,
    /// Moves since [`Moves::take`].
    moves: u64,
    excluded: u64,
}

impl Moves {
    /// A VCPU was moved to another cache because it touched this page. If it is one too many in this window (more than `most`), the page
    /// becomes global, and these are the effects.
    #[must_use = "tables must follow the effects"]
    #[inline]
    pub fn moved(&mut self, gfn: Gfn, now_ns: u64, most: u32, partition: &mut Partition) -> Option<Effects> {
        self.moves += 1;
        if now_ns >= self.until_ns {
            self.until_ns = now_ns.saturating_add(WINDOW_NS);
            self.pages.clear();
        }
        let at = self.count(gfn)?;
        if self.pages[at].1 <= most {
            return None;
        }
        self.pages.swap_remove(at);
        // Refused in a region of the guest's, which the guest has asked for.
        let effects = partition.exclude(gfn).ok();
        self.excluded += u64::from(effects.is_some());
        effects
    }

    /// Counts a page, and returns its counter if it has one.
    fn count(&mut self, gfn: Gfn) -> Option<usize> {
        if let Some(at) = self.pages.iter().position(|(own, _)| *own == gfn) {
            self.pages[at].1 += 1;
            return Some(at);
        }
        if self.pages.try_push((gfn, 1)).is_ok() {
            return Some(self.pages.len() - 1);
        }
        self.pages.iter_mut().for_each(|(_, count)| *count -= 1);
        self.pages.retain(|(_, count)| *count != 0);
        None
    }

    /// Moves since the last call.
    pub fn take(&mut self) -> u64 {
        core::mem::take(&mut self.moves)
    }

    /// Pages that were excluded.
    pub fn excluded(&self) -> u64 {
        self.excluded
    }
}
