//! Pages by the number of what they stand for: a hash table of lists.

use super::*;
use crate::arch::addr::Hfn;

/// Pages by number.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub pages: &'a Pieces<Page>,
    pub buckets: &'a Pieces<u32>,
    pub filter: &'a Filter,
}

/// How many pages of tables there may be of the frames with each of these hashes: most frames are no tables, and are found to be
/// none by one look here. A count that has been at its maximum stays there.
#[derive(Debug)]
pub(super) struct Filter([u8; 1024]);

impl Filter {
    pub(super) const EMPTY: Filter = Filter([0; 1024]);

    #[inline(always)]
    fn place(number: u64) -> usize {
        // Other bits than those of the bucket.
        hash(number) >> 22 & 1023
    }

    #[inline(always)]
    fn has(&self, number: u64) -> bool {
        self.0[Self::place(number)] != 0
    }

    pub(super) fn add(&mut self, number: u64) {
        let count = &mut self.0[Self::place(number)];
        *count = count.saturating_add(1);
    }

    pub(super) fn remove(&mut self, number: u64) {
        let count = &mut self.0[Self::place(number)];
        if *count != u8::MAX {
            *count -= 1;
        }
    }
}

impl<'a> Tables<'a> {
    #[inline(always)]
    pub(super) fn bucket(self, number: u64) -> usize {
        hash(number) & (self.buckets.len() - 1)
    }

    #[inline(always)]
    pub(super) fn chain(self, number: u64) -> impl Iterator<Item = PageId> + 'a {
        let some = |id: u32| (id != NONE).then_some(id);
        let first = some(self.buckets[self.bucket(number)]);
        core::iter::successors(first, move |&id| some(self.pages[id as usize].next))
    }

    #[inline(always)]
    pub(super) fn shadows(self, frame: Hfn) -> impl Iterator<Item = PageId> + 'a {
        let first = if self.filter.has(frame.0) { self.buckets[self.bucket(frame.0)] } else { NONE };
        let mut next = first;
        core::iter::from_fn(move || {
            while next != NONE {
                let (id, page) = (next, &self.pages[next as usize]);
                next = page.next;
                if page.key.number() == frame.0 && page.key.is_table() {
                    return Some(id);
                }
            }
            None
        })
    }

    /// The page with this key.
    #[inline(always)]
    pub(super) fn find(self, key: Key) -> Option<PageId> {
        let mut id = self.buckets[self.bucket(key.number())];
        while id != NONE {
            let page = &self.pages[id as usize];
            if page.key == key {
                return Some(id);
            }
            id = page.next;
        }
        None
    }

    #[inline(always)]
    pub(super) fn is_write_protected(self, frame: Hfn) -> bool {
        if !self.filter.has(frame.0) {
            return false;
        }
        let mut id = self.buckets[self.bucket(frame.0)];
        while id != NONE {
            let page = &self.pages[id as usize];
            if page.key.number() == frame.0 && page.key.is_table() && !page.unsync {
                return true;
            }
            id = page.next;
        }
        false
    }
}
