//! The memory of the screen.

use core::arch::asm;

use super::bytes;
use crate::screen::{Layout, Video};

/// A framebuffer in the host's memory. What lies outside of it is not written.
pub struct VideoMemory {
    start: u64,
    bytes: u64,
}

impl VideoMemory {
    /// The memory that `layout` describes.
    ///
    /// # Safety
    /// It is mapped writable as long as this is used, and is not RAM.
    pub unsafe fn new(layout: &Layout) -> VideoMemory {
        VideoMemory { start: layout.memory().start, bytes: layout.bytes() }
    }

    /// The address of `len` bytes at `offset`, if they lie within.
    fn place(&self, offset: u64, len: u64) -> Option<*mut u8> {
        let end = offset.checked_add(len)?;
        (end <= self.bytes).then_some((self.start + offset) as *mut u8)
    }
}

impl Video for VideoMemory {
    fn write(&mut self, offset: u64, from: &[u8]) {
        if let Some(to) = self.place(offset, from.len() as u64) {
            // SAFETY: within the memory, which is ours by the promise given to `new`.
            unsafe { bytes::copy(to, from.as_ptr(), from.len()) }
        }
    }

    fn clear(&mut self, offset: u64, len: u64) {
        if let Some(to) = self.place(offset, len) {
            // SAFETY: as above.
            unsafe { bytes::fill(to, 0, len as usize) }
        }
    }
}

/// Lets everything that was written become visible: write-combining memory collects writes.
pub fn flush() {
    // SAFETY: a fence only waits; it uses no SSE register.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}
