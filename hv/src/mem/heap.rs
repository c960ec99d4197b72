//! The global allocator: talc, growing from the frame allocator by 2 MiB or what a request needs.
//!
//! For bookkeeping of bounded size. Guest memory and page tables come from [`super::frame`], whose calls can fail, and which keeps
//! some frames for this; an allocation here that finds nothing ends the hypervisor with the size in the message. Unsafe because it gives
//! frames to the allocator.

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};

use talc::TalcLock;
use talc::base::Talc;
use talc::base::binning::Binning;
use talc::source::Source;

use super::frame;

/// The least growth: 2 MiB.
const GROWTH_ORDER: u8 = 9;
/// What talc needs beside the allocation itself, generously.
const OVERHEAD: u64 = 4096;

#[global_allocator]
static HEAP: TalcLock<spin::Mutex<()>, Growing> = TalcLock::new(Growing);

/// Bytes that the heap has taken from the frame allocator.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// How large the heap has grown, in bytes. It never shrinks.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

#[derive(Debug)]
struct Growing;

// SAFETY: `acquire` takes frames, which never uses the heap.
unsafe impl Source for Growing {
    fn acquire<B: Binning>(talc: &mut Talc<Self, B>, layout: Layout) -> Result<(), ()> {
        let bytes = (layout.size() as u64).saturating_add(layout.align() as u64).saturating_add(OVERHEAD);
        let needed = frame::order_for(bytes);
        let (block, order) = [needed.max(GROWTH_ORDER), needed]
            .into_iter()
            .find_map(|order| Some((frame::alloc_last(order)?, order)))
            .ok_or(())?;
        BYTES.fetch_add(4096 << order, Ordering::Relaxed);
        // SAFETY: the frames are mapped and now belong to the heap for ever.
        let claimed = unsafe { talc.claim(block.0 as *mut u8, 4096usize << order) };
        claimed.map(|_| ()).ok_or(())
    }
}
