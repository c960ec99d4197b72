//! A ring of records with one writer and one reader, which may be different machines.
//!
//! The writer never waits: a record that does not fit is dropped and counted. The positions count words since the start, so that
//! their difference is what the ring holds; what the reader wrote is not trusted, as it may be in the middle of being killed.

use core::sync::atomic::{AtomicU64, Ordering};

/// Where the writer's position, the reader's position and the number of dropped records are: in lines of their own.
const WRITTEN: usize = 0;
const READ: usize = 8;
const DROPPED: usize = 16;
/// Words before the records.
const CONTROL: usize = 24;
/// Words that a ring has at least: room for the longest record.
pub const LEAST: usize = CONTROL + LONGEST;
/// Words of a record at most.
pub const LONGEST: usize = 256;

/// A ring over memory that begins as zeros.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    control: &'a [AtomicU64],
    words: &'a [AtomicU64],
}

impl<'a> Ring<'a> {
    /// The ring in this memory. `None`: it is too small.
    pub fn new(memory: &'a [AtomicU64]) -> Option<Ring<'a>> {
        if memory.len() < LEAST {
            return None;
        }
        let (control, words) = memory.split_at(CONTROL);
        Some(Ring { control, words })
    }

    /// For the writer: adds a record of at most [`LONGEST`] words. False: it was dropped.
    pub fn push(&self, record: &[u64]) -> bool {
        let written = self.control[WRITTEN].load(Ordering::Relaxed);
        let held = written.wrapping_sub(self.control[READ].load(Ordering::Acquire));
        let size = self.words.len() as u64;
        if held > size || size - held < record.len() as u64 || record.len() > LONGEST {
            let dropped = &self.control[DROPPED];
            dropped.store(dropped.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            return false;
        }
        let mut at = (written % size) as usize;
        for word in record {
            self.words[at].store(*word, Ordering::Relaxed);
            at = if at + 1 == self.words.len() { 0 } else { at + 1 };
        }
        self.control[WRITTEN].store(written.wrapping_add(record.len() as u64), Ordering::Release);
        true
    }

    /// For the reader: takes the next record, whose length it returns; it lies at the begin of `record`, as far as that
    /// reaches. `None`: there is none. What is no record empties the ring.
    pub fn pop(&self, record: &mut [u64]) -> Option<usize> {
        let written = self.control[WRITTEN].load(Ordering::Acquire);
        let read = self.control[READ].load(Ordering::Relaxed);
        let (held, size) = (written.wrapping_sub(read), self.words.len() as u64);
        if held == 0 {
            return None;
        }
        let word = |n: u64| self.words[(read.wrapping_add(n) % size) as usize].load(Ordering::Relaxed);
        let (_, length, _) = crate::parse_head(word(0));
        if held > size || length == 0 || length as u64 > held {
            self.control[READ].store(written, Ordering::Release);
            return None;
        }
        for (n, to) in record.iter_mut().enumerate().take(length) {
            *to = word(n as u64);
        }
        self.control[READ].store(read.wrapping_add(length as u64), Ordering::Release);
        Some(length)
    }

    /// Records that were dropped.
    pub fn dropped(&self) -> u64 {
        self.control[DROPPED].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::{head, parse_head};
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::thread;
    use std::vec::Vec;

    fn memory(words: usize) -> Vec<AtomicU64> {
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }

    fn record(length: usize, seed: u64) -> Vec<u64> {
        let rest = (1..length as u64).map(|n| seed.wrapping_mul(n));
        std::iter::once(head(1, length, seed as u32)).chain(rest).collect()
    }

    proptest! {
        #[test]
        fn is_a_queue_that_drops_what_does_not_fit(ops in prop::collection::vec((any::<bool>(), 1usize..100), 0..300)) {
            let memory = memory(LEAST + 17);
            let ring = Ring::new(&memory).unwrap();
            let (mut model, mut held, mut dropped) = (VecDeque::new(), 0, 0);
            for (n, (pushes, length)) in ops.into_iter().enumerate() {
                if pushes {
                    let record = record(length, n as u64);
                    let fits = held + length <= LONGEST + 17;
                    prop_assert_eq!(ring.push(&record), fits);
                    if fits { held += length; model.push_back(record); } else { dropped += 1; }
                } else {
                    let mut found = [0; LONGEST];
                    let expected: Option<Vec<u64>> = model.pop_front();
                    prop_assert_eq!(ring.pop(&mut found).map(|length| found[..length].to_vec()), expected.clone());
                    held -= expected.map_or(0, |record| record.len());
                }
            }
            prop_assert_eq!(ring.dropped(), dropped);
        }

        #[test]
        fn noise_neither_panics_nor_hangs(words in prop::collection::vec(any::<u64>(), CONTROL), data: u64) {
            let memory = memory(LEAST);
            for (to, word) in memory.iter().zip(words) {
                to.store(word, Ordering::Relaxed);
            }
            memory[CONTROL..].iter().for_each(|word| word.store(data, Ordering::Relaxed));
            let ring = Ring::new(&memory).unwrap();
            let mut record = [0; 3];
            let mut records = 0;
            while ring.pop(&mut record).is_some() {
                records += 1;
                prop_assert!(records <= LEAST);
            }
            let _may_be_dropped = ring.push(&[head(1, 1, 0)]);
        }
    }

    #[test]
    fn a_writer_and_a_reader_at_once() {
        let memory: Arc<Vec<AtomicU64>> = Arc::new(memory(LEAST));
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let ring = Ring::new(&memory).unwrap();
                (0..20_000u64).filter(|n| !ring.push(&record(1 + (*n % 40) as usize, *n))).count() as u64
            })
        };
        let ring = Ring::new(&memory).unwrap();
        let (mut found, mut next, mut count) = ([0; LONGEST], 0, 0);
        loop {
            let over = writer.is_finished();
            while let Some(length) = ring.pop(&mut found) {
                let (_, _, seed) = parse_head(found[0]);
                assert!(seed >= next, "records come in order");
                assert_eq!(&found[..length], record(length, seed.into()), "and whole");
                next = seed + 1;
                count += 1;
            }
            if over {
                break;
            }
        }
        let dropped = writer.join().unwrap();
        assert_eq!((count + dropped, ring.dropped()), (20_000, dropped));
    }
}
