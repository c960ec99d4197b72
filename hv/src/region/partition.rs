//! Which frame of a VM is in which region: at any time each is in exactly one.
//!
//! ```text
//!              map                    split                 localise
//!   POOL ─────────────► seed of A ─────────────► regular ◄─────────────► local(domain)
//!    ▲                    ▲    ▲                   │ ▲ merge               │    │
//!    │ last unmap         │    └──── tear_down ────┴─┴────────────────────┘    │ second address space maps it
//!    │                    │ sharers leave but one                                ▼
//!    └── any region       └──────────────────────────────────────────────────  SHARED
//!                  exclude, globalise: to a global region, until the last unmap
//! ```
//!
//! Each transition checks everything, then changes the records in time that does not depend on the memory's size (a merge walks
//! the smaller region), and returns [`Effects`]. The lists of frames are the reverse maps of regions; [`mappers`] those of frames, to the
//! address spaces whose tables lead to them. The single table entries are known to the shadow pool's reverse maps and, for nested
//! tables, by the frame's number.
//!
//! [`mappers`]: Partition::mappers

mod change;
#[cfg(any(test, feature = "testing"))]
mod check;
mod life;
mod records;
mod samples;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::ops::Range;

use self::records::{Frame, Link, NIL, Node, Region};
use super::history::Histories;
use super::{Domains, Effect, Effects, Kind, Owner, Refused, Rid, SPACES, Space, Target};
use crate::arch::addr::Gfn;
use crate::mem::pieces::{OutOfMemory, Pieces};

/// Frames for a region's record; from this many records on those in fixed places are among them. A full table refuses splits; frames
/// then stay in their seed region.
const FRAMES_FOR_REGION: usize = 16;
const FEW_REGIONS: usize = 512;
/// Frames for a number of an address space, and numbers at least.
const FRAMES_FOR_SPACE: usize = 512;
const LEAST_SPACES: usize = 32;
/// Frames for a record of a further address space that maps a frame. Beyond, only the number of entries is known.
const FRAMES_FOR_NODE: usize = 8;
/// Records of either kind at least, and regions at most.
const LEAST: usize = 64;
const MOST_REGIONS: usize = 16_384;

/// The regions of a VM's RAM.
#[derive(Debug)]
pub struct Partition {
    /// RAM by address; the number of a frame in the records is that of its place in it.
    ram: Vec<Range<Gfn>>,
    frames: Pieces<Frame>,
    links: Pieces<Link>,
    regions: Pieces<Region>,
    nodes: Pieces<Node>,
    /// The first free record of each kind.
    free_region: u32,
    free_node: u32,
    /// Regions in use, of those that are not in fixed places.
    dynamic: u32,
    /// Entries of each address space's tables; `None`: there is no such space.
    spaces: Vec<Option<u64>>,
    /// Access histories, from [`Partition::start_histories`] on.
    histories: Option<Histories>,
}

/// What can be read of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// What it is.
    pub kind: Kind,
    /// Whose.
    pub owner: Owner,
    /// Its frames.
    pub frames: u32,
    /// Table entries that lead to them.
    pub entries: u64,
}

impl Partition {
    /// All frames of `ram` (disjoint, sorted by address, below 2^32 frames together) in the pool.
    ///
    /// # Errors
    /// No memory.
    pub fn new(ram: impl IntoIterator<Item = Range<Gfn>>) -> Result<Partition, OutOfMemory> {
        let mut ranges = Vec::new();
        let mut count = 0u64;
        for range in ram.into_iter().filter(|range| range.start < range.end) {
            ranges.try_reserve(1).map_err(|_| OutOfMemory)?;
            count += range.end.0 - range.start.0;
            ranges.push(range);
        }
        let count = u32::try_from(count).ok().filter(|count| *count != NIL).ok_or(OutOfMemory)? as usize;
        let (regions, nodes) = Partition::records_for(count);
        let mut spaces = Vec::new();
        let numbers = Partition::spaces_for(count);
        spaces.try_reserve_exact(numbers).map_err(|_| OutOfMemory)?;
        spaces.resize(numbers, None);
        spaces[0] = Some(0);
        let mut partition = Partition {
            ram: ranges,
            frames: Pieces::new(count, Frame::default)?,
            links: Pieces::new(count, Link::default)?,
            regions: Pieces::new(regions, Region::default)?,
            nodes: Pieces::new(nodes, Node::default)?,
            free_region: NIL,
            free_node: NIL,
            dynamic: 0,
            spaces,
            histories: None,
        };
        partition.put_all_into_the_pool();
        Ok(partition)
    }

    /// Records of regions and of further address spaces, for `frames` frames.
    const fn records_for(frames: usize) -> (usize, usize) {
        let all = frames / FRAMES_FOR_REGION;
        let most =
            if all > FEW_REGIONS + Rid::FIRST as usize { all - Rid::FIRST as usize } else { FEW_REGIONS };
        let regions = if all < most { all } else { most };
        let regions = if regions < LEAST { LEAST } else { regions };
        let regions = if regions > MOST_REGIONS { MOST_REGIONS } else { regions };
        let nodes = if frames / FRAMES_FOR_NODE < LEAST { LEAST } else { frames / FRAMES_FOR_NODE };
        (Rid::FIRST as usize + regions, nodes)
    }

    /// Numbers of address spaces for `frames` frames, [`SPACES`] at most.
    pub const fn spaces_for(frames: usize) -> usize {
        let spaces = frames / FRAMES_FOR_SPACE;
        let spaces = if spaces < LEAST_SPACES { LEAST_SPACES } else { spaces };
        if spaces > SPACES as usize { SPACES as usize } else { spaces }
    }

    /// How many numbers there are for address spaces, that of [`Space::VM`] among them.
    pub fn space_records(&self) -> usize {
        self.spaces.len()
    }

    /// Records of regions for `frames` frames.
    pub const fn regions_for(frames: usize) -> usize {
        Partition::records_for(frames).0
    }

    /// Bytes of host memory that the records of `frames` frames take, without the tables of pieces (a 512th of it).
    pub const fn bytes_for(frames: usize) -> usize {
        let (regions, nodes) = Partition::records_for(frames);
        let pieces = Pieces::<Frame>::frames(frames)
            + Pieces::<Link>::frames(frames)
            + Pieces::<Region>::frames(regions)
            + Pieces::<Node>::frames(nodes);
        pieces * crate::arch::addr::PAGE_SIZE as usize
    }

    fn put_all_into_the_pool(&mut self) {
        let count = self.frames.len() as u32;
        for slot in 0..count {
            self.links[slot as usize] = Link {
                prev: slot.checked_sub(1).unwrap_or(NIL),
                next: if slot + 1 < count { slot + 1 } else { NIL },
            };
        }
        let ends = if count == 0 { (NIL, NIL) } else { (0, count - 1) };
        self.regions[Rid::POOL.index()] = Region {
            first: ends.0,
            last: ends.1,
            frames: count,
            kind: Some(Kind::Seed),
            owner: Owner::Vm,
            entries: 0,
        };
        for index in (usize::from(Rid::FIRST)..self.regions.len()).rev() {
            self.regions[index].first = self.free_region;
            self.free_region = index as u32;
        }
        for index in (0..self.nodes.len()).rev() {
            self.nodes[index].next = self.free_node;
            self.free_node = index as u32;
        }
    }

    /// The number of a frame in the records.
    fn slot(&self, gfn: Gfn) -> Result<u32, Refused> {
        let mut before = 0;
        for range in &self.ram {
            if range.contains(&gfn) {
                return Ok((before + gfn.0 - range.start.0) as u32);
            }
            before += range.end.0 - range.start.0;
        }
        Err(Refused::NotRam(gfn))
    }

    fn gfn(&self, slot: u32) -> Gfn {
        let mut left = u64::from(slot);
        for range in &self.ram {
            let len = range.end.0 - range.start.0;
            if left < len {
                return Gfn(range.start.0 + left);
            }
            left -= len;
        }
        unreachable!("a slot of the records is one of the RAM's frames")
    }

    /// Frames of RAM.
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Bytes of host memory that its records take.
    pub fn bytes(&self) -> usize {
        Partition::bytes_for(self.frames.len())
    }

    /// Records of regions: all their numbers are below.
    pub fn region_records(&self) -> usize {
        self.regions.len()
    }

    /// The region that a frame is in.
    ///
    /// # Errors
    /// [`Refused::NotRam`].
    pub fn region_of(&self, gfn: Gfn) -> Result<Rid, Refused> {
        Ok(self.frames[self.slot(gfn)? as usize].region())
    }

    /// What is known of a region; `None`: there is none with this number.
    pub fn info(&self, rid: Rid) -> Option<Info> {
        if rid.index() >= self.regions.len() {
            return None;
        }
        let Region { kind, owner, frames, entries, .. } = self.regions[rid.index()];
        Some(Info { kind: kind?, owner, frames, entries })
    }

    /// What a region is; `None`: there is none with this number.
    pub fn kind_of(&self, rid: Rid) -> Option<Kind> {
        if rid.index() < self.regions.len() { self.regions[rid.index()].kind } else { None }
    }

    /// Whose a region is; `None`: there is none with this number.
    pub fn owner_of(&self, rid: Rid) -> Option<Owner> {
        self.kind_of(rid)?;
        Some(self.regions[rid.index()].owner)
    }

    /// What is known of the region that a frame is in; `None`: the frame is no RAM.
    pub fn info_of(&self, gfn: Gfn) -> Option<Info> {
        self.info(self.region_of(gfn).ok()?)
    }

    /// What the region is that a frame is in, by the frame's number among all of RAM; `None`: there are fewer frames.
    pub fn kind_at(&self, number: usize) -> Option<Kind> {
        let rid = (number < self.frames.len()).then(|| self.frames[number].region())?;
        self.regions[rid.index()].kind
    }

    /// The regions in use, by number.
    pub fn regions(&self) -> impl Iterator<Item = (Rid, Info)> + '_ {
        let those = |range: Range<usize>| {
            range.filter_map(|index| Some((Rid(index as u16), self.info(Rid(index as u16))?)))
        };
        let first = Rid::FIRST.into();
        // Most records are free, and there are many: behind the last region nothing is looked at.
        those(0..first).chain(those(first..self.regions.len()).take(self.dynamic as usize))
    }

    /// A frame and those behind it in the list of its region; none if it is no RAM.
    pub fn frames_from(&self, gfn: Gfn) -> impl Iterator<Item = Gfn> + '_ {
        let slots = core::iter::successors(self.slot(gfn).ok(), |slot| {
            let next = self.links[*slot as usize].next;
            (next != NIL).then_some(next)
        });
        slots.map(|slot| self.gfn(slot))
    }

    /// The frames of a region, in the order of its list.
    pub fn frames_of(&self, rid: Rid) -> impl Iterator<Item = Gfn> + '_ {
        let first = if self.info(rid).is_some() { self.regions[rid.index()].first } else { NIL };
        let slots = core::iter::successors((first != NIL).then_some(first), |slot| {
            let next = self.links[*slot as usize].next;
            (next != NIL).then_some(next)
        });
        slots.map(|slot| self.gfn(slot))
    }

    /// The address spaces known to map a frame, and by how many entries each. Further ones may map it where records of them have
    /// run out; the frame is shared then.
    pub fn mappers(&self, gfn: Gfn) -> impl Iterator<Item = (Space, u32)> + '_ {
        let frame = self.slot(gfn).map(|slot| self.frames[slot as usize]).unwrap_or_default();
        let first = frame.mapper().map(|space| (space, frame.entries));
        let more = core::iter::successors(frame.more(), |&node| self.nodes[node as usize].next());
        first.into_iter().chain(more.map(|node| {
            let Node { space, entries, .. } = self.nodes[node as usize];
            (Space(space), entries)
        }))
    }

    /// Checks that there is such a region, and returns it.
    fn known(&self, rid: Rid) -> Result<Info, Refused> {
        self.info(rid).ok_or(Refused::NoRegion)
    }

    /// Takes a record for a region; it has no frame yet.
    fn take_region(&mut self, kind: Kind, owner: Owner) -> Result<Rid, Refused> {
        let index = self.free_region;
        if index == NIL {
            return Err(Refused::Full);
        }
        self.free_region = self.regions[index as usize].first;
        self.dynamic += 1;
        self.regions[index as usize] = Region { kind: Some(kind), owner, ..Region::default() };
        Ok(Rid(index as u16))
    }

    /// A region dies when it has lost its last frame, unless it is the pool or the guest has a number for it.
    fn bury_if_dead(&mut self, rid: Rid, effects: &mut Effects) {
        let region = &self.regions[rid.index()];
        if region.frames != 0 || rid == Rid::POOL || matches!(region.owner, Owner::Guest(_)) {
            return;
        }
        self.bury(rid, effects);
    }

    fn bury(&mut self, rid: Rid, effects: &mut Effects) {
        self.regions[rid.index()] = Region::default();
        if !rid.is_fixed() {
            self.regions[rid.index()].first = self.free_region;
            self.free_region = u32::from(rid.0);
            self.dynamic -= 1;
        }
        effects.push(Effect::Died(rid));
    }

    /// Moves a frame to another region, which is born if it is one in a fixed place.
    fn move_frame(&mut self, slot: u32, to: Rid, effects: &mut Effects) {
        let from = self.frames[slot as usize].region();
        if from == to {
            return;
        }
        if self.regions[to.index()].kind.is_none() {
            let (kind, owner) = match to {
                Rid::SHARED => (Kind::Shared, Owner::Vm),
                Rid::GLOBAL => (Kind::Global, Owner::Vm),
                _ => (Kind::Seed, Owner::Space(Space(to.0 - Rid::SEEDS))),
            };
            self.regions[to.index()] = Region { kind: Some(kind), owner, ..Region::default() };
            effects.push(Effect::Born(to));
        }
        let entries = self.entries_of(slot);
        self.unlink(slot, from);
        self.link(slot, to);
        self.frames[slot as usize].set_region(to);
        self.regions[from.index()].entries -= entries;
        self.regions[to.index()].entries += entries;
        self.take_history_along(slot, from, to);
        let open = |rid: Rid| self.regions[rid.index()].kind.map_or(Domains::ALL, Kind::open_in);
        let (before, now) = (open(from), open(to));
        effects.reopen(Target::Frame(self.gfn(slot)), before, now);
        self.bury_if_dead(from, effects);
    }

    fn unlink(&mut self, slot: u32, rid: Rid) {
        let Link { prev, next } = self.links[slot as usize];
        match prev {
            NIL => self.regions[rid.index()].first = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NIL => self.regions[rid.index()].last = prev,
            next => self.links[next as usize].prev = prev,
        }
        self.regions[rid.index()].frames -= 1;
    }

    fn link(&mut self, slot: u32, rid: Rid) {
        let last = self.regions[rid.index()].last;
        self.links[slot as usize] = Link { prev: last, next: NIL };
        match last {
            NIL => self.regions[rid.index()].first = slot,
            last => self.links[last as usize].next = slot,
        }
        self.regions[rid.index()].last = slot;
        self.regions[rid.index()].frames += 1;
    }
}
