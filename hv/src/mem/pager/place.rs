//! Where a page of an overcommitted VM is, in four bytes.

use super::store::Handle;
use crate::mem::replace::Slot;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In no frame, and all zeroes; never touched, or evicted.
    Zero { evicted: bool },
    /// In the store.
    Stored(Handle),
    /// In a frame, and in no slot yet.
    Arrived,
    /// In a frame, in this slot.
    Resident(Slot),
    /// In a frame, and absent in the P2m.
    Leaving,
}

/// A [`Place`] in 32 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packed(u32);

impl Packed {
    const BITS: u32 = 30;
    const VALUE: u32 = (1 << Self::BITS) - 1;

    pub(super) fn new(place: Place) -> Packed {
        let (tag, value) = match place {
            Place::Zero { evicted } => (0, u32::from(evicted)),
            Place::Arrived => (0, 2),
            Place::Leaving => (0, 3),
            Place::Stored(handle) => (1, handle),
            Place::Resident(slot) => (2, slot),
        };
        Packed(tag << Self::BITS | value & Self::VALUE)
    }

    pub(super) fn get(self) -> Place {
        match (self.0 >> Self::BITS, self.0 & Self::VALUE) {
            (0, 2) => Place::Arrived,
            (0, 3) => Place::Leaving,
            (0, value) => Place::Zero { evicted: value != 0 },
            (1, value) => Place::Stored(value),
            (_, value) => Place::Resident(value),
        }
    }
}
