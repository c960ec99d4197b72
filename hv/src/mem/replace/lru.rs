//! The least recently used page goes: a reference, since no hypervisor sees every access.

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
}

impl Lru {
    /// For this many frames.
    pub fn new(frames: u32) -> Lru {
        let frames = frames_in_range(frames);
        Lru { frames, links: Links::new(frames as usize), list: List::EMPTY }
    }
}

impl Policy for Lru {
    const TOUCHES: bool = true;

    fn fault(&mut self, _page: Page, _object: Object, _bits: &mut impl AccessBits) -> Placement {
        let placement = if self.list.len < self.frames {
            Placement::free(self.list.len)
        } else {
            let slot = self.list.tail;
            self.links.remove(&mut self.list, slot);
            Placement::evicting(slot)
        };
        self.links.push_head(&mut self.list, placement.slot);
        placement
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
