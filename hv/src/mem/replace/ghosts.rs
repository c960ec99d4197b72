//! Pages that are remembered for a while after their eviction: a queue of fixed length, out of which a page may be taken.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    NONE, Page, bytes_of,
    index::Index,
    links::{Links, List},
    table,
};

/// The queue.
#[derive(Clone, Debug)]
pub struct Ghosts {
    pages: Vec<Page>,
    /// Pages that it may have, below the length of the table.
    most: u32,
    links: Links,
    queue: List,
    /// Entries that hold no page.
    free: List,
    index: Index,
}

impl Ghosts {
    /// Of this many pages at most.
    ///
    /// # Errors
    /// No memory.
    pub fn new(most: usize) -> Result<Ghosts, TryReserveError> {
        let (links, free) = Links::free(most)?;
        let pages = table(most, Page(0))?;
        Ok(Ghosts { pages, most: most as u32, links, queue: List::EMPTY, free, index: Index::new(most)? })
    }

    /// It may have this many pages from now on. What is above that goes with later pages, two for each.
    pub fn limit(&mut self, most: u32) {
        self.most = most.min(self.pages.len() as u32);
    }

    /// Remembers a page that is not in the queue, in the place of the oldest if it is full.
    pub fn push(&mut self, page: Page) {
        for _ in 0..2 {
            if self.queue.tail != NONE && self.queue.len >= self.most {
                self.take(self.pages[self.queue.tail as usize]);
            }
        }
        if self.most == 0 || self.free.len == 0 {
            return;
        }
        let entry = self.free.head;
        self.links.remove(&mut self.free, entry);
        self.links.push_head(&mut self.queue, entry);
        self.pages[entry as usize] = page;
        self.index.insert(page, entry);
    }

    /// Takes a page out; false if it is not in the queue.
    pub fn take(&mut self, page: Page) -> bool {
        let entry = self.index.find(page);
        if entry == NONE {
            return false;
        }
        self.index.remove(page);
        self.links.remove(&mut self.queue, entry);
        self.links.push_head(&mut self.free, entry);
        true
    }

    /// Pages in the queue.
    pub fn len(&self) -> usize {
        self.queue.len as usize
    }

    /// No page is in the queue.
    pub fn is_empty(&self) -> bool {
        self.queue.len == 0
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.pages) + self.links.bytes() + self.index.bytes()
    }
}
