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
    /// At this place on the disk.
    OnDisk(u32),
    /// In no slot yet: an entry among the arrivals, with a frame or vacant.
    Arrived(u32),
    /// In this slot, with a frame or vacant.
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
    /// Values with the first tag from here on are places on the disk. A VM has less than 2^28 pages, and not more places on its
    /// disk.
    const DISK: u32 = 16;

    pub(super) fn new(place: Place) -> Packed {
        let (tag, value) = match place {
            Place::Zero { evicted } => (0, u32::from(evicted)),
            Place::Leaving => (0, 2),
            Place::OnDisk(place) => (0, Self::DISK + place),
            Place::Stored(handle) => (1, handle),
            Place::Resident(slot) => (2, slot),
            Place::Arrived(entry) => (3, entry),
        };
        Packed(tag << Self::BITS | value & Self::VALUE)
    }

    pub(super) fn get(self) -> Place {
        match (self.0 >> Self::BITS, self.0 & Self::VALUE) {
            (0, 2) => Place::Leaving,
            (0, value @ Self::DISK..) => Place::OnDisk(value - Self::DISK),
            (0, value) => Place::Zero { evicted: value != 0 },
            (1, value) => Place::Stored(value),
            (2, value) => Place::Resident(value),
            (_, value) => Place::Arrived(value),
        }
    }
}
