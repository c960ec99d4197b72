//! Ranges of guest-physical addresses, and the effects of a change that are named by them.
//!
//! A change to hardware tables returns a [`Flush`]: the caller owes it to every processor that may have run
//! on the tables, before it lets the guest rely on the change or gives the old memory to anyone else.

use crate::arch::addr::{Gpa, PAGE_SIZE};

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
pub struct Changed(pub GpaRange);

impl Changed {
    /// Both.
    pub fn and(self, other: Changed) -> Changed {
        Changed(self.0.hull(other.0))
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
    fn disjoint_ranges_intersect_in_nothing() {
        let a = GpaRange::page(Gpa(0x1000));
        let b = GpaRange::page(Gpa(0x5000));
        assert!(a.intersect(b).is_empty() && b.intersect(a).is_empty());
        assert_eq!(a.hull(b).hull(b.intersect(a)), GpaRange::new(Gpa(0x1000), 0x5000).unwrap());
    }
}
