//! A piece of 2 MiB that is copied in parts, while the guest runs in between.
//!
//! Until it is settled the piece is in no plan and not split, and a run of fast memory is reserved for it, which goes back with
//! [`Tiers::settle_piece`], or when the VM ends.
//!
//! Two ways, by [`Stage`]: the piece stays readable all the time, and is given up at the first write; one that was written lately leaves the
//! tables first, and each page comes back when it is accessed, so that writes do not matter. `vm::tiers` looks after both.

use super::large::Plan;
use super::migration::Move;
use super::pool::FastPool;
use super::task::{PieceWish, Task};
use super::{Outcome, Tiers, Work};

/// Pages of a part, which takes 8192 instructions: not more than the first page of a large leaf that is split for it.
pub const PART: u64 = 16;

/// How far a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is where it was, and this many pages are copied, of which none is used yet. A write makes the copy worthless.
    Protected(u64),
    /// It is absent, and [`Migration`](super::migration::Migration) knows what is copied.
    Absent,
    /// It has come to this, and is one leaf or not. Nested tables may have small leaves still.
    There(Outcome, bool),
}

/// A piece on its way.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    /// What is done.
    pub wish: PieceWish,
    /// Where it comes from, and where it goes.
    pub all: Move,
    /// How far it is.
    pub stage: Stage,
}

impl Moving {
    pub(super) fn plan(&self) -> (u32, Plan) {
        self.wish.plan()
    }

    /// The first frame of the run that is reserved for it. What goes home is still among the pieces in fast memory.
    pub(super) fn run(&self, pool: &FastPool) -> Option<u32> {
        match self.wish.task {
            Task::In(fast) => pool.number(fast),
            Task::Back { .. } | Task::Join => None,
        }
    }
}

impl Tiers {
    /// The piece that is being copied in parts. It comes before all else.
    pub fn moving(&self) -> Option<Moving> {
        let mut state = self.state.lock();
        let moving = state.pieces.moving;
        if moving.is_some() {
            state.last = Work::Piece;
        }
        moving
    }

    /// A piece that [`Tiers::next_piece`] has handed out is at this stage from now on, until it is settled.
    pub fn set_stage(&self, wish: &PieceWish, all: Move, stage: Stage) {
        let mut state = self.state.lock();
        state.pieces.moving = Some(Moving { wish: *wish, all, stage });
        self.show_pending(&state);
    }

    /// Copies the next part of a piece that stays where it is meanwhile.
    pub fn copy_protected(&self, moving: &Moving) {
        let Stage::Protected(done) = moving.stage else { return };
        let copied = done + self.migration.copy_aside(&moving.all, done, PART);
        if let Some(moving) = &mut self.state.lock().pieces.moving {
            moving.stage = Stage::Protected(copied);
        }
    }
}
