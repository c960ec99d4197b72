//! Replacement policies. All of them work on one time stamp for each way, so that a hit is one store.
//!
//! Tree-PLRU needs no bits of its own: each node of its tree points away from the half that was used last, and that is
//! the half with the newer stamp.

use serde::{Deserialize, Serialize};

/// Which entry of a full set goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The least recently used.
    #[default]
    Lru,
    /// The one that the bits of a binary tree point to; needs a power of two of ways.
    Plru,
    /// The oldest.
    Fifo,
    /// Any, by a generator with a fixed seed.
    Random,
}

impl Policy {
    /// Whether a hit changes what will be replaced.
    pub const fn sees_hits(self) -> bool {
        matches!(self, Policy::Lru | Policy::Plru)
    }

    /// The way that goes, of a set that is full. `stamp` tells when a way was used (or, for [`Policy::Fifo`], filled).
    #[inline]
    pub fn victim(self, ways: usize, stamp: impl Fn(usize) -> u64, random: &mut u64) -> usize {
        match self {
            Policy::Lru | Policy::Fifo => (0..ways).min_by_key(|way| stamp(*way)).unwrap_or(0),
            Policy::Plru => {
                let newest = |from: usize, to: usize| (from..to).map(&stamp).max().unwrap_or(0);
                let (mut from, mut to) = (0, ways);
                while to - from > 1 {
                    let middle = from.midpoint(to);
                    if newest(from, middle) <= newest(middle, to) { to = middle } else { from = middle }
                }
                from
            }
            Policy::Random => {
                *random = step(*random);
                (*random >> 32) as usize % ways
            }
        }
    }
}

/// The first state of a generator of [`Policy::Random`].
pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Marsaglia's xorshift.
fn step(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ state << 17
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tree-PLRU by its bits, as manuals draw it.
    struct Tree {
        bits: Vec<bool>,
        ways: usize,
    }

    impl Tree {
        fn touch(&mut self, way: usize) {
            let (mut node, mut from, mut to) = (1, 0, self.ways);
            while to - from > 1 {
                let middle = (from + to) / 2;
                let right = way >= middle;
                self.bits[node] = !right;
                if right {
                    from = middle
                } else {
                    to = middle
                }
                node = 2 * node + usize::from(right);
            }
        }

        fn victim(&self) -> usize {
            let (mut node, mut from, mut to) = (1, 0, self.ways);
            while to - from > 1 {
                let middle = (from + to) / 2;
                let right = self.bits[node];
                if right {
                    from = middle
                } else {
                    to = middle
                }
                node = 2 * node + usize::from(right);
            }
            from
        }
    }

    proptest! {
        #[test]
        fn plru_by_stamps_is_plru_by_bits(log in 0u32..5, touches in prop::collection::vec(0usize..16, 1..200)) {
            let ways = 1 << log;
            let mut tree = Tree { bits: vec![false; ways.max(2)], ways };
            let mut stamps = vec![0; ways];
            for (time, way) in touches.into_iter().enumerate() {
                prop_assert_eq!(Policy::Plru.victim(ways, |way| stamps[way], &mut 0), tree.victim());
                tree.touch(way % ways);
                stamps[way % ways] = time as u64 + 1;
            }
        }
    }

    #[test]
    fn random_takes_every_way() {
        let mut random = SEED;
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[Policy::Random.victim(5, |_| 0, &mut random)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
