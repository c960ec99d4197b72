//! Where each key of an array is: a hash table of slots beside the array, so that a fully associative lookup takes as long
//! as any other. The keys themselves stay in the array; all functions get them.

/// A place of the table that is free.
const FREE: u32 = u32::MAX;

/// See the module. Collisions go to the next free place; what leaves has the following ones move up, so that a search
/// ends at the first free place.
pub struct Index {
    places: Box<[u32]>,
    /// 64, less the bits of a place's number.
    shift: u32,
}

impl Index {
    /// For the `entries` slots from `base` on, all empty. Three quarters of the table or more stay free.
    pub fn new(base: usize, entries: usize) -> Index {
        debug_assert!(base + entries < FREE as usize);
        let places = (4 * entries).next_power_of_two();
        Index { places: vec![FREE; places].into_boxed_slice(), shift: 64 - places.trailing_zeros() }
    }

    /// Where the search for a key begins: Fibonacci hashing (Knuth 3, 6.4).
    #[inline]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// The slot that has this key.
    #[inline]
    pub fn find(&self, key: u64, keys: &[u64]) -> Option<usize> {
        let mut place = self.home(key);
        loop {
            let slot = self.places[place];
            if slot == FREE {
                return None;
            }
            if keys[slot as usize] == key {
                return Some(slot as usize);
            }
            place = self.after(place);
        }
    }

    /// The slot has a key that no other has.
    pub fn insert(&mut self, slot: usize, keys: &[u64]) {
        let mut place = self.home(keys[slot]);
        while self.places[place] != FREE {
            place = self.after(place);
        }
        self.places[place] = slot as u32;
    }

    /// The slot's key, which it still has, goes.
    pub fn remove(&mut self, slot: usize, keys: &[u64]) {
        let mut hole = self.home(keys[slot]);
        while self.places[hole] != slot as u32 {
            hole = self.after(hole);
        }
        let mut place = hole;
        loop {
            place = self.after(place);
            let next = self.places[place];
            if next == FREE {
                break;
            }
            // It moves to the hole if its search would come by there.
            let (home, all) = (self.home(keys[next as usize]), self.places.len() - 1);
            if place.wrapping_sub(home) & all >= place.wrapping_sub(hole) & all {
                self.places[hole] = next;
                hole = place;
            }
        }
        self.places[hole] = FREE;
    }

    /// All slots are empty.
    pub fn clear(&mut self) {
        self.places.fill(FREE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// As a search of the array, with keys that often collide.
        #[test]
        fn finds_what_a_search_finds(trace in prop::collection::vec((0usize..12, 0u64..40), 1..500)) {
            let (mut index, mut keys) = (Index::new(0, 12), [u64::MAX; 12]);
            for (slot, key) in trace {
                if keys[slot] != u64::MAX {
                    index.remove(slot, &keys);
                    keys[slot] = u64::MAX;
                } else if !keys.contains(&key) {
                    keys[slot] = key;
                    index.insert(slot, &keys);
                }
                for key in 0..40 {
                    prop_assert_eq!(index.find(key, &keys), keys.iter().position(|known| *known == key));
                }
            }
            index.clear();
            prop_assert_eq!(index.find(0, &keys), None);
        }
    }
}
