//! A program touches memory in a phase: which address space that is, and what else maps the frame.

use arrayvec::ArrayVec;

use super::Rounds;
use crate::arch::addr::Gfn;
use crate::region::partition::Partition;
use crate::region::regioning::Event;
use crate::region::{Effects, Owner, Rid, Space};

/// What has become of memory that a program touches, and of its VCPU's phase.
#[must_use = "tables differ from what they should be until this is done"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Another address space's program ran before: everything in the phase's tables is to be closed but what is open everywhere.
    pub is_switch: bool,
    /// For all tables.
    pub effects: ArrayVec<Effects, { Arrival::MOST }>,
}

impl Arrival {
    /// Two address spaces that are gone map the frame no longer, a third does, a region of it is torn down, and a page judged again.
    const MOST: usize = 5;

    fn add(&mut self, effects: Effects) {
        if !effects.is_empty() {
            // A fault on what is open in the records, and closed in tables, opens it.
            let _there_is_room = self.effects.try_push(effects);
        }
    }
}

impl Rounds {
    /// The program with this root, on the VCPU that is in a phase, has touched a frame: its address space is the current one, and maps the
    /// frame. The touch itself is to follow ([`Rounds::on`]). `has_programs`: whether the tables with a root lead to any program's
    /// memory.
    pub fn arrive(
        &mut self,
        partition: &mut Partition,
        now_ns: u64,
        root: Option<u64>,
        gfn: Gfn,
        has_programs: impl FnMut(u64) -> bool,
    ) -> Arrival {
        let mut arrival = Arrival::default();
        let Some(phase) = &mut self.phase else { return arrival };
        let before = phase.current;
        let space = match (before, root) {
            // Each touch without a number is counted.
            (Some((space, last)), _) if last == root && space != Space::VM => space,
            (_, Some(root)) if self.settings.spaces == abi::regions::Spaces::Cr3 => {
                let (space, is_new) = self.spaces.enter(partition, root);
                if is_new {
                    self.regioning.begin_space(space);
                }
                space
            }
            _ => Space::VM,
        };
        phase.current = Some((space, root));
        // What is torn down in the second half would not be found again.
        let is_early =
            now_ns.saturating_sub(phase.start_ns) <= u64::from(self.regioning.params().phase_ns) / 2;
        let is_first = is_early && phase.asked.insert(space);
        let takes_turn = is_early && phase.takes.remove(space);
        if let Some((before, _)) = before.filter(|(before, _)| *before != space) {
            self.regioning.pause(before, now_ns);
        }
        arrival.is_switch = before.is_none_or(|(before, _)| before != space);
        self.map(partition, space, gfn, has_programs, &mut arrival);
        if takes_turn || is_first && self.takes_turn(space) {
            let begun = self.regioning.on(partition, space, now_ns, Event::Due);
            begun.effects.into_iter().for_each(|effects| arrival.add(effects));
        }
        arrival
    }

    /// A frame that an address space uses counts as mapped there. If another one maps it already, both share it; unless that one is
    /// gone, and the guest's kernel has given its memory away.
    fn map(
        &mut self,
        partition: &mut Partition,
        space: Space,
        gfn: Gfn,
        mut has_programs: impl FnMut(u64) -> bool,
        arrival: &mut Arrival,
    ) {
        if let Some(Owner::Space(owner)) = partition.info_of(gfn).map(|info| info.owner)
            && owner != space
            && self.spaces.root(owner).is_some_and(|root| !has_programs(root))
        {
            self.spaces.end(owner);
        }
        let is_left = |other: Space| other != space && self.spaces.is_gone(other);
        for _ in 0..2 {
            let left = partition.mappers(gfn).find(|(other, _)| is_left(*other));
            if let Some((left, _)) = left
                && let Ok(effects) = partition.unmap(gfn, left)
            {
                arrival.add(effects);
            }
        }
        let Some(info) = partition.info_of(gfn) else { return };
        let is_anothers = matches!(info.owner, Owner::Space(owner) if owner != space);
        // Refused for no frame of RAM that is mapped nowhere, or in an address space alone.
        let changed = match () {
            () if partition.region_of(gfn) == Ok(Rid::POOL) => partition.map(gfn, space),
            () if is_anothers && partition.can_share() => partition.map(gfn, space),
            () if is_anothers => partition.exclude(gfn),
            () => return,
        };
        changed.into_iter().for_each(|effects| arrival.add(effects));
    }
}
