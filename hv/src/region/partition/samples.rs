//! The access histories of a partition's frames: they follow each move, and samples reach them here.

use core::ops::Range;

use super::{Owner, Partition, Rid, Space};
use crate::arch::addr::Gfn;
use crate::mem::pieces::OutOfMemory;
use crate::region::history::{AccessSource, GROUP, Histories, Regions, Scan, bits};

impl Partition {
    /// Histories of all frames, from now on. Without them nothing is known of working sets, and scans do nothing.
    ///
    /// # Errors
    /// No memory.
    pub fn start_histories(&mut self) -> Result<(), OutOfMemory> {
        self.start_histories_of_mapped()?;
        self.histories.iter_mut().for_each(Histories::take_pool);
        Ok(())
    }

    /// The same without groups of frames that no address space maps, unless there are histories of all: most of a VM's memory is the pool's,
    /// and takes most of the time of a sample.
    ///
    /// # Errors
    /// No memory.
    pub fn start_histories_of_mapped(&mut self) -> Result<(), OutOfMemory> {
        if self.histories.is_some() {
            return Ok(());
        }
        self.histories = Some(Histories::new(&self.ram, self.regions.len(), self.spaces.len())?);
        for slot in 0..self.frames.len() as u32 {
            let rid = self.frames[slot as usize].region();
            self.take_history_along(slot, rid, rid);
        }
        Ok(())
    }

    /// The histories, if there are any.
    pub fn histories(&self) -> Option<&Histories> {
        self.histories.as_ref()
    }

    /// Whether no two of these frames are asked for by samples of different address spaces.
    pub fn has_one_clock(&self, frames: Range<Gfn>) -> bool {
        self.histories.as_ref().is_none_or(|histories| histories.has_one_clock(frames))
    }

    /// Forgets the histories of these frames: a large leaf has told of them all together until now.
    pub fn clear_histories(&mut self, frames: impl Iterator<Item = Gfn>) {
        let Some(mut histories) = self.histories.take() else { return };
        for gfn in frames {
            if let Ok(rid) = self.region_of(gfn) {
                histories.clear(gfn, rid);
            }
        }
        self.histories = Some(histories);
    }

    /// Bytes of host memory that histories of this many frames take, beside [`Partition::bytes_for`].
    pub const fn history_bytes_for(frames: usize) -> usize {
        Histories::bytes_for(frames, Partition::regions_for(frames), Partition::spaces_for(frames))
    }

    /// Takes a sample of an address space, or a part of at most `groups` groups of 64 frames ([`Histories::scan`]); at once complete
    /// where there are no histories.
    pub fn scan(
        &mut self,
        space: Space,
        virtual_ns: u64,
        source: &mut impl AccessSource,
        groups: u64,
    ) -> Scan {
        let Some(mut histories) = self.histories.take() else {
            return Scan { is_complete: true, ..Scan::default() };
        };
        let done = histories.scan(space, virtual_ns, source, groups, self);
        self.histories = Some(histories);
        done
    }

    /// The part of a sample that [`Partition::scan`] took last has taken this many nanoseconds. Whether the address space's next sample
    /// is due later for it ([`Histories::took`]).
    pub fn sample_took(&mut self, space: Space, ns: u64) -> bool {
        self.histories.as_mut().is_some_and(|histories| histories.took(space, ns))
    }

    /// The working set of a region in quarters of a frame; 0 without histories.
    pub fn working_set(&self, rid: Rid) -> u64 {
        if rid.index() >= self.regions.len() {
            return 0;
        }
        self.histories.as_ref().map_or(0, |histories| histories.working_set(rid))
    }

    /// The address space whose samples a region's frames take part in: its own, or the VM as a whole.
    fn sampled_with(&self, rid: Rid) -> Space {
        match self.regions[rid.index()].owner {
            Owner::Space(space) => space,
            Owner::Vm | Owner::Guest(_) => Space::VM,
        }
    }

    /// A frame has come from one region to another.
    pub(super) fn take_history_along(&mut self, slot: u32, from: Rid, to: Rid) {
        let (gfn, space) = (self.gfn(slot), self.sampled_with(to));
        if let Some(histories) = &mut self.histories {
            histories.moved(gfn, from, to, space);
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_histories(&self) -> Result<(), alloc::string::String> {
        let frames = (0..self.frames.len()).map(|slot| {
            let rid = self.frames[slot].region();
            (self.gfn(slot as u32), rid, self.sampled_with(rid))
        });
        self.histories.as_ref().map_or(Ok(()), |histories| histories.check(frames))
    }
}

impl Regions for Partition {
    fn region_of(&self, gfn: Gfn) -> Option<Rid> {
        Partition::region_of(self, gfn).ok()
    }

    fn each(&self, first: Gfn, some: u64, mut f: impl FnMut(u32, Rid)) {
        let slot = self.slot_of_group(first);
        for bit in bits(some) {
            let rid = match slot {
                Some(slot) => Some(self.frames[slot + bit as usize].region()),
                None => Regions::region_of(self, Gfn(first.0 + u64::from(bit))),
            };
            rid.into_iter().for_each(|rid| f(bit, rid));
        }
    }

    fn is_one(&self, first: Gfn) -> bool {
        self.slot_of_group(first).is_some_and(|slot| {
            let rid = self.frames[slot].region();
            let mut all = self.frames.slices(slot..slot + GROUP as usize).flatten();
            all.all(|frame| frame.region() == rid)
        })
    }
}

impl Partition {
    /// The number of the first of 64 frames in the records, if theirs are side by side: all are in one range of RAM.
    fn slot_of_group(&self, first: Gfn) -> Option<usize> {
        let (slot, last) = (self.slot(first).ok()?, self.slot(Gfn(first.0 + GROUP - 1)).ok()?);
        (u64::from(last - slot) == GROUP - 1).then_some(slot as usize)
    }
}
