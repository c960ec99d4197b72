//! CLOCK (Corbató, 1968): a hand goes round the resident pages; one whose access bit is set gets a second chance.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, Slot,
    frames::{Framed, Frames},
    links::List,
};

/// The state. Pages that come are where the hand comes last.
#[derive(Clone, Debug)]
pub struct Clock {
    frames: Frames,
    circle: List,
    hand: u32,
}

impl Clock {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Clock, TryReserveError> {
        Ok(Clock { frames: Frames::new(frames)?, circle: List::EMPTY, hand: NONE })
    }

    fn advance(&mut self) -> u32 {
        let slot = self.hand;
        self.hand = self.frames.links.around(&self.circle, slot);
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

impl Framed for Clock {
    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

impl Policy for Clock {
    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = self.take_slot(bits);
        let slot = placement.slot;
        self.frames.links.insert_before(&mut self.circle, slot, self.hand);
        if self.hand == NONE {
            self.hand = slot;
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
            let next = self.frames.links.around(&self.circle, slot);
            self.hand = if next == slot { NONE } else { next };
        }
        self.frames.give_back(&mut self.circle, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames.set_limit(frames);
    }

    fn bytes(&self) -> usize {
        self.frames.bytes()
    }
}
