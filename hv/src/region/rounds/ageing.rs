//! What is forgotten: frames that are not used any more, address spaces that are gone, and all of it at the end of the search.

use alloc::vec::Vec;

use super::Rounds;
use crate::arch::addr::Gfn;
use crate::region::partition::Partition;
use crate::region::{Effects, Owner, Rid, Space};

/// Complete samples from one look for frames that none has found accessed to the next: a frame that a phase has seen between two looks
/// is found accessed until the second, or used by the way only.
const IDLE_SAMPLES: u64 = 8;
/// Frames that one call unmaps at most.
const MOST_AGED: usize = 1024;

impl Rounds {
    /// Unmaps frames that samples have not found accessed for long, and returns what that has done to regions. Each address space's frames
    /// by its own samples, what belongs to none by the VM's. Nothing where processors tell of no accesses
    /// (samples are not taken then), or too few samples were taken since the last look.
    pub fn age(&mut self, partition: &mut Partition) -> Vec<Effects> {
        let (mut idle, mut all): (Vec<Gfn>, Vec<Effects>) = Default::default();
        // A frame that two address spaces map has two changes.
        let has_room =
            idle.try_reserve_exact(MOST_AGED).is_ok() && all.try_reserve_exact(2 * MOST_AGED).is_ok();
        if !has_room {
            return all;
        }
        let is_idle = |gfn: &Gfn| partition.histories().and_then(|all| all.ones(*gfn)) == Some(0);
        let clock = |rid: Rid, owner| match owner {
            Owner::Space(space) => Some(space),
            Owner::Vm => (rid == Rid::GLOBAL || rid == Rid::SHARED).then_some(Space::VM),
            Owner::Guest(_) => None,
        };
        let ages = |space| self.spaces.ages(space, IDLE_SAMPLES);
        let regions = partition.regions().filter(|(rid, info)| clock(*rid, info.owner).is_some_and(ages));
        let frames = regions.flat_map(|(rid, _)| partition.frames_of(rid)).filter(is_idle);
        idle.extend(frames.take(MOST_AGED));
        if idle.len() < MOST_AGED {
            self.spaces.aged(IDLE_SAMPLES);
        }
        for gfn in idle {
            self.counts.aged += 1;
            // It counts as mapped once by each.
            while let Some((space, _)) = first_mapper(partition, gfn) {
                match partition.unmap(gfn, space) {
                    Ok(done) if done.is_empty() => {}
                    Ok(done) if all.len() < all.capacity() => all.push(done),
                    _ => break,
                }
            }
        }
        all
    }

    /// Unmaps some frames of address spaces that are gone, if it is time for that and no phase is running, and returns what that has
    /// done to regions. `has_programs`: whether the tables with a root lead to any program's memory.
    pub fn sweep(
        &mut self,
        partition: &mut Partition,
        has_programs: impl FnMut(u64) -> bool,
    ) -> Vec<Effects> {
        if self.phase.is_some() || !self.spaces.is_due() {
            return Vec::new();
        }
        self.spaces.end_unseen(partition, has_programs);
        self.spaces.sweep(partition).unwrap_or_default()
    }

    /// Tears down all regions that were found, for an end of the search; all address spaces are gone. Tables must have followed before
    /// [`Rounds::leave`].
    pub fn give_up(&mut self, partition: &mut Partition, mut follow: impl FnMut(Effects)) {
        self.abandon(partition);
        for space in self.spaces.numbers() {
            let is_known = space == Space::VM || self.spaces.root(space).is_some();
            if is_known && let Some(worth) = self.regioning.worth(space) {
                worth.give_up(partition, space, &mut follow);
            }
            if space != Space::VM {
                self.spaces.end(space);
            }
        }
    }

    /// Unmaps some frames of address spaces that are gone, and returns what that has done to regions. `None`: nothing is left of them.
    pub fn leave(&mut self, partition: &mut Partition) -> Option<Vec<Effects>> {
        self.spaces.sweep(partition)
    }
}

fn first_mapper(partition: &Partition, gfn: Gfn) -> Option<(Space, u32)> {
    partition.mappers(gfn).next()
}
