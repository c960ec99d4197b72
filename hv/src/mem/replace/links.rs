//! Doubly linked lists over tables of indexes: several lists may share one table, as long as an entry is in one of them at most.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{NONE, bytes_of, table};

/// Neighbours of each entry.
#[derive(Clone, Debug)]
pub struct Links(Vec<[u32; 2]>);

/// A list: its first and its last entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// The first entry, or [`NONE`].
    pub head: u32,
    /// The last entry, or [`NONE`].
    pub tail: u32,
    /// Entries.
    pub len: u32,
}

impl List {
    /// A list without entries.
    pub const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };
}

impl Links {
    /// For this many entries.
    ///
    /// # Errors
    /// No memory.
    pub fn new(entries: usize) -> Result<Links, TryReserveError> {
        Ok(Links(table(entries, [NONE; 2])?))
    }

    /// For this many entries, all of which are in one list, in their order.
    ///
    /// # Errors
    /// No memory.
    pub fn free(entries: usize) -> Result<(Links, List), TryReserveError> {
        let (mut links, mut all) = (Links::new(entries)?, List::EMPTY);
        (0..entries as u32).rev().for_each(|entry| links.push_head(&mut all, entry));
        Ok((links, all))
    }

    /// Entries.
    pub fn entries(&self) -> u32 {
        self.0.len() as u32
    }

    /// The entry before this one, towards the head, or [`NONE`].
    pub fn before(&self, entry: u32) -> u32 {
        self.0[entry as usize][0]
    }

    /// The entry after this one, towards the tail, or [`NONE`].
    pub fn after(&self, entry: u32) -> u32 {
        self.0[entry as usize][1]
    }

    /// The entry after this one; the first after the last.
    pub fn around(&self, list: &List, entry: u32) -> u32 {
        let next = self.after(entry);
        if next == NONE { list.head } else { next }
    }

    /// Puts an entry in front of all.
    pub fn push_head(&mut self, list: &mut List, entry: u32) {
        self.0[entry as usize] = [NONE, list.head];
        match list.head {
            NONE => list.tail = entry,
            head => self.0[head as usize][0] = entry,
        }
        list.head = entry;
        list.len += 1;
    }

    /// Puts an entry before another one of the list; at the end before [`NONE`].
    pub fn insert_before(&mut self, list: &mut List, entry: u32, next: u32) {
        if next == list.head {
            return self.push_head(list, entry);
        }
        let before = if next == NONE { list.tail } else { self.before(next) };
        self.0[entry as usize] = [before, next];
        self.0[before as usize][1] = entry;
        match next {
            NONE => list.tail = entry,
            next => self.0[next as usize][0] = entry,
        }
        list.len += 1;
    }

    /// Takes an entry out.
    pub fn remove(&mut self, list: &mut List, entry: u32) {
        let [before, after] = self.0[entry as usize];
        match before {
            NONE => list.head = after,
            before => self.0[before as usize][1] = after,
        }
        match after {
            NONE => list.tail = before,
            after => self.0[after as usize][0] = before,
        }
        list.len -= 1;
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.0)
    }
}
