//! Host memory that a VM's RAM is in: taken block by block, and given back as a whole, wiped.
//!
//! `vmm::memory` takes it from the frame allocator. What must hold: a block is given back once, full of zeroes, and after everything
//! that led to it is gone; so a VM drops its memory last.

use alloc::vec::Vec;

use super::buddy::MAX_ORDER;
use super::frame::Block;
use crate::arch::addr::{Hpa, PAGE_SHIFT};

/// Where the memory comes from: the frame allocator, or a model of it.
pub trait RamSource {
    /// 2^order contiguous frames, if there are any.
    fn take(&self, order: u8) -> Option<Hpa>;

    /// Fills a block with zeroes.
    fn wipe(&self, block: Block);

    /// Takes a block back.
    fn give_back(&self, block: Block);
}

/// The blocks of one VM's RAM. Dropped, they are wiped and given back.
#[derive(Debug)]
pub struct VmRam<L: RamSource> {
    source: L,
    blocks: Vec<Block>,
}

impl<L: RamSource> VmRam<L> {
    /// Nothing yet.
    pub fn from(source: L) -> VmRam<L> {
        VmRam { source, blocks: Vec::new() }
    }

    /// The largest free block of at most `bytes`; its start and size.
    pub fn block(&mut self, bytes: u64) -> Option<(Hpa, u64)> {
        let largest = bytes.checked_ilog2()?.checked_sub(PAGE_SHIFT)?.min(MAX_ORDER.into()) as u8;
        // Before the block is taken: without room in the list it would be lost.
        self.blocks.try_reserve(1).ok()?;
        let block =
            (0..=largest).rev().find_map(|order| Some(Block { start: self.source.take(order)?, order }))?;
        self.blocks.push(block);
        Some((block.start, block.bytes()))
    }
}

impl<L: RamSource> Drop for VmRam<L> {
    fn drop(&mut self) {
        for block in &self.blocks {
            // Here and not when the memory is taken again: nothing of a VM outlasts it.
            self.source.wipe(*block);
            self.source.give_back(*block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::addr::{Hfn, PAGE_SIZE};
    use crate::mem::buddy::Buddy;
    use crate::mem::host_access::{HostAccess, VecHost};
    use core::cell::{Cell, RefCell};
    use proptest::prelude::*;

    const START: u64 = 16;
    const FRAMES: u64 = 200;

    /// A machine of 200 frames.
    struct Machine {
        buddy: RefCell<Buddy<'static>>,
        bytes: VecHost,
        wiped: Cell<Option<Block>>,
    }

    impl Machine {
        fn new() -> Machine {
            let range = Hfn(START)..Hfn(START + FRAMES);
            let words = Buddy::words(&range);
            let mut buddy = Buddy::new(range.clone(), Box::leak(vec![0; words].into_boxed_slice()));
            buddy.insert(range).unwrap();
            let bytes = VecHost::new(Hpa(START * PAGE_SIZE), (FRAMES * PAGE_SIZE) as usize);
            Machine { buddy: RefCell::new(buddy), bytes, wiped: Cell::new(None) }
        }

        fn free(&self) -> u64 {
            self.buddy.borrow().free_frames()
        }

        fn is_zero(&self) -> bool {
            let mut bytes = vec![0; (FRAMES * PAGE_SIZE) as usize];
            self.bytes.read(Hpa(START * PAGE_SIZE), &mut bytes);
            bytes.iter().all(|byte| *byte == 0)
        }
    }

    impl RamSource for &Machine {
        fn take(&self, order: u8) -> Option<Hpa> {
            self.buddy.borrow_mut().alloc_below(order, Hfn(u64::MAX)).map(Hfn::base)
        }
        fn wipe(&self, block: Block) {
            self.bytes.fill(block.start, block.bytes(), 0);
            self.wiped.set(Some(block));
        }
        fn give_back(&self, block: Block) {
            assert_eq!(self.wiped.take(), Some(block), "wiped before it can be allocated again");
            self.buddy.borrow_mut().free(block.start.frame(), block.order).unwrap();
        }
    }

    proptest! {
        /// VMs come, write all over their memory, and go, in any order.
        #[test]
        fn what_comes_back_is_all_there_and_empty(steps in prop::collection::vec((any::<bool>(), 1u64..60), 1..40)) {
            let machine = Machine::new();
            let mut vms: Vec<VmRam<&Machine>> = vec![];
            for (comes, pages) in steps {
                if !comes && !vms.is_empty() {
                    vms.remove(pages as usize % vms.len());
                    continue;
                }
                let mut ram = VmRam::from(&machine);
                let mut left = pages * PAGE_SIZE;
                while left > 0 && let Some((start, bytes)) = ram.block(left) {
                    prop_assert!(bytes <= left && start.is_aligned(bytes));
                    machine.bytes.fill(start, bytes, 0xa5);
                    left -= bytes;
                }
                vms.push(ram);
            }
            let in_use: u64 = vms.iter().flat_map(|vm| &vm.blocks).map(|block| block.bytes() / PAGE_SIZE).sum();
            prop_assert_eq!(machine.free(), FRAMES - in_use);
            drop(vms);
            prop_assert_eq!(machine.free(), FRAMES);
            prop_assert!(machine.is_zero());
        }
    }
}
