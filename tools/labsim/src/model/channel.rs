//! The channel of a range of memory: a line occupies it for as long as the range's bandwidth says, and two lines do not overlap.
//!
//! An access begins at the first time, not before its own, at which the channel is free for a whole line. With one processor
//! accesses come in the order of their times: each begins when those before it are done. Several processors may be apart by as much as
//! [`super::pace`] lets them. One that is behind gets the gaps that those ahead of it have left, and does not wait for what they
//! have done in its future. So no channel carries more than its bandwidth, and none is idle for the order in which an emulator
//! runs processors; but within that distance it is the emulator's order, and not time, that says which of two accesses waits.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use abi::lab::PACE_WINDOW;

/// The unit of a channel's time, in a cycle: lines take no whole number of cycles.
const MILLI: u64 = 1000;
/// How long it is known when the channel was busy, in that unit. What is older counts as busy.
const HORIZON: u64 = 2 * PACE_WINDOW * MILLI;

/// What went through a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Lines that loads, stores, fetches and walks asked for.
    pub lines: u64,
    /// Lines that a prefetcher asked for.
    pub prefetched: u64,
    /// Of the first kind, those that had to wait.
    pub waits: u64,
    /// How long they waited, in cycles.
    pub wait_cycles: u64,
    /// How long the channel was busy, in cycles.
    pub busy_cycles: u64,
    /// From the first line's begin to the last line's end, in cycles of the machine's time.
    pub span: (u64, u64),
}

#[derive(Debug, Default)]
struct State {
    /// When it is busy, in order. Gaps in which no line has room count as busy.
    busy: VecDeque<(u64, u64)>,
    /// Everything before is forgotten.
    floor: u64,
    carried: Carried,
    wait: u64,
    first: Option<u64>,
    last: u64,
}

/// See the module. All processors of a machine use it.
#[derive(Debug)]
pub struct Channel {
    line: u64,
    state: Mutex<State>,
}

impl Channel {
    /// One that carries `mb_s` megabytes in a second (millions of bytes, not 0), for processors with `mhz`.
    pub fn new(mb_s: u64, mhz: u32) -> Channel {
        let line = (u64::from(mhz) * 64 * MILLI).div_ceil(mb_s).max(1);
        Channel { line, state: Mutex::default() }
    }

    /// A line that something waits for at `now`; returns how many cycles it waits until the channel is free.
    pub fn demand(&self, now: u64) -> u64 {
        self.carry(now, true)
    }

    /// A line that nothing waits for.
    pub fn prefetch(&self, now: u64) {
        self.carry(now, false);
    }

    fn carry(&self, now: u64, is_awaited: bool) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = now.saturating_mul(MILLI).max(state.floor);
        let start = state.place(asked, self.line);
        let waited = start - asked;
        if is_awaited {
            state.carried.lines += 1;
            state.carried.waits += u64::from(waited >= MILLI);
            state.wait += waited;
        } else {
            state.carried.prefetched += 1;
        }
        waited / MILLI
    }

    /// What it has carried so far.
    pub fn carried(&self) -> Carried {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = state.carried.lines + state.carried.prefetched;
        Carried {
            wait_cycles: state.wait / MILLI,
            busy_cycles: lines.saturating_mul(self.line) / MILLI,
            span: (state.first.unwrap_or(0) / MILLI, state.last.div_ceil(MILLI)),
            ..state.carried
        }
    }
}

impl State {
    /// Takes the first `line` units from `asked` on that are free, and returns their begin.
    fn place(&mut self, asked: u64, line: u64) -> u64 {
        let (mut at, mut start) = (self.busy.partition_point(|(_, end)| *end <= asked), asked);
        // Every gap has room for a line, but for what of it is before `asked`.
        while let Some((_, end)) = self.busy.get(at).filter(|(from, _)| start.saturating_add(line) > *from) {
            (start, at) = (*end, at + 1);
        }
        let end = start.saturating_add(line);
        let joins = |gap: u64| gap < line;
        let before = at.checked_sub(1).filter(|before| joins(start - self.busy[*before].1));
        let after = self.busy.get(at).is_some_and(|(from, _)| joins(from.saturating_sub(end)));
        match (before, after) {
            (Some(before), true) => {
                self.busy[before].1 = self.busy[at].1;
                self.busy.remove(at);
            }
            (Some(before), false) => self.busy[before].1 = end,
            (None, true) => self.busy[at].0 = start,
            (None, false) => self.busy.insert(at, (start, end)),
        }
        self.first = Some(self.first.map_or(start, |first| first.min(start)));
        self.last = self.last.max(end);
        self.forget();
        start
    }

    /// Forgets what ended longer ago than the horizon.
    fn forget(&mut self) {
        let oldest = self.last.saturating_sub(HORIZON);
        while let Some((_, end)) = self.busy.front().filter(|(_, end)| *end < oldest) {
            self.floor = *end;
            self.busy.pop_front();
        }
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
