//! Which pages leave fast memory, where a policy of [`replace`](crate::mem::replace) says so (`fast-evict`):
//! docs/design/0032-fast-eviction.md.
//!
//! Each hot page in slow memory that is to move is a fault of the policy's; the page that it evicts is to leave. So none leaves while none
//! comes, and none while there is room. [`Residents`] has the policy's side of it.
//!
//! Pieces of 2 MiB keep their rules ([`large`](super::large)). What they take is not the policy's: it has as many frames as the share has
//! beside pieces, those that come counted, and those that leave not. Pieces that are cold leave before pages do.
//!
//! Time: a pass hands over at most [`MAX_MOVES`] pages, and none any more when the policy has gone over
//! [`MAX_STEPS`](super::residents::MAX_STEPS) entries. From then on no access bit is set, so that the search that it is at ends with the
//! next page that could leave.

use alloc::boxed::Box;
use alloc::sync::Arc;

use abi::config::Replacement;
use arrayvec::ArrayVec;

use super::large::Splits;
use super::list::Side;
use super::residents::Residents;
use super::state::State;
use super::{Heat, MAX_MOVES, MAX_SCAN, Tiers};
use crate::mem::objects::Objects;
use crate::mem::pager::Span;
use crate::mem::pieces::OutOfMemory;

/// Pages that are to move, the next one first.
#[derive(Default)]
struct Moves {
    ins: ArrayVec<u32, MAX_MOVES>,
    outs: ArrayVec<u32, MAX_MOVES>,
}

impl Moves {
    /// Whether one page more can come, and two leave.
    fn has_room(&self) -> bool {
        self.ins.len() + self.outs.len() + 3 <= MAX_MOVES
    }
}

impl Tiers {
    /// Has a policy say which pages leave fast memory.
    ///
    /// # Errors
    /// No memory for its tables: see [`Residents::bytes_for`].
    pub fn evict_by(mut self, name: Replacement) -> Result<Tiers, OutOfMemory> {
        let residents = Residents::new(name, self.span, self.pool.total())?;
        self.state.get_mut().residents = Some(Box::new(residents));
        Ok(self)
    }

    /// The objects of pages, if such a policy asks for them: who hears of the guest's regions writes there.
    pub fn objects(&self) -> Option<Arc<Objects>> {
        self.state.lock().residents.as_ref()?.objects().cloned()
    }
}

impl State {
    /// Decides what moves, as [`State::scan`] does: the policy names the pages that leave.
    pub fn scan_by_policy(&mut self, span: &Span, heat: &impl Heat, splits: &mut Splits) {
        let mut moves = Moves::default();
        let mut wanted = ArrayVec::new();
        if let Some(residents) = &mut self.residents {
            residents.begin();
        }
        self.sort_pending(span, heat, &mut wanted, &mut moves.outs);
        self.find_candidates(span, heat, &mut wanted);
        let (fast, leaving) = (self.fast(), moves.outs.len() as u32);
        let excess = self.shrink_pieces(fast.saturating_sub(self.share + leaving));
        let room = (self.share + leaving).saturating_sub(fast);
        self.make_room(span, heat, (wanted.len() as u32).saturating_sub(room), splits);
        let is_above = fast > self.share;
        self.choose(span, heat, if is_above { &[] } else { &wanted }, excess, &mut moves);
        if is_above {
            // They are not to come for now, and take the place of no page.
            wanted.iter().for_each(|page| self.release(*page));
        }
        if self.residents.as_ref().is_some_and(|residents| residents.has_searched()) {
            self.keep_rest(&mut moves);
        }
        self.pending.extend(moves.ins.iter().rev().chain(moves.outs.iter().rev()));
    }

    /// Keeps pages that were to leave for others which do not come, because the policy had searched for long enough before them.
    fn keep_rest(&mut self, moves: &mut Moves) {
        let for_pieces = (self.share - self.pieces.left_of(self.share)).saturating_sub(self.pieces.pages());
        self.keep_beyond(&mut moves.outs, moves.ins.len() as u32 + for_pieces);
    }

    /// Of pages that were to leave keeps all but those that lack room where this many `come`.
    fn keep_beyond(&mut self, outs: &mut ArrayVec<u32, MAX_MOVES>, come: u32) {
        let lacking = (self.fast() + come).saturating_sub(self.share) as usize;
        outs.drain(lacking.min(outs.len())..).for_each(|page| self.admit_present(page));
    }

    /// Moves that the last pass wanted and that were not tried: those that are to come still are if they are active, and do not come
    /// with a piece; of those that are to leave, as many as lack room.
    fn sort_pending(
        &mut self,
        span: &Span,
        heat: &impl Heat,
        wanted: &mut ArrayVec<u32, MAX_MOVES>,
        outs: &mut ArrayVec<u32, MAX_MOVES>,
    ) {
        let Some(residents) = &mut self.residents else { return };
        for page in self.pending.drain(..).rev() {
            match self.list.side(page) {
                // There is room: nothing else is here yet.
                Some(Side::Fast) => outs.push(page),
                Some(Side::Slow)
                    if self.bounds.is_active(heat.history(span.page(page)), Side::Slow)
                        && !self.pieces.is_to_come(page) =>
                {
                    wanted.push(page);
                }
                _ => residents.remove(page),
            }
        }
        self.keep_beyond(outs, wanted.len() as u32);
    }

    /// Looks at the oldest pages in slow memory, as the thesis has it.
    fn find_candidates(&mut self, span: &Span, heat: &impl Heat, wanted: &mut ArrayVec<u32, MAX_MOVES>) {
        for _ in 0..self.list.count(Side::Slow).min(MAX_SCAN) {
            let Some(page) = self.list.next_oldest(Side::Slow) else { break };
            let residents = self.residents.as_ref();
            if residents.is_some_and(|residents| residents.has(page)) {
                continue;
            }
            if self.bounds.is_active(heat.history(span.page(page)), Side::Slow) {
                // For those that do not come no piece is to make room, either.
                if !self.pieces.is_to_come(page)
                    && residents.is_some_and(|residents| residents.may_come(page))
                {
                    let _rest_waits = wanted.try_push(page);
                }
            } else {
                self.list.remove(page);
                self.release(page);
                self.counts.dropped += 1;
            }
        }
    }

    /// Asks the policy who leaves: `excess` pages, for which none comes, and one for each of the `wanted` that finds no room.
    fn choose(&mut self, span: &Span, heat: &impl Heat, wanted: &[u32], excess: u32, moves: &mut Moves) {
        let State { residents: Some(residents), list, pieces, counts, .. } = self else { return };
        residents.touch(span, heat, pieces);
        let frames = pieces.left_of(self.share);
        residents.limit(frames.max(1));
        let mut leaves = |page: u32, moves: &mut Moves| {
            if list.side(page) == Some(Side::Fast) {
                counts.evicted += 1;
                moves.outs.push(page);
            } else {
                // It was still to come.
                moves.ins.retain(|other| *other != page);
            }
        };
        for _ in 0..excess {
            if !moves.has_room() || residents.has_searched() {
                return;
            }
            residents.evict(span, heat, pieces).into_iter().for_each(|page| leaves(page, moves));
        }
        for page in wanted {
            if !moves.has_room() || residents.has_searched() || frames == 0 {
                if residents.has(*page) {
                    residents.remove(*page);
                }
                continue;
            }
            if residents.count() > frames {
                // One that could not leave, or pieces have taken some of the frames.
                residents.evict(span, heat, pieces).into_iter().for_each(|page| leaves(page, moves));
            }
            if !residents.has(*page) {
                residents.admit(*page, span, heat, pieces).into_iter().for_each(|page| leaves(page, moves));
            }
            moves.ins.push(*page);
        }
    }

    /// A page that was to come does not.
    pub fn release(&mut self, page: u32) {
        if let Some(residents) = &mut self.residents {
            residents.remove(page);
        }
    }

    /// A page was to come, and the tables did not allow it.
    pub fn refuse(&mut self, page: u32) {
        if let Some(residents) = &mut self.residents {
            residents.refuse(page);
        }
    }

    /// A page is in fast memory that the policy has not let in, or has told to leave.
    pub fn admit_present(&mut self, page: u32) {
        if let Some(residents) = &mut self.residents {
            residents.admit_present(page);
        }
    }
}

#[cfg(test)]
mod tests;
