//! Page tables in the machine's own frames: what the mappers of `paging` work on outside of tests.
//!
//! Unsafe because entries are reached by their host-physical address.

use core::sync::atomic::{AtomicU64, Ordering};

use super::frame::{self, Node};
use super::frame_record::{self, Kind, Owner};
use crate::arch::addr::{Hfn, Hpa};
use crate::mem::table_memory::{ENTRIES, TableMemory};

/// Table frames from the frame allocator.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostTables {
    /// Where the frames should be.
    pub node: Node,
    /// Whose tables they are.
    pub owner: Owner,
}

impl HostTables {
    /// Notes whose a new frame is.
    fn assign(&self, block: Hpa) -> Hfn {
        if let Some(records) = frame_record::all() {
            records.assign(block.frame(), 1, self.owner, Kind::Table);
        }
        block.frame()
    }

    fn entry(&self, table: Hfn, index: usize) -> &AtomicU64 {
        assert!(index < ENTRIES);
        // SAFETY: `table` came from `allocate`, or `vmm::memory` has taken it from the fast memory and zeroed it. So it is a mapped
        // frame that is one owner's until it is freed, and only accessed as atomic words.
        unsafe { &*(table.base().0 as *const AtomicU64).add(index) }
    }
}

impl TableMemory for HostTables {
    fn allocate(&self) -> Option<Hfn> {
        frame::alloc_zeroed(0, self.node).map(|block| self.assign(block))
    }

    fn allocate_low(&self) -> Option<Hfn> {
        frame::alloc_low_zeroed(self.node).map(|block| self.assign(block))
    }

    fn free(&self, table: Hfn) {
        // SAFETY: the mapper frees a table when nothing refers to it and the TLBs have been flushed.
        unsafe { frame::free(table.base(), 0) };
    }

    fn load(&self, table: Hfn, index: usize) -> u64 {
        self.entry(table, index).load(Ordering::Acquire)
    }

    fn load_eight(&self, table: Hfn, first: usize) -> [u64; 8] {
        // One check for all.
        assert!(first <= ENTRIES - 8);
        core::array::from_fn(|n| self.load(table, first + n))
    }

    fn store(&self, table: Hfn, index: usize, value: u64) {
        // What a table that is linked here holds must be visible to other walkers before the link.
        self.entry(table, index).store(value, Ordering::Release);
    }

    fn compare_exchange(&self, table: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.entry(table, index).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn clear_in_eight(&self, table: Hfn, first: usize, which: u8, bits: u64) {
        // One check for all. Without its result an operation is one instruction.
        assert!(first <= ENTRIES - 8);
        let clear = |n: usize| _ = self.entry(table, first + n).fetch_and(!bits, Ordering::AcqRel);
        match which {
            u8::MAX => (0..8).for_each(clear),
            _ => (0..8).filter(|n| which >> n & 1 != 0).for_each(clear),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::arena::Arena;
    use alloc::boxed::Box;

    /// A frame of a table.
    #[repr(align(4096))]
    struct Frame([AtomicU64; ENTRIES]);

    #[test]
    fn bits_of_eight_are_cleared_as_one_by_one() {
        let (tables, plain) = (HostTables::default(), Arena::new(2));
        let frame = Box::new(Frame([const { AtomicU64::new(0) }; ENTRIES]));
        let own = Hpa(frame.0.as_ptr() as u64).frame();
        let other = plain.allocate().unwrap();
        for which in 0..=u8::MAX {
            for index in 0..ENTRIES {
                let raw = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                tables.store(own, index, raw);
                plain.store(other, index, raw);
            }
            for first in [0, 64, ENTRIES - 8] {
                tables.clear_in_eight(own, first, which, 0x21);
                plain.clear_in_eight(other, first, which, 0x21);
            }
            for index in 0..ENTRIES {
                assert_eq!(tables.load(own, index), plain.load(other, index), "{which:#x} {index}");
            }
        }
    }
}
