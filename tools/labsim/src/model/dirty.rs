//! Which table entries still have accessed and dirty bits to be set.
//!
//! The emulator sets these bits itself before the model sees an access, so that memory always has them set. What tells
//! that a walker had to do it is the store before: software wrote an entry with the bit clear. So pages that walks have
//! read entries from are watched, and each store to one notes the bits that it left clear. What was stored before a page
//! was first walked is not known, and counts as set.

use std::sync::{
    OnceLock,
    atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

use super::memory::Memory;

/// A walk has read an entry from this frame.
const TABLE: u8 = 1;
/// Some of its entries have bits to be set.
const DUE: u8 = 2;

const PRESENT: u8 = 1;
const ACCESSED: u8 = 1 << 5;
const DIRTY: u8 = 1 << 6;

/// The bits to be set of each four bytes of a frame: entries of four bytes, and the low halves of those of eight.
type Due = [AtomicU8; 1024];

/// What a walker's use of an entry comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// It sets the accessed bit.
    pub accessed: bool,
    /// It sets the dirty bit.
    pub dirtied: bool,
    /// The dirty bit remains clear.
    pub dirty_due: bool,
}

/// The watched frames of a machine, for all of its processors.
pub struct Tables {
    frames: Box<[AtomicU8]>,
    /// Of frames that ever had any.
    due: Box<[OnceLock<Box<Due>>]>,
    /// Frames that were found to be tables so far.
    found: AtomicU64,
}

impl Tables {
    /// For physical addresses below `end`.
    pub fn new(end: u64) -> Tables {
        let frames = end.div_ceil(4096);
        Tables {
            frames: (0..frames).map(|_| AtomicU8::new(0)).collect(),
            due: (0..frames).map(|_| OnceLock::new()).collect(),
            found: AtomicU64::new(0),
        }
    }

    fn flags(&self, pa: u64) -> u8 {
        self.frames.get((pa >> 12) as usize).map_or(0, |frame| frame.load(Relaxed))
    }

    fn set(&self, pa: u64, flags: u8) {
        if let Some(frame) = self.frames.get((pa >> 12) as usize) {
            frame.store(flags, Relaxed);
        }
    }

    /// The bits of the four bytes at `pa`, if its frame ever had any.
    fn due(&self, pa: u64) -> Option<&AtomicU8> {
        let due = self.due.get((pa >> 12) as usize)?.get()?;
        Some(&due[(pa >> 2) as usize % due.len()])
    }

    /// Changes whenever another frame is watched: quick ways around [`stored`](Self::stored) have to be closed then.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.found.load(Relaxed)
    }

    /// Whether accesses of this page have to be told to [`stored`](Self::stored).
    #[inline]
    pub fn is_table(&self, pa: u64) -> bool {
        self.flags(pa) & TABLE != 0
    }

    /// The page is no table any longer: user mode accesses it.
    pub fn forget(&self, pa: u64) {
        if self.flags(pa) & DUE != 0 {
            let due = self.due.get((pa >> 12) as usize).and_then(OnceLock::get);
            due.into_iter().flat_map(|due| due.iter()).for_each(|bits| bits.store(0, Relaxed));
        }
        self.set(pa, 0);
    }

    /// Something of `len` bytes was stored.
    pub fn stored(&self, pa: u64, len: u64, memory: &impl Memory) {
        let (first, last) = (pa >> 2, (pa + len.max(1) - 1) >> 2);
        for pa in (first..=last).map(|word| word << 2) {
            let entry = memory.read_u32(pa).unwrap_or(0) as u8;
            let bits = if entry & PRESENT == 0 { 0 } else { !entry & (ACCESSED | DIRTY) };
            if bits != 0
                && let Some(due) = self.due.get((pa >> 12) as usize)
            {
                due.get_or_init(|| Box::new([const { AtomicU8::new(0) }; 1024]));
                self.set(pa, self.flags(pa) | DUE);
            }
            if let Some(due) = self.due(pa) {
                due.store(bits, Relaxed);
            }
        }
    }

    /// The bits that are to be set in the four bytes at `pa`: for [`restore`](Self::restore).
    pub fn due_bits(&self, pa: u64) -> u8 {
        if self.flags(pa) & DUE != 0 { self.due(pa).map_or(0, |due| due.load(Relaxed)) } else { 0 }
    }

    /// A store had set these bits in the place of a walker, for which they are still to be set.
    pub fn restore(&self, pa: u64, bits: u8, memory: &impl Memory) {
        let is_present = memory.read_u32(pa & !3).unwrap_or(0) as u8 & PRESENT != 0;
        if let Some(due) = self.due(pa).filter(|_| is_present && bits != 0) {
            due.fetch_or(bits, Relaxed);
        }
    }

    /// A walker is about to read an entry of this page. Whether it is the first: stores were not told so far.
    #[inline]
    pub fn watch(&self, pa: u64) -> bool {
        let is_new = self.flags(pa) == 0;
        if is_new {
            self.set(pa, TABLE);
            self.found.fetch_add(1, Relaxed);
        }
        is_new
    }

    /// A walker uses the entry at `pa`, and dirties it if `dirty`.
    #[inline]
    pub fn use_entry(&self, pa: u64, dirty: bool) -> Used {
        self.watch(pa);
        if self.flags(pa) & DUE != 0 { self.use_due(pa, dirty) } else { Used::default() }
    }

    #[cold]
    fn use_due(&self, pa: u64, dirty: bool) -> Used {
        let Some(due) = self.due(pa) else { return Used::default() };
        let bits = due.load(Relaxed);
        let used = Used {
            accessed: bits & ACCESSED != 0,
            dirtied: dirty && bits & DIRTY != 0,
            dirty_due: !dirty && bits & DIRTY != 0,
        };
        due.store(bits & if used.dirty_due { DIRTY } else { 0 }, Relaxed);
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// One page of memory at 0x5000, of which one word is not zero.
    struct Page(Cell<u64>);

    impl Memory for Page {
        fn read_u64(&self, pa: u64) -> Option<u64> {
            Some(if pa == 0x5008 { self.0.get() } else { 0 })
        }
    }

    #[test]
    fn bits_are_set_once_after_a_store_that_left_them_clear() {
        let (tables, page) = (Tables::new(0x6000), Page(Cell::new(0x8000_0001)));
        assert!(!tables.is_table(0x5008));
        assert_eq!(tables.use_entry(0x5008, false), Used::default());
        assert!(tables.is_table(0x5ff8));
        tables.stored(0x5008, 8, &page);
        let first = Used { accessed: true, dirtied: false, dirty_due: true };
        assert_eq!(tables.use_entry(0x5008, false), first);
        assert_eq!(tables.use_entry(0x5008, false), Used { dirty_due: true, ..Used::default() });
        assert_eq!(tables.use_entry(0x5008, true), Used { dirtied: true, ..Used::default() });
        assert_eq!(tables.use_entry(0x5008, true), Used::default());
    }

    #[test]
    fn what_is_stored_with_its_bits_is_not_due() {
        let (tables, page) = (Tables::new(0x6000), Page(Cell::new(1)));
        tables.use_entry(0x5008, false);
        tables.stored(0x5008, 1, &page);
        page.0.set(0x61);
        tables.stored(0x500a, 1, &page);
        assert_eq!(tables.use_entry(0x5008, true), Used::default());
        page.0.set(0);
        tables.stored(0x5008, 8, &page);
        assert_eq!(tables.use_entry(0x5008, true), Used::default());
    }

    #[test]
    fn what_was_set_for_the_walker_is_due_again() {
        let (tables, page) = (Tables::new(0x6000), Page(Cell::new(1)));
        tables.use_entry(0x5008, false);
        tables.stored(0x5008, 8, &page);
        let due = tables.due_bits(0x5008);
        page.0.set(0x61);
        tables.stored(0x5008, 8, &page);
        assert_eq!((due, tables.due_bits(0x5008)), (ACCESSED | DIRTY, 0));
        tables.restore(0x5008, due, &page);
        let first = Used { accessed: true, dirtied: true, dirty_due: false };
        assert_eq!(tables.use_entry(0x5008, true), first);
        page.0.set(0);
        tables.stored(0x5008, 8, &page);
        tables.restore(0x5008, due, &page);
        assert_eq!((tables.due_bits(0x5008), tables.due_bits(0xffff_f000)), (0, 0));
    }

    #[test]
    fn forgotten_pages_and_pages_outside() {
        let (tables, page) = (Tables::new(0x6000), Page(Cell::new(1)));
        tables.use_entry(0x5008, false);
        tables.stored(0x5008, 8, &page);
        tables.forget(0x5000);
        assert!(!tables.is_table(0x5000));
        assert_eq!(tables.use_entry(0x5008, true), Used::default());
        assert_eq!(tables.use_entry(0xffff_f000, true), Used::default());
    }
}
