//! Fast memory that the command line names, or the firmware's tables: taken out of the free memory, for the pages of guests that are worth it.
//!
//! Pure. Caller: bring-up, before the frame allocator gets its frames; `vmm::tiers` makes a pool of the result.

mod find;

use core::fmt;
use core::ops::Range;

use abi::tiers::FastRange;

pub use self::find::find;

use super::memory::Ranges;
use crate::mem::ranges::TooManyPieces;

/// Bytes that a large leaf of the hypervisor's tables maps.
const LARGE_PAGE: u64 = 2 << 20;

/// Why the machine cannot have this fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastError {
    /// Two ranges have memory in common.
    Overlap(FastRange, FastRange),
    /// A part of the range is no RAM.
    NotRam(FastRange),
    /// All of the range is in use.
    InUse(FastRange),
    /// The memory map has too many pieces.
    Pieces,
}

impl From<TooManyPieces> for FastError {
    fn from(_: TooManyPieces) -> FastError {
        FastError::Pieces
    }
}

impl fmt::Display for FastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FastError::Overlap(a, b) => write!(f, "fast-mem: {a} and {b} overlap; name each MiB once"),
            FastError::NotRam(range) => {
                write!(f, "fast-mem: {range}: not all of it is RAM; `probe` shows where the machine's RAM is")
            }
            FastError::InUse(range) => {
                write!(f, "fast-mem: {range}: the hypervisor and its files are there; name other memory")
            }
            FastError::Pieces => f.write_str("fast-mem: the memory map has too many pieces"),
        }
    }
}

/// Takes `wanted` out of `free`, and returns what was there. On an error `free` is as before.
///
/// # Errors
/// What is wrong with a range.
pub fn take(free: &mut Ranges, ram: &Ranges, wanted: &[FastRange]) -> Result<Ranges, FastError> {
    let mut fast = Ranges::new();
    for (n, range) in wanted.iter().enumerate() {
        if let Some(other) = wanted[..n].iter().find(|other| other.overlaps(range)) {
            return Err(FastError::Overlap(*other, *range));
        }
        let bytes = range.start_mib << 20..range.end_mib() << 20;
        let within = |of: &Ranges| -> u64 {
            let parts =
                of.iter().map(|part| part.end.min(bytes.end).saturating_sub(part.start.max(bytes.start)));
            parts.sum()
        };
        if within(ram) != bytes.end - bytes.start {
            return Err(FastError::NotRam(*range));
        }
        if within(free) == 0 {
            return Err(FastError::InUse(*range));
        }
        for part in free.iter() {
            let part = part.start.max(bytes.start)..part.end.min(bytes.end);
            if part.start < part.end {
                fast.add(part)?;
            }
        }
    }
    let mut left = free.clone();
    for part in fast.iter() {
        left.remove(part)?;
    }
    *free = left;
    Ok(fast)
}

/// What the hypervisor takes for one of its uses is at most one part of this many of the fast memory.
const OWN_PART: u64 = 16;

/// Takes `bytes` in whole pages for the hypervisor itself out of the fast memory, at an address of 2 MiB below `end`. Each exit needs its
/// code and what it knows, and guests leave little of them in caches. `None`: it would be too much of the fast memory, or there is no such
/// place.
pub fn take_own(fast: &mut Ranges, bytes: u64, end: u64) -> Option<Range<u64>> {
    if bytes > fast.bytes() / OWN_PART {
        return None;
    }
    let place_in = |range: Range<u64>| range.start.next_multiple_of(LARGE_PAGE)..range.end.min(end);
    let place = fast.iter().map(place_in).find(|place| place.start.saturating_add(bytes) <= place.end)?;
    let taken = place.start..place.start + bytes;
    fast.remove(taken.clone()).ok()?;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(of: &[Range<u64>]) -> Ranges {
        let mut ranges = Ranges::new();
        of.iter().for_each(|range| ranges.add(range.clone()).unwrap());
        ranges
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_free_is_taken_and_mistakes_are_named() {
        let ram = ranges(&[0..640 << 10, MIB..100 * MIB, 200 * MIB..300 * MIB]);
        let mut free = ranges(&[10 * MIB..90 * MIB, 95 * MIB..100 * MIB, 250 * MIB..300 * MIB]);
        let before: Vec<_> = free.iter().collect();
        let mut take = |text: &str| {
            let wanted: Vec<FastRange> = text.split(' ').map(|word| word.parse().unwrap()).collect();
            take(&mut free, &ram, &wanted).map(|fast| fast.iter().collect::<Vec<_>>())
        };
        let range = |text: &str| text.parse::<FastRange>().unwrap();
        assert_eq!(take("9@60 8@68"), Err(FastError::Overlap(range("9@60"), range("8@68"))));
        assert_eq!(take("20@90"), Err(FastError::NotRam(range("20@90"))));
        assert_eq!(take("20@200"), Err(FastError::InUse(range("20@200"))));
        assert_eq!(
            take("20@80 10@290"),
            Ok(vec![80 * MIB..90 * MIB, 95 * MIB..100 * MIB, 290 * MIB..300 * MIB])
        );
        let after: Vec<_> = free.iter().collect();
        assert_eq!(after, [10 * MIB..80 * MIB, 250 * MIB..290 * MIB]);
        assert_ne!(before, after);
    }

    #[test]
    fn the_hypervisor_takes_a_small_part() {
        let all = [3 * MIB..5 * MIB, 7 * MIB..39 * MIB];
        let mut fast = ranges(&all);
        assert_eq!(take_own(&mut fast, 3 * MIB, 64 * MIB), None, "more than a 16th of 34 MiB");
        assert_eq!(take_own(&mut fast, 2 * MIB, 9 * MIB), None, "at an address of 2 MiB there is less");
        assert!(fast.iter().eq(all));
        assert_eq!(take_own(&mut fast, 2 * MIB, 10 * MIB), Some(8 * MIB..10 * MIB));
        assert!(fast.iter().eq([3 * MIB..5 * MIB, 7 * MIB..8 * MIB, 10 * MIB..39 * MIB]));
        assert_eq!(take_own(&mut fast, MIB, 64 * MIB), Some(4 * MIB..5 * MIB), "the first place");
    }

    proptest! {
        /// Nothing is lost, and nothing is in both.
        #[test]
        fn free_memory_is_divided(parts in prop::collection::vec((0u64..200, 1u64..30), 1..6), wanted in prop::collection::vec((0u64..200, 1u64..40), 1..4)) {
            let (mut ram, mut free) = (Ranges::new(), Ranges::new());
            ram.add(0..300 * MIB).unwrap();
            parts.iter().for_each(|(at, mib)| free.add(at * MIB..(at + mib) * MIB).unwrap());
            let wanted: Vec<_> = wanted.into_iter().map(|(start_mib, mib)| FastRange { start_mib, mib }).collect();
            let before = free.clone();
            let Ok(fast) = take(&mut free, &ram, &wanted) else {
                prop_assert!(free.iter().eq(before.iter()));
                return Ok(());
            };
            prop_assert_eq!(free.bytes() + fast.bytes(), before.bytes());
            for part in fast.iter() {
                prop_assert!(wanted.iter().any(|range| range.start_mib << 20 <= part.start) && !free.iter().any(|other| other.start < part.end && part.start < other.end));
            }
        }
    }
}
