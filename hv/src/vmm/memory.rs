//! Host memory by physical address: the identity mapping of all RAM.

use core::ptr;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::guest::ram::HostAccess;
use crate::mem::frame::Node;
use crate::mem::tables::HostTables;
use crate::paging::TableMemory;
use crate::paging::addr::{Hfn, Hpa};

/// All of the host's RAM, reached by HPA == address. Whoever holds one promises to use only frames of VMs and tables
/// that it was given by the frame allocator.
#[derive(Clone, Copy, Debug)]
pub struct Identity(HostTables);

impl Identity {
    /// The identity mapping.
    ///
    /// # Safety
    /// All RAM is mapped at its physical address, and addresses passed to the result belong to VMs or to tables made
    /// through it.
    pub const unsafe fn new() -> Identity {
        Identity(HostTables { node: Node(0) })
    }
}

impl TableMemory for Identity {
    fn allocate(&self) -> Option<Hfn> {
        self.0.allocate()
    }

    fn free(&self, frame: Hfn) {
        self.0.free(frame);
    }

    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.0.load(frame, index)
    }

    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.0.store(frame, index, value);
    }

    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.0.compare_exchange(frame, index, old, new)
    }
}

impl HostAccess for Identity {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        // Aligned words are read and written at once.
        match *buf {
            [_, _] if at.is_aligned(2) => {
                buf.copy_from_slice(&word16(at).load(Ordering::Acquire).to_le_bytes())
            }
            [_, _, _, _] if at.is_aligned(4) => {
                buf.copy_from_slice(&word32(at).load(Ordering::Acquire).to_le_bytes());
            }
            [_, _, _, _, _, _, _, _] if at.is_aligned(8) => {
                buf.copy_from_slice(&word64(at).load(Ordering::Acquire).to_le_bytes());
            }
            // SAFETY: guest RAM (the trait's contract), mapped; guests may write it meanwhile, which tears only what they
            // race for.
            _ => unsafe { ptr::copy_nonoverlapping(at.0 as *const u8, buf.as_mut_ptr(), buf.len()) },
        }
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        match *buf {
            [a, b] if at.is_aligned(2) => word16(at).store(u16::from_le_bytes([a, b]), Ordering::Release),
            [a, b, c, d] if at.is_aligned(4) => {
                word32(at).store(u32::from_le_bytes([a, b, c, d]), Ordering::Release);
            }
            [a, b, c, d, e, f, g, h] if at.is_aligned(8) => {
                word64(at).store(u64::from_le_bytes([a, b, c, d, e, f, g, h]), Ordering::Release);
            }
            // SAFETY: guest RAM (the trait's contract), mapped, and never the hypervisor's own memory.
            _ => unsafe { ptr::copy_nonoverlapping(buf.as_ptr(), at.0 as *mut u8, buf.len()) },
        }
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        // SAFETY: as in `write`.
        unsafe { ptr::write_bytes(at.0 as *mut u8, byte, len as usize) }
    }

    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        if size == 4 {
            word32(at).compare_exchange(old as u32, new as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
        } else {
            word64(at).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }
    }
}

macro_rules! word {
    ($name:ident, $atomic:ty) => {
        fn $name(at: Hpa) -> &'static $atomic {
            assert!(at.is_aligned(size_of::<$atomic>() as u64));
            // SAFETY: guest RAM (HostAccess's contract), mapped and aligned; everybody shares it atomically.
            unsafe { &*(at.0 as *const $atomic) }
        }
    };
}

word!(word16, AtomicU16);
word!(word32, AtomicU32);
word!(word64, AtomicU64);
