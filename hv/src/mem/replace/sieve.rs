//! SIEVE (Zhang and others, NSDI 2024): a queue in which pages never move; a hand goes from the oldest to the newest, spares those
//! whose access bit is set, and stays where it evicted.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot, frames_in_range,
    links::{Links, List},
};

/// The state: the newest page is at the head.
#[derive(Clone, Debug)]
pub struct Sieve {
    frames: u32,
    links: Links,
    queue: List,
    free: List,
    /// Where the hand goes on, or [`NONE`] for the oldest.
    hand: u32,
}

impl Sieve {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Sieve, TryReserveError> {
        let frames = frames_in_range(frames);
        let (links, free) = Links::free(frames as usize)?;
        Ok(Sieve { frames, links, queue: List::EMPTY, free, hand: NONE })
    }
}

impl Policy for Sieve {
    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = if self.queue.len < self.frames {
            Placement::free(self.free.head)
        } else {
            Placement::evicting(self.evict(bits))
        };
        self.links.remove(&mut self.free, placement.slot);
        self.links.push_head(&mut self.queue, placement.slot);
        placement
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        let mut slot = self.hand;
        // Two rounds, as of CLOCK.
        for _ in 0..=2 * self.queue.len {
            if slot == NONE {
                slot = self.queue.tail;
            }
            if !bits.take(slot) {
                break;
            }
            slot = self.links.before(slot);
        }
        if slot == NONE {
            slot = self.queue.tail;
        }
        self.hand = slot;
        self.remove(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        if self.hand == slot {
            self.hand = self.links.before(slot);
        }
        self.links.remove(&mut self.queue, slot);
        self.links.push_head(&mut self.free, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames = frames.clamp(1, self.links.entries());
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
