//! Where evicted pages are that the compressed store has no room for: on a disk, uncompressed, in runs of sixteen.
//!
//! The pager writes pages in runs, of neighbours in guest memory where it can, and reads a whole run when one of its pages is
//! accessed: what it keeps of the last run is the readahead. A page that comes back leaves its place free; places of runs that
//! are partly used are filled when there is no other.
//!
//! What must hold: a place is in use exactly if a page is there; `cached` is what the disk has of that run; a page leaves the store
//! only when it is on the disk, so that a write that fails loses nothing.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use crate::arch::addr::PAGE_SIZE;
use crate::mem::pieces::{OutOfMemory, Pieces};

const PAGE: usize = PAGE_SIZE as usize;
/// Pages of a run: 64 KiB.
pub const RUN: u32 = 16;
/// Bytes of one.
pub const RUN_BYTES: usize = RUN as usize * PAGE;

/// A disk has not done what it was asked to, or not in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskError;

/// A part of a disk that is one pager's.
pub trait PageDisk: fmt::Debug + Send {
    /// Runs that it has.
    fn runs(&self) -> u32;

    /// Reads all pages of a run into `out`, of [`RUN_BYTES`].
    ///
    /// # Errors
    /// What `out` holds is unspecified.
    fn read(&mut self, run: u32, out: &mut [u8]) -> Result<(), DiskError>;

    /// Writes whole pages to neighbouring places of one run, from the place with this number on.
    ///
    /// # Errors
    /// What those places hold is unspecified; others have not changed.
    fn write(&mut self, place: u32, pages: &[u8]) -> Result<(), DiskError>;
}

/// What a pager knows of its disk.
#[derive(Debug)]
pub(super) struct Disk {
    device: Box<dyn PageDisk>,
    /// Places in use, by runs: a bit for each.
    used: Pieces<u16>,
    /// The run to look at next for free places.
    next: u32,
    /// Pages that are there.
    pub(super) pages: u64,
    /// Which run is in `buffer`.
    cached: Option<u32>,
    /// The last run that was read, or what is about to be written.
    buffer: Vec<u8>,
    /// A request has failed: none follows. Each could take seconds, and the VM is about to end.
    has_failed: bool,
    /// Requests so far.
    pub(super) reads: u64,
    pub(super) writes: u64,
}

impl Disk {
    /// Bytes of the heap that each takes, with its table of pieces up to 256 GiB.
    pub(super) const HEAP_BYTES: u64 = RUN_BYTES as u64 + (16 << 10);

    /// # Errors
    /// No memory for what is known of its places, or for the buffer.
    pub(super) fn new(device: Box<dyn PageDisk>) -> Result<Disk, OutOfMemory> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(RUN_BYTES).map_err(|_| OutOfMemory)?;
        buffer.resize(RUN_BYTES, 0);
        let used = Pieces::new(device.runs() as usize, || 0)?;
        Ok(Disk {
            device,
            used,
            next: 0,
            pages: 0,
            cached: None,
            buffer,
            has_failed: false,
            reads: 0,
            writes: 0,
        })
    }

    /// Neighbouring free places, the first and how many; `None`: the disk is full, or has failed. Those of a run that is empty, if there is one.
    pub(super) fn room(&mut self) -> Option<(u32, u32)> {
        if self.has_failed {
            return None;
        }
        let runs = self.used.len() as u32;
        let all = || (self.next..runs).chain(0..self.next.min(runs));
        let empty = all().find(|run| self.used[*run as usize] == 0);
        let run = empty.or_else(|| all().find(|run| self.used[*run as usize] != u16::MAX))?;
        self.next = run;
        let used = self.used[run as usize];
        let first = used.trailing_ones();
        let free = (used >> first).trailing_zeros().min(RUN - first);
        Some((run * RUN + first, free))
    }

    /// The place in the buffer for the `n`th page of the next [`write`](Self::write).
    pub(super) fn stage(&mut self, n: u32) -> &mut [u8] {
        self.cached = None;
        &mut self.buffer[n as usize * PAGE..][..PAGE]
    }

    /// Writes the first `count` staged pages to places from `first` on, as [`room`](Self::room) has said.
    ///
    /// # Errors
    /// The disk's: the places stay free.
    pub(super) fn write(&mut self, first: u32, count: u32) -> Result<(), DiskError> {
        self.writes += 1;
        let done = self.device.write(first, &self.buffer[..count as usize * PAGE]);
        self.has_failed |= done.is_err();
        done?;
        self.used[(first / RUN) as usize] |= mask(first % RUN, count);
        self.pages += u64::from(count);
        Ok(())
    }

    /// Whether a page is at a place.
    pub(super) fn has(&self, place: u32) -> bool {
        let run = (place / RUN) as usize;
        run < self.used.len() && self.used[run] & mask(place % RUN, 1) != 0
    }

    /// The page at a place.
    ///
    /// # Errors
    /// The disk's, now or before, or none is there.
    pub(super) fn read(&mut self, place: u32) -> Result<&[u8], DiskError> {
        let (run, at) = (place / RUN, place % RUN);
        if !self.has(place) || self.has_failed {
            return Err(DiskError);
        }
        if self.cached != Some(run) {
            self.cached = None;
            self.reads += 1;
            let done = self.device.read(run, &mut self.buffer);
            self.has_failed |= done.is_err();
            done?;
            self.cached = Some(run);
        }
        Ok(&self.buffer[at as usize * PAGE..][..PAGE])
    }

    /// The page at a place is not wanted there any more.
    pub(super) fn remove(&mut self, place: u32) {
        self.used[(place / RUN) as usize] &= !mask(place % RUN, 1);
        self.pages -= 1;
    }

    /// Forgets all pages, and that it has failed.
    pub(super) fn clear(&mut self) {
        self.used.for_each_mut(|used| *used = 0);
        (self.pages, self.next, self.cached, self.has_failed) = (0, 0, None, false);
    }

    /// Checks what must hold.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self) {
        let used: u32 = (0..self.used.len()).map(|run| self.used[run].count_ones()).sum();
        assert_eq!(u64::from(used), self.pages);
    }
}

/// The bits of `count` places, at most [`RUN`], from `first` on.
fn mask(first: u32, count: u32) -> u16 {
    (((1u32 << count) - 1) << first) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::pager::fuzz::TestDisk;

    fn stage(disk: &mut Disk, n: u32, byte: u8) {
        disk.stage(n).fill(byte);
    }

    #[test]
    fn a_run_is_read_once_for_all_its_pages() {
        let mut disk = Disk::new(Box::new(TestDisk::new(3))).unwrap();
        assert_eq!(disk.room(), Some((0, 16)));
        (0..16).for_each(|n| stage(&mut disk, n, n as u8 + 1));
        assert_eq!(disk.write(0, 16), Ok(()));
        assert_eq!(disk.room(), Some((16, 16)));
        for place in 0..16 {
            assert_eq!(disk.read(place).unwrap()[7], place as u8 + 1);
            disk.remove(place);
        }
        assert_eq!((disk.reads, disk.writes, disk.pages), (1, 1, 0));
        assert_eq!(disk.read(3), Err(DiskError), "no page is there");
        disk.check();
    }

    #[test]
    fn places_between_others_are_used_when_no_run_is_empty() {
        let mut disk = Disk::new(Box::new(TestDisk::new(2))).unwrap();
        for first in [0, 16] {
            (0..16).for_each(|n| stage(&mut disk, n, 9));
            assert_eq!(disk.write(first, 16), Ok(()));
        }
        assert_eq!(disk.room(), None);
        [18, 19, 21].iter().for_each(|place| disk.remove(*place));
        assert_eq!(disk.read(17).unwrap()[0], 9);
        assert_eq!(disk.room(), Some((18, 2)));
        stage(&mut disk, 0, 5);
        assert_eq!(disk.write(18, 1), Ok(()));
        // The run was in the buffer before the write, and is read again.
        assert_eq!((disk.read(18).unwrap()[0], disk.read(17).unwrap()[0]), (5, 9));
        assert_eq!(disk.room(), Some((19, 1)));
        disk.check();
        disk.clear();
        assert_eq!((disk.room(), disk.pages), (Some((0, 16)), 0));
    }

    #[test]
    fn a_disk_that_has_failed_is_not_asked_again_until_it_is_cleared() {
        let mut disk = Disk::new(Box::new(TestDisk::failing_after(2, 1))).unwrap();
        (0..2).for_each(|n| stage(&mut disk, n, 1));
        assert_eq!(disk.write(0, 2), Ok(()));
        assert_eq!(disk.read(0), Err(DiskError));
        assert_eq!(disk.read(1), Err(DiskError));
        assert_eq!((disk.room(), disk.reads), (None, 1));
        disk.check();
        disk.clear();
        assert_eq!(disk.room(), Some((0, 16)));
    }
}
