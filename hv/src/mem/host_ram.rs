//! The bytes of guest memory on the running host.
//!
//! Unsafe because a host-physical address is a pointer here. Guests write to the same memory at any time, so that
//! every access is volatile or one block of assembly: the compiler may assume nothing about the values.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arch::addr::Hpa;
use crate::hw::bytes;
use crate::mem::host_access::HostAccess;

/// Access to all RAM of the host, for the frames that a P2m leads to.
#[derive(Clone, Debug)]
pub struct HostRam(());

impl HostRam {
    /// Access to all RAM.
    ///
    /// # Safety
    /// It is used only for addresses of mapped RAM that was given to a guest, or that its user has taken and nothing refers to yet.
    pub const unsafe fn new() -> HostRam {
        HostRam(())
    }

    /// Copies `len` bytes from one place to another; they do not overlap.
    pub fn copy(&self, from: Hpa, to: Hpa, len: u64) {
        // SAFETY: RAM by the promise given to `new`.
        unsafe { bytes::copy(to.0 as *mut u8, from.0 as *const u8, len as usize) }
    }

    /// Copies neighbouring pages until `stop` is not 0 after one of them; how many.
    pub fn copy_pages(&self, from: Hpa, to: Hpa, pages: u64, stop: &AtomicU32) -> u64 {
        // SAFETY: RAM by the promise given to `new`.
        unsafe { bytes::copy_pages(to.0 as *mut u8, from.0 as *const u8, pages, stop) }
    }
}

macro_rules! at_once {
    ($type:ty, $at:expr) => {
        $at.is_aligned(size_of::<$type>() as u64)
    };
}

impl HostAccess for HostRam {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        // SAFETY: RAM by the promise given to `new`; the widths match the buffer's length.
        unsafe {
            match buf.len() {
                // In one access: other VCPUs write page tables and rings meanwhile, and a torn value was never there.
                8 if at_once!(u64, at) => {
                    buf.copy_from_slice(&(at.0 as *const u64).read_volatile().to_le_bytes());
                }
                4 if at_once!(u32, at) => {
                    buf.copy_from_slice(&(at.0 as *const u32).read_volatile().to_le_bytes());
                }
                2 if at_once!(u16, at) => {
                    buf.copy_from_slice(&(at.0 as *const u16).read_volatile().to_le_bytes());
                }
                len => bytes::copy(buf.as_mut_ptr(), at.0 as *const u8, len),
            }
        }
    }

    #[inline]
    fn load(&self, at: Hpa) -> u64 {
        assert!(at.is_aligned(8));
        // SAFETY: RAM by the promise given to `new`, aligned as just checked.
        unsafe { (at.0 as *const u64).read_volatile() }
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        // SAFETY: RAM by the promise given to `new`.
        unsafe {
            match *buf {
                [a, b, c, d, e, f, g, h] if at_once!(u64, at) => {
                    (at.0 as *mut u64).write_volatile(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
                }
                [a, b, c, d] if at_once!(u32, at) => {
                    (at.0 as *mut u32).write_volatile(u32::from_le_bytes([a, b, c, d]));
                }
                [a, b] if at_once!(u16, at) => (at.0 as *mut u16).write_volatile(u16::from_le_bytes([a, b])),
                _ => bytes::copy(at.0 as *mut u8, buf.as_ptr(), buf.len()),
            }
        }
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        let (to, len) = (at.0 as *mut u8, len as usize);
        // SAFETY: RAM by the promise given to `new`. As much as that is a guest's whole memory: it does not run.
        unsafe {
            if byte == 0 && len >= bytes::LARGE { bytes::clear(to, len) } else { bytes::fill(to, byte, len) }
        }
    }

    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        assert!((size == 4 || size == 8) && at.is_aligned(size as u64), "an aligned value of 4 or 8 bytes");
        let order = (Ordering::SeqCst, Ordering::SeqCst);
        // SAFETY: RAM by the promise given to `new`, aligned as just checked.
        unsafe {
            if size == 8 {
                (*(at.0 as *const AtomicU64)).compare_exchange(old, new, order.0, order.1).is_ok()
            } else {
                let (old, new) = (old as u32, new as u32);
                (*(at.0 as *const AtomicU32)).compare_exchange(old, new, order.0, order.1).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// On the test's own memory, whose addresses are as good as any.
        #[test]
        fn behaves_as_a_slice(at in 0usize..64, bytes in prop::collection::vec(any::<u8>(), 0..64), fill in any::<u8>()) {
            let mut memory = vec![0xa5u8; 192];
            let start = memory.as_mut_ptr().align_offset(8);
            let base = memory.as_mut_ptr() as u64 + start as u64;
            let mut model = memory.clone();
            // SAFETY: all accesses stay within `memory`.
            let host = unsafe { HostRam::new() };
            let here = Hpa(base + at as u64);
            host.write(here, &bytes);
            model[start + at..][..bytes.len()].copy_from_slice(&bytes);
            let mut back = vec![0; bytes.len()];
            host.read(here, &mut back);
            prop_assert_eq!(&back, &bytes);
            host.fill(Hpa(here.0 + 3), bytes.len() as u64, fill);
            model[start + at + 3..][..bytes.len()].fill(fill);
            prop_assert_eq!(&memory, &model);
        }
    }

    #[test]
    fn compare_and_exchange_is_as_wide_as_asked() {
        let mut words = [u64::MAX; 2];
        let at = Hpa(words.as_mut_ptr() as u64);
        // SAFETY: all accesses stay within `words`.
        let host = unsafe { HostRam::new() };
        assert!(!host.compare_exchange(at, 8, 1, 2));
        assert!(host.compare_exchange(at, 4, 0xffff_ffff, 0));
        assert!(host.compare_exchange(at, 8, 0xffff_ffff_0000_0000, 7));
        assert_eq!(words, [7, u64::MAX]);
    }
}
