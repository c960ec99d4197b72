//! Pages that are remembered for a while after their eviction: a queue of fixed length, out of which a page may be taken.

use alloc::{vec, vec::Vec};

use super::{
    NONE, Page, bytes_of,
    index::Index,
    links::{Links, List},
};

/// The queue.
#[derive(Clone, Debug)]
pub struct Ghosts {
    pages: Vec<Page>,
    links: Links,
    queue: List,
    /// Entries that hold no page.
    free: List,
    index: Index,
}

impl Ghosts {
    /// Of this many pages at most.
    pub fn new(most: usize) -> Ghosts {
        let (mut links, mut free) = (Links::new(most), List::EMPTY);
        (0..most as u32).for_each(|entry| links.push_head(&mut free, entry));
        Ghosts { pages: vec![Page(0); most], links, queue: List::EMPTY, free, index: Index::new(most) }
    }

    /// Remembers a page that is not in the queue, in the place of the oldest if it is full.
    pub fn push(&mut self, page: Page) {
        if self.free.len == 0 {
            match self.queue.tail {
                NONE => return,
                oldest => self.take(self.pages[oldest as usize]),
            };
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
