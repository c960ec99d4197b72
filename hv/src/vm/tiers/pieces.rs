//! Pieces of 2 MiB: they move as one, in the order of a batch of pages, and their leaves are joined.
//!
//! Other VCPUs wait for the copy of one page at most: what they access is copied first, and present in a small leaf until all is. The
//! large leaf comes with the memory locked for writing, when nothing is left to copy. It needs a flush if a VCPU has had small
//! leaves made meanwhile, whose table goes.

use crate::mem::tier::migration::{Move, PIECE, Way};
use crate::mem::tier::task::{PieceWish, Task};
use crate::mem::tier::{Outcome, Tiers};
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::range::{Changed, GpaRange, OldFrames};
use crate::vm::{HostMemory, MapChanges, Memory, Vm};

impl<F: PteFormat<Attr = NestedAttr>, M: HostMemory> Vm<F, M> {
    /// Does what is to be done with a piece on behalf of this VCPU; what that leaves for it to do.
    pub(super) fn do_task(&self, tiers: &Tiers, wish: &PieceWish, vcpu: u32, work: &mut u32) -> MapChanges {
        match wish.task {
            Task::Join => self.join_piece(tiers, wish, vcpu, work),
            Task::In(_) | Task::Back { .. } => self.move_piece(tiers, wish, vcpu, work),
        }
    }

    fn move_piece(&self, tiers: &Tiers, wish: &PieceWish, vcpu: u32, work: &mut u32) -> MapChanges {
        let mut changes = match self.take_piece_out(tiers, wish, vcpu, work) {
            Ok(changes) => changes,
            Err(outcome) => {
                tiers.settle_piece(wish, outcome, false);
                return MapChanges::default();
            }
        };
        tiers.migration.forgotten();
        tiers.migration.copy_piece(None);
        let (outcome, is_whole, flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            let Some((piece, frame, is_clean)) = tiers.migration.end_piece() else { return changes };
            let is_whole = p2m.put_piece(wish.page.base(), frame, is_clean).is_some();
            let outcome = match piece.way {
                _ if frame == piece.from => Outcome::Busy,
                Way::In => Outcome::Moved(piece.from),
                Way::Back => Outcome::Moved(piece.to),
                Way::Discard => Outcome::Discarded,
            };
            // A fault would do it, too; this is cheaper.
            let flush = nested.close(p2m, present(wish));
            (outcome, is_whole, flush, nested.take_retired(), host.clone())
        };
        if !flush.is_none() {
            changes.add(self.translations_changed(vcpu, work, &[], flush));
        }
        retired.free(&host);
        tiers.settle_piece(wish, outcome, is_whole);
        changes
    }

    /// The piece leaves the P2m, the tables and all processors.
    fn take_piece_out(
        &self,
        tiers: &Tiers,
        wish: &PieceWish,
        vcpu: u32,
        work: &mut u32,
    ) -> Result<MapChanges, Outcome> {
        let start = wish.page.base();
        let (change, flush, retired, host) = {
            let mut memory = self.lock_memory(work);
            let Memory { p2m, nested, host, .. } = &mut *memory;
            let (from, is_clean) = p2m.movable_piece(start).ok_or(Outcome::Pinned)?;
            let (is_there, to, way) = match wish.task {
                Task::Back { fast, home } if is_clean => (from == fast, home, Way::Discard),
                Task::Back { fast, home } => (from == fast, home, Way::Back),
                // A clean one is in fast memory.
                Task::In(fast) => (tiers.is_home(from) && !is_clean, fast, Way::In),
                Task::Join => return Err(Outcome::Pinned),
            };
            let has_tables =
                self.lock_shadow(vcpu, work).as_ref().is_some_and(|shadow| shadow.has_tables_near(from));
            if !is_there || has_tables {
                return Err(Outcome::Pinned);
            }
            let change = p2m.take_out_piece(start, from).ok_or(Outcome::Pinned)?;
            if !tiers.migration.add_piece(Move { page: wish.page, from, to, way }) {
                // Nothing has been told of it.
                let _as_it_was = p2m.put_piece(start, from, is_clean);
                return Err(Outcome::Busy);
            }
            (change, nested.remove_memory(p2m, change), nested.take_retired(), host.clone())
        };
        let changes = self.translations_changed(vcpu, work, &[change], flush);
        retired.free(&host);
        Ok(changes)
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

/// A piece has become present, which shadow tables need not know.
fn present(wish: &PieceWish) -> Changed {
    let start = wish.page.base();
    let range = GpaRange::new(start, PIECE << 12).unwrap_or(GpaRange { start, end: start });
    Changed { range, was: OldFrames::NONE }
}
