//! CLOCK (Corbató, 1968): a hand goes round the resident pages; one whose access bit is set gets a second chance.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot, frames_in_range,
    links::{Links, List},
};

/// The state. Pages that come are where the hand comes last.
#[derive(Clone, Debug)]
pub struct Clock {
    frames: u32,
    links: Links,
    circle: List,
    free: List,
    hand: u32,
}

impl Clock {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Clock, TryReserveError> {
        let frames = frames_in_range(frames);
        let (links, free) = Links::free(frames as usize)?;
        Ok(Clock { frames, links, circle: List::EMPTY, free, hand: NONE })
    }

    fn advance(&mut self) -> u32 {
        let slot = self.hand;
        self.hand = self.links.around(&self.circle, slot);
        slot
    }

    /// The slot of the next page that is to go.
    pub(super) fn victim(&mut self, bits: &mut impl AccessBits) -> u32 {
        // Two rounds: after the first no bit is set, but for those of guests that run meanwhile.
        for _ in 0..2 * self.circle.len {
            let slot = self.advance();
            if !bits.take(slot) {
                return slot;
            }
        }
        self.advance()
    }
}

impl Policy for Clock {
    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = if self.circle.len < self.frames {
            Placement::free(self.free.head)
        } else {
            Placement::evicting(self.evict(bits))
        };
        self.links.remove(&mut self.free, placement.slot);
        self.links.insert_before(&mut self.circle, placement.slot, self.hand);
        if self.hand == NONE {
            self.hand = placement.slot;
        }
        placement
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        let slot = self.victim(bits);
        self.remove(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        if self.hand == slot {
            let next = self.links.around(&self.circle, slot);
            self.hand = if next == slot { NONE } else { next };
        }
        self.links.remove(&mut self.circle, slot);
        self.links.push_head(&mut self.free, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames = frames.clamp(1, self.links.entries());
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
