//! Which entry of a policy's tables the page in each slot has; the free slots are a chain through the same table.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{NONE, Placement, Slot, bytes_of, table};

/// The table.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Of a slot in use its entry, of a free one the next that is free.
    entries: Vec<u32>,
    free: Slot,
}

impl Slots {
    /// Of this many slots, all free.
    ///
    /// # Errors
    /// No memory.
    pub fn new(slots: u32) -> Result<Slots, TryReserveError> {
        let mut entries = table(slots as usize, NONE)?;
        for slot in 1..slots {
            entries[slot as usize - 1] = slot;
        }
        Ok(Slots { entries, free: 0 })
    }

    /// Slots.
    pub fn count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The next free slot. There must be one.
    pub fn free(&self) -> Slot {
        self.free
    }

    /// The page that was placed so has this entry.
    pub fn set(&mut self, placement: Placement, entry: u32) {
        let of_slot = core::mem::replace(&mut self.entries[placement.slot as usize], entry);
        if !placement.evicts {
            self.free = of_slot;
        }
    }

    /// Frees a slot; the entry that it had.
    pub fn give_back(&mut self, slot: Slot) -> u32 {
        core::mem::replace(&mut self.entries[slot as usize], core::mem::replace(&mut self.free, slot))
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.entries)
    }
}
