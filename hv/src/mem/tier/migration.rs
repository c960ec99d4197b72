//! Pages on their way between two tiers: one batch at a time.
//!
//! `vm::tiers` takes pages out of the P2m, with the VM's memory locked for writing, and has all processors forget them. Then no processor
//! can write the old frames, and each page is copied and put back. An access meanwhile finds the page absent, and the P2m asks here
//! ([`Migration::bring_in`]): before the processors have forgotten it, it stays where it was; after that, the access copies it.
//! So an access waits for the copy of one page at most, and a page that is always in use moves all the same.
//!
//! A piece of 2 MiB moves as one, alone. Its pages are copied in parts, each under the lock, and a page becomes present before all are
//! copied only if it is accessed. Or it never is absent: all are copied while it can be read where it is ([`Migration::copy_aside`]).
//!
//! What must hold: a page is put back under the lock of this module, once, with the VM's memory locked at least for reading. The lock
//! is a leaf.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use spin::Mutex;

use crate::arch::addr::{Gfn, Hfn};
use crate::mem::pieces::OutOfMemory;

/// Pages of a piece that moves as one: 2 MiB.
pub const PIECE: u64 = 512;

/// Copies frames of guest memory.
pub trait CopyFrame: fmt::Debug + Send + Sync {
    /// Frames that are about to get contents are the VM's.
    fn claim(&self, _first: Hfn, _frames: u64) {}

    /// Makes the contents of `to` those of `from`. Nothing else reads or writes `to`. If something writes `from`, the contents of `to` are
    /// never used.
    fn copy(&self, from: Hfn, to: Hfn);

    /// The same for neighbours, for which nothing waits.
    fn copy_all(&self, from: Hfn, to: Hfn, frames: u64) {
        (0..frames).for_each(|n| self.copy(Hfn(from.0 + n), Hfn(to.0 + n)));
    }

    /// The same, one after the other, until `stop` is not 0; how many are copied, at least one.
    fn copy_run(&self, from: Hfn, to: Hfn, frames: u64, stop: &AtomicU32) -> u64 {
        let mut done = 0;
        while done < frames && (done == 0 || stop.load(Ordering::Relaxed) == 0) {
            self.copy(Hfn(from.0 + done), Hfn(to.0 + done));
            done += 1;
        }
        done
    }

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

/// A piece on its way; `page` and the frames are its first ones.
#[derive(Debug)]
struct Piece {
    all: Move,
    /// A bit for each page that is copied.
    copied: [u64; (PIECE / 64) as usize],
    /// It was accessed too early, and stays as a whole where it was.
    stays: bool,
}

impl Piece {
    /// Where it is going to be, and whether it is clean there.
    fn place(&self) -> (Hfn, bool) {
        match self.stays {
            true => (self.all.from, self.all.way == Way::Discard),
            false => (self.all.to, self.all.way == Way::In),
        }
    }

    /// Copies a page that is not yet.
    fn copy(&mut self, n: u64, copier: &dyn CopyFrame) {
        if !self.is_copied(n) {
            self.set_copied(n);
            copier.copy(Hfn(self.all.from.0 + n), Hfn(self.all.to.0 + n));
        }
    }

    fn is_copied(&self, n: u64) -> bool {
        self.copied[(n / 64) as usize] >> (n % 64) & 1 != 0
    }

    fn set_copied(&mut self, n: u64) {
        self.copied[(n / 64) as usize] |= 1 << (n % 64);
    }

    /// Marks a run, which [`Piece::next_run`] has named.
    fn set_run_copied(&mut self, first: u64, count: u64) {
        let mask = u64::MAX.checked_shr(64 - count as u32).unwrap_or(0);
        self.copied[(first / 64) as usize] |= mask << (first % 64);
    }

    /// The first pages that are not copied yet, neighbours, at most 64; and how many.
    fn next_run(&self) -> Option<(u64, u64)> {
        let at = self.copied.iter().position(|word| *word != u64::MAX)?;
        let word = self.copied[at];
        let first = word.trailing_ones();
        Some((at as u64 * 64 + u64::from(first), u64::from((word >> first).trailing_zeros().min(64 - first))))
    }
}

#[derive(Debug, Default)]
struct Batch {
    piece: Option<Piece>,
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
    /// Accesses that wait for the batch.
    waiting: AtomicU32,
    /// The first page of a piece that is copied where it is in use; all ones: there is none.
    watched: AtomicU64,
    /// It was written, or the map has changed there.
    has_changed: AtomicBool,
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
        Ok(Migration {
            batch: Mutex::new(Batch { moves, piece: None, is_copying: false, next: 0 }),
            waiting: AtomicU32::new(0),
            watched: AtomicU64::new(u64::MAX),
            has_changed: AtomicBool::new(false),
            copier,
        })
    }

    /// Clears a frame that the VM gives back at its end.
    pub(super) fn wipe(&self, frame: Hfn) {
        self.copier.wipe(frame);
    }

    /// A page is about to become absent, which it must until the caller unlocks the VM's memory. False: there is no room, and it must not.
    pub fn add(&self, page: Move) -> bool {
        let mut batch = self.batch.lock();
        let has_room = batch.moves.len() < batch.moves.capacity() && batch.piece.is_none();
        if has_room {
            let at = batch.moves.partition_point(|(other, _)| other.page.0 < page.page.0);
            batch.moves.insert(at, (page, State::OnItsWay));
        }
        has_room
    }

    /// The same for a piece of 2 MiB. False: something else is on its way.
    pub fn add_piece(&self, all: Move) -> bool {
        let mut batch = self.batch.lock();
        let is_alone = batch.moves.is_empty() && batch.piece.is_none();
        if is_alone {
            batch.piece = Some(Piece { all, copied: [0; (PIECE / 64) as usize], stays: false });
        }
        is_alone
    }

    /// All processors have forgotten the pages.
    pub fn forgotten(&self) {
        self.batch.lock().is_copying = true;
    }

    /// Puts an absent page back, and has `attach` make it present in the P2m: in this frame, clean or not. If another processor was
    /// first, there is nothing to do.
    pub fn bring_in(&self, page: Gfn, attach: &mut dyn FnMut(Hfn, bool)) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut batch = self.batch.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let number = |piece: &Piece| page.0.checked_sub(piece.all.page.0).filter(|n| *n < PIECE);
        if let Some(n) = batch.piece.as_ref().and_then(number) {
            self.put_back_of_piece(&mut batch, n, attach);
        } else if let Ok(at) = batch.moves.binary_search_by_key(&page.0, |(other, _)| other.page.0) {
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

    fn put_back_of_piece(&self, batch: &mut Batch, n: u64, attach: &mut dyn FnMut(Hfn, bool)) {
        let Batch { piece: Some(piece), is_copying, .. } = batch else { return };
        piece.stays |= !*is_copying;
        if !piece.stays && piece.all.way != Way::Discard {
            piece.copy(n, &*self.copier);
        }
        let (frame, is_clean) = piece.place();
        attach(Hfn(frame.0 + n), is_clean);
    }

    /// Copies the next pages of a piece after [`Migration::forgotten`], neighbours and at most `most`; the last of them. `None`: there is
    /// none left. Ends early for an access that waits.
    pub fn copy_part(&self, most: u64) -> Option<u64> {
        let mut batch = self.batch.lock();
        let piece = batch.piece.as_mut().filter(|piece| !piece.stays && piece.all.way != Way::Discard)?;
        let (first, left) = piece.next_run()?;
        let (from, to) = (Hfn(piece.all.from.0 + first), Hfn(piece.all.to.0 + first));
        let done = self.copier.copy_run(from, to, left.min(most), &self.waiting);
        piece.set_run_copied(first, done);
        Some(first + done - 1)
    }

    /// Frames of a piece are the VM's, before any of it is copied there.
    pub fn claim(&self, all: &Move) {
        self.copier.claim(all.to, PIECE);
    }

    /// Copies at most `most` pages of a piece that is still in use where it is, from page `first` on; how many. The copies count only if
    /// nothing was written until the piece is replaced.
    pub fn copy_aside(&self, all: &Move, first: u64, most: u64) -> u64 {
        let frames = most.min(PIECE.saturating_sub(first));
        self.copier.copy_all(Hfn(all.from.0 + first), Hfn(all.to.0 + first), frames);
        frames
    }

    /// Looks from now on whether the piece with this first page changes: with the VM's memory locked for writing, and the piece
    /// write-protected.
    pub fn watch(&self, page: Gfn) {
        self.watched.store(page.0, Ordering::Relaxed);
        self.has_changed.store(false, Ordering::Relaxed);
    }

    /// A clean page is plain RAM now, or the map has changed from here on, for some pages.
    pub fn changed(&self, page: Gfn, pages: u64) {
        let watched = self.watched.load(Ordering::Relaxed);
        if page.0 < watched.saturating_add(PIECE) && watched < page.0.saturating_add(pages) {
            self.has_changed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the piece may have changed since the last time. What the P2m says decides; this spares looks at it while nothing happens.
    pub fn take_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed) && self.has_changed.swap(false, Ordering::Relaxed)
    }

    /// Ends the move of a piece that is copied, with the VM's memory locked for writing. The piece, the first of the frames that it is to be
    /// in now, and whether it is clean there.
    pub fn end_piece(&self) -> Option<(Move, Hfn, bool)> {
        let mut batch = self.batch.lock();
        batch.is_copying = false;
        let piece = batch.piece.take()?;
        let (frame, is_clean) = piece.place();
        Some((piece.all, frame, is_clean))
    }

    fn put_back(&self, batch: &mut Batch, at: usize, attach: &mut dyn FnMut(Hfn, bool)) {
        let is_copying = batch.is_copying;
        let (page, state) = &mut batch.moves[at];
        if *state != State::OnItsWay {
            return;
        }
        if is_copying {
            if page.way != Way::Discard {
                self.copier.claim(page.to, 1);
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
