//! Data and instruction caches by physical line. A cache may be shared by processors that run at the same time.
//!
//! What a policy needs is kept small, because the host's own caches hold it: LRU keeps the ways of a set in the order of
//! use, tree-PLRU one bit for each node of a set's tree, FIFO the way that is next. Results are those of the policies on
//! time stamps (`policy.rs`), to the last line; a test compares them.
//!
//! Words are relaxed atomics: two processors that touch one set at once may lose a line, or keep one twice, never more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{
    policy::{Policy, SEED},
    search::position,
};

/// No line.
const EMPTY: u32 = u32::MAX;
/// Bytes of memory whose lines have numbers here: 256 GiB, less the line that stands for none.
pub const REACH: u64 = (EMPTY as u64) << super::hierarchy::LINE;
/// Ways of a set at most with [`Policy::Plru`]: nodes of a tree in one word.
pub const PLRU_WAYS: usize = 64;
/// Bytes of a line of the host's caches, as they usually are.
const HOST_LINE: usize = 64;

/// One cache.
pub struct Cache {
    /// The ways of each set: for LRU in the order of use, the last one first. They begin at `begin`, with one of the host's lines, so
    /// that a set of 16 ways is one line.
    lines: Box<[AtomicU32]>,
    begin: usize,
    /// The line of each set that was used last: a hit there changes nothing that any policy looks at. Empty for LRU.
    newest: Box<[AtomicU32]>,
    /// PLRU: a bit for each node of the set's tree, the root's is bit 1; set if the right half is to go. Bit 0: no way is empty. FIFO:
    /// the way that goes next. Empty for the others.
    state: Box<[AtomicU64]>,
    /// PLRU: for each way, the nodes above it, and those of them that a use of it sets.
    paths: Box<[(u64, u64)]>,
    sets: u32,
    /// For a power of two of sets; otherwise 0.
    mask: u32,
    ways: usize,
    policy: Policy,
    random: AtomicU64,
}

/// What was in a cache.
#[derive(Default)]
pub struct Saved {
    lines: Vec<u32>,
    newest: Vec<u32>,
    state: Vec<u64>,
}

impl Cache {
    /// An empty cache of `lines` lines, which `ways` divides. PLRU has a power of two of ways, [`PLRU_WAYS`] at most.
    pub fn new(lines: usize, ways: usize, policy: Policy) -> Cache {
        let empty = |count: usize| (0..count).map(|_| AtomicU32::new(EMPTY)).collect();
        let sets = lines / ways;
        let ordered = policy == Policy::Lru;
        let words: Box<[AtomicU32]> = empty(lines + HOST_LINE / size_of::<AtomicU32>());
        let begin = words.as_ptr().align_offset(HOST_LINE).min(HOST_LINE / size_of::<AtomicU32>());
        let has_state = matches!(policy, Policy::Plru | Policy::Fifo);
        Cache {
            lines: words,
            begin,
            newest: empty(if ordered { 0 } else { sets }),
            state: (0..if has_state { sets } else { 0 }).map(|_| AtomicU64::new(0)).collect(),
            paths: if policy == Policy::Plru {
                (0..ways).map(|way| path(way, ways)).collect()
            } else {
                [].into()
            },
            sets: sets as u32,
            mask: if sets.is_power_of_two() && sets > 1 { sets as u32 - 1 } else { 0 },
            ways,
            policy,
            random: AtomicU64::new(SEED),
        }
    }

    #[inline(always)]
    fn set(&self, line: u32) -> usize {
        let set = if self.mask != 0 { line & self.mask } else { line % self.sets };
        set as usize
    }

    #[inline(always)]
    fn ways_of(&self, set: usize) -> &[AtomicU32] {
        let first = self.begin + set * self.ways;
        &self.lines[first..first + self.ways]
    }

    /// The usual hit: the line is the newest of its set. Here and elsewhere, lines are below [`REACH`].
    #[inline(always)]
    pub fn is_newest(&self, line: u64) -> bool {
        let line = line as u32;
        let set = self.set(line);
        let newest = if self.policy == Policy::Lru {
            self.lines.get(self.begin + set * self.ways)
        } else {
            self.newest.get(set)
        };
        newest.is_some_and(|newest| newest.load(Relaxed) == line)
    }

    /// Looks a line up and brings it in. True if it was there.
    #[inline]
    pub fn touch(&self, line: u64) -> bool {
        let line = line as u32;
        let set = self.set(line);
        let ways = self.ways_of(set);
        if self.policy == Policy::Lru { touch_ordered(ways, line) } else { self.touch_in(set, ways, line) }
    }

    /// The usual hit in a cache that no other processor uses, short and without its policy's other half. False: nothing has
    /// happened, and [`touch`](Self::touch) sees to it.
    #[inline(always)]
    pub fn hit(&mut self, line: u64) -> bool {
        if self.policy != Policy::Plru {
            return false;
        }
        let line = line as u32;
        let set = self.set(line);
        let first = self.begin + set * self.ways;
        let ways = self.lines.get_mut(first..first + self.ways);
        let Some(way) = ways.and_then(|ways| own_way_of(ways, line)) else { return false };
        let (Some(newest), Some(tree), Some((nodes, right))) =
            (self.newest.get_mut(set), self.state.get_mut(set), self.paths.get(way))
        else {
            return false;
        };
        *newest.get_mut() = line;
        *tree.get_mut() = *tree.get_mut() & !nodes | right;
        true
    }

    #[inline]
    fn touch_in(&self, set: usize, ways: &[AtomicU32], line: u32) -> bool {
        if self.newest[set].load(Relaxed) == line {
            return true;
        }
        match way_of(ways, line) {
            Some(way) => self.used(set, way, line),
            None => {
                self.place(set, ways, line);
                return false;
            }
        }
        true
    }

    /// A line that is not there takes the place of another one.
    fn place(&self, set: usize, ways: &[AtomicU32], line: u32) {
        let way = self.victim(set, ways);
        ways[way].store(line, Relaxed);
        self.used(set, way, line);
    }

    /// The line, which is in this way, was used.
    #[inline(always)]
    fn used(&self, set: usize, way: usize, line: u32) {
        self.newest[set].store(line, Relaxed);
        if self.policy == Policy::Plru {
            let (nodes, right) = self.paths[way];
            let tree = &self.state[set];
            tree.store(tree.load(Relaxed) & !nodes | right, Relaxed);
        }
    }

    /// The way of a full set that goes, or the first empty one.
    fn victim(&self, set: usize, ways: &[AtomicU32]) -> usize {
        if self.policy == Policy::Fifo {
            // Lines are never taken out, so that the first round fills the empty ways in their order.
            let way = self.state[set].load(Relaxed) as usize % self.ways;
            self.state[set].store((way + 1) as u64, Relaxed);
            return way;
        }
        // A set that was full stays so.
        let is_full = self.policy == Policy::Plru && self.state[set].load(Relaxed) & 1 != 0;
        if !is_full && let Some(empty) = way_of(ways, EMPTY) {
            return empty;
        }
        if self.policy == Policy::Plru {
            let tree = self.state[set].fetch_or(1, Relaxed);
            let mut node = 1;
            while node < self.ways {
                node = 2 * node + (tree >> node & 1) as usize;
            }
            return node - self.ways;
        }
        let mut random = self.random.load(Relaxed);
        let way = self.policy.victim(self.ways, |_| 0, &mut random);
        self.random.store(random, Relaxed);
        way
    }

    /// Brings a line in that is not there. True if it was not; otherwise nothing changes.
    #[inline]
    pub fn bring(&self, line: u64) -> bool {
        let is_absent = !self.contains(line);
        if is_absent {
            let set = self.set(line as u32);
            let ways = self.ways_of(set);
            if self.policy == Policy::Lru {
                touch_ordered(ways, line as u32);
            } else {
                self.place(set, ways, line as u32);
            }
        }
        is_absent
    }

    /// Writes down what is in it, but for the numbers of [`Policy::Random`].
    pub fn save(&self, saved: &mut Saved) {
        // Of slices, whose lengths are known before: at each exit of agile paging this copies some ten thousand words.
        saved.lines.clear();
        saved.lines.extend(self.lines.iter().map(|word| word.load(Relaxed)));
        saved.newest.clear();
        saved.newest.extend(self.newest.iter().map(|word| word.load(Relaxed)));
        saved.state.clear();
        saved.state.extend(self.state.iter().map(|word| word.load(Relaxed)));
    }

    /// Brings back what was written down.
    pub fn restore(&self, saved: &Saved) {
        self.lines.iter().zip(&saved.lines).for_each(|(word, known)| word.store(*known, Relaxed));
        self.newest.iter().zip(&saved.newest).for_each(|(word, known)| word.store(*known, Relaxed));
        self.state.iter().zip(&saved.state).for_each(|(word, known)| word.store(*known, Relaxed));
    }

    /// Whether the line is there; changes nothing.
    #[inline]
    pub fn contains(&self, line: u64) -> bool {
        way_of(self.ways_of(self.set(line as u32)), line as u32).is_some()
    }
}

/// The line comes to the front; what was before it moves back by one.
#[inline]
fn touch_ordered(ways: &[AtomicU32], line: u32) -> bool {
    let mut before = line;
    for way in ways {
        let known = way.load(Relaxed);
        way.store(before, Relaxed);
        if known == line {
            return true;
        }
        before = known;
    }
    false
}

/// The way that has the line.
#[inline(always)]
fn way_of(ways: &[AtomicU32], line: u32) -> Option<usize> {
    position(ways.len(), |way| ways[way].load(Relaxed) == line)
}

/// The same of a cache that no other processor uses.
#[inline(always)]
fn own_way_of(ways: &mut [AtomicU32], line: u32) -> Option<usize> {
    let mut from = 0;
    let mut eights = ways.chunks_exact_mut(8);
    for eight in &mut eights {
        let mut found = 0;
        for (at, way) in eight.iter_mut().enumerate() {
            found |= u32::from(*way.get_mut() == line) << at;
        }
        if found != 0 {
            return Some(from + found.trailing_zeros() as usize);
        }
        from += 8;
    }
    eights.into_remainder().iter_mut().position(|way| *way.get_mut() == line).map(|at| from + at)
}

/// The nodes above a way in a tree of `ways` leaves, and those of them that point to the right after a use of it.
fn path(way: usize, ways: usize) -> (u64, u64) {
    let (mut nodes, mut right, mut node) = (0, 0, way + ways);
    while node > 1 {
        let is_left = node & 1 == 0;
        node /= 2;
        nodes |= 1 << node;
        right |= u64::from(is_left) << node;
    }
    (nodes, right)
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
