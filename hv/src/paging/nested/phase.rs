//! The tables of a phase: pages of RAM are opened and closed in them, some hundred at a time.

use super::{Nested, Shows, attr};
use crate::arch::addr::{Gfn, Hpa, PageSize};
use crate::mem::table_memory::TableMemory;
use crate::paging::format::{NestedAttr, PteFormat};
use crate::paging::p2m::P2m;
use crate::paging::range::GpaRange;
use crate::paging::table::{Cursor, Found, MapError, Table};

/// Pages of the tables of a phase: each table of leaves is found once for all that lie in it.
#[derive(Debug)]
pub struct PhasePages<'a, F: PteFormat<Attr = NestedAttr>, M: TableMemory, P: TableMemory> {
    nested: &'a mut Nested<F, M>,
    p2m: &'a P2m<P>,
    own: Cursor,
    memory: Cursor,
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory> Nested<F, M> {
    /// Tables of a phase, in which nothing is open: each first access to a page of RAM is a
    /// [`NestedOutcome::Touched`](super::NestedOutcome::Touched).
    ///
    /// # Errors
    /// No memory.
    pub fn for_phase(memory: M) -> Result<Self, MapError> {
        let table = Table::new(memory, PageSize::Size4K)?;
        Ok(Nested { table, lost_bits: true, shows: Shows::Opened })
    }

    /// Whether these are tables of a phase.
    pub fn is_for_phase(&self) -> bool {
        self.shows == Shows::Opened
    }

    /// Whether a page is open in the tables of a phase.
    pub fn is_open(&self, page: Gfn) -> bool {
        matches!(self.table.walk(page.base()), Found::Leaf(_))
    }

    /// To open and close pages in the tables of a phase. `None`: these are others.
    pub fn phase_pages<'a, P: TableMemory>(&'a mut self, p2m: &'a P2m<P>) -> Option<PhasePages<'a, F, M, P>> {
        let (own, memory) = (Cursor::default(), Cursor::default());
        self.is_for_phase().then_some(PhasePages { nested: self, p2m, own, memory })
    }
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory, P: TableMemory> PhasePages<'_, F, M, P> {
    /// Opens a page, and says whether it was closed. Nothing is owed: no processor remembers what was not there.
    ///
    /// # Errors
    /// No memory for tables.
    pub fn open(&mut self, page: Gfn) -> Result<bool, MapError> {
        let entry = self.p2m.peek_by(&mut self.memory, page.base());
        let Some((to, attr)) = attr(entry, self.nested.shows) else { return Ok(false) };
        let table = &mut self.nested.table;
        match table.fill_page(&mut self.own, page.base(), to, attr) {
            Some(was_closed) => Ok(was_closed),
            None => table.map(GpaRange::page(page.base()), to, attr).map(|_empty_entries_are_in_no_tlb| true),
        }
    }

    /// Closes a page until the next touch. The VCPU owes a flush of everything.
    pub fn close(&mut self, page: Gfn) {
        self.nested.table.clear_page(&mut self.own, page.base());
    }

    /// Where a page of RAM is.
    pub fn place(&mut self, page: Gfn) -> Option<Hpa> {
        self.p2m.peek_by(&mut self.memory, page.base()).readable()
    }
}
