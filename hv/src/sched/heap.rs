//! A binary heap of waiting VCPUs that also finds one for a given PCPU.
//!
//! Ordered by key. Each node knows the PCPUs on which some VCPU of its subtree may run, so that a thief finds a VCPU
//! that it may steal in O(log n) even behind others that are pinned. Push, pop, and removal of what a thief has just
//! found are O(log n); removal of any other by its number looks through all.

use alloc::vec::Vec;

use super::topology::{PcpuId, PcpuSet};
use super::types::VcpuId;

/// A VCPU that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Lower ones go first. Compared as differences, so that keys may wrap around.
    pub key: u64,
    pub id: VcpuId,
    /// The PCPUs that may take it from here.
    pub allowed: PcpuSet,
}

impl Item {
    #[inline]
    pub(super) fn new(key: u64, id: VcpuId, allowed: PcpuSet) -> Item {
        Item { key, id, allowed }
    }
}

/// Whether key `a` goes before `b`.
#[inline]
pub(super) fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// The heap.
///
/// A pop is nearly always followed by a push. So a pop only marks the first place as free, and the next push fills it.
#[derive(Debug, Default)]
pub(super) struct Heap {
    items: Vec<Item>,
    /// For each place, `allowed` of what is there and below.
    below: Vec<PcpuSet>,
    /// The first place is free: what is there does not count.
    gap: bool,
    /// Where [`Heap::first_for`] has found something last.
    found: usize,
}

impl Heap {
    /// An empty heap that does not allocate while it holds at most `capacity` items.
    pub(super) fn with_capacity(capacity: usize) -> Heap {
        let (items, below) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Heap { items, below, gap: false, found: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len() - usize::from(self.gap)
    }

    /// The item with the lowest key.
    #[inline]
    pub(super) fn first(&self) -> Option<&Item> {
        if !self.gap {
            return self.items.first();
        }
        match self.items.as_slice() {
            [_, left, right, ..] if before(right.key, left.key) => Some(right),
            [_, left, ..] => Some(left),
            _ => None,
        }
    }

    /// The PCPUs that may take something from here.
    #[inline]
    pub(super) fn allowed(&self) -> PcpuSet {
        match self.below.as_slice() {
            [first, ..] if !self.gap => *first,
            [_, left, right, ..] => left.or(*right),
            [_, left] => *left,
            _ => PcpuSet::EMPTY,
        }
    }

    /// An item that this PCPU may take: the first of all if possible, else the first of some subtree.
    pub(super) fn first_for(&mut self, pcpu: PcpuId) -> Option<&Item> {
        self.close_gap();
        let holds = |at: &usize| self.below.get(*at).is_some_and(|below| below.contains(pcpu));
        let mut at = Some(0).filter(holds)?;
        loop {
            let item = self.items.get(at)?;
            if item.allowed.contains(pcpu) {
                self.found = at;
                return Some(item);
            }
            let key = |child: usize| self.items[child].key;
            at = match [2 * at + 1, 2 * at + 2].map(|child| Some(child).filter(holds)) {
                [Some(left), Some(right)] if before(key(right), key(left)) => right,
                [Some(left), _] => left,
                [None, right] => right?,
            };
        }
    }

    pub(super) fn position(&mut self, id: VcpuId) -> Option<usize> {
        self.close_gap();
        let is_it = |item: &Item| item.id == id;
        match self.items.get(self.found) {
            Some(item) if is_it(item) => Some(self.found),
            _ => self.items.iter().position(is_it),
        }
    }

    pub(super) fn push(&mut self, item: Item) {
        if core::mem::take(&mut self.gap) {
            let at = self.sink(0, item);
            return self.sum_up(at);
        }
        self.items.push(item);
        self.below.push(PcpuSet::EMPTY);
        let mut at = self.rise(self.items.len() - 1, item);
        // All places above have one more below them.
        while !item.allowed.without(self.below[at]).is_empty() {
            self.below[at] = self.below[at].or(item.allowed);
            if at == 0 {
                break;
            }
            at = (at - 1) / 2;
        }
    }

    /// Recomputes for each item which PCPUs may take it.
    pub(super) fn reconsider(&mut self, allowed: impl Fn(VcpuId) -> PcpuSet) {
        self.close_gap();
        self.items.iter_mut().for_each(|item| item.allowed = allowed(item.id));
        for at in (0..self.items.len()).rev() {
            self.sum(at);
        }
    }

    /// Takes the first item out.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Item> {
        self.close_gap();
        let first = self.items.first().copied();
        self.gap = first.is_some();
        first
    }

    /// Takes the item at this index out.
    pub(super) fn remove(&mut self, at: usize) -> Option<Item> {
        self.close_gap();
        self.take(at)
    }

    /// Takes one out, wherever it is.
    pub(super) fn remove_one(&mut self, id: VcpuId) -> Option<Item> {
        let at = self.position(id)?;
        self.remove(at)
    }

    #[inline]
    fn close_gap(&mut self) {
        if core::mem::take(&mut self.gap) {
            self.take(0);
        }
    }

    #[inline(never)]
    fn take(&mut self, at: usize) -> Option<Item> {
        let last = self.items.pop()?;
        self.below.pop();
        let end = self.items.len();
        let taken = match self.items.get_mut(at) {
            Some(place) => core::mem::replace(place, last),
            None => last,
        };
        // Above the last place there is one less; from there on up nothing changes where that makes no difference.
        let mut above = end;
        while above > 0 {
            above = (above - 1) / 2;
            if !self.sum(above) {
                break;
            }
        }
        if at < end {
            let place = self.sink(at, last);
            if place == at {
                self.rise(at, last);
            }
            self.sum_up(place);
        }
        Some(taken)
    }

    /// Sifts `item` up from the free place `from`; the items that it passes move down by one. Returns its place. The
    /// unions in `below` stay right if the item is new to the heap; otherwise the caller recomputes them from there.
    #[inline]
    fn rise(&mut self, from: usize, item: Item) -> usize {
        let mut at = from;
        while at > 0 {
            let parent = (at - 1) / 2;
            let above = self.items[parent];
            if !before(item.key, above.key) {
                break;
            }
            self.items[at] = above;
            self.below[at] = self.below[at].or(above.allowed);
            at = parent;
        }
        self.items[at] = item;
        at
    }

    /// Sifts `item` down from the free place `from`, behind items with an equal key: so [`Heap::first`] is the same before
    /// and after the gap is closed. Returns its place; the caller recomputes `below` from there.
    #[inline]
    fn sink(&mut self, from: usize, item: Item) -> usize {
        let mut at = from;
        while let Some(left) = self.items.get(2 * at + 1) {
            let (child, below) = match self.items.get(2 * at + 2) {
                Some(right) if before(right.key, left.key) => (2 * at + 2, *right),
                _ => (2 * at + 1, *left),
            };
            if before(item.key, below.key) {
                break;
            }
            self.items[at] = below;
            at = child;
        }
        self.items[at] = item;
        at
    }

    /// Adds up what is below a place and those above it.
    #[inline]
    fn sum_up(&mut self, mut at: usize) {
        self.sum(at);
        while at > 0 {
            at = (at - 1) / 2;
            self.sum(at);
        }
    }

    /// Adds up what is below a place, under which that has been done. Whether it has changed.
    #[inline]
    fn sum(&mut self, at: usize) -> bool {
        let below = |child: usize| self.below.get(child).copied().unwrap_or(PcpuSet::EMPTY);
        let sum = self.items[at].allowed.or(below(2 * at + 1)).or(below(2 * at + 2));
        core::mem::replace(&mut self.below[at], sum) != sum
    }
}

#[cfg(all(test, not(loom_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Heap {
        /// Whether order and sums are right.
        fn check(&self) {
            assert_eq!(self.items.len(), self.below.len());
            for (at, item) in self.items.iter().enumerate().skip(usize::from(self.gap)) {
                let is_first = at == 0 || self.gap && at < 3;
                assert!(is_first || !before(item.key, self.items[(at - 1) / 2].key));
                let below = |child: usize| self.below.get(child).copied().unwrap_or(PcpuSet::EMPTY);
                assert_eq!(self.below[at], item.allowed.or(below(2 * at + 1)).or(below(2 * at + 2)));
            }
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_list(start: u64, ops in prop::collection::vec((0u8..4, 0u16..60, any::<u64>()), 1..200)) {
            let mut heap = Heap::default();
            let mut model: Vec<(u16, u16, PcpuSet)> = vec![];
            for (n, (op, raw, bits)) in ops.into_iter().enumerate() {
                // Few may run anywhere, so that pinned ones are in the way.
                let allowed = PcpuSet::from_bits(if bits & 3 == 0 { bits } else { 1 << (bits >> 58) });
                match op {
                    0 if !model.is_empty() => {
                        let first = heap.first().map(|item| item.id);
                let mut closed = Heap { items: heap.items.clone(), below: heap.below.clone(), ..heap };
                closed.close_gap();
                prop_assert_eq!(closed.first().map(|item| item.id), first);
                closed.check();
                let least = model.iter().map(|m| m.0).min().unwrap();
                        let taken = heap.pop().unwrap();
                        prop_assert_eq!(taken.key, start.wrapping_add(u64::from(least)));
                        model.retain(|m| m.1 != taken.id.0);
                    }
                    1 if !model.is_empty() => {
                        let (_, id, allowed) = model.swap_remove(usize::from(raw) % model.len());
                        let at = heap.position(VcpuId(id)).unwrap();
                        prop_assert_eq!(heap.remove(at).unwrap().allowed, allowed);
                    }
                    _ => {
                        heap.push(Item::new(start.wrapping_add(u64::from(raw)), VcpuId(n as u16), allowed));
                        model.push((raw, n as u16, allowed));
                    }
                }
                heap.check();
                prop_assert_eq!(heap.len(), model.len());
                let least = model.iter().map(|m| m.0).min();
                prop_assert_eq!(heap.first().map(|item| item.key), least.map(|least| start.wrapping_add(least.into())));
                let union = model.iter().fold(PcpuSet::EMPTY, |all, m| all.or(m.2));
                prop_assert_eq!(heap.allowed(), union);
                for pcpu in (0..64).map(PcpuId) {
                    // On a copy, because it closes the gap.
                    let mut heap = Heap { items: heap.items.clone(), below: heap.below.clone(), ..heap };
                    let found = heap.first_for(pcpu).copied();
                    prop_assert_eq!(found.is_some(), union.contains(pcpu));
                    if let Some(item) = found {
                        prop_assert!(item.allowed.contains(pcpu));
                        prop_assert_eq!(heap.items[heap.found].id, item.id, "it is taken without a search");
                        prop_assert_eq!(heap.remove_one(item.id).map(|taken| taken.id), Some(item.id));
                        heap.check();
                    }
                }
            }
        }
    }
}
