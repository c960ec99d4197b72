//! SIEVE (Zhang and others, NSDI 2024): a queue in which pages never move; a hand goes from the oldest to the newest, spares those
//! whose access bit is set, and stays where it evicted.

use super::{
    AccessBits, NONE, Object, Page, Placement, Policy, frames_in_range,
    links::{Links, List},
};

/// The state: the newest page is at the head.
#[derive(Clone, Debug)]
pub struct Sieve {
    frames: u32,
    links: Links,
    queue: List,
    /// Where the hand goes on, or [`NONE`] for the oldest.
    hand: u32,
}

impl Sieve {
    /// For this many frames.
    pub fn new(frames: u32) -> Sieve {
        let frames = frames_in_range(frames);
        Sieve { frames, links: Links::new(frames as usize), queue: List::EMPTY, hand: NONE }
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> u32 {
        let mut slot = self.hand;
        // Two rounds, as of CLOCK.
        for _ in 0..=2 * self.frames {
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
        self.hand = self.links.before(slot);
        self.links.remove(&mut self.queue, slot);
        slot
    }
}

impl Policy for Sieve {
    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = if self.queue.len < self.frames {
            Placement::free(self.queue.len)
        } else {
            Placement::evicting(self.evict(bits))
        };
        self.links.push_head(&mut self.queue, placement.slot);
        placement
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
