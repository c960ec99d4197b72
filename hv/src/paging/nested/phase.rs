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
        let filled = table.fill_page(&mut self.own, page.base(), to, attr);
        let is_as_wanted = match filled {
            Some(true) => true,
            // A clean page that is open can be read, until its first write: from then on the P2m allows more.
            Some(false) => match table.walk_by(&mut self.own, page.base()) {
                Found::Leaf(leaf) => (leaf.to, leaf.attr) == (to, attr),
                Found::Hole(_) => false,
            },
            None => false,
        };
        if !is_as_wanted {
            let _nothing_was_there_or_only_a_right_more = table.map(GpaRange::page(page.base()), to, attr)?;
        }
        Ok(filled != Some(false))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Access;
    use crate::arch::addr::Hfn;
    use crate::paging::arena::Arena;
    use crate::paging::format::{ept::Ept, npt::Npt};
    use crate::paging::nested::NestedOutcome;
    use crate::paging::nested_trees::NestedTrees;
    use crate::paging::tree_key::TreeKey;

    /// A clean page that a phase has opened takes one fault more at its first write, and no further ones.
    fn clean_pages_are_opened_for_writes<F: PteFormat<Attr = NestedAttr>>() {
        const HOST: Hpa = Hpa(1 << 30);
        let arena = Arena::new(100);
        let (mut p2m, mut trees) = NestedTrees::<F, _>::of_domains(&arena, 2 << 20, HOST, 1);
        let phase = TreeKey::new(0, 1).unwrap();
        trees.add_for_phase(phase, &arena).unwrap();
        let page = Gfn(5);
        for is_open_before in [false, true] {
            let changed = p2m.protect_piece(page.base().align_down(2 << 20), HOST.frame()).unwrap();
            let _no_processor_remembers = trees.remove_memory(&p2m, changed);
            let open =
                |trees: &mut NestedTrees<F, _>| trees.tree_mut(phase).phase_pages(&p2m).unwrap().open(page);
            if is_open_before {
                assert_eq!(open(&mut trees), Ok(true));
            }
            let write =
                |trees: &mut NestedTrees<F, _>| trees.tree_mut(phase).fault(page.base(), Access::WRITE, &p2m);
            assert!(
                matches!(write(&mut trees), Ok(NestedOutcome::Touched)),
                "it is seen, and closed or clean"
            );
            assert_eq!(open(&mut trees), Ok(!is_open_before));
            assert!(matches!(write(&mut trees), Ok(NestedOutcome::Spurious)), "it may be written now");
            assert_eq!(open(&mut trees), Ok(false), "it was open");
            assert_eq!(p2m.movable(page.base()), Some((Hfn(HOST.frame().0 + 5), false)));
        }
    }

    #[test]
    fn clean_pages_are_opened_for_writes_in_a_phase() {
        clean_pages_are_opened_for_writes::<Npt>();
        clean_pages_are_opened_for_writes::<Ept>();
    }
}
