//! A VM's part of the machine's fast memory at a moment, and what has moved. Counts are sums since the VM was made; a reader subtracts
//! two of them.
//!
//! A record has one size, whatever the guest does. VMs without fast memory have none.

use crate::{halves, head, joined, parse_head};

/// The kind of a record.
pub const KIND: u8 = 8;
/// What is counted; keys of JSON objects.
pub const COUNTS: [&str; 4] = ["moved_in", "moved_out", "discarded", "stayed"];

/// Parts of the guest's memory, of one size, in the order of its addresses.
pub const BINS: usize = 64;
/// Elements of the histogram.
pub const ONES: usize = 32;
/// Times for which it says how much was accessed in them.
pub const WINDOWS: usize = 6;

/// The record. Memory is in frames of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// The VM's number in the configuration.
    pub vm: u8,
    /// Its E-state, if it has one.
    pub e_state: Option<u8>,
    /// A person has set that.
    pub is_set: bool,
    /// The ones of 32 from which on a page is hot.
    pub hot: u8,
    /// Nanoseconds since the VM's start.
    pub time_ns: u64,
    /// The host's TSC.
    pub tsc: u64,
    /// The machine's fast memory.
    pub total: u32,
    /// What is free of it.
    pub free: u32,
    /// What holds page tables of the hypervisor, for all VMs.
    pub tables: u32,
    /// What the VM may have.
    pub share: u32,
    /// What it has: its listed pages in fast memory.
    pub fast: u32,
    /// Its listed pages in slow memory.
    pub waiting: u32,
    /// Its working set.
    pub working_set: u32,
    /// What its guest wants in fast memory, per mille of its hot pages; 0: it has not said so.
    pub target: u32,
    /// The sums, in the order of [`COUNTS`].
    pub counts: [u64; COUNTS.len()],
    /// Of each part of its memory, the pages that were accessed in the last 32 samples, in 255ths.
    pub accessed: [u8; BINS],
    /// The same of its hot pages.
    pub hot_parts: [u8; BINS],
    /// Pages by the samples of 32 in which they were accessed, 0 not counted; 32 count as 31.
    pub histogram: [u32; ONES],
    /// Pages that were accessed in the last 1, 2, 4, 8, 16 and 32 samples.
    pub recent: [u32; WINDOWS],
}

impl Default for Tiers {
    fn default() -> Tiers {
        Tiers {
            vm: 0,
            e_state: None,
            is_set: false,
            hot: 0,
            time_ns: 0,
            tsc: 0,
            total: 0,
            free: 0,
            tables: 0,
            share: 0,
            fast: 0,
            waiting: 0,
            working_set: 0,
            target: 0,
            counts: [0; COUNTS.len()],
            accessed: [0; BINS],
            hot_parts: [0; BINS],
            histogram: [0; ONES],
            recent: [0; WINDOWS],
        }
    }
}

/// Words of what is not the maps, the histogram and the pages by time.
const FIXED: usize = 7 + COUNTS.len();
/// Words of a record.
pub const WORDS: usize = FIXED + 2 * BINS / 8 + ONES / 2 + WINDOWS / 2;
const _: () = assert!(WORDS <= crate::ring::LONGEST);

impl Tiers {
    /// The record's words.
    pub fn write(&self) -> [u64; WORDS] {
        let e_state = self.e_state.map_or(0, |state| state.wrapping_add(1));
        let more = u32::from_le_bytes([self.vm, e_state, self.is_set.into(), self.hot]);
        let fixed = [
            head(KIND, WORDS, more),
            self.time_ns,
            self.tsc,
            joined(self.total, self.free),
            joined(self.share, self.fast),
            joined(self.waiting, self.working_set),
            joined(self.target, self.tables),
        ];
        let mut record = [0; WORDS];
        let bytes = [self.accessed, self.hot_parts];
        let maps =
            bytes.iter().flat_map(|map| map.as_chunks::<8>().0).map(|eight| u64::from_le_bytes(*eight));
        let pairs = self.histogram.as_chunks::<2>().0.iter().chain(self.recent.as_chunks::<2>().0);
        let pages = pairs.map(|[first, second]| joined(*first, *second));
        let all = fixed.into_iter().chain(self.counts).chain(maps).chain(pages);
        record.iter_mut().zip(all).for_each(|(to, word)| *to = word);
        record
    }

    /// Reads a record. `None`: it is none, or not whole.
    pub fn read(record: &[u64]) -> Option<Tiers> {
        let (kind, words, more) = parse_head(*record.first()?);
        let all = record.get(..words).filter(|_| kind == KIND)?;
        let (fixed, rest) = all.first_chunk::<WORDS>()?.split_first_chunk::<FIXED>()?;
        let [_, time_ns, tsc, machine, own, pages, others, counts @ ..] = *fixed;
        let (accessed, rest) = rest.split_first_chunk::<{ BINS / 8 }>()?;
        let (hot_parts, rest) = rest.split_first_chunk::<{ BINS / 8 }>()?;
        let (histogram, recent) = rest.split_first_chunk::<{ ONES / 2 }>()?;
        let [vm, e_state, is_set, hot] = more.to_le_bytes();
        let ((total, free), (share, fast), (waiting, working_set), (target, tables)) =
            (halves(machine), halves(own), halves(pages), halves(others));
        Some(Tiers {
            vm,
            e_state: e_state.checked_sub(1),
            is_set: is_set != 0,
            hot,
            time_ns,
            tsc,
            total,
            free,
            tables,
            share,
            fast,
            waiting,
            working_set,
            target,
            counts,
            accessed: bytes(accessed),
            hot_parts: bytes(hot_parts),
            histogram: frames(histogram),
            recent: frames(recent),
        })
    }
}

fn frames<const N: usize>(words: &[u64]) -> [u32; N] {
    core::array::from_fn(|n| {
        let (first, second) = words.get(n / 2).map_or((0, 0), |word| halves(*word));
        if n % 2 == 0 { first } else { second }
    })
}

fn bytes(words: &[u64; BINS / 8]) -> [u8; BINS] {
    core::array::from_fn(|n| words[n / 8].to_le_bytes()[n % 8])
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn map(halves: [[u8; 32]; 2]) -> [u8; BINS] {
        core::array::from_fn(|n| halves[n / 32][n % 32])
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(bytes: (u8, bool, u8), state in prop::option::of(0u8..8), frames: [u32; 8], numbers: [u64; 6], maps: ([[u8; 32]; 2], [[u8; 32]; 2]), histogram: [u32; ONES], recent: [u32; WINDOWS]) {
            let [total, free, tables, share, fast, waiting, working_set, target] = frames;
            let [time_ns, tsc, counts @ ..] = numbers;
            let (vm, is_set, hot) = bytes;
            let tiers = Tiers {
                vm, e_state: state, is_set, hot, time_ns, tsc, total, free, tables, share, fast, waiting, working_set, target, counts,
                accessed: map(maps.0), hot_parts: map(maps.1), histogram, recent,
            };
            let record = tiers.write();
            prop_assert_eq!(Tiers::read(&record), Some(tiers));
            prop_assert_eq!(Tiers::read(&record[..WORDS - 1]), None);
            let mut longer: Vec<u64> = record.into();
            longer.push(7);
            longer[0] = head(KIND, WORDS + 1, (longer[0] >> 32) as u32);
            prop_assert_eq!(Tiers::read(&longer), Some(tiers), "a later version has more words");
        }

        #[test]
        fn no_words_panic(mut words in prop::collection::vec(any::<u64>(), 0..20)) {
            let length = words.len();
            if let Some(first) = words.first_mut() {
                *first = head(KIND, length, (*first >> 32) as u32);
            }
            prop_assert_eq!(Tiers::read(&words).is_some(), length >= WORDS);
        }
    }
}
