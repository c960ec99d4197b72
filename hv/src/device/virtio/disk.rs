//! A RAM disk over a file that nobody changes: what is written goes to pages of its own.
//!
//! The pages are made when they are first written, as many as the disk has at most, and stay until the VM ends; a reset of
//! the guest keeps them, as a disk does.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes that are copied at the first write to any of them.
const PAGE: usize = 4096;
static ZEROES: [u8; PAGE] = [0; PAGE];

/// A disk.
#[derive(Debug)]
pub struct RamDisk {
    base: &'static [u8],
    /// Pages that have been written; empty before the first write.
    pages: Vec<Option<Box<[u8]>>>,
    read_only: bool,
}

/// Why an access was not done, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskError<E> {
    /// Beyond the end.
    End,
    /// A write to a read-only disk.
    ReadOnly,
    /// No memory for what was written.
    Memory,
    /// The other side's fault.
    Other(E),
}

impl RamDisk {
    /// The disk with these contents, filled up with zeroes to a whole sector.
    pub fn new(base: &'static [u8], read_only: bool) -> RamDisk {
        RamDisk { base, pages: Vec::new(), read_only }
    }

    /// Its size.
    pub fn sectors(&self) -> u64 {
        (self.base.len() as u64).div_ceil(SECTOR)
    }

    /// Whether it cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Pages of 4 KiB that have been written.
    pub fn pages_written(&self) -> usize {
        self.pages.iter().flatten().count()
    }

    /// Whether `bytes` from `at` on are on the disk.
    pub fn contains(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.sectors() * SECTOR)
    }

    /// Hands `bytes` from `at` on to `sink`, piece by piece, with the offset of each.
    pub fn read<E>(
        &self,
        at: u64,
        bytes: u64,
        mut sink: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), DiskError<E>> {
        if !self.contains(at, bytes) {
            return Err(DiskError::End);
        }
        for (page, start, len, done) in pieces(at, bytes) {
            let written = self.pages.get(page).and_then(Option::as_deref);
            let original = || self.base.get(page * PAGE..).unwrap_or_default();
            let piece = written.unwrap_or_else(original);
            // The last page of the file may end early.
            let have = piece.get(start..).unwrap_or_default();
            let have = &have[..have.len().min(len)];
            sink(done, have).map_err(DiskError::Other)?;
            if have.len() < len {
                let zeroes = &ZEROES[..len - have.len()];
                sink(done + have.len() as u64, zeroes).map_err(DiskError::Other)?;
            }
        }
        Ok(())
    }

    /// Has `source` fill `bytes` from `at` on, piece by piece.
    pub fn write<E>(
        &mut self,
        at: u64,
        bytes: u64,
        mut source: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), DiskError<E>> {
        if self.read_only {
            return Err(DiskError::ReadOnly);
        }
        if !self.contains(at, bytes) {
            return Err(DiskError::End);
        }
        for (page, start, len, done) in pieces(at, bytes) {
            let page = self.own(page).ok_or(DiskError::Memory)?;
            source(done, &mut page[start..start + len]).map_err(DiskError::Other)?;
        }
        Ok(())
    }

    /// The page's own copy, made now if there is none.
    fn own(&mut self, page: usize) -> Option<&mut [u8]> {
        if self.pages.is_empty() {
            let count = self.base.len().div_ceil(PAGE);
            self.pages.try_reserve_exact(count).ok()?;
            self.pages.resize_with(count, || None);
        }
        let slot = self.pages.get_mut(page)?;
        if slot.is_none() {
            let original = self.base.get(page * PAGE..).unwrap_or_default();
            let original = &original[..original.len().min(PAGE)];
            let mut copy = Vec::new();
            copy.try_reserve_exact(PAGE).ok()?;
            copy.extend_from_slice(original);
            copy.resize(PAGE, 0);
            *slot = Some(copy.into_boxed_slice());
        }
        slot.as_deref_mut()
    }
}

/// The pages that `bytes` from `at` on touch: page, offset and length in it, bytes before it.
fn pieces(at: u64, bytes: u64) -> impl Iterator<Item = (usize, usize, usize, u64)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let start = ((at + done) % PAGE as u64) as usize;
        let len = (bytes - done).min((PAGE - start) as u64);
        let piece = ((at + done) as usize / PAGE, start, len as usize, done);
        done += len;
        (len != 0).then_some(piece)
    })
}
