//! Finds a page's entry: a table of fixed size with open addressing, twice as large as what it may hold, so that probes are short.
//! The hash is seeded by nothing: a guest that chooses page numbers to collide costs its own faults time, up to the table's size.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{NONE, Page, bytes_of, table};

/// The table.
#[derive(Clone, Debug)]
pub struct Index {
    places: Vec<(Page, u32)>,
    /// A hash is shifted by this to become a place.
    shift: u32,
}

impl Index {
    /// For this many pages at most.
    ///
    /// # Errors
    /// No memory.
    pub fn new(most: usize) -> Result<Index, TryReserveError> {
        let places = (2 * most.max(1)).next_power_of_two();
        Ok(Index { places: table(places, (Page(0), NONE))?, shift: 64 - places.trailing_zeros() })
    }

    fn home(&self, page: Page) -> usize {
        // Fibonacci hashing: neighbours spread over the whole table.
        (page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Where the page is, or the free place where it would be.
    fn place(&self, page: Page) -> usize {
        let mut place = self.home(page);
        // Ends: half of the places are free.
        while self.places[place].1 != NONE && self.places[place].0 != page {
            place = self.next(place);
        }
        place
    }

    /// The page's entry, or [`NONE`].
    pub fn find(&self, page: Page) -> u32 {
        self.places[self.place(page)].1
    }

    /// Sets the page's entry. There must be room.
    pub fn insert(&mut self, page: Page, entry: u32) {
        let place = self.place(page);
        self.places[place] = (page, entry);
    }

    /// Forgets the page, if it is known.
    pub fn remove(&mut self, page: Page) {
        let mut hole = self.place(page);
        if self.places[hole].1 == NONE {
            return;
        }
        // What follows moves up, unless it stands between its home and the hole's successor.
        let mut place = hole;
        loop {
            place = self.next(place);
            let (other, entry) = self.places[place];
            if entry == NONE {
                break;
            }
            let home = self.home(other);
            let mask = self.places.len() - 1;
            if place.wrapping_sub(home) & mask >= place.wrapping_sub(hole) & mask {
                self.places[hole] = (other, entry);
                hole = place;
            }
        }
        self.places[hole].1 = NONE;
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.places)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_map(steps in proptest::collection::vec((0u64..40, any::<bool>()), 1..300)) {
            let (mut index, mut model) = (Index::new(40).unwrap(), BTreeMap::new());
            for (n, (page, remove)) in steps.into_iter().enumerate() {
                // Multiples of a large number, so that homes coincide.
                let page = Page(page << 59 | page);
                if remove {
                    index.remove(page);
                    model.remove(&page);
                } else {
                    index.insert(page, n as u32);
                    model.insert(page, n as u32);
                }
                for page in (0..40u64).map(|page| Page(page << 59 | page)) {
                    prop_assert_eq!(index.find(page), model.get(&page).copied().unwrap_or(NONE));
                }
            }
        }
    }
}
