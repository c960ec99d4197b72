//! Files in memory: the machine's RAM, and the counters.

use std::{
    fs::OpenOptions,
    os::fd::AsRawFd,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use labsim::model::memory::{Memory, Split};

/// A file that is mapped for as long as the process lives, shared with other processes that map it.
#[derive(Clone, Copy)]
pub struct Mapping {
    /// Where it is.
    pub base: *mut u8,
    /// Its bytes.
    pub len: u64,
}

// SAFETY: the mapping is never undone, and what is in it is read and written by atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a whole file.
    pub fn new(path: &str) -> Result<Mapping, String> {
        let fail = |error: std::io::Error| format!("{path}: {error}");
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        let size = usize::try_from(len).map_err(|_| format!("{path}: too large"))?;
        // SAFETY: a new mapping anywhere; the file may be closed afterwards.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(fail(std::io::Error::last_os_error()));
        }
        Ok(Mapping { base: base.cast(), len })
    }
}

/// The machine's RAM.
#[derive(Clone, Copy)]
pub struct Ram {
    mapping: Mapping,
    /// Where it is in the machine.
    pub split: Split,
}

impl Ram {
    /// The memory of QEMU's q35 in this file.
    pub fn new(path: &str) -> Result<Ram, String> {
        let mapping = Mapping::new(path)?;
        Ok(Ram { mapping, split: Split::q35(mapping.len) })
    }

    /// The physical address of an offset in the file.
    pub fn physical(&self, offset: u64) -> u64 {
        if offset < self.split.below { offset } else { offset - self.split.below + (1 << 32) }
    }
}

impl Memory for Ram {
    #[inline]
    fn read_u64(&self, pa: u64) -> Option<u64> {
        let offset = self.split.offset(pa & !7, 8)?;
        // SAFETY: within the mapping, by the line above, and aligned, as mappings begin at pages.
        Some(unsafe { (*self.mapping.base.add(offset as usize).cast::<AtomicU64>()).load(Relaxed) })
    }
}

/// Where QEMU itself has mapped a file: the address in this process that is not `mine`.
pub fn other_mapping(path: &str, mine: u64) -> Option<std::ops::Range<u64>> {
    // A file without a name is given as an entry of /proc/self/fd, and that link is what the list calls it.
    let path = std::fs::read_link(path).or_else(|_| std::fs::canonicalize(path)).ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().filter(|line| line.ends_with(&*path.to_string_lossy())).find_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let range = number(from)?..number(to)?;
        (range.start != mine).then_some(range)
    })
}

impl Ram {
    /// Where this process has it for the model.
    pub fn base(&self) -> u64 {
        self.mapping.base as u64
    }
}
