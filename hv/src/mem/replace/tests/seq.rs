//! SEQ: a sequence is the list of its faults, with their times.

use std::{collections::BTreeSet, vec::Vec};

use super::{Model, Outcome, Reference};

/// Pages in the order of their faults, and the times of all faults; pages may be cut off, times stay.
#[derive(Clone)]
struct Sequence {
    pages: Vec<u64>,
    times: Vec<u64>,
    up: Option<bool>,
}

pub struct Seq {
    frames: usize,
    slots: Vec<(u64, bool)>,
    hand: usize,
    sequences: Vec<Sequence>,
    now: u64,
}

fn goes_on(sequence: &Sequence, page: u64) -> bool {
    let head = *sequence.pages.last().unwrap();
    match sequence.up {
        None => head + 1 == page || page + 1 == head,
        Some(true) => head + 1 == page,
        Some(false) => page + 1 == head,
    }
}

impl Seq {
    pub fn new(frames: u32) -> Self {
        Self { frames: frames as usize, slots: Vec::new(), hand: 0, sequences: Vec::new(), now: 0 }
    }

    fn record(&mut self, page: u64) {
        self.now += 1;
        let mut those: Vec<usize> =
            (0..self.sequences.len()).filter(|at| goes_on(&self.sequences[*at], page)).collect();
        those.sort_by_key(|at| *self.sequences[*at].times.last().unwrap());
        if let Some(best) = those.pop() {
            let mut grown = self.sequences[best].clone();
            grown.up = Some(page > *grown.pages.last().unwrap());
            grown.pages.push(page);
            grown.times.push(self.now);
            let covered: BTreeSet<u64> = grown.pages.iter().copied().collect();
            let others = self.sequences.iter().enumerate().filter(|(at, sequence)| {
                let apart = sequence.pages.iter().all(|page| !covered.contains(page));
                *at != best && !those.contains(at) && apart
            });
            self.sequences = others.map(|(_, sequence)| sequence.clone()).collect();
            self.sequences.push(grown);
            return;
        }
        for sequence in &mut self.sequences {
            if let Some(at) = sequence.pages.iter().position(|other| *other == page) {
                sequence.pages.truncate(at);
            }
        }
        self.sequences.retain(|sequence| !sequence.pages.is_empty());
        let (pages, times) = (Vec::from([page]), Vec::from([self.now]));
        self.sequences.push(Sequence { pages, times, up: None });
    }

    /// CLOCK's next.
    fn next(&mut self) -> usize {
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !core::mem::take(&mut self.slots[slot].1) {
                return slot;
            }
        }
    }

    fn victim(&self) -> Option<usize> {
        let long = self.sequences.iter().filter(|sequence| sequence.pages.len() >= 20);
        let mut long: Vec<&Sequence> = long.collect();
        long.sort_by_key(|sequence| core::cmp::Reverse(sequence.times[sequence.times.len() - 5]));
        let mut pages = long.iter().flat_map(|sequence| sequence.pages.iter().rev().skip(20));
        pages.find_map(|page| self.slots.iter().position(|slot| slot.0 == *page))
    }
}

impl Model for Seq {
    fn access(&mut self, (page, _, times): Reference) -> Outcome {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.0 == page) {
            slot.1 = true;
            return None;
        }
        let mut evicted = None;
        if self.slots.len() >= self.frames {
            let slot = self.victim().unwrap_or_else(|| self.next());
            evicted = Some(self.slots[slot].0);
            self.slots[slot] = (page, times > 1);
        } else {
            self.slots.insert(self.hand, (page, times > 1));
            self.hand = (self.hand + 1) % self.slots.len();
        }
        self.record(page);
        Some(evicted)
    }

    fn evict(&mut self) -> u64 {
        let slot = self.victim().unwrap_or_else(|| self.next());
        let page = self.slots[slot].0;
        self.remove(page);
        page
    }

    fn remove(&mut self, page: u64) {
        let at = self.slots.iter().position(|slot| slot.0 == page).unwrap();
        self.slots.remove(at);
        self.hand -= usize::from(at < self.hand);
        if self.hand == self.slots.len() {
            self.hand = 0;
        }
    }

    fn limit(&mut self, frames: usize) {
        self.frames = frames;
    }
}
