//! Access histories: which of the last 32 samples of its address space found a frame accessed, and what that says of regions.
//!
//! Follows thesis 2.4 and 4.2.1. Every 100 ms of an address space's virtual time, or later where that costs too much, its access bits
//! are read and cleared. The last
//! 32 samples of a frame are its history. A frame counts for 0 to 4 quarters of a frame in the [working set](Histories::working_set)
//! of its region, by the ones in its history: one more at each of [`BOUNDS`]. A [`Partition`](super::partition::Partition) owns the
//! histories, moves them along with frames and regions, and calls [`Histories::scan`].
//!
//! Histories are bit planes, not words: plane `s` of a group of 64 frames has their bits of sample `s` modulo 32. A new sample
//! replaces the oldest plane, so 64 frames are compared at once and nothing is shifted. Where bits differ from those of 32 samples ago, the
//! numbers of ones follow, which are bit planes as well. Only frames whose number comes to a bound, or leaves it, are looked at one by
//! one, and those only where a group is in several regions. A group's frames may belong to several address
//! spaces, each with samples of its own; a byte for each frame says which. A bitmap for each address space has the groups in which
//! it has frames, so that a scan visits those alone.
//!
//! What must hold between two calls (`check`, in tests): a frame without ones has no bit in any plane; the working sets
//! are those of the frames that are in the regions; what is no RAM has no ones.

#[cfg(any(test, feature = "testing"))]
mod check;
mod planes;
mod scan;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::ops::Range;

use self::planes::Counters;
pub(in crate::region) use self::planes::bits;
pub(in crate::region) use self::scan::Regions;
pub use self::scan::{AccessSource, Asked, Scan, TOGETHER};
use super::{Rid, Space};
use crate::arch::addr::Gfn;
use crate::mem::pieces::{OutOfMemory, Pieces};

/// Samples that a history holds.
pub const SAMPLES: usize = 32;
/// Virtual time of an address space between two samples, in nanoseconds.
pub const SAMPLE_NS: u64 = 100_000_000;
/// An address space's samples take one part of this many of its virtual time, 1 %, if they take more than that of [`SAMPLE_NS`].
const SAMPLE_SHARE: u64 = 100;
/// How far [`Histories::recent`] looks back, in samples.
pub const RECENT: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Frames of a group: what one word of a plane holds.
pub const GROUP: u64 = 64;
/// Frames of a piece: 2 MiB.
pub const PIECE: u64 = 512;
/// Groups of a piece.
const GROUPS: usize = (PIECE / GROUP) as usize;

/// Ones of a history from which on a frame counts for one quarter of a frame more in the working set of its region (equation 1 of
/// thesis 2.4).
const BOUNDS: [u8; 4] = [8, 14, 20, 26];

/// Groups of a range of RAM, which have neighbouring places in the records: those of whole pieces.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the first group's first frame, divided by [`GROUP`]: a multiple of [`GROUPS`], as its place is.
    first: u64,
    groups: u64,
    /// Place of the first group.
    place: usize,
}

/// How far the samples of an address space are.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    /// The plane of the latest sample, which may not be complete.
    plane: u8,
    /// The first place that the latest sample has not reached; `None`: it is complete.
    next: Option<usize>,
    /// Virtual time from which on the next sample is due, or the next part of the one that has been begun.
    due_ns: u64,
    part_ns: u64,
    /// The number of the latest sample among those of all address spaces, and of the one before.
    number: u64,
    before: u64,
    /// The source is ready to be asked for the latest sample.
    is_ready: bool,
    /// Nanoseconds that the latest sample has taken so far, and the one before.
    took_ns: [u64; 2],
}

/// What is known of the 2 MiB that eight groups are in.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    /// The latest sample that has found it touched; more than that of any sample if frames have come to another address space since.
    touched: u64,
    /// Groups that may have ones.
    used: u8,
    /// Groups of frames of one region, and others; of what is in neither it is not known.
    uniform: u8,
    mixed: u8,
    /// Groups in which some frames are no RAM: a range ends there.
    partial: u8,
}

/// The histories of a VM's frames, and the working sets of its regions.
#[derive(Debug)]
pub struct Histories {
    ram: Vec<Range<Gfn>>,
    runs: Vec<Run>,
    planes: Pieces<[u64; SAMPLES]>,
    /// Ones in the history of each frame.
    ones: Pieces<Counters>,
    /// The address space whose samples each frame takes part in.
    spaces: Pieces<[u8; GROUP as usize]>,
    /// Frames of other address spaces than [`Space::VM`].
    others: u64,
    /// Of each address space: the places of groups in which it may have frames.
    present: Pieces<u64>,
    /// Words of `present` for each address space.
    stride: usize,
    pieces: Pieces<Piece>,
    /// Of each region the working set in quarters of a frame.
    quarters: Pieces<u32>,
    ticks: Vec<Ticks>,
    /// The number of the latest sample, or of what counts as one for [`Piece::touched`].
    number: u64,
    /// Groups in which all frames are in the pool are visited, too.
    has_pool: bool,
}

impl Histories {
    /// Empty histories of the frames of `ram` (disjoint, sorted by address), all of which are [`Space::VM`]'s, and of `regions`
    /// regions and `spaces` address spaces. They are in no sample until [`moved`](Self::moved) tells of them or [`take_pool`](Self::take_pool) is called.
    ///
    /// # Errors
    /// No memory.
    pub fn new(ram: &[Range<Gfn>], regions: usize, spaces: usize) -> Result<Histories, OutOfMemory> {
        let mut runs: Vec<Run> = Vec::new();
        runs.try_reserve_exact(ram.len()).map_err(|_| OutOfMemory)?;
        let mut places = 0;
        for range in ram {
            let groups = |pieces: u64| pieces * GROUPS as u64;
            let (mut first, end) = (groups(range.start.0 / PIECE), groups(range.end.0.div_ceil(PIECE)));
            // Two ranges may share a piece.
            first = runs.last().map_or(first, |run| first.max(run.first + run.groups));
            if first < end {
                runs.push(Run { first, groups: end - first, place: places });
                places += (end - first) as usize;
            }
        }
        let stride = places.div_ceil(64);
        let mut own_ram = Vec::new();
        own_ram.try_reserve_exact(ram.len()).map_err(|_| OutOfMemory)?;
        own_ram.extend_from_slice(ram);
        let mut ticks = Vec::new();
        ticks.try_reserve_exact(spaces).map_err(|_| OutOfMemory)?;
        ticks.resize(spaces, Ticks { due_ns: SAMPLE_NS, ..Ticks::default() });
        let mut histories = Histories {
            ram: own_ram,
            runs,
            planes: Pieces::new(places, || [0; SAMPLES])?,
            ones: Pieces::new(places, Counters::default)?,
            spaces: Pieces::new(places, || [0; GROUP as usize])?,
            others: 0,
            present: Pieces::new(stride * spaces, || 0)?,
            stride,
            // All are touched for the first sample.
            pieces: Pieces::new(places / GROUPS, || Piece { touched: 1, ..Piece::default() })?,
            quarters: Pieces::new(regions, || 0)?,
            ticks,
            number: 1,
            has_pool: false,
        };
        for place in 0..places {
            let is_partial = histories.ram_of(place) != u64::MAX;
            histories.pieces[place / GROUPS].partial |= u8::from(is_partial) << (place % GROUPS);
        }
        Ok(histories)
    }

    /// Samples of the VM visit the frames of the pool, too, from now on.
    pub(super) fn take_pool(&mut self) {
        if !core::mem::replace(&mut self.has_pool, true) {
            (0..self.planes.len()).for_each(|place| self.set_present(Space::VM, place, true));
            self.number += 1;
            let number = self.number;
            self.pieces.for_each_mut(|piece| piece.touched = number);
        }
    }

    /// The virtual time of an address space begins at 0 again: its number is another one's now.
    pub(super) fn restart(&mut self, space: Space) {
        let ticks = &mut self.ticks[usize::from(space.0)];
        *ticks = Ticks { next: None, due_ns: SAMPLE_NS, took_ns: [0; 2], ..*ticks };
    }

    /// Bytes of host memory for this many frames, regions and address spaces, without the tables of pieces (a 512th of it).
    pub const fn bytes_for(frames: usize, regions: usize, spaces: usize) -> usize {
        // Each of two ranges of RAM may end within a piece; less than 1 GiB is one.
        let ends = frames >> 18 != 0;
        let groups = (frames.div_ceil(PIECE as usize) + ends as usize) * GROUPS;
        let pieces = Pieces::<[u64; SAMPLES]>::frames(groups)
            + Pieces::<Counters>::frames(groups)
            + Pieces::<[u8; GROUP as usize]>::frames(groups)
            + Pieces::<u64>::frames(groups.div_ceil(64) * spaces)
            + Pieces::<Piece>::frames(groups / GROUPS)
            + Pieces::<u32>::frames(regions);
        pieces * crate::arch::addr::PAGE_SIZE as usize
    }

    /// The place of a frame's group, and the frame's bit in it.
    fn place(&self, gfn: Gfn) -> Option<(usize, u32)> {
        let group = gfn.0 / GROUP;
        let run = self.runs.iter().find(|run| (run.first..run.first + run.groups).contains(&group))?;
        Some((run.place + (group - run.first) as usize, (gfn.0 % GROUP) as u32))
    }

    /// The first frame of the group in this place.
    fn first_of(&self, place: usize) -> Option<Gfn> {
        let run = self.runs.iter().rev().find(|run| run.place <= place)?;
        Some(Gfn((run.first + (place - run.place) as u64) * GROUP))
    }

    /// Which frames of a group are RAM.
    fn ram_of(&self, place: usize) -> u64 {
        let first = self.first_of(place).map_or(0, |first| first.0);
        self.ram.iter().fold(0, |all, range| {
            let [start, end] = [range.start, range.end].map(|gfn| gfn.0.saturating_sub(first).min(GROUP));
            let below = |end: u64| if end == GROUP { u64::MAX } else { (1 << end) - 1 };
            all | below(end) & !below(start)
        })
    }

    /// Which frames of a group are an address space's, and RAM.
    fn own(&self, space: Space, place: usize) -> u64 {
        let own = match space {
            Space::VM if self.others == 0 => u64::MAX,
            _ => planes::equal_bytes(&self.spaces[place], space.0 as u8),
        };
        let is_partial = self.pieces[place / GROUPS].partial >> (place % GROUPS) & 1 != 0;
        if is_partial { own & self.ram_of(place) } else { own }
    }

    fn set_present(&mut self, space: Space, place: usize, is_present: bool) {
        let word = &mut self.present[usize::from(space.0) * self.stride + place / 64];
        let bit = 1 << (place % 64);
        *word = if is_present { *word | bit } else { *word & !bit };
    }

    /// A frame is in another region now, whose samples are those of `space`. Its history goes with it, unless it has another
    /// address space, or is in the pool: what it holds is new then.
    pub(super) fn moved(&mut self, gfn: Gfn, from: Rid, to: Rid, space: Space) {
        let Some((place, bit)) = self.place(gfn) else { return };
        let piece = &mut self.pieces[place / GROUPS];
        (piece.uniform, piece.mixed) =
            (piece.uniform & !(1 << (place % GROUPS)), piece.mixed & !(1 << (place % GROUPS)));
        let ones = self.ones[place].get(bit);
        let is_kept = self.spaces[place][bit as usize] == space.0 as u8 && to != Rid::POOL;
        if ones != 0 {
            self.quarters[from.index()] -= quarters(ones);
            if is_kept {
                self.quarters[to.index()] += quarters(ones);
            } else {
                self.forget(place, bit);
            }
        }
        let before = core::mem::replace(&mut self.spaces[place][bit as usize], space.0 as u8);
        self.others += u64::from(space != Space::VM);
        self.others -= u64::from(before != Space::VM.0 as u8);
        if to != Rid::POOL || self.has_pool {
            self.set_present(space, place, true);
            // What the frame's new address space has not asked for may have been accessed before its latest sample.
            if before != space.0 as u8 || from == Rid::POOL {
                self.number += 1;
                self.pieces[place / GROUPS].touched = self.number;
            }
        }
    }

    /// The frames of `gone` are in `into` now. Groups of one region stay that.
    pub(super) fn merged(&mut self, gone: Rid, into: Rid) {
        let from = core::mem::take(&mut self.quarters[gone.index()]);
        self.quarters[into.index()] += from;
    }

    /// Forgets the history of a frame, which is in region `rid`: its samples were those of others, too.
    pub(super) fn clear(&mut self, gfn: Gfn, rid: Rid) {
        let Some((place, bit)) = self.place(gfn) else { return };
        let ones = self.ones[place].get(bit);
        if ones != 0 {
            self.quarters[rid.index()] -= quarters(ones);
            self.forget(place, bit);
        }
    }

    fn forget(&mut self, place: usize, bit: u32) {
        self.planes[place].iter_mut().for_each(|plane| *plane &= !(1 << bit));
        self.ones[place].clear(1 << bit);
        self.mark_used(place);
    }

    /// Notes in its piece whether a group has ones.
    fn mark_used(&mut self, place: usize) {
        let is_used = self.ones[place].any() != 0;
        let (used, bit) = (&mut self.pieces[place / GROUPS].used, 1 << (place % GROUPS));
        *used = if is_used { *used | bit } else { *used & !bit };
    }

    /// The last 32 samples of a frame; bit 31 is the latest. `None`: it is no RAM.
    pub fn history(&self, gfn: Gfn) -> Option<u32> {
        let (place, bit) = self.place(gfn)?;
        let newest = self.newest(self.spaces[place][bit as usize], place);
        let planes = &self.planes[place];
        let bit_of = |age: usize| (planes[(newest - age) % SAMPLES] >> bit & 1) as u32;
        Some((0..SAMPLES).fold(0, |history, age| history | bit_of(age) << (31 - age)))
    }

    /// The number of the plane, before modulo 32, that the latest sample of an address space has filled in this place; 31 or more.
    fn newest(&self, space: u8, place: usize) -> usize {
        let ticks = self.ticks[usize::from(space)];
        // The sample that is being taken has not come here yet: that of 32 samples ago stands in its plane.
        let is_ahead = ticks.next.is_some_and(|next| place >= next);
        usize::from(ticks.plane) + SAMPLES - usize::from(is_ahead)
    }

    /// For each of [`RECENT`] a bit for each of the 64 frames from `first` on, a multiple of 64, that was accessed in as many of its latest
    /// samples.
    pub fn recent(&self, first: Gfn) -> [u64; RECENT.len()] {
        let mut recent = [0; RECENT.len()];
        let Some((place, _)) = self.place(first) else { return recent };
        let (spaces, planes) = (&self.spaces[place], &self.planes[place]);
        let mut left = self.ones[place].any();
        while left != 0 {
            // All frames of an address space have their latest sample in one plane.
            let space = spaces[left.trailing_zeros() as usize];
            let own = left & planes::equal_bytes(spaces, space);
            left &= !own;
            let newest = self.newest(space, place);
            let (mut seen, mut age) = (0, 0);
            for (recent, window) in recent.iter_mut().zip(RECENT) {
                seen = (age..window).fold(seen, |seen, age| seen | planes[(newest - age) % SAMPLES]);
                age = window;
                *recent |= seen & own;
            }
        }
        recent
    }

    /// In how many of the last 32 samples a frame was accessed.
    pub fn ones(&self, gfn: Gfn) -> Option<u8> {
        self.place(gfn).map(|(place, bit)| self.ones[place].get(bit))
    }

    /// A bit for each of the 64 frames from `first` on, a multiple of 64, that was accessed in `least` (1 to 32) or more of the last
    /// 32 samples.
    pub fn frequent(&self, first: Gfn, least: u8) -> u64 {
        self.place(first).map_or(0, |(place, _)| self.ones[place].from(least))
    }

    /// Frames of all regions by the ones in their histories, from `least` on, which is not 0; 32 count as 31. A pass over all groups that
    /// have ones, which takes the longer the more different numbers of at least as many they have.
    pub fn histogram(&self, least: u8) -> [u32; SAMPLES] {
        let mut histogram = [0; SAMPLES];
        for piece in 0..self.pieces.len() {
            for n in bits(self.pieces[piece].used.into()) {
                let ones = &self.ones[piece * GROUPS + n as usize];
                let mut left = ones.from(least);
                // Those with the same number together.
                while left != 0 {
                    let (own, alike) = ones.alike(left.trailing_zeros());
                    histogram[usize::from(own).min(SAMPLES - 1)] += planes::number(alike);
                    left &= !alike;
                }
            }
        }
        histogram
    }

    /// The working set of a region, in quarters of a frame (equation 1 of thesis 2.4).
    pub fn working_set(&self, rid: Rid) -> u64 {
        self.quarters[rid.index()].into()
    }
}

/// The quarters of a frame that one with this many ones counts for in a working set.
fn quarters(ones: u8) -> u32 {
    BOUNDS.iter().map(|bound| u32::from(ones >= *bound)).sum()
}
