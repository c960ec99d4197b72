//! Pieces of 2 MiB as `vm::tiers` gets them: what is to be done with each, and what became of it.

use super::large::{JOINED, PAGES, Piece, Plan, REFUSED, WRITTEN};
use super::list::Placed;
use super::migration::PIECE;
use super::state::State;
use super::{Outcome, Tiers, Work};
use crate::arch::addr::{Gfn, Hfn};

/// What is to be done with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// To move to fast memory, into the run from this frame on.
    In(Hfn),
    /// To move home.
    Back {
        /// Its first frame in fast memory.
        fast: Hfn,
        /// Its first frame at home.
        home: Hfn,
    },
    /// Its leaves are to be one, where it is.
    Join,
}

/// A piece, and what is to be done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceWish {
    /// The first page.
    pub page: Gfn,
    /// What is to be done.
    pub task: Task,
    /// It was written lately while it was copied in parts.
    pub was_written: bool,
    number: u32,
    is_known: bool,
}

impl PieceWish {
    /// As a pass has planned it.
    pub(super) fn plan(&self) -> (u32, Plan) {
        let plan = match self.task {
            Task::In(_) => Plan::In { is_known: self.is_known },
            Task::Back { .. } => Plan::Back,
            Task::Join => Plan::Join,
        };
        (self.number, plan)
    }
}

impl Tiers {
    /// The next piece to be moved or joined, before all pages. It is to be [settled](Tiers::settle_piece).
    pub fn next_piece(&self) -> Option<PieceWish> {
        let mut state = self.state.lock();
        let state = &mut **state;
        let mut found = None;
        while found.is_none()
            && let Some((number, plan)) = state.pieces.next_plan()
        {
            let page = self.span.page(number);
            let was_written = state.pieces.is(number, WRITTEN);
            let wish = |task, is_known| Some(PieceWish { page, task, was_written, number, is_known });
            found = match plan {
                Plan::In { is_known } => {
                    let has_room = state.fast().saturating_add(PAGES) <= state.share;
                    let run = if has_room { self.pool.take_piece() } else { None };
                    if run.is_none() {
                        state.pieces.block();
                    }
                    run.and_then(|fast| self.pool.frame(fast)).and_then(|fast| wish(Task::In(fast), is_known))
                }
                Plan::Back => state.pieces.get(number).and_then(|piece| {
                    let (fast, home) = (self.pool.frame(piece.fast)?, Hfn(piece.home.into()));
                    wish(Task::Back { fast, home }, piece.is_known)
                }),
                Plan::Join => wish(Task::Join, true),
            };
        }
        if let Some(wish) = &found {
            state.last = if wish.task == Task::Join { Work::Join } else { Work::Piece };
        }
        self.show_pending(state);
        found
    }

    /// What became of a piece. `is_whole`: it has one leaf now, and had more before if it was to be joined.
    pub fn settle_piece(&self, wish: &PieceWish, outcome: Outcome, is_whole: bool) {
        let mut state = self.state.lock();
        let state = &mut **state;
        let number = wish.number;
        state.pieces.moving = None;
        match (wish.task, outcome) {
            (Task::In(fast), Outcome::Moved(home)) => {
                state.counts.moved_in += PIECE;
                state.counts.pieces_in += 1;
                let Some(fast) = self.pool.number(fast) else { return };
                state.unlist(number);
                state.pieces.set(number, WRITTEN, false);
                // `is_home` has refused others.
                state.pieces.add(Piece { number, fast, home: home.0 as u32, is_known: wish.is_known });
                if !is_whole {
                    state.demote(number);
                }
            }
            (Task::In(fast), _) => {
                self.pool.number(fast).into_iter().for_each(|fast| self.pool.give_back_piece(fast));
                state.not_moved(number, outcome);
            }
            (Task::Back { .. }, Outcome::Moved(_) | Outcome::Discarded) => {
                state.counts.moved_out += PIECE;
                state.counts.pieces_out += 1;
                state.counts.discarded += if outcome == Outcome::Discarded { PIECE } else { 0 };
                if let Some(piece) = state.pieces.remove(number) {
                    self.pool.give_back_piece(piece.fast);
                }
                state.pieces.set(number, WRITTEN, false);
            }
            (Task::Back { .. }, _) => {
                state.not_moved(number, outcome);
                if outcome == Outcome::Pinned {
                    // Its pages go one by one, those that can.
                    state.demote(number);
                }
            }
            (Task::Join, _) => {
                state.pieces.set(number, JOINED, true);
                if outcome == Outcome::Pinned {
                    return self.show_pending(state);
                }
                state.counts.joins += u64::from(is_whole);
                if let Some(Placed { fast, home }) = state.list.placed(number) {
                    state.unlist(number);
                    state.pieces.add(Piece { number, fast, home, is_known: true });
                }
            }
        }
        self.show_pending(state);
    }
}

impl State {
    fn not_moved(&mut self, number: u32, outcome: Outcome) {
        match outcome {
            Outcome::Written => {
                self.counts.pieces_written += 1;
                self.pieces.set(number, WRITTEN, true);
            }
            Outcome::Busy => {
                self.counts.busy += PIECE;
                // The next time it leaves before it is copied, and if it is in use even then its pages go one by one.
                let mark = if self.pieces.is(number, WRITTEN) { REFUSED } else { WRITTEN };
                self.pieces.set(number, mark, true);
            }
            _ => {
                self.counts.pinned += PIECE;
                self.pieces.set(number, REFUSED, true);
            }
        }
    }
}
