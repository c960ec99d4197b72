//! Passes over one array, one after the other, and beside each of its pages accesses to a small array: where the first is larger than
//! memory, and the second is not, the former is looped over and the latter is what memory should keep.

use super::{Heap, Watch, noise};

/// Words of a page, and those from one line to the next.
const PAGE: usize = 512;
const LINE: usize = 8;
/// How often the array is gone through.
const PASSES: u64 = 6;
/// Pages of the array for each of the small one's.
const SHARE: usize = 16;
/// Accesses to the small array beside each page of the other.
const BESIDE: usize = 4;

/// Of an array of this many pages. Each pass changes one word of each page by what the pass before has left there, so that a page that
/// comes back as an earlier one, or as another's, is another sum.
pub fn passes<W: Watch>(heap: &Heap<'_, W>, pages: usize) -> u64 {
    let mut array = heap.array::<u64>(pages * PAGE);
    let few = pages / SHARE;
    let mut small = heap.array::<u64>(few * PAGE);
    // Words of a page are alike: it compresses, as most memory does.
    (0..array.len()).for_each(|n| array.set(n, (n / PAGE) as u64));
    (0..small.len()).for_each(|n| small.set(n, (n / PAGE) as u64));
    let mut sum = 0u64;
    for pass in 0..PASSES {
        for page in 0..pages {
            let lines = (0..PAGE / LINE).map(|line| array.get(page * PAGE + line * LINE));
            let value = lines.fold(pass, |value, word| value.rotate_left(3).wrapping_add(word));
            array.set(page * PAGE, value);
            for n in 0..BESIDE {
                let place = (noise(pass, page * BESIDE + n) * few as f64) as usize * PAGE;
                small.change(place + page % PAGE, |word| word.rotate_left(1) ^ value);
            }
            sum = sum.rotate_left(5).wrapping_mul(0x0100_0000_01b3) ^ value;
        }
    }
    small.data().iter().fold(sum, |sum, word| sum.rotate_left(7) ^ word)
}
