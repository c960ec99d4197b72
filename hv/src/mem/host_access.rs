//! Bytes of host memory by physical address: the identity mapping on bare metal, a vector in tests.

use crate::arch::addr::Hpa;

/// Bytes of host memory by physical address.
///
/// The implementation is made (by unsafe code) for the frames that a P2m can lead to, and only
/// [`VmMemory`](crate::paging::vm_memory::VmMemory)
/// calls it. An access of 1, 2, 4 or 8 bytes that is aligned to its size is done at once (single-copy
/// atomic): guests run on other processors and see the same memory.
pub trait HostAccess {
    /// Reads `buf.len()` bytes.
    fn read(&self, at: Hpa, buf: &mut [u8]);

    /// Reads the 8 bytes at `at`, a multiple of 8, at once.
    fn load(&self, at: Hpa) -> u64;

    /// Writes `buf`.
    fn write(&self, at: Hpa, buf: &[u8]);

    /// Writes `len` times `byte`.
    fn fill(&self, at: Hpa, len: u64, byte: u8);

    /// Replaces the aligned value of `size` (4 or 8) bytes if it equals `old`, atomically; returns whether it
    /// did.
    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool;
}

/// Host memory for tests: `len` bytes from `base`. Accesses outside panic. Clones are the same memory.
#[cfg(any(test, feature = "testing"))]
#[derive(Clone, Debug)]
pub struct VecHost {
    base: Hpa,
    bytes: alloc::sync::Arc<spin::Mutex<alloc::vec::Vec<u8>>>,
}

#[cfg(any(test, feature = "testing"))]
impl VecHost {
    /// `len` zeroed bytes from `base`.
    pub fn new(base: Hpa, len: usize) -> VecHost {
        VecHost { base, bytes: alloc::sync::Arc::new(spin::Mutex::new(alloc::vec![0; len])) }
    }

    fn range(&self, at: Hpa, len: usize) -> core::ops::Range<usize> {
        let start = (at.0 - self.base.0) as usize;
        start..start + len
    }
}

#[cfg(any(test, feature = "testing"))]
impl HostAccess for VecHost {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        buf.copy_from_slice(&self.bytes.lock()[self.range(at, buf.len())]);
    }

    fn load(&self, at: Hpa) -> u64 {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        self.bytes.lock()[self.range(at, buf.len())].copy_from_slice(buf);
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.bytes.lock()[self.range(at, len as usize)].fill(byte);
    }

    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        let same = self.bytes.lock()[self.range(at, size)] == old.to_le_bytes()[..size];
        if same {
            self.write(at, &new.to_le_bytes()[..size]);
        }
        same
    }
}
