//! The sets of nested tables of a VM, by [`TreeKey`].
//!
//! Owned by the VM's memory. All of them follow the P2m; they may differ in what they leave closed ([`Nested::forget`]), which
//! a fault on one of them fills in there and nowhere else. The first is built with the VM and lives as long; others come
//! when a VCPU is to use them, and go when none does.

use alloc::vec::Vec;

use super::format::{NestedAttr, PteFormat};
use super::nested::Nested;
use super::p2m::P2m;
use super::range::{Changed, Flush, GpaRange};
use super::table::{Found, MapError, Retired};
use super::tree_key::TreeKey;
use crate::arch::addr::{Gfn, Gpa, Hpa, PageSize};
use crate::mem::table_memory::TableMemory;
#[cfg(test)]
use crate::paging::arena::Arena;

/// All of them. There is always [`TreeKey::FIRST`].
#[derive(Debug)]
pub struct NestedTrees<F: PteFormat<Attr = NestedAttr>, M: TableMemory> {
    first: Nested<F, M>,
    others: Vec<(TreeKey, Nested<F, M>)>,
    largest: PageSize,
}

impl<F: PteFormat<Attr = NestedAttr>, M: TableMemory> NestedTrees<F, M> {
    /// The first set: tables of everything in `p2m`, with leaves up to `largest`.
    pub fn new(memory: M, largest: PageSize, p2m: &P2m<impl TableMemory>) -> Result<Self, MapError> {
        Ok(NestedTrees { first: Nested::new(memory, largest, p2m)?, others: Vec::new(), largest })
    }

    /// Makes the set of this key, if there is none; all of `p2m` is open in it but what is mapped to other domains' caches.
    ///
    /// # Errors
    /// No memory: nothing has changed.
    pub fn add(&mut self, key: TreeKey, memory: M, p2m: &P2m<impl TableMemory>) -> Result<(), MapError> {
        if self.get(key).is_some() {
            return Ok(());
        }
        self.others.try_reserve(1).map_err(|_| MapError::OutOfFrames)?;
        self.others.push((key, Nested::for_domain(memory, self.largest, p2m, key.domain())?));
        Ok(())
    }

    /// Makes the set of this key, which there is not, and in which nothing is open ([`Nested::for_phase`]).
    ///
    /// # Errors
    /// No memory: nothing has changed.
    pub fn add_for_phase(&mut self, key: TreeKey, memory: M) -> Result<(), MapError> {
        debug_assert!(self.get(key).is_none(), "a VCPU may use these tables");
        self.others.try_reserve(1).map_err(|_| MapError::OutOfFrames)?;
        self.others.push((key, Nested::for_phase(memory)?));
        Ok(())
    }

    /// Has the leaves of all sets that lead to `page` tell of it alone, so that their accessed bits do, where there is memory for
    /// that. Translations stay the same, and processors may keep theirs.
    pub fn keep_small(&mut self, page: Gfn) {
        // Most are small already, and a walk costs less than a change.
        let is_large = |tree: &Nested<F, M>| match tree.find(page.base()) {
            Found::Leaf(leaf) => leaf.size != PageSize::Size4K,
            Found::Hole(_) => false,
        };
        for tree in self.iter_mut().filter(|tree| !tree.is_for_phase() && is_large(tree)) {
            let _same_translations = tree.split(GpaRange::page(page.base()), PageSize::Size4K);
        }
    }

    /// Joins small leaves in all sets, but for those of a phase, until [`split_joined`](Self::split_joined): see [`Nested::join_pieces`].
    pub fn join_pieces(&mut self, range: GpaRange, may: impl Fn(GpaRange) -> bool) -> Flush {
        let trees = self.iter_mut().filter(|tree| !tree.is_for_phase());
        trees.map(|tree| tree.join_pieces(range, &may)).fold(Flush::None, Flush::and)
    }

    /// Has leaves that were joined tell of single pages again. Translations stay the same.
    pub fn split_joined(&mut self, range: GpaRange) {
        self.iter_mut().for_each(|tree| tree.split_joined(range));
    }

    /// Frees the set of this key, which no VCPU uses and of which no processor remembers anything. Not the first. Its dirty bits go with
    /// it: all pages count as written until [`start_dirty_log`](Self::start_dirty_log) is called again.
    pub fn remove(&mut self, key: TreeKey) {
        if self.others.iter().any(|(other, _)| *other == key) {
            self.others.retain(|(other, _)| *other != key);
            self.first.lose_dirty_log();
        }
    }

    /// The set of this key.
    pub fn get(&self, key: TreeKey) -> Option<&Nested<F, M>> {
        if key == TreeKey::FIRST {
            return Some(&self.first);
        }
        self.others.iter().find(|(other, _)| *other == key).map(|(_, tree)| tree)
    }

    /// The set of this key, or the first if there is none.
    pub fn tree(&self, key: TreeKey) -> &Nested<F, M> {
        self.get(key).unwrap_or(&self.first)
    }

    /// The same, to be changed.
    pub fn tree_mut(&mut self, key: TreeKey) -> &mut Nested<F, M> {
        self.others.iter_mut().find(|(other, _)| *other == key).map_or(&mut self.first, |(_, tree)| tree)
    }

    /// The root table of the key's set.
    pub fn root(&self, key: TreeKey) -> Hpa {
        self.tree(key).root()
    }

    /// All sets.
    pub fn iter(&self) -> impl Iterator<Item = (TreeKey, &Nested<F, M>)> {
        core::iter::once((TreeKey::FIRST, &self.first))
            .chain(self.others.iter().map(|(key, tree)| (*key, tree)))
    }

    /// All sets, to be changed.
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Nested<F, M>> {
        core::iter::once(&mut self.first).chain(self.others.iter_mut().map(|(_, tree)| tree))
    }

    /// All sets take over a change of the P2m. On an error some hold a part of it, and all must be flushed.
    pub fn apply(&mut self, p2m: &P2m<impl TableMemory>, changed: Changed) -> Result<Flush, MapError> {
        let mut flush = Flush::None;
        let mut result = Ok(());
        for tree in self.iter_mut() {
            match tree.apply(p2m, changed) {
                Ok(owed) => flush = flush.and(owed),
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| flush)
    }

    /// All sets take over that memory has been mapped to a cache, or opened. What is to be closed is, also where there is no memory
    /// for tables: then more goes than must, and faults bring it back.
    pub fn close(&mut self, p2m: &P2m<impl TableMemory>, changed: Changed) -> Flush {
        // Tables of a phase show RAM whatever cache it is mapped to.
        let trees = self.iter_mut().filter(|tree| !tree.is_for_phase());
        trees.map(|tree| tree.apply_or_drop(p2m, changed)).fold(Flush::None, Flush::and)
    }

    /// All sets take over that memory is gone. It goes also where there is no memory for tables: then more goes than must, and faults
    /// bring it back.
    pub fn remove_memory(&mut self, p2m: &P2m<impl TableMemory>, changed: Changed) -> Flush {
        self.iter_mut().map(|tree| tree.apply_or_drop(p2m, changed)).fold(Flush::None, Flush::and)
    }

    /// The same where no processor uses the tables at the moment: what has changed goes, which is less work where leaves are small.
    pub fn drop_changed(&mut self, changed: Changed) -> Flush {
        self.iter_mut().map(|tree| tree.drop_changed(changed.range)).fold(Flush::None, Flush::and)
    }

    /// All sets drop their translations of `range`: see [`Nested::forget`].
    pub fn forget(&mut self, range: GpaRange) -> Result<Flush, MapError> {
        let mut flush = Flush::None;
        let mut result = Ok(());
        for tree in self.iter_mut() {
            match tree.forget(range) {
                Ok(owed) => flush = flush.and(owed),
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| flush)
    }

    /// All sets tell from now on which of these pages are written: see [`Nested::start_dirty_log`].
    pub fn start_dirty_log(&mut self, pages: impl Iterator<Item = Gfn> + Clone) {
        self.iter_mut().for_each(|tree| tree.start_dirty_log(pages.clone()));
    }

    /// Whether a page may have been written through one of the sets: see [`Nested::is_written`].
    pub fn is_written(&self, page: Gfn) -> bool {
        self.iter().any(|(_, tree)| tree.is_written(page))
    }

    /// Whether a page was accessed through one of the sets since the last time.
    pub fn take_accessed(&self, page: Gpa) -> bool {
        // All of them: each has a bit to be cleared.
        self.iter().fold(false, |any, (_, tree)| tree.take_accessed(page) | any)
    }

    /// The tables that earlier changes replaced in all sets, to be freed when their flushes are done.
    pub fn take_retired(&mut self) -> Retired {
        let all = self.others.iter_mut().fold(Retired::NONE, |all, (_, tree)| tree.take_retired_with(all));
        self.first.take_retired_with(all)
    }

    /// How many frames the tables of all sets take.
    pub fn table_frames(&self) -> u64 {
        self.iter().map(|(_, tree)| tree.table_frames()).sum()
    }
}

#[cfg(test)]
impl<'a, F: PteFormat<Attr = NestedAttr>> NestedTrees<F, &'a Arena> {
    /// RAM from 0 on, at `host`, with a set for each of `domains`: what models of several processors start with.
    pub fn of_domains(arena: &'a Arena, ram: u64, host: Hpa, domains: u8) -> (P2m<&'a Arena>, Self) {
        let mut p2m = P2m::new(arena).unwrap();
        let _nothing_yet = p2m.map_ram(GpaRange::new(Gpa(0), ram).unwrap(), host, true).unwrap();
        let mut trees = NestedTrees::new(arena, PageSize::Size2M, &p2m).unwrap();
        for domain in 0..domains {
            trees.add(TreeKey::new(domain, 0).unwrap(), arena, &p2m).unwrap();
        }
        (p2m, trees)
    }
}

#[cfg(test)]
mod closing;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Access;
    use crate::arch::addr::{Gpa, Hpa};
    use crate::paging::arena::Arena;
    use crate::paging::format::npt::Npt;
    use crate::paging::nested::NestedOutcome;
    use crate::paging::range::GpaRange;
    use crate::paging::table::Found;

    const M2: u64 = 0x20_0000;

    #[test]
    fn all_sets_follow_the_p2m_and_each_has_holes_of_its_own() {
        let arena = Arena::new(100);
        let mut p2m = P2m::new(&arena).unwrap();
        let ram = GpaRange::new(Gpa(0), M2).unwrap();
        let _nothing_yet = p2m.map_ram(ram, Hpa(1 << 30), true).unwrap();
        let mut trees = NestedTrees::<Npt, _>::new(&arena, PageSize::Size2M, &p2m).unwrap();
        let second = TreeKey::new(3, 1).unwrap();
        assert_eq!(trees.root(second), trees.root(TreeKey::FIRST), "the first stands for what is not there");
        trees.add(second, &arena, &p2m).unwrap();
        trees.add(second, &arena, &p2m).unwrap();
        assert_eq!((trees.iter().count(), trees.root(second) == trees.root(TreeKey::FIRST)), (2, false));
        // Closed in one.
        let page = GpaRange::page(Gpa(0x5000));
        assert_ne!(trees.tree_mut(second).forget(page).unwrap(), Flush::None);
        let is_open =
            |trees: &NestedTrees<_, _>, key| matches!(trees.tree(key).find(page.start), Found::Leaf(_));
        assert!(is_open(&trees, TreeKey::FIRST) && !is_open(&trees, second));
        let filled = trees.tree_mut(second).fault(page.start, Access::READ, &p2m).unwrap();
        assert!(matches!(filled, NestedOutcome::Filled(_)) && is_open(&trees, second));
        // Gone from all.
        let changed = p2m.unmap(ram).unwrap();
        assert_ne!(trees.apply(&p2m, changed).unwrap(), Flush::None);
        assert!(!is_open(&trees, TreeKey::FIRST) && !is_open(&trees, second));
        let retired = trees.take_retired();
        retired.free(&&arena);
        trees.remove(second);
        assert_eq!(arena.in_use() as u64, trees.table_frames() + p2m.table_frames());
    }
}
