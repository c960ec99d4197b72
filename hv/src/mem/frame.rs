//! The machine's frames: one buddy allocator of all NUMA nodes behind one lock, and zeroed allocation.
//!
//! Unsafe because it hands out memory: host-physical addresses are the hypervisor's own addresses
//! (docs/design/0001-host-memory.md). Called by the heap, the paging engines and the VMs; filled once by `boot`.

use alloc::vec::Vec;
use core::ops::Range;

use spin::Mutex;

use super::buddy::{Buddy, FreeError, MAX_ORDER, ORDERS};
use super::frame_record::{self, Kind, Owner};
use crate::arch::addr::{Hfn, Hpa, PAGE_SHIFT, PAGE_SIZE};

/// The NUMA node near which frames are wanted; not looked at yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node(pub u8);

/// Frames in use and free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames handed over since boot.
    pub total: u64,
    /// Frames that are free now, but for those that are set aside.
    pub free: u64,
    /// Free blocks of each order.
    pub free_blocks: [u64; ORDERS],
    /// Allocations that found no block.
    pub failures: u64,
}

/// 2^order frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Where they are; a multiple of their size.
    pub start: Hpa,
    /// log2 of their number.
    pub order: u8,
}

impl Block {
    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        PAGE_SIZE << self.order
    }
}

struct Frames {
    buddy: Buddy<'static>,
    total: u64,
    /// Free frames that were set aside with [`reserve`].
    reserved: u64,
    failures: u64,
}

/// log2 of the frames by which the heap grows. One block of that size stays free for it, because its users cannot do without: guests
/// may use up all other frames.
pub(super) const HEAP_GROWTH: u8 = 9;

static FRAMES: Mutex<Option<Frames>> = Mutex::new(None);

/// Starts an allocator for the frames of `range` with its bookkeeping in `memory` (see [`Buddy::words`]).
///
/// # Safety
/// Once.
pub unsafe fn init(range: Range<Hfn>, memory: &'static mut [u64]) {
    *FRAMES.lock() = Some(Frames { buddy: Buddy::new(range, memory), total: 0, reserved: 0, failures: 0 });
}

/// Hands over the frames of `range`.
///
/// # Safety
/// They are RAM, mapped, and unused.
pub unsafe fn add(range: Range<Hfn>) {
    let mut frames = FRAMES.lock();
    let frames = frames.as_mut().expect("frame allocator not started");
    frames.total += range.end.0.saturating_sub(range.start.0);
    frames.buddy.insert(range.clone()).unwrap_or_else(|e| panic!("bad frames {range:?}: {e:?}"));
}

impl Frames {
    /// Takes a block, and leaves the heap its own, and what is set aside.
    fn take(&mut self, order: u8, limit: Hfn) -> Option<Hfn> {
        let frame = self.buddy.alloc_below(order, limit)?;
        if self.buddy.has_block(HEAP_GROWTH) && self.buddy.free_frames() >= self.reserved {
            return Some(frame);
        }
        // The heap's users cannot do without: a guest that takes all memory must not end the hypervisor.
        self.buddy.free(frame, order).expect("it was just allocated");
        None
    }
}

/// Takes a block, and counts if there is none.
fn obtain(take: impl FnOnce(&mut Frames) -> Option<Hfn>) -> Option<Hpa> {
    let mut frames = FRAMES.lock();
    let frames = frames.as_mut()?;
    let frame = take(frames);
    frames.failures += u64::from(frame.is_none());
    frame.map(Hfn::base)
}

/// 2^order frames, aligned to their size, preferably from `node`; their content is arbitrary.
pub fn alloc(order: u8, node: Node) -> Option<Hpa> {
    let _only_one = node;
    obtain(|frames| frames.take(order, Hfn(u64::MAX)))
}

/// As [`alloc()`], down to the last frame: for the heap.
#[cfg(any(test, feature = "baremetal"))]
pub(super) fn alloc_last(order: u8) -> Option<Hpa> {
    obtain(|frames| frames.buddy.alloc(order))
}

/// Whether the heap's own block is there.
#[cfg(any(test, feature = "baremetal"))]
pub(super) fn has_last() -> bool {
    FRAMES.lock().as_ref().is_some_and(|frames| frames.buddy.has_block(HEAP_GROWTH))
}

/// Sets `frames` frames aside: no other user gets them but the heap, which takes what it cannot do without. False: there are
/// fewer, and nothing has changed.
pub fn reserve(frames: u64) -> bool {
    let mut all = FRAMES.lock();
    let Some(all) = all.as_mut() else { return false };
    let free = all.buddy.free_frames().saturating_sub(1 << HEAP_GROWTH);
    let fits = all.reserved.checked_add(frames).is_some_and(|wanted| wanted <= free);
    if fits {
        all.reserved += frames;
    }
    fits
}

/// Gives up frames that were set aside and not taken.
pub fn unreserve(frames: u64) {
    if let Some(all) = FRAMES.lock().as_mut() {
        all.reserved = all.reserved.saturating_sub(frames);
    }
}

/// Takes a frame that was set aside. `None`: the heap was in need of it, and it is set aside still.
pub fn alloc_reserved() -> Option<Hpa> {
    obtain(|frames| {
        let was = frames.reserved;
        frames.reserved = was.checked_sub(1)?;
        let frame = frames.take(0, Hfn(u64::MAX));
        if frame.is_none() {
            frames.reserved = was;
        }
        frame
    })
}

/// As [`alloc()`], filled with zeroes.
pub fn alloc_zeroed(order: u8, node: Node) -> Option<Hpa> {
    let block = alloc(order, node)?;
    zero(block, order);
    Some(block)
}

/// A frame of zeroes below 4 GiB if there is one, otherwise any.
pub fn alloc_low_zeroed(node: Node) -> Option<Hpa> {
    let block = alloc_below(0, Hpa(1 << 32)).or_else(|| alloc(0, node))?;
    zero(block, 0);
    Some(block)
}

/// Fills a block that was just allocated with zeroes.
fn zero(block: Hpa, order: u8) {
    // SAFETY: the block is the caller's alone, mapped, and 2^order frames long.
    unsafe { core::ptr::write_bytes(block.0 as *mut u64, 0, 512usize << order) };
}

/// Memory of `bytes`, filled with zeroes, as blocks that together are that long (rounded up to 4 KiB): the largest first,
/// so that they stay aligned to their size when they are put one after the other. `None` leaves nothing allocated.
pub fn alloc_all(bytes: u64, node: Node) -> Option<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut left = bytes.div_ceil(PAGE_SIZE);
    let mut order = MAX_ORDER;
    while left > 0 {
        order = order.min(left.ilog2() as u8);
        match alloc(order, node) {
            Some(start) => {
                blocks.push(Block { start, order });
                left -= 1 << order;
            }
            // Smaller blocks cost larger page tables only.
            None if order > 0 => order -= 1,
            None => {
                // SAFETY: these blocks were allocated above, and no copy of their addresses has left this function.
                blocks.into_iter().for_each(|block: Block| unsafe { free(block.start, block.order) });
                return None;
            }
        }
    }
    blocks.iter().for_each(|block| zero(block.start, block.order));
    Some(blocks)
}

/// As [`alloc()`], ending at or below the address `limit`: for devices that reach little.
pub fn alloc_below(order: u8, limit: Hpa) -> Option<Hpa> {
    obtain(|frames| frames.take(order, limit.frame()))
}

/// Takes back a block of an allocation, or an aligned part of one.
///
/// # Safety
/// It is not used any more: no guest table maps it, and no TLB holds a guest's translation to it.
///
/// # Panics
/// If it is not allocated.
pub unsafe fn free(block: Hpa, order: u8) {
    release(block, order, 0);
}

/// As [`free`], for a frame that is set aside again at once.
///
/// # Safety
/// Those of [`free`].
pub unsafe fn free_reserved(block: Hpa) {
    release(block, 0, 1);
}

/// Takes back a block, of which this many frames are set aside.
fn release(block: Hpa, order: u8, reserved: u64) {
    if let Some(records) = frame_record::all() {
        // Before the frames are free: their next owner writes the records after that.
        records.assign(block.frame(), 1 << order, Owner::Host, Kind::Other);
    }
    let mut frames = FRAMES.lock();
    let frames = frames.as_mut().expect("frame allocator not started");
    frames.reserved += reserved;
    match frames.buddy.free(block.frame(), order) {
        Ok(()) => {}
        Err(error @ (FreeError::NotABlock | FreeError::AlreadyFree)) => {
            panic!("released {block} of order {order}: {error:?}")
        }
    }
}

/// The smallest order whose blocks hold `bytes`.
pub const fn order_for(bytes: u64) -> u8 {
    let frames = bytes.div_ceil(1 << PAGE_SHIFT);
    if frames <= 1 { 0 } else { (frames - 1).ilog2() as u8 + 1 }
}

/// What is in use and what is free.
pub fn stats() -> Stats {
    match FRAMES.lock().as_ref() {
        None => Stats::default(),
        Some(f) => Stats {
            total: f.total,
            free: f.buddy.free_frames().saturating_sub(f.reserved),
            free_blocks: f.buddy.free_blocks(),
            failures: f.failures,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders() {
        for (bytes, order) in
            [(0, 0), (1, 0), (4096, 0), (4097, 1), (8192, 1), (8193, 2), (2 << 20, 9), (1 << 30, 18)]
        {
            assert_eq!(order_for(bytes), order, "{bytes}");
        }
    }
}
