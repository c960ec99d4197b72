//! Where evicted pages are: compressed, in blocks of 256 bytes that are chained by number.
//!
//! A page of 1000 bytes takes four blocks, anywhere in any frame of the store: no space is lost between pages but the end of the
//! last block of each, and no page ever has to move. Blocks come from the frames that are partly used, so that others empty and
//! go back. What must hold: each block is free or in one chain; a frame without a block in use is not kept; `put` changes nothing
//! if it fails; what `get` reads is what `put` was given, or an error if the chain makes no sense.

use crate::arch::addr::{Hfn, Hpa, PAGE_SIZE};
use crate::mem::pieces::{OutOfMemory, Pieces};
use crate::mem::replace::NONE;
use crate::mem::replace::links::{Links, List};

use super::FrameMemory;

/// Bytes of a block.
pub const BLOCK: usize = 256;
/// Blocks of a frame.
const EACH: u32 = (PAGE_SIZE as usize / BLOCK) as u32;
/// The first bytes of a chain: how many follow.
const HEADER: usize = 2;
/// Frames at most: block numbers must fit 30 bits.
pub const MOST_FRAMES: u32 = 1 << 26;

/// The number of a page's first block.
pub type Handle = u32;

/// A chain that leads nowhere or has the wrong length: the store's own tables are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A frame of the store.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    /// Which it is; nothing is kept there while no block is in use.
    frame: Hfn,
    /// Blocks in use, a bit for each.
    used: u16,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    frames: Pieces<Frame>,
    /// The block after each of a chain, or [`NONE`].
    next: Pieces<u32>,
    links: Links,
    /// Frames with some blocks in use, not all.
    partial: List,
    /// Numbers that have no frame.
    unused: List,
    /// Blocks in use.
    blocks: u64,
}

impl Store {
    /// A store of at most this many frames.
    ///
    /// # Errors
    /// No memory for its tables: 72 bytes for each frame, and 8 on the heap.
    pub fn new(most: u32) -> Result<Store, OutOfMemory> {
        let most = most.clamp(1, MOST_FRAMES);
        let (links, unused) = Links::free(most as usize).map_err(|_| OutOfMemory)?;
        Ok(Store {
            frames: Pieces::new(most as usize, Frame::default)?,
            next: Pieces::new((most * EACH) as usize, || NONE)?,
            links,
            partial: List::EMPTY,
            unused,
            blocks: 0,
        })
    }

    /// Frames that it has now.
    pub fn frames(&self) -> u32 {
        self.frames.len() as u32 - self.unused.len
    }

    /// Bytes in use, in whole blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks * BLOCK as u64
    }

    /// Keeps `bytes`, a page at most. `None`: there is no room, and nothing has changed.
    pub fn put(&mut self, bytes: &[u8], memory: &mut dyn FrameMemory) -> Option<Handle> {
        let length = u16::try_from(bytes.len()).ok()?;
        let (mut first, mut last) = (NONE, NONE);
        for n in 0..(HEADER + bytes.len()).div_ceil(BLOCK) {
            let Some(block) = self.take_block(memory) else {
                self.free_chain(first, memory);
                return None;
            };
            // The header stands in the first block, in front of the bytes.
            let begin = (n * BLOCK).saturating_sub(HEADER);
            let end = (begin + BLOCK - if n == 0 { HEADER } else { 0 }).min(bytes.len());
            let mut at = self.address(block);
            if n == 0 {
                memory.write(at, &length.to_le_bytes());
                at = Hpa(at.0 + HEADER as u64);
            }
            memory.write(at, &bytes[begin..end]);
            self.next[block as usize] = NONE;
            match last {
                NONE => first = block,
                last => self.next[last as usize] = block,
            }
            last = block;
        }
        Some(first)
    }

    /// Reads what is kept under a handle into `out`; how many bytes.
    ///
    /// # Errors
    /// [`Corrupt`]: what `out` holds then is not the page.
    pub fn get(
        &self,
        handle: Handle,
        out: &mut [u8; PAGE_SIZE as usize],
        memory: &dyn FrameMemory,
    ) -> Result<usize, Corrupt> {
        let mut header = [0; HEADER];
        memory.read(self.address_of(handle)?, &mut header);
        let length = usize::from(u16::from_le_bytes(header));
        let (mut block, mut done) = (handle, 0);
        for n in 0..(HEADER + length).div_ceil(BLOCK) {
            let skipped = if n == 0 { HEADER } else { 0 };
            let part = (BLOCK - skipped).min(length - done);
            let at = Hpa(self.address_of(block)?.0 + skipped as u64);
            memory.read(at, out.get_mut(done..done + part).ok_or(Corrupt)?);
            done += part;
            block = self.next[block as usize];
        }
        if block == NONE { Ok(length) } else { Err(Corrupt) }
    }

    /// Forgets what is kept under a handle.
    pub fn remove(&mut self, handle: Handle, memory: &mut dyn FrameMemory) {
        self.free_chain(handle, memory);
    }

    /// Forgets everything.
    pub fn clear(&mut self, memory: &mut dyn FrameMemory) {
        for number in 0..self.frames.len() as u32 {
            let used = core::mem::take(&mut self.frames[number as usize].used);
            if used != 0 {
                if used != u16::MAX {
                    self.links.remove(&mut self.partial, number);
                }
                self.give_back(number, memory);
            }
        }
        self.blocks = 0;
    }

    /// A block for a chain, of a frame in use if there is room.
    fn take_block(&mut self, memory: &mut dyn FrameMemory) -> Option<u32> {
        if self.partial.head == NONE {
            let number = self.unused.head;
            if number == NONE {
                return None;
            }
            let frame = memory.take()?;
            self.links.remove(&mut self.unused, number);
            self.frames[number as usize] = Frame { frame, used: 0 };
            self.links.push_head(&mut self.partial, number);
        }
        let number = self.partial.head;
        let frame = &mut self.frames[number as usize];
        let bit = frame.used.trailing_ones();
        frame.used |= 1 << bit;
        if frame.used == u16::MAX {
            self.links.remove(&mut self.partial, number);
        }
        self.blocks += 1;
        Some(number * EACH + bit)
    }

    fn free_chain(&mut self, first: u32, memory: &mut dyn FrameMemory) {
        let mut block = first;
        // A chain that does not end has been freed in part: its next block is free already.
        while block != NONE && self.is_used(block) {
            let next = core::mem::replace(&mut self.next[block as usize], NONE);
            self.free_block(block, memory);
            block = next;
        }
    }

    fn free_block(&mut self, block: u32, memory: &mut dyn FrameMemory) {
        let number = block / EACH;
        let frame = &mut self.frames[number as usize];
        let was_full = frame.used == u16::MAX;
        frame.used &= !(1 << (block % EACH));
        let is_empty = frame.used == 0;
        self.blocks -= 1;
        match (was_full, is_empty) {
            (true, _) => self.links.push_head(&mut self.partial, number),
            (false, true) => {
                self.links.remove(&mut self.partial, number);
                self.give_back(number, memory);
            }
            (false, false) => {}
        }
    }

    fn give_back(&mut self, number: u32, memory: &mut dyn FrameMemory) {
        memory.give_back(self.frames[number as usize].frame);
        self.links.push_head(&mut self.unused, number);
    }

    fn is_used(&self, block: u32) -> bool {
        let number = (block / EACH) as usize;
        number < self.frames.len() && self.frames[number].used >> (block % EACH) & 1 != 0
    }

    fn address(&self, block: u32) -> Hpa {
        let frame = self.frames[(block / EACH) as usize].frame;
        Hpa(frame.base().0 + u64::from(block % EACH) * BLOCK as u64)
    }

    fn address_of(&self, block: u32) -> Result<Hpa, Corrupt> {
        if self.is_used(block) { Ok(self.address(block)) } else { Err(Corrupt) }
    }

    /// Checks what must hold.
    #[cfg(any(test, feature = "testing"))]
    pub fn check(&self) {
        let used = |number: usize| self.frames[number].used;
        let all = 0..self.frames.len();
        let blocks: u32 = all.clone().map(|number| used(number).count_ones()).sum();
        assert_eq!(u64::from(blocks), self.blocks);
        let partial = all.clone().filter(|&number| used(number) != 0 && used(number) != u16::MAX).count();
        let unused = all.filter(|&number| used(number) == 0).count();
        assert_eq!((self.partial.len as usize, self.unused.len as usize), (partial, unused));
    }
}
