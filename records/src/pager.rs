//! What an overcommitted VM has in frames, compressed and on a disk at a moment, and what went out and came in. Counts are sums since
//! the VM was made; a reader subtracts two of them.
//!
//! A record has one size, whatever the guest does. Other VMs have none.

use crate::{halves, head, joined, parse_head};

/// The kind of a record.
pub const KIND: u8 = 9;
/// What is counted; keys of JSON objects.
pub const COUNTS: [&str; 9] = [
    "faults",
    "refaults",
    "came_in",
    "went_out",
    "compressed_from",
    "compressed_to",
    "from_disk",
    "disk_reads",
    "disk_writes",
];

/// The record. Pages and frames have 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pager {
    /// The VM's number in the configuration.
    pub vm: u8,
    /// Nanoseconds since the VM's start.
    pub time_ns: u64,
    /// The host's TSC.
    pub tsc: u64,
    /// Pages in frames.
    pub resident: u32,
    /// Those that there may be.
    pub resident_limit: u32,
    /// Pages in the compressed store.
    pub stored: u32,
    /// Frames that the store takes.
    pub store: u32,
    /// Those that it may take.
    pub store_limit: u32,
    /// Pages on the disk for evicted ones.
    pub on_disk: u32,
    /// The sums, in the order of [`COUNTS`].
    pub counts: [u64; COUNTS.len()],
}

/// Words of a record.
pub const WORDS: usize = 6 + COUNTS.len();
const _: () = assert!(WORDS <= crate::ring::LONGEST);

impl Pager {
    /// The record's words.
    pub fn write(&self) -> [u64; WORDS] {
        let fixed = [
            head(KIND, WORDS, self.vm.into()),
            self.time_ns,
            self.tsc,
            joined(self.resident, self.resident_limit),
            joined(self.stored, self.store),
            joined(self.store_limit, self.on_disk),
        ];
        let mut record = [0; WORDS];
        record.iter_mut().zip(fixed.into_iter().chain(self.counts)).for_each(|(to, word)| *to = word);
        record
    }

    /// Reads a record. `None`: it is none, or not whole.
    pub fn read(record: &[u64]) -> Option<Pager> {
        let (kind, words, more) = parse_head(*record.first()?);
        let all = record.get(..words).filter(|_| kind == KIND)?;
        let [_, time_ns, tsc, pages, store, more_pages, counts @ ..] = *all.first_chunk::<WORDS>()?;
        let ((resident, resident_limit), (stored, store)) = (halves(pages), halves(store));
        let (store_limit, on_disk) = halves(more_pages);
        Some(Pager {
            vm: more as u8,
            time_ns,
            tsc,
            resident,
            resident_limit,
            stored,
            store,
            store_limit,
            on_disk,
            counts,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(vm: u8, frames: [u32; 6], numbers: [u64; 11]) {
            let [resident, resident_limit, stored, store, store_limit, on_disk] = frames;
            let [time_ns, tsc, counts @ ..] = numbers;
            let pager =
                Pager { vm, time_ns, tsc, resident, resident_limit, stored, store, store_limit, on_disk, counts };
            let record = pager.write();
            prop_assert_eq!(Pager::read(&record), Some(pager));
            prop_assert_eq!(Pager::read(&record[..WORDS - 1]), None);
            prop_assert_eq!(crate::tiers::Tiers::read(&record), None);
        }

        #[test]
        fn no_words_panic(mut words in prop::collection::vec(any::<u64>(), 0..20)) {
            let length = words.len();
            if let Some(first) = words.first_mut() {
                *first = head(KIND, length, (*first >> 32) as u32);
            }
            prop_assert_eq!(Pager::read(&words).is_some(), length >= WORDS);
        }
    }
}
