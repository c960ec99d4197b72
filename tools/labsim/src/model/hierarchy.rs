//! The caches of one processor, those that it shares, and memory behind them.
//!
//! A hit in the first level costs nothing beyond its instruction. Anything else costs the latency of where it was found,
//! in full: there is no overlap of misses, no bandwidth, no queue. Caches do not invalidate each other's lines.

use std::sync::Arc;

use abi::lab::Counters;

use super::{
    cache::{Cache, Saved},
    prefetch::Prefetcher,
    tlb::Port,
};

/// The logarithm of a line's bytes, in all caches.
pub const LINE: u32 = 6;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Memory of this node.
    Node(u32),
    /// The slow tier.
    Slow,
}

/// Physical ranges, and what an access of memory costs.
#[derive(Clone, Debug, Default)]
pub struct MemoryMap {
    /// Start, end and tier. What is in none of them is node 0's.
    pub ranges: Vec<(u64, u64, Tier)>,
    /// Cycles of the processor's own node, of another node, of the slow tier.
    pub latency: [u64; 3],
}

impl MemoryMap {
    fn tier(&self, pa: u64) -> Tier {
        let range = self.ranges.iter().find(|(start, end, _)| (*start..*end).contains(&pa));
        range.map_or(Tier::Node(0), |range| range.2)
    }
}

/// A level beyond the first.
pub struct Level {
    /// The cache; shared levels are the same one in several processors.
    pub cache: Arc<Cache>,
    /// Cycles of a hit.
    pub latency: u64,
}

/// See the module.
pub struct Hierarchy {
    /// The first level for data and for code.
    pub first: [Cache; 2],
    /// Cycles of a hit in the first level, for the walker.
    pub first_latency: u64,
    /// The other levels: the second, and perhaps a third, which then is the last.
    pub levels: Vec<Level>,
    /// Walks begin at the first level for data; otherwise at the second.
    pub walks_use_first: bool,
    /// Beside the second level.
    pub prefetcher: Option<Prefetcher>,
    /// Memory.
    pub memory: Arc<MemoryMap>,
    /// The processor's node.
    pub node: u32,
}

/// What was in the caches of one processor.
#[derive(Default)]
pub struct SavedCaches {
    caches: Vec<Saved>,
    prefetcher: Option<Prefetcher>,
}

impl Hierarchy {
    /// All caches but the last, which others may use, too.
    fn own(&self) -> impl Iterator<Item = &Cache> {
        let last = self.levels.len().saturating_sub(1);
        self.first.iter().chain(self.levels[..last].iter().map(|level| &*level.cache))
    }

    /// Writes down what is in the processor's own caches.
    pub fn save(&self, saved: &mut SavedCaches) {
        saved.caches.resize_with(self.own().count(), Saved::default);
        self.own().zip(&mut saved.caches).for_each(|(cache, saved)| cache.save(saved));
        saved.prefetcher.clone_from(&self.prefetcher);
    }

    /// Brings back what was written down.
    pub fn restore(&mut self, saved: &SavedCaches) {
        self.own().zip(&saved.caches).for_each(|(cache, saved)| cache.restore(saved));
        self.prefetcher.clone_from(&saved.prefetcher);
    }

    /// The usual hit, which needs nothing more.
    #[inline(always)]
    pub fn is_newest(&self, port: Port, pa: u64) -> bool {
        self.first[port as usize].is_newest(pa >> LINE)
    }

    /// A hit in the first level, if it is one of those that need little. False: [`access`](Self::access) sees to it.
    #[inline(always)]
    pub fn hit(&mut self, port: Port, pa: u64) -> bool {
        self.first[port as usize].hit(pa >> LINE)
    }

    /// A load, store or fetch; returns its cycles beyond the first level.
    pub fn access(&mut self, port: Port, pa: u64, counters: &mut Counters) -> u64 {
        let line = pa >> LINE;
        if self.first[port as usize].touch(line) {
            return 0;
        }
        match port {
            Port::Data => counters.l1d_misses += 1,
            Port::Code => counters.l1i_misses += 1,
        }
        let cycles = self.beyond(line, counters);
        if port == Port::Data {
            self.prefetch(line, counters);
        }
        cycles
    }

    /// A walk's reference; returns its cycles.
    pub fn walk(&mut self, pa: u64, counters: &mut Counters) -> u64 {
        let line = pa >> LINE;
        if self.walks_use_first {
            if self.first[Port::Data as usize].touch(line) {
                return self.first_latency;
            }
            counters.l1d_misses += 1;
        }
        self.beyond(line, counters)
    }

    fn beyond(&mut self, line: u64, counters: &mut Counters) -> u64 {
        let last = self.levels.len().saturating_sub(1);
        for (index, level) in self.levels.iter().enumerate() {
            if level.cache.touch(line) {
                counters.llc_hits += u64::from(index == last);
                return level.latency;
            }
            counters.l2_misses += u64::from(index == 0);
            counters.llc_misses += u64::from(index == last);
        }
        let (counter, latency) = match self.memory.tier(line << LINE) {
            Tier::Slow => (&mut counters.memory_slow, self.memory.latency[2]),
            Tier::Node(node) if node == self.node => (&mut counters.memory_local, self.memory.latency[0]),
            Tier::Node(_) => (&mut counters.memory_remote, self.memory.latency[1]),
        };
        *counter += 1;
        latency
    }

    fn prefetch(&mut self, line: u64, counters: &mut Counters) {
        let Some(prefetcher) = &mut self.prefetcher else { return };
        let Some(second) = self.levels.first() else { return };
        prefetcher.miss(line, |next| {
            if second.cache.bring(next) {
                counters.prefetches += 1;
                for level in &self.levels[1..] {
                    level.cache.touch(next);
                }
            }
        });
    }
}

#[cfg(test)]
#[path = "hierarchy_tests.rs"]
mod tests;
