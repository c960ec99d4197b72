//! Pages as `vm::tiers` gets them, to move one by one, and what became of each.

use arrayvec::ArrayVec;

use super::list::{Placed, Side};
use super::{BATCH, Tiers, Work};
use crate::arch::addr::{Gfn, Hfn};

/// Pages that one call looks at: those for which there is no room are given up, which takes time, too.
pub(super) const MOST_TRIES: usize = 32;

/// A page that is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The page.
    pub page: Gfn,
    /// Its frame in fast memory, now or after the move.
    pub fast: Hfn,
    /// Its home, if it is to go there; otherwise it is there, and goes to `fast`.
    pub home: Option<Hfn>,
    number: u32,
}

/// What became of a [`Wish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page has moved. It came from this frame, or is there now: its home.
    Moved(Hfn),
    /// The page has gone home, where its contents were still.
    Discarded,
    /// It was accessed when it was about to move.
    Busy,
    /// A piece was written while it was copied in parts.
    Written,
    /// It cannot move now: no plain RAM, or a guest's table that shadow pages are made from.
    Pinned,
}

impl Tiers {
    /// The next pages to move, `most` or fewer. Each is to be [settled](Tiers::settle).
    pub fn batch(&self, most: usize) -> ArrayVec<Wish, BATCH> {
        let mut state = self.state.lock();
        state.last = Work::Pages;
        let mut wishes = ArrayVec::new();
        let mut tries = 0..MOST_TRIES;
        while wishes.len() < most.clamp(1, BATCH)
            && tries.next().is_some()
            && let Some(number) = state.pending.pop()
        {
            let page = self.span.page(number);
            match (state.list.side(number), state.list.placed(number)) {
                (Some(Side::Fast), Some(Placed { fast, home })) => {
                    let Some(fast) = self.pool.frame(fast) else { continue };
                    wishes.push(Wish { page, fast, home: Some(Hfn(home.into())), number });
                }
                (Some(Side::Slow), _) => {
                    let has_room = state.fast() + ins(&wishes) < state.share;
                    let fast = if has_room { self.pool.take() } else { None };
                    match fast.and_then(|fast| self.pool.frame(fast)) {
                        Some(fast) => wishes.push(Wish { page, fast, home: None, number }),
                        None if state.residents.is_some() && wishes.len() as u32 > ins(&wishes) => {
                            // It comes in the place of a page that leaves with this batch: with the next one.
                            state.pending.push(number);
                            break;
                        }
                        None => {
                            state.release(number);
                            if has_room {
                                break;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        self.show_pending(&state);
        wishes
    }

    /// What became of a page of a batch.
    pub fn settle(&self, wish: &Wish, outcome: Outcome) {
        let mut state = self.state.lock();
        let Some(fast) = self.pool.number(wish.fast) else { return };
        match (outcome, wish.home) {
            (Outcome::Moved(home), None) => {
                state.counts.moved_in += 1;
                // `is_home` has refused others.
                let home = home.0 as u32;
                state.list.place(wish.number, Some(Placed { fast, home }));
                return;
            }
            (Outcome::Moved(_) | Outcome::Discarded, _) => {
                state.counts.moved_out += 1;
                state.counts.discarded += u64::from(outcome == Outcome::Discarded);
                state.list.place(wish.number, None);
                state.list.remove(wish.number);
            }
            (Outcome::Busy | Outcome::Written, _) => state.counts.busy += 1,
            (Outcome::Pinned, _) => state.counts.pinned += 1,
        }
        let is_still_there = matches!(outcome, Outcome::Busy | Outcome::Pinned) && wish.home.is_some();
        if is_still_there {
            state.admit_present(wish.number);
        } else {
            match outcome {
                Outcome::Pinned => state.refuse(wish.number),
                _ => state.release(wish.number),
            }
            self.pool.give_back(fast);
        }
    }
}

/// Frames of fast memory that these will take.
fn ins(wishes: &[Wish]) -> u32 {
    wishes.iter().filter(|wish| wish.home.is_none()).count() as u32
}
