//! Radix sort: counts digits, and moves keys to their buckets in another array.

use super::{Array, Heap, Watch, noise};

const DIGIT: u32 = 10;
const DIGITS: u32 = 3;

/// Sorts the keys; two arrays take turns.
pub(super) fn sort<'a, W: Watch>(
    heap: &Heap<'a, W>,
    mut from: Array<'a, u32, W>,
    mut to: Array<'a, u32, W>,
) -> Array<'a, u32, W> {
    let mut ranks = heap.array::<u32>(1 << DIGIT);
    for digit in 0..DIGITS {
        let bucket = |key: u32| (key >> (digit * DIGIT)) as usize & ((1 << DIGIT) - 1);
        (0..ranks.len()).for_each(|n| ranks.set(n, 0));
        (0..from.len()).for_each(|n| ranks.change(bucket(from.get(n)), |count| count + 1));
        let mut sum = 0;
        for n in 0..ranks.len() {
            let count = ranks.get(n);
            ranks.set(n, sum);
            sum += count;
        }
        for n in 0..from.len() {
            let key = from.get(n);
            let rank = ranks.get(bucket(key));
            to.set(rank as usize, key);
            ranks.set(bucket(key), rank + 1);
        }
        std::mem::swap(&mut from, &mut to);
    }
    from
}

pub fn radix<W: Watch>(heap: &Heap<'_, W>, keys: usize) -> u64 {
    let (mut from, to) = (heap.array(keys), heap.array(keys));
    (0..keys).for_each(|n| from.set(n, (noise(5, n) * f64::from(1 << (DIGIT * DIGITS))) as u32));
    let sorted = sort(heap, from, to);
    sorted.data().iter().fold(0, |sum: u64, key| sum.rotate_left(7) ^ u64::from(*key))
}
