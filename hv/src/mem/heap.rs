//! The global allocator: talc, growing from the frame allocator by 2 MiB or what a request needs.
//!
//! For bookkeeping of bounded size. Guest memory and page tables come from [`super::frame`], whose calls can fail, and which keeps
//! a block for this; an allocation here that finds nothing ends the hypervisor with the size in the message. So what a VM needs much of
//! can fail, or asks first ([`has_room`]), and what is large gets nothing of that block. Unsafe because it gives frames to the allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU64, Ordering};

use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

use super::frame::{self, HEAP_GROWTH, Node};
use crate::arch::addr::Hpa;

/// What needs larger blocks gets nothing of the one that is kept: it is for small things, and would be gone with one of these.
const SMALL_ORDER: u8 = 5;
/// What talc needs beside the allocation itself, generously.
const OVERHEAD: u64 = 4096;

#[cfg_attr(feature = "baremetal", global_allocator)]
static HEAP: TalcLock<spin::Mutex<()>, Growing> = TalcLock::new(Growing);

/// Bytes that the heap has taken from the frame allocator.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Where the block is with which it begins; 0: it has that, or there is none.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// Bytes of a block for [`begin_with`].
pub const FIRST_BYTES: u64 = 4096 << HEAP_GROWTH;

/// Has the heap take this block of [`FIRST_BYTES`] before others.
///
/// # Safety
/// Before anything was allocated. It is mapped, and of no other use.
pub unsafe fn begin_with(block: Hpa) {
    FIRST.store(block.0, Ordering::Relaxed);
}

/// How large the heap has grown, in bytes. It never shrinks.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Whether `bytes` (not 0) are free in one piece, without the reserved block. For a caller that is about to allocate that much in
/// small parts, each of which would panic on failure.
pub fn has_room(bytes: usize) -> bool {
    let Ok(layout) = Layout::from_size_align(bytes, align_of::<u64>()) else { return false };
    // SAFETY: the size is not zero, and what is given back is what was got.
    let found = unsafe {
        let room = HEAP.alloc(layout);
        if !room.is_null() {
            HEAP.dealloc(room, layout);
        }
        !room.is_null()
    };
    found && frame::has_last()
}

#[derive(Debug)]
struct Growing;

// SAFETY: `acquire` takes frames, which never uses the heap.
unsafe impl Source for Growing {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let bytes = (layout.size() as u64).saturating_add(layout.align() as u64).saturating_add(OVERHEAD);
        let needed = frame::order_for(bytes);
        let first = if needed <= HEAP_GROWTH { FIRST.swap(0, Ordering::Relaxed) } else { 0 };
        let take = |order| {
            if first != 0 {
                return Some((Hpa(first), HEAP_GROWTH));
            }
            let is_small = needed <= SMALL_ORDER;
            let block = if is_small { frame::alloc_last(order) } else { frame::alloc(order, Node(0)) };
            Some((block?, order))
        };
        // The heap never gives memory back: where there is a block of 2 MiB it takes that, so that small ones do not
        // fragment what guests can have; else what is needed.
        let (block, order) = [needed.max(HEAP_GROWTH), needed].into_iter().find_map(take).ok_or(())?;
        BYTES.fetch_add(4096 << order, Ordering::Relaxed);
        // SAFETY: the frames are mapped and now belong to the heap for ever.
        let claimed = unsafe { talc.claim(block.0 as *mut u8, 4096usize << order) };
        claimed.map(|_| ()).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::addr::PAGE_SIZE;
    use crate::mem::buddy::Buddy;

    /// Allocates memory of the test machine and hands it over as frames. No other test uses the frame allocator.
    fn hand_over(frames: u64) {
        let bytes = (frames * PAGE_SIZE) as usize;
        let layout = Layout::from_size_align(bytes, bytes).unwrap();
        // SAFETY: the size is not zero.
        let start = Hpa(unsafe { std::alloc::alloc(layout) } as u64);
        let range = start.frame()..Hpa(start.0 + bytes as u64).frame();
        let words = vec![0; Buddy::words(&range)].leak();
        // SAFETY: this is called once, and the memory has no other use.
        unsafe {
            frame::init(range.clone(), words);
            frame::add(range);
        }
    }

    /// All that guests get in blocks of this order.
    fn take_all(order: u8) -> Vec<Hpa> {
        core::iter::from_fn(|| frame::alloc(order, Node(0))).collect()
    }

    /// How many bytes the heap has in pieces of this size.
    fn drain(size: usize) -> usize {
        let layout = Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the size is not zero.
        core::iter::repeat_with(|| unsafe { HEAP.alloc(layout) }).take_while(|it| !it.is_null()).count()
            * size
    }

    #[test]
    fn guests_take_all_frames_but_the_heaps() {
        const MIB: usize = 1 << 20;
        const LARGE: usize = MIB / 4;
        hand_over(2048);
        assert!(take_all(11).is_empty());
        let largest = take_all(10);
        assert_eq!(largest.len(), 1);
        let large = take_all(9);
        assert_eq!((large.len(), frame::stats().free), (1, 512));
        let nothing = [
            frame::alloc(0, Node(0)),
            frame::alloc_zeroed(0, Node(0)),
            frame::alloc_low_zeroed(Node(0)),
            frame::alloc_below(0, Hpa(u64::MAX)),
            frame::alloc_all(1, Node(0)).map(|blocks| blocks[0].start),
        ];
        assert_eq!(nothing, [None; 5]);
        assert_eq!(frame::stats().free, 512, "what was refused is there");
        assert!(!has_room(LARGE) && bytes() == 0, "what is large gets nothing of it, either");
        // Frames that are free one by one are of no use to the heap: guests may have them.
        let give = |block: Hpa| {
            // SAFETY: the block was allocated, and is not used.
            unsafe { frame::free(block, 0) }
        };
        let odd = (0..512).step_by(2).map(|n| Hpa(large[0].0 + n * PAGE_SIZE));
        odd.for_each(give);
        let single = frame::alloc(0, Node(0));
        single.into_iter().for_each(give);
        assert_eq!(single, Some(large[0]));
        assert_eq!(frame::stats().free, 512 + 256);
        let got = drain(512);
        assert!(got > MIB + MIB / 2, "{got} bytes");
        assert_eq!(bytes(), 2 << 20);
        assert_eq!(frame::stats().free, 256);
        assert_eq!((take_all(0), drain(64 << 10)), (vec![], 0));
        // A block that guests give back is the heap's again, before any of them has a frame.
        let even = (0..512).skip(1).step_by(2).map(|n| Hpa(large[0].0 + n * PAGE_SIZE));
        even.for_each(give);
        assert_eq!(take_all(0), vec![]);
        assert!(drain(64 << 10) > MIB);
        assert_eq!(frame::stats().free, 0);
        // Room is what the heap has beside that block.
        // SAFETY: the block was allocated, and is not used.
        unsafe { frame::free(largest[0], 10) };
        assert!(has_room(LARGE) && has_room(LARGE));
        assert_eq!(frame::stats().free, 512);
        let layout = Layout::from_size_align(LARGE, 8).unwrap();
        // SAFETY: the size is not zero.
        let room = unsafe { HEAP.alloc(layout) };
        assert!(!room.is_null() && drain(LARGE) >= MIB && !has_room(LARGE));
        assert_eq!(frame::stats().free, 512);
        assert!(drain(64 << 10) > MIB);
        // SAFETY: it was allocated, and is not used.
        unsafe { HEAP.dealloc(room, layout) };
        assert!(!has_room(LARGE), "there is room, but no block is kept");
        assert_eq!(frame::stats().free, 0);
    }
}
