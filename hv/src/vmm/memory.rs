//! The running host's memory as VMs use it: table frames and guest RAM.

use alloc::vec::Vec;

use crate::guest::ram::HostAccess;
use crate::mem::frame::{self, Block, Node};
use crate::mem::host_ram::HostRam;
use crate::mem::tables::HostTables;
use crate::paging::TableMemory;
use crate::paging::addr::{Hfn, Hpa, PAGE_SHIFT};

/// Tables from the frame allocator and bytes of guest RAM.
#[derive(Clone, Debug)]
pub struct HostMemory {
    tables: HostTables,
    ram: HostRam,
}

impl HostMemory {
    /// Memory of the first node.
    ///
    /// # Safety
    /// VMs that use it have RAM only in frames that were allocated for them.
    pub const unsafe fn new() -> HostMemory {
        // SAFETY: the caller's promise.
        HostMemory { tables: HostTables { node: Node(0) }, ram: unsafe { HostRam::new() } }
    }
}

impl TableMemory for HostMemory {
    fn allocate(&self) -> Option<Hfn> {
        self.tables.allocate()
    }

    fn allocate_low(&self) -> Option<Hfn> {
        self.tables.allocate_low()
    }

    fn free(&self, frame: Hfn) {
        self.tables.free(frame);
    }

    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.tables.load(frame, index)
    }

    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.tables.store(frame, index, value);
    }

    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.tables.compare_exchange(frame, index, old, new)
    }
}

impl HostAccess for HostMemory {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.ram.read(at, buf);
    }

    #[inline]
    fn load(&self, at: Hpa) -> u64 {
        self.ram.load(at)
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        self.ram.write(at, buf);
    }

    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.ram.fill(at, len, byte);
    }

    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        self.ram.compare_exchange(at, size, old, new)
    }
}

/// Host memory that a VM's RAM is in. Given back, full of zeroes, when it is dropped: after the VM's tables.
#[derive(Debug, Default)]
pub struct Ram(Vec<Block>);

impl Ram {
    /// The largest free block of at most `bytes`; its start and size.
    pub fn block(&mut self, bytes: u64) -> Option<(Hpa, u64)> {
        let largest = bytes.checked_ilog2()?.checked_sub(PAGE_SHIFT)?.min(18) as u8;
        let block = (0..=largest)
            .rev()
            .find_map(|order| Some(Block { start: frame::alloc(order, Node(0))?, order }))?;
        self.0.push(block);
        Some((block.start, block.bytes()))
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        for block in &self.0 {
            // SAFETY: the guest is gone, and no table leads here any more; the promise of `HostMemory::new`.
            unsafe {
                HostRam::new().fill(block.start, block.bytes(), 0);
                frame::free(block.start, block.order);
            }
        }
    }
}
