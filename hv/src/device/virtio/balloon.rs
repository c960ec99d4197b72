//! The balloon: pages that the guest gives back. Virtio 1.2, 5.5.
//!
//! The driver names pages in two ways: those in the balloon, by the numbers of their frames, as many as the target wants; and free ones
//! that it reports by itself. Either way their contents are dropped, and a later access finds zeroes. The device only collects the
//! pages, [`BATCH`] at a time, and serves no further chain until they are gone from all tables and processors: `vm::overcommit` takes
//! them ([`Balloon::take_named`]) and says so ([`Balloon::discarded`]). A chain comes back when all its pages have gone this way.
//!
//! The device believes nothing: a number is a page of the guest's RAM, or nothing happens. Leaving the balloon takes no more than an access.

use arrayvec::ArrayVec;

use super::chain::Chain;
use super::model::Served;
use super::queue::Malformed;
use crate::arch::addr::{Gfn, PAGE_SIZE};
use crate::mem::guest_memory::GuestMemory;

/// Queues. Free pages are reported in the fifth, or, if the driver does not count the two that are not offered before it, in the third.
pub(super) const QUEUES: usize = 5;
const INFLATE: usize = 0;
const DEFLATE: usize = 1;

/// The driver may take pages back by itself when its memory is short.
const F_DEFLATE_ON_OOM: u64 = 1 << 2;
/// It may report free pages.
const F_REPORTING: u64 = 1 << 5;

/// Pages that are collected before they are discarded.
const BATCH: usize = 256;
/// Bytes of page numbers in a chain at most: numbers of 4 GiB. Linux sends those of 1 MiB.
const MOST_NUMBERS: u64 = 4 << 20;
/// Bytes that a chain may report. Linux reports 128 MiB at most.
const MOST_REPORTED: u64 = 4 << 30;
/// Bytes of a page's number.
const NUMBER: usize = 4;

/// What a balloon has done, and shall: in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that the driver is to have in the balloon.
    pub target: u32,
    /// Pages that it says it has.
    pub actual: u32,
    /// Pages that it has put in since the VM's start.
    pub inflated: u64,
    /// Pages that it has taken out.
    pub deflated: u64,
    /// Free pages that it has reported.
    pub reported: u64,
}

/// A balloon.
#[derive(Debug, Default)]
pub struct Balloon {
    counts: Counts,
    /// Pages to discard.
    named: ArrayVec<Gfn, BATCH>,
    /// Pages are on their way out.
    is_busy: bool,
    /// Bytes of each queue's first available chain that are done.
    done: [u64; QUEUES],
}

impl Balloon {
    pub(super) const FEATURES: u64 = F_DEFLATE_ON_OOM | F_REPORTING;

    /// See [`Counts`].
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sets the target; the driver is to look at its configuration if that is another one.
    pub(super) fn set_target(&mut self, pages: u32) -> bool {
        core::mem::replace(&mut self.counts.target, pages) != pages
    }

    /// What is on its way out stays so.
    pub(super) fn reset(&mut self) {
        self.counts.actual = 0;
        self.named.clear();
        self.done = [0; QUEUES];
    }

    pub(super) fn config(&self, offset: u64) -> u32 {
        match offset {
            0 => self.counts.target,
            4 => self.counts.actual,
            _ => 0,
        }
    }

    /// The driver writes the bits in `mask` of a dword of the configuration.
    pub(super) fn set_config(&mut self, offset: u64, mask: u32, bits: u32) {
        if offset == 4 {
            self.counts.actual = self.counts.actual & !mask | bits;
        }
    }

    pub(super) fn is_ready(&self, queue: usize) -> bool {
        queue == DEFLATE || self.named.is_empty() && !self.is_busy
    }

    /// Whether pages wait to be taken.
    pub(super) fn has_named(&self) -> bool {
        !self.named.is_empty() && !self.is_busy
    }

    /// Gives out the pages that are to be discarded, some of them twice, and some that are none.
    pub(super) fn take_named(&mut self, mut discard: impl FnMut(Gfn)) {
        if self.has_named() {
            self.is_busy = true;
            self.named.drain(..).for_each(&mut discard);
        }
    }

    /// Nothing leads to these pages any more; whether there were some.
    pub(super) fn discarded(&mut self) -> bool {
        core::mem::take(&mut self.is_busy)
    }

    pub(super) fn serve(
        &mut self,
        queue: usize,
        chain: &Chain,
        memory: &impl GuestMemory,
    ) -> Result<Served, Malformed> {
        match queue {
            INFLATE => self.inflate(chain, memory),
            DEFLATE => {
                self.counts.deflated += chain.readable().len() / NUMBER as u64;
                Ok(Served::Done { written: 0, moved: 0 })
            }
            _ => self.report(queue, chain),
        }
    }

    fn inflate(&mut self, chain: &Chain, memory: &impl GuestMemory) -> Result<Served, Malformed> {
        let mut from = chain.readable();
        if from.len() > MOST_NUMBERS {
            return Err(Malformed::Request);
        }
        from.skip(self.done[INFLATE]);
        let mut bytes = [0; BATCH * NUMBER];
        let len = from.read(memory, &mut bytes)?;
        for number in bytes[..len].chunks_exact(NUMBER) {
            let number = number.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            // As many as there is room for: this is called when there are none.
            let _room = self.named.try_push(Gfn(number));
        }
        self.counts.inflated += self.named.len() as u64;
        Ok(self.go_on(INFLATE, len as u64))
    }

    fn report(&mut self, queue: usize, chain: &Chain) -> Result<Served, Malformed> {
        let mut free = chain.writable();
        if free.len() > MOST_REPORTED {
            return Err(Malformed::Request);
        }
        free.skip(self.done[queue]);
        let mut done = 0;
        if let Some(piece) = free.next((BATCH as u64 * PAGE_SIZE) as u32) {
            done = u64::from(piece.len);
            // Whole pages.
            let end = piece.gpa.0.saturating_add(done) / PAGE_SIZE;
            let pages = piece.gpa.0.div_ceil(PAGE_SIZE)..end;
            pages.for_each(|page| {
                let _room = self.named.try_push(Gfn(page));
            });
        }
        self.counts.reported += self.named.len() as u64;
        Ok(self.go_on(queue, done))
    }

    /// After `bytes` of a chain, or at its end if there are none.
    fn go_on(&mut self, queue: usize, bytes: u64) -> Served {
        let done = &mut self.done[queue];
        if bytes == 0 {
            return Served::Done { written: 0, moved: core::mem::take(done).min(u32::MAX.into()) as u32 };
        }
        *done += bytes;
        Served::Later
    }
}
