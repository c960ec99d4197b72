//! S3-FIFO (Yang and others, SOSP 2023), in its authors' later form: a small queue of a tenth of the frames, a main queue, and ghosts
//! of nine tenths. A page that is accessed twice while it is in the small queue goes on to the main queue, which is a clock of two
//! bits; other pages become ghosts. While frames are free, pages that the small queue has no room for go to the main queue.
//!
//! It counts accesses, up to 3: [`Policy::touch`].

use alloc::{vec, vec::Vec};

use super::{
    AccessBits, Object, Page, Placement, Policy, Slot, bytes_of, frames_in_range,
    ghosts::Ghosts,
    links::{Links, List},
};

/// Accesses that are counted.
const MOST: u8 = 3;
/// Accesses in the small queue that make a page move on.
const MOVES_ON: u8 = 2;

/// The state: the newest pages are at the heads.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    frames: u32,
    small_frames: u32,
    links: Links,
    small: List,
    main: List,
    pages: Vec<Page>,
    counts: Vec<u8>,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// For this many frames.
    pub fn new(frames: u32) -> S3Fifo {
        let frames = frames_in_range(frames);
        S3Fifo {
            frames,
            small_frames: (frames / 10).max(1),
            links: Links::new(frames as usize),
            small: List::EMPTY,
            main: List::EMPTY,
            pages: vec![Page(0); frames as usize],
            counts: vec![0; frames as usize],
            ghosts: Ghosts::new((u64::from(frames) * 9 / 10) as usize),
        }
    }

    fn evict(&mut self) -> Slot {
        let main_frames = self.frames - self.small_frames;
        if self.main.len <= main_frames {
            while self.small.len > 0 {
                let slot = self.small.tail;
                self.links.remove(&mut self.small, slot);
                if self.counts[slot as usize] < MOVES_ON {
                    self.ghosts.push(self.pages[slot as usize]);
                    return slot;
                }
                self.links.push_head(&mut self.main, slot);
                self.counts[slot as usize] = 0;
            }
        }
        loop {
            // Ends: counts only fall here. One of the queues has a page, and the small one has none when the main one has none.
            let slot = self.main.tail;
            self.links.remove(&mut self.main, slot);
            match &mut self.counts[slot as usize] {
                0 => return slot,
                count => *count -= 1,
            }
            self.links.push_head(&mut self.main, slot);
        }
    }
}

impl Policy for S3Fifo {
    const TOUCHES: bool = true;

    fn fault(&mut self, page: Page, _object: Object, _bits: &mut impl AccessBits) -> Placement {
        let returns = self.ghosts.take(page);
        let used = self.small.len + self.main.len;
        let placement =
            if used < self.frames { Placement::free(used) } else { Placement::evicting(self.evict()) };
        let slot = placement.slot;
        if returns || (!placement.evicts && self.small.len >= self.small_frames) {
            self.links.push_head(&mut self.main, slot);
        } else {
            self.links.push_head(&mut self.small, slot);
        }
        self.pages[slot as usize] = page;
        self.counts[slot as usize] = 0;
        placement
    }

    fn touch(&mut self, slot: Slot, times: u32) {
        let count = &mut self.counts[slot as usize];
        *count = count.saturating_add(times.min(u32::from(MOST)) as u8).min(MOST);
    }

    fn ghosts(&self) -> usize {
        self.ghosts.len()
    }

    fn bytes(&self) -> usize {
        self.links.bytes() + bytes_of(&self.pages) + bytes_of(&self.counts) + self.ghosts.bytes()
    }
}
