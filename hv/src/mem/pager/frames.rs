//! The frames that a pager uses, and their bytes.

use core::fmt;

use crate::arch::addr::{Hfn, Hpa};

/// Frames of the host for one VM. On bare metal they come from those that were set aside for it, and then from any that are free.
pub trait FrameMemory: fmt::Debug + Send {
    /// A frame with any contents.
    fn take(&mut self) -> Option<Hfn>;

    /// Takes a frame back, to which nothing leads any more; the implementation wipes it.
    fn give_back(&mut self, frame: Hfn);

    /// Reads from frames that were taken.
    fn read(&self, at: Hpa, buf: &mut [u8]);

    /// Writes to frames that were taken.
    fn write(&self, at: Hpa, buf: &[u8]);

    /// Fills a frame that was taken with zeroes.
    fn clear(&self, frame: Hfn);

    /// The time, for statistics.
    fn ticks(&self) -> u64;
}
