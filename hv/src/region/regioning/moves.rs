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
/// Of the index of counters: half of its places are empty at least, so that a search ends soon.
const PLACES: usize = 2 * COUNTERS;

/// Moves of VCPUs between caches while an address space was theirs; each has its own.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    until_ns: u64,
    pages: ArrayVec<(Gfn, u32), COUNTERS>,
    /// One more than the index of a page's counter, from the place of the page's hash on; 0 ends a search.
    places: [u8; PLACES],
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
            self.places = [0; PLACES];
        }
        let at = self.count(gfn)?;
        if self.pages[at].1 <= most {
            return None;
        }
        self.pages.swap_remove(at);
        self.index();
        // Refused in a region of the guest's, which the guest has asked for.
        let effects = partition.exclude(gfn).ok();
        self.excluded += u64::from(effects.is_some());
        effects
    }

    /// Counts a page, and returns its counter if it has one.
    fn count(&mut self, gfn: Gfn) -> Option<usize> {
        match self.find(gfn) {
            Ok(at) => {
                self.pages[at].1 += 1;
                Some(at)
            }
            Err(place) if self.pages.try_push((gfn, 1)).is_ok() => {
                self.places[place] = self.pages.len() as u8;
                Some(self.pages.len() - 1)
            }
            Err(_) => {
                self.pages.iter_mut().for_each(|(_, count)| *count -= 1);
                self.pages.retain(|(_, count)| *count != 0);
                self.index();
                None
            }
        }
    }

    /// A page's counter; without one the place in the index where that would be.
    fn find(&self, gfn: Gfn) -> Result<usize, usize> {
        // Multiplicative hashing by the golden ratio.
        let mut place = (gfn.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2())) as usize;
        while let Some(at) = usize::from(self.places[place]).checked_sub(1) {
            if self.pages[at].0 == gfn {
                return Ok(at);
            }
            place = (place + 1) % PLACES;
        }
        Err(place)
    }

    /// Makes the index: counters have gone.
    fn index(&mut self) {
        self.places = [0; PLACES];
        for at in 0..self.pages.len() {
            if let Err(place) = self.find(self.pages[at].0) {
                self.places[place] = at as u8 + 1;
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pages_that_move_vcpus_too_often_are_excluded_among_others() {
        let mut partition = Partition::new([Gfn(0)..Gfn(64)]).unwrap();
        let (mut moves, space) = (Moves::default(), partition.add_space().unwrap());
        for page in 0..COUNTERS as u64 {
            let _mapped = partition.map(Gfn(page), space).unwrap();
        }
        let mut excluded = vec![];
        for n in 0..400 {
            // The first pages come most often, and so they go first; those behind them take their places.
            let page = Gfn(n % (1 + n % COUNTERS as u64));
            if moves.moved(page, n, 20, &mut partition).is_some() {
                excluded.push(page.0);
            }
            assert!(moves.pages.iter().all(|(own, count)| *count <= 20 && moves.find(*own).is_ok()));
        }
        assert!(excluded.len() > 3 && moves.excluded() == excluded.len() as u64, "{excluded:?}");
        assert_eq!(moves.moved(Gfn(40), 2 * WINDOW_NS, 20, &mut partition), None);
        assert_eq!(moves.pages.as_slice(), [(Gfn(40), 1)], "another window");
    }

    /// The same by a search through all counters.
    fn count_plainly(pages: &mut Vec<(Gfn, u32)>, gfn: Gfn) -> Option<u32> {
        if let Some((_, count)) = pages.iter_mut().find(|(own, _)| *own == gfn) {
            *count += 1;
            return Some(*count);
        }
        if pages.len() < COUNTERS {
            pages.push((gfn, 1));
            return Some(1);
        }
        pages.iter_mut().for_each(|(_, count)| *count -= 1);
        pages.retain(|(_, count)| *count != 0);
        None
    }

    proptest! {
        #[test]
        fn pages_are_counted_as_by_a_search_through_all(
            touched in prop::collection::vec((0u64..40, 0u64..4), 0..600),
        ) {
            let (mut moves, mut pages) = (Moves::default(), Vec::new());
            for (page, times) in touched {
                // Most often one of a few.
                let gfn = Gfn(if times == 0 { page } else { page % 5 } << 20);
                let counted = moves.count(gfn).map(|at| moves.pages[at].1);
                prop_assert_eq!(counted, count_plainly(&mut pages, gfn));
            }
            prop_assert_eq!(moves.pages.as_slice(), pages.as_slice());
        }
    }
}
