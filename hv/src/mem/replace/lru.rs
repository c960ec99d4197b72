//! The least recently used page goes: a reference, since no hypervisor sees every access.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, Object, Page, Placement, Policy, Slot, frames_in_range,
    links::{Links, List},
};

/// The state: the most recently used page is at the head.
#[derive(Clone, Debug)]
pub struct Lru {
    frames: u32,
    links: Links,
    list: List,
    free: List,
}

impl Lru {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Lru, TryReserveError> {
        let frames = frames_in_range(frames);
        let (links, free) = Links::free(frames as usize)?;
        Ok(Lru { frames, links, list: List::EMPTY, free })
    }
}

impl Policy for Lru {
    const TOUCHES: bool = true;

    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = if self.list.len < self.frames {
            Placement::free(self.free.head)
        } else {
            Placement::evicting(self.evict(bits))
        };
        self.links.remove(&mut self.free, placement.slot);
        self.links.push_head(&mut self.list, placement.slot);
        placement
    }

    fn evict(&mut self, _bits: &mut impl AccessBits) -> Slot {
        let slot = self.list.tail;
        self.remove(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        self.links.remove(&mut self.list, slot);
        self.links.push_head(&mut self.free, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames = frames.clamp(1, self.links.entries());
    }

    fn touch(&mut self, slot: Slot, _times: u32) {
        if self.list.head != slot {
            self.links.remove(&mut self.list, slot);
            self.links.push_head(&mut self.list, slot);
        }
    }

    fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
