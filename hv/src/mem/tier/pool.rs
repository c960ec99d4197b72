//! The machine's fast memory: frames that the frame allocator does not have, and what each VM may take of them.
//!
//! A VM takes frames for its pages, one by one or 512 at once, and gives all back at its end. So do the hypervisor's page tables that
//! processors walk for it ([`FastPool::take_for_table`]); VMs divide what tables leave.
//!
//! ```text
//!  number 0                                                  total
//!    │ single pages ──►          free          ◄── pieces ◄── tables │
//! ```
//!
//! Tables stay, and pages come and go: a table that is the last free frame breaks up no run that a piece could have, as long as others
//! are in the same one. What must hold: a frame is one VM's, or free, and the contents of a free one are arbitrary but for what a guest
//! has left: the last owner wipes it.

use alloc::vec::Vec;
use core::ops::Range;

use abi::tiers::Sharing;
use spin::Mutex;

use super::migration::PIECE;
use super::sharing::{Demand, divide};
use crate::arch::addr::Hfn;
use crate::mem::pieces::OutOfMemory;

#[derive(Debug)]
struct State {
    /// A bit for each frame that is free.
    free: Vec<u64>,
    /// Words below this one have none.
    first: usize,
    /// Nor have words from this one on.
    end: usize,
    count: u32,
    /// Frames that hold page tables, of all VMs, and of each by its number.
    tables: u32,
    tables_of: Vec<u32>,
    /// By the VM's number.
    demands: Vec<Option<Demand>>,
}

/// One frame in this many holds a table, at most. Small leaves for 32 times as much memory as is fast need that many; a VM alone has half of
/// them ([`tables_for`]).
const TABLES_PART: u32 = 16;

/// As many tables of `most` as this VM may have: its part by weight, beside the others that there are and one more like it. As tables stay,
/// the next VM that begins would find none otherwise.
fn tables_for(vm: usize, most: u32, demands: &[Option<Demand>]) -> u32 {
    let weight = |demand: &Demand| u64::from(demand.weight.max(1));
    let others = demands.iter().enumerate().filter(|(at, _)| *at != vm);
    let others: u64 = others.filter_map(|(_, demand)| demand.as_ref().map(weight)).sum();
    // Its first tables come before it asks for anything: it counts as much as all others then.
    let own = demands.get(vm).and_then(Option::as_ref).map_or(others.max(1), weight);
    (u64::from(most) * own / (others + 2 * own)) as u32
}

impl State {
    /// Takes the first free frame.
    fn take_first(&mut self) -> Option<u32> {
        let found = self.free[self.first..].iter().position(|word| *word != 0)?;
        self.first += found;
        let word = &mut self.free[self.first];
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        self.count -= 1;
        Some(self.first as u32 * 64 + bit)
    }

    /// Takes the last one.
    fn take_last(&mut self) -> Option<u32> {
        let found = self.free[..self.end].iter().rposition(|word| *word != 0)?;
        self.end = found + 1;
        let bit = self.free[found].ilog2();
        self.free[found] &= !(1 << bit);
        self.count -= 1;
        Some(found as u32 * 64 + bit)
    }

    /// Frames of this word are free.
    fn has_free(&mut self, word: usize) {
        self.first = self.first.min(word);
        self.end = self.end.max(word + 1);
    }

    /// False: it is not taken.
    fn give_back(&mut self, number: u32) -> bool {
        let (word, bit) = (number as usize / 64, 1 << (number % 64));
        let Some(free) = self.free.get_mut(word).filter(|free| **free & bit == 0) else { return false };
        *free |= bit;
        self.has_free(word);
        self.count += 1;
        true
    }
}

/// The words of the bitmap that have the frames of a piece, and which of their bits.
fn words(number: u32) -> impl Iterator<Item = (usize, u64)> {
    let (first, shift) = (number as usize / 64, number % 64);
    let whole =
        (0..PIECE as usize / 64).map(move |n| (first + n, u64::MAX << if n == 0 { shift } else { 0 }));
    let rest = (shift != 0).then(|| (first + PIECE as usize / 64, (1 << shift) - 1));
    whole.chain(rest)
}

/// See the module.
#[derive(Debug)]
pub struct FastPool {
    /// Disjoint.
    ranges: Vec<Range<Hfn>>,
    total: u32,
    sharing: Sharing,
    state: Mutex<State>,
}

impl FastPool {
    /// Of these frames, which are disjoint.
    ///
    /// # Errors
    /// No memory for its tables: a bit for each frame.
    pub fn new(
        ranges: impl IntoIterator<Item = Range<Hfn>>,
        sharing: Sharing,
    ) -> Result<FastPool, OutOfMemory> {
        let mut own: Vec<Range<Hfn>> = Vec::new();
        let mut total = 0u32;
        for range in ranges {
            let frames = range.end.0.saturating_sub(range.start.0);
            total =
                u32::try_from(frames).ok().and_then(|frames| total.checked_add(frames)).ok_or(OutOfMemory)?;
            own.try_reserve(1).map_err(|_| OutOfMemory)?;
            own.push(range);
        }
        let words = (total as usize).div_ceil(64);
        let mut free = Vec::new();
        free.try_reserve_exact(words).map_err(|_| OutOfMemory)?;
        free.resize(words, u64::MAX);
        if let (Some(last), 1..) = (free.last_mut(), total % 64) {
            *last = (1 << (total % 64)) - 1;
        }
        let state = State {
            free,
            first: 0,
            end: words,
            count: total,
            tables: 0,
            tables_of: Vec::new(),
            demands: Vec::new(),
        };
        Ok(FastPool { ranges: own, total, sharing, state: Mutex::new(state) })
    }

    /// All its frames.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Whether all of it is below 4 GiB.
    pub fn is_low(&self) -> bool {
        self.ranges.iter().all(|range| range.end.base().0 <= 1 << 32)
    }

    /// Those that are free.
    pub fn free(&self) -> u32 {
        self.state.lock().count
    }

    /// How it is divided.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Where a frame is.
    pub fn frame(&self, number: u32) -> Option<Hfn> {
        let mut left = u64::from(number);
        for range in &self.ranges {
            let frames = range.end.0 - range.start.0;
            if left < frames {
                return Some(Hfn(range.start.0 + left));
            }
            left -= frames;
        }
        None
    }

    /// A frame's number.
    pub fn number(&self, frame: Hfn) -> Option<u32> {
        let mut before = 0;
        for range in &self.ranges {
            if range.contains(&frame) {
                return Some((before + frame.0 - range.start.0) as u32);
            }
            before += range.end.0 - range.start.0;
        }
        None
    }

    /// Takes a frame for a page: the first free one.
    pub fn take(&self) -> Option<u32> {
        self.state.lock().take_first()
    }

    /// Takes the last free frame for a page table of a VM. Its contents are arbitrary. `None`: its tables or all have their part, or nothing
    /// is free.
    pub fn take_for_table(&self, vm: usize) -> Option<Hfn> {
        let number = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let most = self.total / TABLES_PART;
            let own = state.tables_of.get(vm).copied().unwrap_or(0);
            if state.tables >= most || own >= tables_for(vm, most, &state.demands) {
                return None;
            }
            if vm >= state.tables_of.len() {
                state.tables_of.try_reserve(vm + 1 - state.tables_of.len()).ok()?;
                state.tables_of.resize(vm + 1, 0);
            }
            let number = state.take_last()?;
            state.tables += 1;
            state.tables_of[vm] += 1;
            number
        };
        self.frame(number)
    }

    /// Gives the frame of a page table of a VM back, which no processor walks any more.
    pub fn give_back_table(&self, vm: usize, number: u32) {
        let mut state = self.state.lock();
        let has_any = state.tables_of.get(vm).is_some_and(|tables| *tables > 0);
        let is_taken = has_any && number < self.total && state.give_back(number);
        debug_assert!(is_taken, "table {number} is not taken");
        if is_taken {
            state.tables -= 1;
            state.tables_of[vm] -= 1;
        }
    }

    /// Frames that hold page tables, of all VMs.
    pub fn tables(&self) -> u32 {
        self.state.lock().tables
    }

    /// Frames that are divided between VMs: all but those that hold page tables.
    pub fn for_pages(&self) -> u32 {
        self.total - self.tables()
    }

    /// Takes 512 frames that begin at an address of 2 MiB: the last such run that is free, because single pages are taken from the first
    /// on. The number of its first frame.
    pub fn take_piece(&self) -> Option<u32> {
        let mut state = self.state.lock();
        if u64::from(state.count) < PIECE {
            return None;
        }
        let mut end = self.total;
        for range in self.ranges.iter().rev() {
            let before = end - (range.end.0 - range.start.0) as u32;
            let mut last = range.end.0 & !(PIECE - 1);
            while last >= range.start.0 + PIECE {
                last -= PIECE;
                let number = before + (last - range.start.0) as u32;
                if words(number).all(|(word, mask)| state.free[word] & mask == mask) {
                    words(number).for_each(|(word, mask)| state.free[word] &= !mask);
                    state.count -= PIECE as u32;
                    return Some(number);
                }
            }
            end = before;
        }
        None
    }

    /// Gives the frames of a piece back, as [`FastPool::give_back`] does one.
    pub fn give_back_piece(&self, number: u32) {
        let mut state = self.state.lock();
        let is_taken = |(word, mask): (usize, u64)| state.free.get(word).is_some_and(|free| free & mask == 0);
        if number.checked_add(PIECE as u32).is_none_or(|end| end > self.total) || !words(number).all(is_taken)
        {
            debug_assert!(false, "not all of the piece at {number} is taken");
            return;
        }
        for (word, mask) in words(number) {
            state.free[word] |= mask;
            state.has_free(word);
        }
        state.count += PIECE as u32;
    }

    /// Gives a frame back, to which nothing leads any more, and in which is nothing that another VM must not see, or nothing that the
    /// next owner does not overwrite as a whole before its guest can read it.
    pub fn give_back(&self, number: u32) {
        let is_taken = number < self.total && self.state.lock().give_back(number);
        debug_assert!(is_taken, "frame {number} is not taken");
    }

    /// Says what VM `vm` asks for, or that it is gone; the frames that it may have now.
    ///
    /// # Errors
    /// No memory for the record of one more VM.
    pub fn publish(&self, vm: usize, demand: Option<Demand>) -> Result<u32, OutOfMemory> {
        let mut state = self.state.lock();
        if vm >= state.demands.len() {
            let more = vm + 1 - state.demands.len();
            state.demands.try_reserve(more).map_err(|_| OutOfMemory)?;
            state.demands.resize(vm + 1, None);
        }
        state.demands[vm] = demand;
        Ok(divide(self.sharing, self.total - state.tables, &state.demands, vm))
    }

    /// Frames that are divided between VMs, and those of them that E-states which a person has set for others than this VM leave.
    pub fn left_by_set(&self, vm: usize) -> (u32, u32) {
        let state = self.state.lock();
        let divided = self.total - state.tables;
        let others = state.demands.iter().enumerate().filter(|(at, _)| *at != vm);
        let set = others.filter_map(|(_, demand)| demand.filter(|demand| demand.is_set));
        (divided, set.map(|demand| demand.state.frames(divided)).fold(divided, u32::saturating_sub))
    }
}

#[cfg(test)]
mod tests;
