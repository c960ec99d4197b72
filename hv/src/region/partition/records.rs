//! The records of a partition, and their sizes: 24 bytes for a frame, 32 for a region, 16 for a further address space of a frame.
//!
//! [`Pieces`](crate::mem::pieces::Pieces) holds a power of two of elements in a page, so sizes that are powers of two waste nothing.

use crate::region::{Kind, Owner, Rid, Space};

/// No record.
pub const NIL: u32 = u32::MAX;

/// A frame: its region, and which address spaces map it.
///
/// Entries of the first address space are counted here, those of others in [`Node`]s. Where no node was free the entries are
/// `uncounted`: their address spaces are not known, and no address space gets a node while there are such entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// Entries of `mapper`.
    pub entries: u32,
    /// Entries of address spaces that are not known.
    pub uncounted: u32,
    /// The first node, plus one; 0 is none.
    more: u32,
    region: u16,
    /// The number of an address space, plus one; 0 is none.
    mapper: u16,
}

impl Frame {
    /// Its region.
    pub fn region(&self) -> Rid {
        Rid(self.region)
    }

    /// It is in another region now.
    pub fn set_region(&mut self, rid: Rid) {
        self.region = rid.0;
    }

    /// The address space whose entries are counted here.
    pub fn mapper(&self) -> Option<Space> {
        self.mapper.checked_sub(1).map(Space)
    }

    /// Counts entries of this address space here, from now on.
    pub fn set_mapper(&mut self, space: Option<Space>) {
        self.mapper = space.map_or(0, |space| space.0 + 1);
    }

    /// The first node.
    pub fn more(&self) -> Option<u32> {
        self.more.checked_sub(1)
    }

    /// This node is the first.
    pub fn set_more(&mut self, node: Option<u32>) {
        self.more = node.map_or(0, |node| node + 1);
    }

    /// Whether no address space maps it.
    pub fn is_unmapped(&self) -> bool {
        self.mapper == 0 && self.uncounted == 0
    }

    /// Where it belongs by its mappings alone.
    pub fn natural_home(&self) -> Rid {
        match self.sole_mapper() {
            _ if self.is_unmapped() => Rid::POOL,
            Some(space) => Rid::seed(space),
            None => Rid::SHARED,
        }
    }

    /// The address space that alone maps it.
    pub fn sole_mapper(&self) -> Option<Space> {
        if self.more == 0 && self.uncounted == 0 { self.mapper() } else { None }
    }
}

/// Neighbours in the list of a region's frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// The frame before, or [`NIL`].
    pub prev: u32,
    /// The frame behind, or [`NIL`].
    pub next: u32,
}

/// A further address space that maps a frame; or free, with `next` alone.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
pub struct Node {
    /// The next one of the frame or of the free ones, or [`NIL`].
    pub next: u32,
    /// Entries that lead to the frame.
    pub entries: u32,
    /// The address space's number.
    pub space: u16,
}

impl Node {
    /// The next one.
    pub fn next(&self) -> Option<u32> {
        (self.next != NIL).then_some(self.next)
    }
}

/// A region; or free, with `first` alone as the next free one.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Region {
    /// The first frame of its list.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// Length of the list.
    pub frames: u32,
    /// `None`: the record is free.
    pub kind: Option<Kind>,
    /// Whose.
    pub owner: Owner,
    /// Table entries that lead to its frames.
    pub entries: u64,
}

impl Default for Region {
    fn default() -> Region {
        Region { first: NIL, last: NIL, frames: 0, kind: None, owner: Owner::Vm, entries: 0 }
    }
}

/// Stated in docs/design/0025-regions.md.
const _: () = assert!(
    size_of::<Frame>() == 16
        && size_of::<Link>() == 8
        && size_of::<Node>() == 16
        && size_of::<Region>() == 32
);
