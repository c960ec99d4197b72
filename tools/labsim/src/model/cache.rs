//! Data and instruction caches by physical line. A cache may be shared by processors that run at the same time.
//!
//! Words are relaxed atomics: two processors that touch one set at once may lose a line, or keep one twice, never more.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::policy::{Policy, SEED};

const EMPTY: u64 = u64::MAX;

/// One cache.
pub struct Cache {
    /// The ways of each set: for LRU in the order of use, the last one first, which needs no stamps.
    lines: Box<[AtomicU64]>,
    stamps: Box<[AtomicU64]>,
    /// The line of each set that was used last: a hit there changes nothing that any policy looks at. Empty for LRU.
    newest: Box<[AtomicU64]>,
    sets: u64,
    /// For a power of two of sets; otherwise 0.
    mask: u64,
    ways: usize,
    policy: Policy,
    clock: AtomicU64,
    random: AtomicU64,
}

impl Cache {
    /// An empty cache of `lines` lines, which `ways` divides.
    pub fn new(lines: usize, ways: usize, policy: Policy) -> Cache {
        let words = |count: usize, word: u64| (0..count).map(|_| AtomicU64::new(word)).collect();
        let sets = lines / ways;
        let ordered = policy == Policy::Lru;
        Cache {
            lines: words(lines, EMPTY),
            stamps: words(if ordered { 0 } else { lines }, 0),
            newest: words(if ordered { 0 } else { sets }, EMPTY),
            sets: sets as u64,
            mask: if sets.is_power_of_two() && sets > 1 { sets as u64 - 1 } else { 0 },
            ways,
            policy,
            clock: AtomicU64::new(0),
            random: AtomicU64::new(SEED),
        }
    }

    #[inline(always)]
    fn set(&self, line: u64) -> usize {
        let set = if self.mask != 0 { line & self.mask } else { line % self.sets };
        set as usize
    }

    /// The usual hit: the line is the newest of its set.
    #[inline(always)]
    pub fn is_newest(&self, line: u64) -> bool {
        let set = self.set(line);
        let newest =
            if self.policy == Policy::Lru { &self.lines[set * self.ways] } else { &self.newest[set] };
        newest.load(Relaxed) == line
    }

    /// Looks a line up and brings it in. True if it was there.
    #[inline]
    pub fn touch(&self, line: u64) -> bool {
        let set = self.set(line);
        if self.policy != Policy::Lru {
            return self.touch_stamp(set, line);
        }
        // The line comes to the front; what was before it moves back by one.
        let mut before = line;
        for way in &self.lines[set * self.ways..(set + 1) * self.ways] {
            let known = way.load(Relaxed);
            way.store(before, Relaxed);
            if known == line {
                return true;
            }
            before = known;
        }
        false
    }

    fn touch_stamp(&self, set: usize, line: u64) -> bool {
        if self.newest[set].load(Relaxed) == line {
            return true;
        }
        let (first, time) = (set * self.ways, self.clock.load(Relaxed) + 1);
        self.clock.store(time, Relaxed);
        self.newest[set].store(line, Relaxed);
        let ways = &self.lines[first..first + self.ways];
        let stamps = &self.stamps[first..first + self.ways];
        if let Some(way) = ways.iter().position(|known| known.load(Relaxed) == line) {
            if self.policy.sees_hits() {
                stamps[way].store(time, Relaxed);
            }
            return true;
        }
        let empty = ways.iter().position(|known| known.load(Relaxed) == EMPTY);
        let way = empty.unwrap_or_else(|| {
            let mut random = self.random.load(Relaxed);
            let way = self.policy.victim(self.ways, |way| stamps[way].load(Relaxed), &mut random);
            self.random.store(random, Relaxed);
            way
        });
        ways[way].store(line, Relaxed);
        stamps[way].store(time, Relaxed);
        false
    }

    /// Whether the line is there; changes nothing.
    pub fn contains(&self, line: u64) -> bool {
        let first = self.set(line) * self.ways;
        self.lines[first..first + self.ways].iter().any(|known| known.load(Relaxed) == line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_lists(
            (sets, ways) in (1u64..7, 1usize..9),
            fifo in any::<bool>(),
            trace in prop::collection::vec(0u64..100, 1..600),
        ) {
            let policy = if fifo { Policy::Fifo } else { Policy::Lru };
            let cache = Cache::new(sets as usize * ways, ways, policy);
            let mut lists: Vec<Vec<u64>> = vec![vec![]; sets as usize];
            for line in trace {
                let list = &mut lists[(line % sets) as usize];
                let at = list.iter().position(|known| *known == line);
                prop_assert_eq!(cache.contains(line), at.is_some());
                match at {
                    Some(at) if !fifo => drop(list.remove(at)),
                    _ => {}
                }
                if at.is_none() || !fifo {
                    list.insert(0, line);
                    list.truncate(ways);
                }
                prop_assert_eq!(cache.touch(line), at.is_some());
                prop_assert!(cache.is_newest(line));
            }
        }
    }

    #[test]
    fn any_policy_keeps_what_fits() {
        for policy in [Policy::Lru, Policy::Plru, Policy::Fifo, Policy::Random] {
            let cache = Cache::new(64, 4, policy);
            (0..64).for_each(|line| assert!(!cache.touch(line)));
            (0..64).rev().for_each(|line| assert!(cache.touch(line), "{policy:?}"));
        }
    }
}
