//! What a program wants of the machine's fast memory. An open file of `/dev/palimpsest` keeps it.
#![allow(unsafe_code, reason = "a system call")]

use std::{
    fs::{File, OpenOptions},
    io,
};

use abi::kit;

use crate::device::ioctl;

/// A wish for fast memory, which ends with it.
///
/// ```no_run
/// use palimpsest_region::FastMemory;
///
/// let wish = FastMemory::want(FastMemory::ALL)?;
/// // Work that is to be fast.
/// wish.change(500)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct FastMemory(File);

impl FastMemory {
    /// All hot pages.
    pub const ALL: u32 = abi::hypercall::TIER_TARGET_MAX as u32;

    /// Asks for `per_mille` of the guest's hot pages in fast memory. Of several programs the one that wants most decides.
    ///
    /// # Errors
    /// There is no guest kit (`ENOENT`), or not for this user (`EACCES`); the guest uses no fast memory (`ENODEV`); the machine divides
    /// it by another policy than `estate-qos` (`EOPNOTSUPP`); it is more than [`FastMemory::ALL`] (`EINVAL`).
    pub fn want(per_mille: u32) -> io::Result<FastMemory> {
        let wish = FastMemory(OpenOptions::new().read(true).write(true).open(kit::PATH)?);
        wish.change(per_mille)?;
        Ok(wish)
    }

    /// Asks for another part; 0: for none in particular.
    ///
    /// # Errors
    /// As for [`FastMemory::want`]; nothing has changed.
    pub fn change(&self, per_mille: u32) -> io::Result<()> {
        let mut target = kit::Target { per_mille, flags: 0 };
        // SAFETY: TARGET has this structure.
        unsafe { ioctl(&self.0, kit::TARGET, &mut target) }
    }
}
