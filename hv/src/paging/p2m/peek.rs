//! What is at an address, for what may never be accessed: absent pages stay so.

use super::{P2m, P2mEntry, P2mKind};
use crate::arch::addr::{Gpa, Hpa};
use crate::mem::table_memory::TableMemory;
use crate::paging::table::{Cursor, Found};

/// What a walk for `gpa` has found, and how many bytes are left of its leaf or hole.
#[inline]
pub(super) fn entry_of(gpa: Gpa, found: Found<P2mKind>) -> (P2mEntry, u64) {
    match found {
        Found::Hole(hole) => (P2mEntry::Hole, (hole.end.0 - gpa.0).max(1)),
        Found::Leaf(leaf) => {
            let offset = gpa.0 - leaf.gpa.0;
            (P2mEntry::new(leaf.attr, Hpa(leaf.to.0 + offset)), leaf.size.bytes() - offset)
        }
    }
}

impl<M: TableMemory> P2m<M> {
    /// What is at `gpa`.
    #[inline]
    pub fn peek(&self, gpa: Gpa) -> P2mEntry {
        self.peek_at(gpa, || self.table.walk(gpa))
    }

    /// The same of pages near each other. The cursor is for these tables, and for as long as they do not change.
    #[inline]
    pub fn peek_by(&self, cursor: &mut Cursor, page: Gpa) -> P2mEntry {
        self.peek_at(page, || self.table.walk_by(cursor, page))
    }

    #[inline]
    fn peek_at(&self, gpa: Gpa, walk: impl FnOnce() -> Found<P2mKind>) -> P2mEntry {
        match self.directory.get(gpa) {
            Some(hpa) => P2mEntry::Ram { hpa, writable: true },
            None => entry_of(gpa, walk()).0,
        }
    }
}
