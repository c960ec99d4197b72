//! Descriptor chains: what a driver makes available, checked and copied out of guest memory at once.
//!
//! A chain is first all the buffers that the device reads, then all those that it writes. [`Chain::load`] follows it,
//! through an indirect table too, and gives up at the first thing that the standard forbids or that would not end; after
//! that devices see nothing but addresses and lengths, and a driver that changes its descriptors later changes nothing.
//!
//! Virtio 1.2, 2.6.4 to 2.7.7.

use arrayvec::ArrayVec;

use super::queue::Malformed;
use crate::arch::addr::Gpa;
use crate::mem::guest_memory::{GuestMemory, NotRam};

/// Buffers in a chain at most, those of an indirect table included.
pub const MAX_SEGMENTS: usize = 256;

/// Bytes of a descriptor.
const DESCRIPTOR: u64 = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A buffer in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins.
    pub gpa: Gpa,
    /// Its length in bytes.
    pub len: u32,
}

/// A table of descriptors.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorTable {
    pub(super) base: Gpa,
    pub(super) entries: u32,
}

#[derive(Clone, Copy, Debug)]
struct Descriptor {
    gpa: Gpa,
    len: u32,
    flags: u16,
    next: u16,
}

impl DescriptorTable {
    fn get(self, index: u32, memory: &impl GuestMemory) -> Result<Descriptor, Malformed> {
        if index >= self.entries {
            return Err(Malformed::Descriptor);
        }
        let mut bytes = [0; DESCRIPTOR as usize];
        memory.read(self.base.wrapping_add(u64::from(index) * DESCRIPTOR), &mut bytes)?;
        let field = |at: usize, len: usize| {
            bytes[at..at + len].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        Ok(Descriptor {
            gpa: Gpa(field(0, 8)),
            len: field(8, 4) as u32,
            flags: field(12, 2) as u16,
            next: field(14, 2) as u16,
        })
    }
}

/// A chain of buffers. One is reused for all that a device serves: it is large.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    pub(super) head: u16,
    segments: ArrayVec<Segment, MAX_SEGMENTS>,
    /// How many of `segments`, the first ones, the device reads.
    readable: usize,
}

impl Chain {
    /// Reads the chain that begins at `head`.
    pub(super) fn load(
        &mut self,
        head: u16,
        table: DescriptorTable,
        indirect: bool,
        memory: &impl GuestMemory,
    ) -> Result<(), Malformed> {
        self.head = head;
        self.segments.clear();
        self.readable = 0;
        let (mut table, mut index) = (table, u32::from(head));
        let mut may_be_indirect = indirect;
        // Each descriptor of a table at most once: what goes on after that is a loop.
        let mut left = table.entries;
        loop {
            left = left.checked_sub(1).ok_or(Malformed::Loop)?;
            let descriptor = table.get(index, memory)?;
            if descriptor.flags & INDIRECT != 0 {
                // Virtio 1.2, 2.7.5.3.1: an indirect table holds none itself, and ends the chain. So the walk has two
                // levels at most.
                if !may_be_indirect || descriptor.flags & NEXT != 0 {
                    return Err(Malformed::Indirect);
                }
                let entries = descriptor.len / DESCRIPTOR as u32;
                if entries == 0 || !descriptor.len.is_multiple_of(DESCRIPTOR as u32) {
                    return Err(Malformed::Indirect);
                }
                (table, index) = (DescriptorTable { base: descriptor.gpa, entries }, 0);
                (may_be_indirect, left) = (false, entries.min(MAX_SEGMENTS as u32));
                continue;
            }
            self.add(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next.into();
        }
    }

    fn add(&mut self, descriptor: Descriptor) -> Result<(), Malformed> {
        let writable = descriptor.flags & WRITE != 0;
        // Readable buffers come first (virtio 1.2, 2.7.4.2); devices rely on it to find header and status.
        if !writable && self.readable != self.segments.len() {
            return Err(Malformed::Order);
        }
        // Devices may then take each buffer to hold at least a byte.
        if descriptor.len == 0 {
            return Ok(());
        }
        let segment = Segment { gpa: descriptor.gpa, len: descriptor.len };
        self.segments.try_push(segment).map_err(|_| Malformed::TooLong)?;
        self.readable += usize::from(!writable);
        Ok(())
    }

    /// What the device reads.
    pub fn readable(&self) -> Buffers<'_> {
        Buffers { segments: &self.segments[..self.readable], done: 0 }
    }

    /// What the device writes.
    pub fn writable(&self) -> Buffers<'_> {
        Buffers { segments: &self.segments[self.readable..], done: 0 }
    }

    /// The last byte that the device writes.
    pub fn last_writable(&self) -> Option<Gpa> {
        let last = self.segments[self.readable..].last()?;
        Some(last.gpa.wrapping_add(u64::from(last.len) - 1))
    }
}

/// A place in a list of buffers, which accesses move on.
#[derive(Clone, Copy, Debug)]
pub struct Buffers<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that lie behind.
    done: u32,
}

impl Buffers<'_> {
    /// Bytes ahead.
    pub fn len(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>() - u64::from(self.done)
    }

    /// Whether nothing lies ahead.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The next piece of at most `max` bytes that lies in one place, and goes past it.
    pub fn next(&mut self, max: u32) -> Option<Segment> {
        let first = self.segments.first()?;
        let len = (first.len - self.done).min(max);
        let piece = Segment { gpa: first.gpa.wrapping_add(self.done.into()), len };
        self.done += len;
        if self.done == first.len {
            self.segments = &self.segments[1..];
            self.done = 0;
        }
        Some(piece)
    }

    /// Goes past `bytes`, or to the end.
    pub fn skip(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some(piece) = self.next(bytes.min(u32::MAX.into()) as u32)
        {
            bytes -= u64::from(piece.len);
        }
    }

    /// Reads until `buf` is full or nothing lies ahead; returns how many bytes.
    pub fn read(&mut self, memory: &impl GuestMemory, buf: &mut [u8]) -> Result<usize, NotRam> {
        self.each(buf.len(), |piece, at, len| memory.read(piece, &mut buf[at..at + len]))
    }

    /// Writes until all of `buf` is written or nothing lies ahead; returns how many bytes.
    pub fn write(&mut self, memory: &impl GuestMemory, buf: &[u8]) -> Result<usize, NotRam> {
        self.each(buf.len(), |piece, at, len| memory.write(piece, &buf[at..at + len]))
    }

    fn each(
        &mut self,
        bytes: usize,
        mut access: impl FnMut(Gpa, usize, usize) -> Result<(), NotRam>,
    ) -> Result<usize, NotRam> {
        let mut done = 0;
        while done < bytes
            && let Some(piece) = self.next((bytes - done).min(u32::MAX as usize) as u32)
        {
            access(piece.gpa, done, piece.len as usize)?;
            done += piece.len as usize;
        }
        Ok(done)
    }
}
