//! What must hold of a partition between two calls.

use alloc::format;
use alloc::string::String;
use alloc::vec;

use super::records::NIL;
use super::{Owner, Partition, Rid, SPACES};
use crate::region::Kind;

impl Partition {
    /// Has as many numbers of address spaces as a large VM, before anything is made for these.
    #[cfg(test)]
    pub(in crate::region) fn have_all_spaces(&mut self) {
        self.spaces.resize(SPACES.into(), None);
    }

    /// Compares all records with each other, in time that grows with the VM's memory.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self) -> Result<(), String> {
        self.check_lists()?;
        self.check_regions()?;
        self.check_counts()?;
        self.check_histories()?;
        for slot in 0..self.frames.len() as u32 {
            let rid = self.frames[slot as usize].region();
            let is_guest = matches!(self.regions[rid.index()].owner, Owner::Guest(_));
            if !is_guest && self.home(slot) != rid {
                return Err(format!("frame {slot} is in {rid:?} and belongs into {:?}", self.home(slot)));
            }
        }
        Ok(())
    }

    /// Each frame is once on the list of its region, and on no other.
    fn check_lists(&self) -> Result<(), String> {
        let mut seen = vec![false; self.frames.len()];
        for (rid, info) in self.regions() {
            let region = self.regions[rid.index()];
            let (mut before, mut at, mut length) = (NIL, region.first, 0u32);
            while at != NIL {
                let (frame, link) = (self.frames[at as usize], self.links[at as usize]);
                if frame.region() != rid || link.prev != before || seen[at as usize] {
                    return Err(format!(
                        "frame {at} on the list of {rid:?} behind {before}: {frame:?} {link:?}"
                    ));
                }
                seen[at as usize] = true;
                (before, at, length) = (at, link.next, length + 1);
            }
            if region.last != before || info.frames != length {
                return Err(format!("{rid:?} has {length} frames to {before}: {region:?}"));
            }
        }
        seen.iter().position(|seen| !seen).map_or(Ok(()), |slot| Err(format!("frame {slot} is on no list")))
    }

    /// Regions exist as long as they should, are of a kind that their place allows, and count the entries of their frames.
    fn check_regions(&self) -> Result<(), String> {
        let mut entries = vec![0u64; self.regions.len()];
        for slot in 0..self.frames.len() as u32 {
            entries[self.frames[slot as usize].region().index()] += self.entries_of(slot);
        }
        let mut dynamic = 0;
        for (rid, info) in self.regions() {
            let lives = info.frames != 0 || rid == Rid::POOL || matches!(info.owner, Owner::Guest(_));
            let fits = match rid {
                Rid::POOL => (info.kind, info.owner) == (Kind::Seed, Owner::Vm),
                Rid::SHARED => (info.kind, info.owner) == (Kind::Shared, Owner::Vm),
                Rid::GLOBAL => (info.kind, info.owner) == (Kind::Global, Owner::Vm),
                _ if rid.is_fixed() => {
                    info.kind == Kind::Seed
                        && matches!(info.owner, Owner::Space(space) if Rid::seed(space) == rid)
                }
                _ => info.owner != Owner::Vm && info.kind != Kind::Shared,
            };
            if !lives || !fits || info.entries != entries[rid.index()] {
                return Err(format!("{rid:?}: {info:?}, {} entries", entries[rid.index()]));
            }
            dynamic += u32::from(!rid.is_fixed());
        }
        let mut free = 0;
        let mut at = self.free_region;
        while at != NIL && free <= self.regions.len() {
            if self.regions[at as usize].kind.is_some() {
                return Err(format!("region {at} is in use and free"));
            }
            (at, free) = (self.regions[at as usize].first, free + 1);
        }
        let all = self.regions.len() - usize::from(Rid::FIRST);
        if dynamic != self.dynamic || free + dynamic as usize != all {
            return Err(format!("{dynamic} regions in use ({}), {free} free, of {all}", self.dynamic));
        }
        Ok(())
    }

    /// Nodes belong to one frame each or are free, and address spaces count the entries that frames count for them.
    fn check_counts(&self) -> Result<(), String> {
        let mut by_space = vec![0u64; SPACES.into()];
        let (mut uncounted, mut nodes) = (0u64, 0);
        for slot in 0..self.frames.len() {
            let frame = self.frames[slot];
            if frame.mapper().is_none() && (frame.entries != 0 || frame.more().is_some()) {
                return Err(format!("frame {slot}: {frame:?}"));
            }
            uncounted += u64::from(frame.uncounted);
            let mut seen = vec![];
            for (space, entries) in self.mappers(self.gfn(slot as u32)) {
                if entries == 0 || seen.contains(&space) {
                    return Err(format!("frame {slot} has {entries} entries of {space:?}"));
                }
                seen.push(space);
                by_space[usize::from(space.0)] += u64::from(entries);
            }
            nodes += seen.len().saturating_sub(1);
        }
        let mut missing = 0;
        for (counted, known) in by_space.iter().zip(&self.spaces) {
            let known = known.unwrap_or(0);
            missing +=
                known.checked_sub(*counted).ok_or_else(|| format!("{counted} entries, not {known}"))?;
        }
        let mut free = 0;
        let mut at = self.free_node;
        while at != NIL && free <= self.nodes.len() {
            (at, free) = (self.nodes[at as usize].next, free + 1);
        }
        if missing != uncounted || nodes + free != self.nodes.len() {
            return Err(format!("{missing} of {uncounted} uncounted, nodes {nodes} and {free} free"));
        }
        Ok(())
    }
}
