//! The frames of a policy that keeps all resident pages in lists: how many may be used, which slots are free, and the links of all
//! lists.

use alloc::collections::TryReserveError;

use super::{
    AccessBits, Placement, Policy, Slot, frames_in_range,
    links::{Links, List},
};

/// A policy with such frames.
pub trait Framed: Policy {
    /// Its frames.
    fn frames(&mut self) -> &mut Frames;

    /// Takes a slot for a page that comes, after an eviction if all are used up. It is in no list yet.
    fn take_slot(&mut self, bits: &mut impl AccessBits) -> Placement {
        let evicts = self.frames().are_used_up();
        if evicts {
            self.evict(bits);
        }
        Placement { slot: self.frames().take(), evicts }
    }
}

/// The frames. A slot is free or in one of the policy's lists.
#[derive(Clone, Debug)]
pub struct Frames {
    /// The neighbours of each slot in its list.
    pub links: Links,
    free: List,
    limit: u32,
}

impl Frames {
    /// This many, as policies take them, all free.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<Frames, TryReserveError> {
        let limit = frames_in_range(frames);
        let (links, free) = Links::free(limit as usize)?;
        Ok(Frames { links, free, limit })
    }

    /// Frames that may be used.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets that, from 1 to what they were made for.
    pub fn set_limit(&mut self, frames: u32) {
        self.limit = frames.clamp(1, self.links.entries());
    }

    /// Whether a page can come only in the place of another one.
    fn are_used_up(&self) -> bool {
        self.links.entries() - self.free.len >= self.limit
    }

    /// Takes the slot that became free last. There must be one: where all are used up, after an eviction.
    fn take(&mut self) -> Slot {
        let slot = self.free.head;
        self.links.remove(&mut self.free, slot);
        slot
    }

    /// Frees a slot, which is in this list.
    pub fn give_back(&mut self, list: &mut List, slot: Slot) {
        self.links.remove(list, slot);
        self.links.push_head(&mut self.free, slot);
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.links.bytes()
    }
}
