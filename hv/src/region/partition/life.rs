//! Mappings that come and go: birth, growth, sharing, privatisation, death (thesis 2.2.2).

use alloc::vec::Vec;

use super::records::{NIL, Node};
use super::{Effects, Owner, Partition, Refused, Rid, Space};
use crate::arch::addr::Gfn;
use crate::region::Kind;

impl Partition {
    /// A number for an address space, whose virtual time begins at 0.
    ///
    /// # Errors
    /// [`Refused::Full`]: use [`Space::VM`] for it; its frames then count as the VM's.
    pub fn add_space(&mut self) -> Result<Space, Refused> {
        let free = self.spaces.iter().position(Option::is_none).ok_or(Refused::Full)?;
        self.spaces[free] = Some(0);
        let space = Space(free as u16);
        if let Some(histories) = &mut self.histories {
            histories.restart(space);
        }
        Ok(space)
    }

    /// The address space is gone, and all its mappings have been.
    ///
    /// # Errors
    /// [`Refused::Busy`], also for [`Space::VM`], which stays; [`Refused::NoSpace`].
    pub fn remove_space(&mut self, space: Space) -> Result<(), Refused> {
        match self.entries_in(space)? {
            0 if space != Space::VM => self.spaces[usize::from(space.0)] = None,
            _ => return Err(Refused::Busy),
        }
        Ok(())
    }

    /// Entries of an address space's tables.
    ///
    /// # Errors
    /// [`Refused::NoSpace`].
    pub fn entries_in(&self, space: Space) -> Result<u64, Refused> {
        self.spaces.get(usize::from(space.0)).copied().flatten().ok_or(Refused::NoSpace(space))
    }

    /// A further entry of an address space's tables leads to a frame.
    ///
    /// # Errors
    /// [`Refused::NotRam`], [`Refused::NoSpace`]; [`Refused::Full`]: 2^32 entries lead there.
    pub fn map(&mut self, gfn: Gfn, space: Space) -> Result<Effects, Refused> {
        let slot = self.slot(gfn)?;
        let entries = self.entries_in(space)?;
        self.count_up(slot, space)?;
        self.spaces[usize::from(space.0)] = Some(entries + 1);
        let region = self.frames[slot as usize].region();
        self.regions[region.index()].entries += 1;
        Ok(self.settle(slot))
    }

    /// An entry of an address space's tables leads to a frame no longer.
    ///
    /// # Errors
    /// [`Refused::NotRam`], [`Refused::NoSpace`], [`Refused::NotMapped`].
    pub fn unmap(&mut self, gfn: Gfn, space: Space) -> Result<Effects, Refused> {
        let slot = self.slot(gfn)?;
        let entries = self.entries_in(space)?.checked_sub(1).ok_or(Refused::NotMapped)?;
        self.count_down(slot, space)?;
        self.spaces[usize::from(space.0)] = Some(entries);
        let region = self.frames[slot as usize].region();
        self.regions[region.index()].entries -= 1;
        Ok(self.settle(slot))
    }

    /// Whether there is a record for a further address space that maps a frame. Where there is none, a frame that becomes shared is
    /// so until all its mappings are gone, and the further one is not known by name.
    pub fn can_share(&self) -> bool {
        self.free_node != NIL
    }

    /// Unmaps frames that address spaces which are gone still map: of `count` frames from number `from` on among all of RAM, as long as
    /// `effects` has room. What that has done to regions is added there. Returns the number of the first frame that was not looked
    /// at; `None`: there is none.
    pub fn unmap_gone(
        &mut self,
        from: usize,
        count: usize,
        is_gone: impl Fn(Space) -> bool,
        effects: &mut Vec<Effects>,
    ) -> Option<usize> {
        let end = from.saturating_add(count).min(self.frames.len());
        for slot in from..end {
            let gfn = self.gfn(slot as u32);
            loop {
                let gone = self.mappers(gfn).find(|(space, _)| is_gone(*space));
                let Some((space, _)) = gone else { break };
                if effects.len() == effects.capacity() {
                    return Some(slot);
                }
                match self.unmap(gfn, space) {
                    Ok(done) if done.is_empty() => {}
                    Ok(done) => effects.push(done),
                    Err(_) => break,
                }
            }
        }
        (end < self.frames.len()).then_some(end)
    }

    /// Puts a frame where its mappings say that it belongs.
    fn settle(&mut self, slot: u32) -> Effects {
        let mut effects = Effects::default();
        let rid = self.frames[slot as usize].region();
        if !matches!(self.regions[rid.index()].owner, Owner::Guest(_)) {
            self.move_frame(slot, self.home(slot), &mut effects);
        }
        effects
    }

    /// Where a frame belongs that is in no region of the guest's: where it is, if its mappings allow that.
    pub(super) fn home(&self, slot: u32) -> Rid {
        let frame = self.frames[slot as usize];
        let rid = frame.region();
        let region = &self.regions[rid.index()];
        let is_sole_owner = frame.sole_mapper().is_some_and(|space| region.owner == Owner::Space(space));
        match region.kind {
            _ if frame.is_unmapped() => Rid::POOL,
            _ if is_sole_owner => rid,
            // What has been made global stays so, in a region that is no address space's.
            Some(Kind::Global) => Rid::GLOBAL,
            _ => frame.natural_home(),
        }
    }

    /// Entries that lead to a frame.
    pub(super) fn entries_of(&self, slot: u32) -> u64 {
        let frame = self.frames[slot as usize];
        let more = core::iter::successors(frame.more(), |&node| self.nodes[node as usize].next());
        let counted: u64 = more.map(|node| u64::from(self.nodes[node as usize].entries)).sum();
        u64::from(frame.entries) + u64::from(frame.uncounted) + counted
    }

    /// The node of an address space for a frame, and the one before it.
    fn node(&self, slot: u32, space: Space) -> Option<(Option<u32>, u32)> {
        let mut before = None;
        let mut at = self.frames[slot as usize].more();
        while let Some(node) = at {
            if self.nodes[node as usize].space == space.0 {
                return Some((before, node));
            }
            (before, at) = (at, self.nodes[node as usize].next());
        }
        None
    }

    fn count_up(&mut self, slot: u32, space: Space) -> Result<(), Refused> {
        let node = self.node(slot, space);
        let frame = &mut self.frames[slot as usize];
        let count = if frame.is_unmapped() {
            frame.set_mapper(Some(space));
            &mut frame.entries
        } else if frame.mapper() == Some(space) {
            &mut frame.entries
        } else if let Some((_, node)) = node {
            &mut self.nodes[node as usize].entries
        } else if frame.uncounted == 0 && self.free_node != NIL {
            let node = self.free_node;
            self.free_node = self.nodes[node as usize].next;
            let next = frame.more().unwrap_or(NIL);
            frame.set_more(Some(node));
            self.nodes[node as usize] = Node { next, entries: 0, space: space.0 };
            &mut self.nodes[node as usize].entries
        } else {
            &mut frame.uncounted
        };
        *count = count.checked_add(1).ok_or(Refused::Full)?;
        Ok(())
    }

    fn count_down(&mut self, slot: u32, space: Space) -> Result<(), Refused> {
        let node = self.node(slot, space);
        let frame = &mut self.frames[slot as usize];
        if frame.mapper() == Some(space) {
            frame.entries -= 1;
            if frame.entries == 0 {
                self.promote(slot);
            }
        } else if let Some((before, node)) = node {
            self.nodes[node as usize].entries -= 1;
            if self.nodes[node as usize].entries == 0 {
                self.free(slot, before, node);
            }
        } else {
            frame.uncounted = frame.uncounted.checked_sub(1).ok_or(Refused::NotMapped)?;
        }
        Ok(())
    }

    /// The frame's own counter is free: the first node's address space takes it.
    fn promote(&mut self, slot: u32) {
        let first = self.frames[slot as usize].more();
        let taken = first.map(|node| self.nodes[node as usize]);
        let frame = &mut self.frames[slot as usize];
        frame.set_mapper(taken.map(|node| Space(node.space)));
        frame.entries = taken.map_or(0, |node| node.entries);
        if let Some(node) = first {
            self.free(slot, None, node);
        }
    }

    fn free(&mut self, slot: u32, before: Option<u32>, node: u32) {
        let next = self.nodes[node as usize].next();
        match before {
            None => self.frames[slot as usize].set_more(next),
            Some(before) => self.nodes[before as usize].next = next.unwrap_or(NIL),
        }
        self.nodes[node as usize] = Node { next: self.free_node, entries: 0, space: 0 };
        self.free_node = node;
    }
}
