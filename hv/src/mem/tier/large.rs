//! Pieces of 2 MiB that move as one, and leaves that are joined again.
//!
//! A large leaf tells of 512 pages by one bit. While the VM's share has room, finding out which of the pages are hot brings nothing, and
//! the leaf moves as it is. When more looks hot than the share has room for, all leaves that look hot are split, in slow memory and in
//! fast memory, so that both kinds of page tell of themselves at the same time. The oldest one in fast memory is split, too, when
//! pages wait for room. Small leaves move as a piece when nearly all pages are hot, each by its own bit ([`NEARLY_ALL`]); such a piece
//! is split for room only after some passes, and joined again if they still are.
//!
//! Small leaves are joined where their pages are alike and in one tier: at home if none was accessed in 32 samples, in fast memory if
//! nearly all are hot and they are in one run.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::list::{HotList, Placed, Side};
use super::migration::PIECE;
use super::parts::Moving;
use super::policy::Histogram;
use super::state::State;
use super::{GROUP, Grain, Heat, MAX_SPLITS};
use crate::arch::addr::Gfn;
use crate::mem::pager::Span;
use crate::mem::pieces::OutOfMemory;

/// Pieces that one pass has moved, split or joined.
pub const MAX_PIECES: usize = 4;
/// Hot pages of a piece with small leaves from which on it moves as one: fifteen of sixteen. The others take fast memory that
/// is not worth more than the entries of tables and TLBs that a large leaf saves.
const NEARLY_ALL: u32 = 480;
/// Passes after which what could not move or be joined is tried again.
const AGAIN: u64 = 64;
/// Pieces that one pass looks at for one to be joined.
const LOOK_FOR_COLD: u32 = 16;
/// Pieces that one pass looks at for room.
const LOOK_FOR_ROOM: usize = 16;
/// Pages of a piece.
pub(super) const PAGES: u32 = PIECE as u32;

/// What a pass wants of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    In { is_known: bool },
    Back,
    Join,
}

/// The large leaves that a pass has split, by their first pages.
pub type Splits = ArrayVec<Gfn, MAX_SPLITS>;

/// A piece in fast memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// The number of its first page.
    pub number: u32,
    /// The number of its first frame in the pool.
    pub fast: u32,
    /// Its first frame in slow memory.
    pub home: u32,
    /// Nearly all of its pages are hot: each has shown it by its own bit.
    pub is_known: bool,
}

/// It could not move lately.
pub(super) const REFUSED: u16 = 1;
/// It has been joined lately, or could not be.
pub(super) const JOINED: u16 = 2;
/// It is in fast memory as one.
const IS_FAST: u16 = 4;
/// It was written lately while it was copied in parts, or accessed when it was to leave: the copy was of no use.
pub(super) const WRITTEN: u16 = 8;
/// From this bit on: passes until pages whose leaf was split can have shown that they are hot. Their histories begin again with the split,
/// so that all seem cold.
const WAITS: u16 = 16;
/// The bits of these passes.
const ANY_WAIT: u16 = !(WAITS - 1);

/// The pieces of a VM.
#[derive(Debug)]
pub struct PieceList {
    /// Those in fast memory, the oldest first.
    fast: VecDeque<Piece>,
    /// Of each 512 pages.
    marks: Vec<u16>,
    plans: ArrayVec<(u32, Plan), MAX_PIECES>,
    /// What a pass before has planned, and is being done.
    pub(super) moving: Option<Moving>,
    /// Where to look for pieces to be joined.
    cursor: u32,
    /// Passes left for which no run of fast memory is free.
    blocked: u32,
    /// Pieces whose pages cannot have shown yet whether they are hot.
    unsure: u32,
}

impl PieceList {
    /// Of a VM with `pages` pages, beside `fast` frames of fast memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new(pages: u32, fast: u32) -> Result<PieceList, OutOfMemory> {
        let (mut list, mut marks) = (VecDeque::new(), Vec::new());
        list.try_reserve_exact((fast / PAGES) as usize).map_err(|_| OutOfMemory)?;
        marks.try_reserve_exact(pages.div_ceil(PAGES) as usize).map_err(|_| OutOfMemory)?;
        marks.resize(pages.div_ceil(PAGES) as usize, 0);
        let plans = ArrayVec::new();
        Ok(PieceList { fast: list, marks, plans, moving: None, cursor: 0, blocked: 0, unsure: 0 })
    }

    /// Bytes of host memory.
    pub const fn bytes_for(pages: u32, fast: u32) -> usize {
        (fast / PAGES) as usize * size_of::<Piece>() + pages.div_ceil(PAGES) as usize * 2
    }

    /// Pages in fast memory that are parts of pieces.
    pub fn pages(&self) -> u32 {
        self.fast.len() as u32 * PAGES
    }

    /// Each run of fast frames that a piece has, by the number of the first.
    pub fn runs(&self) -> impl Iterator<Item = u32> + '_ {
        self.fast.iter().map(|piece| piece.fast)
    }

    /// The piece in fast memory with this number.
    pub(super) fn get(&self, number: u32) -> Option<Piece> {
        self.fast.iter().find(|piece| piece.number == number).copied()
    }

    /// The next that is to be done.
    pub(super) fn next_plan(&mut self) -> Option<(u32, Plan)> {
        self.plans.pop_at(0)
    }

    /// No run of fast memory is free.
    pub(super) fn block(&mut self) {
        self.blocked = AGAIN as u32;
    }

    /// Whether something is to be done.
    pub fn has_plans(&self) -> bool {
        self.all_plans().next().is_some()
    }

    /// With what is being done.
    fn all_plans(&self) -> impl Iterator<Item = (u32, Plan)> {
        self.moving.iter().map(Moving::plan).chain(self.plans.iter().copied())
    }

    /// Whether the piece is being moved.
    fn is_moving(&self, number: u32) -> bool {
        self.moving.is_some_and(|moving| moving.plan().0 == number)
    }

    pub(super) fn is(&self, number: u32, mark: u16) -> bool {
        self.marks.get((number / PAGES) as usize).is_some_and(|marks| marks & mark != 0)
    }

    /// Whether the page cannot have shown yet if it is hot: its leaf was split lately.
    pub(super) fn waits(&self, number: u32) -> bool {
        self.is(number, ANY_WAIT)
    }

    /// A leaf is split: for this many passes its pages seem colder than they are.
    pub(super) fn wait(&mut self, number: u32, passes: u8) {
        if let Some(marks) = self.marks.get_mut((number / PAGES) as usize) {
            *marks = *marks % WAITS + u16::from(passes) * WAITS;
        }
    }

    pub(super) fn set(&mut self, number: u32, mark: u16, on: bool) {
        if let Some(marks) = self.marks.get_mut((number / PAGES) as usize) {
            *marks = if on { *marks | mark } else { *marks & !mark };
        }
    }

    pub(super) fn add(&mut self, piece: Piece) {
        // There are no more than the pool has runs.
        self.set(piece.number, if piece.is_known { IS_FAST | JOINED } else { IS_FAST }, true);
        self.fast.push_back(piece);
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Piece> {
        let at = self.fast.iter().position(|piece| piece.number == number)?;
        self.set(number, IS_FAST, false);
        self.fast.remove(at)
    }

    /// The oldest, which is the newest now.
    fn next_oldest(&mut self) -> Option<Piece> {
        self.fast.rotate_left(usize::from(!self.fast.is_empty()));
        self.fast.back().copied()
    }

    /// Pages that plans take of the room in fast memory.
    fn planned(&self) -> u32 {
        let ins = self.all_plans().filter(|(_, plan)| matches!(plan, Plan::In { .. }));
        ins.count() as u32 * PAGES
    }

    /// Whether the page is to come to fast memory with its piece.
    pub(super) fn is_to_come(&self, page: u32) -> bool {
        self.all_plans()
            .any(|(number, plan)| page / PAGES == number / PAGES && matches!(plan, Plan::In { .. }))
    }

    /// Frames that a share has beside pieces: without those that are to come, and with those of pieces that are to go home.
    pub(super) fn left_of(&self, share: u32) -> u32 {
        let backs = self.all_plans().filter(|(_, plan)| *plan == Plan::Back).count() as u32 * PAGES;
        share.saturating_sub(self.planned()).saturating_sub(self.pages().saturating_sub(backs))
    }

    /// A pass begins.
    pub fn begin(&mut self, pass: u64) {
        self.plans.clear();
        self.blocked = self.blocked.saturating_sub(1);
        self.unsure = 0;
        let kept = if pass.is_multiple_of(AGAIN) { !(REFUSED | JOINED | WRITTEN) } else { u16::MAX };
        for marks in &mut self.marks {
            *marks = (*marks & kept) - if *marks >= WAITS { WAITS } else { 0 };
            self.unsure += u32::from(*marks >= WAITS);
        }
    }
}

/// The first page of the piece with this number, if it is one: whole, and at an address of 2 MiB.
fn first_of(span: &Span, number: u32) -> Option<Gfn> {
    let last = number.checked_add(PAGES - 1).filter(|last| *last < span.pages())?;
    let first = span.page(number);
    (number.is_multiple_of(PAGES)
        && first.0.is_multiple_of(PIECE)
        && span.page(last).0 == first.0 + PIECE - 1)
        .then_some(first)
}

/// Pages of a piece with this number of ones or more.
fn hot_pages(heat: &impl Heat, first: Gfn, least: u8) -> u32 {
    let groups = (0..PIECE / u64::from(GROUP)).map(|n| Gfn(first.0 + n * u64::from(GROUP)));
    groups.map(|group| heat.hot(group, least).count_ones()).sum()
}

impl State {
    /// Its pages in fast memory.
    pub fn fast(&self) -> u32 {
        self.list.count(Side::Fast) + self.pieces.pages()
    }

    /// Looks at the piece at the cursor. True: its pages need no look one by one.
    pub fn find_piece(&mut self, span: &Span, heat: &impl Heat) -> bool {
        let number = self.cursor;
        let Some(first) = first_of(span, number) else { return false };
        if self.pieces.is(number, IS_FAST) || self.pieces.is_moving(number) {
            return true;
        }
        let hot = hot_pages(heat, first, self.bounds.hot);
        if hot == 0 {
            return true;
        }
        if self.pieces.is(number, REFUSED) {
            return false;
        }
        let is_known = heat.grain(first) == Grain::Page;
        if is_known && hot < NEARLY_ALL {
            return false;
        }
        if let Some(placed) = self.list.placed(number) {
            let is_joinable =
                !self.pieces.is(number, JOINED | ANY_WAIT) && is_run(&self.list, number, placed);
            if is_joinable {
                let _rest_waits = self.pieces.plans.try_push((number, Plan::Join));
            }
            return is_joinable;
        }
        // What waits in the list is hot for sure, and a large leaf is not.
        let wait = if is_known { 0 } else { self.list.count(Side::Slow) };
        let taken = self.fast().saturating_add(self.pieces.planned()).saturating_add(wait);
        let has_room = self.pieces.blocked == 0 && taken.saturating_add(PAGES) <= self.share;
        if !has_room || (1..PAGES).any(|n| self.list.placed(number + n).is_some()) {
            return false;
        }
        let _rest_waits = self.pieces.plans.try_push((number, Plan::In { is_known }));
        true
    }

    /// Looks for a piece at home whose pages are all cold, and whose leaves are small.
    pub fn find_cold(&mut self, span: &Span, heat: &impl Heat) {
        for _ in 0..LOOK_FOR_COLD.min(span.pages() / PAGES) {
            let number = self.pieces.cursor;
            self.pieces.cursor = if number + PAGES < span.pages() { number + PAGES } else { 0 };
            let Some(first) = first_of(span, number) else { continue };
            let is_cold = !self.pieces.is(number, IS_FAST | JOINED | ANY_WAIT)
                && !self.pieces.is_moving(number)
                && hot_pages(heat, first, 1) == 0
                && heat.grain(first) == Grain::Page
                && (0..PAGES).all(|n| self.list.side(number + n).is_none());
            if is_cold {
                let _rest_waits = self.pieces.plans.try_push((number, Plan::Join));
                return;
            }
        }
    }

    /// Has pieces leave fast memory for a share that has become smaller; what is left of the `excess`.
    pub fn shrink_pieces(&mut self, mut excess: u32) -> u32 {
        for _ in 0..self.pieces.fast.len() {
            if excess == 0 || excess < PAGES && excess <= self.list.count(Side::Fast) {
                break;
            }
            let Some(piece) = self.pieces.next_oldest() else { break };
            // One may be on its way home.
            if !self.pieces.is_moving(piece.number)
                && self.pieces.plans.try_push((piece.number, Plan::Back)).is_err()
            {
                break;
            }
            excess = excess.saturating_sub(PAGES);
        }
        excess
    }

    /// Has the pieces in fast memory split that have moved as they were, if more looks hot than there is room for.
    pub fn split_for_all(&mut self, span: &Span, histogram: &Histogram, splits: &mut Splits) {
        let hot = histogram.iter().skip(self.bounds.hot.into()).fold(0u32, |sum, n| sum.saturating_add(*n));
        if hot.saturating_add(self.pieces.unsure * PAGES) <= self.share {
            return;
        }
        for _ in 0..self.pieces.fast.len().min(LOOK_FOR_ROOM) {
            let Some(piece) = self.pieces.next_oldest() else { return };
            if !piece.is_known && !self.pieces.all_plans().any(|plan| plan == (piece.number, Plan::Back)) {
                self.split(span, piece.number, splits);
            }
        }
    }

    /// Splits a piece in fast memory, if the pass may split one more.
    fn split(&mut self, span: &Span, number: u32, splits: &mut Splits) {
        if splits.try_push(span.page(number)).is_ok() {
            self.demote(number);
            self.counts.splits += 1;
        }
    }

    /// Has inactive pieces leave for pages that lack room, and splits one if that is not enough.
    pub fn make_room(&mut self, span: &Span, heat: &impl Heat, mut lacking: u32, splits: &mut Splits) {
        let (mut to_split, mut again) = (None, None);
        for _ in 0..self.pieces.fast.len().min(LOOK_FOR_ROOM) {
            if lacking == 0 || self.pieces.plans.is_full() {
                return;
            }
            let Some(piece) = self.pieces.next_oldest() else { return };
            if self.pieces.is_moving(piece.number) {
                lacking = lacking.saturating_sub(PAGES);
            } else if hot_pages(heat, span.page(piece.number), self.bounds.least_active()) == 0 {
                self.pieces.plans.push((piece.number, Plan::Back));
                lacking = lacking.saturating_sub(PAGES);
            } else if !piece.is_known {
                to_split.get_or_insert(piece.number);
            } else if !self.pieces.is(piece.number, JOINED) {
                // It was hot some passes ago; by one bit it cannot show that most of it is not any more.
                again.get_or_insert(piece.number);
            }
        }
        if let Some(number) = to_split.or(again).filter(|_| lacking > 0) {
            self.split(span, number, splits);
        }
    }

    /// The pages of a piece in fast memory are in the list one by one from now on.
    pub(super) fn demote(&mut self, number: u32) {
        let Some(piece) = self.pieces.remove(number) else { return };
        self.pieces.wait(number, self.bounds.hot);
        for n in 0..PAGES {
            // There is an entry for each frame of fast memory.
            self.list.add(number + n);
            self.list.place(number + n, Some(Placed { fast: piece.fast + n, home: piece.home + n }));
            self.admit_present(number + n);
        }
    }

    pub(super) fn unlist(&mut self, number: u32) {
        if self.list.has_any(number..number + PAGES) {
            for n in 0..PAGES {
                self.list.place(number + n, None);
                self.list.remove(number + n);
                self.release(number + n);
            }
        }
    }
}

/// Whether the pages of a piece are in fast memory in one run, with their homes in another.
fn is_run(list: &HotList, number: u32, first: Placed) -> bool {
    (1..PAGES).all(|n| list.placed(number + n) == Some(Placed { fast: first.fast + n, home: first.home + n }))
}

#[cfg(test)]
mod tests;
