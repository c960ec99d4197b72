//! A set of small integers in borrowed words that finds its smallest member at or after a bound in O(log n).
//!
//! A tree of bitmaps with 64-way branching: bit i of level 0 says that i is a member, bit i of level k + 1 that word
//! i of level k is not zero. The buddy allocator keeps one set per order.

/// Levels of the largest set: 64^6 members, the frames of 256 TiB.
const LEVELS: usize = 6;

/// A set of integers below a fixed length.
#[derive(Debug)]
pub struct IndexSet<'m> {
    levels: [&'m mut [u64]; LEVELS],
    height: usize,
    len: usize,
    count: usize,
}

/// Words of each level, bottom first, for members below `len`.
fn shape(len: usize) -> impl Iterator<Item = usize> {
    let mut next = Some(len.div_ceil(64).max(1));
    core::iter::from_fn(move || {
        let words = next?;
        next = (words > 1).then(|| words.div_ceil(64));
        Some(words)
    })
}

impl<'m> IndexSet<'m> {
    /// How many words a set of integers below `len` needs.
    pub fn words(len: usize) -> usize {
        shape(len).sum()
    }

    /// An empty set of integers below `len` at the front of `memory`, and the rest of `memory`.
    ///
    /// # Panics
    /// If `memory` is shorter than [`IndexSet::words`], or `len` above 2^36.
    pub fn new(len: usize, mut memory: &'m mut [u64]) -> (IndexSet<'m>, &'m mut [u64]) {
        let mut set = IndexSet {
            levels: [&mut [], &mut [], &mut [], &mut [], &mut [], &mut []],
            height: 0,
            len,
            count: 0,
        };
        for words in shape(len) {
            let (level, rest) = memory.split_at_mut(words);
            level.fill(0);
            set.levels[set.height] = level;
            set.height += 1;
            memory = rest;
        }
        (set, memory)
    }

    /// The number of members.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether `index` is a member; nothing beyond the length is.
    pub fn contains(&self, index: usize) -> bool {
        index < self.len && self.levels[0][index / 64] & 1 << (index % 64) != 0
    }

    /// Adds `index`; it must be below the length and no member yet.
    pub fn insert(&mut self, index: usize) {
        debug_assert!(index < self.len && !self.contains(index));
        self.count += 1;
        let mut index = index;
        for level in &mut self.levels[..self.height] {
            let word = &mut level[index / 64];
            let was_empty = *word == 0;
            *word |= 1 << (index % 64);
            if !was_empty {
                return;
            }
            index /= 64;
        }
    }

    /// Removes `index`, which must be a member.
    pub fn remove(&mut self, index: usize) {
        debug_assert!(self.contains(index));
        self.count -= 1;
        let mut index = index;
        for level in &mut self.levels[..self.height] {
            let word = &mut level[index / 64];
            *word &= !(1 << (index % 64));
            if *word != 0 {
                return;
            }
            index /= 64;
        }
    }

    /// The smallest member that is `from` or greater.
    pub fn first_from(&self, from: usize) -> Option<usize> {
        // Up until a word has a bit at or after the position …
        let (mut level, mut index) = (0, from);
        loop {
            let word = self.levels[..self.height].get(level)?.get(index / 64)?;
            let ahead = word & u64::MAX << (index % 64);
            if ahead != 0 {
                index = index / 64 * 64 + ahead.trailing_zeros() as usize;
                break;
            }
            level += 1;
            index = index / 64 + 1;
        }
        // … and down along the first bits.
        while level > 0 {
            level -= 1;
            index = index * 64 + self.levels[level][index].trailing_zeros() as usize;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_as_a_btree_set(len in 1usize..10_000, ops in prop::collection::vec((any::<bool>(), any::<usize>()), 1..300)) {
            let mut words = vec![u64::MAX; IndexSet::words(len) + 1];
            let (mut set, rest) = IndexSet::new(len, &mut words);
            prop_assert_eq!(rest.len(), 1);
            let mut model = BTreeSet::new();
            for (add, raw) in ops {
                // Near the ends and the word borders as well as anywhere.
                let index = if raw % 3 == 0 { (raw / 3 % 130).min(len - 1) } else { raw % len };
                if add && model.insert(index) {
                    set.insert(index);
                } else if !add && model.remove(&index) {
                    set.remove(index);
                }
                prop_assert_eq!(set.count(), model.len());
                prop_assert_eq!(set.contains(index), model.contains(&index));
                prop_assert_eq!(set.first_from(index), model.range(index..).next().copied());
                prop_assert_eq!(set.first_from(0), model.first().copied());
                prop_assert_eq!(set.first_from(index + 1), model.range(index + 1..).next().copied());
            }
        }
    }
}
