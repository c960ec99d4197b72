//! Set-associative arrays that are looked up together: a level of TLBs, the walk caches, a nested TLB.
//!
//! Each array holds entries of one or more *classes* (page sizes, or levels of tables: 0 to 2). A key is class, tag and
//! page number, exact, so that nothing aliases. Arrays of many ways have an [`Index`], so that no lookup searches them.

use super::{
    index::Index,
    policy::{Policy, SEED},
    space::Tag,
};

/// Classes: 4 KiB, 2 MiB, 1 GiB; or entries that point to tables of the first, second, third level.
pub const CLASSES: u32 = 3;
/// Bits of a page number in a key: 48 bits of address in the smallest class.
const PAGE_BITS: u32 = 36;
const EMPTY: u64 = u64::MAX;

/// One array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Entries in all.
    pub entries: usize,
    /// Ways of a set; all of them for a fully associative array.
    pub ways: usize,
    /// What goes when a set is full.
    pub policy: Policy,
    /// The classes that it holds, a bit for each.
    pub classes: u8,
}

/// What a key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// The key of an entry.
    #[inline]
    pub const fn new(class: u32, page: u64, tag: Tag) -> Key {
        Key((class as u64) << 62 | (tag.0 as u64) << PAGE_BITS | page & ((1 << PAGE_BITS) - 1))
    }

    /// Its class.
    pub const fn class(self) -> u32 {
        (self.0 >> 62) as u32
    }

    /// Its tag.
    pub const fn tag(self) -> Tag {
        Tag((self.0 >> PAGE_BITS) as u32 & ((1 << Tag::BITS) - 1))
    }

    /// The low 36 bits of its page number.
    pub const fn page(self) -> u64 {
        self.0 & ((1 << PAGE_BITS) - 1)
    }
}

/// Arrays with more ways than this have an index.
const SEARCHED: usize = 8;

struct Array {
    geometry: Geometry,
    base: usize,
    sets: usize,
    /// Where the keys are, in an array with too many ways to search.
    index: Option<Index>,
    /// How often tags had died when all of its entries were seen to be live, of an array that is one set: there is no place to be
    /// searched for until another one dies.
    full: Option<u64>,
}

/// Arrays that are looked up together.
#[derive(Default)]
pub struct Bank {
    arrays: Vec<Array>,
    /// The classes that any array holds, a bit for each.
    classes: u8,
    keys: Vec<u64>,
    values: Vec<u64>,
    stamps: Vec<u64>,
    clock: u64,
    random: u64,
}

impl Bank {
    /// Empty arrays. `ways` divides `entries`, neither is 0.
    pub fn new(geometries: impl IntoIterator<Item = Geometry>) -> Bank {
        let mut bank = Bank { random: SEED, ..Bank::default() };
        for geometry in geometries {
            let (base, sets) = (bank.keys.len(), geometry.entries / geometry.ways);
            let index = (geometry.ways > SEARCHED).then(|| Index::new(base, geometry.entries));
            bank.arrays.push(Array { geometry, base, sets, index, full: None });
            bank.classes |= geometry.classes;
            bank.keys.resize(base + geometry.entries, EMPTY);
        }
        bank.values = vec![0; bank.keys.len()];
        bank.stamps = vec![0; bank.keys.len()];
        bank
    }

    /// Whether entries of this class have a place here.
    #[inline]
    pub fn holds(&self, class: u32) -> bool {
        self.classes >> class & 1 != 0
    }

    /// Whether there is any array.
    pub fn is_empty(&self) -> bool {
        self.arrays.is_empty()
    }

    /// Finds an entry and its slot, and does not count as a use.
    #[inline]
    pub fn find(&self, class: u32, page: u64, tag: Tag) -> Option<(usize, u64)> {
        let key = Key::new(class, page, tag);
        for array in &self.arrays {
            if array.geometry.classes >> class & 1 != 0 {
                if let Some(index) = &array.index {
                    let slot = index.find(key.0, &self.keys)?;
                    return Some((slot, self.values[slot]));
                }
                let first = array.first(key);
                let ways = &self.keys[first..first + array.geometry.ways];
                if let Some(way) = ways.iter().position(|k| *k == key.0) {
                    return Some((first + way, self.values[first + way]));
                }
            }
        }
        None
    }

    /// Finds an entry and counts as a use of it.
    #[inline]
    pub fn get(&mut self, class: u32, page: u64, tag: Tag) -> Option<(usize, u64)> {
        let found = self.find(class, page, tag)?;
        self.touch(found.0);
        Some(found)
    }

    /// A use of the entry in this slot.
    #[inline(always)]
    pub fn touch(&mut self, slot: usize) {
        let sees = self.arrays.iter().rfind(|array| array.base <= slot);
        if sees.is_some_and(|array| array.geometry.policy.sees_hits()) {
            self.clock += 1;
            self.stamps[slot] = self.clock;
        }
    }

    /// The same for a slot of which [`sees_hits`](Self::sees_hits) was asked before.
    #[inline(always)]
    pub fn touch_stamp(&mut self, slot: usize) {
        self.clock += 1;
        if let Some(stamp) = self.stamps.get_mut(slot) {
            *stamp = self.clock;
        }
    }

    /// Whether uses of this slot matter.
    pub fn sees_hits(&self, slot: usize) -> bool {
        self.arrays
            .iter()
            .rfind(|array| array.base <= slot)
            .is_some_and(|array| array.geometry.policy.sees_hits())
    }

    /// Puts an entry in, in the place of one whose tag is not live, or of the one that the policy names. `deaths` is how often tags
    /// have died so far. Returns its slot, and the key that was there. A class without an array is not kept.
    pub fn insert(
        &mut self,
        class: u32,
        page: u64,
        tag: Tag,
        value: u64,
        (deaths, is_live): (u64, impl Fn(Tag) -> bool),
    ) -> Option<(usize, Option<Key>)> {
        let key = Key::new(class, page, tag);
        let array = self.arrays.iter_mut().find(|array| array.geometry.classes >> class & 1 != 0)?;
        let (first, ways) = (array.first(key), array.geometry.ways);
        let set = &self.keys[first..first + ways];
        let place = match &array.index {
            Some(index) => index.find(key.0, &self.keys).map(|slot| slot - first),
            None => set.iter().position(|k| *k == key.0),
        };
        let place = place.or_else(|| {
            if array.full == Some(deaths) {
                return None;
            }
            let free = set.iter().position(|k| *k == EMPTY || !is_live(Key(*k).tag()));
            array.full = (free.is_none() && array.sets == 1).then_some(deaths);
            free
        });
        let way = place.unwrap_or_else(|| {
            array.geometry.policy.victim(ways, |way| self.stamps[first + way], &mut self.random)
        });
        let slot = first + way;
        let old = self.keys[slot];
        if let Some(index) = array.index.as_mut().filter(|_| old != key.0) {
            if old != EMPTY {
                index.remove(slot, &self.keys);
            }
            self.keys[slot] = key.0;
            index.insert(slot, &self.keys);
        }
        self.keys[slot] = key.0;
        self.values[slot] = value;
        self.clock += 1;
        self.stamps[slot] = self.clock;
        Some((slot, (old != EMPTY).then_some(Key(old))))
    }

    /// Takes out every entry for which this holds.
    pub fn remove_if(&mut self, mut condition: impl FnMut(Key, u64) -> bool) {
        for slot in 0..self.keys.len() {
            if self.keys[slot] != EMPTY && condition(Key(self.keys[slot]), self.values[slot]) {
                self.vacate(slot);
            }
        }
    }

    fn vacate(&mut self, slot: usize) {
        if let Some(array) = self.arrays.iter_mut().rfind(|array| array.base <= slot) {
            array.full = None;
            if let Some(index) = &mut array.index {
                index.remove(slot, &self.keys);
            }
        }
        self.keys[slot] = EMPTY;
    }

    /// Takes one entry out.
    pub fn remove(&mut self, class: u32, page: u64, tag: Tag) {
        if let Some((slot, _)) = self.find(class, page, tag) {
            self.vacate(slot);
        }
    }

    /// Empties all.
    pub fn clear(&mut self) {
        self.keys.fill(EMPTY);
        self.arrays.iter_mut().for_each(|array| array.full = None);
        self.arrays.iter_mut().filter_map(|array| array.index.as_mut()).for_each(Index::clear);
    }
}

impl Array {
    /// The first slot of the key's set.
    #[inline]
    fn first(&self, key: Key) -> usize {
        let page = key.page() as usize;
        let set = if self.sets.is_power_of_two() { page & (self.sets - 1) } else { page % self.sets };
        self.base + set * self.geometry.ways
    }
}

#[cfg(test)]
#[path = "bank_tests.rs"]
mod tests;
