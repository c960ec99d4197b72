//! Work that several threads do at the same time, each on a processor of its own. Time is that of the last one; an
//! operation is a piece of anyone's work, so that the figure falls where more threads get more done.

use std::{
    hint::black_box,
    io, ptr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use crate::{
    sample::Samples,
    threads::{Bell, pin, usage},
};

/// Takes samples of `THREADS` threads that each do `work`, which is `pieces` operations; it gets the thread's number.
fn together<const THREADS: usize>(
    samples: &mut Samples,
    count: usize,
    pieces: u64,
    prepare: impl FnMut(),
    work: impl Fn(usize) + Sync,
) -> io::Result<()> {
    pin(0)?;
    let (start, done) = (Bell::default(), Bell::default());
    let (left, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS)
            .map(|number| {
                let (start, done, left, stop, work) = (&start, &done, &left, &stop, &work);
                scope.spawn(move || {
                    let pinned = pin(number);
                    let mut seen = 0;
                    loop {
                        seen = start.wait(seen);
                        if stop.load(Ordering::Acquire) {
                            return pinned;
                        }
                        work(number);
                        if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                            done.ring();
                        }
                    }
                })
            })
            .collect();
        samples.take_prepared(count, pieces * THREADS as u64, prepare, |()| {
            let seen = done.number();
            left.store(THREADS - 1, Ordering::Release);
            start.ring();
            work(0);
            if THREADS > 1 {
                done.wait(seen);
            }
        });
        stop.store(true, Ordering::Release);
        start.ring();
        others.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}

/// A sum in registers. An operation is a thousand steps.
pub fn compute<const THREADS: usize>(samples: &mut Samples, count: usize) -> io::Result<()> {
    const THOUSANDS: u64 = 1500;
    fn sum() -> u64 {
        // Xorshift: each step waits for the one before.
        let mut number = black_box(0x9e37_79b9_7f4a_7c15_u64);
        for _ in 0..1000 * THOUSANDS {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
        }
        number
    }
    let (right, wrong) = (sum(), AtomicUsize::new(0));
    together::<THREADS>(
        samples,
        count,
        THOUSANDS,
        || (),
        |_| {
            if sum() != right {
                wrong.fetch_add(1, Ordering::Relaxed);
            }
        },
    )?;
    match wrong.into_inner() {
        0 => Ok(()),
        wrong => Err(io::Error::other(format!("{wrong} sums were wrong"))),
    }
}

const PAGE: usize = 4096;
/// Pages that each thread touches.
const PAGES: usize = 1024;

/// The first write to each of the pages of one mapping, all threads in the same address space. An operation is a fault.
pub fn faults<const THREADS: usize>(samples: &mut Samples, count: usize) -> io::Result<()> {
    let region = Region::new(THREADS * PAGES)?;
    let before = usage(libc::RUSAGE_SELF)?.ru_minflt;
    let empty = || region.advise(libc::MADV_DONTNEED).expect("the kernel takes pages back");
    together::<THREADS>(samples, count, PAGES as u64, empty, |thread| {
        region.write(thread * PAGES..(thread + 1) * PAGES);
    })?;
    let faults = usage(libc::RUSAGE_SELF)?.ru_minflt - before;
    let expected = samples.summary().operations as i64;
    // Besides the pages that were counted, the threads' own.
    if !(expected..expected + expected / 20 + 200).contains(&faults) {
        return Err(io::Error::other(format!("{faults} page faults instead of {expected}")));
    }
    Ok(())
}

/// A private anonymous mapping without huge pages.
struct Region {
    base: *mut u8,
    pages: usize,
}

// SAFETY: the mapping is of memory that Rust knows nothing of; threads write bytes of different pages.
unsafe impl Sync for Region {}

impl Region {
    fn new(pages: usize) -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes it.
        let at = unsafe { libc::mmap(ptr::null_mut(), pages * PAGE, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let region = Self { base: at.cast(), pages };
        region.advise(libc::MADV_NOHUGEPAGE)?;
        Ok(region)
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is ours and holds nothing that Rust relies on.
        let result = unsafe { libc::madvise(self.base.cast(), self.pages * PAGE, advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Writes a byte to each of these pages.
    fn write(&self, pages: std::ops::Range<usize>) {
        assert!(pages.end <= self.pages);
        for page in pages {
            // SAFETY: inside the mapping, which is writable.
            unsafe { self.base.add(page * PAGE).write_volatile(1) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and gone after this.
        unsafe { libc::munmap(self.base.cast(), self.pages * PAGE) };
    }
}
