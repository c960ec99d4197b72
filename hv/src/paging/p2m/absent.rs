//! RAM that a pager holds, or that moves to another frame: how pages become absent and present.
//!
//! An absent page has a leaf of 4 KiB of its own kind, so that it comes and goes without tables. What must hold: a page becomes absent
//! with the P2m borrowed exclusively, and the engines are told; it becomes present under the lock of the pager, or of the migration, with
//! the P2m shared.

use alloc::sync::Arc;

use super::{P2m, P2mEntry, P2mKind};
use crate::arch::addr::{Gpa, Hfn, Hpa, PageSize};
use crate::mem::pager::Pager;
use crate::mem::table_memory::TableMemory;
use crate::mem::tier::migration::Migration;
use crate::paging::range::{Changed, GpaRange, OldFrames};
use crate::paging::table::{Found, MapError};

impl<M: TableMemory> P2m<M> {
    /// Makes `range` RAM that a pager holds, in leaves of 4 KiB, which stay: a page comes and goes without a table. For a P2m
    /// that no engine has seen.
    ///
    /// # Errors
    /// No frames for its tables.
    pub fn map_absent(&mut self, range: GpaRange, pager: &Arc<Pager>) -> Result<(), MapError> {
        self.pager = Some(pager.clone());
        let _no_engine = self.map(range, Hpa(range.start.0), P2mKind::Absent { home: None })?;
        self.split(range, PageSize::Size4K)
    }

    /// Takes a page away that the pager is about to hold: [`Pager::store`] says when its frame is free. `None`: it is not plain RAM
    /// now, and stays.
    pub fn evict(&mut self, page: Gpa, frame: Hfn) -> Option<Changed> {
        let home = self.evictable(page, frame)?;
        // No table is needed: the leaf is one of 4 KiB since `map_absent`. What the index and the change say is known without a look
        // at the pages around, of which a batch would have to look at many.
        let _software_tables_need_none = self.table.set_page(page, Hpa(page.0), P2mKind::Absent { home })?;
        self.directory.forget(page);
        let mut was = OldFrames::NONE;
        was.add(frame, 1);
        Some(Changed::new(GpaRange::page(page), was))
    }

    /// Pages of it may move from now on: accesses to one that is absent ask `migration`. A VM has this or a pager.
    pub fn set_migration(&mut self, migration: &Arc<Migration>) {
        self.migration = Some(migration.clone());
    }

    /// Takes a page away that moves to another frame. A large leaf is split. `None`: it is not plain RAM in this frame now, or there is
    /// no memory for a table; it stays.
    pub fn take_out(&mut self, page: Gpa, frame: Hfn) -> Option<Changed> {
        if self.movable(page)?.0 != frame {
            return None;
        }
        self.split(GpaRange::page(page), PageSize::Size4K).ok()?;
        self.evict(page, frame)
    }

    /// Takes all RAM of `range` away, open in all cache domains: the pager forgets it, and the engines must be told.
    pub fn evict_all(&mut self, range: GpaRange) {
        let result = self.table.protect(range, |kind| match kind {
            P2mKind::Ram { .. } | P2mKind::Local { .. } | P2mKind::Clean { .. } | P2mKind::Absent { .. } => {
                P2mKind::Absent { home: None }
            }
            other => other,
        });
        // Leaves are of 4 KiB and change in place, which needs no memory.
        let _the_caller_tells_all = self.changed(range, OldFrames::UNKNOWN, result);
    }

    /// Whether a pager may hold a part of it.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_paged(&self) -> bool {
        self.pager.is_some()
    }

    /// Whether pages may be absent at times.
    #[cfg(any(test, feature = "testing"))]
    pub fn may_be_absent(&self) -> bool {
        self.is_paged() || self.migration.is_some()
    }

    /// The first stretch of `range` where there is nothing.
    pub fn first_hole(&self, range: GpaRange) -> Option<GpaRange> {
        let mut rest = range;
        while !rest.is_empty() {
            let (entry, len) = self.run(rest.start, rest.len());
            let (found, after) = rest.split_at(len);
            if entry == P2mEntry::Hole {
                return Some(found);
            }
            rest = after;
        }
        None
    }

    /// Whether a page is RAM that could be absent: in this frame, with a leaf of 4 KiB, and the guest may write it. The cache domain
    /// that it is mapped to, if any.
    pub fn evictable(&self, page: Gpa, frame: Hfn) -> Option<Option<u8>> {
        match self.table.walk(page) {
            Found::Leaf(leaf) if leaf.size == PageSize::Size4K && leaf.to == frame.base() => {
                match leaf.attr {
                    P2mKind::Ram { writable: true } => Some(None),
                    P2mKind::Local { writable: true, home } => Some(Some(home)),
                    P2mKind::Clean { home } => Some(home),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Puts the frame of an absent page back. Only the pager's callers: under its lock, so that each page is brought in once. Needs
    /// no exclusive access and no flush: no table and no processor knows an absent page.
    pub fn attach(&self, page: Gpa, frame: Hfn) {
        let present = |kind| match kind {
            P2mKind::Absent { home } => Some(P2mKind::ram(true, home)),
            _ => None,
        };
        self.table.fill_leaf(page, frame.base(), present);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn bring_in(&self, gpa: Gpa) -> P2mEntry {
        if let Some(pager) = &self.pager {
            pager.bring_in(gpa.frame(), &mut |frame| self.attach(gpa, frame));
        } else if let Some(migration) = &self.migration {
            migration.bring_in(gpa.frame(), &mut |frame, is_clean| self.attach_moved(gpa, frame, is_clean));
        }
        self.entry(gpa).0
    }

    /// As [`run`](Self::run), for an access: the page of `gpa` is brought in if it is absent.
    #[inline]
    pub fn run_present(&self, gpa: Gpa, max: u64) -> (P2mEntry, u64) {
        match self.run(gpa, max) {
            (P2mEntry::Absent { .. }, _) => {
                // One that is absent all the same: the caller stops here.
                self.bring_in(gpa);
                self.run(gpa, max)
            }
            found => found,
        }
    }
}
