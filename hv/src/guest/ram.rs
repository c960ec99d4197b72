//! The memory of a VM: [`GuestMemory`] over the [`P2m`].
//!
//! Loaders, the guest page walker, the emulator and devices reach guest memory through [`VmMemory`]; the bytes
//! themselves come from [`HostAccess`], the identity mapping on bare metal, a vector in tests.

use super::mem::{GuestMemory, NotRam};
use crate::paging::addr::{Gpa, Hpa};
use crate::paging::p2m::P2m;
use crate::paging::table::TableMemory;

/// Bytes of host memory by physical address.
///
/// The implementation is made (by unsafe code) for the frames that a P2m can lead to, and only [`VmMemory`] calls it.
/// An access of 1, 2, 4 or 8 bytes that is aligned to its size is done at once (single-copy atomic): guests run on other
/// processors and see the same memory.
pub trait HostAccess {
    /// Reads `buf.len()` bytes.
    fn read(&self, at: Hpa, buf: &mut [u8]);

    /// Writes `buf`.
    fn write(&self, at: Hpa, buf: &[u8]);

    /// Writes `len` times `byte`.
    fn fill(&self, at: Hpa, len: u64, byte: u8);

    /// Replaces the aligned value of `size` (4 or 8) bytes if it equals `old`, atomically; returns whether it did.
    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool;
}

/// The memory of one VM as the guest sees it, without devices: ROM is not written, MMIO and holes are not memory.
#[derive(Debug)]
pub struct VmMemory<'a, M: TableMemory, H: HostAccess> {
    p2m: &'a P2m<M>,
    host: &'a H,
}

impl<'a, M: TableMemory, H: HostAccess> VmMemory<'a, M, H> {
    /// The memory that `p2m` describes.
    pub fn new(p2m: &'a P2m<M>, host: &'a H) -> Self {
        VmMemory { p2m, host }
    }

    /// Calls `f` with each contiguous run of host memory behind `len` bytes at `gpa`: its address, the offset from
    /// `gpa`, and its length. Stops at the first address that is not memory of the wanted kind.
    fn runs(
        &self,
        gpa: Gpa,
        len: u64,
        write: bool,
        mut f: impl FnMut(Hpa, usize, usize),
    ) -> Result<(), NotRam> {
        let mut done = 0;
        while done < len {
            let at = gpa.checked_add(done).ok_or(NotRam { gpa: Gpa(u64::MAX) })?;
            let (entry, run) = self.p2m.run(at, len - done);
            let hpa = if write { entry.writable() } else { entry.readable() };
            f(hpa.ok_or(NotRam { gpa: at })?, done as usize, run as usize);
            done += run;
        }
        Ok(())
    }

    /// Writes to memory that the guest may or may not write: for loaders that fill ROM.
    pub fn write_rom(&self, gpa: Gpa, bytes: &[u8]) -> Result<(), NotRam> {
        self.runs(gpa, bytes.len() as u64, false, |hpa, at, len| {
            self.host.write(hpa, &bytes[at..at + len]);
        })
    }

    /// Whether all of `len` bytes at `gpa` can be read, or written, as memory.
    pub fn check(&self, gpa: Gpa, len: u64, write: bool) -> Result<(), NotRam> {
        self.runs(gpa, len, write, |_, _, _| ())
    }
}

impl<M: TableMemory, H: HostAccess> GuestMemory for VmMemory<'_, M, H> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.runs(gpa, buf.len() as u64, false, |hpa, at, len| self.host.read(hpa, &mut buf[at..at + len]))
    }

    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.runs(gpa, buf.len() as u64, true, |hpa, at, len| self.host.write(hpa, &buf[at..at + len]))
    }

    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        if !(size == 4 || size == 8) || !gpa.is_aligned(size as u64) {
            return Err(NotRam { gpa });
        }
        let hpa = self.p2m.translate(gpa).writable().ok_or(NotRam { gpa })?;
        Ok(self.host.compare_exchange(hpa, size, old, new))
    }

    fn fill(&self, gpa: Gpa, len: u64, byte: u8) -> Result<(), NotRam> {
        self.runs(gpa, len, true, |hpa, _, len| self.host.fill(hpa, len as u64, byte))
    }
}
