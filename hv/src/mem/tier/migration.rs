//! Pages on their way between two tiers: one batch at a time.
//!
//! `vm::tiers` takes pages out of the P2m, with the VM's memory locked for writing, and has all processors forget them. Then no processor
//! can write the old frames, and each page is copied and put back. An access meanwhile finds the page absent, and the P2m asks here
//! ([`Migration::bring_in`]): before the processors have forgotten it, it stays where it was; after that, the access copies it.
//! So an access waits for the copy of one page at most, and a page that is always in use moves all the same.
//!
//! What must hold: a page is put back under the lock of this module, once, with the VM's memory locked at least for reading. The lock
//! is a leaf.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use spin::Mutex;

use crate::arch::addr::{Gfn, Hfn};
use crate::mem::pieces::OutOfMemory;

/// Copies frames of guest memory.
pub trait CopyFrame: fmt::Debug + Send + Sync {
    /// Makes the contents of `to` those of `from`. Nothing else reads or writes `to`, and nothing writes `from`.
    fn copy(&self, from: Hfn, to: Hfn);

    /// Clears a frame of fast memory that the VM gives back at its end.
    fn wipe(&self, frame: Hfn);
}

/// A page and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The page.
    pub page: Gfn,
    /// Where it is.
    pub from: Hfn,
    /// Where it shall be.
    pub to: Hfn,
    /// What its contents need.
    pub way: Way,
}

/// From one tier to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To fast memory. The home keeps the contents, and the page is *clean* until it is written.
    In,
    /// Home, after it was written.
    Back,
    /// Home, where the same contents are: nothing is copied.
    Discard,
}

/// What has become of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Absent.
    OnItsWay,
    /// It was accessed too early, and is where it was.
    Stayed,
    /// It is in its new place.
    Moved,
}

#[derive(Debug, Default)]
struct Batch {
    /// Sorted by page.
    moves: Vec<(Move, State)>,
    /// No processor can write the old frames.
    is_copying: bool,
    /// The first that may be on its way.
    next: usize,
}

/// The pages of a VM that are between two tiers.
#[derive(Debug)]
pub struct Migration {
    batch: Mutex<Batch>,
    copier: Box<dyn CopyFrame>,
}

impl Migration {
    /// None, with room for `most` at a time.
    ///
    /// # Errors
    /// No memory.
    pub fn new(most: usize, copier: Box<dyn CopyFrame>) -> Result<Migration, OutOfMemory> {
        let mut moves = Vec::new();
        moves.try_reserve_exact(most).map_err(|_| OutOfMemory)?;
        Ok(Migration { batch: Mutex::new(Batch { moves, is_copying: false, next: 0 }), copier })
    }

    /// Clears a frame that the VM gives back at its end.
    pub(super) fn wipe(&self, frame: Hfn) {
        self.copier.wipe(frame);
    }

    /// A page is about to become absent, which it must until the caller unlocks the VM's memory. False: there is no room, and it must not.
    pub fn add(&self, page: Move) -> bool {
        let mut batch = self.batch.lock();
        let has_room = batch.moves.len() < batch.moves.capacity();
        if has_room {
            let at = batch.moves.partition_point(|(other, _)| other.page.0 < page.page.0);
            batch.moves.insert(at, (page, State::OnItsWay));
        }
        has_room
    }

    /// All processors have forgotten the pages.
    pub fn forgotten(&self) {
        self.batch.lock().is_copying = true;
    }

    /// Puts an absent page back, and has `attach` make it present in the P2m: in this frame, clean or not. If another processor was
    /// first, there is nothing to do.
    pub fn bring_in(&self, page: Gfn, attach: &mut dyn FnMut(Hfn, bool)) {
        let mut batch = self.batch.lock();
        if let Ok(at) = batch.moves.binary_search_by_key(&page.0, |(other, _)| other.page.0) {
            self.put_back(&mut batch, at, attach);
        }
    }

    /// Copies one page that is still on its way, after [`Migration::forgotten`]; false: there is none. One at a time, so that others
    /// wait for no more than that.
    pub fn copy_one(&self, attach: &mut dyn FnMut(Gfn, Hfn, bool)) -> bool {
        let mut batch = self.batch.lock();
        while let Some((page, state)) = batch.moves.get(batch.next).copied() {
            let at = batch.next;
            batch.next += 1;
            if state == State::OnItsWay {
                self.put_back(&mut batch, at, &mut |frame, is_clean| attach(page.page, frame, is_clean));
                return true;
            }
        }
        false
    }

    fn put_back(&self, batch: &mut Batch, at: usize, attach: &mut dyn FnMut(Hfn, bool)) {
        let is_copying = batch.is_copying;
        let (page, state) = &mut batch.moves[at];
        if *state != State::OnItsWay {
            return;
        }
        if is_copying {
            if page.way != Way::Discard {
                self.copier.copy(page.from, page.to);
            }
            *state = State::Moved;
            attach(page.to, page.way == Way::In);
        } else {
            *state = State::Stayed;
            attach(page.from, page.way == Way::Discard);
        }
    }

    /// Ends the batch when [`Migration::copy_one`] has said that there is none left: each page, and whether it has moved.
    pub fn end(&self, mut each: impl FnMut(Move, bool)) {
        let mut batch = self.batch.lock();
        for (page, state) in batch.moves.drain(..) {
            each(page, state == State::Moved);
        }
        (batch.is_copying, batch.next) = (false, 0);
    }
}
