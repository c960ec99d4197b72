//! CLOCK-Pro (Jiang, Chen and Zhang, USENIX 2005). One list of hot pages, resident cold pages, and cold pages that are gone but still
//! in their test period (ghosts), with three hands. New pages are cold and begin a test period at the list's head, which is behind
//! the hand for hot pages. A cold page that is accessed again in its test period becomes hot, and more cold pages are allowed; each
//! test period that ends without an access allows fewer.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot, bytes_of, frames_in_range,
    index::Index,
    links::{Links, List},
    slots::Slots,
    table,
};

/// A page in the list.
#[derive(Clone, Copy, Debug)]
struct Entry {
    page: Page,
    /// [`NONE`]: it is a ghost.
    slot: Slot,
    hot: bool,
    /// Cold, and in its test period.
    tested: bool,
}

/// The hands.
#[derive(Clone, Copy, Debug)]
enum Hand {
    /// Looks for a hot page that is to be cold.
    Hot,
    /// Looks for a cold page that is to go.
    Cold,
    /// Ends test periods.
    Test,
}

/// The state. The list is a circle; hands go from the tail, where the oldest are, to the head.
#[derive(Clone, Debug)]
pub struct ClockPro {
    frames: u32,
    /// Resident cold pages that are allowed: the paper's m_c.
    cold_allowed: u32,
    hot: u32,
    cold: u32,
    ghosts: u32,
    entries: Vec<Entry>,
    links: Links,
    list: List,
    free: List,
    hands: [u32; 3],
    index: Index,
    slots: Slots,
}

impl ClockPro {
    /// For this many frames. All are for cold pages at first.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<ClockPro, TryReserveError> {
        let frames = frames_in_range(frames);
        let entries = 2 * frames as usize + 1;
        let (links, free) = Links::free(entries)?;
        Ok(ClockPro {
            frames,
            cold_allowed: frames,
            hot: 0,
            cold: 0,
            ghosts: 0,
            entries: table(entries, Entry { page: Page(0), slot: NONE, hot: false, tested: false })?,
            links,
            list: List::EMPTY,
            free,
            hands: [NONE; 3],
            index: Index::new(entries)?,
            slots: Slots::new(frames)?,
        })
    }

    /// The entry under a hand, which goes on to the next one.
    fn pass(&mut self, hand: Hand, bits: &mut impl AccessBits) -> u32 {
        bits.search(1);
        let entry = self.hands[hand as usize];
        self.hands[hand as usize] = self.links.around(&self.list, entry);
        entry
    }

    /// Takes an entry out of the circle; hands at it go on.
    fn unlink(&mut self, entry: u32) {
        let next = self.links.around(&self.list, entry);
        let next = if next == entry { NONE } else { next };
        for hand in self.hands.iter_mut().filter(|hand| **hand == entry) {
            *hand = next;
        }
        self.links.remove(&mut self.list, entry);
    }

    /// Puts an entry at the head: behind the hand for hot pages, which reaches it last.
    fn push(&mut self, entry: u32) {
        let hot = self.hands[Hand::Hot as usize];
        self.links.insert_before(&mut self.list, entry, hot);
        for hand in self.hands.iter_mut().filter(|hand| **hand == NONE) {
            *hand = entry;
        }
    }

    fn forget(&mut self, entry: u32) {
        self.unlink(entry);
        self.index.remove(self.entries[entry as usize].page);
        self.links.push_head(&mut self.free, entry);
    }

    /// A test period ends without an access.
    fn end_test(&mut self, entry: u32) {
        self.cold_allowed = (self.cold_allowed - 1).max(1);
        self.entries[entry as usize].tested = false;
        if self.entries[entry as usize].slot == NONE {
            self.ghosts -= 1;
            self.forget(entry);
        }
    }

    /// A page was accessed in its test period: it is hot now.
    fn promote(&mut self, entry: u32, bits: &mut impl AccessBits) {
        self.cold_allowed = (self.cold_allowed + 1).min(self.frames);
        let promoted = &mut self.entries[entry as usize];
        (promoted.hot, promoted.tested) = (true, false);
        self.hot += 1;
        self.push(entry);
        while self.hot > self.frames - self.cold_allowed {
            self.demote_one(bits);
        }
    }

    /// Makes a hot page cold, the first whose access bit is clear. Test periods that the hand passes end. There is a hot page.
    fn demote_one(&mut self, bits: &mut impl AccessBits) {
        // Twice round; then the next one, whatever its bit says.
        let mut left = 2 * self.list.len;
        loop {
            let entry = self.pass(Hand::Hot, bits);
            let Entry { slot, hot, tested, .. } = self.entries[entry as usize];
            left = left.saturating_sub(1);
            if hot && (!bits.take(slot) || left == 0) {
                self.entries[entry as usize].hot = false;
                (self.hot, self.cold) = (self.hot - 1, self.cold + 1);
                return;
            }
            if tested {
                self.end_test(entry);
            }
        }
    }

    /// Evicts a cold page; its slot.
    fn replace(&mut self, bits: &mut impl AccessBits) -> Slot {
        let mut left = 4 * self.list.len;
        loop {
            if self.cold == 0 {
                self.demote_one(bits);
            }
            let entry = self.pass(Hand::Cold, bits);
            let Entry { slot, hot, tested, .. } = self.entries[entry as usize];
            left = left.saturating_sub(1);
            if hot || slot == NONE {
                continue;
            }
            if left == 0 || !bits.take(slot) {
                self.cold -= 1;
                self.entries[entry as usize].slot = NONE;
                if tested {
                    self.ghosts += 1;
                } else {
                    self.forget(entry);
                }
                self.limit_ghosts(bits);
                return slot;
            }
            self.unlink(entry);
            if tested {
                self.cold -= 1;
                self.promote(entry, bits);
            } else {
                self.entries[entry as usize].tested = true;
                self.push(entry);
            }
        }
    }

    /// Ends test periods until there are no more ghosts than frames.
    fn limit_ghosts(&mut self, bits: &mut impl AccessBits) {
        while self.ghosts > self.frames {
            let entry = self.pass(Hand::Test, bits);
            if self.entries[entry as usize].tested {
                self.end_test(entry);
            }
        }
    }
}

impl Policy for ClockPro {
    fn fault(&mut self, page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let used = self.hot + self.cold;
        let placement = if used < self.frames {
            Placement::free(self.slots.free())
        } else {
            Placement::evicting(self.replace(bits))
        };
        // Looked for now: making room may have ended its test period.
        let ghost = self.index.find(page);
        self.slots.set(placement, if ghost == NONE { self.free.head } else { ghost });
        if ghost == NONE {
            let entry = self.free.head;
            self.links.remove(&mut self.free, entry);
            self.entries[entry as usize] = Entry { page, slot: placement.slot, hot: false, tested: true };
            self.index.insert(page, entry);
            self.cold += 1;
            self.push(entry);
        } else {
            self.ghosts -= 1;
            self.unlink(ghost);
            self.entries[ghost as usize].slot = placement.slot;
            self.promote(ghost, bits);
        }
        placement
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        let slot = self.replace(bits);
        self.slots.give_back(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        let entry = self.slots.give_back(slot);
        *(if self.entries[entry as usize].hot { &mut self.hot } else { &mut self.cold }) -= 1;
        self.forget(entry);
    }

    /// Frames that come are for cold pages, and those that go were.
    fn limit(&mut self, frames: u32) {
        let frames = frames.clamp(1, self.slots.count());
        let hot_allowed = self.frames - self.cold_allowed;
        (self.frames, self.cold_allowed) = (frames, frames.saturating_sub(hot_allowed).max(1));
    }

    fn ghosts(&self) -> usize {
        self.ghosts as usize
    }

    fn bytes(&self) -> usize {
        bytes_of(&self.entries) + self.links.bytes() + self.index.bytes() + self.slots.bytes()
    }
}
