//! S3-FIFO (Yang and others, SOSP 2023), in its authors' later form: a small queue of a tenth of the frames, a main queue, and ghosts
//! of nine tenths. A page that is accessed twice while it is in the small queue goes on to the main queue, which is a clock of two
//! bits; other pages become ghosts. While frames are free, pages that the small queue has no room for go to the main queue.
//!
//! It counts accesses, up to 3: [`Policy::touch`].

use alloc::{collections::TryReserveError, vec::Vec};

use super::{
    AccessBits, Object, Page, Placement, Policy, Slot, bytes_of,
    frames::{Framed, Frames},
    ghosts::Ghosts,
    links::List,
    table,
};

/// Accesses that are counted.
const MOST: u8 = 3;
/// Accesses in the small queue that make a page move on.
const MOVES_ON: u8 = 2;

/// The state: the newest pages are at the heads.
#[derive(Clone, Debug)]
pub struct S3Fifo {
    frames: Frames,
    small_frames: u32,
    small: List,
    main: List,
    /// The queue that the page in a slot is in.
    is_main: Vec<bool>,
    pages: Vec<Page>,
    counts: Vec<u8>,
    ghosts: Ghosts,
}

impl S3Fifo {
    /// For this many frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new(frames: u32) -> Result<S3Fifo, TryReserveError> {
        let frames = Frames::new(frames)?;
        let (limit, slots) = (frames.limit(), frames.limit() as usize);
        Ok(S3Fifo {
            frames,
            small_frames: small_of(limit),
            small: List::EMPTY,
            main: List::EMPTY,
            is_main: table(slots, false)?,
            pages: table(slots, Page(0))?,
            counts: table(slots, 0)?,
            ghosts: Ghosts::new(ghosts_of(limit) as usize)?,
        })
    }

    /// The page that is to go. Who calls it removes the page.
    fn victim(&mut self, bits: &mut impl AccessBits) -> Slot {
        let main_frames = self.frames.limit() - self.small_frames;
        if self.main.len <= main_frames {
            while self.small.len > 0 {
                let slot = self.small.tail;
                bits.search(1);
                if self.counts[slot as usize] < MOVES_ON {
                    self.ghosts.push(self.pages[slot as usize]);
                    return slot;
                }
                self.frames.links.remove(&mut self.small, slot);
                self.push(slot, true);
            }
        }
        loop {
            // Ends: counts only fall here. One of the queues has a page, and the small one has none when the main one has none.
            let slot = self.main.tail;
            bits.search(1);
            match &mut self.counts[slot as usize] {
                0 => return slot,
                count => *count -= 1,
            }
            self.frames.links.remove(&mut self.main, slot);
            self.frames.links.push_head(&mut self.main, slot);
        }
    }

    /// Puts a page into a queue, without an access.
    fn push(&mut self, slot: Slot, is_main: bool) {
        self.frames.links.push_head(if is_main { &mut self.main } else { &mut self.small }, slot);
        self.is_main[slot as usize] = is_main;
        self.counts[slot as usize] = 0;
    }
}

/// Frames of the small queue.
fn small_of(frames: u32) -> u32 {
    (frames / 10).max(1)
}

/// Pages that are remembered.
fn ghosts_of(frames: u32) -> u32 {
    (u64::from(frames) * 9 / 10) as u32
}

impl Framed for S3Fifo {
    fn frames(&mut self) -> &mut Frames {
        &mut self.frames
    }
}

impl Policy for S3Fifo {
    const TOUCHES: bool = true;

    fn fault(&mut self, page: Page, _object: Object, bits: &mut impl AccessBits) -> Placement {
        let returns = self.ghosts.take(page);
        let Placement { slot, evicts } = self.take_slot(bits);
        self.push(slot, returns || (!evicts && self.small.len >= self.small_frames));
        self.pages[slot as usize] = page;
        Placement { slot, evicts }
    }

    fn evict(&mut self, bits: &mut impl AccessBits) -> Slot {
        let slot = self.victim(bits);
        self.remove(slot);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        let queue = if self.is_main[slot as usize] { &mut self.main } else { &mut self.small };
        self.frames.give_back(queue, slot);
    }

    fn limit(&mut self, frames: u32) {
        self.frames.set_limit(frames);
        self.small_frames = small_of(self.frames.limit());
        self.ghosts.limit(ghosts_of(self.frames.limit()));
    }

    fn touch(&mut self, slot: Slot, times: u32) {
        let count = &mut self.counts[slot as usize];
        *count = count.saturating_add(times.min(u32::from(MOST)) as u8).min(MOST);
    }

    fn ghosts(&self) -> usize {
        self.ghosts.len()
    }

    fn bytes(&self) -> usize {
        self.frames.bytes()
            + bytes_of(&self.pages)
            + bytes_of(&self.counts)
            + bytes_of(&self.is_main)
            + self.ghosts.bytes()
    }
}
