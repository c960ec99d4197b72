//! Regions that the guest's kernel defines (thesis 3.3): the hypercalls, checked, on a VM's [`Partition`].
//!
//! Called by `vcpu::hypercall` with numbers from the guest. What must hold: a request changes nothing unless all of it can be done;
//! no request takes longer than [`MAX_FRAMES`] frames, so that a guest cannot keep a lock for long; the guest's numbers of regions
//! are its own, and say nothing about the partition's.

#[cfg(any(test, feature = "testing"))]
mod fuzz;
#[cfg(any(test, feature = "testing"))]
pub use fuzz::fuzz_one;

use alloc::sync::Arc;
use core::ops::Range;

use abi::hypercall::{
    KVM_EFAULT, KVM_EINVAL, REGION_EBUSY, REGION_EEXIST, REGION_ENOENT, REGION_ENOMEM, REGION_ENOSPC,
    REGION_MAX_ORDER, REGIONS_MAX,
};

use super::partition::Partition;
use super::{Effect, Refused, Rid};
use crate::arch::addr::Gfn;
use crate::mem::objects::Objects;
use crate::mem::pieces::OutOfMemory;

/// Frames that one request may move.
pub const MAX_FRAMES: u64 = 1 << REGION_MAX_ORDER;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestError {
    /// The order is out of range, or the first frame is not aligned to it.
    Invalid,
    /// One of the frames is no RAM of the guest.
    NotRam,
    /// The guest has no region with this number, or the region does not hold all of the frames.
    NotThere,
    /// One of the frames is in a region already.
    Taken,
    /// The guest has as many regions as it may have.
    Quota,
    /// The region had more frames than one request takes out: repeat it.
    Again,
    /// The host has no memory for the records.
    NoMemory,
}

impl GuestError {
    /// The number for it, as the C header has it.
    pub const fn number(self) -> u64 {
        match self {
            GuestError::Invalid => KVM_EINVAL,
            GuestError::NotRam => KVM_EFAULT,
            GuestError::NotThere => REGION_ENOENT,
            GuestError::Taken => REGION_EEXIST,
            GuestError::Quota => REGION_ENOSPC,
            GuestError::Again => REGION_EBUSY,
            GuestError::NoMemory => REGION_ENOMEM,
        }
    }
}

impl From<OutOfMemory> for GuestError {
    fn from(_: OutOfMemory) -> GuestError {
        GuestError::NoMemory
    }
}

impl From<Refused> for GuestError {
    fn from(refused: Refused) -> GuestError {
        match refused {
            Refused::NotRam(_) => GuestError::NotRam,
            Refused::Taken(_) => GuestError::Taken,
            Refused::Full | Refused::Quota => GuestError::Quota,
            Refused::NotThere(_) | Refused::NoRegion => GuestError::NotThere,
            Refused::NoSpace(_)
            | Refused::NotMapped
            | Refused::Busy
            | Refused::Kind(_)
            | Refused::Owner
            | Refused::Itself => GuestError::Invalid,
        }
    }
}

/// What the guest has asked for, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were performed.
    pub performed: u64,
    /// Requests that were refused, for one of the [`GuestError`]s.
    pub refused: u64,
}

/// A VM's partition, and the numbers that its guest has for regions.
#[derive(Debug)]
pub struct GuestRegions {
    partition: Partition,
    /// The region of number n + 1.
    numbers: [Option<Rid>; REGIONS_MAX as usize],
    counts: Counts,
    /// Where it is said which page is in which region, if a policy of page replacement asks.
    objects: Option<Arc<Objects>>,
}

/// What tables must follow: [`Effect`]s of all frames of a request, one at a time.
pub type Follow<'a> = &'a mut dyn FnMut(Effect);

impl GuestRegions {
    /// No region of the guest's yet.
    ///
    /// # Errors
    /// No memory for the records of all frames of `ram`.
    pub fn new(ram: impl IntoIterator<Item = Range<Gfn>>) -> Result<GuestRegions, OutOfMemory> {
        let (partition, counts) = (Partition::new(ram)?, Counts::default());
        Ok(GuestRegions { partition, numbers: [None; REGIONS_MAX as usize], counts, objects: None })
    }

    /// From now on it is said there which page is in which region.
    pub fn tell(&mut self, objects: Option<Arc<Objects>>) {
        self.objects = objects;
    }

    /// A frame is in the region with this number of the guest's now, or in none.
    fn is_in(&self, frame: Gfn, number: Option<u16>) {
        self.objects.iter().for_each(|objects| objects.set(frame, number));
    }

    /// All regions of the VM.
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// The same, to be changed.
    pub fn partition_mut(&mut self) -> &mut Partition {
        &mut self.partition
    }

    /// The region with this number of the guest's.
    pub fn rid(&self, number: u64) -> Option<Rid> {
        self.known(number).ok().map(|(_, rid)| rid)
    }

    /// What the guest has asked for.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The guest's regions by its numbers.
    pub fn list(&self) -> impl Iterator<Item = (u16, Rid)> + '_ {
        (1..).zip(&self.numbers).filter_map(|(number, rid)| Some((number, (*rid)?)))
    }

    /// A new region without frames; its number, from 1 on.
    ///
    /// # Errors
    /// [`GuestError::Quota`].
    pub fn add(&mut self, follow: Follow<'_>) -> Result<u16, GuestError> {
        let done = self.try_add(follow);
        self.count(done)
    }

    /// Ends a region. Its frames, [`MAX_FRAMES`] at most in one request, go back to where their mappings place them.
    ///
    /// # Errors
    /// [`GuestError::NotThere`]; [`GuestError::Again`]: some frames went back, others are left.
    pub fn remove(&mut self, number: u64, follow: Follow<'_>) -> Result<(), GuestError> {
        let done = self.try_remove(number, follow);
        self.count(done)
    }

    /// Puts 2^order frames into a region.
    ///
    /// # Errors
    /// All but [`GuestError::Quota`] and [`GuestError::Again`]; nothing has changed.
    pub fn add_pages(
        &mut self,
        first: u64,
        order: u64,
        number: u64,
        follow: Follow<'_>,
    ) -> Result<(), GuestError> {
        let done = self.frames(first, order, number).and_then(|(frames, rid, number)| {
            for frame in frames.clone() {
                if self.partition.is_claimed(Gfn(frame))? {
                    return Err(GuestError::Taken);
                }
            }
            for frame in frames {
                self.partition.claim(Gfn(frame), rid)?.iter().for_each(&mut *follow);
                self.is_in(Gfn(frame), Some(number));
            }
            Ok(())
        });
        self.count(done)
    }

    /// Takes 2^order frames out of a region.
    ///
    /// # Errors
    /// As [`GuestRegions::add_pages`].
    pub fn remove_pages(
        &mut self,
        first: u64,
        order: u64,
        number: u64,
        follow: Follow<'_>,
    ) -> Result<(), GuestError> {
        let done = self.frames(first, order, number).and_then(|(frames, rid, _)| {
            for frame in frames.clone() {
                if self.partition.region_of(Gfn(frame))? != rid {
                    return Err(GuestError::NotThere);
                }
            }
            for frame in frames {
                self.partition.release(Gfn(frame), rid)?.iter().for_each(&mut *follow);
                self.is_in(Gfn(frame), None);
            }
            Ok(())
        });
        self.count(done)
    }

    fn try_add(&mut self, follow: Follow<'_>) -> Result<u16, GuestError> {
        let free = self.numbers.iter().position(Option::is_none).ok_or(GuestError::Quota)?;
        let number = free as u16 + 1;
        let (rid, effects) = self.partition.add_guest(number)?;
        self.numbers[free] = Some(rid);
        effects.iter().for_each(follow);
        Ok(number)
    }

    fn try_remove(&mut self, number: u64, follow: Follow<'_>) -> Result<(), GuestError> {
        let (place, rid) = self.known(number)?;
        for _ in 0..MAX_FRAMES {
            let Some(frame) = self.partition.first_of(rid) else { break };
            self.partition.release(frame, rid)?.iter().for_each(&mut *follow);
            self.is_in(frame, None);
        }
        if self.partition.first_of(rid).is_some() {
            return Err(GuestError::Again);
        }
        self.partition.end_guest(rid)?.iter().for_each(follow);
        self.numbers[place] = None;
        Ok(())
    }

    /// The region with this number of the guest's, and the number's place.
    fn known(&self, number: u64) -> Result<(usize, Rid), GuestError> {
        let place = number.checked_sub(1).and_then(|place| usize::try_from(place).ok());
        let place = place.ok_or(GuestError::NotThere)?;
        let rid = self.numbers.get(place).copied().flatten().ok_or(GuestError::NotThere)?;
        Ok((place, rid))
    }

    /// The frames and the region of a request, which exist, and the region's number. The range is short and does not overflow.
    fn frames(&self, first: u64, order: u64, number: u64) -> Result<(Range<u64>, Rid, u16), GuestError> {
        if order > REGION_MAX_ORDER || !first.is_multiple_of(1 << order) {
            return Err(GuestError::Invalid);
        }
        let (place, rid) = self.known(number)?;
        let end = first.checked_add(1 << order).ok_or(GuestError::NotRam)?;
        for frame in first..end {
            self.partition.region_of(Gfn(frame))?;
        }
        Ok((first..end, rid, place as u16 + 1))
    }

    fn count<T>(&mut self, done: Result<T, GuestError>) -> Result<T, GuestError> {
        match done {
            Ok(_) => self.counts.performed += 1,
            Err(_) => self.counts.refused += 1,
        }
        done
    }
}

#[cfg(test)]
mod tests;
