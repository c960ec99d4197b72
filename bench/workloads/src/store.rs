//! A store of keys and values in memory under load: lookups miss the TLB, and its memory comes and goes in slabs.

use std::io;

use crate::{Work, random::Random, sys::Area};

/// Requests at random keys.
pub fn store(rounds: u64) -> io::Result<Work> {
    let mut store = Store::new()?;
    Ok(Box::new(move || store.serve(rounds)))
}

/// Words of an item: its key, the next item of its bucket, whether it was used, and its value.
const ITEM: usize = 128;
const KEY: usize = 0;
const NEXT: usize = 1;
const USED: usize = 2;
const VALUE: usize = 3;
/// Items of a slab: 1 MiB.
const ITEMS: usize = 1024;
/// Slabs at most, and those that are there before the work.
const SLABS: usize = 128;
const FIRST_SLABS: usize = 96;
const BUCKETS: usize = 1 << 16;
/// Keys, of which the store has room for half.
const KEYS: usize = 1 << 18;
/// Requests after which a slab is given back to the kernel, and another one taken.
const PERIOD: u64 = 4096;
/// No item.
const NONE: u64 = u64::MAX;

/// Items in slabs, found by a hash table with chains. What was not used since the hand of a clock came by is replaced.
struct Store {
    buckets: Area,
    slabs: Vec<Area>,
    free: Vec<u64>,
    hand: u64,
    random: Random,
}

impl Store {
    fn new() -> io::Result<Store> {
        let mut buckets = Area::new(BUCKETS * size_of::<u64>())?;
        buckets.words().fill(NONE);
        let mut store =
            Store { buckets, slabs: Vec::new(), free: Vec::new(), hand: 0, random: Random::new(13) };
        for _ in 0..FIRST_SLABS {
            store.add_slab()?;
        }
        // Half of what there is room for now; the rest comes with the load.
        for key in 0..(FIRST_SLABS * ITEMS / 2) as u64 {
            store.insert(key)?;
        }
        Ok(store)
    }

    fn add_slab(&mut self) -> io::Result<()> {
        let first = (self.slabs.len() * ITEMS) as u64;
        self.slabs.push(Area::new(ITEMS * ITEM * size_of::<u64>())?);
        self.free.extend((first..first + ITEMS as u64).rev());
        Ok(())
    }

    fn item(&mut self, number: u64) -> &mut [u64] {
        let (slab, at) = (number as usize / ITEMS, number as usize % ITEMS * ITEM);
        &mut self.slabs[slab].words()[at..at + ITEM]
    }

    fn bucket(&mut self, key: u64) -> &mut u64 {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        &mut self.buckets.words()[hash as usize % BUCKETS]
    }

    /// The item of a key.
    fn find(&mut self, key: u64) -> Option<u64> {
        let mut number = *self.bucket(key);
        while number != NONE {
            let item = self.item(number);
            if item[KEY] == key {
                item[USED] = 1;
                return Some(number);
            }
            number = item[NEXT];
        }
        None
    }

    /// Puts a key in that is not there.
    fn insert(&mut self, key: u64) -> io::Result<u64> {
        if self.free.is_empty() && self.slabs.len() < SLABS {
            self.add_slab()?;
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => self.evict(),
        };
        let next = std::mem::replace(self.bucket(key), number);
        let item = self.item(number);
        [item[KEY], item[NEXT], item[USED]] = [key, next, 0];
        item[VALUE..].iter_mut().step_by(8).enumerate().for_each(|(at, word)| *word = key ^ at as u64);
        Ok(number)
    }

    /// Takes out the next item that was not used lately. All items are in use.
    fn evict(&mut self) -> u64 {
        loop {
            let number = self.hand;
            self.hand = (self.hand + 1) % (self.slabs.len() * ITEMS) as u64;
            if std::mem::take(&mut self.item(number)[USED]) == 0 {
                self.unlink(number);
                return number;
            }
        }
    }

    /// Takes an item out of its chain, if it is in one.
    fn unlink(&mut self, number: u64) {
        let [key, next] = [KEY, NEXT].map(|word| self.item(number)[word]);
        let mut at = *self.bucket(key);
        if at == number {
            *self.bucket(key) = next;
            return;
        }
        while at != NONE {
            let item = self.item(at);
            if item[NEXT] == number {
                item[NEXT] = next;
                return;
            }
            at = item[NEXT];
        }
    }

    /// Gives a slab's memory back, with what is in it, and takes new memory.
    fn renew(&mut self, slab: usize) -> io::Result<()> {
        let numbers = (slab * ITEMS) as u64..((slab + 1) * ITEMS) as u64;
        self.free.retain(|number| !numbers.contains(number));
        numbers.clone().for_each(|number| self.unlink(number));
        self.slabs[slab] = Area::new(ITEMS * ITEM * size_of::<u64>())?;
        self.free.extend(numbers.rev());
        Ok(())
    }

    /// Serves requests: nine of ten read, and what is not there is put in; the others write.
    fn serve(&mut self, requests: u64) -> io::Result<u64> {
        let (mut sum, mut found) = (0u64, 0u64);
        for request in 1..=requests {
            // Of two random keys the lower one: some are asked for more often than others.
            let key = self.random.below(KEYS).min(self.random.below(KEYS)) as u64;
            let number = match self.find(key) {
                Some(number) => {
                    found += 1;
                    number
                }
                None => self.insert(key)?,
            };
            let place = VALUE + self.random.below(8) * 8;
            let writes = self.random.below(16) == 0;
            let word = &mut self.item(number)[place];
            *word = word.wrapping_add(u64::from(writes));
            sum = sum.wrapping_mul(31).wrapping_add(*word);
            if request % PERIOD == 0 {
                let slab = self.random.below(128) % self.slabs.len();
                self.renew(slab)?;
            }
        }
        Ok(sum ^ found << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_until_they_are_replaced() {
        let mut store = Store::new().unwrap();
        assert!(store.find(7).is_some() && store.find(1 << 17).is_none());
        store.insert(1 << 17).unwrap();
        let number = store.find(1 << 17).unwrap();
        assert_eq!(store.item(number)[VALUE + 8], (1 << 17) ^ 1);
        store.renew(number as usize / ITEMS).unwrap();
        assert_eq!(store.find(1 << 17), None);
        // Until it is full, and further: each chain still has what was put in last.
        for key in 0..(SLABS * ITEMS) as u64 + 5000 {
            let key = (1 << 20) + key;
            store.insert(key).unwrap();
            assert!(store.find(key).is_some());
        }
        assert_eq!(store.slabs.len(), SLABS);
        let there: Vec<u64> = (0..1 << 18).filter(|key| store.find(*key).is_some()).collect();
        assert_eq!(there, [7], "all older ones were replaced, but for the one that was used");
    }
}
