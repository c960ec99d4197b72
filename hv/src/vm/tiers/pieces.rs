//! Pieces of 2 MiB: they move as one, in the order of a batch of pages, and their leaves are joined.
//!
//! The copy is made in parts, while the guest runs in between ([`parts`](crate::mem::tier::parts)). First the piece loses the right to
//! be written, everywhere, and can be read where it is. When all is copied, all that leads to it leads to the copy. At the first write
//! before that the copy is given up ([`P2m::translate_to_write`](crate::paging::p2m::P2m::translate_to_write) has made the piece plain
//! RAM, which the next part sees). A piece that was written lately leaves the tables first: what is accessed is copied then, and present in
//! a small leaf until all is. The large leaf comes with the memory locked for writing, when nothing is left to copy. It needs a flush if
//! small leaves were made meanwhile, whose table goes.

use crate::arch::addr::Hfn;
use crate::mem::tier::migration::{Move, PIECE, Way};
use crate::mem::tier::parts::{Moving, PART, Stage};
use crate::mem::tier::task::{PieceWish, Task};
use crate::mem::tier::{Outcome, Tiers};
use crate::paging::engine::Engine;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::nested_trees::NestedTrees;
use crate::paging::p2m::P2m;
use crate::paging::range::{Changed, Flush, GpaRange, OldFrames};
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
        let found = self.read_memory(work).p2m.movable_piece(wish.page.base());
        let begun =
            found.ok_or(Outcome::Pinned).and_then(|found| to_move(tiers, wish, found)).and_then(|mut all| {
                if all.way == Way::Discard {
                    match self.replace(&all, vcpu, work) {
                        Ok(changes) => {
                            tiers.settle_piece(wish, Outcome::Discarded, true);
                            return Ok(changes);
                        }
                        // Just now: it is to be copied.
                        Err(Outcome::Written) => all.way = Way::Back,
                        Err(outcome) => return Err(outcome),
                    }
                }
                let (stage, changes) = self.withdraw(tiers, wish, &all, vcpu, work)?;
                tiers.migration.claim(&all);
                tiers.set_stage(wish, all, stage);
                Ok(changes)
            });
        begun.unwrap_or_else(|outcome| {
            tiers.settle_piece(wish, outcome, false);
            MapChanges::default()
        })
    }

    /// The next part of the piece that is on its way.
    pub(super) fn go_on(&self, tiers: &Tiers, moving: &Moving, vcpu: u32, work: &mut u32) -> MapChanges {
        let wish = &moving.wish;
        match moving.stage {
            Stage::Protected(PIECE) => match self.replace(&moving.all, vcpu, work) {
                Ok(changes) => {
                    tiers.settle_piece(wish, there(&moving.all), true);
                    changes
                }
                Err(outcome) => self.give_up(tiers, moving, outcome, work),
            },
            Stage::Protected(_) => {
                if tiers.migration.take_changed() {
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

    /// The piece is write-protected in the P2m, the tables and all processors, or leaves them if it was written lately.
    fn withdraw(
        &self,
        tiers: &Tiers,
        wish: &PieceWish,
        all: &Move,
        vcpu: u32,
        work: &mut u32,
    ) -> Result<(Stage, MapChanges), Outcome> {
        let start = wish.page.base();
        let (stage, change, flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            if self.has_tables(all, vcpu, work) {
                return Err(Outcome::Pinned);
            }
            let (stage, change) = if wish.was_written {
                (Stage::Absent, p2m.take_out_piece(start, all.from).ok_or(Outcome::Pinned)?)
            } else {
                (Stage::Protected(0), p2m.protect_piece(start, all.from).ok_or(Outcome::Pinned)?)
            };
            match stage {
                Stage::Absent if !tiers.migration.add_piece(*all) => {
                    // Nothing has been told of it.
                    let _as_it_was = p2m.put_piece(start, all.from, false);
                    return Err(Outcome::Busy);
                }
                Stage::Protected(_) => tiers.migration.watch(wish.page),
                _ => {}
            }
            let flush = self.follow_nested(nested, p2m, change);
            (stage, change, flush, nested.take_retired(), host.clone())
        };
        let changes = self.translations_changed(vcpu, work, &[change], flush);
        retired.free(&host);
        if stage == Stage::Absent {
            tiers.migration.forgotten();
        }
        Ok((stage, changes))
    }

    /// A piece that cannot be written and has a copy is where the copy is. The memory stays locked until all processors have forgotten
    /// where it was: what one writes to the copy before, others would not see, which still read the other frames.
    fn replace(&self, all: &Move, vcpu: u32, work: &mut u32) -> Result<MapChanges, Outcome> {
        let start = all.page.base();
        let mut memory = self.lock_memory(work);
        let Memory { p2m, nested, host, .. } = &mut *memory;
        is_untouched(p2m.movable_piece(start), all.from)?;
        if self.has_tables(all, vcpu, work) {
            return Err(Outcome::Pinned);
        }
        let change = p2m.replace_piece(start, all.from, all.to).ok_or(Outcome::Pinned)?;
        let flush = self.follow_nested(nested, p2m, change);
        let changes = self.translations_changed(vcpu, work, &[change], flush);
        nested.take_retired().free(host);
        if all.way != Way::In {
            p2m.unprotect_piece(start, all.to);
        }
        Ok(changes)
    }

    /// Nested tables follow a step of a move. Those that no processor uses now are filled again when one does.
    fn follow_nested(&self, nested: &mut NestedTrees<F, M>, p2m: &P2m<M>, change: Changed) -> Flush {
        match self.translation.in_force() {
            Engine::Shadow => nested.drop_changed(change),
            Engine::Nested | Engine::Agile => nested.remove_memory(p2m, change),
        }
    }

    /// Whether there are shadowed tables of the guest in a piece: their loss costs the faults that fill all their shadow pages again.
    fn has_tables(&self, all: &Move, vcpu: u32, work: &mut u32) -> bool {
        self.lock_shadow(vcpu, work).as_ref().is_some_and(|shadow| shadow.has_tables_near(all.from))
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
            let outcome = if frame == all.from { Outcome::Busy } else { there(&all) };
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

/// What has become of a piece that is in its new frames.
fn there(all: &Move) -> Outcome {
    match all.way {
        Way::In => Outcome::Moved(all.from),
        Way::Back => Outcome::Moved(all.to),
        Way::Discard => Outcome::Discarded,
    }
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
    Changed::new(range, OldFrames::NONE)
}
