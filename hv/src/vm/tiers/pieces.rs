//! Pieces of 2 MiB: they move as one, in the order of a batch of pages, and their leaves are joined.
//!
//! The copy is made in parts, while the guest runs in between ([`parts`](crate::mem::tier::parts)). First the piece loses the right to
//! be written, everywhere, and can be read where it is. When all is copied it leaves the tables, and comes back in its new frames. At the
//! first write before that the copy is given up ([`P2m::translate_to_write`](crate::paging::p2m::P2m::translate_to_write) has made the
//! piece plain RAM, which the next part sees). A piece that was written lately leaves the tables first: what is accessed is copied then, and
//! present in a small leaf until all is. The large leaf comes with the memory locked for writing, when nothing is left to copy. It needs a
//! flush if small leaves were made meanwhile, whose table goes.

use crate::arch::addr::Hfn;
use crate::mem::tier::migration::{Move, PIECE, Way};
use crate::mem::tier::parts::{LOOK, Moving, PART, Stage};
use crate::mem::tier::task::{PieceWish, Task};
use crate::mem::tier::{Outcome, Tiers};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::range::{Changed, GpaRange, OldFrames};
use crate::vm::{HostMemory, MapChanges, Memory, Vm};

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Does what is to be done with a piece on behalf of this VCPU, or begins it; what that leaves for it to do.
    pub(super) fn do_task(&self, tiers: &Tiers, wish: &PieceWish, vcpu: u32, work: &mut u32) -> MapChanges {
        match wish.task {
            Task::Join => self.join_piece(tiers, wish, vcpu, work),
            Task::In(_) | Task::Back { .. } => self.begin_move(tiers, wish, vcpu, work),
        }
    }

    fn begin_move(&self, tiers: &Tiers, wish: &PieceWish, vcpu: u32, work: &mut u32) -> MapChanges {
        match self.withdraw(tiers, wish, None, vcpu, work) {
            Ok((all, Stage::Absent, changes)) if all.way == Way::Discard => {
                self.arrive(tiers, wish, changes, vcpu, work)
            }
            Ok((all, stage, changes)) => {
                tiers.migration.claim(&all);
                tiers.set_stage(wish, all, stage);
                changes
            }
            Err(outcome) => {
                tiers.settle_piece(wish, outcome, false);
                MapChanges::default()
            }
        }
    }

    /// The next part of the piece that is on its way.
    pub(super) fn go_on(&self, tiers: &Tiers, moving: &Moving, vcpu: u32, work: &mut u32) -> MapChanges {
        let wish = &moving.wish;
        match moving.stage {
            Stage::Protected(PIECE) => match self.withdraw(tiers, wish, Some(&moving.all), vcpu, work) {
                Ok((_, _, changes)) => self.arrive(tiers, wish, changes, vcpu, work),
                Err(outcome) => self.give_up(tiers, moving, outcome, work),
            },
            Stage::Protected(done) => {
                if done.is_multiple_of(LOOK) {
                    let found = self.read_memory(work).p2m.movable_piece(wish.page.base());
                    if let Err(outcome) = is_untouched(found, moving.all.from) {
                        return self.give_up(tiers, moving, outcome, work);
                    }
                }
                tiers.copy_protected(moving);
                MapChanges::default()
            }
            Stage::Absent => match tiers.migration.copy_part(PART) {
                Some(_) => MapChanges::default(),
                None => self.arrive(tiers, wish, MapChanges::default(), vcpu, work),
            },
            Stage::There(outcome, is_whole) => {
                let changes = self.close_piece(wish, vcpu, work);
                tiers.settle_piece(wish, outcome, is_whole);
                changes
            }
        }
    }

    /// The copy of a piece is worth nothing: it stays where it is, and may be written.
    fn give_up(&self, tiers: &Tiers, moving: &Moving, outcome: Outcome, work: &mut u32) -> MapChanges {
        self.lock_memory(work).p2m.unprotect_piece(moving.wish.page.base(), moving.all.from);
        tiers.settle_piece(&moving.wish, outcome, false);
        MapChanges::default()
    }

    /// The piece leaves the P2m, the tables and all processors, or is write-protected in all of them. `protected`: it was, and is copied.
    fn withdraw(
        &self,
        tiers: &Tiers,
        wish: &PieceWish,
        protected: Option<&Move>,
        vcpu: u32,
        work: &mut u32,
    ) -> Result<(Move, Stage, MapChanges), Outcome> {
        let start = wish.page.base();
        let (all, stage, change, flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            let found = p2m.movable_piece(start);
            let all = match protected {
                Some(all) => is_untouched(found, all.from).map(|()| *all)?,
                None => to_move(tiers, wish, found.ok_or(Outcome::Pinned)?)?,
            };
            let mut shadow = self.lock_shadow(vcpu, work);
            if shadow.as_mut().is_some_and(|shadow| shadow.has_tables_near(all.from)) {
                return Err(Outcome::Pinned);
            }
            drop(shadow);
            let leaves = protected.is_some() || wish.was_written || all.way == Way::Discard;
            let (stage, change) = if leaves {
                (Stage::Absent, p2m.take_out_piece(start, all.from).ok_or(Outcome::Pinned)?)
            } else {
                (Stage::Protected(0), p2m.protect_piece(start, all.from).ok_or(Outcome::Pinned)?)
            };
            if leaves && !tiers.migration.add_piece(all, protected.is_some()) {
                // Nothing has been told of it.
                let _as_it_was = p2m.put_piece(start, all.from, all.way == Way::Discard);
                return Err(Outcome::Busy);
            }
            (all, stage, change, nested.remove_memory(p2m, change), nested.take_retired(), host.clone())
        };
        let changes = self.translations_changed(vcpu, work, &[change], flush);
        retired.free(&host);
        if stage == Stage::Absent {
            tiers.migration.forgotten();
        }
        Ok((all, stage, changes))
    }

    /// Nothing is left to copy: the piece comes back as one.
    fn arrive(
        &self,
        tiers: &Tiers,
        wish: &PieceWish,
        mut changes: MapChanges,
        vcpu: u32,
        work: &mut u32,
    ) -> MapChanges {
        let start = wish.page.base();
        let (all, outcome, is_whole, was_accessed) = {
            let mut memory = self.lock_memory(work);
            let p2m = &mut memory.p2m;
            let Some((all, frame, is_clean)) = tiers.migration.end_piece() else {
                // It was never taken out.
                tiers.settle_piece(wish, Outcome::Pinned, false);
                return changes;
            };
            let was_accessed = p2m.leaf_range(start).len() < PIECE << 12;
            let is_whole = p2m.put_piece(start, frame, is_clean).is_some();
            let outcome = match all.way {
                _ if frame == all.from => Outcome::Busy,
                Way::In => Outcome::Moved(all.from),
                Way::Back => Outcome::Moved(all.to),
                Way::Discard => Outcome::Discarded,
            };
            (all, outcome, is_whole, was_accessed)
        };
        if was_accessed {
            // What that takes is enough for now.
            tiers.set_stage(wish, all, Stage::There(outcome, is_whole));
            return changes;
        }
        changes.add(self.close_piece(wish, vcpu, work));
        tiers.settle_piece(wish, outcome, is_whole);
        changes
    }

    /// Nested tables have one leaf of a piece that has become present. A fault would do it, too, where not all small leaves are there;
    /// this is cheaper.
    fn close_piece(&self, wish: &PieceWish, vcpu: u32, work: &mut u32) -> MapChanges {
        let (flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            (nested.close(p2m, present(wish)), nested.take_retired(), host.clone())
        };
        let changes = match flush.is_none() {
            true => MapChanges::default(),
            false => self.translations_changed(vcpu, work, &[], flush),
        };
        retired.free(&host);
        changes
    }

    /// Makes the small leaves of a piece one, in the P2m and in nested tables. Shadow tables follow when a fault asks for a leaf there.
    fn join_piece(&self, tiers: &Tiers, wish: &PieceWish, vcpu: u32, work: &mut u32) -> MapChanges {
        let (flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            let was_large = p2m.leaf_range(wish.page.base()).len() >= PIECE << 12;
            let Some((frame, _, changed)) = p2m.join(wish.page.base()) else {
                drop(memory);
                tiers.settle_piece(wish, Outcome::Pinned, false);
                return MapChanges::default();
            };
            let flush = nested.close(p2m, changed);
            // What was one leaf already is not counted.
            tiers.settle_piece(wish, Outcome::Moved(frame), !was_large || !flush.is_none());
            (flush, nested.take_retired(), host.clone())
        };
        let changes = self.translations_changed(vcpu, work, &[], flush);
        retired.free(&host);
        changes
    }
}

/// Where a piece goes that is there now, clean or not.
fn to_move(tiers: &Tiers, wish: &PieceWish, (from, is_clean): (Hfn, bool)) -> Result<Move, Outcome> {
    let (is_there, to, way) = match wish.task {
        Task::Back { fast, home } if is_clean => (from == fast, home, Way::Discard),
        Task::Back { fast, home } => (from == fast, home, Way::Back),
        // A clean one is in fast memory.
        Task::In(fast) => (tiers.is_home(from) && !is_clean, fast, Way::In),
        Task::Join => return Err(Outcome::Pinned),
    };
    if is_there { Ok(Move { page: wish.page, from, to, way }) } else { Err(Outcome::Pinned) }
}

/// Whether a piece that was write-protected in these frames has been neither written nor changed.
fn is_untouched(found: Option<(Hfn, bool)>, from: Hfn) -> Result<(), Outcome> {
    match found {
        Some((at, true)) if at == from => Ok(()),
        Some((at, false)) if at == from => Err(Outcome::Written),
        _ => Err(Outcome::Pinned),
    }
}

/// A piece has become present, which shadow tables need not know.
fn present(wish: &PieceWish) -> Changed {
    let start = wish.page.base();
    let range = GpaRange::new(start, PIECE << 12).unwrap_or(GpaRange { start, end: start });
    Changed { range, was: OldFrames::NONE }
}
