//! A RAM disk: over a file that is never changed, with written pages kept beside it (copy on write); or in machine memory of
//! its own ([`Medium`]), written in place.
//!
//! The pages are taken ([`Pages`]) when they are first written, as many as the disk has at most, and given back when the VM ends; a
//! reset of the guest keeps them, as a disk does. A guest decides how many that are: they must not come from what the hypervisor
//! cannot do without.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Bytes that are copied at the first write to any of them.
const PAGE: usize = 4096;
static ZEROES: [u8; PAGE] = [0; PAGE];

/// A page of a disk.
pub type Page = [u8; PAGE];

/// Where pages come from.
pub trait Pages: fmt::Debug + Sync {
    /// A page that is the caller's alone, with anything in it; `None`: disks get no more.
    fn take(&self) -> Option<&'static mut Page>;

    /// Takes back a page that [`Pages::take`] gave, and wipes it: its contents are the guest's.
    fn give_back(&self, page: &'static mut Page);
}

/// Memory of the machine that holds a disk's contents. An emulator may have a file behind it, so that what is written lasts.
pub trait Medium: fmt::Debug + Send + Sync {
    /// The contents.
    fn bytes(&self) -> &[u8];

    /// The contents, to be changed.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// A disk.
#[derive(Debug)]
pub struct RamDisk {
    contents: Contents,
    read_only: bool,
}

#[derive(Debug)]
enum Contents {
    /// A file, which stays as it is.
    File {
        base: &'static [u8],
        /// Room for all pages, and those that have been written; none if it cannot be written.
        pages: Vec<Option<&'static mut Page>>,
        memory: &'static dyn Pages,
    },
    /// Memory that changes.
    InPlace(Box<dyn Medium>),
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
    /// The disk with these contents, filled up with zeroes to a whole sector. What is written goes to pages of `memory`.
    pub fn new(base: &'static [u8], read_only: bool, memory: &'static dyn Pages) -> RamDisk {
        let mut pages = Vec::new();
        let count = if read_only { 0 } else { base.len().div_ceil(PAGE) };
        // Now, and not when the guest likes. Without room for the list no write succeeds.
        if pages.try_reserve_exact(count).is_ok() {
            pages.resize_with(count, || None);
        }
        RamDisk { contents: Contents::File { base, pages, memory }, read_only }
    }

    /// The disk that is in `medium`, of whole sectors.
    pub fn in_place(medium: Box<dyn Medium>, read_only: bool) -> RamDisk {
        RamDisk { contents: Contents::InPlace(medium), read_only }
    }

    /// Its size. The last sector of a medium that ends within one does not count.
    pub fn sectors(&self) -> u64 {
        match &self.contents {
            Contents::File { base, .. } => (base.len() as u64).div_ceil(SECTOR),
            Contents::InPlace(medium) => medium.bytes().len() as u64 / SECTOR,
        }
    }

    /// Whether it cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Pages of 4 KiB that have been taken for what was written.
    #[cfg(test)]
    pub(super) fn pages_written(&self) -> usize {
        match &self.contents {
            Contents::File { pages, .. } => pages.iter().flatten().count(),
            Contents::InPlace(_) => 0,
        }
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
        let (base, pages) = match &self.contents {
            Contents::File { base, pages, .. } => (base, pages),
            Contents::InPlace(medium) => {
                let piece = medium.bytes().get(at as usize..(at + bytes) as usize).ok_or(DiskError::End)?;
                return sink(0, piece).map_err(DiskError::Other);
            }
        };
        for (page, start, len, done) in pieces(at, bytes) {
            let written = pages.get(page).and_then(Option::as_ref);
            let original = || base.get(page * PAGE..).unwrap_or_default();
            let piece = written.map_or_else(original, |page| page.as_slice());
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
        if let Contents::InPlace(medium) = &mut self.contents {
            let place = medium.bytes_mut().get_mut(at as usize..(at + bytes) as usize);
            return source(0, place.ok_or(DiskError::End)?).map_err(DiskError::Other);
        }
        for (page, start, len, done) in pieces(at, bytes) {
            let page = self.own(page).ok_or(DiskError::Memory)?;
            source(done, &mut page[start..start + len]).map_err(DiskError::Other)?;
        }
        Ok(())
    }

    /// The page's own copy, made now if there is none.
    fn own(&mut self, page: usize) -> Option<&mut Page> {
        let Contents::File { base, pages, memory } = &mut self.contents else { return None };
        let slot = pages.get_mut(page)?;
        if slot.is_none() {
            let original = base.get(page * PAGE..).unwrap_or_default();
            let original = &original[..original.len().min(PAGE)];
            let copy = memory.take()?;
            let (from_file, rest) = copy.split_at_mut(original.len());
            from_file.copy_from_slice(original);
            rest.fill(0);
            *slot = Some(copy);
        }
        slot.as_deref_mut()
    }
}

impl Drop for RamDisk {
    fn drop(&mut self) {
        if let Contents::File { pages, memory, .. } = &mut self.contents {
            pages.drain(..).flatten().for_each(|page| memory.give_back(page));
        }
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

/// Pages of the program's own memory, up to a limit: for tests.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
pub struct FewPages {
    /// How many may still be taken.
    left: core::sync::atomic::AtomicUsize,
    /// Those that came back.
    free: spin::Mutex<Vec<&'static mut Page>>,
}

#[cfg(any(test, feature = "testing"))]
impl FewPages {
    /// A store of `most` pages.
    pub const fn new(most: usize) -> FewPages {
        FewPages { left: core::sync::atomic::AtomicUsize::new(most), free: spin::Mutex::new(Vec::new()) }
    }

    /// How many may still be taken.
    pub fn left(&self) -> usize {
        self.left.load(core::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(any(test, feature = "testing"))]
impl Pages for FewPages {
    fn take(&self) -> Option<&'static mut Page> {
        use core::sync::atomic::Ordering::Relaxed;
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).ok()?;
        let page = self.free.lock().pop();
        Some(page.unwrap_or_else(|| alloc::boxed::Box::leak(alloc::boxed::Box::new([0xa5; PAGE]))))
    }

    fn give_back(&self, page: &'static mut Page) {
        page.fill(0xa5);
        self.free.lock().push(page);
        self.left.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    }
}
