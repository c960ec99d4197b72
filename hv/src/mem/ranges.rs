//! Sorted, disjoint address ranges with a bounded number of pieces: the arithmetic on memory maps.

use core::ops::Range;

use arrayvec::ArrayVec;

/// A set of addresses as sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet<const N: usize> {
    ranges: ArrayVec<Range<u64>, N>,
}

/// The set would need more pieces than it can hold; it is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyPieces;

impl<const N: usize> RangeSet<N> {
    /// The empty set.
    pub const fn new() -> Self {
        RangeSet { ranges: ArrayVec::new_const() }
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().cloned()
    }

    /// Bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|r| r.end - r.start).sum()
    }

    /// Adds the addresses of `range`; an empty range changes nothing.
    pub fn add(&mut self, range: Range<u64>) -> Result<(), TooManyPieces> {
        if range.is_empty() {
            return Ok(());
        }
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let after = self.ranges.partition_point(|r| r.start <= range.end);
        if first == after {
            return self.ranges.try_insert(first, range).map_err(|_| TooManyPieces);
        }
        let joined = self.ranges[first].start.min(range.start)..self.ranges[after - 1].end.max(range.end);
        self.ranges[first] = joined;
        self.ranges.drain(first + 1..after);
        Ok(())
    }

    /// Removes the addresses of `range`.
    pub fn remove(&mut self, range: Range<u64>) -> Result<(), TooManyPieces> {
        if range.is_empty() {
            return Ok(());
        }
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        let after = self.ranges.partition_point(|r| r.start < range.end);
        if first == after {
            return Ok(());
        }
        let left = self.ranges[first].start..range.start;
        let right = range.end..self.ranges[after - 1].end;
        let kept = usize::from(!left.is_empty()) + usize::from(!right.is_empty());
        // Checked first, so that a set that is too full stays as it was.
        if self.ranges.len() - (after - first) + kept > N {
            return Err(TooManyPieces);
        }
        self.ranges.drain(first..after);
        if !right.is_empty() {
            self.ranges.insert(first, right);
        }
        if !left.is_empty() {
            self.ranges.insert(first, left);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_as_a_set_of_numbers(ops in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..40)) {
            let mut set = RangeSet::<6>::new();
            let mut model = [false; 96];
            for (add, start, len) in ops {
                let before = set.clone();
                let range = start..start + len;
                let done = if add { set.add(range.clone()) } else { set.remove(range.clone()) };
                match done {
                    Ok(()) => model[start as usize..(start + len) as usize].fill(add),
                    Err(TooManyPieces) => prop_assert_eq!(&set, &before),
                }
                for (i, member) in model.iter().enumerate() {
                    prop_assert_eq!(set.iter().any(|r| r.contains(&(i as u64))), *member);
                }
                let pieces: Vec<_> = set.iter().collect();
                prop_assert!(pieces.windows(2).all(|w| w[0].end < w[1].start));
                prop_assert!(pieces.iter().all(|r| !r.is_empty()));
            }
        }
    }
}
