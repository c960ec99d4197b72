//! CLOCK (Corbató, 1968): a hand goes round the frames; a page whose access bit is set gets a second chance. No table at all.

use super::{AccessBits, Object, Page, Placement, Policy, frames_in_range};

/// The state.
#[derive(Clone, Debug)]
pub struct Clock {
    frames: u32,
    used: u32,
    hand: u32,
}

impl Clock {
    /// For this many frames.
    pub fn new(frames: u32) -> Clock {
        Clock { frames: frames_in_range(frames), used: 0, hand: 0 }
    }

    /// The slot of the next victim, when all are used.
    pub fn evict(&mut self, bits: &mut impl AccessBits) -> u32 {
        // Two rounds: after the first no bit is set, but for those of guests that run meanwhile.
        for _ in 0..2 * self.frames {
            let slot = self.advance();
            if !bits.take(slot) {
                return slot;
            }
        }
        self.advance()
    }

    fn advance(&mut self) -> u32 {
        let slot = self.hand;
        self.hand = if slot + 1 == self.frames { 0 } else { slot + 1 };
        slot
    }
}

impl Policy for Clock {
    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        if self.used < self.frames {
            self.used += 1;
            return Placement::free(self.used - 1);
        }
        Placement::evicting(self.evict(bits))
    }

    fn bytes(&self) -> usize {
        0
    }
}
