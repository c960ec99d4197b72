//! What the workloads ask of the kernel: memory and processes.

use std::{fs::File, io, os::fd::AsRawFd, ptr, slice};

use libc::{c_int, pid_t};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Private anonymous memory, in pages of 4 KiB or [huge ones](Pages).
pub struct Area {
    /// What is mapped.
    mapped: (*mut u8, usize),
    /// The first byte of the area, in it.
    base: *mut u8,
    bytes: usize,
}

/// Which pages areas are to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// 4 KiB, whatever the kernel does by itself.
    Small,
    /// 2 MiB, as far as areas are as large.
    Huge,
}

impl Pages {
    /// What the word `pages` of the kernel's command line says, which the kernel hands to its first process in the environment:
    /// `2M`. Everything else is small pages.
    fn asked_for() -> Pages {
        if std::env::var_os("pages").is_some_and(|pages| pages == "2M") { Pages::Huge } else { Pages::Small }
    }
}

impl Area {
    /// Maps memory; nothing of it is there yet.
    pub fn new(bytes: usize) -> io::Result<Area> {
        Area::with(bytes, Pages::asked_for())
    }

    fn with(bytes: usize, pages: Pages) -> io::Result<Area> {
        // Kernels before 6.7 put mappings anywhere, and a huge page begins at a multiple of its size. What is left over at either
        // end is never touched.
        let is_huge = pages == Pages::Huge && bytes >= HUGE;
        let len = if is_huge { bytes + HUGE - PAGE } else { bytes };
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping where the kernel likes it.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at: *mut u8 = at.cast();
        let skipped = if is_huge { at.align_offset(HUGE) } else { 0 };
        let area = Area { mapped: (at, len), base: at.wrapping_add(skipped), bytes };
        // Huge pages that were not asked for would take the misses away that the workload is about.
        let advice = if is_huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: the range is ours.
        check(unsafe { libc::madvise(area.base.cast(), bytes, advice) })?;
        Ok(area)
    }

    /// The memory as 64-bit words.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the mapping has this size and is aligned to pages; the kernel fills it with zeroes, a value of any
        // integer; it is borrowed as long as the slice.
        unsafe { slice::from_raw_parts_mut(self.base.cast(), self.bytes / size_of::<u64>()) }
    }

    /// Allows writing, or forbids it.
    pub fn protect(&mut self, writable: bool) -> io::Result<()> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the range is ours; the caller has no slice of it, and writes to it only while that is allowed.
        check(unsafe { libc::mprotect(self.base.cast(), self.bytes, protection) }).map(drop)
    }

    /// Writes to all of it, and again: what the kernel and the hypervisor do for new pages is done afterwards.
    pub fn settle(&mut self) {
        // In the place of the first write: the kernel makes the pages in the same order, without a page fault for each.
        // SAFETY: the range is ours, and what is in it stays.
        let populated = unsafe { libc::madvise(self.base.cast(), self.bytes, libc::MADV_POPULATE_WRITE) };
        if populated != 0 {
            // Kernels before 5.14 do not know it.
            self.touch(0);
        }
        self.touch(0);
    }

    /// Adds this to the first word of each page.
    pub fn touch(&mut self, value: u64) {
        for word in self.words().iter_mut().step_by(PAGE / size_of::<u64>()) {
            // SAFETY: a word of ours. Volatile, because the compiler would leave out what changes nothing.
            unsafe { ptr::from_mut(word).write_volatile(word.wrapping_add(value)) };
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let (at, len) = self.mapped;
        // SAFETY: mapped by `with`, and gone after this.
        unsafe { libc::munmap(at.cast(), len) };
    }
}

/// Turns a system call's -1 into an error.
pub fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Loads the kernel module in a file. Only the first process of a guest may.
pub fn load_module(file: &File) -> io::Result<()> {
    // SAFETY: the kernel reads the file and an empty list of parameters, a C string.
    match unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Forks; the child runs `body` and exits with what it returns.
pub fn fork(body: impl FnOnce() -> u8) -> io::Result<pid_t> {
    // SAFETY: this program has one thread, so the child may do whatever its parent may.
    match unsafe { libc::fork() } {
        0 => {
            let status = body();
            // SAFETY: ends this process; nothing runs afterwards.
            unsafe { libc::_exit(status.into()) }
        }
        result => check(result),
    }
}

/// Waits for a child to exit; its status.
pub fn wait(child: pid_t) -> io::Result<u8> {
    let mut status: c_int = 0;
    // SAFETY: `status` is a valid place for the result.
    check(unsafe { libc::waitpid(child, &mut status, 0) })?;
    if libc::WIFEXITED(status) {
        return Ok(libc::WEXITSTATUS(status) as u8);
    }
    Err(io::Error::other(format!("a child ended with wait status {status:#x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_for_areas_that_have_room_for_one() {
        for (bytes, pages, is_huge) in [
            (3 * HUGE, Pages::Huge, true),
            (HUGE, Pages::Huge, true),
            (HUGE - PAGE, Pages::Huge, false),
            (3 * HUGE, Pages::Small, false),
        ] {
            let mut area = Area::with(bytes, pages).unwrap();
            let room = area.mapped.1 - bytes;
            assert_eq!(room, if is_huge { HUGE - PAGE } else { 0 }, "{bytes} {pages:?}");
            assert!(!is_huge || area.base.addr().is_multiple_of(HUGE));
            let skipped = area.base.addr() - area.mapped.0.addr();
            assert!(skipped <= room);
            area.settle();
            area.touch(7);
            assert!(area.words().iter().step_by(PAGE / size_of::<u64>()).all(|word| *word == 7));
            assert_eq!(size_of_val(area.words()), bytes);
        }
    }
}
