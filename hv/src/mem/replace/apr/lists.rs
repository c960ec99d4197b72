//! APR's lists: the global list with CLOCK's hand, and a stack for each object with the hand of LIFO+, `rhead`.
//!
//! LIFO+ goes from the top of a stack to its bottom, then on from the top. When a page is pushed, it begins again at the second
//! page: the first one has just come.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    super::{
        NONE, bytes_of,
        links::{Links, List},
        table,
    },
    score::Side,
};

/// A list and its hand.
#[derive(Clone, Copy, Debug)]
struct Handed {
    list: List,
    hand: u32,
}

const EMPTY: Handed = Handed { list: List::EMPTY, hand: NONE };

/// The lists, over one table of entries.
#[derive(Clone, Debug)]
pub struct Lists {
    links: [Links; 2],
    /// All pages, as a circle.
    global: Handed,
    /// A stack for each object; the top is its head.
    stacks: Vec<Handed>,
}

impl Lists {
    /// For this many entries and objects.
    ///
    /// # Errors
    /// No memory.
    pub fn new(entries: usize, objects: usize) -> Result<Lists, TryReserveError> {
        let links = [Links::new(entries)?, Links::new(entries)?];
        Ok(Lists { links, global: EMPTY, stacks: table(objects, EMPTY)? })
    }

    fn of(&mut self, side: Side, object: u32) -> (&mut Links, &mut Handed) {
        let handed = match side {
            Side::Clock => &mut self.global,
            Side::Lifo => &mut self.stacks[object as usize],
        };
        (&mut self.links[side as usize], handed)
    }

    /// Entries of a side's list.
    pub fn len(&self, side: Side, object: u32) -> u32 {
        match side {
            Side::Clock => self.global.list.len,
            Side::Lifo => self.stacks[object as usize].list.len,
        }
    }

    /// The entry under a side's hand, which goes on. The list is not empty.
    pub fn pass(&mut self, side: Side, object: u32) -> u32 {
        let (links, handed) = self.of(side, object);
        let entry = handed.hand;
        handed.hand = links.around(&handed.list, entry);
        entry
    }

    /// Takes an entry out of a side's list; a hand at it goes on.
    pub fn remove(&mut self, side: Side, entry: u32, object: u32) {
        let (links, handed) = self.of(side, object);
        if handed.hand == entry {
            let next = links.around(&handed.list, entry);
            handed.hand = if next == entry { NONE } else { next };
        }
        links.remove(&mut handed.list, entry);
    }

    /// Puts an entry into the global list where CLOCK's hand comes last.
    pub fn push_clock(&mut self, entry: u32) {
        let (links, handed) = self.of(Side::Clock, 0);
        links.insert_before(&mut handed.list, entry, handed.hand);
        if handed.hand == NONE {
            handed.hand = entry;
        }
    }

    /// Pushes an entry onto its object's stack; the former top, or [`NONE`].
    pub fn push_lifo(&mut self, entry: u32, object: u32) -> u32 {
        let (links, handed) = self.of(Side::Lifo, object);
        let former = handed.list.head;
        links.push_head(&mut handed.list, entry);
        handed.hand = if former == NONE { entry } else { former };
        former
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.links.iter().map(Links::bytes).sum::<usize>() + bytes_of(&self.stacks)
    }
}
