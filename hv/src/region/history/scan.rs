//! Taking a sample: a pass over the groups of an address space, in parts of a bounded size.

use core::ops::Range;

use super::planes::{bits, equal_bytes, number};
use super::{BOUNDS, GROUP, GROUPS, Histories, PIECE, Piece, SAMPLE_NS, SAMPLE_SHARE, SAMPLES};
use crate::arch::addr::Gfn;
use crate::region::{Rid, Space};

/// The access bits of an address space's tables, for all domains: nested tables, or a bitmap that was filled otherwise, as from shadow
/// tables in the first parts of a sample, or by a log of the processor.
pub trait AccessSource {
    /// A sample begins (`is_first`) or goes on, with a number above those of all samples that began before. Whether it can be asked
    /// now; otherwise this is to be called again, for the next part.
    fn begin(&mut self, _number: u64, _is_first: bool) -> bool {
        true
    }

    /// In which groups of 64 frames of the 2 MiB from `first` on, a multiple of 512, something may have been accessed since the last time that
    /// this was asked for any address space, or since the sample with the number `before` has begun: a bit for each. In the others
    /// [`take_accessed`](Self::take_accessed) would find nothing.
    fn touched(&mut self, first: Gfn, before: u64) -> u8;

    /// Whether `touched` would tell of none for each of the [`TOGETHER`] pieces of 2 MiB from `first` on, a multiple of this many. One answer
    /// costs less than those; what it is too much to ask, as here, is not known.
    fn is_idle(&self, _first: Gfn, _before: u64) -> bool {
        false
    }

    /// Reads and clears the access bits of frames among the 64 from `first` on, a multiple of 64. Returns those that were accessed since
    /// the last time; what was not asked for is ignored.
    ///
    /// Frames are asked for in ascending order. A large leaf counts for all its frames, so that its bit is to be cleared once in a
    /// sample.
    fn take_accessed(&mut self, first: Gfn, asked: Asked) -> u64;
}

/// Virtual time between two parts of a sample at least, in nanoseconds, whichever of the VCPUs take them.
const PART_NS: u64 = 1_000_000;
/// Pieces of 2 MiB that [`AccessSource::is_idle`] tells of.
pub const TOGETHER: u64 = 8;

/// The regions that frames are in.
pub(in crate::region) trait Regions {
    /// That of one frame; `None`: it is no RAM.
    fn region_of(&self, gfn: Gfn) -> Option<Rid>;

    /// Calls `f` with frames of `some` among the 64 from `first` on, those that are RAM, and theirs.
    fn each(&self, first: Gfn, some: u64, f: impl FnMut(u32, Rid));

    /// Whether that of the 64 frames from `first` on is the same.
    fn is_one(&self, first: Gfn) -> bool;
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
    /// Pieces of 2 MiB that were looked at, and groups of 64 frames in them that were visited.
    pub pieces: u64,
    /// See `pieces`.
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
        virtual_ns >= if ticks.next.is_some() { ticks.part_ns } else { ticks.due_ns }
    }

    /// The virtual time of an address space at which its next sample is due, or the next part of one that has been begun.
    pub fn due_ns(&self, space: Space) -> u64 {
        let ticks = self.ticks[usize::from(space.0)];
        if ticks.next.is_some() { ticks.part_ns } else { ticks.due_ns }
    }

    /// The part of a sample that was taken last has taken this long, in nanoseconds. Where two samples in a row take more than their share of
    /// [`SAMPLE_NS`], the next one is due as much later: a large working set is sampled less often, and costs no more. One long
    /// sample alone changes nothing, as the processor may have been taken away in it. Whether the next one is due later.
    pub(in crate::region) fn took(&mut self, space: Space, ns: u64) -> bool {
        let ticks = &mut self.ticks[usize::from(space.0)];
        let [latest, before] = &mut ticks.took_ns;
        *latest = latest.saturating_add(ns);
        let more = (*latest).min(*before).saturating_mul(SAMPLE_SHARE).saturating_sub(SAMPLE_NS);
        let is_later = ticks.next.is_none() && more > 0;
        if is_later {
            ticks.due_ns = ticks.due_ns.saturating_add(more);
        }
        is_later
    }

    /// Takes a sample of an address space, or goes on with it: for pieces of 2 MiB until `most` of them and of groups in them have been
    /// looked at, at least one piece and at most seven groups more. Intervals that have been missed are left out: nothing is known of them.
    pub(in crate::region) fn scan(
        &mut self,
        space: Space,
        virtual_ns: u64,
        source: &mut impl AccessSource,
        most: u64,
        regions: &impl Regions,
    ) -> Scan {
        let ticks = &mut self.ticks[usize::from(space.0)];
        let is_first = ticks.next.is_none();
        if is_first {
            ticks.plane = (ticks.plane + 1) % SAMPLES as u8;
            ticks.next = Some(0);
            ticks.due_ns = virtual_ns.saturating_add(SAMPLE_NS);
            ticks.took_ns = [0, ticks.took_ns[0]];
            self.number += 1;
            ticks.before = core::mem::replace(&mut ticks.number, self.number);
            ticks.is_ready = false;
        }
        ticks.part_ns = virtual_ns.saturating_add(PART_NS);
        if !ticks.is_ready && !source.begin(ticks.number, is_first) {
            return Scan::default();
        }
        ticks.is_ready = true;
        let sample = Sample { space, plane: usize::from(ticks.plane), before: ticks.before };
        let mut from = ticks.next.unwrap_or(0);
        let mut done = Scan::default();
        // The source has told that nothing was touched before this place.
        let mut idle = from;
        while done.groups + done.pieces < most.max(1)
            && let Some(place) = self.next_present(space, from)
        {
            let piece = place / GROUPS;
            if place >= idle && self.is_idle_from(piece, sample.before, source) {
                idle = (piece + TOGETHER as usize) * GROUPS;
            }
            from = (piece + 1) * GROUPS;
            done.pieces += 1;
            let is_idle = place < idle;
            let Piece { used, touched, .. } = self.pieces[piece];
            if !is_idle || used != 0 || touched > sample.before {
                self.sample_piece(&sample, (piece, is_idle), source, regions, &mut done);
            }
        }
        done.is_complete = self.next_present(space, from).is_none();
        self.ticks[usize::from(space.0)].next = (!done.is_complete).then_some(from);
        done
    }

    /// Whether nothing was touched in this piece and those behind it that the source tells of together, all of them in one run.
    fn is_idle_from(&self, piece: usize, before: u64, source: &impl AccessSource) -> bool {
        let place = piece * GROUPS;
        let Some(run) = self.runs.iter().rev().find(|run| run.place <= place) else { return false };
        let group = (place - run.place) as u64;
        let (first, groups) = ((run.first + group) * GROUP, TOGETHER * GROUPS as u64);
        first.is_multiple_of(TOGETHER * PIECE)
            && group + groups <= run.groups
            && source.is_idle(Gfn(first), before)
    }

    /// Takes the sample of the groups of a piece in which the address space may have frames, and whether it is idle: nothing was touched
    /// there since the source was asked last, for any address space.
    fn sample_piece(
        &mut self,
        sample: &Sample,
        (piece, is_idle): (usize, bool),
        source: &mut impl AccessSource,
        regions: &impl Regions,
        done: &mut Scan,
    ) {
        let first = piece * GROUPS;
        let Some(gfn) = self.first_of(first) else { return };
        let found = if is_idle { 0 } else { source.touched(gfn, sample.before) };
        // Another address space has asked since: what was found then, and cleared, is not known by groups.
        let touched = if self.pieces[piece].touched > sample.before { u8::MAX } else { found };
        if found != 0 {
            // Another address space's sample may have begun since, and has been here: what it finds next time was asked for now.
            let own = self.ticks[usize::from(sample.space.0)].number;
            self.number += u64::from(own != self.number);
            self.pieces[piece].touched = self.number;
        }
        let word = self.present[usize::from(sample.space.0) * self.stride + first / 64];
        let present = (word >> (first % 64)) as u8;
        let is_second =
            touched != 0 && sample.space == Space::VM && !self.has_pool && self.is_anothers_piece(piece);
        for n in bits((present & (touched | self.pieces[piece].used)).into()) {
            let place = first + n as usize;
            let first = Gfn(gfn.0 + u64::from(n) * GROUP);
            let source = if touched >> n & 1 != 0 { Some(&mut *source) } else { None };
            self.sample_group(sample, (place, first), source, is_second, regions, done);
        }
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

    /// Whether samples of an address space ask for frames of a piece.
    fn is_anothers_piece(&self, piece: usize) -> bool {
        let mut groups = piece * GROUPS..(piece + 1) * GROUPS;
        groups.any(|place| equal_bytes(&self.spaces[place], Space::VM.0 as u8) != u64::MAX)
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

    /// Replaces the bits of the address space's frames in one plane of a group; without a source none of them was accessed.
    fn sample_group(
        &mut self,
        sample: &Sample,
        (place, first): (usize, Gfn),
        source: Option<&mut impl AccessSource>,
        is_second: bool,
        regions: &impl Regions,
        done: &mut Scan,
    ) {
        done.groups += 1;
        let old = self.planes[place][sample.plane];
        if source.is_none() && old == 0 {
            return;
        }
        let own = self.own(sample.space, place);
        if own == 0 {
            self.set_present(sample.space, place, false);
            return;
        }
        let last = self.planes[place][(sample.plane + SAMPLES - 1) % SAMPLES];
        let accessed = source
            .map_or(0, |source| source.take_accessed(first, Asked { wanted: own, last, is_second }) & own);
        done.accessed += u64::from(number(accessed));
        let changed = (old & own) ^ accessed;
        if changed == 0 {
            return;
        }
        let (more, less) = (changed & accessed, changed & !accessed);
        let ones = &mut self.ones[place];
        let down = if less != 0 { less & ones.are_any_of(BOUNDS) } else { 0 };
        ones.add(more);
        ones.subtract(less);
        let up = if more != 0 { more & ones.are_any_of(BOUNDS) } else { 0 };
        if up | down != 0 {
            self.weigh((place, first), up, down, regions);
        }
        self.planes[place][sample.plane] ^= changed;
        done.changed += u64::from(number(changed));
        if more != 0 {
            self.pieces[place / GROUPS].used |= 1 << (place % GROUPS);
        } else {
            self.mark_used(place);
        }
    }

    /// The frames `up` of a group count for a quarter of a frame more in the working sets of their regions, and the frames `down` for one less.
    fn weigh(&mut self, (place, first): (usize, Gfn), up: u64, down: u64, regions: &impl Regions) {
        if let Some(rid) = self.region_of_group((place, first), up | down, regions) {
            let quarters = &mut self.quarters[rid.index()];
            *quarters = *quarters + number(up) - number(down);
            return;
        }
        regions.each(first, up | down, |bit, rid| {
            let quarters = &mut self.quarters[rid.index()];
            *quarters = if up >> bit & 1 != 0 { *quarters + 1 } else { *quarters - 1 };
        });
    }

    /// The region that all frames of a group are in, one of which is among `some`.
    fn region_of_group(
        &mut self,
        (place, first): (usize, Gfn),
        some: u64,
        regions: &impl Regions,
    ) -> Option<Rid> {
        let (piece, bit) = (&mut self.pieces[place / GROUPS], 1 << (place % GROUPS));
        if piece.mixed & bit != 0 {
            return None;
        }
        let one = regions.region_of(Gfn(first.0 + u64::from(some.trailing_zeros())));
        if piece.uniform & bit == 0 {
            let is_uniform = regions.is_one(first);
            let known = if is_uniform { &mut piece.uniform } else { &mut piece.mixed };
            *known |= bit;
            return one.filter(|_| is_uniform);
        }
        one
    }
}

/// A sample that is being taken.
struct Sample {
    space: Space,
    plane: usize,
    /// The number of the address space's sample before.
    before: u64,
}
