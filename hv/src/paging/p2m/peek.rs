//! Pages that are looked up one after the other, near each other.

use super::{P2m, P2mEntry};
use crate::arch::addr::{Gpa, Hpa};
use crate::mem::table_memory::TableMemory;
use crate::paging::table::{Cursor, Found};

impl<M: TableMemory> P2m<M> {
    /// What [`P2m::peek`] says. The cursor is for these tables, and for as long as they do not change.
    #[inline]
    pub fn peek_by(&self, cursor: &mut Cursor, page: Gpa) -> P2mEntry {
        if let Some(hpa) = self.directory.get(page) {
            return P2mEntry::Ram { hpa, writable: true };
        }
        match self.table.walk_by(cursor, page) {
            Found::Hole(_) => P2mEntry::Hole,
            Found::Leaf(leaf) => P2mEntry::new(leaf.attr, Hpa(leaf.to.0 + (page.0 - leaf.gpa.0))),
        }
    }
}
