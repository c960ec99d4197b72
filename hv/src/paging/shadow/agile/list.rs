//! Which parts of each address space are nested, for people.

use super::super::Shadow;
use super::super::pool::PageId;
use crate::arch::addr::Gfn;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::PteFormat;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

/// An address space, and the shadow pages of its tables as they are reached from its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgileSpace {
    /// Where the guest's root table is.
    pub root: Gfn,
    /// For how long it has run, in nanoseconds of the VM's time, as far as that is known.
    pub own: u64,
    /// By level, from 1 on: tables that are shadowed, and nested.
    pub levels: [(u32, u32); 4],
}

impl<M: TableMemory, F: PteFormat> Shadow<M, F> {
    /// All address spaces with four levels that have shadow pages. Tables that several have in common count in each.
    pub fn agile_spaces(&self) -> Vec<AgileSpace> {
        let is_root = |&id: &PageId| {
            let page = self.pool.page(id);
            page.is_in_use() && page.key.is_nestable() && page.key.level() == 4
        };
        (0..self.pool.end()).filter(is_root).map(|id| self.space(id)).collect()
    }

    fn space(&self, id: PageId) -> AgileSpace {
        let page = self.pool.page(id);
        let (root, number) = (page.gfn, page.key.number());
        let spaces = self.agile.as_ref().map_or(&[][..], |agile| &agile.spaces);
        let own = spaces.iter().find(|space| space.root == number).map_or(0, |space| space.own);
        let mut levels = [(0, 0); 4];
        self.count(id, &mut BTreeSet::new(), &mut levels);
        AgileSpace { root, own, levels }
    }

    fn count(&self, id: PageId, seen: &mut BTreeSet<PageId>, levels: &mut [(u32, u32); 4]) {
        let page = self.pool.page(id);
        if !page.key.is_table() || !seen.insert(id) {
            return;
        }
        let level = page.key.level();
        if let Some((shadowed, nested)) = levels.get_mut(usize::from(level) - 1) {
            *(if page.nested { nested } else { shadowed }) += 1;
        }
        let mut from = 0;
        while level > 1
            && let Some(index) = page.next_present(from)
        {
            from = index + 1;
            if let Some(child) = self.pool.child(id, index) {
                self.count(child, seen, levels);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::AgileTimes;
    use super::*;
    use crate::arch::Access;
    use crate::arch::addr::{Gpa, Gva, PAGE_SIZE};
    use crate::paging::shadow::tests::{STATE, with_guest};
    use crate::paging::shadow::{AddressSpace, PageFault};
    use crate::paging::vm_memory::VmMemory;

    /// Two address spaces with the root in pages 1 and 7, and one table of level 3 below both.
    #[test]
    fn address_spaces_are_counted_level_by_level() {
        with_guest(|p2m, write, host, shadow| {
            let memory = VmMemory::new(p2m, host);
            let _none = shadow.begin_agile(AgileTimes { window: 10, timeout: 100, start: 0 }, 40, &memory);
            write(7 * PAGE_SIZE, (2 * PAGE_SIZE) | 7);
            for root in [7, 1] {
                let state = crate::paging::guest_walk::PagingState { cr3: root * PAGE_SIZE, ..STATE };
                let space = AddressSpace::new(p2m, &memory, &state);
                let _root = shadow.load(space);
                let _filled = shadow.fault(space, PageFault::new(Gva(0), Access::READ));
            }
            let levels = |shadow: &Shadow<_, _>| {
                let mut all = shadow.agile_spaces();
                all.sort_by_key(|space| space.root);
                all.iter().map(|space| (space.root.0, space.levels)).collect::<Vec<_>>()
            };
            let one = [(1, 0); 4];
            assert_eq!(levels(shadow), [(1, one), (7, one)]);
            // Two writes to the table of level 1, which both have.
            let table = Gpa(4 * PAGE_SIZE);
            assert!((1..=2).any(|now| shadow.agile_write(p2m, table, now, false).is_some()));
            let nested = [(0, 1), (1, 0), (1, 0), (1, 0)];
            assert_eq!(levels(shadow), [(1, nested), (7, nested)]);
            // The second has a root of its own, and all else in common.
            assert_eq!(shadow.agile_counts().shadowed, 4);
        });
    }
}
