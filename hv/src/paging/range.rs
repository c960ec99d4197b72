//! Ranges of guest-physical addresses, and the effects of a change that are named by them.
//!
//! A change to hardware tables returns a [`Flush`]: the caller owes it to every processor that may have run
//! on the tables, before it lets the guest rely on the change or gives the old memory to anyone else.

use crate::arch::addr::{Gpa, Hfn, PAGE_SIZE};

/// Bits of a guest-physical address that four-level tables translate.
pub const GPA_BITS: u32 = 48;

/// A half-open range of guest-physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpaRange {
    /// The first address.
    pub start: Gpa,
    /// The first address behind the range.
    pub end: Gpa,
}

impl GpaRange {
    /// Everything that four-level tables translate.
    pub const ALL: GpaRange = GpaRange { start: Gpa(0), end: Gpa(1 << GPA_BITS) };

    /// `len` bytes from `start`; `None` if they leave [`GpaRange::ALL`].
    pub const fn new(start: Gpa, len: u64) -> Option<GpaRange> {
        match start.checked_add(len) {
            Some(end) if end.0 <= GpaRange::ALL.end.0 => Some(GpaRange { start, end }),
            _ => None,
        }
    }

    /// The 4 KiB page that holds `gpa`, which lies within [`GpaRange::ALL`].
    pub const fn page(gpa: Gpa) -> GpaRange {
        let start = gpa.align_down(PAGE_SIZE);
        GpaRange { start, end: Gpa(start.0 + PAGE_SIZE) }
    }

    /// The length in bytes.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether it holds no address.
    pub const fn is_empty(self) -> bool {
        self.start.0 >= self.end.0
    }

    /// Whether `gpa` lies in it.
    pub const fn contains(self, gpa: Gpa) -> bool {
        self.start.0 <= gpa.0 && gpa.0 < self.end.0
    }

    /// The addresses in both; the result is empty if there are none.
    pub fn intersect(self, other: GpaRange) -> GpaRange {
        let start = self.start.max(other.start);
        GpaRange { start, end: self.end.min(other.end).max(start) }
    }

    /// The first `len` bytes (or all, if there are fewer) and the rest.
    pub fn split_at(self, len: u64) -> (GpaRange, GpaRange) {
        let middle = Gpa(self.start.0 + len.min(self.len()));
        (GpaRange { start: self.start, end: middle }, GpaRange { start: middle, end: self.end })
    }

    /// The smallest range that holds both.
    pub fn hull(self, other: GpaRange) -> GpaRange {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => GpaRange { start: self.start.min(other.start), end: self.end.max(other.end) },
        }
    }
}

/// What processors must forget after a change to tables that they walk.
#[must_use = "stale translations stay in the TLBs until this is performed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// Nothing: no cached translation is wrong.
    None,
    /// Translations of these guest-physical addresses, and what is cached of the tables on the way to them.
    Range(GpaRange),
    /// Everything cached of these tables.
    All,
}

impl Flush {
    /// Both.
    pub fn and(self, other: Flush) -> Flush {
        match (self, other) {
            (Flush::All, _) | (_, Flush::All) => Flush::All,
            (Flush::None, it) | (it, Flush::None) => it,
            (Flush::Range(a), Flush::Range(b)) => Flush::Range(a.hull(b)),
        }
    }

    /// Whether nothing needs to be flushed.
    pub fn is_none(self) -> bool {
        self == Flush::None
    }

    /// Whether a cached translation of `gpa` goes away.
    pub fn covers(self, gpa: Gpa) -> bool {
        match self {
            Flush::None => false,
            Flush::Range(range) => range.contains(gpa),
            Flush::All => true,
        }
    }
}

/// A change of the P2m: every engine that caches it must be told about this range.
#[must_use = "the engines still hold the old translations"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The addresses that may translate in another way now. An engine that keeps translations by address looks here.
    pub range: GpaRange,
    /// Where the part of `range` that did change was before. An engine with reverse maps looks here.
    pub was: OldFrames,
    /// What an engine may keep.
    pub kept: Kept,
}

/// What an engine may keep of translations that have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// Nothing.
    #[default]
    Nothing,
    /// The memory is where it was. The guest must not write it unseen.
    Reads,
    /// The same memory, 2 MiB in one run of frames that nothing could write, is as a whole from this frame on, with the same contents. No
    /// access is to be told of it until the engines have followed.
    ReadsAt(Hfn),
}

impl Changed {
    /// A change after which nothing is as it was.
    pub const fn new(range: GpaRange, was: OldFrames) -> Changed {
        Changed { range, was, kept: Kept::Nothing }
    }

    /// Both.
    pub fn and(self, other: Changed) -> Changed {
        let mut was = self.was;
        match other.was.runs() {
            Some(runs) => runs.iter().for_each(|&(start, frames)| was.add(start, frames)),
            None => was = OldFrames::UNKNOWN,
        }
        Changed::new(self.range.hull(other.range), was)
    }
}

/// Host frames that guest-physical memory was in before a change: an engine finds its entries by them, and after the change
/// nothing else says what they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldFrames {
    /// Contiguous runs: the first frame, and how many.
    runs: [(Hfn, u64); OldFrames::MOST],
    /// How many runs there are; above the most: any frame of the VM may have been meant.
    count: usize,
}

impl OldFrames {
    /// Runs that are told apart: most changes are of one.
    const MOST: usize = 8;
    /// There was no memory.
    pub const NONE: OldFrames = OldFrames { runs: [(Hfn(0), 0); OldFrames::MOST], count: 0 };
    /// Any frame.
    pub const UNKNOWN: OldFrames = OldFrames { count: OldFrames::MOST + 1, ..OldFrames::NONE };

    /// The runs; `None`: any frame.
    pub fn runs(&self) -> Option<&[(Hfn, u64)]> {
        self.runs.get(..self.count)
    }

    /// Adds `frames` frames from `start` on. More runs than can be told apart are any frame.
    pub fn add(&mut self, start: Hfn, frames: u64) {
        if let Some(last) = self.count.checked_sub(1).and_then(|last| self.runs.get_mut(last))
            && self.count <= OldFrames::MOST
            && last.0.0 + last.1 == start.0
        {
            last.1 += frames;
            return;
        }
        match self.runs.get_mut(self.count) {
            Some(run) => (*run, self.count) = ((start, frames), self.count + 1),
            None => *self = OldFrames::UNKNOWN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_translated_bits() {
        assert!(GpaRange::new(Gpa(0), 1 << 48).is_some());
        assert!(GpaRange::new(Gpa(0x1000), 1 << 48).is_none());
        assert!(GpaRange::new(Gpa(u64::MAX), 2).is_none());
    }

    #[test]
    fn flushes_add_up_to_the_hull() {
        let page = |n: u64| Flush::Range(GpaRange::page(Gpa(n << 12)));
        assert_eq!(Flush::None.and(page(3)), page(3));
        assert_eq!(page(3).and(page(7)), Flush::Range(GpaRange::new(Gpa(0x3000), 0x5000).unwrap()));
        assert_eq!(page(3).and(Flush::All), Flush::All);
        assert!(page(3).covers(Gpa(0x3fff)) && !page(3).covers(Gpa(0x4000)));
    }

    #[test]
    fn old_frames_add_up_until_there_are_too_many() {
        let page = |gfn: u64, hfn: u64| {
            let mut was = OldFrames::NONE;
            was.add(Hfn(hfn), 1);
            Changed::new(GpaRange::page(Gpa(gfn << 12)), was)
        };
        let both = page(3, 30).and(page(9, 40));
        assert_eq!(both.range, GpaRange::new(Gpa(0x3000), 0x7000).unwrap());
        assert_eq!(both.was.runs(), Some(&[(Hfn(30), 1), (Hfn(40), 1)][..]));
        assert_eq!(
            both.and(page(10, 41)).was.runs(),
            Some(&[(Hfn(30), 1), (Hfn(40), 2)][..]),
            "neighbours join"
        );
        let most = (0..8).map(|n| page(n, 2 * n)).reduce(Changed::and).unwrap();
        assert_eq!(most.was.runs().map(<[_]>::len), Some(8));
        for unknown in [most.and(page(8, 16)), page(8, 16).and(most), most.and(page(8, 16)).and(page(9, 17))]
        {
            assert_eq!(unknown.was.runs(), None);
        }
    }

    #[test]
    fn disjoint_ranges_intersect_in_nothing() {
        let a = GpaRange::page(Gpa(0x1000));
        let b = GpaRange::page(Gpa(0x5000));
        assert!(a.intersect(b).is_empty() && b.intersect(a).is_empty());
        assert_eq!(a.hull(b).hull(b.intersect(a)), GpaRange::new(Gpa(0x1000), 0x5000).unwrap());
    }
}
