//! The pager of a VM whose memory is overcommitted: which pages are in frames, and where the others are.
//!
//! A page that was never touched has no frame; one that is evicted is in the compressed [`store`], or on a [`disk`](mod@disk) when that is
//! full, or, if it is all zeroes, nowhere.
//! The P2m says of both that they are absent, and asks for a frame when the page is accessed ([`Pager::bring_in`]); who evicts is
//! `vm::overcommit`. docs/design/0029-overcommit.md has the whole.
//!
//! A page's life: absent → arrived (in a frame, unknown to the policy) → resident (in a slot of the policy) → leaving
//! (absent in the P2m, the frame still has the contents) → absent. A leaving page that is accessed has arrived again. Pages that
//! the guest does not want lose their frames and keep their places ([`mod@discard`]).
//!
//! What must hold: each page is in one place. A frame is a resident, arrived or leaving page's, or free, or the store's. A page
//! becomes present in the P2m under the lock of this module and the VM's memory locked at least for reading; it becomes absent
//! while that is locked for writing. So an address that was translated with the memory locked for reading keeps its frame until
//! that lock ends.
//!
//! Locks: this one may be taken under any other of the VM's; below it is only the disk's own, of all VMs.

mod arrivals;
mod budget;
#[cfg(any(test, feature = "testing"))]
mod check;
mod contents;
pub mod counts;
mod discard;
pub mod disk;
pub mod frames;
#[cfg(any(test, feature = "testing"))]
mod fuzz;
mod place;
mod state;
pub mod store;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod traced;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use abi::config::Replacement as PolicyName;
use spin::Mutex;

pub use self::budget::Wish;
use self::counts::Counts;
use self::disk::Disk;
pub use self::disk::PageDisk;
pub use self::frames::FrameMemory;
#[cfg(any(test, feature = "testing"))]
pub use self::fuzz::fuzz_one;
use self::state::State;
use crate::arch::addr::{Gfn, Hfn};
use crate::mem::objects::Objects;
use crate::mem::pieces::OutOfMemory;
use crate::mem::replacement::Replacement;

/// Pages that are evicted together: one shootdown for all.
pub const BATCH: usize = 32;

/// Where a VM's RAM is in its physical address space: from 0 on, and from another page on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Pages from 0 on.
    pub low: u32,
    /// The first page of the second part.
    pub high_start: Gfn,
    /// Pages of the second part.
    pub high: u32,
}

impl Span {
    /// All pages.
    pub const fn pages(&self) -> u32 {
        self.low.saturating_add(self.high)
    }

    /// The number of a page of RAM.
    pub fn number(&self, page: Gfn) -> Option<u32> {
        if page.0 < u64::from(self.low) {
            return Some(page.0 as u32);
        }
        let above = page.0.checked_sub(self.high_start.0).filter(|above| *above < u64::from(self.high))?;
        Some(self.low + above as u32)
    }

    /// The page with this number.
    pub fn page(&self, number: u32) -> Gfn {
        match number.checked_sub(self.low) {
            None => Gfn(number.into()),
            Some(above) => Gfn(self.high_start.0 + u64::from(above)),
        }
    }
}

/// How much memory a pager may use, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Pages in slots of the policy.
    pub resident: u32,
    /// Pages that have arrived since the last eviction, beside them. More may arrive in one operation of a device; they take frames
    /// that nothing has set aside.
    pub reserve: u32,
    /// Frames of the compressed store.
    pub store: u32,
}

impl Budget {
    /// All of it.
    pub const fn frames(&self) -> u64 {
        self.resident as u64 + self.reserve as u64 + self.store as u64
    }
}

/// Why a VM cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Failure {
    /// An evicted page found no room.
    StoreFull = 1,
    /// A page was accessed, and there is no frame.
    NoFrame = 2,
    /// What the store has of a page is not a page.
    Corrupt = 3,
    /// The disk has not given a page back.
    DiskRead = 4,
    /// The disk has not taken a page.
    DiskWrite = 5,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::StoreFull => {
                "the store of its evicted pages is full (they compress badly), and so is the disk for them, if there is one; raise \
                 `resident_mib`, lower `memory_mib`, or give the host more memory or a larger disk for pages"
            }
            Failure::NoFrame => {
                "there is no frame for a page that it accesses; lower `resident_mib` or `memory_mib`, or give the host more memory"
            }
            Failure::Corrupt => "a page in the compressed store is damaged; this is a bug of the hypervisor",
            Failure::DiskRead => "the disk for evicted pages has failed to read one that it accesses; use another disk",
            Failure::DiskWrite => "the disk for evicted pages has failed to write; use another disk, or none",
        })
    }
}

/// The right to take pages away: one processor has it at a time, until its own are stored. Another's could be on their way out
/// while processors still reach their frames.
#[derive(Debug)]
pub struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The pager of one VM.
pub struct Pager {
    state: Mutex<Box<State>>,
    /// Enough has arrived for an eviction, or it has failed.
    wants_service: AtomicBool,
    /// A [`Failure`], or 0.
    failure: AtomicU8,
    /// A processor takes pages away.
    is_busy: AtomicBool,
    budget: Budget,
    policy: PolicyName,
}

impl fmt::Debug for Pager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pager").field("budget", &self.budget).finish_non_exhaustive()
    }
}

/// A page with its frame, for callers that look at access bits or change tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The guest's page.
    pub page: Gfn,
    /// Where it is.
    pub frame: Hfn,
}

/// What the pager must know of pages to choose among them.
pub trait Pages {
    /// Whether it could be absent. One that could not counts as accessed.
    fn is_evictable(&mut self, page: Resident) -> bool;

    /// Whether it was accessed since the last time; clears what says so.
    fn take_accessed(&mut self, page: Resident) -> bool;
}

impl Pager {
    /// A pager for memory of which nothing has been touched.
    ///
    /// # Errors
    /// No memory for its tables. The heap must have room for [`Pager::heap_bytes`].
    pub fn new(
        span: Span,
        budget: Budget,
        policy: PolicyName,
        memory: Box<dyn FrameMemory>,
    ) -> Result<Pager, OutOfMemory> {
        let state = State::new(span, budget, policy, memory)?;
        Ok(Pager {
            state: Mutex::new(Box::new(state)),
            wants_service: AtomicBool::new(false),
            failure: AtomicU8::new(0),
            is_busy: AtomicBool::new(false),
            budget,
            policy,
        })
    }

    /// What [`Pager::new`] takes of the heap, at most.
    pub const fn heap_bytes(budget: Budget, policy: PolicyName) -> u64 {
        let slots = budget.resident as u64 * Replacement::heap_bytes(policy);
        // The last for what arrives while others have lost their frames.
        (64 << 10) + slots + budget.store as u64 * 8 + budget.reserve as u64 * 16 + budget.resident as u64 * 8
    }

    /// How much it may use.
    pub fn budget(&self) -> Budget {
        self.budget
    }

    /// The policy's name.
    pub fn policy(&self) -> PolicyName {
        self.policy
    }

    /// What it has done, and holds now.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts()
    }

    /// Whether [`vm::overcommit`](crate::vm) has something to do: pages to evict, or the VM to end.
    #[inline]
    pub fn wants_service(&self) -> bool {
        self.wants_service.load(Ordering::Acquire)
    }

    /// Why the VM cannot go on, if so.
    pub fn failure(&self) -> Option<Failure> {
        match self.failure.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Failure::StoreFull),
            2 => Some(Failure::NoFrame),
            3 => Some(Failure::Corrupt),
            4 => Some(Failure::DiskRead),
            _ => Some(Failure::DiskWrite),
        }
    }

    fn fail(&self, failure: Failure) {
        let _first = self.failure.compare_exchange(0, failure as u8, Ordering::AcqRel, Ordering::Acquire);
        self.wants_service.store(true, Ordering::Release);
    }

    /// Brings an absent page in, and has `attach` make it present in the P2m. If another processor was first, there is nothing to do.
    /// On a failure the page stays where it is.
    pub fn bring_in(&self, page: Gfn, attach: &mut dyn FnMut(Hfn)) {
        let mut state = self.state.lock();
        if let Err(failure) = state.bring_in(page, attach) {
            drop(state);
            return self.fail(failure);
        }
        if state.is_over(BATCH) {
            self.wants_service.store(true, Ordering::Release);
        }
    }

    /// Begins to take pages away; `None`: another processor does. For [`choose`](Self::choose), [`discard`](Self::discard), and the
    /// calls of [`store`](Self::store) that follow.
    pub fn turn(&self) -> Option<Turn<'_>> {
        (!self.is_busy.swap(true, Ordering::SeqCst)).then_some(Turn(&self.is_busy))
    }

    /// Forgets what a page holds: it is as if it had never been touched. `detach` makes one that is in a frame absent in the P2m, or says
    /// that this cannot be; the caller has all processors forget it, and calls [`store`](Self::store), which gives the frame back.
    /// False: it is no page of RAM, or stays.
    pub fn discard(&self, page: Gfn, detach: &mut dyn FnMut(Hfn) -> bool) -> bool {
        self.state.lock().discard(page, detach)
    }

    /// Sets memory aside for what pages of a VM that discards need later. Before the VM runs.
    ///
    /// # Errors
    /// There is none.
    pub fn expect_discards(&self) -> Result<(), OutOfMemory> {
        self.state.lock().expect_discards()
    }

    /// Gives it a disk, for pages that the store has no room for. Before the VM runs. It takes [`Pager::DISK_HEAP_BYTES`] of the heap.
    ///
    /// # Errors
    /// No memory for what is to be known of it.
    pub fn use_disk(&self, device: Box<dyn PageDisk>) -> Result<(), OutOfMemory> {
        self.state.lock().disk = Some(Disk::new(device)?);
        Ok(())
    }

    /// The objects of pages, if the policy asks for them: who hears of the guest's regions writes there.
    pub fn objects(&self) -> Option<Arc<Objects>> {
        self.state.lock().objects.clone()
    }

    /// What a disk takes of the heap, at most.
    pub const DISK_HEAP_BYTES: u64 = Disk::HEAP_BYTES;

    /// Chooses pages for eviction, in return for those that have arrived, up to [`BATCH`]. They are leaving on return: the caller
    /// makes them absent in the P2m before it unlocks the memory, has all processors forget them, and calls [`Pager::store`].
    pub fn choose(&self, pages: &mut impl Pages) -> Vec<Resident> {
        self.state.lock().choose(pages)
    }

    /// Stores a page that is still leaving; false: there is none. One for which there is no room stays in its frame; `attach` makes it
    /// present again, and the pager has failed. Called until it says false. One at a time, so that others wait for no more than that, and
    /// for what goes to the disk to make room for it.
    pub fn store(&self, attach: &mut dyn FnMut(Resident)) -> bool {
        let mut state = self.state.lock();
        match state.store_one(attach) {
            Ok(true) => true,
            Ok(false) => {
                // Under the lock: an arrival in between is not forgotten.
                let more = state.is_over(BATCH) || self.failure().is_some();
                self.wants_service.store(more, Ordering::Release);
                false
            }
            Err(failure) => {
                drop(state);
                self.fail(failure);
                true
            }
        }
    }

    /// Forgets all contents, for a reset: nothing was ever touched. No processor and no table knows any page.
    pub fn reset(&self) {
        let mut state = self.state.lock();
        state.reset();
        self.failure.store(0, Ordering::Release);
        self.wants_service.store(false, Ordering::Release);
    }

    /// Forgets the contents of all pages in the store, as no pager must.
    #[cfg(any(test, feature = "testing"))]
    pub fn lose_all(&self) {
        self.state.lock().lose_all();
    }

    /// Checks what must hold.
    #[cfg(any(test, feature = "testing"))]
    pub fn check(&self) {
        self.state.lock().check();
    }
}
