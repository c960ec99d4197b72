//! Whether the lists and counters of the pool are consistent with the entries.

use super::super::TlbFlush;
use super::*;
use crate::arch::addr::Hfn;
use crate::paging::format::PteFormat;
use crate::paging::format::x86::{PRESENT, WRITE};

/// Something is wrong about this entry of this page.
pub(in super::super) type Broken = (&'static str, PageId, usize);

impl<M: TableMemory, F: PteFormat> Pool<M, F> {
    /// The pages in use.
    pub(in super::super) fn ids(&self) -> impl Iterator<Item = PageId> + '_ {
        (0..self.pages.len() as PageId).filter(|&id| self.page(id).is_in_use())
    }

    /// One of the entries that point to a page.
    pub(in super::super) fn parent(&self, id: PageId) -> Option<(PageId, usize)> {
        let slot = self.pages.iter().nth(id as usize)?.parents;
        (slot != NONE).then(|| place(slot))
    }

    /// A leaf through which the guest can write to `frame`.
    pub(in super::super) fn writable_leaf(&self, frame: Hfn) -> Option<(PageId, usize)> {
        let base = frame.base();
        [(base, 1), (base.align_down(LARGE_FRAMES << 12), 2)].into_iter().find_map(|(to, level)| {
            let first = self.lists[self.reverse_map(to.0, level)].get();
            self.list(first).map(place).find(|&(id, index)| {
                let raw = self.entry(id, index);
                self.page(id).is_in_use()
                    && raw & leaf_address(level) == to.0
                    && self.page(id).key.level() == level
                    && raw & WRITE != 0
            })
        })
    }

    /// Checks all lists and counters. The work is bounded by the size of the pool.
    pub(in super::super) fn check_lists(&self) -> Result<(), Broken> {
        let present = self.check_pages()?;
        let mut listed = 0;
        for list in 0..self.lists.len() {
            listed += self.check_list(self.lists[list].get(), HEAD | list as u32, None, present)?;
        }
        for (id, page) in (0..).zip(self.pages.iter()) {
            listed += self.check_list(page.parents, HEAD, Some(id), present)?;
        }
        if listed != present {
            return Err(("an entry is on no list", 0, 0));
        }
        self.check_numbers()?;
        self.check_memory()
    }

    /// Checks a list: of leaves, or of what points to a page. Returns how long it is, at most `most`.
    fn check_list(
        &self,
        mut slot: u32,
        mut before: u32,
        of: Option<PageId>,
        most: usize,
    ) -> Result<usize, Broken> {
        let mut listed = 0;
        while slot != NONE {
            let (id, index) = place(slot);
            listed += 1;
            if listed > most {
                return Err(("a list is a circle, or holds an entry that is not present", id, index));
            }
            let raw = self.entry(id, index);
            let child = self.child(id, index);
            let list = || self.lists[self.reverse_map(raw, self.page(id).key.level())].get();
            // The first of a list says which one it is.
            let is_first = of.is_none() && before & HEAD != 0;
            let (after, found) = self.record(id, index).neighbours(&self.memory);
            if raw & PRESENT == 0 || child != of || found != before || is_first && list() != slot {
                return Err(("an entry is on the wrong list", id, index));
            }
            (before, slot) = (slot, after);
        }
        Ok(listed)
    }

    /// Checks what is counted of memory, and that what is known about present entries has a place.
    fn check_memory(&self) -> Result<(), Broken> {
        let (mut tables, mut chunks) = (0, self.chunks.spare());
        for (id, page) in (0..).zip(self.pages.iter()) {
            tables += usize::from(page.frame != NO_TABLE);
            chunks += page.chunks.iter().filter(|&&chunk| chunk != 0).count();
            if (0..8).any(|word| page.present.word(word) != 0 && page.chunks[word] == 0) {
                return Err(("nothing is known about an entry that is present", id, 0));
            }
        }
        let free = self.free.len + self.shared.pending_free_pages();
        if tables != self.frames.tables
            || chunks != 4 * self.frames.chunks
            || self.frames.total() > self.frames.limit
            || tables + self.bare.len != self.pages.len()
            || tables < free
        {
            return Err(("frames are counted wrongly", 0, 0));
        }
        self.chunks.check(&self.memory).map_err(|what| (what, 0, 0))
    }

    /// Checks each page by itself; returns how many entries are present.
    fn check_pages(&self) -> Result<usize, Broken> {
        let mut total = 0;
        for (id, page) in (0..).zip(self.pages.iter()) {
            if page.frame == NO_TABLE {
                continue;
            }
            let mut there = 0;
            for (word, noted) in page.all_present().into_iter().enumerate() {
                let is_present = |bit: usize| self.entry(id, 64 * word + bit) & PRESENT != 0;
                let found = (0..64).fold(0, |bits, bit| bits | u64::from(is_present(bit)) << bit);
                if found != noted {
                    return Err((
                        "an entry is present and not noted so, or the other way around",
                        id,
                        64 * word,
                    ));
                }
                there += found.count_ones() as usize;
            }
            if let Some(index) =
                (0..ENTRIES).find(|&index| !page.is_present(index) && !self.is_rightly_unfilled(id, index))
            {
                return Err(("an entry that is not filled is wrong", id, index));
            }
            if page.state == State::Free && (there > 0 || page.parents != NONE) {
                return Err(("a free page is used", id, 0));
            }
            total += there;
        }
        if self.root.is_some_and(|root| !self.page(root).is_in_use()) {
            return Err(("the root is a free page", 0, 0));
        }
        if self.owed != TlbFlush::None {
            return Err(("a flush is owed after the operation", 0, 0));
        }
        Ok(total)
    }

    /// Checks that pages are found by their numbers, and what is counted of them.
    fn check_numbers(&self) -> Result<(), Broken> {
        let mut tables = 0;
        let mut direct = 0;
        for id in self.ids() {
            let key = self.page(id).key;
            if self.chain(key.number()).take(self.pages.len()).filter(|&it| self.page(it).key == key).count()
                != 1
            {
                return Err(("a page is not found by its number, or twice", id, 0));
            }
            if key.is_table() && !self.tables().is_write_protected(Hfn(key.number())) && !self.page(id).unsync
            {
                return Err(("a table is not write-protected", id, 0));
            }
            if key.is_table() && !self.has_tables_near(Hfn(key.number())) {
                return Err(("a table is not counted", id, 0));
            }
            tables += u64::from(key.is_table());
            direct += usize::from(key.is_direct());
        }
        let pt_count_2m: u64 = self.pt_count_2m.iter().map(|&count| u64::from(count)).sum();
        if pt_count_2m != tables || direct != self.direct || self.in_use() != self.ids().count() {
            return Err(("pages are counted wrongly", 0, 0));
        }
        Ok(())
    }

    fn list(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |slot: u32| (slot != NONE).then_some(slot);
        let after = move |&slot: &u32| some(self.record_of(slot).neighbours(&self.memory).0);
        core::iter::successors(some(first), after)
    }
}
