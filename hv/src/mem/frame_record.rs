//! A record of each frame of the machine's RAM: its owner, its kind, and the history of its use.
//!
//! A [`FrameRecord`] takes 16 bytes for 4 KiB, 0.4 % of memory. `boot` makes the records of all RAM once ([`start`]), in pieces
//! of one frame. The fields are atomic, so that the user of a frame writes its record without a lock:
//!
//! | field | written by |
//! |---|---|
//! | owner, kind | the code that takes frames: `vmm::memory` (RAM of VMs, and all in fast memory), [`tables`](super::tables) (other page tables); cleared by [`frame::free`](super::frame::free), and in fast memory by `vmm::memory` |
//! | history | not used yet: for samples of accessed bits ([`FrameRecord::sample`]) |
//! | tier | `vmm::memory`: 1 for a frame of fast memory that a VM or a page table has |
//! | region | not used yet: room for a group of pages that are handled alike |
//!
//! A frame without an owner is free, or the hypervisor's own. Memory that the boot loader's map does not mention has no records.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;

use super::pieces::{OutOfMemory, Pieces};
use crate::arch::addr::Hfn;

/// The owner of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// The hypervisor, or the frame is free.
    #[default]
    Host,
    /// The VM with this number in the configuration.
    Vm(u16),
}

impl Owner {
    const fn number(self) -> u16 {
        match self {
            Owner::Host => 0,
            Owner::Vm(vm) => vm.saturating_add(1),
        }
    }
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// It is free, or anything else that is the hypervisor's.
    #[default]
    Other,
    /// RAM of a VM.
    Ram,
    /// A page table of the hypervisor's: P2m, nested or shadow tables, or its own.
    Table,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = 3;

    const fn from_number(number: u8) -> Kind {
        match number {
            1 => Kind::Ram,
            2 => Kind::Table,
            _ => Kind::Other,
        }
    }
}

/// What is known of a frame.
#[derive(Debug, Default)]
#[repr(C)]
pub struct FrameRecord {
    /// Accessed bits, one for each sample; bit 0 is the latest.
    history: AtomicU64,
    /// In one word, because a piece of 2 MiB that moves gets 512 owners: [`Owner::number`] in bits 0 to 15, [`Kind`] in bits 16 to 23,
    /// the tier in bits 24 to 31, and the region above.
    words: AtomicU64,
}

/// Stated in docs/design/0001-host-memory.md; no more than 32 bytes for a frame.
const _: () = assert!(size_of::<FrameRecord>() == 16);

impl FrameRecord {
    /// Its owner.
    pub fn owner(&self) -> Owner {
        (self.words.load(Ordering::Relaxed) as u16).checked_sub(1).map_or(Owner::Host, Owner::Vm)
    }

    /// What it is for.
    pub fn kind(&self) -> Kind {
        Kind::from_number((self.words.load(Ordering::Relaxed) >> 16) as u8)
    }

    /// The frame gets an owner: what the last one did with it says nothing of the next.
    fn assign(&self, words: u64) {
        self.words.store(words, Ordering::Relaxed);
        self.history.store(0, Ordering::Relaxed);
    }

    /// Adds a sample to the history: whether the frame was accessed since the last one.
    pub fn sample(&self, accessed: bool) {
        let add = |history: u64| Some(history << 1 | u64::from(accessed));
        let _never_fails = self.history.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// The last 64 samples; bit 0 is the latest.
    pub fn history(&self) -> u64 {
        self.history.load(Ordering::Relaxed)
    }

    /// The group of pages that are handled alike; 0 is none.
    pub fn region(&self) -> u32 {
        (self.words.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Puts the frame into a group.
    pub fn set_region(&self, region: u32) {
        let with = |words: u64| Some(words & 0xffff_ffff | u64::from(region) << 32);
        let _never_fails = self.words.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with);
    }

    /// The kind of memory that the frame is in; 0 is not known.
    pub fn tier(&self) -> u8 {
        (self.words.load(Ordering::Relaxed) >> 24) as u8
    }
}

/// Records of a run of frames, at most [`Records::RUN`].
#[derive(Debug)]
struct Run {
    start: Hfn,
    records: Pieces<FrameRecord>,
}

/// Records of ranges of frames.
#[derive(Debug, Default)]
pub struct Records {
    /// By address.
    runs: Vec<Run>,
}

impl Records {
    /// Frames of a run: 1 GiB, so that no array is longer than a few KiB.
    const RUN: u64 = 1 << 18;

    /// Records of the frames of `ranges`, which are disjoint and sorted by address.
    ///
    /// # Errors
    /// No memory: nothing stays allocated.
    pub fn new(ranges: impl IntoIterator<Item = Range<Hfn>>) -> Result<Records, OutOfMemory> {
        let mut runs = Vec::new();
        for range in ranges {
            let mut start = range.start.0;
            while start < range.end.0 {
                let end = range.end.0.min(start + Records::RUN);
                runs.try_reserve(1).map_err(|_| OutOfMemory)?;
                let records = Pieces::new((end - start) as usize, FrameRecord::default)?;
                runs.push(Run { start: Hfn(start), records });
                start = end;
            }
        }
        Ok(Records { runs })
    }

    /// The record of a frame, if there is one.
    pub fn get(&self, frame: Hfn) -> Option<&FrameRecord> {
        // Holes between ranges of RAM take no records, so that a frame is found by its run.
        let after = self.runs.partition_point(|run| run.start <= frame);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let index = (frame.0 - run.start.0) as usize;
        (index < run.records.len()).then(|| &run.records[index])
    }

    /// `frames` frames from `start` on get an owner. Frames without a record are left out.
    pub fn assign(&self, start: Hfn, frames: u64, owner: Owner, kind: Kind) {
        self.assign_in(start, frames, owner, kind, 0);
    }

    /// The same of frames that are in this kind of memory.
    pub fn assign_in(&self, start: Hfn, frames: u64, owner: Owner, kind: Kind, tier: u8) {
        let words = u64::from(owner.number()) | (kind as u64) << 16 | u64::from(tier) << 24;
        let end = start.0.saturating_add(frames);
        let after = self.runs.partition_point(|run| run.start <= start).saturating_sub(1);
        for run in self.runs.iter().skip(after).take_while(|run| run.start.0 < end) {
            let index = |frame: u64| frame.saturating_sub(run.start.0).min(run.records.len() as u64) as usize;
            for records in run.records.slices(index(start.0)..index(end)) {
                records.iter().for_each(|record| record.assign(words));
            }
        }
    }

    /// The first of `frames` frames from `start` on that is not this owner's, as its record says.
    pub fn foreign(&self, start: Hfn, frames: u64, owner: Owner) -> Option<Hfn> {
        let mut all = (start.0..start.0.saturating_add(frames)).map(Hfn);
        all.find(|&frame| self.get(frame).is_some_and(|record| record.owner() != owner))
    }

    /// How many frames are of each kind.
    pub fn census(&self) -> [u64; Kind::COUNT] {
        let mut count = [0; Kind::COUNT];
        let all = self.runs.iter().flat_map(|run| run.records.iter());
        all.for_each(|record| count[record.kind() as usize] += 1);
        count
    }
}

/// The machine's.
static RECORDS: Once<Records> = Once::new();

/// Makes the records of the machine's RAM: once, when the frame allocator works.
///
/// # Errors
/// No memory: the machine does without records.
pub fn start(ranges: impl IntoIterator<Item = Range<Hfn>>) -> Result<(), OutOfMemory> {
    let records = Records::new(ranges)?;
    RECORDS.call_once(|| records);
    Ok(())
}

/// The machine's records, if there are any: from [`start`] on, and not in tests.
#[inline]
pub fn all() -> Option<&'static Records> {
    RECORDS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Records {
        let gib = Records::RUN;
        Records::new([Hfn(0x100)..Hfn(0x180), Hfn(gib)..Hfn(2 * gib + 5)]).unwrap()
    }

    #[test]
    fn each_frame_of_the_ranges_has_a_record_of_its_own() {
        let records = records();
        let gib = Records::RUN;
        for (frame, there) in
            [(0, false), (0xff, false), (0x100, true), (0x17f, true), (0x180, false), (gib, true)]
        {
            assert_eq!(records.get(Hfn(frame)).is_some(), there, "{frame:#x}");
        }
        assert!(records.get(Hfn(2 * gib + 4)).is_some() && records.get(Hfn(2 * gib + 5)).is_none());
        records.get(Hfn(gib + 1)).unwrap().sample(true);
        assert_eq!([gib, gib + 1, gib + 2].map(|n| records.get(Hfn(n)).unwrap().history()), [0, 1, 0]);
    }

    #[test]
    fn frames_have_an_owner_until_they_are_given_back() {
        let records = records();
        records.assign(Hfn(0x110), 0x10, Owner::Vm(0), Kind::Ram);
        records.assign(Hfn(0x120), 1, Owner::Host, Kind::Table);
        assert_eq!(records.census()[1..], [0x10, 1]);
        assert_eq!(records.foreign(Hfn(0x110), 0x10, Owner::Vm(0)), None);
        assert_eq!(records.foreign(Hfn(0x110), 0x11, Owner::Vm(0)), Some(Hfn(0x120)));
        assert_eq!(records.foreign(Hfn(0x110), 1, Owner::Vm(1)), Some(Hfn(0x110)));
        assert_eq!(records.foreign(Hfn(0x1f0), 0x10, Owner::Vm(1)), None, "nothing is known there");
        records.assign(Hfn(0x100), 0x80, Owner::Host, Kind::Other);
        assert_eq!(records.census()[1..], [0, 0]);
    }

    #[test]
    fn a_new_owner_finds_no_history() {
        let records = records();
        let record = records.get(Hfn(0x100)).unwrap();
        for accessed in [true, false, true, true] {
            record.sample(accessed);
        }
        records.assign_in(Hfn(0x101), 1, Owner::Vm(7), Kind::Ram, 3);
        record.set_region(7);
        let other = records.get(Hfn(0x101)).unwrap();
        other.set_region(u32::MAX);
        assert_eq!((other.owner(), other.kind(), other.tier()), (Owner::Vm(7), Kind::Ram, 3));
        assert_eq!((record.history(), record.region(), other.region()), (0b1011, 7, u32::MAX));
        records.assign(Hfn(0x100), 1, Owner::Vm(u16::MAX - 1), Kind::Ram);
        assert_eq!(
            (record.owner(), record.kind(), record.history()),
            (Owner::Vm(u16::MAX - 1), Kind::Ram, 0)
        );
        assert_eq!((record.tier(), record.region()), (0, 0));
    }
}
