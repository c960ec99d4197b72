//! The memory through which samples and traces leave an emulated machine: a file in memory that QEMU shows to the machine as a
//! memory module, and that is mapped here, too.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    ptr,
    sync::atomic::AtomicU64,
};

use anyhow::{Context, Result};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};

/// Where the machine sees it: above all memory of machines, below a lab machine's counters.
const ADDRESS: u64 = 62 << 30;
/// Bytes for samples, and for the traces of each processor.
const SAMPLES: u64 = 4 << 20;
const TRACE: u64 = 8 << 20;

/// The memory.
pub struct Memory {
    file: OwnedFd,
    bytes: u64,
    words: &'static [AtomicU64],
}

impl Memory {
    /// For samples, and for traces of this number of processors.
    ///
    /// # Errors
    /// The machine below has less memory.
    pub fn new(traced: u32) -> Result<Memory> {
        let bytes = SAMPLES + TRACE * u64::from(traced);
        let memory = || -> rustix::io::Result<(OwnedFd, &'static [AtomicU64])> {
            let file = memfd_create("pal-records", MemfdFlags::CLOEXEC)?;
            ftruncate(&file, bytes)?;
            let size = bytes as usize;
            // SAFETY: a new mapping of a file that is never shortened, never undone; the other side accesses it by atomic words,
            // for which all values are valid.
            let words = unsafe {
                let at = mmap(
                    ptr::null_mut(),
                    size,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    &file,
                    0,
                )?;
                std::slice::from_raw_parts(at.cast::<AtomicU64>(), size / 8)
            };
            Ok((file, words))
        };
        let (file, words) = memory().context("cannot create the memory for samples and traces")?;
        Ok(Memory { file, bytes, words })
    }

    /// What is in it.
    pub fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    /// The file, which QEMU inherits under the same number.
    pub fn into_file(self) -> OwnedFd {
        self.file
    }

    /// QEMU's arguments.
    pub fn arguments(&self) -> [String; 4] {
        let Memory { file, bytes, .. } = self;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let backend = format!("memory-backend-file,id=pal-records,size={bytes},mem-path={path},share=on");
        let device = format!("pc-dimm,memdev=pal-records,addr={ADDRESS:#x}");
        ["-object".into(), backend, "-device".into(), device]
    }

    /// The word of the hypervisor's command line.
    pub fn word(&self) -> String {
        format!(" records={ADDRESS:#x},{}", self.bytes)
    }
}
