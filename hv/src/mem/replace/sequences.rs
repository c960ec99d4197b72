//! Sequences of page faults at neighbouring pages, as SEQ tells loops over arrays from other accesses: a table of fixed length.

use alloc::{collections::TryReserveError, vec::Vec};

use super::{Page, bytes_of};

/// Faults of a sequence whose times are kept: the paper's N.
const TIMES: usize = 5;
/// Sequences of this length are long: the paper's L, in pages.
const LONG: u64 = 20;
/// Sequences in the table.
pub const MOST: usize = 200;

/// Where a sequence goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// One page alone.
    None,
    /// At the next higher page.
    Up,
    /// At the next lower page.
    Down,
}

/// A sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// Its lowest page.
    pub low: u64,
    /// Its highest page.
    pub high: u64,
    /// Where it goes on.
    pub direction: Direction,
    /// When its last faults were, the latest first.
    times: [u64; TIMES],
}

impl Sequence {
    /// Of this page alone.
    fn new(page: u64, now: u64) -> Sequence {
        let mut times = [0; TIMES];
        times[0] = now;
        Sequence { low: page, high: page, direction: Direction::None, times }
    }

    /// The page extends it.
    fn goes_on_at(&self, page: u64) -> bool {
        let up = self.high.checked_add(1) == Some(page);
        let down = page.checked_add(1) == Some(self.low);
        match self.direction {
            Direction::None => up || down,
            Direction::Up => up,
            Direction::Down => down,
        }
    }

    fn extend(&mut self, page: u64, now: u64) {
        self.direction = if page > self.high { Direction::Up } else { Direction::Down };
        (self.low, self.high) = (self.low.min(page), self.high.max(page));
        self.times.rotate_right(1);
        self.times[0] = now;
    }

    /// Pages.
    pub fn pages(&self) -> u64 {
        self.high - self.low + 1
    }

    /// It is long enough to be evicted from.
    pub fn is_long(&self) -> bool {
        self.pages() >= LONG
    }

    /// When its Nth last fault was: the later, the faster it grows.
    pub fn nth_time(&self) -> u64 {
        self.times[TIMES - 1]
    }

    /// The page at this distance behind its head, if it has that many.
    pub fn behind_head(&self, distance: u64) -> Option<Page> {
        let inside = distance < self.pages() && self.direction != Direction::None;
        inside.then(|| {
            Page(if self.direction == Direction::Up { self.high - distance } else { self.low + distance })
        })
    }
}

/// The table.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// In no order; no page is in two of them.
    all: Vec<Sequence>,
    /// Faults so far.
    now: u64,
}

impl Sequences {
    /// An empty table.
    ///
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Sequences, TryReserveError> {
        let mut all = Vec::new();
        all.try_reserve_exact(MOST + 1)?;
        Ok(Sequences { all, now: 0 })
    }

    /// The sequences.
    pub fn all(&self) -> &[Sequence] {
        &self.all
    }

    /// A fault at this page: extends a sequence, splits one, or begins one.
    pub fn fault(&mut self, page: Page) {
        self.now += 1;
        let (page, now) = (page.0, self.now);
        // Of two that meet here, the one with the later fault goes on; the other one is forgotten.
        let mut best: Option<usize> = None;
        let mut loser = None;
        for at in 0..self.all.len() {
            if !self.all[at].goes_on_at(page) {
                continue;
            }
            match best {
                Some(other) if self.all[other].times[0] >= self.all[at].times[0] => loser = Some(at),
                _ => loser = best.replace(at),
            }
        }
        if let Some(best) = best {
            self.all[best].extend(page, now);
            // What contained the page without ending at it was met from behind, and is overrun.
            let keeps = self.all[best];
            let mut at = 0;
            self.all.retain(|sequence| {
                at += 1;
                let overlaps = sequence.low <= keeps.high && keeps.low <= sequence.high;
                at - 1 == best || (Some(at - 1) != loser && !overlaps)
            });
            return;
        }
        if let Some(at) = self.all.iter().position(|sequence| (sequence.low..=sequence.high).contains(&page))
        {
            let sequence = &mut self.all[at];
            // What the head had before it goes on to be a sequence; the fault begins another one.
            match sequence.direction {
                Direction::Up if page > sequence.low => sequence.high = page - 1,
                Direction::Down if page < sequence.high => sequence.low = page + 1,
                _ => drop(self.all.swap_remove(at)),
            }
        }
        self.all.push(Sequence::new(page, now));
        if self.all.len() > MOST {
            self.forget_one();
        }
    }

    /// Forgets the sequence whose last fault was the earliest, of those that are not long if there are such.
    fn forget_one(&mut self) {
        let oldest = (0..self.all.len()).min_by_key(|at| (self.all[*at].is_long(), self.all[*at].times[0]));
        if let Some(at) = oldest {
            self.all.swap_remove(at);
        }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        bytes_of(&self.all)
    }
}
