//! One pass over the hot pages of a VM: which get on the list, and which are to move.

use alloc::boxed::Box;
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::large::{PieceList, Splits};
use super::list::{HotList, Side};
use super::map::Map;
use super::migration::PIECE;
use super::policy::Bounds;
use super::residents::Residents;
use super::sharing::{Demand, Driver};
use super::{Counts, GROUP, Grain, Heat, MAX_LOOK, MAX_MOVES, MAX_SCAN, Work};
use crate::arch::addr::Gfn;
use crate::mem::pager::Span;

/// What is known of a VM's hot pages.
#[derive(Debug)]
pub struct State {
    /// The hot pages.
    pub list: HotList,
    /// Pages in slow memory that may be on it.
    pub most_slow: u32,
    /// What is in fast memory by 2 MiB.
    pub pieces: PieceList,
    /// The page at which the next look for hot pages begins.
    pub cursor: u32,
    /// What the last pass judged by.
    pub bounds: Bounds,
    /// What the VM asks for.
    pub demand: Demand,
    /// Changes its E-state.
    pub driver: Driver,
    /// Frames of fast memory that it may have.
    pub share: u32,
    /// A policy that says which pages leave; `None`: those that are inactive, as in the thesis.
    pub residents: Option<Box<Residents>>,
    /// Pages that the last pass wants elsewhere; the next one is the last.
    pub pending: Vec<u32>,
    /// What has happened.
    pub counts: Counts,
    /// What was handed out last.
    pub last: Work,
    /// Where its hot pages were, when samples wanted to know.
    pub map: Map,
}

impl State {
    /// Lists hot pages that are not, in a part of the VM's memory.
    pub fn find(&mut self, span: &Span, heat: &impl Heat) -> Splits {
        let mut splits = Splits::new();
        let pages = span.pages();
        let mut left = pages.min(MAX_LOOK);
        while left > 0 {
            // The rest of the entries is for pages of pieces that are split in fast memory.
            if self.list.is_full() || self.list.count(Side::Slow) >= self.most_slow {
                self.counts.overflows += 1;
                break;
            }
            if self.cursor >= pages {
                self.cursor = 0;
            }
            if self.find_piece(span, heat) {
                self.cursor += PIECE as u32;
                left = left.saturating_sub(PIECE as u32);
                continue;
            }
            left = left.saturating_sub(GROUP);
            let (start, first) = (self.cursor, span.page(self.cursor));
            self.cursor += GROUP;
            let mut hot = heat.hot(first, self.bounds.hot);
            if hot == 0 {
                continue;
            }
            if heat.grain(first) != Grain::Page {
                let large = Gfn(first.0 & !511);
                if splits.last() != Some(&large) && splits.try_push(large).is_ok() {
                    self.pieces.wait(start, self.bounds.hot);
                    self.counts.splits += 1;
                }
                continue;
            }
            while hot != 0 {
                let bit = hot.trailing_zeros();
                hot &= hot - 1;
                self.counts.listed += u64::from(self.list.add(start + bit));
            }
        }
        splits
    }

    /// Decides what moves.
    pub fn scan(&mut self, span: &Span, heat: &impl Heat, splits: &mut Splits) {
        if self.residents.is_some() {
            self.scan_by_policy(span, heat, splits);
        } else {
            self.scan_lazily(span, heat, splits);
        }
    }

    /// Looks at the oldest pages of both sides, and decides what moves: inactive pages leave as others need room.
    fn scan_lazily(&mut self, span: &Span, heat: &impl Heat, splits: &mut Splits) {
        self.pending.clear();
        let (slow, fast) = (self.list.count(Side::Slow), self.fast());
        let room = self.share.saturating_sub(fast);
        // Half for each side, and what one does not need for the other: pages in fast memory stay while there is room.
        let is_crowded = fast > self.share || slow.min(MAX_SCAN) > room;
        let of_fast = if is_crowded {
            self.list.count(Side::Fast).min(MAX_SCAN.saturating_sub(slow).max(MAX_SCAN / 2))
        } else {
            0
        };
        let of_slow = slow.min(MAX_SCAN - of_fast);
        let mut wanted: ArrayVec<u32, MAX_MOVES> = ArrayVec::new();
        for _ in 0..of_slow {
            let Some(number) = self.list.next_oldest(Side::Slow) else { break };
            if self.bounds.is_active(heat.history(span.page(number)), Side::Slow) {
                let _rest_waits = wanted.try_push(number);
            } else {
                self.list.remove(number);
                self.counts.dropped += 1;
            }
        }
        let mut excess = self.shrink_pieces(fast.saturating_sub(self.share));
        // Lazily: inactive pages stay as long as nothing wants their frames.
        let mut lacking = (wanted.len() as u32).saturating_sub(room);
        for _ in 0..of_fast {
            if excess == 0 && lacking == 0 || self.pending.len() == MAX_MOVES {
                break;
            }
            let Some(number) = self.list.next_oldest(Side::Fast) else { break };
            let is_active = self.pieces.waits(number)
                || self.bounds.is_active(heat.history(span.page(number)), Side::Fast);
            if excess > 0 {
                // The share has become smaller: all that is older goes, active or not.
                excess -= 1;
            } else if !is_active {
                lacking -= 1;
            } else {
                continue;
            }
            self.pending.push(number);
        }
        self.make_room(span, heat, lacking, splits);
        // Those that go are the last, and so the first to move: they make room.
        let outs = self.pending.len();
        let most = MAX_MOVES - outs;
        let ins = wanted.len().min(room as usize + outs).min(most);
        let ins = if fast > self.share { 0 } else { ins };
        self.pending.splice(0..0, wanted[..ins].iter().rev().copied());
    }
}
