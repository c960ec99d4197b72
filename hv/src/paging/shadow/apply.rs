//! Changes of the P2m: whatever was made from memory that is elsewhere now, or not writable any more, goes, and nothing else. Of memory
//! that moves as 2 MiB leaves stay ([`Kept`]).
//!
//! A change says which host frames its range was in ([`OldFrames`](crate::paging::range::OldFrames)). The reverse maps name the
//! leaves of each, and the table of numbers the shadow pages whose guest table is there. What has become memory needs nothing:
//! shadow tables hold nothing of what is none, but for roots.
//!
//! Not in any reverse map, and so found by other means:
//!
//! - pages of PAE page-directory pointers: their number is a guest address, and the range says whether it is concerned;
//! - roots that stand for a CR3 without memory: there may be memory now;
//! - leaves that have gone without a flush, because the guest owes one: processors may reach the old frame through them until
//!   then ([`Pool::has_stale`](super::pool::Pool::has_stale)).
//!
//! Unsync pages stay as they are: a change of the P2m is no flush of the guest's.

use super::pool::{LARGE_FRAMES, PageId};
use super::shootdown::View;
use super::{Reload, Shadow, TlbFlush};
use crate::arch::addr::{Gpa, Hfn};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use crate::paging::guest_walk::PagingKind;
use crate::paging::range::{Changed, GpaRange, Kept, OldFrames};

/// Frames that are looked up one by one. For more, one look at all pages in use is cheaper.
const FEW: u64 = 4096;

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// Takes over changes of the P2m. On return no other VCPU uses what was there before; the caller's processor does as soon as it
    /// has flushed, and has found its root again if that is asked for. One shootdown at most, and none if no processor can hold a
    /// translation to what has changed.
    ///
    /// Changes of which the old places are not known drop all shadow pages.
    pub fn apply(&mut self, changes: &[Changed]) -> (Option<Reload>, TlbFlush) {
        let changes = || changes.iter().filter(|change| !change.range.is_empty());
        if changes().next().is_none() {
            return (None, TlbFlush::None);
        }
        // Not their sum: that tells a few runs apart, and a batch of pages is many.
        let runs = || changes().filter_map(|change| change.was.runs()).flatten().copied();
        let are_few = runs().map(|run| run.1).sum::<u64>() <= FEW;
        let are_known = changes().all(|change| change.was.runs().is_some());
        let many = if are_few { None } else { changes().copied().reduce(Changed::and).map(|all| all.was) };
        if !are_known || many.is_some_and(|was| was.runs().is_none()) {
            let (reload, flush) = self.drop_everything();
            return (Some(reload), flush);
        }
        self.begin();
        // CR3 may lead to another root now.
        self.recent.forget_roots();
        self.views.iter_mut().for_each(View::forget_roots);
        let mut zapped = false;
        if are_few {
            for change in changes() {
                for &(start, frames) in change.was.runs().into_iter().flatten() {
                    zapped |= self.follow_run(start, frames, change.kept);
                }
            }
        } else if let Some(runs) = many.as_ref().and_then(OldFrames::runs) {
            for id in self.pool.tables_in(runs) {
                self.free(id);
                zapped = true;
            }
            zapped |= self.pool.unmap_runs(runs);
        }
        for change in changes() {
            zapped |= self.clear_pointers(change.range);
        }
        let reload = self.pool.lost_roots();
        if reload {
            self.pool.forget_roots();
        }
        if reload || zapped || runs().next().is_some() && self.pool.has_stale() {
            self.pool.owe_all();
            self.pool.shoot_down(reload);
        }
        (reload.then_some(Reload), self.pool.take_owed_and(TlbFlush::None))
    }

    /// Whether a frame holds a guest's table that is shadowed.
    pub fn is_table(&self, frame: Hfn) -> bool {
        self.pool.shadows(frame).next().is_some()
    }

    /// Whether the 2 MiB that a frame is in hold a guest's table that is shadowed.
    pub fn has_tables_near(&self, frame: Hfn) -> bool {
        self.pool.has_tables_near(frame)
    }

    /// Nothing leads to these frames any more but what may be `kept`, and nothing is made from tables there. Whether anything was.
    fn follow_run(&mut self, first: Hfn, frames: u64, kept: Kept) -> bool {
        let mut any = false;
        let (mut from, end) = (first.0, first.0 + frames);
        let is_piece = frames == LARGE_FRAMES && first.0.is_multiple_of(LARGE_FRAMES);
        while from < end {
            // What concerns 2 MiB as a whole is asked once.
            let next = end.min((from | (LARGE_FRAMES - 1)) + 1);
            any |= match kept {
                // The guest's tables are where they were.
                Kept::Reads if is_piece => self.pool.keep_reads(first),
                Kept::ReadsAt(to) if is_piece && !self.pool.has_tables_near(first) => {
                    self.pool.lead_to(first, to)
                }
                _ => self.forget_run(Hfn(from), next - from),
            };
            from = next;
        }
        any
    }

    /// The same of all that leads to frames in the same 2 MiB.
    fn forget_run(&mut self, first: Hfn, frames: u64) -> bool {
        let mut any = false;
        if self.pool.has_tables_near(first) {
            for frame in first.0..first.0 + frames {
                while let Some(id) = self.pool.nth_shadow(Hfn(frame), 0) {
                    self.free(id);
                    any = true;
                }
            }
        }
        self.pool.unmap(first, frames) | any
    }

    /// Faults read the page-directory pointers in `range` again; whether any were in use.
    fn clear_pointers(&mut self, range: GpaRange) -> bool {
        let concerned = |id: PageId| {
            let key = self.pool.page(id).key;
            let is_pae = key.is_top() && key.kind() == PagingKind::Pae;
            is_pae
                && range.contains(Gpa(key.number() << 5 & 0xffff_ffe0))
                && self.pool.page(id).next_present(0).is_some()
        };
        let roots: alloc::vec::Vec<PageId> = self.pool.roots().filter(|&id| concerned(id)).collect();
        for &root in &roots {
            self.pool.clear(root);
        }
        !roots.is_empty()
    }
}

#[cfg(test)]
mod tests;
