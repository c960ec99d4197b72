//! The regions of a VM at a moment: how much memory each cache has of it, what the largest regions are, and what they have done to
//! VCPUs. Counts are sums since the VM's last start; a reader subtracts two of them.
//!
//! A record has a bounded size whatever the guest does: [`LISTED`] regions, [`BINS`] parts of its memory, [`DOMAINS`] caches.

use crate::{halves, head, joined, parse_head};

/// The kind of a record.
pub const KIND: u8 = 7;
/// Cache domains at most.
pub const DOMAINS: usize = 16;
/// Regions that are listed at most: the largest.
pub const LISTED: usize = 16;
/// Parts of the guest's memory, of one size, in the order of its addresses.
pub const BINS: usize = 128;
/// What is counted; keys of JSON objects.
pub const COUNTS: [&str; 5] = ["closed_faults", "moves", "globalised", "opened", "rounds"];
/// Kinds of regions, in the hypervisor's order.
pub const KINDS: [&str; 5] = ["seed", "regular", "local", "shared", "global"];
/// In place of a number that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// What a cache has of the VM's memory, in frames of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cache {
    /// Frames of the regions that are mapped to it.
    pub frames: u64,
    /// Their working sets together, as far as they are known.
    pub working_set: u64,
}

/// A region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The guest's own number of it, or the hypervisor's.
    pub number: u16,
    /// The guest has defined it; otherwise the hypervisor has found it.
    pub is_guests: bool,
    /// What it is, by its number in [`KINDS`].
    pub kind: u8,
    /// The cache that it is mapped to; `None`: it is open in all.
    pub cache: Option<u8>,
    /// Its frames.
    pub frames: u32,
    /// Its working set in frames, or [`UNKNOWN`].
    pub working_set: u32,
    /// VCPUs that it has moved, since it was first mapped to a cache.
    pub moves: u64,
    /// How long it is used at a time, in nanoseconds, or [`UNKNOWN`].
    pub access_ns: u32,
    /// The frame of the root of its address space's page tables, or [`UNKNOWN`]: it belongs to the VM as a whole.
    pub space: u32,
}

/// The record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// The VM's number in the configuration.
    pub vm: u8,
    /// How often it was reset, modulo 256: its sums begin at 0 each time.
    pub resets: u8,
    /// Caches of the machine.
    pub domains: u8,
    /// Regions in `regions`.
    pub listed: u8,
    /// Nanoseconds since the VM's start.
    pub time_ns: u64,
    /// The host's TSC.
    pub tsc: u64,
    /// Frames of the guest's memory.
    pub frames: u64,
    /// Regions that the hypervisor has found, and those that the guest has defined, now.
    pub known: [u64; 2],
    /// The sums, in the order of [`COUNTS`].
    pub counts: [u64; COUNTS.len()],
    /// The caches.
    pub caches: [Cache; DOMAINS],
    /// For each part of memory the cache that it is mapped to, plus one; 0: none, as far as the frames tell that were looked at.
    pub map: [u8; BINS],
    /// The largest regions, the largest first.
    pub regions: [Region; LISTED],
}

impl Default for Regions {
    fn default() -> Regions {
        Regions {
            vm: 0,
            resets: 0,
            domains: 0,
            listed: 0,
            time_ns: 0,
            tsc: 0,
            frames: 0,
            known: [0; 2],
            counts: [0; COUNTS.len()],
            caches: [Cache::default(); DOMAINS],
            map: [0; BINS],
            regions: [Region::default(); LISTED],
        }
    }
}

/// Words before those of the caches.
const FIXED: usize = 6 + COUNTS.len();
const MAP_WORDS: usize = BINS / 8;
const EACH: usize = 4;
/// Words of a record at most.
pub const MOST: usize = FIXED + 2 * DOMAINS + MAP_WORDS + EACH * LISTED;
const _: () = assert!(MOST <= crate::ring::LONGEST);

impl Region {
    fn write(&self) -> [u64; EACH] {
        let cache = self.cache.map_or(0, |cache| cache.wrapping_add(1));
        let what = u64::from(self.number)
            | u64::from(self.is_guests) << 16
            | u64::from(self.kind) << 24
            | u64::from(cache) << 32;
        [what, joined(self.frames, self.working_set), self.moves, joined(self.access_ns, self.space)]
    }

    fn read([what, size, moves, access]: [u64; EACH]) -> Region {
        let (frames, working_set) = halves(size);
        let (access_ns, space) = halves(access);
        Region {
            number: what as u16,
            is_guests: what >> 16 & 1 != 0,
            kind: (what >> 24) as u8,
            cache: ((what >> 32) as u8).checked_sub(1),
            frames,
            working_set,
            moves,
            access_ns,
            space,
        }
    }
}

impl Regions {
    /// Writes the record; its words.
    pub fn write(&self, record: &mut [u64; MOST]) -> usize {
        let more = u32::from_le_bytes([self.vm, self.resets, self.domains, self.listed]);
        let caches = &self.caches[..usize::from(self.domains).min(DOMAINS)];
        let regions = &self.regions[..usize::from(self.listed).min(LISTED)];
        let words = FIXED + 2 * caches.len() + MAP_WORDS + EACH * regions.len();
        let fixed = [head(KIND, words, more), self.time_ns, self.tsc, self.frames];
        let fixed = fixed.into_iter().chain(self.known).chain(self.counts);
        let caches = caches.iter().flat_map(|cache| [cache.frames, cache.working_set]);
        let map = self
            .map
            .chunks_exact(8)
            .map(|bins| bins.iter().rev().fold(0, |word, bin| word << 8 | u64::from(*bin)));
        let all = fixed.chain(caches).chain(map).chain(regions.iter().flat_map(Region::write));
        record.iter_mut().zip(all).for_each(|(to, word)| *to = word);
        words
    }

    /// Reads a record. `None`: it is none, or not whole.
    pub fn read(record: &[u64]) -> Option<Regions> {
        let (kind, words, more) = parse_head(*record.first()?);
        let all = record.get(..words).filter(|_| kind == KIND)?;
        let [vm, resets, domains, listed] = more.to_le_bytes();
        if usize::from(domains) > DOMAINS || usize::from(listed) > LISTED {
            return None;
        }
        let (fixed, rest) = all.split_first_chunk::<FIXED>()?;
        let (caches, rest) = rest.split_at_checked(2 * usize::from(domains))?;
        let (map, rest) = rest.split_at_checked(MAP_WORDS)?;
        let rest = rest.get(..EACH * usize::from(listed))?;
        let [_, time_ns, tsc, frames, found, guests, counts @ ..] = *fixed;
        let mut regions = Regions {
            vm,
            resets,
            domains,
            listed,
            time_ns,
            tsc,
            frames,
            known: [found, guests],
            counts,
            ..Regions::default()
        };
        for (to, from) in regions.caches.iter_mut().zip(caches.chunks_exact(2)) {
            *to = Cache { frames: from[0], working_set: from[1] };
        }
        for (to, from) in regions.map.chunks_exact_mut(8).zip(map) {
            to.copy_from_slice(&from.to_le_bytes());
        }
        for (to, from) in regions.regions.iter_mut().zip(rest.as_chunks::<EACH>().0) {
            *to = Region::read(*from);
        }
        Some(regions)
    }

    /// The caches of the machine.
    pub fn caches(&self) -> &[Cache] {
        &self.caches[..usize::from(self.domains).min(DOMAINS)]
    }

    /// The regions that are listed.
    pub fn regions(&self) -> &[Region] {
        &self.regions[..usize::from(self.listed).min(LISTED)]
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn regions(domains: u8, listed: u8) -> Regions {
        let mut regions = Regions {
            vm: 3,
            resets: 9,
            domains,
            listed,
            time_ns: 4,
            tsc: 5,
            frames: 6,
            ..Regions::default()
        };
        regions.known = [7, 8];
        regions.counts = [1, 2, 3, u64::MAX, 5];
        for (n, cache) in regions.caches.iter_mut().enumerate().take(domains.into()) {
            *cache = Cache { frames: n as u64, working_set: 2 * n as u64 };
        }
        regions.map = core::array::from_fn(|n| (n % 17) as u8);
        for (n, region) in regions.regions.iter_mut().enumerate().take(listed.into()) {
            let n = n as u16;
            *region = Region {
                number: n,
                is_guests: n.is_multiple_of(2),
                kind: 2,
                cache: (!n.is_multiple_of(3)).then_some(n as u8),
                frames: 10,
                working_set: UNKNOWN,
                moves: n.into(),
                access_ns: 11,
                space: 12,
            };
        }
        regions
    }

    #[test]
    fn what_is_written_is_read() {
        for (domains, listed) in [(1, 0), (2, 5), (16, 16)] {
            let regions = regions(domains, listed);
            let mut record = [0; MOST];
            let words = regions.write(&mut record);
            assert_eq!(Regions::read(&record[..words]), Some(regions));
            assert_eq!(Regions::read(&record[..words - 1]), None);
        }
        assert_eq!(Regions::read(&[]), None);
        assert_eq!(crate::sample::Sample::read(&[head(KIND, 1, 0)]), None);
    }

    #[test]
    fn no_record_is_longer_than_the_longest() {
        let mut record = [0; MOST];
        assert_eq!(regions(16, 16).write(&mut record), MOST);
        assert_eq!(Regions { domains: 200, listed: 200, ..regions(16, 16) }.write(&mut record), MOST);
        assert_eq!(Regions::read(&record), None, "more caches than there can be");
    }

    proptest! {
        #[test]
        fn no_words_panic(words in prop::collection::vec(any::<u64>(), 0..MOST), kind: bool) {
            let mut words: Vec<u64> = words;
            let length = words.len();
            if let (true, Some(first)) = (kind, words.first_mut()) {
                *first = head(KIND, length, (*first >> 32) as u32 & 0x0f0f_ffff);
            }
            if let Some(regions) = Regions::read(&words) {
                prop_assert!(regions.regions().len() <= LISTED && regions.caches().len() <= DOMAINS);
            }
        }
    }
}
