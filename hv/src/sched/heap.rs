//! A binary heap of waiting VCPUs that also finds one for a given PCPU.
//!
//! Ordered by key. Each node knows in which PCPUs somebody in the subtree below it may run, so that a thief finds a VCPU
//! that it may take in O(log n) even behind others that are pinned. Push and pop are O(log n); removal by number, which
//! only commands of a person do, is O(n).

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
    pub reach: PcpuSet,
    /// `reach` of this and of all items below it.
    below: PcpuSet,
}

impl Item {
    pub(super) fn new(key: u64, id: VcpuId, reach: PcpuSet) -> Item {
        Item { key, id, reach, below: reach }
    }
}

/// Whether key `a` goes before `b`.
#[inline]
pub(super) fn before(a: u64, b: u64) -> bool {
    (a.wrapping_sub(b) as i64) < 0
}

/// The heap.
#[derive(Debug, Default)]
pub(super) struct Heap {
    items: Vec<Item>,
}

impl Heap {
    /// An empty heap that never allocates while it holds at most so many.
    pub(super) fn with_capacity(capacity: usize) -> Heap {
        Heap { items: Vec::with_capacity(capacity) }
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    /// The item with the lowest key.
    #[inline]
    pub(super) fn first(&self) -> Option<&Item> {
        self.items.first()
    }

    /// The PCPUs that may take something from here.
    #[inline]
    pub(super) fn reach(&self) -> PcpuSet {
        self.items.first().map_or(PcpuSet::EMPTY, |root| root.below)
    }

    /// An item that this PCPU may take, with its index: the first of all if it may, else one that is first in its part.
    pub(super) fn first_for(&self, pcpu: PcpuId) -> Option<(usize, &Item)> {
        let mut at = 0;
        loop {
            let item = self.items.get(at).filter(|item| item.below.contains(pcpu))?;
            if item.reach.contains(pcpu) {
                return Some((at, item));
            }
            let holds = |child: &usize| self.items.get(*child).is_some_and(|c| c.below.contains(pcpu));
            let key = |child: usize| self.items[child].key;
            at = match [2 * at + 1, 2 * at + 2].map(|child| Some(child).filter(holds)) {
                [Some(left), Some(right)] if before(key(right), key(left)) => right,
                [Some(left), _] => left,
                [None, right] => right?,
            };
        }
    }

    pub(super) fn position(&self, id: VcpuId) -> Option<usize> {
        self.items.iter().position(|item| item.id == id)
    }

    pub(super) fn push(&mut self, item: Item) {
        self.items.push(item);
        self.rise(self.items.len() - 1);
    }

    pub(super) fn pop(&mut self) -> Option<Item> {
        self.remove(0)
    }

    /// Takes the item at this index out.
    pub(super) fn remove(&mut self, at: usize) -> Option<Item> {
        let last = self.items.pop()?;
        if at >= self.items.len() {
            self.refresh(self.items.len());
            return Some(last);
        }
        let taken = core::mem::replace(&mut self.items[at], last);
        // The last place's ancestors have lost what was there.
        self.refresh(self.items.len());
        if at > 0 && before(self.items[at].key, self.items[(at - 1) / 2].key) {
            self.rise(at);
        } else {
            self.sink(at);
        }
        Some(taken)
    }

    fn rise(&mut self, from: usize) {
        let mut at = from;
        while at > 0 && before(self.items[at].key, self.items[(at - 1) / 2].key) {
            self.items.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        self.sum(from);
        self.refresh(from);
    }

    fn sink(&mut self, from: usize) {
        let mut at = from;
        loop {
            let mut child = 2 * at + 1;
            let Some(left) = self.items.get(child) else { break };
            if self.items.get(child + 1).is_some_and(|right| before(right.key, left.key)) {
                child += 1;
            }
            if !before(self.items[child].key, self.items[at].key) {
                break;
            }
            self.items.swap(at, child);
            at = child;
        }
        self.sum(at);
        self.refresh(at);
    }

    /// Puts `below` of a node right, whose children's are.
    #[inline]
    fn sum(&mut self, at: usize) {
        let below = |child: usize| self.items.get(child).map_or(PcpuSet::EMPTY, |item| item.below);
        let children = below(2 * at + 1).or(below(2 * at + 2));
        if let Some(item) = self.items.get_mut(at) {
            item.below = item.reach.or(children);
        }
    }

    /// Puts `below` right in all ancestors of a place, which may be empty.
    #[inline]
    fn refresh(&mut self, mut at: usize) {
        while at > 0 {
            at = (at - 1) / 2;
            self.sum(at);
        }
    }
}

#[cfg(all(test, not(loom_model)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Heap {
        /// Whether order and sums are right.
        fn check(&self) {
            for (at, item) in self.items.iter().enumerate() {
                assert!(at == 0 || !before(item.key, self.items[(at - 1) / 2].key));
                let below = |child: usize| self.items.get(child).map_or(PcpuSet::EMPTY, |item| item.below);
                assert_eq!(item.below, item.reach.or(below(2 * at + 1)).or(below(2 * at + 2)));
            }
        }
    }

    proptest! {
        #[test]
        fn behaves_as_a_list(start: u64, ops in prop::collection::vec((0u8..4, 0u16..1000, any::<u64>()), 1..200)) {
            let mut heap = Heap::default();
            let mut model: Vec<(u16, u16, PcpuSet)> = vec![];
            for (n, (op, raw, bits)) in ops.into_iter().enumerate() {
                // Few may run anywhere, so that pinned ones are in the way.
                let reach = PcpuSet::from_bits(if bits & 3 == 0 { bits } else { 1 << (bits >> 58) });
                match op {
                    0 if !model.is_empty() => {
                        let least = model.iter().map(|m| m.0).min().unwrap();
                        let taken = heap.pop().unwrap();
                        prop_assert_eq!(taken.key, start.wrapping_add(u64::from(least)));
                        model.retain(|m| m.1 != taken.id.0);
                    }
                    1 if !model.is_empty() => {
                        let (_, id, reach) = model.swap_remove(usize::from(raw) % model.len());
                        let at = heap.position(VcpuId(id)).unwrap();
                        prop_assert_eq!(heap.remove(at).unwrap().reach, reach);
                    }
                    _ => {
                        heap.push(Item::new(start.wrapping_add(u64::from(raw)), VcpuId(n as u16), reach));
                        model.push((raw, n as u16, reach));
                    }
                }
                heap.check();
                prop_assert_eq!(heap.len(), model.len());
                let union = model.iter().fold(PcpuSet::EMPTY, |all, m| all.or(m.2));
                prop_assert_eq!(heap.reach(), union);
                for pcpu in (0..64).map(PcpuId) {
                    let found = heap.first_for(pcpu);
                    prop_assert_eq!(found.is_some(), union.contains(pcpu));
                    if let Some((at, item)) = found {
                        prop_assert!(item.reach.contains(pcpu));
                        prop_assert_eq!(heap.position(item.id), Some(at));
                    }
                }
            }
        }
    }
}
