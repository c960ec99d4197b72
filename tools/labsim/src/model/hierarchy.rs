//! The caches of one processor, those that it shares, and memory behind them.
//!
//! A hit in the first level costs nothing beyond its instruction. Anything else costs the latency of where it was found,
//! in full: there is no overlap of misses. Where the description gives a range of memory a bandwidth, lines wait for its [`Channel`]; what
//! the prefetcher brings occupies that, too, and nothing waits for it. Caches have no dirty lines, so that no line is written back, and do
//! not invalidate each other's lines.

use std::sync::Arc;

use abi::lab::Counters;

use super::{
    cache::{Cache, Saved},
    channel::Channel,
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

/// A physical range.
#[derive(Debug)]
pub struct Range {
    /// Its begin.
    pub start: u64,
    /// Its end.
    pub end: u64,
    /// Where it is.
    pub tier: Tier,
    /// What its lines come through; `None`: any number of lines at a time.
    pub channel: Option<Channel>,
}

/// Physical ranges, and what an access of memory costs.
#[derive(Debug, Default)]
pub struct MemoryMap {
    /// What is in none of them is node 0's.
    pub ranges: Vec<Range>,
    /// Cycles of the processor's own node, of another node, of the slow tier.
    pub latency: [u64; 3],
}

impl MemoryMap {
    fn range(&self, pa: u64) -> Option<&Range> {
        self.ranges.iter().find(|range| (range.start..range.end).contains(&pa))
    }

    /// Whether any range has a channel.
    pub fn has_channels(&self) -> bool {
        self.ranges.iter().any(|range| range.channel.is_some())
    }
}

/// A processor's time, for channels: what it is asked with are the processor's stalls until now.
pub struct Clock {
    /// Of these, what is in the counters of other sides than the one that runs.
    pub elsewhere: u64,
    /// The time at these stalls.
    pub time: Box<dyn Fn(u64) -> u64 + Send>,
}

impl Default for Clock {
    /// Of a processor that does nothing but stall.
    fn default() -> Clock {
        Clock { elsewhere: 0, time: Box::new(|stalls| stalls) }
    }
}

impl Clock {
    fn now(&self, stalls: u64) -> u64 {
        (self.time)(self.elsewhere.wrapping_add(stalls))
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
    /// Of a machine with channels.
    pub clock: Option<Clock>,
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
        let cycles = self.beyond(line, 0, counters);
        if port == Port::Data {
            self.prefetch(line, counters);
        }
        cycles
    }

    /// A walk's reference; returns its cycles. The walk has taken `before` cycles so far, which the counters do not have yet.
    pub fn walk(&mut self, pa: u64, before: u64, counters: &mut Counters) -> u64 {
        let line = pa >> LINE;
        if self.walks_use_first {
            if self.first[Port::Data as usize].touch(line) {
                return self.first_latency;
            }
            counters.l1d_misses += 1;
        }
        self.beyond(line, before, counters)
    }

    fn beyond(&mut self, line: u64, before: u64, counters: &mut Counters) -> u64 {
        let last = self.levels.len().saturating_sub(1);
        for (index, level) in self.levels.iter().enumerate() {
            if level.cache.touch(line) {
                counters.llc_hits += u64::from(index == last);
                return level.latency;
            }
            counters.l2_misses += u64::from(index == 0);
            counters.llc_misses += u64::from(index == last);
        }
        let range = self.memory.range(line << LINE);
        let (counter, latency) = match range.map_or(Tier::Node(0), |range| range.tier) {
            Tier::Slow => (&mut counters.memory_slow, self.memory.latency[2]),
            Tier::Node(node) if node == self.node => (&mut counters.memory_local, self.memory.latency[0]),
            Tier::Node(_) => (&mut counters.memory_remote, self.memory.latency[1]),
        };
        *counter += 1;
        let wait = match (range.and_then(|range| range.channel.as_ref()), &self.clock) {
            (Some(channel), Some(clock)) => channel.demand(clock.now(counters.stall_cycles + before)),
            _ => 0,
        };
        latency + wait
    }

    fn prefetch(&mut self, line: u64, counters: &mut Counters) {
        let Some(prefetcher) = &mut self.prefetcher else { return };
        let Some(second) = self.levels.first() else { return };
        prefetcher.miss(line, |next| {
            if second.cache.bring(next) {
                counters.prefetches += 1;
                let mut is_cached = false;
                for level in &self.levels[1..] {
                    is_cached |= level.cache.touch(next);
                }
                if let (false, Some(clock)) = (is_cached, &self.clock)
                    && let Some(channel) = self.memory.range(next << LINE).and_then(|it| it.channel.as_ref())
                {
                    channel.prefetch(clock.now(counters.stall_cycles));
                }
            }
        });
    }
}

#[cfg(test)]
#[path = "hierarchy_tests.rs"]
mod tests;
