//! SIEVE (Zhang and others, NSDI 2024): a queue in which pages never move; a hand goes from the oldest to the newest, spares those
//! whose access bit is set, and stays where it evicted.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot,
    frames::{Framed, Frames},
    links::List,
};

/// The state: the newest page is at the head.
#[derive(Clone, Debug)]
pub struct Sieve {
    frames: Frames,
    queue: List,
    /// Where the hand goes on, or [`NONE`] for the oldest.
    hand: u32,
}

impl Sieve {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Sieve, TryReserveError> {
        Ok(Sieve { frames: Frames::new(frames)?, queue: List::EMPTY, hand: NONE })
    }
}

impl Framed for Sieve {
    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

impl Policy for Sieve {
    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = self.take_slot(bits);
        let slot = placement.slot;
        self.frames.links.push_head(&mut self.queue, slot);
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
            slot = self.frames.links.before(slot);
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
            self.hand = self.frames.links.before(slot);
        }
        self.frames.give_back(&mut self.queue, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames.set_limit(frames);
    }

    fn bytes(&self) -> usize {
        self.frames.bytes()
    }
}
