//! The least recently used page goes: a reference, since no hypervisor sees every access.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, Object, Page, Placement, Policy, Slot,
    frames::{Framed, Frames},
    links::List,
};

/// The state: the most recently used page is at the head.
#[derive(Clone, Debug)]
pub struct Lru {
    frames: Frames,
    list: List,
}

impl Lru {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Lru, TryReserveError> {
        Ok(Lru { frames: Frames::new(frames)?, list: List::EMPTY })
    }
}

impl Framed for Lru {
    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

impl Policy for Lru {
    const TOUCHES: bool = true;

    fn fault(&mut self, _page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let placement = self.take_slot(bits);
        let slot = placement.slot;
        self.frames.links.push_head(&mut self.list, slot);
        placement
    }

    fn evict(&mut self, _bits: &mut impl AccessBits) -> Slot {
        let slot = self.list.tail;
        self.remove(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        self.frames.give_back(&mut self.list, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames.set_limit(frames);
    }

    fn touch(&mut self, slot: Slot, _times: u32) {
        if self.list.head != slot {
            self.frames.links.remove(&mut self.list, slot);
            self.frames.links.push_head(&mut self.list, slot);
        }
    }

    fn bytes(&self) -> usize {
        self.frames.bytes()
    }
}
