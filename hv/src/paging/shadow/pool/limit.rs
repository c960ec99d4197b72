//! How much memory a pool may take.

use super::chunks;
use super::grow::record_frames;
use crate::arch::addr::PAGE_SIZE;
use crate::mem::table_memory::ENTRIES;
use crate::paging::shadow::{MAX_PAGES, MIN_PAGES};

/// The default limit: shadow tables take at most one part in this many of a guest's memory (2 %, as in KVM).
const SHARE: u64 = 50;
/// Never so few pages that a small kernel has to share them out.
const FEWEST: usize = 512;

/// How many shadow pages there may be, and how much memory they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Shadow pages.
    pub pages: usize,
    /// Frames of tables and of what is known about their entries. Records of pages and heads of lists come on top.
    pub frames: usize,
    /// Roots that are in use at a time.
    roots: usize,
}

impl Limit {
    /// A number of pages, however full they are.
    pub fn pages(pages: usize) -> Limit {
        let pages = pages.clamp(MIN_PAGES, MAX_PAGES);
        let frames = pages * (1 + ENTRIES / 64 / chunks::EACH) + chunks::EACH;
        Limit { pages, frames, roots: 1 }
    }

    /// What a guest with so much memory gets by default: a fiftieth of it, records of the pool included, but enough for 512 pages
    /// of common fullness.
    pub fn default_for(ram_bytes: u64) -> Limit {
        let total = (ram_bytes / PAGE_SIZE / SHARE) as usize;
        // Most tables have few entries: two of eight chunks make a page 6 KiB.
        let pages = (total * 5 / 8).clamp(FEWEST, MAX_PAGES);
        let frames = total.saturating_sub(record_frames(pages)).max(FEWEST * 3 / 2);
        Limit { pages, frames, roots: 1 }
    }

    /// The same for `vcpus` VCPUs, whose roots are never evicted.
    pub fn for_vcpus(self, vcpus: usize) -> Limit {
        let more = vcpus.saturating_sub(1);
        Limit { pages: self.pages + more, frames: self.frames + 3 * more, roots: vcpus.max(1) }
    }

    /// Pages whose memory is taken with the pool: whatever the host has later, each operation finds what it needs.
    pub(super) fn reserve(self) -> usize {
        MIN_PAGES - 1 + self.roots
    }

    /// Bytes that the pool takes at most.
    pub fn bytes(self) -> u64 {
        (self.frames + record_frames(self.pages)) as u64 * PAGE_SIZE
    }
}

impl From<usize> for Limit {
    fn from(pages: usize) -> Limit {
        Limit::pages(pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_fiftieth_of_memory_with_everything() {
        for mib in [256u64, 512, 1024, 4096, 1 << 16, 1 << 20] {
            let limit = Limit::default_for(mib << 20);
            assert!(limit.bytes() * SHARE <= mib << 20, "{mib} MiB: {limit:?}, {} bytes", limit.bytes());
            assert!(limit.bytes() * SHARE * 10 >= (mib << 20) * 9 || limit.pages == MAX_PAGES, "{limit:?}");
            assert!(limit.frames >= limit.pages * 5 / 4, "{limit:?}");
        }
        assert_eq!(Limit::default_for(16 << 20).pages, FEWEST);
    }
}
