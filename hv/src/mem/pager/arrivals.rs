//! Pages that have arrived and are in no slot yet, in their order. A page finds its entry by a number.

use alloc::collections::VecDeque;

use super::state::InFrame;
use crate::mem::pieces::OutOfMemory;

/// Numbers of entries are below this, and then begin again at 0.
const NUMBERS: u32 = 1 << 30;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    queue: VecDeque<InFrame>,
    /// The number of the first entry.
    first: u32,
}

impl Arrivals {
    /// Makes room for `more` entries.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), OutOfMemory> {
        self.queue.try_reserve(more).map_err(|_| OutOfMemory)
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Adds an entry, for which there is room; its number.
    pub(super) fn push(&mut self, page: InFrame) -> u32 {
        self.queue.push_back(page);
        self.first.wrapping_add(self.queue.len() as u32 - 1) % NUMBERS
    }

    /// Takes the first entry.
    pub(super) fn pop(&mut self) -> Option<InFrame> {
        let page = self.queue.pop_front()?;
        self.first = (self.first + 1) % NUMBERS;
        Some(page)
    }

    /// The entry with this number.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut InFrame> {
        let index = number.wrapping_sub(self.first) % NUMBERS;
        self.queue.get_mut(index as usize)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn iter(&self) -> impl Iterator<Item = &InFrame> + Clone {
        self.queue.iter()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn get(&self, number: u32) -> Option<&InFrame> {
        self.queue.get((number.wrapping_sub(self.first) % NUMBERS) as usize)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = InFrame> {
        self.queue.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_begin_again_and_find_their_entries() {
        let mut arrivals = Arrivals { first: NUMBERS - 3, ..Arrivals::default() };
        let numbers: Vec<u32> = (0..6).map(|n| arrivals.push(InFrame { number: n, frame: n })).collect();
        assert_eq!(numbers, [NUMBERS - 3, NUMBERS - 2, NUMBERS - 1, 0, 1, 2]);
        assert_eq!(arrivals.pop().map(|page| page.number), Some(0));
        for (n, &number) in (0..).zip(&numbers).skip(1) {
            assert_eq!(arrivals.get_mut(number).map(|page| page.number), Some(n));
        }
        assert!(arrivals.get_mut(numbers[0]).is_none() && arrivals.get_mut(3).is_none());
    }
}
