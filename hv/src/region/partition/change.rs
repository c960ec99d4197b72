//! What regioning and balancing do to regions: split, merge, map to a cache, make global, tear down (thesis 2.3.3).

use super::records::NIL;
use super::{Effect, Effects, Kind, Owner, Partition, Refused, Rid, Space, Target};
use crate::arch::addr::Gfn;
use crate::region::{Domain, Domains};

impl Partition {
    /// Makes a frame of a seed region a regular region of its own.
    ///
    /// # Errors
    /// [`Refused::NotRam`]; [`Refused::Kind`]: it is in no seed region; [`Refused::NotMapped`]: it is in the pool;
    /// [`Refused::Full`]: no record is left, and the frame stays where it is.
    pub fn split(&mut self, gfn: Gfn) -> Result<(Rid, Effects), Refused> {
        let slot = self.slot(gfn)?;
        let from = self.frames[slot as usize].region();
        let info = self.known(from)?;
        if from == Rid::POOL {
            return Err(Refused::NotMapped);
        }
        if info.kind != Kind::Seed {
            return Err(Refused::Kind(info.kind));
        }
        let rid = self.take_region(Kind::Regular, info.owner)?;
        let mut effects = Effects::default();
        effects.push(Effect::Born(rid));
        self.move_frame(slot, rid, &mut effects);
        Ok((rid, effects))
    }

    /// Merges two regions of an address space; the smaller one's frames join the larger one, whose number is returned. The
    /// result is mapped to the larger one's cache if it has one, otherwise to the other's.
    ///
    /// # Errors
    /// [`Refused::Itself`], [`Refused::NoRegion`]; [`Refused::Owner`]: they are different ones', or the guest's;
    /// [`Refused::Kind`]: one is neither regular nor local.
    pub fn merge(&mut self, one: Rid, other: Rid) -> Result<(Rid, Effects), Refused> {
        if one == other {
            return Err(Refused::Itself);
        }
        let (a, b) = (self.known(one)?, self.known(other)?);
        if a.owner != b.owner || !matches!(a.owner, Owner::Space(_)) {
            return Err(Refused::Owner);
        }
        let grouped = |kind| matches!(kind, Kind::Regular | Kind::Local(_));
        if let Some(other) = [a.kind, b.kind].into_iter().find(|kind| !grouped(*kind)) {
            return Err(Refused::Kind(other));
        }
        let (large, small) = if a.frames >= b.frames { (one, other) } else { (other, one) };
        let before = [a.kind.open_in(), b.kind.open_in()];
        let kinds = [large, small].map(|rid| self.regions[rid.index()].kind.unwrap_or(Kind::Regular));
        let kind = if kinds[0] == Kind::Regular { kinds[1] } else { kinds[0] };
        let first = self.frames_of(small).next();
        self.append(large, small);
        self.regions[large.index()].kind = Some(kind);
        let mut effects = Effects::default();
        self.bury(small, &mut effects);
        // Regions grow by single frames: those of the large one stay as they are, mostly, and need not be looked at.
        match first {
            Some(first) if kinds[0].open_in() == kind.open_in() => {
                effects.reopen(Target::From(first), kinds[1].open_in(), kind.open_in());
            }
            _ => effects.reopen_parts(Target::Region(large), before, kind.open_in()),
        }
        Ok((large, effects))
    }

    /// All frames of `small` join `large`, at the end of its list.
    fn append(&mut self, large: Rid, small: Rid) {
        let from = self.regions[small.index()];
        let mut slot = from.first;
        while slot != NIL {
            self.frames[slot as usize].set_region(large);
            slot = self.links[slot as usize].next;
        }
        let last = self.regions[large.index()].last;
        if from.first != NIL {
            self.links[from.first as usize].prev = last;
            match last {
                NIL => self.regions[large.index()].first = from.first,
                last => self.links[last as usize].next = from.first,
            }
            self.regions[large.index()].last = from.last;
        }
        self.regions[large.index()].frames += from.frames;
        self.regions[large.index()].entries += from.entries;
        if let Some(histories) = &mut self.histories {
            histories.merged(small, large);
        }
    }

    /// Maps a regular, local or global region to a cache.
    ///
    /// # Errors
    /// [`Refused::NoRegion`]; [`Refused::Kind`]: a seed region, or one for frames of several address spaces.
    pub fn localise(&mut self, rid: Rid, domain: Domain) -> Result<Effects, Refused> {
        self.change_kind(rid, Kind::Local(domain), &[Kind::Regular, Kind::Global])
    }

    /// Makes a regular or local region global, or keeps it so.
    ///
    /// # Errors
    /// As [`Partition::localise`].
    pub fn globalise(&mut self, rid: Rid) -> Result<Effects, Refused> {
        self.change_kind(rid, Kind::Global, &[Kind::Regular, Kind::Global])
    }

    /// Makes a local region regular: it is open in all caches until it is mapped to one again.
    ///
    /// # Errors
    /// [`Refused::NoRegion`]; [`Refused::Kind`]: it is not local.
    pub fn open(&mut self, rid: Rid) -> Result<Effects, Refused> {
        self.change_kind(rid, Kind::Regular, &[])
    }

    /// Makes a regular or local region a seed region, from which frames are split again.
    ///
    /// # Errors
    /// [`Refused::NoRegion`]; [`Refused::Kind`]; [`Refused::Owner`]: the guest has defined it.
    pub fn tear_down(&mut self, rid: Rid) -> Result<Effects, Refused> {
        match self.known(rid)?.owner {
            Owner::Guest(_) => Err(Refused::Owner),
            Owner::Vm | Owner::Space(_) => self.change_kind(rid, Kind::Seed, &[Kind::Regular]),
        }
    }

    /// Changes the kind of a region that is local or of one of these kinds.
    fn change_kind(&mut self, rid: Rid, kind: Kind, from: &[Kind]) -> Result<Effects, Refused> {
        let old = self.known(rid)?.kind;
        let fits = matches!(old, Kind::Local(_)) || from.contains(&old);
        if rid.is_fixed() || !fits {
            return Err(Refused::Kind(old));
        }
        self.regions[rid.index()].kind = Some(kind);
        let mut effects = Effects::default();
        effects.reopen(Target::Region(rid), old.open_in(), kind.open_in());
        Ok(effects)
    }

    /// Makes a single frame global: code, stack, the kernel's, one that has moved VCPUs too often, or that data of several regions share. It
    /// stays so until no address space maps it, or until [`Partition::readmit`].
    ///
    /// # Errors
    /// [`Refused::NotRam`]; [`Refused::NotMapped`]; [`Refused::Taken`]: it is in a region of the guest's.
    pub fn exclude(&mut self, gfn: Gfn) -> Result<Effects, Refused> {
        let slot = self.slot(gfn)?;
        let frame = self.frames[slot as usize];
        if matches!(self.regions[frame.region().index()].owner, Owner::Guest(_)) {
            return Err(Refused::Taken(gfn));
        }
        if frame.is_unmapped() {
            return Err(Refused::NotMapped);
        }
        let mut effects = Effects::default();
        self.move_frame(slot, Rid::GLOBAL, &mut effects);
        Ok(effects)
    }

    /// Undoes [`Partition::exclude`]: a frame that this address space alone maps is in its seed region again.
    ///
    /// # Errors
    /// [`Refused::NotRam`]; [`Refused::NotThere`]: it was not made global by itself; [`Refused::NotMapped`]: others map it, too.
    pub fn readmit(&mut self, gfn: Gfn, space: Space) -> Result<Effects, Refused> {
        let slot = self.slot(gfn)?;
        let frame = self.frames[slot as usize];
        if frame.region() != Rid::GLOBAL {
            return Err(Refused::NotThere(gfn));
        }
        if frame.sole_mapper() != Some(space) {
            return Err(Refused::NotMapped);
        }
        let mut effects = Effects::default();
        self.move_frame(slot, frame.natural_home(), &mut effects);
        Ok(effects)
    }

    /// The domains whose tables may lead to a frame, outside of a regioning phase.
    ///
    /// # Errors
    /// [`Refused::NotRam`].
    pub fn open_in(&self, gfn: Gfn) -> Result<Domains, Refused> {
        let rid = self.region_of(gfn)?;
        Ok(self.info(rid).map_or(Domains::ALL, |info| info.kind.open_in()))
    }
}

/// Regions of the guest's, for [`guest`](crate::region::guest), which keeps their numbers and its quota.
impl Partition {
    /// A region without frames, which the guest has under this number.
    pub(in crate::region) fn add_guest(&mut self, number: u16) -> Result<(Rid, Effects), Refused> {
        let rid = self.take_region(Kind::Regular, Owner::Guest(number))?;
        let mut effects = Effects::default();
        effects.push(Effect::Born(rid));
        Ok((rid, effects))
    }

    /// Ends a region of the guest's that has no frames any more.
    pub(in crate::region) fn end_guest(&mut self, rid: Rid) -> Result<Effects, Refused> {
        let info = self.known(rid)?;
        if !matches!(info.owner, Owner::Guest(_)) {
            return Err(Refused::Owner);
        }
        if info.frames != 0 {
            return Err(Refused::Busy);
        }
        let mut effects = Effects::default();
        self.bury(rid, &mut effects);
        Ok(effects)
    }

    /// Puts a frame that is in no region of the guest's into this one.
    pub(in crate::region) fn claim(&mut self, gfn: Gfn, rid: Rid) -> Result<Effects, Refused> {
        let slot = self.slot(gfn)?;
        if !matches!(self.known(rid)?.owner, Owner::Guest(_)) {
            return Err(Refused::Owner);
        }
        if self.is_claimed(gfn)? {
            return Err(Refused::Taken(gfn));
        }
        let mut effects = Effects::default();
        self.move_frame(slot, rid, &mut effects);
        Ok(effects)
    }

    /// Whether a frame is in a region of the guest's.
    pub(in crate::region) fn is_claimed(&self, gfn: Gfn) -> Result<bool, Refused> {
        let rid = self.region_of(gfn)?;
        Ok(matches!(self.regions[rid.index()].owner, Owner::Guest(_)))
    }

    /// Takes a frame out of this region of the guest's: its mappings say where it belongs.
    pub(in crate::region) fn release(&mut self, gfn: Gfn, rid: Rid) -> Result<Effects, Refused> {
        let slot = self.slot(gfn)?;
        if !matches!(self.known(rid)?.owner, Owner::Guest(_)) {
            return Err(Refused::Owner);
        }
        let frame = self.frames[slot as usize];
        if frame.region() != rid {
            return Err(Refused::NotThere(gfn));
        }
        let mut effects = Effects::default();
        self.move_frame(slot, frame.natural_home(), &mut effects);
        Ok(effects)
    }

    /// The first frame of a region.
    pub(in crate::region) fn first_of(&self, rid: Rid) -> Option<Gfn> {
        self.frames_of(rid).next()
    }
}
