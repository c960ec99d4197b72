//! Taking a sample: a pass over the groups of an address space, in parts of a bounded size.

use core::ops::Range;

use super::planes::{bits, equal_bytes};
use super::{GROUP, Histories, SAMPLE_NS, SAMPLES, class};
use crate::arch::addr::Gfn;
use crate::region::{Rid, Space};

/// Frames of 2 MiB.
const PIECE: u64 = 512;

/// The access bits of an address space's tables, for all domains: nested tables, shadow tables by their reverse maps, or a bitmap
/// that was filled otherwise, as by a log of the processor.
pub trait AccessSource {
    /// Reads and clears the access bits of frames among the 64 from `first` on, a multiple of 64. Returns those that were accessed since
    /// the last time; what was not asked for is ignored.
    ///
    /// Frames are asked for in ascending order. A large leaf counts for all its frames, so that its bit is to be cleared once in a
    /// sample.
    fn take_accessed(&mut self, first: Gfn, asked: Asked) -> u64;
}

/// Which of 64 frames a sample asks for: bit `n` stands for the frame `first + n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// These.
    pub wanted: u64,
    /// Those that the sample before has found, for leaves that cannot tell which frames it was.
    pub last: u64,
    /// The VM's samples ask, in a piece of 2 MiB where those of an address space do, too: leaves that were joined there are for these.
    pub is_second: bool,
}

/// What part of a sample has been taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a sample that is not complete must be continued"]
pub struct Scan {
    /// Groups of 64 frames that were visited.
    pub groups: u64,
    /// Frames whose histories have one more or one less than before.
    pub changed: u64,
    /// Frames that were accessed since the sample before.
    pub accessed: u64,
    /// The sample is complete; otherwise the next call goes on.
    pub is_complete: bool,
}

impl Histories {
    /// Whether a sample of an address space with this virtual time is due, or has been begun.
    pub fn is_due(&self, space: Space, virtual_ns: u64) -> bool {
        let ticks = self.ticks[usize::from(space.0)];
        ticks.next.is_some() || virtual_ns >= ticks.due_ns
    }

    /// The virtual time of an address space at which its next sample is due; 0: one has been begun.
    pub fn due_ns(&self, space: Space) -> u64 {
        let ticks = self.ticks[usize::from(space.0)];
        if ticks.next.is_some() { 0 } else { ticks.due_ns }
    }

    /// Takes a sample of an address space, or goes on with it, for at most `groups` groups of frames (at least one). Intervals that
    /// have been missed are left out: nothing is known of them.
    pub fn scan(
        &mut self,
        space: Space,
        virtual_ns: u64,
        source: &mut impl AccessSource,
        groups: u64,
        region_of: impl Fn(Gfn) -> Option<Rid>,
    ) -> Scan {
        let ticks = &mut self.ticks[usize::from(space.0)];
        if ticks.next.is_none() {
            ticks.plane = (ticks.plane + 1) % SAMPLES as u8;
            ticks.next = Some(0);
            ticks.due_ns = virtual_ns.saturating_add(SAMPLE_NS);
        }
        let mut from = ticks.next.unwrap_or(0);
        let plane = usize::from(ticks.plane);
        let mut done = Scan::default();
        let mut piece = None;
        while done.groups < groups.max(1)
            && let Some(place) = self.next_present(space, from)
        {
            done.groups += 1;
            let is_second = space == Space::VM && !self.has_pool && self.is_anothers_piece(place, &mut piece);
            let (changed, accessed) = self.sample(space, place, plane, source, is_second, &region_of);
            done.changed += changed;
            done.accessed += accessed;
            from = place + 1;
        }
        done.is_complete = self.next_present(space, from).is_none();
        self.ticks[usize::from(space.0)].next = (!done.is_complete).then_some(from);
        done
    }

    /// Whether no two of these frames, whole groups, are asked for by samples of different address spaces. Those of the VM do not count
    /// unless they ask for the pool: they leave joined leaves to the others ([`Asked::is_second`]).
    pub(in crate::region) fn has_one_clock(&self, frames: Range<Gfn>) -> bool {
        let mut one = None;
        (frames.start.0..frames.end.0).step_by(GROUP as usize).all(|first| {
            let Some((place, _)) = self.place(Gfn(first)) else { return true };
            let is_asked = |space: u8| space != Space::VM.0 as u8 || self.has_pool;
            let mut asked = self.spaces[place].iter().filter(|space| is_asked(**space));
            asked.all(|space| one.get_or_insert(*space) == space)
        })
    }

    /// Whether samples of an address space ask for frames in the 2 MiB around this group. `last`: the piece that was looked at last, and
    /// the answer.
    fn is_anothers_piece(&self, place: usize, last: &mut Option<(u64, bool)>) -> bool {
        let Some(first) = self.first_of(place) else { return false };
        let piece = first.0 / PIECE;
        if let Some((_, answer)) = last.filter(|(own, _)| *own == piece) {
            return answer;
        }
        let mut groups = (piece * PIECE..(piece + 1) * PIECE).step_by(GROUP as usize);
        let is_anothers =
            |(place, _): (usize, _)| equal_bytes(&self.spaces[place], Space::VM.0 as u8) != u64::MAX;
        let answer = groups.any(|first| self.place(Gfn(first)).is_some_and(is_anothers));
        *last = Some((piece, answer));
        answer
    }

    /// The first group from `from` on in which the address space may have frames.
    fn next_present(&self, space: Space, from: usize) -> Option<usize> {
        let words = usize::from(space.0) * self.stride;
        let mut ahead = u64::MAX << (from % 64);
        for word in from / 64..self.stride {
            let found = self.present[words + word] & ahead;
            if found != 0 {
                return Some(word * 64 + found.trailing_zeros() as usize);
            }
            ahead = u64::MAX;
        }
        None
    }

    /// Replaces the bits of the address space's frames in one plane of a group. Returns how many differ from before, and how many are set.
    fn sample(
        &mut self,
        space: Space,
        place: usize,
        plane: usize,
        source: &mut impl AccessSource,
        is_second: bool,
        region_of: impl Fn(Gfn) -> Option<Rid>,
    ) -> (u64, u64) {
        let own = equal_bytes(&self.spaces[place], space.0 as u8);
        let Some(first) = self.first_of(place) else { return (0, 0) };
        if own == 0 {
            self.set_present(space, place, false);
            return (0, 0);
        }
        let last = self.planes[place][(plane + SAMPLES - 1) % SAMPLES];
        let accessed = source.take_accessed(first, Asked { wanted: own, last, is_second }) & own;
        let all = u64::from(accessed.count_ones());
        let old = self.planes[place][plane];
        let changed = (old & own) ^ accessed;
        if changed == 0 {
            return (0, all);
        }
        let (mut count, mut flipped) = (0, 0);
        let ones = &mut self.ones[place];
        for bit in bits(changed) {
            // A group at the end of a range may have places for frames that are no RAM.
            let Some(rid) = region_of(Gfn(first.0 + u64::from(bit))) else { continue };
            let before = ones[bit as usize];
            let now = if accessed >> bit & 1 == 1 { before + 1 } else { before - 1 };
            ones[bit as usize] = now;
            flipped |= 1 << bit;
            count += 1;
            let (before, now) = (class(before), class(now));
            let histogram = &mut self.histograms[rid.index()];
            // Frames without ones are not counted, and 31 and 32 ones are one class.
            if before != 0 {
                histogram[before] -= 1;
            }
            if now != 0 {
                histogram[now] += 1;
            }
        }
        self.planes[place][plane] ^= flipped;
        (count, all)
    }
}
