//! Operations on memory: page faults, protection changes, copy on write.

use std::{io, ptr};

use super::{
    check, must,
    process::{fork, wait},
};
use crate::sample::Samples;

pub const PAGE: usize = 4096;
pub const HUGE: usize = 2 << 20;
/// Pages in the rows that touch several.
const PAGES: usize = 256;

/// Pages of a private anonymous mapping.
pub struct Region {
    base: *mut u8,
    pages: usize,
    /// What is unmapped in the end: more than the region where it is aligned, nothing where it is part of another.
    mapped: (*mut u8, usize),
}

impl Region {
    /// Maps `pages` pages, without huge pages.
    pub fn small(pages: usize) -> io::Result<Self> {
        let mapped = map(pages * PAGE)?;
        let region = Self { base: mapped, pages, mapped: (mapped, pages * PAGE) };
        region.advise(libc::MADV_NOHUGEPAGE)?;
        Ok(region)
    }

    /// Maps this many bytes of huge pages, aligned so that those can back them.
    pub fn huge(bytes: usize) -> io::Result<Self> {
        let mapped = map(bytes + HUGE)?;
        let region = Self {
            base: mapped.map_addr(|at| at.next_multiple_of(HUGE)),
            pages: bytes / PAGE,
            mapped: (mapped, bytes + HUGE),
        };
        region.advise(libc::MADV_HUGEPAGE)?;
        Ok(region)
    }

    /// Where it begins.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// One page of the region, which must outlive it.
    fn page(&self, index: usize) -> Self {
        assert!(index < self.pages);
        Self { base: self.base.wrapping_add(index * PAGE), pages: 1, mapped: (ptr::null_mut(), 0) }
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is ours and holds nothing that Rust relies on.
        check(unsafe { libc::madvise(self.base.cast(), self.pages * PAGE, advice) }).map(drop)
    }

    fn protect(&self, protection: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is ours; nothing writes to it while it is read-only.
        check(unsafe { libc::mprotect(self.base.cast(), self.pages * PAGE, protection) }).map(drop)
    }

    /// Writes a byte to each page.
    pub fn write(&self) {
        for page in 0..self.pages {
            // SAFETY: inside the mapping, which is writable here.
            unsafe { self.base.add(page * PAGE).write_volatile(1) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped.1 > 0 {
            // SAFETY: mapped by `map`, and gone after this.
            unsafe { libc::munmap(self.mapped.0.cast(), self.mapped.1) };
        }
    }
}

fn map(size: usize) -> io::Result<*mut u8> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping where the kernel likes it.
    let at = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

/// Page faults of this thread so far that needed no disk: where tests run, other threads have faults of their own.
pub fn faults() -> io::Result<i64> {
    // SAFETY: all zeroes is a value of this C structure, and the call fills it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        check(libc::getrusage(libc::RUSAGE_THREAD, &mut usage))?;
        Ok(usage.ru_minflt)
    }
}

/// Checks that a row does what its name says: `expected` faults in each batch, or a few more for the samples' own.
fn expect_faults(before: i64, samples: &Samples, expected: f64) -> io::Result<()> {
    let operations = samples.summary().operations as f64;
    let each = (faults()? - before) as f64 / operations;
    if (expected..expected + 0.05).contains(&each) {
        return Ok(());
    }
    Err(io::Error::other(format!("{each:.3} page faults in each operation instead of {expected:.3}")))
}

/// Maps a page, writes to it, unmaps it.
pub fn mmap_touch_munmap(samples: &mut Samples) -> io::Result<()> {
    const BATCH: u64 = 20;
    samples.take(51, BATCH, || {
        for _ in 0..BATCH {
            let page = must(map(PAGE));
            // SAFETY: just mapped; unmapped once and not used afterwards.
            unsafe {
                page.write_volatile(1);
                must(check(libc::munmap(page.cast(), PAGE)));
            }
        }
    });
    Ok(())
}

/// The first write to each page of a new mapping.
pub fn first_touch(samples: &mut Samples) -> io::Result<()> {
    let before = faults()?;
    samples.take_prepared(
        31,
        PAGES as u64,
        || must(Region::small(PAGES)),
        |region| {
            region.write();
            region
        },
    );
    expect_faults(before, samples, 1.0)
}

/// The write to each page after the kernel took the pages back.
pub fn touch_again(samples: &mut Samples) -> io::Result<()> {
    let region = Region::small(PAGES)?;
    region.write();
    let before = faults()?;
    samples.take_prepared(31, PAGES as u64, || must(region.advise(libc::MADV_DONTNEED)), |()| region.write());
    expect_faults(before, samples, 1.0)
}

/// The first write to each 4 KiB of memory that the kernel backs with a huge page, at the first of them.
pub fn huge_touch(samples: &mut Samples) -> io::Result<()> {
    let before = faults()?;
    samples.take_prepared(
        15,
        (HUGE / PAGE) as u64,
        || must(Region::huge(HUGE)),
        |region| {
            region.write();
            region
        },
    );
    expect_faults(before, samples, 1.0 / (HUGE / PAGE) as f64)
}

/// The first page of a mapping made read-only and writable again, then written to. The kernel splits the mapping and
/// joins it again.
pub fn mprotect_one(samples: &mut Samples) -> io::Result<()> {
    const BATCH: u64 = 20;
    let region = Region::small(PAGES)?;
    mprotect(samples, &region.page(0), BATCH)
}

/// A mapping of 256 pages made read-only and writable again, then each page written to.
pub fn mprotect_many(samples: &mut Samples) -> io::Result<()> {
    mprotect(samples, &Region::small(PAGES)?, 1)
}

fn mprotect(samples: &mut Samples, pages: &Region, batch: u64) -> io::Result<()> {
    pages.write();
    samples.take(51, batch, || {
        for _ in 0..batch {
            must(pages.protect(libc::PROT_READ));
            must(pages.protect(libc::PROT_READ | libc::PROT_WRITE));
            pages.write();
        }
    });
    Ok(())
}

/// A child that writes to each of 256 pages that it shares with its parent, and exits.
pub fn fork_and_write(samples: &mut Samples) -> io::Result<()> {
    let region = Region::small(PAGES)?;
    region.write();
    samples.take(31, 1, || must(fork(|| region.write()).and_then(wait)));
    Ok(())
}
