//! Guest-physical memory as the hypervisor's own code reads and writes it.
//!
//! Loaders, the guest page walker, the instruction emulator and DMA of devices use [`GuestMemory`]; the VM
//! implements it over the P2m, tests over a plain vector (`VecMemory`).

use crate::arch::addr::Gpa;

/// Part of the range is not RAM (a hole, MMIO, or a write to ROM); nothing is said about what was done before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRam {
    /// The first address that is not accessible in this way.
    pub gpa: Gpa,
}

/// Byte access to guest RAM. Accesses may cross pages; aligned accesses of up to 8 bytes are single-copy atomic,
/// because the guest's other VCPUs may look at the same memory.
pub trait GuestMemory {
    /// Reads `buf.len()` bytes at `gpa`.
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam>;

    /// Reads the page-table entry of `bytes` (4 or 8) at `gpa`.
    #[inline(always)]
    fn read_entry(&self, gpa: Gpa, bytes: u64) -> Result<u64, NotRam> {
        match bytes {
            4 => self.read_u32(gpa).map(u64::from),
            _ => self.read_u64(gpa),
        }
    }

    /// Shows those of the 64 page-table entries of `BYTES` (4 or 8) from `gpa` on, all in one page, whose bit is set in
    /// `which`: number and value, each read at once.
    #[inline(always)]
    fn entries<const BYTES: u64>(
        &self,
        gpa: Gpa,
        which: u64,
        mut visit: impl FnMut(usize, u64),
    ) -> Result<(), NotRam> {
        let mut left = which;
        while left != 0 {
            let n = u64::from(left.trailing_zeros());
            left &= left - 1;
            visit(n as usize, self.read_entry(gpa.wrapping_add(n * BYTES), BYTES)?);
        }
        Ok(())
    }

    /// Writes `buf` at `gpa`.
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam>;

    /// Atomically replaces the naturally aligned 4- or 8-byte value at `gpa` (`size` is 4 or 8) if it equals
    /// `old`; returns whether it did. Used for accessed and dirty bits and for locked instructions.
    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam>;

    /// Reads a little-endian u32.
    fn read_u32(&self, gpa: Gpa) -> Result<u32, NotRam> {
        let mut b = [0; 4];
        self.read(gpa, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    /// Reads a little-endian u64.
    fn read_u64(&self, gpa: Gpa) -> Result<u64, NotRam> {
        let mut b = [0; 8];
        self.read(gpa, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// Fills `len` bytes with `byte`.
    fn fill(&self, gpa: Gpa, len: u64, byte: u8) -> Result<(), NotRam> {
        // On the stack: nothing is allocated for a guest's request.
        let chunk = [byte; 256];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(chunk.len() as u64);
            self.write(gpa.wrapping_add(done), &chunk[..n as usize])?;
            done += n;
        }
        Ok(())
    }
}

/// Guest memory for tests: RAM from 0 to the vector's length.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Default)]
pub struct VecMemory {
    bytes: core::cell::RefCell<alloc::vec::Vec<u8>>,
}

#[cfg(any(test, feature = "testing"))]
impl VecMemory {
    /// `len` bytes of zeroed RAM at address 0.
    pub fn new(len: usize) -> Self {
        VecMemory { bytes: core::cell::RefCell::new(alloc::vec![0; len]) }
    }

    fn range(&self, gpa: Gpa, len: usize) -> Result<core::ops::Range<usize>, NotRam> {
        let have = self.bytes.borrow().len();
        let start = usize::try_from(gpa.0).map_err(|_| NotRam { gpa })?;
        match start.checked_add(len) {
            Some(end) if end <= have => Ok(start..end),
            _ => Err(NotRam { gpa: Gpa(gpa.0.max(have as u64)) }),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl GuestMemory for VecMemory {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        let range = self.range(gpa, buf.len())?;
        buf.copy_from_slice(&self.bytes.borrow()[range]);
        Ok(())
    }

    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        let range = self.range(gpa, buf.len())?;
        self.bytes.borrow_mut()[range].copy_from_slice(buf);
        Ok(())
    }

    fn compare_exchange(&self, gpa: Gpa, size: usize, old: u64, new: u64) -> Result<bool, NotRam> {
        let mut now = [0; 8];
        self.read(gpa, &mut now[..size])?;
        if now[..size] != old.to_le_bytes()[..size] {
            return Ok(false);
        }
        self.write(gpa, &new.to_le_bytes()[..size])?;
        Ok(true)
    }
}
