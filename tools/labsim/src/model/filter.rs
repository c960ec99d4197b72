//! A small direct-mapped table in front of a first-level TLB: most lookups end here.
//!
//! It holds some of what the first level holds, so a hit here is a hit there; it also knows the entry's slot, so that the
//! hit is told to the replacement policy. Results are the same as without it, to the last count (a test proves it).

use super::{bank::Bank, space::ASIDS};

/// Entries, a power of two: more than a first level has, because of a large page each 4 KiB that is used has an entry of its own.
const ENTRIES: usize = 4096;
/// 4 KiB pages in a 2 MiB page: their entries are in this number of neighbouring places.
const PIECES: usize = 512;
/// Identifiers of address spaces here: 12 bits above a page number of 52.
const SPACES: u64 = 1 << 12;
const NOTHING: u64 = u64::MAX;
/// The slot of entries whose uses do not matter.
const NO_SLOT: u64 = 0xffff;
/// In an entry's word: stores have to be looked up.
const LOADS_ONLY: u64 = 1 << 63;

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    /// Frame number and slot.
    word: u64,
}

/// See the module.
pub struct Filter {
    entries: Box<[Entry; ENTRIES]>,
    /// The running address space, above the bits of a page number.
    space: u64,
    /// Identifier of each ASID; 0 if it has none yet.
    spaces: Box<[u64; ASIDS as usize]>,
    next: u64,
}

impl Default for Filter {
    fn default() -> Self {
        let entries = Box::new([Entry { key: NOTHING, word: 0 }; ENTRIES]);
        let mut filter = Filter { entries, space: 0, spaces: Box::new([0; ASIDS as usize]), next: 0 };
        filter.switch(0);
        filter
    }
}

impl Filter {
    /// Looks an address up, counts as a use of the entry in `bank`, and returns the 4 KiB frame's number. `is_store` is
    /// asked only where it matters.
    #[inline(always)]
    pub fn get(&self, va: u64, bank: &mut Bank, is_store: impl FnOnce() -> bool) -> Option<u64> {
        let page = va >> 12;
        let entry = &self.entries[place(page)];
        if entry.key != page | self.space {
            return None;
        }
        if entry.word & LOADS_ONLY != 0 && is_store() {
            return None;
        }
        bank.touch_stamp((entry.word & NO_SLOT) as usize);
        Some((entry.word & !LOADS_ONLY) >> 16)
    }

    /// The slot in `bank` has this frame for the page of `va`.
    pub fn put(&mut self, va: u64, frame: u64, slot: usize, bank: &Bank) {
        self.keep(va, frame, if bank.sees_hits(slot) { slot as u64 } else { NO_SLOT });
    }

    /// No TLB has anything to do with this page.
    pub fn put_without_slot(&mut self, va: u64, frame: u64) {
        self.keep(va, frame, NO_SLOT);
    }

    fn keep(&mut self, va: u64, frame: u64, slot: u64) {
        let page = va >> 12;
        self.entries[place(page)] = Entry { key: page | self.space, word: frame << 16 | slot };
    }

    /// The entry of this class for this page (in units of its class) is gone from the first level.
    pub fn evict(&mut self, class: u32, page: u64) {
        const PAGES: u64 = (1 << 36) - 1;
        let first = place(page << (9 * class));
        let places = match class {
            0 => first..first + 1,
            1 => first / PIECES * PIECES..(first / PIECES + 1) * PIECES,
            _ => 0..ENTRIES,
        };
        for entry in &mut self.entries[places] {
            if (entry.key & PAGES) >> (9 * class) == page & PAGES >> (9 * class) {
                entry.key = NOTHING;
            }
        }
    }

    /// Stores to this page are looked up from now on.
    pub fn only_loads(&mut self, va: u64) {
        let entry = &mut self.entries[place(va >> 12)];
        if entry.key == va >> 12 | self.space {
            entry.word |= LOADS_ONLY;
        }
    }

    /// Forgets one page.
    pub fn forget_page(&mut self, va: u64) {
        self.entries[place(va >> 12)].key = NOTHING;
    }

    /// Forgets all pages.
    pub fn forget_all(&mut self) {
        self.entries.fill(Entry { key: NOTHING, word: 0 });
    }

    /// Another address space runs.
    pub fn switch(&mut self, asid: u16) {
        let asid = usize::from(asid);
        if self.spaces[asid] == 0 {
            if self.next + 1 == SPACES {
                self.clear();
            }
            self.next += 1;
            self.spaces[asid] = self.next;
        }
        self.space = self.spaces[asid] << 52;
    }

    /// Forgets what an address space has. The caller [switches](Self::switch) afterwards.
    pub fn flush(&mut self, asid: u16) {
        self.spaces[usize::from(asid)] = 0;
    }

    /// Forgets everything. The caller [switches](Self::switch) afterwards.
    pub fn clear(&mut self) {
        self.forget_all();
        self.spaces.fill(0);
        self.next = 0;
    }
}

/// Where a page's entry is. Kernels use pages at the same place of several regions of their address space, again and again: bits of the
/// region change the place, but only within those of a 2 MiB page.
#[inline(always)]
fn place(page: u64) -> usize {
    let region = (page >> 12 ^ page >> 21) % PIECES as u64;
    (page ^ region) as usize % ENTRIES
}

#[cfg(test)]
mod tests {
    use super::super::{bank::Geometry, policy::Policy};
    use super::*;

    fn bank(policy: Policy) -> Bank {
        Bank::new([Geometry { entries: 4, ways: 4, policy, classes: 7 }])
    }

    #[test]
    fn spaces_and_evictions() {
        let (mut filter, mut bank) = (Filter::default(), bank(Policy::Lru));
        let va = 0xffff_8000_0020_1000;
        filter.put(va, 0x1234, 1, &bank);
        assert_eq!(filter.get(va + 0xfff, &mut bank, || true), Some(0x1234));
        filter.switch(7);
        assert_eq!(filter.get(va, &mut bank, || true), None);
        filter.switch(0);
        assert_eq!(filter.get(va, &mut bank, || true), Some(0x1234));
        filter.only_loads(va);
        assert_eq!(filter.get(va, &mut bank, || true), None);
        assert_eq!(filter.get(va, &mut bank, || false), Some(0x1234));
        filter.evict(1, (va >> 21) & 0x7ff_ffff);
        assert_eq!(filter.get(va, &mut bank, || false), None);
        filter.put(va, 1, 0, &bank);
        filter.flush(0);
        filter.switch(0);
        assert_eq!(filter.get(va, &mut bank, || true), None);
    }

    #[test]
    fn identifiers_that_run_out_begin_again_with_nothing() {
        let (mut filter, mut bank) = (Filter::default(), bank(Policy::Fifo));
        filter.put(0x1000, 5, 0, &bank);
        for _ in 0..2 * SPACES {
            filter.flush(3);
            filter.switch(3);
            assert_eq!(filter.get(0x1000, &mut bank, || true), None);
            filter.put(0x1000, 6, 0, &bank);
        }
    }
}
