//! Pages by the number of what they stand for: a hash table of lists.

use super::*;
use crate::arch::addr::Hfn;

/// Pages by number.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub pages: &'a [Page],
    pub buckets: &'a [u32],
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
        self.chain(frame.0).filter(move |&id| {
            let key = self.pages[id as usize].key;
            key.number() == frame.0 && key.is_table()
        })
    }

    #[inline(always)]
    pub(super) fn is_watched(self, frame: Hfn) -> bool {
        let mut id = self.buckets[self.bucket(frame.0)];
        // Most frames are no tables.
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
