//! OPT (Belady, 1966): the page goes whose next access is the latest. It needs the whole trace beforehand, 8 bytes for each run, and
//! is here alone for that reason.

use crate::{
    memory::{Counts, Memory},
    replace::NONE,
    trace::{Batch, Step, Universe},
};

/// The page is not accessed again.
const NEVER: u64 = u64::MAX;

/// When the page of each run is accessed next, after the last repetition of the run: by the number of the reference.
#[derive(Clone, Debug, Default)]
pub struct Future {
    next: Vec<u64>,
}

/// References of one repetition.
fn once(batch: &Batch, step: &Step) -> u64 {
    batch.of(step).iter().map(|run| u64::from(run.count)).sum()
}

impl Future {
    /// Of a whole trace.
    pub fn of(batches: &[Batch], universe: &Universe) -> Future {
        let mut seen = vec![NEVER; universe.pages.len()];
        let mut next = Vec::with_capacity(batches.iter().map(|batch| batch.runs.len()).sum());
        let mut now: u64 = batches.iter().map(Batch::references).sum();
        // From the end to the beginning.
        for batch in batches.iter().rev() {
            for step in batch.steps.iter().rev() {
                let once = once(batch, step);
                let mut at = now;
                for run in batch.of(step).iter().rev() {
                    at -= u64::from(run.count);
                    next.push(seen[run.page as usize]);
                    seen[run.page as usize] = at;
                }
                now -= once * u64::from(step.times);
                if step.times > 1 {
                    let mut at = now + once;
                    for run in batch.of(step).iter().rev() {
                        at -= u64::from(run.count);
                        seen[run.page as usize] = at;
                    }
                }
            }
        }
        next.reverse();
        Future { next }
    }
}

/// A memory under OPT.
pub struct Opt<'a> {
    future: &'a [u64],
    frames: usize,
    /// The slot of each row of the universe, or [`NONE`].
    slots: Vec<u32>,
    rows: Vec<u32>,
    evicted: Vec<u64>,
    /// When the page in each slot is accessed next.
    next: Vec<u64>,
    /// A heap of slots by `keys`, the latest first, and where each slot is in it. Slots that were accessed since the last eviction
    /// wait in `touched`, with an old key: hits come in great numbers, and only an eviction needs the order.
    heap: Vec<u32>,
    keys: Vec<u64>,
    places: Vec<u32>,
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    counts: Counts,
}

impl<'a> Opt<'a> {
    /// Empty, of this many frames, for the trace of this future.
    pub fn new(future: &'a Future, frames: u32) -> Self {
        let frames = frames as usize;
        Opt {
            future: &future.next,
            frames,
            slots: vec![],
            rows: Vec::with_capacity(frames),
            evicted: vec![],
            next: Vec::with_capacity(frames),
            heap: Vec::with_capacity(frames),
            keys: Vec::with_capacity(frames),
            places: Vec::with_capacity(frames),
            touched: Vec::with_capacity(frames),
            is_touched: Vec::with_capacity(frames),
            counts: Counts::default(),
        }
    }

    fn key(&self, place: usize) -> u64 {
        self.keys[self.heap[place] as usize]
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a] as usize] = a as u32;
        self.places[self.heap[b] as usize] = b as u32;
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.key(place) > self.key((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children =
                [2 * place + 1, 2 * place + 2].into_iter().filter(|child| *child < self.heap.len());
            let Some(later) = children.max_by_key(|child| self.key(*child)) else { return };
            if self.key(later) <= self.key(place) {
                return;
            }
            self.swap(place, later);
            place = later;
        }
    }

    fn touch(&mut self, slot: u32, next: u64) {
        self.next[slot as usize] = next;
        if !std::mem::replace(&mut self.is_touched[slot as usize], true) {
            self.touched.push(slot);
        }
    }

    fn fault(&mut self, row: u32, next: u64) {
        let now = self.counts.references + 1;
        self.counts.faults += 1;
        if self.evicted[row as usize] > 0 {
            self.counts.refaults += 1;
            self.counts.refault_distance += now - self.evicted[row as usize];
        }
        if self.rows.len() < self.frames {
            let slot = self.rows.len() as u32;
            self.rows.push(row);
            self.next.push(0);
            self.keys.push(0);
            self.is_touched.push(false);
            self.places.push(slot);
            self.heap.push(slot);
            self.slots[row as usize] = slot;
            return self.touch(slot, next);
        }
        // What was accessed is accessed again later than its key says: one after the other they can only rise.
        for at in 0..self.touched.len() {
            let slot = self.touched[at] as usize;
            self.is_touched[slot] = false;
            self.keys[slot] = self.next[slot];
            self.rise(self.places[slot] as usize);
        }
        self.touched.clear();
        let slot = self.heap[0];
        let victim = self.rows[slot as usize] as usize;
        self.slots[victim] = NONE;
        self.evicted[victim] = now;
        self.counts.evictions += 1;
        self.rows[slot as usize] = row;
        self.slots[row as usize] = slot;
        (self.next[slot as usize], self.keys[slot as usize]) = (next, next);
        self.sink(0);
    }
}

impl Memory for Opt<'_> {
    fn pass(&mut self, batch: &Batch, universe: &Universe) {
        self.slots.resize(universe.pages.len(), NONE);
        self.evicted.resize(universe.pages.len(), 0);
        for step in &batch.steps {
            let runs = batch.of(step);
            let (future, later) = self.future.split_at(runs.len());
            self.future = later;
            let once = once(batch, step);
            let mut left = step.times;
            while left > 0 {
                left -= 1;
                let (begin, before) = (self.counts.references, self.counts.faults);
                let mut at = begin;
                for (n, run) in runs.iter().enumerate() {
                    let next = if left == 0 {
                        future[n]
                    } else {
                        // Behind it in this repetition, or before it in the next.
                        let mut other = at + u64::from(run.count);
                        let behind = runs[n + 1..].iter().chain(&runs[..=n]);
                        for run in behind.take_while(|other| other.page != run.page) {
                            other += u64::from(run.count);
                        }
                        other
                    };
                    match self.slots[run.page as usize] {
                        NONE => self.fault(run.page, next),
                        slot => self.touch(slot, next),
                    }
                    at += u64::from(run.count);
                    self.counts.references = at;
                }
                if self.counts.faults == before && left > 1 {
                    // The rest are hits; the last of them tells when each page is next accessed.
                    self.counts.references += once * u64::from(left - 1);
                    left = 1;
                }
            }
        }
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn policy_bytes(&self) -> usize {
        8 * self.future.len()
    }
}
