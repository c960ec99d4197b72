//! Where in a VM's memory its hot pages are, for samples: a map of parts of its memory, and a histogram of all pages.
//!
//! Made after a sample of accesses if the VM has samples at all (`vm::tiers`), with the histories that the pass has looked at. Bounded
//! whatever the guest does.

use records::tiers::{BINS, WINDOWS};

use super::policy::Histogram;
use super::{GROUP, Heat};
use crate::mem::pager::Span;

/// What the histories said last.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    /// Of each part of the memory, the pages that were accessed in the last 32 samples, in 255ths.
    pub accessed: [u8; BINS],
    /// The same of its hot pages.
    pub hot: [u8; BINS],
    /// Pages by the samples of 32 in which they were accessed; 32 count as 31.
    pub histogram: Histogram,
    /// Pages that were accessed in the last 1, 2, 4, 8, 16 and 32 samples.
    pub recent: [u32; WINDOWS],
}

impl Default for Map {
    fn default() -> Map {
        Map { accessed: [0; BINS], hot: [0; BINS], histogram: [0; 32], recent: [0; WINDOWS] }
    }
}

impl Map {
    /// Of the pages of `span`, of which those with `least` ones are hot.
    pub fn new(span: &Span, heat: &impl Heat, least: u8, histogram: &Histogram) -> Map {
        let mut map = Map { histogram: *histogram, ..Map::default() };
        let groups = span.pages().div_ceil(GROUP);
        for bin in 0..BINS {
            // Each part has as many groups as the others, or one more.
            let group = |bin: usize| (u64::from(groups) * bin as u64 / BINS as u64) as u32;
            let range = group(bin)..group(bin + 1);
            let count = |least: u8| -> u32 {
                range.clone().map(|group| heat.hot(span.page(group * GROUP), least).count_ones()).sum()
            };
            let pages = (range.len() as u32).saturating_mul(GROUP).max(1);
            let part = |count: u32| (u64::from(count) * 255).div_ceil(u64::from(pages)).min(255) as u8;
            map.accessed[bin] = part(count(1));
            map.hot[bin] = part(count(least));
            for group in range.clone() {
                let recent = heat.recent(span.page(group * GROUP));
                map.recent.iter_mut().zip(recent).for_each(|(sum, pages)| *sum += pages.count_ones());
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::addr::Gfn;
    use crate::mem::tier::tests::Table;

    #[test]
    fn parts_say_how_much_of_them_is_used() {
        let mut table = Table::default();
        // The first part and half of the second; a page far up.
        (0..96).for_each(|page| table.set(page, 1));
        (0..64).for_each(|page| table.set(page, u32::MAX));
        table.set((1 << 20) + 64 * 31, 3);
        let span = Span { low: 64 * 32, high_start: Gfn(1 << 20), high: 64 * 32 };
        let map = Map::new(&span, &table, 22, &table.histogram());
        assert_eq!((&map.accessed[..3], &map.hot[..3]), (&[255, 128, 0][..], &[255, 0, 0][..]));
        assert_eq!((map.accessed[63], map.hot[63]), (4, 0), "one page of 64 is seen");
        assert_eq!((map.histogram[31], map.histogram[1], map.histogram[2]), (64, 32, 1));
        // Those with one access had it in the first of the 32 samples.
        assert_eq!(map.recent, [64, 64, 64, 64, 64, 97]);
        // Memory of fewer groups than there are parts.
        let few = Map::new(&Span { low: 64 * 3, high_start: Gfn(0), high: 0 }, &table, 22, &[0; 32]);
        assert_eq!(few.accessed.iter().filter(|part| **part == 255).count(), 1);
        let none = Map::new(&Span { low: 0, high_start: Gfn(0), high: 0 }, &table, 22, &[0; 32]);
        assert_eq!(none.accessed, [0; BINS]);
    }
}
